package limit

import (
	"encoding/binary"
	"math"
	"math/big"
	"math/rand/v2"
	"testing"
)

// choices turns bytes into a trace: the same bytes, the same trace. After the last
// byte all choices are 0.
type choices struct{ rest []byte }

func (c *choices) done() bool { return len(c.rest) == 0 }

// below is 0 to n-1.
func (c *choices) below(n uint64) uint64 {
	size := 1
	for size < 8 && n > 1<<(8*size) {
		size++
	}
	var b [8]byte
	took := copy(b[:size], c.rest)
	c.rest = c.rest[took:]
	return binary.LittleEndian.Uint64(b[:]) % n
}

// between is low to high, with a liking for the ends.
func (c *choices) between(low, high int64) int64 {
	width := uint64(high-low) + 1 // 0 is all
	switch c.below(8) {
	case 0:
		return low + int64(min(c.below(3), uint64(high-low)))
	case 1:
		return high - int64(min(c.below(3), uint64(high-low)))
	}
	if width == 0 {
		return int64(c.below(math.MaxUint64))
	}
	return low + int64(c.below(width))
}

// trace is one limiter under test, beside its reference.
type trace struct {
	t      *testing.T
	from   *choices
	policy Policy
	l      Limiter
	s      State
	ref    reference
	now    int64
	scale  int64 // of limits and costs
	span   int64 // of periods
}

// runTrace charges a limiter as the bytes say and compares every answer.
func runTrace(t *testing.T, a Algorithm, data []byte) {
	c := &choices{rest: data}
	r := &trace{t: t, from: c, ref: newReference(a), policy: Policy{Algorithm: a}, scale: 12, span: 40}
	if c.below(2) == 1 { // numbers of any size
		r.scale, r.span = math.MaxInt64, MaxPeriodMillis
		r.now = c.between(0, 1<<60)
	}
	if a == SlidingLog {
		r.scale = 12 // the reference keeps every unit
	}
	r.policy.PeriodMillis = c.between(1, r.span)
	r.change()
	for step := 0; !c.done() && step < 300; step++ {
		if c.below(16) == 0 {
			r.change()
		}
		if c.below(3) != 0 {
			r.now += c.between(0, r.policy.PeriodMillis)
		}
		if r.now > 1<<60 {
			return
		}
		r.step()
	}
}

// change makes another policy of the same algorithm.
func (r *trace) change() {
	r.policy.Limit = r.from.between(0, r.scale)
	if r.policy.Algorithm == TokenBucket {
		r.policy.Burst = r.from.between(0, r.scale)
		r.policy.PeriodMillis = r.from.between(1, r.span)
	}
	l, err := New(r.policy, nil)
	if err != nil {
		r.t.Fatalf("%+v: %v", r.policy, err)
	}
	r.l = l
}

// step is one check, of a cost near what is left, or of anything.
func (r *trace) step() {
	room := r.room(r.now)
	cost := r.from.between(-r.scale, r.scale)
	switch r.from.below(4) {
	case 0:
		cost = room
	case 1:
		cost = room + 1 // math.MinInt64 if room is math.MaxInt64, which is fine
	case 2:
		cost = r.from.between(-3, 3)
	}
	s := r.s
	d, next := r.l.Check(s, cost, r.now)
	r.compare(d, cost, room)
	if !d.Changed && string(AppendState(nil, next)) != string(AppendState(nil, r.s)) {
		r.t.Fatalf("%+v: a check that changes nothing made %+v of %+v", r.policy, next, r.s)
	}
	if d.Changed {
		r.compareExpiry(next, d)
	}
	stored := AppendState(nil, next)
	if a := r.policy.Algorithm; a != SlidingLog && len(stored) > MaxSmallStateBytes {
		r.t.Fatalf("a state of %s takes %d bytes", a, len(stored))
	}
	parsed, err := ParseState(stored)
	if err != nil {
		r.t.Fatalf("%+v: %v", next, err)
	}
	r.s = parsed
}

func (r *trace) room(now int64) int64 {
	return r.ref.room(r.policy, now).Int64()
}

func (r *trace) compare(d Decision, cost, room int64) {
	t, p, now := r.t, r.policy, r.now
	capacity := capacityOf(p)
	want := Decision{Allowed: cost <= room, Limit: capacity, Remaining: d.Remaining, RetryAfterMillis: d.RetryAfterMillis,
		ResetAfterMillis: d.ResetAfterMillis, Changed: d.Changed, ExpiresAtMillis: d.ExpiresAtMillis}
	if cost > 0 {
		want.Changed = cost <= room
	}
	switch {
	case cost < 0:
		r.ref.giveBack(p, new(big.Int).Neg(big64(cost)), now)
	case want.Allowed && cost > 0:
		r.ref.charge(p, cost, now)
	}
	want.Remaining = r.room(now)
	if d != want {
		t.Fatalf("%+v, cost %d at %d, state %+v:\ngot  %+v\nwant %+v", p, cost, now, r.s, d, want)
	}
	if cost == 0 && d.Changed {
		t.Fatalf("%+v at %d: a peek changed the state", p, now)
	}
	r.compareRetry(d, cost)
	r.compareReset(d)
}

