package limit

import (
	"math"

	"github.com/felix-go/felix"
)

// Algorithm says how a policy counts.
type Algorithm uint8

// The algorithms. Their numbers are in the stored State and never change.
const (
	// FixedWindow counts what is charged in a window, and begins at 0 in the next.
	// Windows follow the Unix epoch or a calendar, never the first hit. Twice the
	// limit can pass in a short time around the end of a window.
	FixedWindow Algorithm = iota + 1
	// SlidingCounter counts the window under way, and of the one before it the
	// part that a window ending now would still cover, as if its charges had been
	// even (Cloudflare, "How we built rate limiting capable of scaling to millions
	// of domains", 2017). An approximation in two numbers.
	SlidingCounter
	// SlidingLog counts what was charged in the Policy.PeriodMillis that end now,
	// exactly. It keeps each charge, so its limit is at most MaxLogLimit.
	SlidingLog
	// TokenBucket holds Policy.Burst tokens and gets Policy.Limit of them each
	// Policy.PeriodMillis, evenly. It is the generic cell rate algorithm (GCRA,
	// ITU-T I.371) in its form as a continuous-state leaky bucket. The state is what
	// the bucket lacked at a time, and not the time at which it will be full
	// (the theoretical arrival time): so a change of the rate can be honoured.
	TokenBucket
	// Concurrency counts holds that are not released and not expired. See Hold.
	Concurrency
)

// String is the algorithm's name: fixed_window, sliding_counter, sliding_log,
// token_bucket, concurrency.
func (a Algorithm) String() string {
	names := [...]string{"", "fixed_window", "sliding_counter", "sliding_log", "token_bucket", "concurrency"}
	if a != 0 && int(a) < len(names) {
		return names[a]
	}
	return "unknown"
}

// The bounds of a policy.
const (
	// MaxPeriodMillis is 100 years, all of them leap years.
	MaxPeriodMillis = 100 * 366 * 24 * 60 * 60 * 1000
	// MaxLogLimit bounds the limit of a sliding log, and so the charges that one
	// keeps: every charge writes them all, about three bytes each.
	MaxLogLimit = 1000
)

// Policy is a limit without a key. The zero value of a field means "not used".
type Policy struct {
	Algorithm Algorithm
	// Limit is how much may be charged in a window, be got by a bucket in a period, or
	// be held at a time. 0 allows nothing.
	Limit int64
	// PeriodMillis is the length of a window, the time in which a bucket gets
	// Limit tokens, or how long a hold lasts that does not say. 1 to
	// MaxPeriodMillis; 0 if there is a Unit.
	PeriodMillis int64
	// Burst is how much a TokenBucket holds; 0 is as much as Limit.
	Burst int64
	// Unit makes a FixedWindow follow the calendar of Zone.
	Unit Unit
	// Zone is the name of a time zone in the IANA database; "" is UTC.
	Zone string
	// AnchorDay is when a window begins: of a Week, 1 (Monday) to 7; of a Month or
	// Year, the day of the month, 1 to 31. 0 is 1.
	AnchorDay int
	// AnchorMonth is the month in which a Year begins, 1 to 12. 0 is 1.
	AnchorMonth int
	// Shadow makes a decision that denies one that allows, and charges nothing
	// all the same: for trying a policy.
	Shadow bool
}

// Limiter is a policy ready to decide. It is made by New; the zero value is not
// usable. It never changes, and is used from many goroutines.
type Limiter struct {
	policy   Policy
	capacity int64     // the most that can be charged at once, and Decision.Limit
	calendar *calendar // nil without a Unit
}

