package shard

import "time"

// clock gives shard time: Unix milliseconds that never go back, not even
// across owners, because every time it gives is below a ceiling that is in the
// log, and a new owner starts at the ceiling.
type clock struct {
	// last is the newest time given; lastMono is when, on the owner's
	// monotonic clock.
	last     int64
	lastMono time.Duration
	// ceiling bounds the times given: it is in the log, or in the entry being
	// built.
	ceiling int64
}

const (
	// ceilingAhead is how far above now a new ceiling lies: a restart may
	// move shard time ahead by at most this.
	ceilingAhead = 1_500
	// ceilingMargin is how near now may come before a new one is proposed, so
	// that reads seldom wait for one.
	ceilingMargin = 500
)

// start begins an ownership: no time below the ceiling is given. One that this
// owner raised in an earlier term is forgotten: its entry may have been lost.
func (c *clock) start(ceiling int64, now Now) {
	c.ceiling = ceiling
	if c.last < ceiling {
		c.last, c.lastMono = ceiling, now.Mono
	}
}

// read is the time now, perhaps at or above the ceiling, which the caller then
// raises. Where the wall clock is behind, shard time runs at half its speed
// until the wall has caught up.
func (c *clock) read(now Now) int64 {
	t := now.WallMillis
	if t < c.last {
		t = c.last + (now.Mono-c.lastMono).Milliseconds()/2
	}
	if t > c.last {
		c.last, c.lastMono = t, now.Mono
	}
	return c.last
}
