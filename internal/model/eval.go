package model

import (
	"bytes"
	"math/big"
	"strconv"

	"github.com/felix-go/felix"
)

// eval is one operation on one key, step by step as op.go tells it.
func (c *cache) eval(op *felix.Op) felix.Reply {
	if why := illegal(op); why != "" {
		return felix.Reply{Err: felix.Errorf(felix.InvalidArgument, "%s", why)}
	}
	now, key := c.s.now(), string(op.Key)
	c.dropExpired(key, now)
	old := c.see(op.View, key)
	expiry, ok := newExpiry(op, old, now)
	if !ok {
		return felix.Reply{Err: felix.ErrInvalidExpire}
	}
	switch op.Kind {
	case felix.Get:
		return found(op, old, now)
	case felix.Add:
		return c.add(op, old, expiry, now)
	case felix.Set:
		return c.set(op, old, expiry, now)
	case felix.Delete:
		return c.delete(op, old, now)
	case felix.Check:
		if conditionHolds(op, old) {
			return felix.Reply{Applied: true}
		}
		return found(op, old, now)
	default:
		return c.expire(op, old, expiry, now)
	}
}

// dropExpired removes what has expired under the key, so that the rest of the
// code need not think of it.
func (c *cache) dropExpired(key string, now int64) {
	for view, records := range []map[string]rec{felix.ViewCounter: c.counters, felix.ViewValue: c.values} {
		if r, ok := records[key]; ok && r.expiry != 0 && r.expiry <= now {
			delete(records, key)
			c.note(change{event: felix.WatchEvent{Kind: felix.WatchDelete, Key: []byte(key)}, view: felix.View(view)})
		}
	}
}

// see is the record that a view shows; its kind is NoRecord if there is none.
func (c *cache) see(view felix.View, key string) rec {
	counter, isCounter := c.counters[key]
	value := c.values[key]
	switch {
	case view == felix.ViewCounter:
		return counter
	case view == felix.ViewValue:
		return value
	case isCounter:
		return counter
	default:
		return value
	}
}

// remove deletes everything of the key in the view.
func (c *cache) remove(view felix.View, key string) {
	if view != felix.ViewValue {
		delete(c.counters, key)
	}
	if view != felix.ViewCounter {
		delete(c.values, key)
	}
}

// write replaces everything of the key in the view by one record, and answers
// its version; 0 if it has expired already, so that nothing stays.
func (c *cache) write(view felix.View, key string, r rec, now int64) uint64 {
	c.remove(view, key)
	if r.expiry != 0 && r.expiry <= now {
		return 0
	}
	c.s.version++
	r.version = c.s.version
	if r.kind == felix.CounterRecord {
		c.counters[key] = r
	} else {
		c.values[key] = r
	}
	return r.version
}

// newExpiry is the expiry that the record shall have afterwards.
func newExpiry(op *felix.Op, old rec, now int64) (int64, bool) {
	switch op.TTL {
	case felix.TTLDefault:
		if op.Kind == felix.Set {
			return 0, true
		}
		return old.expiry, true
	case felix.TTLKeep:
		return old.expiry, true
	case felix.TTLClear:
		return 0, true
	}
	at := big.NewInt(op.ExpiryMillis)
	if op.TTL == felix.TTLIn || op.TTL == felix.TTLInIfNone {
		at.Add(at, big.NewInt(now))
	}
	tooLate := at.Cmp(big.NewInt(felix.MaxExpiryMillis)) > 0
	notPositive := op.Kind != felix.Expire && op.ExpiryMillis <= 0
	if ifNone := op.TTL == felix.TTLInIfNone || op.TTL == felix.TTLAtIfNone; ifNone && old.expiry != 0 {
		return old.expiry, !tooLate && !notPositive
	}
	return at.Int64(), !tooLate && !notPositive
}

// found is a reply that shows a record.
func found(op *felix.Op, r rec, now int64) felix.Reply {
	if op.NoValue && r.kind == felix.ValueRecord {
		r.sum, r.bytes = int64(len(r.bytes)), nil
	}
	reply := felix.Reply{Found: r.kind, Int: r.sum, Value: bytes.Clone(r.bytes), ExpiresAtMillis: r.expiry, Version: r.version}
	if r.expiry != 0 {
		reply.NowMillis = now
	}
	return reply
}

