package limit

import (
	"math"
	"math/rand/v2"
	"testing"
)

// holders is a concurrency limit beside a list of everything that is held.
type holders struct {
	t     *testing.T
	l     *Limiter
	s     State
	holds []Hold // live, expired and released (amount 0)
}

func (h *holders) held(now int64) (sum int64) {
	for _, one := range h.holds {
		if one.ExpiresAtMillis > now {
			sum += one.Amount
		}
	}
	return sum
}

func (h *holders) room(now int64) int64 { return max(h.l.capacity-h.held(now), 0) }

func (h *holders) acquire(amount, ttl, now int64) Decision {
	room := h.room(now)
	d, hold, s := h.l.Acquire(h.s, amount, ttl, now)
	if d.Allowed != (amount >= 1 && amount <= room) || d.Limit != h.l.capacity || d.Changed != d.Allowed {
		h.t.Fatalf("acquire %d of %d at %d: %+v", amount, room, now, d)
	}
	if d.Allowed {
		if over := hold.ExpiresAtMillis - now - ttl; hold.Amount != amount || over < 0 || over > ttl/32 {
			h.t.Fatalf("acquire %d for %d ms at %d: %+v", amount, ttl, now, hold)
		}
		h.holds = append(h.holds, hold)
	}
	h.retry(d, amount, now)
	h.compare(s, now, d.Remaining)
	if d.Changed {
		h.expiry(d.ExpiresAtMillis)
	}
	return d
}

// retry: nothing is released, but enough expires just then.
func (h *holders) retry(d Decision, amount, now int64) {
	at := now + d.RetryAfterMillis
	switch {
	case d.Allowed || amount < 1 || amount > h.l.capacity:
		if d.RetryAfterMillis != NoRetry {
			h.t.Fatalf("amount %d: %+v", amount, d)
		}
	case d.RetryAfterMillis < 1 || h.room(at) < amount || h.room(at-1) >= amount:
		h.t.Fatalf("amount %d: %+v, with %d held then and %d before", amount, d, h.held(at), h.held(at-1))
	}
}

// compare takes the next state, and looks at it through its stored form.
func (h *holders) compare(s State, now, remaining int64) {
	stored := AppendState(nil, s)
	parsed, err := ParseState(stored)
	if err != nil {
		h.t.Fatalf("%+v: %v", s, err)
	}
	h.s = parsed
	if got := h.l.Held(h.s, now); got != h.held(now) || remaining != h.room(now) {
		h.t.Fatalf("held %d and %d remaining at %d, want %d and %d", got, remaining, now, h.held(now), h.room(now))
	}
}

// expiry: the state has nothing to remember from then on.
func (h *holders) expiry(at int64) {
	if h.held(at) != 0 || at > 0 && h.held(at-1) == 0 && len(h.s.log) > 0 {
		h.t.Fatalf("the state expires at %d, with %d held then and %d before", at, h.held(at), h.held(at-1))
	}
}

func (h *holders) release(i int, now int64) {
	live := h.holds[i].ExpiresAtMillis > now && h.holds[i].Amount > 0
	s, expires, done := h.l.Release(h.s, h.holds[i], now)
	if done != live {
		h.t.Fatalf("release of %+v at %d: %v", h.holds[i], now, done)
	}
	if done {
		h.holds[i].Amount = 0
		h.compare(s, now, h.room(now))
		h.expiry(max(expires, now))
	}
}

func (h *holders) renew(i int, ttl, now int64) {
	live := h.holds[i].ExpiresAtMillis > now && h.holds[i].Amount > 0
	renewed, s, expires, done := h.l.Renew(h.s, h.holds[i], ttl, now)
	if done != live {
		h.t.Fatalf("renewal of %+v at %d: %v", h.holds[i], now, done)
	}
	if done {
		if renewed.Amount != h.holds[i].Amount || renewed.ExpiresAtMillis < now+ttl {
			h.t.Fatalf("renewal of %+v for %d at %d: %+v", h.holds[i], ttl, now, renewed)
		}
		h.holds[i] = renewed
		h.compare(s, now, h.room(now))
		h.expiry(expires)
	}
}

// Holds are counted as in a list of them, whatever is done in whatever order.
func TestHoldsAgainstAList(t *testing.T) {
	random := rand.New(rand.NewPCG(7, 7))
	for round := range 60 {
		most := int64(1) + random.Int64N(400)
		h := &holders{t: t, l: made(t, Policy{Algorithm: Concurrency, Limit: most, PeriodMillis: 1000})}
		now, longest := int64(1_000_000), int64(20)<<(round%20)
		for range 150 {
			now += random.Int64N(1+longest/8) * int64(random.IntN(2))
			ttl := 1 + random.Int64N(longest)
			switch n := random.IntN(10); {
			case n < 6 || len(h.holds) == 0:
				h.acquire(random.Int64N(2+most/16), ttl, now)
			case n < 8:
				h.release(random.IntN(len(h.holds)), now)
			default:
				h.renew(random.IntN(len(h.holds)), ttl, now)
			}
		}
	}
}

