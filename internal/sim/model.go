package sim

import (
	"fmt"
	"math"
	"math/big"
	"strconv"

	"github.com/anishathalye/porcupine"

	"github.com/felix-go/felix"
)

// state of a key as the promises describe it: nothing here knows how Felix does
// it.
type keyState struct {
	counter, value rec
	newest         uint64 // the highest version that is known to be given
}

// rec is a record. What is not known of it is 0 or, of the expiry, a range.
type rec struct {
	has     bool
	text    bool  // a value that is no number: a letter, and then data
	data    int64 // the sum, or the number that the value is
	version uint64
	lo, hi  int64 // the earliest and latest shard time at which it may expire; 0 is never
}

// input is an operation, or another thing that shows or changes a key.
type input struct {
	op    felix.Op
	what  effect
	known bool // the answer is
	// The operation was evaluated in this range of shard times.
	from, to int64
}

// effect is what happens to a key.
type effect uint8

const (
	evaluated effect = iota // op is
	listed                  // a scan has shown the key, or not; op is a Get
	named                   // a scan has shown it without its value
	cleared                 // with its whole shard
)

// keyModel is the sequential specification of keys.
func keyModel() porcupine.Model {
	m := porcupine.NondeterministicModel{
		Init: func() []any { return []any{keyState{}} },
		Step: func(s, in, out any) (next []any) {
			i := in.(input)
			for _, k := range s.(keyState).step(&i, out.(*felix.Reply)) {
				next = append(next, k)
			}
			return next
		},
		DescribeOperation: func(in, out any) string {
			i := in.(input)
			return fmt.Sprintf("%s %s, at %d to %d, known %v: %+v", [...]string{"", "a scan's", "a scan's", "a clear, not"}[i.what], describe(&i.op),
				i.from-wallStart, i.to-wallStart, i.known, *out.(*felix.Reply))
		},
	}
	return m.ToModel()
}

// step is what the key may be after the operation, if the answer is right;
// nothing if it is not.
func (s keyState) step(in *input, out *felix.Reply) (next []keyState) {
	if in.what == cleared {
		return []keyState{{newest: s.newest}}
	}
	counters, values := []rec{s.counter}, []rec{s.value}
	if in.op.View != felix.ViewValue {
		counters = s.counter.at(in)
	}
	if in.op.View != felix.ViewCounter {
		values = s.value.at(in)
	}
	for _, c := range counters {
		for _, v := range values {
			now := keyState{c, v, s.newest}
			switch in.op.Kind {
			case felix.Get:
				next = append(next, now.shown(in, out, true)...)
			case felix.Add:
				next = append(next, now.add(in, out)...)
			case felix.Set:
				next = append(next, now.set(in, out)...)
			case felix.Delete:
				next = append(next, now.delete(in, out)...)
			case felix.Expire:
				next = append(next, now.expire(in, out)...)
			case felix.Check:
				next = append(next, now.check(in, out)...)
			}
		}
	}
	return next
}

// at is the record at the time of the operation: as it is, or expired, or either.
func (r rec) at(in *input) (may []rec) {
	if r.lo == 0 {
		return []rec{r}
	}
	if r.lo <= in.to {
		may = append(may, rec{})
	}
	if r.hi > in.from {
		r.lo = max(r.lo, in.from+1)
		may = append(may, r)
	}
	return may
}

// seen is the record that the view shows, or nil.
func (s *keyState) seen(v felix.View) *rec {
	switch {
	case v != felix.ViewValue && s.counter.has:
		return &s.counter
	case v != felix.ViewCounter && s.value.has:
		return &s.value
	}
	return nil
}

