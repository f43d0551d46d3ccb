package httpapi

import (
	"math"
	"math/big"
	"math/bits"

	"github.com/felix-go/felix"
	felixv1 "github.com/felix-go/felix/api/felix/v1"
)

// addOf is the operation that a CounterAddRequest asks for, but for its key. The
// error is invalid_argument.
func addOf(m *felixv1.CounterAddRequest) (felix.Op, error) {
	op := felix.Op{Kind: felix.Add, View: felix.ViewCounter, Int: 1}
	if m.Delta != nil {
		op.Int = *m.Delta
	}
	inMode, atMode := felix.TTLIn, felix.TTLAt
	if m.GetExpiryIfNone() {
		inMode, atMode = felix.TTLInIfNone, felix.TTLAtIfNone
	}
	switch expiry := m.GetExpiry().(type) {
	case *felixv1.CounterAddRequest_ExpiresInMillis:
		op.TTL, op.ExpiryMillis = inMode, expiry.ExpiresInMillis
	case *felixv1.CounterAddRequest_ExpiresAtMillis:
		op.TTL, op.ExpiryMillis = atMode, expiry.ExpiresAtMillis
	default:
		if m.GetExpiryIfNone() {
			return op, felix.Errorf(felix.InvalidArgument, "expiry_if_none says when to set the expiry, but there is none: give expires_in_millis or expires_at_millis")
		}
	}
	if m.Min != nil || m.Max != nil || m.GetSaturate() {
		op.Bounds = &felix.Bounds{Min: math.MinInt64, Max: math.MaxInt64, Saturate: m.GetSaturate()}
		if m.Min != nil {
			op.Bounds.Min = *m.Min
		}
		if m.Max != nil {
			op.Bounds.Max = *m.Max
		}
	}
	return op, nil
}

// addResponse shows the reply to an operation of addOf.
func addResponse(op *felix.Op, r *felix.Reply) *felixv1.CounterAddResponse {
	added := r.Delta
	if op.Bounds == nil {
		added = op.Int
	}
	return &felixv1.CounterAddResponse{Value: r.Int, ExpiresAtMillis: r.ExpiresAtMillis, Version: r.Version, Applied: r.Applied, Added: added}
}

// sumOf adds up the counters of a page, in decimal digits.
func sumOf(items []felix.ScanItem) string {
	var low, high uint64 // two's complement, together: no page is too large for 128 bits
	for i := range items {
		n, carry := items[i].Int, uint64(0)
		low, carry = bits.Add64(low, uint64(n), 0)
		high += uint64(n>>63) + carry
	}
	sum := new(big.Int).Lsh(big.NewInt(int64(high)), 64)
	return sum.Add(sum, new(big.Int).SetUint64(low)).String()
}
