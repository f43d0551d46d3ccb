package limit

import (
	"math"
	"math/bits"
)

// u128 is an unsigned number of 128 bits: a product of two of 64 always fits.
type u128 struct{ hi, lo uint64 }

func mul(a, b uint64) u128 {
	hi, lo := bits.Mul64(a, b)
	return u128{hi, lo}
}

// plus is a + b; the caller knows that it fits.
func (a u128) plus(b uint64) u128 {
	lo, carry := bits.Add64(a.lo, b, 0)
	return u128{a.hi + carry, lo}
}

// div is a / d with its remainder. Without fits the quotient has more than 64
// bits, and both are 0. d is not 0.
func (a u128) div(d uint64) (q, rem uint64, fits bool) {
	if a.hi >= d {
		return 0, 0, false
	}
	q, rem = bits.Div64(a.hi, a.lo, d)
	return q, rem, true
}

// ceilDiv is a / d rounded up, at most math.MaxUint64.
func (a u128) ceilDiv(d uint64) uint64 {
	q, rem, fits := a.div(d)
	if !fits || rem > 0 && q == math.MaxUint64 {
		return math.MaxUint64
	}
	if rem > 0 {
		q++
	}
	return q
}

// floorDiv is a / d rounded down, d > 0.
func floorDiv(a, d int64) int64 {
	q := a / d
	if a%d < 0 {
		q--
	}
	return q
}

// floorMod is a - floorDiv(a, d)*d, which is 0 to d-1.
func floorMod(a, d int64) int64 {
	m := a % d
	if m < 0 {
		m += d
	}
	return m
}

// magnitude is |n|, also that of math.MinInt64.
func magnitude(n int64) uint64 {
	if n < 0 {
		return -uint64(n)
	}
	return uint64(n)
}

// less takes some away from n >= 0 and stops at 0.
func less(n int64, some uint64) int64 {
	if some >= uint64(n) {
		return 0
	}
	return n - int64(some)
}