func (c *cache) add(op *felix.Op, old rec, expiry, now int64) felix.Reply {
	sum := big.NewInt(old.sum)
	if old.kind == felix.ValueRecord {
		n, ok := canonicalInt(old.bytes)
		if !ok {
			return felix.Reply{Err: felix.ErrNotInteger}
		}
		sum.SetInt64(n)
	}
	before := sum.Int64()
	sum.Add(sum, big.NewInt(op.Int))
	reply := felix.Reply{Applied: true, ExpiresAtMillis: expiry}
	if op.Bounds != nil {
		inside := clamp(sum, op.Bounds)
		if inside.Cmp(sum) != 0 && !op.Bounds.Saturate {
			refusal := found(op, old, now)
			refusal.Int, refusal.Value = before, nil
			return refusal
		}
		sum = inside
		delta := new(big.Int).Sub(sum, big.NewInt(before))
		if !delta.IsInt64() {
			return felix.Reply{Err: felix.ErrOverflow}
		}
		reply.Delta = delta.Int64()
	}
	if !sum.IsInt64() {
		return felix.Reply{Err: felix.ErrOverflow}
	}
	reply.Int = sum.Int64()
	if expiry != 0 {
		reply.NowMillis = now
	}
	_, hasValue := c.values[string(op.Key)]
	hides := op.View == felix.ViewRedis && hasValue
	if op.Bounds != nil && old.kind == felix.CounterRecord && old.sum == reply.Int && old.expiry == expiry && !hides {
		reply.Version = old.version // nothing would be different
		return reply
	}
	reply.Version = c.write(op.View, string(op.Key), rec{kind: felix.CounterRecord, sum: sum.Int64(), expiry: expiry}, now)
	return reply
}

// clamp is the number within the bounds that is nearest to sum.
func clamp(sum *big.Int, bounds *felix.Bounds) *big.Int {
	if low := big.NewInt(bounds.Min); sum.Cmp(low) < 0 {
		return low
	}
	if high := big.NewInt(bounds.Max); sum.Cmp(high) > 0 {
		return high
	}
	return sum
}

func (c *cache) set(op *felix.Op, old rec, expiry, now int64) felix.Reply {
	if !conditionHolds(op, old) {
		return found(op, old, now)
	}
	var reply felix.Reply
	if op.ReturnOld {
		reply = found(op, old, now)
	}
	r := rec{kind: felix.CounterRecord, sum: op.Int, expiry: expiry}
	if op.View != felix.ViewCounter {
		n, isInt := canonicalInt(op.Value)
		if isInt && op.View == felix.ViewRedis {
			r.sum = n
		} else {
			r = rec{kind: felix.ValueRecord, bytes: append([]byte{}, op.Value...), expiry: expiry}
		}
	}
	reply.Applied = true
	if version := c.write(op.View, string(op.Key), r, now); version != 0 {
		reply.Version = version
	}
	return reply
}

func (c *cache) delete(op *felix.Op, old rec, now int64) felix.Reply {
	if !conditionHolds(op, old) || old.kind == felix.NoRecord {
		return found(op, old, now)
	}
	var reply felix.Reply
	if op.ReturnOld {
		reply = found(op, old, now)
	}
	reply.Applied = true
	c.remove(op.View, string(op.Key))
	return reply
}

func (c *cache) expire(op *felix.Op, old rec, expiry, now int64) felix.Reply {
	if old.kind == felix.NoRecord {
		return felix.Reply{}
	}
	key := string(op.Key)
	timed := op.TTL == felix.TTLIn || op.TTL == felix.TTLAt
	if !expireConditionHolds(op.ExpireIf, old, expiry) || op.TTL == felix.TTLClear && old.expiry == 0 {
		return found(op, old, now)
	}
	var reply felix.Reply
	if op.ReturnOld {
		reply = found(op, old, now)
	}
	reply.Applied = true
	_, hasCounter := c.counters[key]
	_, hasValue := c.values[key]
	hides := op.View == felix.ViewRedis && hasCounter && hasValue
	switch {
	case timed && expiry <= now:
		c.remove(op.View, key)
	case expiry != old.expiry || timed && hides:
		r := old
		r.expiry = expiry
		reply.Version = c.write(op.View, key, r, now)
	default: // nothing would be different
		reply.Version = old.version
	}
	return reply
}

