package engine

import (
	"math"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/record"
)

// forever is an expiry later than every legal one: how conditions on expiries
// see a record that has none.
const forever = math.MaxInt64

// add evaluates Add: an answer with the new sum, an answer that it is not within
// the bounds and no change, or an error and no change.
func (e *evaluation) add() (changed bool) {
	expiry, ok := e.newExpiry()
	if !ok {
		e.r.Err = felix.ErrInvalidExpire
		return false
	}
	seen := e.look()
	var sum int64
	switch seen {
	case record.HasCounter:
		sum = e.cell.Sum
	case record.HasValue:
		if sum, ok = parseInt(e.cell.Value); !ok {
			e.r.Err = felix.ErrNotInteger
			return false
		}
	}
	delta := e.op.Int
	if e.op.Bounds != nil {
		var end bound
		if delta, end = within(e.op.Bounds, sum, delta); end == boundUnmet {
			e.refuseSum(seen, sum)
			return false
		} else if end == boundTooFar {
			e.r.Err = felix.ErrOverflow
			return false
		}
	} else if delta > 0 && sum > math.MaxInt64-delta || delta < 0 && sum < math.MinInt64-delta {
		e.r.Err = felix.ErrOverflow
		return false
	}
	if old := e.expiryOf(seen); e.keepsExpiry(old) {
		expiry = old
	}
	r := e.r
	sum += delta
	r.Applied, r.Int = true, sum
	if e.op.Bounds != nil {
		r.Delta = delta
	}
	if expiry != 0 {
		r.ExpiresAtMillis, r.NowMillis = expiry, e.time()
		if expiry <= r.NowMillis {
			return e.drop()
		}
	}
	if e.op.Bounds != nil && delta == 0 && seen == record.HasCounter && expiry == e.cell.CounterExpiry && !e.hidesValue(seen) {
		r.Version = e.cell.CounterVer // at the bound, again: nothing to log
		return false
	}
	r.Version = e.version
	e.putCounter(sum, expiry)
	return true
}

// set evaluates Set. One with an expiry that is not in the future applies and
// leaves nothing behind, as in Redis.
func (e *evaluation) set() (changed bool) {
	expiry, ok := e.newExpiry()
	if !ok {
		e.r.Err = felix.ErrInvalidExpire
		return false
	}
	seen := e.look()
	met := e.conditionMet(seen)
	if !met || e.op.ReturnOld {
		e.show(seen)
	}
	if !met {
		return false
	}
	if e.op.TTL == felix.TTLKeep {
		expiry = e.expiryOf(seen)
	}
	e.r.Applied = true
	if expiry != 0 && expiry <= e.time() {
		return e.drop()
	}
	e.r.Version = e.version
	sum, isInt := e.op.Int, true
	if e.op.View != felix.ViewCounter {
		isInt = false
		if e.op.View == felix.ViewRedis {
			sum, isInt = parseInt(e.op.Value)
		}
	}
	if isInt {
		e.putCounter(sum, expiry)
	} else {
		e.putValue(append(make([]byte, 0, len(e.op.Value)), e.op.Value...), expiry)
	}
	return true
}

// delete evaluates Delete.
func (e *evaluation) delete() (changed bool) {
	seen := e.look()
	met := e.conditionMet(seen)
	if !met || e.op.ReturnOld {
		e.show(seen)
	}
	if !met || seen == 0 {
		return false
	}
	e.r.Applied = true
	return e.drop()
}

// check evaluates Check.
func (e *evaluation) check() {
	seen := e.look()
	if e.r.Applied = e.conditionMet(seen); !e.r.Applied {
		e.show(seen)
	}
}

