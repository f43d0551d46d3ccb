package engine

import (
	"math"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/record"
)

// bound is how an Add with bounds ends.
type bound uint8

const (
	boundMet    bound = iota // the sum is within the bounds, or was brought there
	boundUnmet               // it is not, and the Add does not saturate
	boundTooFar              // the way to the bound is no int64
)

// within is what is to be added to sum under the bounds, where delta is asked for.
func within(b *felix.Bounds, sum, delta int64) (add int64, end bound) {
	over := delta > 0 && sum > math.MaxInt64-delta
	under := delta < 0 && sum < math.MinInt64-delta
	above := over || !under && sum+delta > b.Max
	below := under || !over && sum+delta < b.Min
	if !above && !below {
		return delta, boundMet
	}
	if !b.Saturate {
		return 0, boundUnmet
	}
	to := b.Max
	if below {
		to = b.Min
	}
	add = to - sum
	if (to >= sum) != (add >= 0) { // it wrapped around
		return 0, boundTooFar
	}
	return add, boundMet
}

// refuseSum answers that the sum stays as it is.
func (e *evaluation) refuseSum(seen record.Has, sum int64) {
	e.show(seen)
	e.r.Int, e.r.Value = sum, nil
}

// keepsExpiry says that an Add leaves the expiry as it is, which is old.
func (e *evaluation) keepsExpiry(old int64) bool {
	switch e.op.TTL {
	case felix.TTLDefault, felix.TTLKeep:
		return true
	case felix.TTLInIfNone, felix.TTLAtIfNone:
		return old != 0
	}
	return false
}

// validateBounds: the error is invalid_argument.
func validateBounds(op *felix.Op) *felix.Error {
	if op.TTL >= felix.TTLInIfNone && op.Kind != felix.Add {
		return refuse("only an add sets an expiry where there is none")
	}
	if op.Bounds == nil {
		return nil
	}
	if op.Kind != felix.Add {
		return refuse("only an add has bounds")
	}
	if op.Bounds.Min > op.Bounds.Max {
		return refuse("the minimum %d is above the maximum %d", op.Bounds.Min, op.Bounds.Max)
	}
	return nil
}