func conditionHolds(op *felix.Op, old rec) bool {
	exists := old.kind != felix.NoRecord
	switch op.If {
	case felix.IfAbsent:
		return !exists
	case felix.IfPresent:
		return exists
	case felix.IfVersion:
		return exists && old.version == op.Version
	}
	return true
}

func expireConditionHolds(cond felix.ExpireIf, old rec, expiry int64) bool {
	finite := old.expiry != 0
	if cond&felix.ExpireIfNone != 0 && finite {
		return false
	}
	if cond&felix.ExpireIfSome != 0 && !finite {
		return false
	}
	if cond&felix.ExpireIfLater != 0 && (!finite || expiry <= old.expiry) {
		return false
	}
	if cond&felix.ExpireIfSooner != 0 && finite && expiry >= old.expiry {
		return false
	}
	return true
}

// canonicalInt reads bytes that are exactly what an int64 is printed as.
func canonicalInt(b []byte) (int64, bool) {
	n, err := strconv.ParseInt(string(b), 10, 64)
	return n, err == nil && strconv.FormatInt(n, 10) == string(b)
}

// illegal says why an operation means nothing, or nothing if it is in order.
func illegal(op *felix.Op) string {
	timed := op.TTL == felix.TTLIn || op.TTL == felix.TTLAt
	later, sooner := op.ExpireIf&felix.ExpireIfLater != 0, op.ExpireIf&felix.ExpireIfSooner != 0
	conditional := op.Kind == felix.Set || op.Kind == felix.Delete || op.Kind == felix.Check
	rules := []struct {
		broken bool
		why    string
	}{
		{len(op.Key) == 0, "the key is empty"},
		{len(op.Key) > felix.MaxKeyBytes, "the key is too long"},
		{op.Kind == 0 || op.Kind > felix.Check, "no such kind of operation"},
		{op.View > felix.ViewRedis, "no such view"},
		{op.If > felix.IfVersion, "no such condition"},
		{op.TTL > felix.TTLAtIfNone, "no such ttl mode"},
		{(op.TTL == felix.TTLInIfNone || op.TTL == felix.TTLAtIfNone) && op.Kind != felix.Add, "only an add sets an expiry where there is none"},
		{op.Bounds != nil && op.Kind != felix.Add, "only an add has bounds"},
		{op.Bounds != nil && op.Bounds.Min > op.Bounds.Max, "the minimum is above the maximum"},
		{op.ExpireIf > 15, "no such expire condition"},
		{op.Kind == felix.Add && op.View == felix.ViewValue, "a value cannot be added to"},
		{op.Kind == felix.Set && len(op.Value) > felix.MaxValueBytes, "the value is too long"},
		{op.Kind == felix.Set && op.View == felix.ViewCounter && len(op.Value) > 0, "a counter cannot be set to bytes"},
		{op.Kind == felix.Check && (op.If == felix.Always || op.ReturnOld), "a check takes a condition, and shows what does not meet it"},
		{(op.Kind == felix.Get || op.Kind == felix.Delete || op.Kind == felix.Check) && op.TTL != 0, "this operation takes no expiry"},
		{(op.Kind == felix.Get || op.Kind == felix.Add) && op.ReturnOld, "this operation returns no old record"},
		{!conditional && op.If != felix.Always, "this operation takes no condition"},
		{op.Kind == felix.Delete && op.If == felix.IfAbsent, "deleting nothing means nothing"},
		{(op.Kind != felix.Expire || !timed) && op.ExpireIf != 0, "no new expiry to make conditions on"},
		{op.ExpireIf&felix.ExpireIfNone != 0 && op.ExpireIf != felix.ExpireIfNone, "expire conditions exclude each other"},
		{later && sooner, "expire conditions exclude each other"},
	}
	for _, rule := range rules {
		if rule.broken {
			return rule.why
		}
	}
	return ""
}