// expire evaluates Expire. It writes only if the expiry changes (or, in the
// Redis view, if a value hides behind the counter, since every write replaces
// both).
func (e *evaluation) expire() (changed bool) {
	expiry, ok := e.newExpiry()
	if !ok {
		e.r.Err = felix.ErrInvalidExpire
		return false
	}
	seen := e.look()
	if seen == 0 {
		return false
	}
	old := e.expiryOf(seen)
	timed := e.op.TTL == felix.TTLIn || e.op.TTL == felix.TTLAt
	met := true
	switch {
	case timed:
		met = expireConditionMet(e.op.ExpireIf, old, expiry)
	case e.op.TTL == felix.TTLClear:
		met = old != 0
	default:
		expiry = old
	}
	if !met || e.op.ReturnOld {
		e.show(seen)
	}
	if !met {
		return false
	}
	e.r.Applied = true
	if timed && expiry <= e.time() {
		return e.drop()
	}
	if expiry == old && !(timed && e.hidesValue(seen)) {
		e.r.Version = e.versionOf(seen)
		return false
	}
	e.r.Version = e.version
	if seen == record.HasCounter {
		e.putCounter(e.cell.Sum, expiry)
	} else {
		e.putValue(e.cell.Value, expiry)
	}
	return true
}

// hidesValue says that a live value hides behind the counter that was seen.
func (e *evaluation) hidesValue(seen record.Has) bool {
	return e.op.View == felix.ViewRedis && seen == record.HasCounter && e.cell.Has&record.HasValue != 0 &&
		(e.cell.ValueExpiry == 0 || !expired(e.cell.ValueExpiry, e.time()))
}

// newExpiry is the expiry that the operation asks for, 0 if it asks for none.
// Not ok is felix.ErrInvalidExpire. That comes before everything else, as in
// Redis: also for a record that does not exist or a condition that is not met.
func (e *evaluation) newExpiry() (expiry int64, ok bool) {
	ttl := e.op.TTL
	if ttl < felix.TTLIn {
		return 0, true
	}
	expiry = e.op.ExpiryMillis
	if expiry > felix.MaxExpiryMillis || expiry <= 0 && e.op.Kind != felix.Expire {
		return 0, false
	}
	if ttl == felix.TTLIn || ttl == felix.TTLInIfNone {
		// No overflow: now is positive, and both are at most MaxExpiryMillis.
		expiry += e.time()
	}
	return expiry, expiry <= felix.MaxExpiryMillis
}

// conditionMet checks the If of a Set, Delete or Check.
func (e *evaluation) conditionMet(seen record.Has) bool {
	switch e.op.If {
	case felix.IfAbsent:
		return seen == 0
	case felix.IfPresent:
		return seen != 0
	case felix.IfVersion:
		return seen != 0 && e.versionOf(seen) == e.op.Version
	}
	return true
}

// expireConditionMet checks the ExpireIf of an Expire that moves the expiry
// from old (0: none) to expiry.
func expireConditionMet(cond felix.ExpireIf, old, expiry int64) bool {
	if cond == 0 {
		return true
	}
	if cond&felix.ExpireIfNone != 0 && old != 0 || cond&felix.ExpireIfSome != 0 && old == 0 {
		return false
	}
	if old == 0 {
		old = forever
	}
	return (cond&felix.ExpireIfLater == 0 || expiry > old) &&
		(cond&felix.ExpireIfSooner == 0 || expiry < old)
}

// maxIntDigits is the length of the longest int64 without its sign.
const maxIntDigits = 19

// parseInt reads a canonical int64: the bytes that strconv.FormatInt would
// write, and no others. So a counter made of them shows the same bytes again.
func parseInt(b []byte) (int64, bool) {
	digits := b
	negative := len(b) > 0 && b[0] == '-'
	if negative {
		digits = b[1:]
	}
	if len(digits) == 0 || len(digits) > maxIntDigits {
		return 0, false
	}
	if digits[0] == '0' && len(b) > 1 { // "01", "-0", "-01"
		return 0, false
	}
	var n uint64 // 19 digits fit
	for _, c := range digits {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = n*10 + uint64(c-'0')
	}
	if negative {
		if n > 1<<63 {
			return 0, false
		}
		return int64(-n), true
	}
	return int64(n), n <= math.MaxInt64
}
