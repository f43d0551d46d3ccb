package limit

import "math"

// checkLog: s.log is the charges by their times, s.used their sum. A charge at t
// counts until before t + PeriodMillis.
func (l *Limiter) checkLog(s State, cost, now int64) (Decision, State) {
	period := l.policy.PeriodMillis
	gone := now - period
	counted, last := logCounted(&s, gone)
	room := max(l.capacity-counted, 0)
	d := Decision{Allowed: true, RetryAfterMillis: NoRetry}
	switch {
	case cost <= 0:
		if back := min(magnitude(cost), uint64(counted)); back > 0 {
			s.rewriteLog(gone, int64(back), 0, 0)
			d.Changed = true
			counted, last = logCounted(&s, gone)
		}
	case cost <= room:
		// A charge is not before the one before it, should time have gone back.
		last = max(now, last)
		s.rewriteLog(gone, 0, last, cost)
		d.Changed = true
		counted += cost
	default:
		d.Allowed = false
		if cost <= l.capacity {
			d.RetryAfterMillis = whenFreed(&s, gone, cost-room+max(counted-l.capacity, 0)) + period - now
		}
	}
	if counted > 0 {
		d.ResetAfterMillis = last + period - now
	}
	if d.Changed {
		d.ExpiresAtMillis = expiry(now, d.ResetAfterMillis)
	}
	d.Remaining = max(l.capacity-counted, 0)
	return d, s
}

// logCounted is the sum of the amounts later than gone, and the time of the last.
func logCounted(s *State, gone int64) (counted, last int64) {
	counted, last = s.used, math.MinInt64
	r := series{rest: s.log}
	for {
		time, amount, ok := r.next()
		if !ok {
			return counted, last
		}
		if time <= gone {
			counted -= amount
		}
		last = time
	}
}

// whenFreed is the time of the amount with which those later than gone reach need.
func whenFreed(s *State, gone, need int64) int64 {
	r := series{rest: s.log}
	for {
		time, amount, ok := r.next()
		if !ok {
			return r.time
		}
		if time <= gone {
			continue
		}
		if need -= amount; need <= 0 {
			return time
		}
	}
}

// rewriteLog drops the amounts up to gone, takes back from the oldest of the rest,
// and adds an amount that is not before any other.
func (s *State) rewriteLog(gone, back, at, amount int64) {
	w := newSeries(s.log)
	r := series{rest: s.log}
	for {
		time, some, ok := r.next()
		if !ok {
			break
		}
		if time <= gone {
			continue
		}
		taken := min(back, some)
		back -= taken
		w.add(time, some-taken)
	}
	w.add(at, amount)
	w.flush()
	s.log, s.used = w.bytes, w.total
}