// shown is the key, if the answer shows it as it may be; what it tells is known
// from then on. The version may be another one's.
func (s keyState) shown(in *input, out *felix.Reply, version bool) []keyState {
	if !in.known {
		return []keyState{s}
	}
	r := s.seen(in.op.View)
	if r == nil {
		if out.Err != nil || out.Found != felix.NoRecord || version && out.Version != 0 {
			return nil
		}
		return []keyState{s}
	}
	kind := felix.ValueRecord
	if r == &s.counter {
		kind = felix.CounterRecord
	}
	if out.Err != nil || out.Found != kind || !r.holds(out, kind, in) || !r.mayExpire(out.ExpiresAtMillis) ||
		version && r.version != 0 && out.Version != r.version {
		return nil
	}
	r.lo, r.hi = out.ExpiresAtMillis, out.ExpiresAtMillis
	if version {
		r.version = out.Version
		s.newest = max(s.newest, out.Version)
	}
	return []keyState{s}
}

// holds says whether the answer has what is in the record.
func (r *rec) holds(out *felix.Reply, kind felix.RecordKind, in *input) bool {
	switch {
	case in.what == named:
		return out.Value == nil
	case kind == felix.CounterRecord:
		return out.Int == r.data
	case in.op.NoValue:
		return out.Value == nil && out.Int == int64(len(r.bytes()))
	}
	return string(out.Value) == r.bytes()
}

func (r *rec) bytes() string {
	text := strconv.FormatInt(r.data, 10)
	if r.text {
		return "v" + text
	}
	return text
}

func (r *rec) mayExpire(at int64) bool {
	if r.lo == 0 {
		return at == 0
	}
	return r.lo <= at && at <= r.hi
}

// fails is the key, as the answer is this error.
func (s keyState) fails(in *input, out *felix.Reply, err *felix.Error) []keyState {
	if in.known && out.Err != err {
		return nil
	}
	return []keyState{s}
}

// expiry is when a record expires that the operation writes over old.
func (in *input) expiry(old *rec) (lo, hi int64) {
	op := &in.op
	switch ttl := op.TTL; {
	case ttl == felix.TTLInIfNone && old.lo != 0, ttl == felix.TTLAtIfNone && old.lo != 0:
		return old.lo, old.hi
	case ttl == felix.TTLIn, ttl == felix.TTLInIfNone:
		return in.from + op.ExpiryMillis, max(in.to, in.to+op.ExpiryMillis) // to may be the end of time
	case ttl == felix.TTLAt, ttl == felix.TTLAtIfNone:
		return op.ExpiryMillis, op.ExpiryMillis
	case ttl == felix.TTLKeep, ttl == felix.TTLDefault && op.Kind != felix.Set:
		return old.lo, old.hi
	}
	return 0, 0
}

// timed says whether the operation is an Expire with a new time.
func (in *input) timed() bool {
	return in.op.Kind == felix.Expire && (in.op.TTL == felix.TTLIn || in.op.TTL == felix.TTLAt)
}

// write is the key with another record in it, unless that has expired already.
func (s keyState) write(in *input, out *felix.Reply, counter bool, r rec) (next []keyState) {
	r.has = true
	records := []rec{r}
	if in.op.TTL == felix.TTLAt || in.op.TTL == felix.TTLAtIfNone {
		records = r.at(in)
	}
	for _, r := range records {
		after := s
		if in.op.View == felix.ViewRedis {
			after.counter, after.value = rec{}, rec{}
		}
		if in.known && r.has {
			if out.Version <= s.newest {
				continue
			}
			r.version, after.newest = out.Version, out.Version
		}
		if counter {
			after.counter = r
		} else {
			after.value = r
		}
		next = append(next, after)
	}
	return next
}

func (s keyState) add(in *input, out *felix.Reply) (next []keyState) {
	old := rec{}
	if r := s.seen(in.op.View); r != nil {
		old = *r
	}
	delta, answer := in.within(old.data)
	switch {
	case old.text:
		return s.fails(in, out, felix.ErrNotInteger)
	case answer == tooFar:
		return s.fails(in, out, felix.ErrOverflow)
	case answer == unmet:
		return s.unbounded(in, out, old.data)
	}
	r := rec{data: old.data + delta}
	r.lo, r.hi = in.expiry(&old)
	if in.known {
		if out.Err != nil || !out.Applied || out.Int != r.data || !r.mayExpire(out.ExpiresAtMillis) || in.op.Bounds != nil && out.Delta != delta {
			return nil
		}
		r.lo, r.hi = out.ExpiresAtMillis, out.ExpiresAtMillis
	}
	next = s.write(in, out, true, r)
	if in.op.Bounds != nil && delta == 0 && s.counter.has {
		next = append(next, s.kept(in, out, r.lo, r.hi)...)
	}
	return next
}

