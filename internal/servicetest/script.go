package servicetest

import (
	"bytes"
	"fmt"
	"math"
	"testing"

	"github.com/felix-go/felix"
)

// The words that scripts are written in: operations, options, replies.

type option func(*felix.Op)

func redis(op *felix.Op)     { op.View = felix.ViewRedis }
func inValues(op *felix.Op)  { op.View = felix.ViewValue }
func ifAbsent(op *felix.Op)  { op.If = felix.IfAbsent }
func ifPresent(op *felix.Op) { op.If = felix.IfPresent }
func keep(op *felix.Op)      { op.TTL = felix.TTLKeep }
func clearTTL(op *felix.Op)  { op.TTL = felix.TTLClear }
func old(op *felix.Op)       { op.ReturnOld = true }
func nx(op *felix.Op)        { op.ExpireIf |= felix.ExpireIfNone }
func xx(op *felix.Op)        { op.ExpireIf |= felix.ExpireIfSome }
func gt(op *felix.Op)        { op.ExpireIf |= felix.ExpireIfLater }
func lt(op *felix.Op)        { op.ExpireIf |= felix.ExpireIfSooner }

func ifVersion(v uint64) option {
	return func(op *felix.Op) { op.If, op.Version = felix.IfVersion, v }
}

func in(millis int64) option {
	return func(op *felix.Op) { op.TTL, op.ExpiryMillis = felix.TTLIn, millis }
}

func at(millis int64) option {
	return func(op *felix.Op) { op.TTL, op.ExpiryMillis = felix.TTLAt, millis }
}

// between bounds the sum of an add, and saturating lets it go as far as they are.
func between(low, high int64) option {
	return func(op *felix.Op) { op.Bounds = &felix.Bounds{Min: low, Max: high} }
}

func atMost(n int64) option { return between(math.MinInt64, n) }

func saturating(op *felix.Op) { op.Bounds.Saturate = true }

// ifNone lets an add set its expiry only where there is none.
func ifNone(op *felix.Op) { op.TTL += felix.TTLInIfNone - felix.TTLIn }

// id gives an operation an idempotency id, for long.
func id(name string) option { return idFor(name, 0) }

func idFor(name string, millis int64) option {
	return func(op *felix.Op) { op.Once = &felix.Once{ID: []byte(name), RetentionMillis: millis} }
}

func makeOp(op felix.Op, options []option) felix.Op {
	for _, o := range options {
		o(&op)
	}
	return op
}

func get(key string, o ...option) felix.Op {
	return makeOp(felix.Op{Kind: felix.Get, Key: []byte(key)}, o)
}

func add(key string, delta int64, o ...option) felix.Op {
	return makeOp(felix.Op{Kind: felix.Add, Key: []byte(key), Int: delta}, o)
}

func setInt(key string, n int64, o ...option) felix.Op {
	return makeOp(felix.Op{Kind: felix.Set, Key: []byte(key), Int: n}, o)
}

// set is in the Redis view unless an option says otherwise.
func set(key, value string, o ...option) felix.Op {
	return makeOp(felix.Op{Kind: felix.Set, View: felix.ViewRedis, Key: []byte(key), Value: []byte(value)}, o)
}

func del(key string, o ...option) felix.Op {
	return makeOp(felix.Op{Kind: felix.Delete, Key: []byte(key)}, o)
}

func expire(key string, o ...option) felix.Op {
	return makeOp(felix.Op{Kind: felix.Expire, Key: []byte(key)}, o)
}

var (
	none = felix.Reply{}
	did  = felix.Reply{Applied: true}
)

func sum(n int64) felix.Reply { return felix.Reply{Applied: true, Int: n} }

// moved is the reply to an add with bounds that has added delta.
func moved(n, delta int64) felix.Reply { return felix.Reply{Applied: true, Int: n, Delta: delta} }

func counter(n int64) felix.Reply { return felix.Reply{Found: felix.CounterRecord, Int: n} }

func value(s string) felix.Reply { return felix.Reply{Found: felix.ValueRecord, Value: []byte(s)} }

func fails(err *felix.Error) felix.Reply { return felix.Reply{Err: err} }

// applied is a reply that shows the old record and took effect.
func applied(r felix.Reply) felix.Reply { r.Applied = true; return r }

// again is the reply to a duplicate.
func again(r felix.Reply) felix.Reply { r.Replayed = true; return r }

// expiring is the reply with an expiry.
func expiring(r felix.Reply, at int64) felix.Reply { r.ExpiresAtMillis = at; return r }

// illegal is an invalid_argument error in any words.
var illegal = felix.Errorf(felix.InvalidArgument, "any words")

// step is one operation and the reply it must get, but for Version and
// NowMillis, which are checked by rules.
type step struct {
	op   felix.Op
	want felix.Reply
}

// script runs the steps one by one in a fresh cache, and then all in one batch
// in another: the replies must be the same.
func script(t *testing.T, e *env, name string, steps []step) {
	t.Helper()
	t.Run(name, func(t *testing.T) {
		cache := e.cache(t)
		watch := versionWatch{}
		for i, s := range steps {
			what, reply := fmt.Sprintf("step %d, %s", i+1, describe(&s.op)), do(t, cache, s.op)[0]
			checkReply(t, what, reply, s.want)
			watch.check(t, what, &s.op, &reply)
		}
		ops := make([]felix.Op, len(steps))
		for i := range steps {
			ops[i] = steps[i].op
		}
		replies, watch := do(t, e.cache(t), ops...), versionWatch{}
		for i, s := range steps {
			what := fmt.Sprintf("in one batch, step %d, %s", i+1, describe(&s.op))
			checkReply(t, what, replies[i], s.want)
			watch.check(t, what, &s.op, &replies[i])
		}
	})
}