// However many holds there are, with whatever times to live, the state stays small.
func TestManyHoldsTakeLittle(t *testing.T) {
	l := made(t, Policy{Algorithm: Concurrency, Limit: math.MaxInt64, PeriodMillis: 1000})
	random := rand.New(rand.NewPCG(7, 8))
	for _, c := range []struct {
		longest int64 // the ttl is up to 2^longest, or just that
		mixed   bool
		most    int
	}{{15, false, 250}, {41, false, 250}, {41, true, 6000}} {
		var s State
		now, most := int64(1_000_000), 0
		for range 1500 {
			ttl := int64(1) << c.longest
			if c.mixed {
				ttl = 1 + random.Int64N(int64(1)<<random.Int64N(c.longest+1))
			}
			var d Decision
			d, _, s = l.Acquire(s, 1, ttl, now)
			if !d.Allowed {
				t.Fatalf("%+v", d)
			}
			most = max(most, len(AppendState(nil, s)))
			now += random.Int64N(3)
		}
		if most > c.most || most > MaxStateBytes {
			t.Errorf("%+v: the state took %d bytes", c, most)
		}
	}
}

// A hold is there until its expiry, and frees nobody else's afterwards.
func TestHoldExpires(t *testing.T) {
	l := made(t, Policy{Algorithm: Concurrency, Limit: 10, PeriodMillis: 5000})
	_, first, s := l.Acquire(State{}, 4, 0, 1000)
	if first != (Hold{4, 6000}) {
		t.Fatalf("%+v, want the policy's time to live", first)
	}
	_, second, s := l.Acquire(s, 4, 9000, 1000)
	if d, hold, _ := l.Acquire(s, 3, 1, 5999); d.Allowed || hold != (Hold{}) || d.RetryAfterMillis != 1 || d.Remaining != 2 {
		t.Errorf("before it expires: %+v", d)
	}
	if d, _, _ := l.Acquire(s, 6, 1, 6000); !d.Allowed {
		t.Errorf("when it expires: %+v", d)
	}
	if _, _, done := l.Release(s, first, 6000); done {
		t.Error("a hold was released that had expired")
	}
	if _, _, _, done := l.Renew(s, first, 9000, 6000); done {
		t.Error("a hold was renewed that had expired")
	}
	if _, _, done := l.Release(s, Hold{second.Amount + 1, second.ExpiresAtMillis}, 6000); done {
		t.Error("more was released than is held")
	}
	if held := l.Held(s, 6000); held != 4 {
		t.Errorf("%d held, want the second's 4", held)
	}
	s, expires, done := l.Release(s, second, 6000)
	if !done || expires != 6000 || l.Held(s, 6000) != 0 {
		t.Errorf("released: %v, expires %d, %d held", done, expires, l.Held(s, 6000))
	}
}

// What another algorithm has counted is no hold; a denial leaves even that be.
func TestHoldsStartAfresh(t *testing.T) {
	k := used(t, examples[0], 7, 1000)
	l := made(t, Policy{Algorithm: Concurrency, Limit: 10, PeriodMillis: 5000})
	if d, _, s := l.Acquire(k.s, 11, 0, 1000); d.Allowed || d.Remaining != 10 || !same(s, k.s) {
		t.Errorf("denied: %+v, %+v", d, s)
	}
	if d, _, s := l.Acquire(k.s, 10, 0, 1000); !d.Allowed || l.Held(s, 1000) != 10 || l.Held(k.s, 1000) != 0 {
		t.Errorf("allowed: %+v, %+v", d, s)
	}
}

// A check asks about a concurrency limit and holds nothing.
func TestCheckDoesNotHold(t *testing.T) {
	l := made(t, Policy{Algorithm: Concurrency, Limit: 10, PeriodMillis: 5000})
	_, _, s := l.Acquire(State{}, 7, 0, 1000)
	for cost, allowed := range map[int64]bool{-1: true, 0: true, 3: true, 4: false, 11: false} {
		d, next := l.Check(s, cost, 2000)
		if d.Allowed != allowed || d.Changed || d.Remaining != 3 || d.ResetAfterMillis != 4000 || l.Held(next, 2000) != 7 {
			t.Errorf("cost %d: %+v", cost, d)
		}
	}
}

// A lower limit takes no hold away, and lets nobody else in until enough are gone.
func TestHoldsAboveALowerLimit(t *testing.T) {
	_, _, s := made(t, Policy{Algorithm: Concurrency, Limit: 10, PeriodMillis: 5000}).Acquire(State{}, 7, 0, 1000)
	l := made(t, Policy{Algorithm: Concurrency, Limit: 5, PeriodMillis: 5000})
	if d, _, _ := l.Acquire(s, 1, 0, 1000); d.Allowed || d.Remaining != 0 || d.RetryAfterMillis != 5000 {
		t.Errorf("%+v", d)
	}
	shadow := made(t, Policy{Algorithm: Concurrency, Limit: 5, PeriodMillis: 5000, Shadow: true})
	if d, hold, _ := shadow.Acquire(s, 1, 0, 1000); !d.Allowed || !d.Shadowed || d.Changed || hold != (Hold{}) {
		t.Errorf("a shadow: %+v", d)
	}
}
