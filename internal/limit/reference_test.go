package limit

import (
	"math/big"
)

// A reference decides as the words of its algorithm say, from everything that ever
// happened, with numbers of any size.
type reference interface {
	// room is what may be charged at now, 0 or more, under the policy as it is now.
	room(p Policy, now int64) *big.Int
	// charge is told what was allowed.
	charge(p Policy, cost, now int64)
	// giveBack is told of a negative cost.
	giveBack(p Policy, amount *big.Int, now int64)
}

func newReference(a Algorithm) reference {
	switch a {
	case FixedWindow:
		return &refWindows{counts: map[int64]*big.Int{}}
	case SlidingCounter:
		return &refWindows{counts: map[int64]*big.Int{}, sliding: true}
	case SlidingLog:
		return &refLog{}
	case TokenBucket:
		return &refBucket{owed: new(big.Rat)}
	}
	panic("no reference")
}

func big64(n int64) *big.Int { return big.NewInt(n) }

func notNegative(n *big.Int) *big.Int {
	if n.Sign() < 0 {
		return new(big.Int)
	}
	return n
}

func floorRat(r *big.Rat) *big.Int {
	q, m := new(big.Int).DivMod(r.Num(), r.Denom(), new(big.Int)) // Euclidean: m >= 0
	_ = m
	return q
}

// refWindows keeps a count for each window that there ever was.
type refWindows struct {
	counts  map[int64]*big.Int
	sliding bool
}

func (r *refWindows) count(window int64) *big.Int {
	if r.counts[window] == nil {
		r.counts[window] = new(big.Int)
	}
	return r.counts[window]
}

func (r *refWindows) room(p Policy, now int64) *big.Int {
	window := now / p.PeriodMillis
	counted := new(big.Rat).SetInt(r.count(window))
	if r.sliding {
		left := (window+1)*p.PeriodMillis - now
		share := new(big.Rat).SetFrac(big64(left), big64(p.PeriodMillis))
		counted.Add(counted, share.Mul(share, new(big.Rat).SetInt(r.count(window-1))))
	}
	return notNegative(floorRat(counted.Sub(new(big.Rat).SetInt64(p.Limit), counted)))
}

func (r *refWindows) charge(p Policy, cost, now int64) {
	c := r.count(now / p.PeriodMillis)
	c.Add(c, big64(cost))
}

func (r *refWindows) giveBack(p Policy, amount *big.Int, now int64) {
	amount = new(big.Int).Set(amount)
	window := now / p.PeriodMillis
	take := func(c *big.Int) {
		some := new(big.Int).Set(amount)
		if some.Cmp(c) > 0 {
			some.Set(c)
		}
		c.Sub(c, some)
		amount.Sub(amount, some)
	}
	take(r.count(window))
	if r.sliding {
		take(r.count(window - 1))
	}
}

// refLog keeps every single unit that was charged, with its time.
type refLog struct{ times []int64 }

func (r *refLog) live(p Policy, now int64) (n int64) {
	for _, t := range r.times {
		if t+p.PeriodMillis > now {
			n++
		}
	}
	return n
}

func (r *refLog) room(p Policy, now int64) *big.Int {
	return notNegative(big64(p.Limit - r.live(p, now)))
}

func (r *refLog) charge(_ Policy, cost, now int64) {
	for range cost {
		r.times = append(r.times, now)
	}
}

func (r *refLog) giveBack(p Policy, amount *big.Int, now int64) {
	n := r.live(p, now)
	if amount.Cmp(big64(n)) < 0 {
		n = amount.Int64()
	}
	for i := 0; n > 0; {
		if r.times[i]+p.PeriodMillis > now {
			r.times = append(r.times[:i:i], r.times[i+1:]...)
			n--
		} else {
			i++
		}
	}
}

// refBucket keeps what is owed as a fraction.
type refBucket struct {
	owed *big.Rat // at at
	at   int64
}

func (r *refBucket) owedAt(p Policy, now int64) *big.Rat {
	// In parts of the period, rounded up: only a change of the period rounds.
	period := new(big.Rat).SetInt64(p.PeriodMillis)
	parts := new(big.Rat).Mul(r.owed, period)
	up := floorRat(parts.Neg(parts))
	owed := new(big.Rat).SetFrac(up.Neg(up), big64(p.PeriodMillis))
	got := new(big.Rat).SetFrac(new(big.Int).Mul(big64(p.Limit), big64(now-r.at)), big64(p.PeriodMillis))
	if owed.Sub(owed, got).Sign() < 0 {
		return new(big.Rat)
	}
	return owed
}

func capacityOf(p Policy) int64 {
	if p.Burst != 0 && p.Limit != 0 {
		return p.Burst
	}
	return p.Limit
}

func (r *refBucket) room(p Policy, now int64) *big.Int {
	full := new(big.Rat).SetInt64(capacityOf(p))
	return notNegative(floorRat(full.Sub(full, r.owedAt(p, now))))
}

func (r *refBucket) charge(p Policy, cost, now int64) {
	owed := r.owedAt(p, now)
	r.owed, r.at = owed.Add(owed, new(big.Rat).SetInt64(cost)), now
}

func (r *refBucket) giveBack(p Policy, amount *big.Int, now int64) {
	if p.Limit == 0 {
		return // as said: it is kept as it is
	}
	owed := r.owedAt(p, now)
	back := new(big.Rat).SetInt(amount)
	if owed.Cmp(back) < 0 {
		owed.Set(back)
	}
	if owed.Sub(owed, back).Cmp(r.owedAt(p, now)) != 0 {
		r.owed, r.at = owed, now
	}
}