// New makes a policy ready. zones may be nil for a policy without a Zone. It allocates
// only for one with a Unit, so a policy that comes with its request can be made for
// each; one with a Unit is better kept, as it remembers its window.
// Error: felix.InvalidArgument, with the field and what it may be.
func New(p Policy, zones *Zones) (Limiter, error) {
	if err := p.validate(); err != nil {
		return Limiter{}, err
	}
	l := Limiter{policy: p, capacity: p.Limit}
	if p.Algorithm == TokenBucket && p.Burst != 0 && p.Limit != 0 {
		l.capacity = p.Burst
	}
	if p.Unit != NoUnit {
		loc, err := zones.Load(p.Zone)
		if err != nil {
			return Limiter{}, err
		}
		l.calendar = &calendar{loc: loc, unit: p.Unit, month: max(p.AnchorMonth, 1), day: max(p.AnchorDay, 1)}
	}
	return l, nil
}

// Validate says what is wrong with a policy; see New.
func (p Policy) Validate(zones *Zones) error {
	_, err := New(p, zones)
	return err
}

// Policy is what the limiter was made from.
func (l *Limiter) Policy() Policy { return l.policy }

func invalid(format string, args ...any) error {
	return felix.Errorf(felix.InvalidArgument, format, args...)
}

// validate checks everything but that the zone exists.
func (p *Policy) validate() error {
	highest := int64(math.MaxInt64)
	if p.Algorithm == SlidingLog {
		highest = MaxLogLimit
	}
	switch {
	case p.Algorithm < FixedWindow || p.Algorithm > Concurrency:
		return invalid("algorithm must be fixed_window, sliding_counter, sliding_log, token_bucket or concurrency")
	case p.Algorithm == SlidingLog && p.Limit > highest:
		return invalid("limit of a sliding_log must be 0 to %d, not %d: "+
			"it keeps every charge; a sliding_counter has no such bound", highest, p.Limit)
	case p.Limit < 0:
		return invalid("limit must be 0 to %d, not %d", highest, p.Limit)
	case p.Burst < 0:
		return invalid("burst must be 0 (as much as the limit) to %d, not %d", int64(math.MaxInt64), p.Burst)
	case p.Burst != 0 && p.Algorithm != TokenBucket:
		return invalid("burst must be 0 for %s: only a token_bucket has one", p.Algorithm)
	case p.Unit > Year:
		return invalid("unit must be second, minute, hour, day, week, month or year, or none")
	case p.Unit != NoUnit && p.Algorithm != FixedWindow:
		return invalid("unit must be none for %s: only a fixed_window follows a calendar", p.Algorithm)
	case p.Unit != NoUnit && p.PeriodMillis != 0:
		return invalid("period must be 0 with a unit: a window is a %s", p.Unit)
	case p.Unit == NoUnit && (p.PeriodMillis < 1 || p.PeriodMillis > MaxPeriodMillis):
		return invalid("period must be 1 to %d milliseconds (100 years), not %d", int64(MaxPeriodMillis), p.PeriodMillis)
	case p.Unit == NoUnit && p.Zone != "":
		return invalid("zone must be empty without a unit: only windows of the calendar have one")
	}
	return p.validateAnchor()
}

func (p *Policy) validateAnchor() error {
	// The longest that the anchor month can be; a month that is shorter is cut.
	lastDay := 0
	switch p.Unit {
	case Week:
		lastDay = 7
	case Month:
		lastDay = 31
	case Year:
		days := [...]int{31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31}
		if p.AnchorMonth < 0 || p.AnchorMonth > len(days) {
			return invalid("anchor month must be 0 (January) to 12, not %d", p.AnchorMonth)
		}
		lastDay = days[max(p.AnchorMonth, 1)-1]
	}
	switch {
	case p.AnchorMonth != 0 && p.Unit != Year:
		return invalid("anchor month must be 0: only a window of a year has one")
	case p.AnchorDay != 0 && lastDay == 0:
		return invalid("anchor day must be 0: only a window of a week, month or year has one")
	case p.AnchorDay < 0 || p.AnchorDay > lastDay:
		return invalid("anchor day of a %s must be 0 (the first) to %d, not %d", p.Unit, lastDay, p.AnchorDay)
	}
	return nil
}
