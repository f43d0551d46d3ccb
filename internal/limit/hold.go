package limit

import "math/bits"

// Hold is a part of a concurrency limit that is taken until it is released or has
// expired. Whoever keeps the holds (with their ids, so that each is released once)
// keeps this of each; the state of the limit keeps only how much expires when.
type Hold struct {
	Amount          int64
	ExpiresAtMillis int64 // shard time; it is held before then
}

// exactHolds is how many different expiries a state has before it rounds new ones
// up, so that it stays small however many holds there are: by at most a 32nd of what was
// asked for. A holder is told the expiry that is kept.
const exactHolds = 64

// Acquire takes amount (at least 1; less is denied) for ttl milliseconds, or for
// Policy.PeriodMillis if that is 0, at most MaxPeriodMillis. The Hold is set if
// the answer is Changed.
//
// A hold may be denied and yet be allowed sooner than Decision.RetryAfterMillis, because
// holds are released: it says when enough will have expired.
//
// The policy's algorithm is Concurrency, here and in Release, Renew and Held.
func (l *Limiter) Acquire(s State, amount, ttl, now int64) (Decision, Hold, State) {
	was := s
	if s.algorithm != Concurrency {
		s = State{algorithm: Concurrency}
	}
	d := l.checkHolds(&s, amount, now)
	d.Limit = l.capacity
	if amount < 1 {
		d.Allowed = false
	}
	if !d.Allowed {
		return l.shadow(d), Hold{}, was
	}
	h := Hold{Amount: amount, ExpiresAtMillis: l.holdExpiry(&s, ttl, now)}
	s.changeHolds(now, Hold{}, h)
	left := l.checkHolds(&s, 0, now)
	d.Remaining, d.ResetAfterMillis = left.Remaining, left.ResetAfterMillis
	d.Changed, d.ExpiresAtMillis = true, expiry(now, d.ResetAfterMillis)
	return d, h, s
}

// Release gives a hold back. Without done the hold had expired (or is none of
// this state) and nothing changed. expires is as Decision.ExpiresAtMillis.
func (l *Limiter) Release(s State, h Hold, now int64) (next State, expires int64, done bool) {
	if !s.holds(h, now) {
		return s, 0, false
	}
	s.changeHolds(now, h, Hold{})
	return s, expiry(now, l.checkHolds(&s, 0, now).ResetAfterMillis), true
}

// Renew makes a hold last ttl from now, as Acquire does, longer or shorter than it
// would have; it is then the Hold that Renew answers. Without done it had expired,
// and nothing changed.
func (l *Limiter) Renew(s State, h Hold, ttl, now int64) (renewed Hold, next State, expires int64, done bool) {
	if !s.holds(h, now) {
		return Hold{}, s, 0, false
	}
	s.changeHolds(now, h, Hold{})
	renewed = Hold{Amount: h.Amount, ExpiresAtMillis: l.holdExpiry(&s, ttl, now)}
	s.changeHolds(now, Hold{}, renewed)
	return renewed, s, expiry(now, l.checkHolds(&s, 0, now).ResetAfterMillis), true
}

// Held is how much is held at now.
func (l *Limiter) Held(s State, now int64) int64 {
	if s.algorithm != Concurrency {
		return 0
	}
	held, _ := logCounted(&s, now)
	return held
}

// checkHolds asks whether amount more may be held: s.log is what is held, by the
// times at which it expires, s.used its sum.
func (l *Limiter) checkHolds(s *State, amount, now int64) Decision {
	held, last := logCounted(s, now)
	d := Decision{Allowed: true, Remaining: max(l.capacity-held, 0), RetryAfterMillis: NoRetry}
	if held > 0 {
		d.ResetAfterMillis = last - now
	}
	if amount > d.Remaining {
		d.Allowed = false
		if amount <= l.capacity {
			d.RetryAfterMillis = whenFreed(s, now, amount-d.Remaining+max(held-l.capacity, 0)) - now
		}
	}
	return d
}

// holdExpiry is when a hold of ttl from now expires.
func (l *Limiter) holdExpiry(s *State, ttl, now int64) int64 {
	if ttl <= 0 {
		ttl = l.policy.PeriodMillis
	}
	ttl = min(ttl, MaxPeriodMillis)
	at := expiry(now, ttl)
	n := 0
	for r := (series{rest: s.log}); ; {
		time, _, ok := r.next()
		if !ok {
			break
		}
		if time > now {
			n++
		}
	}
	if n < exactHolds || ttl < exactHolds/2 {
		return at
	}
	// Up to a multiple of the greatest power of two that is no more than a 32nd.
	granule := int64(1) << (bits.Len64(uint64(ttl/(exactHolds/2))) - 1)
	return floorDiv(at+granule-1, granule) * granule
}

// holds says whether so much is held until the hold's expiry, after now.
func (s *State) holds(h Hold, now int64) bool {
	if s.algorithm != Concurrency || h.Amount < 1 || h.ExpiresAtMillis <= now {
		return false
	}
	for r := (series{rest: s.log}); ; {
		time, amount, ok := r.next()
		if !ok || time >= h.ExpiresAtMillis {
			return ok && time == h.ExpiresAtMillis && amount >= h.Amount
		}
	}
}

// changeHolds drops what has expired at now, takes one hold out and puts one in;
// an empty one is none. The one to take out is there.
func (s *State) changeHolds(now int64, out, in Hold) {
	w := newSeries(s.log)
	for r := (series{rest: s.log}); ; {
		time, amount, ok := r.next()
		if !ok {
			break
		}
		if in.Amount > 0 && in.ExpiresAtMillis <= time {
			w.add(in.ExpiresAtMillis, in.Amount)
			in = Hold{}
		}
		if out.Amount > 0 && time == out.ExpiresAtMillis {
			amount -= out.Amount
		}
		if time > now {
			w.add(time, amount)
		}
	}
	if in.Amount > 0 {
		w.add(in.ExpiresAtMillis, in.Amount)
	}
	w.flush()
	s.log, s.used = w.bytes, w.total
}