// checkReply compares all but Version and NowMillis, and the rules on these.
func checkReply(t *testing.T, what string, got, want felix.Reply) {
	t.Helper()
	if why := replyDiffers(got, want); why != "" {
		t.Errorf("%s: %s\n got %s\nwant %s", what, why, show(got), show(want))
	}
	if (got.NowMillis != 0) != (got.ExpiresAtMillis != 0) {
		t.Errorf("%s: expiry %d with now %d: both are set or none", what, got.ExpiresAtMillis, got.NowMillis)
	}
	if got.Found != felix.NoRecord && got.Version == 0 {
		t.Errorf("%s: the record that was found has no version", what)
	}
}

// replyDiffers says what differs, apart from Version and NowMillis.
func replyDiffers(got, want felix.Reply) string {
	if why := errorDiffers(got.Err, want.Err); why != "" {
		return why
	}
	if got.Err != nil {
		if got.Applied || got.Replayed || got.Found != 0 || got.Int != 0 || got.Delta != 0 || got.Value != nil || got.ExpiresAtMillis != 0 || got.NowMillis != 0 || got.Version != 0 {
			return "a reply with an error has nothing else"
		}
		return ""
	}
	switch {
	case got.Aborted != want.Aborted:
		return "Aborted"
	case got.Applied != want.Applied:
		return "Applied"
	case got.Replayed != want.Replayed:
		return "Replayed"
	case got.Found != want.Found:
		return "Found"
	case got.Int != want.Int:
		return "Int"
	case got.Delta != want.Delta:
		return "Delta"
	case !bytes.Equal(got.Value, want.Value):
		return "Value"
	case got.ExpiresAtMillis != want.ExpiresAtMillis:
		return "ExpiresAtMillis"
	}
	return ""
}

// errorDiffers: the errors that doors compare by identity must be the very
// same, others have the same code and some words.
func errorDiffers(got, want *felix.Error) string {
	if got == want {
		return ""
	}
	if got == nil || want == nil {
		return "Err"
	}
	for _, known := range []*felix.Error{felix.ErrNotInteger, felix.ErrOverflow, felix.ErrInvalidExpire, felix.ErrCrossShard} {
		if got == known || want == known {
			return "Err (this one is compared by identity)"
		}
	}
	if got.Code != want.Code {
		return "Err's code"
	}
	if got.Message == "" {
		return "Err has no words"
	}
	return ""
}

// versionWatch checks that versions of a key grow with each write. Its keys are
// the keys, its values their newest version.
type versionWatch map[string]uint64

func (w versionWatch) check(t *testing.T, what string, op *felix.Op, r *felix.Reply) {
	t.Helper()
	if r.Err != nil || r.Version == 0 {
		return
	}
	newest, key := w[string(op.Key)], string(op.Key)
	over := op.TTL == felix.TTLAt && op.ExpiryMillis < far/2 // writes nothing
	same := op.Bounds != nil && r.Delta == 0                 // may have had nothing to write
	wrote := r.Applied && !r.Replayed && (op.Kind == felix.Add || op.Kind == felix.Set) && !over && !same
	if wrote && r.Version <= newest {
		t.Errorf("%s: version %d after version %d of the same key: versions only grow and are never used twice", what, r.Version, newest)
	}
	w[key] = max(newest, r.Version)
}

func show(r felix.Reply) string {
	if r.Err != nil {
		return "error " + r.Err.Error()
	}
	v := string(r.Value)
	if len(v) > 50 {
		v = v[:50] + "…"
	}
	return fmt.Sprintf("{aborted %v, applied %v, found %d, int %d, delta %d, value %q, expires %d, now %d, version %d}",
		r.Aborted, r.Applied, r.Found, r.Int, r.Delta, v, r.ExpiresAtMillis, r.NowMillis, r.Version)
}

func describe(op *felix.Op) string {
	kinds := [...]string{felix.Get: "get", felix.Add: "add", felix.Set: "set", felix.Delete: "delete", felix.Expire: "expire",
		felix.Check: "check"}
	kind := fmt.Sprintf("kind %d", op.Kind)
	if int(op.Kind) < len(kinds) && op.Kind != 0 {
		kind = kinds[op.Kind]
	}
	short := func(b []byte) string {
		if len(b) > 30 {
			return fmt.Sprintf("%q… (%d bytes)", b[:30], len(b))
		}
		return fmt.Sprintf("%q", b)
	}
	bounds := "none"
	if op.Bounds != nil {
		bounds = fmt.Sprintf("%+v", *op.Bounds)
	}
	return fmt.Sprintf("%s %s {view %d, value %s, int %d, bounds %s, if %d version %d, ttl %d %d, expire if %d, old %v}",
		kind, short(op.Key), op.View, short(op.Value), op.Int, bounds, op.If, op.Version, op.TTL, op.ExpiryMillis, op.ExpireIf, op.ReturnOld)
}