// compareRetry: allowed exactly at retry_after and not 1 ms before; none for what is
// allowed and what can never fit.
func (r *trace) compareRetry(d Decision, cost int64) {
	t, p, now := r.t, r.policy, r.now
	if d.Allowed || cost > capacityOf(p) {
		if d.RetryAfterMillis != NoRetry {
			t.Fatalf("%+v, cost %d at %d: retry after %d", p, cost, now, d.RetryAfterMillis)
		}
		return
	}
	at := now + d.RetryAfterMillis
	if d.RetryAfterMillis < 1 || cost <= r.room(at-1) {
		t.Fatalf("%+v, cost %d at %d: retry after %d ms is late", p, cost, now, d.RetryAfterMillis)
	}
	if d.RetryAfterMillis < MaxAfterMillis && cost > r.room(at) {
		t.Fatalf("%+v, cost %d at %d: retry after %d ms is early", p, cost, now, d.RetryAfterMillis)
	}
	for _, at := range []int64{at - 1, at} {
		if got := r.l.Peek(r.s, cost, at).Allowed; got != (cost <= r.room(at)) {
			t.Fatalf("%+v, cost %d at %d: %v at %d", p, cost, now, got, at)
		}
	}
}

func (r *trace) compareReset(d Decision) {
	t, p, now := r.t, r.policy, r.now
	capacity, at := capacityOf(p), now+d.ResetAfterMillis
	if capacity == 0 {
		return
	}
	if p.Algorithm == FixedWindow {
		if d.ResetAfterMillis != p.PeriodMillis-now%p.PeriodMillis {
			t.Fatalf("%+v at %d: reset after %d", p, now, d.ResetAfterMillis)
		}
	} else if d.ResetAfterMillis > 0 && r.room(at-1) == capacity {
		t.Fatalf("%+v at %d: reset after %d ms is late", p, now, d.ResetAfterMillis)
	}
	if d.ResetAfterMillis < MaxAfterMillis && r.room(at) != capacity {
		t.Fatalf("%+v at %d: reset after %d ms is early", p, now, d.ResetAfterMillis)
	}
}

// compareExpiry: from the expiry on a state that was forgotten answers the same,
// and not before.
func (r *trace) compareExpiry(s State, d Decision) {
	if d.ExpiresAtMillis >= MaxAfterMillis || capacityOf(r.policy) == 0 {
		return
	}
	at := max(d.ExpiresAtMillis, r.now)
	for _, cost := range []int64{0, 1, capacityOf(r.policy), math.MaxInt64, -1, math.MinInt64} {
		kept, _ := r.l.Check(s, cost, at)
		forgotten, _ := r.l.Check(State{}, cost, at)
		if kept.Allowed && cost < 0 { // what is written down differs, what is answered does not
			kept.Changed, kept.ExpiresAtMillis = forgotten.Changed, forgotten.ExpiresAtMillis
		}
		if kept != forgotten {
			r.t.Fatalf("%+v: state %+v at its expiry %d: cost %d is answered\n%+v, and forgotten\n%+v", r.policy, s, at, cost, kept, forgotten)
		}
	}
	if d.ExpiresAtMillis > r.now {
		if early := r.l.Peek(s, 0, d.ExpiresAtMillis-1); early.Remaining == early.Limit {
			r.t.Fatalf("%+v: state %+v expires at %d, and has nothing to remember before", r.policy, s, d.ExpiresAtMillis)
		}
	}
}

// Every algorithm answers as its reference does.
func TestTracesAgainstReferences(t *testing.T) {
	for _, a := range []Algorithm{FixedWindow, SlidingCounter, SlidingLog, TokenBucket} {
		t.Run(a.String(), func(t *testing.T) {
			random := rand.New(rand.NewPCG(7, uint64(a)))
			data := make([]byte, 1500)
			for range 60 {
				for i := range data {
					data[i] = byte(random.Uint32())
				}
				runTrace(t, a, data)
			}
		})
	}
}

// FuzzTrace is the same with traces that the fuzzer makes.
func FuzzTrace(f *testing.F) {
	for a := FixedWindow; a <= TokenBucket; a++ {
		f.Add(byte(a), []byte("\x01some bytes that make a trace, and a few more of them"))
		f.Add(byte(a), []byte("\x00some bytes that make a trace, and a few more of them"))
	}
	f.Fuzz(func(t *testing.T, a byte, data []byte) {
		runTrace(t, FixedWindow+Algorithm(a%byte(TokenBucket)), data)
	})
}