// bound is what bounds say to an add.
type bound uint8

const (
	met bound = iota
	unmet
	tooFar
)

// within is what the operation adds to a sum.
func (in *input) within(sum int64) (delta int64, answer bound) {
	b := in.op.Bounds
	if b == nil {
		b = &felix.Bounds{Min: math.MinInt64, Max: math.MaxInt64}
	}
	after := new(big.Int).Add(big.NewInt(sum), big.NewInt(in.op.Int))
	to := after
	if lowest := big.NewInt(b.Min); after.Cmp(lowest) < 0 {
		to = lowest
	} else if highest := big.NewInt(b.Max); after.Cmp(highest) > 0 {
		to = highest
	}
	add := new(big.Int).Sub(to, big.NewInt(sum))
	switch {
	case to != after && in.op.Bounds == nil, to != after && b.Saturate && !add.IsInt64():
		return 0, tooFar
	case to != after && !b.Saturate:
		return 0, unmet
	}
	return add.Int64(), met
}

// unbounded is the key, as the answer is that the sum would be out of bounds.
func (s keyState) unbounded(in *input, out *felix.Reply, sum int64) []keyState {
	if !in.known {
		return []keyState{s}
	}
	shows := *out
	if shows.Int = 0; s.seen(in.op.View) == &s.counter {
		shows.Int = sum
	} else if r := s.seen(in.op.View); r != nil {
		shows.Value = []byte(r.bytes())
	}
	if out.Applied || out.Int != sum || out.Value != nil {
		return nil
	}
	return s.shown(in, &shows, true)
}

// check is the key, as the answer is whether the condition holds.
func (s keyState) check(in *input, out *felix.Reply) (next []keyState) {
	met, unmet := s.conditions(&in.op)
	if unmet {
		next = s.refused(in, out)
	}
	if met && (!in.known || out.Err == nil && out.Applied) {
		next = append(next, s)
	}
	return next
}

// conditions are whether the condition may be met, and may not be.
func (s *keyState) conditions(op *felix.Op) (met, unmet bool) {
	r := s.seen(op.View)
	switch op.If {
	case felix.IfAbsent:
		met = r == nil
	case felix.IfPresent:
		met = r != nil
	case felix.IfVersion:
		if r != nil && r.version == 0 {
			return true, true
		}
		met = r != nil && r.version == op.Version
	default:
		met = true
	}
	return met, !met
}

// refused is the key, as the answer is that the condition was not met.
func (s keyState) refused(in *input, out *felix.Reply) []keyState {
	if in.known && (out.Err != nil || out.Applied) {
		return nil
	}
	return s.shown(in, out, true)
}

// applied is the key, as the answer is that it was changed, with the old record
// if that was asked for.
func (s keyState) applied(in *input, out *felix.Reply, version bool) []keyState {
	switch {
	case in.known && (out.Err != nil || !out.Applied):
		return nil
	case in.op.ReturnOld:
		return s.shown(in, out, version)
	}
	return []keyState{s}
}

func (s keyState) set(in *input, out *felix.Reply) (next []keyState) {
	met, unmet := s.conditions(&in.op)
	if unmet {
		next = s.refused(in, out)
	}
	if !met {
		return next
	}
	for _, s := range s.applied(in, out, false) {
		old := rec{}
		if r := s.seen(in.op.View); r != nil {
			old = *r
		}
		r := content(&in.op)
		r.lo, r.hi = in.expiry(&old)
		counter := in.op.View == felix.ViewCounter || in.op.View == felix.ViewRedis && !r.text
		next = append(next, s.write(in, out, counter, r)...)
	}
	return next
}

