package limit

import (
	"math/rand/v2"
	"testing"
)

// After a refund a key answers as if the charge had never been made; a bucket gives
// back no more than that, and at once just as much.
func TestRefundIsAsIfNeverCharged(t *testing.T) {
	random := rand.New(rand.NewPCG(7, 9))
	for _, p := range []Policy{
		{Algorithm: FixedWindow, PeriodMillis: 100},
		{Algorithm: FixedWindow, Unit: Second, Zone: "Asia/Kathmandu"},
		{Algorithm: SlidingCounter, PeriodMillis: 100},
		{Algorithm: SlidingLog, PeriodMillis: 100},
		{Algorithm: TokenBucket, PeriodMillis: 100},
	} {
		p.Limit = 50
		exact, less := p.Algorithm != TokenBucket, 0
		for range 300 {
			with, without := &key{t: t, l: made(t, p)}, &key{t: t, l: made(t, p)}
			now := 10_000 + random.Int64N(1000)
			both := func() {
				now += random.Int64N(60) * int64(random.IntN(2))
				if cost := random.Int64N(6); with.charge(cost, now).Allowed {
					without.charge(cost, now)
				}
			}
			both()
			amount, chargedAt := 1+random.Int64N(20), now
			allowed := with.charge(amount, now).Allowed
			for range random.IntN(4) {
				both()
			}
			if !allowed {
				continue
			}
			d, s := with.l.Refund(with.s, amount, chargedAt, now)
			if parsed, err := ParseState(AppendState(nil, s)); err != nil || !same(parsed, s) {
				t.Fatalf("%+v: %+v, %v", p, s, err)
			}
			if !d.Allowed || d.Changed != !same(s, with.s) || d.Remaining != with.l.Peek(s, 0, now).Remaining {
				t.Fatalf("%+v: refund: %+v", p, d)
			}
			for at := now; at < now+250; at += 1 + random.Int64N(40) {
				got, want := with.l.Peek(s, 0, at).Remaining, without.l.Peek(without.s, 0, at).Remaining
				if got > want || got < want && (exact || now == chargedAt) {
					t.Fatalf("%+v: %d of %d refunded at %d: %d remaining at %d, want %d", p, amount, chargedAt, now, got, at, want)
				}
				if got < want {
					less++
				}
			}
			if d.Changed && d.ExpiresAtMillis > now && d.ExpiresAtMillis != now+d.ResetAfterMillis {
				t.Fatalf("%+v: refund: %+v", p, d)
			}
		}
		if exact == (less > 0) {
			t.Errorf("%+v: less was given back %d times", p, less)
		}
	}
}

// What no longer counts is not given back, to nobody's gain.
func TestLateRefundFreesNobodyElses(t *testing.T) {
	for _, p := range examples {
		k := used(t, p, 10, 100*aMinute)
		const later = 100*aMinute + 3*24*60*aMinute
		k.charge(10, later)
		d, s := k.l.Refund(k.s, 10, 100*aMinute, later+1)
		if d.Changed || d.Remaining != 0 || !same(s, k.s) {
			t.Errorf("%s: %+v", p.Algorithm, d)
		}
		if d, _ := k.l.Check(k.s, -10, later+1); d.Remaining != 10 {
			t.Errorf("%s: a negative cost: %+v", p.Algorithm, d)
		}
	}
}

// Neither is what is two windows back, or what a log has not dropped yet.
func TestRefundOfWhatIsGone(t *testing.T) {
	counter := used(t, Policy{Algorithm: SlidingCounter, Limit: 10, PeriodMillis: aMinute}, 5, 100*aMinute)
	counter.charge(5, 102*aMinute)
	if d, _ := counter.l.Refund(counter.s, 5, 100*aMinute, 103*aMinute); d.Changed || d.Remaining != 5 {
		t.Errorf("sliding counter: %+v", d)
	}
	log := used(t, Policy{Algorithm: SlidingLog, Limit: 10, PeriodMillis: aMinute}, 5, 100*aMinute)
	if d, _ := log.l.Refund(log.s, 5, 100*aMinute, 101*aMinute); d.Changed || d.Remaining != 10 {
		t.Errorf("sliding log: %+v", d)
	}
}
