package model

import (
	"fmt"
	"reflect"
	"slices"

	"github.com/felix-go/felix"
)

// outcome is what became of an operation with an id.
type outcome struct {
	op     felix.Op // the first with the id
	reply  felix.Reply
	expiry int64
}

// evalOnce is eval of an operation that may carry an id.
func (c *cache) evalOnce(op *felix.Op) felix.Reply {
	once := op.Once
	if once == nil {
		return c.eval(op)
	}
	switch {
	case illegal(op) != "":
		return c.eval(op)
	case op.Kind == felix.Get || op.Kind == felix.Check:
		return felix.Reply{Err: felix.Errorf(felix.InvalidArgument, "an id of an operation that changes nothing")}
	case len(once.ID) < 1 || len(once.ID) > felix.MaxIDBytes:
		return felix.Reply{Err: felix.Errorf(felix.InvalidArgument, "an id of %d bytes", len(once.ID))}
	case once.RetentionMillis < 0 || once.RetentionMillis > felix.MaxIDRetention.Milliseconds():
		return felix.Reply{Err: felix.Errorf(felix.InvalidArgument, "a retention of %d ms", once.RetentionMillis)}
	}
	now := c.s.now()
	for id, o := range c.ids {
		if o.expiry <= now {
			delete(c.ids, id)
		}
	}
	id, plain := fmt.Sprintf("%q %q", op.Key, once.ID), bare(op)
	if o, is := c.ids[id]; is {
		if !reflect.DeepEqual(o.op, plain) {
			return felix.Reply{Err: felix.ErrIDReused}
		}
		o.reply.Replayed = o.reply.Err == nil
		return o.reply
	}
	if int64(len(c.ids)) >= c.settings.MaxIDs {
		return felix.Reply{Err: felix.Errorf(felix.ResourceExhausted, "the cache has %d ids", len(c.ids))}
	}
	asked := *op
	asked.NoValue = true
	o := outcome{op: plain, reply: c.eval(&asked), expiry: now + felix.DefaultIDRetention.Milliseconds()}
	if once.RetentionMillis > 0 {
		o.expiry = now + once.RetentionMillis
	}
	c.ids[id] = o
	return o.reply
}

// bare is a copy of an operation without its id.
func bare(op *felix.Op) felix.Op {
	c := *op
	c.Once = nil
	c.Key, c.Value = slices.Concat([]byte{}, op.Key), slices.Concat([]byte{}, op.Value)
	if op.Bounds != nil {
		bounds := *op.Bounds
		c.Bounds = &bounds
	}
	return c
}

func checkMaxIDs(n int64) error {
	if n < 1 || n > felix.MaxIDsPerCache {
		return felix.Errorf(felix.InvalidArgument, "max-ids %d: it is 1 to %d", n, felix.MaxIDsPerCache)
	}
	return nil
}