// content is what a Set stores.
func content(op *felix.Op) rec {
	if op.View == felix.ViewCounter {
		return rec{data: op.Int}
	}
	text := op.Value[0] == 'v'
	digits := string(op.Value)
	if text {
		digits = digits[1:]
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil {
		panic(err)
	}
	return rec{data: n, text: text}
}

func (s keyState) delete(in *input, out *felix.Reply) (next []keyState) {
	met, unmet := s.conditions(&in.op)
	if unmet {
		next = s.refused(in, out)
	}
	switch {
	case !met:
	case s.seen(in.op.View) == nil:
		next = append(next, s.refused(in, out)...)
	default:
		for _, s := range s.applied(in, out, true) {
			next = append(next, s.drop(in.op.View))
		}
	}
	return next
}

func (s keyState) drop(v felix.View) keyState {
	if v != felix.ViewValue {
		s.counter = rec{}
	}
	if v != felix.ViewCounter {
		s.value = rec{}
	}
	return s
}

func (s keyState) expire(in *input, out *felix.Reply) (next []keyState) {
	r := s.seen(in.op.View)
	if r == nil {
		return s.refused(in, out)
	}
	lo, hi := in.expiry(r)
	timed := in.timed()
	met, unmet := true, false
	if timed {
		met, unmet = r.expiryMet(in.op.ExpireIf, lo, hi)
	} else if in.op.TTL == felix.TTLClear {
		met, unmet = r.lo != 0, r.lo == 0
	}
	if unmet {
		next = s.refused(in, out)
	}
	if !met {
		return next
	}
	for _, s := range s.applied(in, out, false) {
		switch {
		case in.op.TTL == felix.TTLIn && in.op.ExpiryMillis <= 0:
			next = append(next, s.drop(in.op.View))
		case timed:
			next = append(next, s.kept(in, out, lo, hi)...)
			next = append(next, s.expiring(in, out, lo, hi)...)
		case in.op.TTL == felix.TTLClear:
			next = append(next, s.expiring(in, out, 0, 0)...)
		default:
			r := s.seen(in.op.View)
			next = append(next, s.kept(in, out, r.lo, r.hi)...)
		}
	}
	return next
}

// kept is the key, if its record has that expiry already: nothing is written then,
// unless that hides another record.
func (s keyState) kept(in *input, out *felix.Reply, lo, hi int64) []keyState {
	r := s.seen(in.op.View)
	hides := in.op.View == felix.ViewRedis && s.counter.has && s.value.has
	if r.lo > hi || lo > r.hi || hides && (in.timed() || in.op.Kind == felix.Add) || in.known && r.version != 0 && out.Version != r.version {
		return nil
	}
	r.lo, r.hi = max(r.lo, lo), min(r.hi, hi)
	if in.known {
		r.version, s.newest = out.Version, max(s.newest, out.Version)
	}
	return []keyState{s}
}

// expiring is the key with another expiry of its record.
func (s keyState) expiring(in *input, out *felix.Reply, lo, hi int64) []keyState {
	r := *s.seen(in.op.View)
	r.lo, r.hi, r.version = lo, hi, 0
	return s.write(in, out, s.seen(in.op.View) == &s.counter, r)
}

// expiryMet says whether a condition on the expiry may be met, and may not be, if
// the new one is in the range.
func (r *rec) expiryMet(cond felix.ExpireIf, lo, hi int64) (met, unmet bool) {
	oldLo, oldHi := r.lo, r.hi
	if oldLo == 0 {
		oldLo, oldHi = math.MaxInt64, math.MaxInt64
	}
	switch {
	case cond&felix.ExpireIfNone != 0 && r.lo != 0, cond&felix.ExpireIfSome != 0 && r.lo == 0:
		return false, true
	case cond&felix.ExpireIfLater != 0:
		return hi > oldLo, lo <= oldHi
	case cond&felix.ExpireIfSooner != 0:
		return lo < oldHi, hi >= oldLo
	}
	return true, false
}
