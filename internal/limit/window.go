package limit

// windowAt is the fixed window that now is in.
func (l *Limiter) windowAt(now int64) window {
	if l.calendar != nil {
		return l.calendar.at(now)
	}
	start := now - floorMod(now, l.policy.PeriodMillis)
	return window{start, start + l.policy.PeriodMillis}
}

// checkFixed: s.used was counted in the window of s.at.
func (l *Limiter) checkFixed(s State, cost, now int64) (Decision, State) {
	w := l.windowAt(now)
	used := s.used
	if s.at < w.start {
		used = 0
	}
	d := Decision{Allowed: true, ResetAfterMillis: after(uint64(w.end - now)), RetryAfterMillis: NoRetry}
	room := max(l.capacity-used, 0)
	next := used
	switch {
	case cost <= 0:
		next = less(used, magnitude(cost))
	case cost <= room:
		next = used + cost
	default:
		d.Allowed = false
		if cost <= l.capacity {
			d.RetryAfterMillis = d.ResetAfterMillis
		}
	}
	if d.Changed = next != used; d.Changed {
		s.at, s.used = now, next
		d.ExpiresAtMillis = now
		if next > 0 {
			d.ExpiresAtMillis = expiry(now, d.ResetAfterMillis)
		}
	}
	d.Remaining = max(l.capacity-next, 0)
	return d, s
}

// sliding is a SlidingCounter's state as it counts at one moment.
type sliding struct {
	period     int64
	current    int64 // charged in the window under way
	previous   int64 // charged in the one before
	windowLeft int64 // milliseconds to the end of the window under way, 1 to period
}

// slide brings a stored state to now: s.used and s.prev were counted in the window
// of s.at and in the one before.
func (l *Limiter) slide(s *State, now int64) sliding {
	w := l.windowAt(now)
	c := sliding{period: l.policy.PeriodMillis, windowLeft: w.end - now}
	switch {
	case s.at >= w.start:
		c.current, c.previous = s.used, s.prev
	case s.at >= w.start-c.period:
		c.previous = s.used
	}
	return c
}

// counted is the current window and the share of the previous one, rounded up:
// a cost fits beside the exact share if and only if it fits beside the rounded
// one, since it is a whole number.
func (c *sliding) counted() int64 {
	share := mul(uint64(c.previous), uint64(c.windowLeft)).ceilDiv(uint64(c.period))
	return sum(c.current, int64(share))
}

// resetAfter is when nothing is counted any more.
func (c *sliding) resetAfter() int64 {
	switch {
	case c.current > 0:
		return c.windowLeft + c.period
	case c.previous > 0:
		return c.windowLeft
	}
	return 0
}

// retryAfter is when no more than most is counted: 0 <= most < counted().
func (c *sliding) retryAfter(most int64) int64 {
	if room := most - c.current; room >= 0 {
		// In this window: previous * left <= room * period.
		return c.windowLeft - c.leftUntil(room, c.previous)
	}
	// In the next, when the current window is the previous one.
	return c.windowLeft + c.period - c.leftUntil(most, c.current)
}

// leftUntil is how much of a window is left when a window before it counts
// for no more than room; room < before.
func (c *sliding) leftUntil(room, before int64) int64 {
	q, _, _ := mul(uint64(room), uint64(c.period)).div(uint64(before))
	return int64(q)
}

func (l *Limiter) checkSliding(s State, cost, now int64) (Decision, State) {
	c := l.slide(&s, now)
	before := c
	room := max(l.capacity-c.counted(), 0)
	d := Decision{Allowed: true, RetryAfterMillis: NoRetry}
	switch {
	case cost <= 0:
		back := magnitude(cost)
		c.current = less(c.current, back)
		c.previous = less(c.previous, back-uint64(before.current-c.current))
	case cost <= room:
		c.current += cost
	default:
		d.Allowed = false
		if cost <= l.capacity {
			d.RetryAfterMillis = c.retryAfter(l.capacity - cost)
		}
	}
	d.ResetAfterMillis = c.resetAfter()
	if d.Changed = c != before; d.Changed {
		s.at, s.used, s.prev = now, c.current, c.previous
		d.ExpiresAtMillis = expiry(now, d.ResetAfterMillis)
	}
	d.Remaining = max(l.capacity-c.counted(), 0)
	return d, s
}
