package limit

// Refund gives back what was charged at chargedAt and was not needed after all: a
// reservation that is released, or settled for less. Only what still counts of
// that charge is given back, so that a late refund frees nothing that others were
// charged; a negative cost of Check would. amount is at most what was charged then;
// less than 1 changes nothing.
//
//   - A window that has ended since keeps its count: nothing of it counts any more.
//   - A bucket has been getting tokens since. Taking it that those repaid this charge
//     before any other, what is left of it is given back.
//   - Of Concurrency nothing is charged: see Release.
func (l *Limiter) Refund(s State, amount, chargedAt, now int64) (Decision, State) {
	if amount < 1 || s.algorithm != l.policy.Algorithm {
		return l.Check(s, 0, now)
	}
	switch l.policy.Algorithm {
	case FixedWindow:
		if chargedAt >= l.windowAt(now).start {
			return l.Check(s, -amount, now)
		}
	case TokenBucket:
		got := mul(uint64(l.policy.Limit), uint64(max(now-chargedAt, 0))).ceilDiv(uint64(l.policy.PeriodMillis))
		if left := less(amount, got); left > 0 {
			return l.Check(s, -left, now)
		}
	case SlidingCounter:
		c := l.slide(&s, now)
		before := c
		switch start := now + c.windowLeft - c.period; {
		case chargedAt >= start:
			c.current = less(c.current, uint64(amount))
		case chargedAt >= start-c.period:
			c.previous = less(c.previous, uint64(amount))
		}
		if c != before {
			s.at, s.used, s.prev = now, c.current, c.previous
			return l.refunded(s, now)
		}
	case SlidingLog:
		if gone := now - l.policy.PeriodMillis; chargedAt > gone && s.takeOut(gone, chargedAt, amount) {
			return l.refunded(s, now)
		}
	}
	return l.Check(s, 0, now)
}

// refunded is the decision about a state that a refund has changed.
func (l *Limiter) refunded(s State, now int64) (Decision, State) {
	d, _ := l.Check(s, 0, now)
	d.Changed, d.ExpiresAtMillis = true, expiry(now, d.ResetAfterMillis)
	return d, s
}

// takeOut drops the amounts of a log up to gone, and some of what was charged at a
// time. Without done there is nothing of that time, and nothing changed.
func (s *State) takeOut(gone, chargedAt, some int64) (done bool) {
	w := newSeries(s.log)
	for r := (series{rest: s.log}); ; {
		time, amount, ok := r.next()
		if !ok {
			break
		}
		if time == chargedAt {
			amount, done = less(amount, uint64(some)), true
		}
		if time > gone {
			w.add(time, amount)
		}
	}
	if done {
		w.flush()
		s.log, s.used = w.bytes, w.total
	}
	return done
}
