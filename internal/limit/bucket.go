package limit

// tokens is an amount of whole + part/period tokens.
type tokens struct {
	whole int64
	part  int64 // 0 to period-1
}

// owed is what a bucket lacks at now: what it lacked at s.at, less what it has got
// since at the policy's rate of Limit tokens in PeriodMillis. s.frac is in
// parts of s.period, the policy's period then.
func (l *Limiter) owed(s *State, now int64) tokens {
	period := uint64(l.policy.PeriodMillis)
	o := tokens{s.used, s.frac}
	if s.frac > 0 && s.period != l.policy.PeriodMillis {
		// Rounded up, so that changing the period gives nothing away.
		o.part = int64(mul(uint64(s.frac), period).ceilDiv(uint64(s.period)))
		if o.part == l.policy.PeriodMillis {
			o = tokens{sum(o.whole, 1), 0}
		}
	}
	if now <= s.at {
		return o
	}
	q, rem, fits := mul(uint64(l.policy.Limit), uint64(now-s.at)).div(period)
	if !fits || q > uint64(o.whole) || q == uint64(o.whole) && rem >= uint64(o.part) {
		return tokens{} // full
	}
	o.whole -= int64(q)
	if o.part -= int64(rem); o.part < 0 {
		o.whole--
		o.part += l.policy.PeriodMillis
	}
	return o
}

// timeFor is how long the bucket takes to get so many tokens. The policy's limit
// is not 0.
func (l *Limiter) timeFor(t tokens) int64 {
	parts := mul(uint64(t.whole), uint64(l.policy.PeriodMillis)).plus(uint64(t.part))
	return after(parts.ceilDiv(uint64(l.policy.Limit)))
}

// left is how many whole tokens are in a bucket that lacks o.
func (l *Limiter) left(o tokens) int64 {
	left := l.capacity - o.whole
	if o.part > 0 {
		left--
	}
	return max(left, 0)
}

func (l *Limiter) checkBucket(s State, cost, now int64) (Decision, State) {
	d := Decision{Allowed: true, RetryAfterMillis: NoRetry}
	if l.capacity == 0 { // gets nothing and holds nothing; what it owes is kept for another limit
		d.Allowed = cost <= 0
		return d, s
	}
	o := l.owed(&s, now)
	before := o
	switch {
	case cost <= 0:
		if back := magnitude(cost); back > uint64(o.whole) {
			o = tokens{}
		} else {
			o.whole -= int64(back)
		}
	case cost <= l.left(o):
		o.whole += cost
	default:
		d.Allowed = false
		if cost <= l.capacity {
			d.RetryAfterMillis = l.timeFor(tokens{o.whole - (l.capacity - cost), o.part})
		}
	}
	d.ResetAfterMillis = l.timeFor(o)
	if d.Changed = o != before; d.Changed {
		s.at, s.used, s.frac, s.period = now, o.whole, o.part, l.policy.PeriodMillis
		d.ExpiresAtMillis = expiry(now, d.ResetAfterMillis)
	}
	d.Remaining = l.left(o)
	return d, s
}
