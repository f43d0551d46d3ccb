package broker

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/felix-go/felix"
)

// valueWatch adds up what the replies carry when they are told.
type valueWatch struct {
	values, all int
	refused     int
	left        int
	done        chan struct{}
	lock        chan struct{}
}

// OpsDone implements felix.Completer.
func (w *valueWatch) OpsDone(batch *felix.Batch, part []int32) {
	w.lock <- struct{}{}
	defer func() { <-w.lock }()
	for _, p := range part {
		r := &batch.Replies[p]
		switch {
		case r.Err == nil:
			w.values += len(r.Value)
			w.all += int(r.Int)
		case r.Err.Code == felix.ResourceExhausted && r.Err.RetryAfter > 0:
			w.refused++
		}
	}
	if w.left -= len(part); w.left == 0 {
		close(w.done)
	}
}

// TestValuesReadAreBounded: one command may name more values than fit into
// memory. Asked whether they are there, or how long they are, the broker says
// so; asked for all of them, it gives as many as its budget allows, and says
// that of the others.
func TestValuesReadAreBounded(t *testing.T) {
	const keys, size, bound = 40, felix.MaxValueBytes, 10 << 20
	b, c := openOn(t, vfs.NewMem(), 4, func(o *Options) {
		o.RecordBytes, o.InflightBytes, o.CheckpointEvery = 1<<20, bound, 10*time.Millisecond
	})
	var get, length []felix.Op
	for i := range keys {
		op := felix.Op{Kind: felix.Set, View: felix.ViewRedis, Key: fmt.Append(nil, "key", i), Value: make([]byte, size)}
		mustDo(t, c, op)
		op.Kind, op.Value = felix.Get, nil
		get = append(get, op)
		op.NoValue = true
		length = append(length, op)
	}
	ask := func(ops []felix.Op) *valueWatch {
		w := &valueWatch{left: len(ops), done: make(chan struct{}), lock: make(chan struct{}, 1)}
		c.Submit(&felix.Batch{Ops: ops, Replies: make([]felix.Reply, len(ops)), Done: w})
		<-w.done
		return w
	}
	if w := ask(length); w.all != keys*size || w.values != 0 || w.refused != 0 {
		t.Errorf("%d bytes in all, of which %d were given; %d keys were refused", w.all, w.values, w.refused)
	}
	w := ask(get)
	if w.values > bound || w.values < size || w.values+w.refused*size != keys*size {
		t.Errorf("%d bytes of values were given, %d were refused; the bound is %d bytes", w.values, w.refused, bound)
	}
	eventually(t, "nothing is in flight", func() bool { return b.Stats().InflightBytes == 0 })
	eventually(t, "memory is within its bound", func() bool { return b.Stats().RecordBytes < 2<<20 })
	if _, err := felix.Do(context.Background(), c, get[0]); err != nil {
		t.Error(err)
	}
	if err := closeBroker(b); err != nil {
		t.Error(err)
	}
}
