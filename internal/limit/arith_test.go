package limit

import (
	"math"
	"math/big"
	"testing"
)

// Products and quotients of 128 bits are those of numbers of any size.
func TestArithmeticBesideBig(t *testing.T) {
	edges := []uint64{0, 1, 2, 3, 999, 1000, 1 << 31, 1 << 32, 1<<32 + 1, 1<<63 - 1, 1 << 63, math.MaxUint64 - 1, math.MaxUint64}
	wide := func(n uint64) *big.Int { return new(big.Int).SetUint64(n) }
	for _, a := range edges {
		for _, b := range edges {
			for _, plus := range []uint64{0, 1, 1 << 41} {
				n := mul(a, b).plus(plus)
				want := new(big.Int).Mul(wide(a), wide(b))
				if want.Add(want, wide(plus)).BitLen() > 128 {
					continue // as the caller of plus knows that it is not
				}
				for _, d := range edges[1:] {
					quotient, rest := new(big.Int).DivMod(want, wide(d), new(big.Int))
					q, rem, fits := n.div(d)
					if fits != quotient.IsUint64() || fits && (q != quotient.Uint64() || rem != rest.Uint64()) {
						t.Errorf("(%d * %d + %d) / %d: %d, %d, %v, want %d, %d", a, b, plus, d, q, rem, fits, quotient, rest)
					}
					up := new(big.Int).Set(quotient)
					if rest.Sign() > 0 {
						up.Add(up, big.NewInt(1))
					}
					if !up.IsUint64() {
						up.SetUint64(math.MaxUint64)
					}
					if got := n.ceilDiv(d); got != up.Uint64() {
						t.Errorf("(%d * %d + %d) / %d rounded up: %d, want %d", a, b, plus, d, got, up)
					}
				}
			}
		}
	}
}
