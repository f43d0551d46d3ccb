package limit

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/felix-go/felix"
)

// State is what one policy knows of one key. The zero State is a key that was never
// used. A State is a value: a check returns another one and leaves this one be.
type State struct {
	algorithm Algorithm // 0 if never used; the fields that it does not use are 0

	// at is the shard time of the last change (FixedWindow, SlidingCounter,
	// TokenBucket), 0 to felix.MaxExpiryMillis. It says which window was counted.
	at int64
	// used is what was counted in the window of at, the whole tokens that a bucket
	// lacked at at, or the sum of log. Never negative.
	used int64
	prev int64 // SlidingCounter: counted in the window before that of at

	frac   int64 // TokenBucket: the rest of what it lacked, in parts of period; 0 to period-1
	period int64 // TokenBucket: the policy's PeriodMillis at at

	// log is a series: the charges of a SlidingLog by their times, or what is held
	// by Concurrency by its expiries. It is never written to.
	log []byte
}

// Algorithm is the one that the state belongs to, 0 of the zero State.
func (s *State) Algorithm() Algorithm { return s.algorithm }

const (
	// stateFormat is the first byte of a stored State.
	stateFormat = 1
	// MaxSmallStateBytes is the most that a State takes stored, but for SlidingLog
	// and Concurrency.
	MaxSmallStateBytes = 2 + 3*9 + 2*6
	// MaxStateBytes is the most that any takes: the holds of a Concurrency with as many
	// different expiries as it can have. See exactHolds: 64, a little more than as many
	// for one time to live, half as many for each time that another is twice as long.
	MaxStateBytes = 2 + 2*9*2000
)

// ErrCorrupt is wrapped by every error of ParseState.
var ErrCorrupt = errors.New("corrupt limiter state")

// AppendState adds the stored form of a state, which docs/format.md describes.
func AppendState(b []byte, s State) []byte {
	b = append(b, stateFormat, byte(s.algorithm))
	switch s.algorithm {
	case FixedWindow:
		b = binary.AppendUvarint(b, uint64(s.at))
		b = binary.AppendUvarint(b, uint64(s.used))
	case SlidingCounter:
		b = binary.AppendUvarint(b, uint64(s.at))
		b = binary.AppendUvarint(b, uint64(s.used))
		b = binary.AppendUvarint(b, uint64(s.prev))
	case TokenBucket:
		b = binary.AppendUvarint(b, uint64(s.at))
		b = binary.AppendUvarint(b, uint64(s.used))
		b = binary.AppendUvarint(b, uint64(s.frac))
		b = binary.AppendUvarint(b, uint64(s.period))
	case SlidingLog, Concurrency:
		b = append(b, s.log...)
	}
	return b
}

// ParseState reads the stored form. The state of a SlidingLog or Concurrency
// shares memory with b, which must not change while the state is in use. No bytes
// at all are the zero State. Errors wrap ErrCorrupt.
func ParseState(b []byte) (State, error) {
	if len(b) == 0 {
		return State{}, nil
	}
	if len(b) < 2 || len(b) > MaxStateBytes || b[0] != stateFormat {
		return State{}, fmt.Errorf("%w: %d bytes, format %d", ErrCorrupt, len(b), b[0])
	}
	s, d := State{algorithm: Algorithm(b[1])}, numbers{rest: b[2:]}
	switch s.algorithm {
	case 0:
	case FixedWindow:
		s.at, s.used = d.next(felix.MaxExpiryMillis), d.next(math.MaxInt64)
	case SlidingCounter:
		s.at, s.used, s.prev = d.next(felix.MaxExpiryMillis), d.next(math.MaxInt64), d.next(math.MaxInt64)
	case TokenBucket:
		s.at, s.used = d.next(felix.MaxExpiryMillis), d.next(math.MaxInt64)
		s.frac, s.period = d.next(MaxPeriodMillis-1), d.next(MaxPeriodMillis)
		d.bad = d.bad || s.frac >= s.period
	case SlidingLog, Concurrency:
		s.log = d.rest
		s.used = d.series()
	default:
		return State{}, fmt.Errorf("%w: algorithm %d is not known to this build", ErrCorrupt, s.algorithm)
	}
	if d.bad || len(d.rest) != 0 {
		return State{}, fmt.Errorf("%w: %s of %d bytes", ErrCorrupt, s.algorithm, len(b))
	}
	return s, nil
}

// numbers reads uvarints; after a failure bad is set and all are 0.
type numbers struct {
	rest []byte
	bad  bool
}

// next is a number up to most.
func (d *numbers) next(most uint64) int64 {
	v, n := binary.Uvarint(d.rest)
	if n <= 0 || v > most {
		d.bad, d.rest = true, nil
		return 0
	}
	d.rest = d.rest[n:]
	return int64(v)
}

// series reads what remains and is the sum of the amounts.
func (d *numbers) series() (total int64) {
	time := int64(0)
	for first := true; len(d.rest) > 0; first = false {
		step := d.next(math.MaxInt64)
		amount := d.next(math.MaxInt64)
		d.bad = d.bad || step == 0 && !first || amount == 0 ||
			step > latestTime-time || amount > math.MaxInt64-total
		if d.bad {
			return 0
		}
		time += step
		total += amount
	}
	return total
}

// latestTime bounds the times of a series: the latest shard time and a little more,
// to which the expiry of a hold may have been rounded up.
const latestTime = felix.MaxExpiryMillis + MaxPeriodMillis
