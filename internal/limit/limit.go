// Package limit decides whether something is within a limit, and keeps count. It
// is arithmetic: given a policy, the state of a key, a cost and the time, it says
// what to answer and what the state is then. It has no clock, no I/O and no state
// of its own, and computes in integers only, with 128 bits where 64 do not do, so
// that the same question has the same answer everywhere.
//
// A Policy becomes a Limiter, which Checks. The owner of a shard is to call it
// with the shard's clock, which may jump but never goes back.
package limit

import (
	"math"

	"github.com/felix-go/felix"
)

// NoRetry is Decision.RetryAfterMillis where waiting is of no use or no need.
const NoRetry = -1

// MaxAfterMillis bounds the durations of a Decision: 73 million years. What takes
// longer (a bucket of 2^63 tokens that gets one a century) is told as this.
const MaxAfterMillis = felix.MaxExpiryMillis

// Decision is the answer to a check.
type Decision struct {
	// Allowed says whether the cost is within the limit. A cost that is allowed
	// has been charged to the new state, one that is not has not, not even in
	// part. A cost of 0 or less is always allowed.
	Allowed bool
	// Shadowed says that Allowed would be false, were the policy not a shadow.
	// Nothing was charged.
	Shadowed bool
	// Changed says whether the state is another one than before. If not, there is
	// nothing to store.
	Changed bool
	// Limit is the most that can be charged or held at once: the limit, and for a
	// token bucket the burst.
	Limit int64
	// Remaining is the highest cost that would now be allowed, 0 to Limit.
	Remaining int64
	// ResetAfterMillis is when, if nothing more is charged, Remaining is Limit: 0
	// if it is. Of a fixed window it is the end of the window, used or not.
	ResetAfterMillis int64
	// RetryAfterMillis is when, if nothing more is charged, the same cost is
	// allowed, and not a millisecond earlier. NoRetry if it is allowed now, or never
	// will be because it is above Limit.
	RetryAfterMillis int64
	// ExpiresAtMillis is the time from which the new state may be forgotten: a
	// check then has the same answer with the zero State. It is set if Changed,
	// and in the past (or now) if the state has nothing to remember.
	ExpiresAtMillis int64
}

// Check decides whether cost may be charged to the state at now (shard time, Unix
// milliseconds, 0 to felix.MaxExpiryMillis). The zero State is a key never used.
//
// A cost of 0 asks and changes nothing. A negative one gives back, never to more than
// the limit: of windows it reduces what is counted in the one under way, of a
// sliding log the oldest charges (those that would be gone first, so that giving
// back never admits more than the limit).
//
// A state of another algorithm than the policy's counts as the zero State: a
// policy that changes its algorithm starts afresh. Other changes of a policy keep what was
// used: it is compared with the new limit, a bucket fills at the new rate since its
// last change, and a window of another length counts what is charged since it
// began, or all that the old one counted if any of that may have been since then.
//
// Concurrency is not charged but held: Check only asks, whatever the cost. See Hold.
func (l *Limiter) Check(s State, cost, now int64) (Decision, State) {
	was := s
	if s.algorithm != l.policy.Algorithm {
		s = State{algorithm: l.policy.Algorithm}
	}
	var d Decision
	switch l.policy.Algorithm {
	case FixedWindow:
		d, s = l.checkFixed(s, cost, now)
	case SlidingCounter:
		d, s = l.checkSliding(s, cost, now)
	case SlidingLog:
		d, s = l.checkLog(s, cost, now)
	case TokenBucket:
		d, s = l.checkBucket(s, cost, now)
	case Concurrency:
		d = l.checkHolds(&s, cost, now)
	}
	d.Limit = l.capacity
	if !d.Changed {
		s = was
	}
	return l.shadow(d), s
}

// Peek is Check without charging: what a check of that cost would answer. Remaining
// and ResetAfterMillis are of the state as it is.
func (l *Limiter) Peek(s State, cost, now int64) Decision {
	d, _ := l.Check(s, 0, now)
	if cost <= d.Remaining {
		return d
	}
	d, _ = l.Check(s, cost, now) // it is denied, and so changes nothing
	return d
}

// shadow makes a denial an allowance, if the policy is a shadow.
func (l *Limiter) shadow(d Decision) Decision {
	if l.policy.Shadow && !d.Allowed {
		d.Allowed, d.Shadowed = true, true
	}
	return d
}

// after is a duration as a Decision tells it.
func after(millis uint64) int64 {
	return int64(min(millis, MaxAfterMillis))
}

// expiry is the time a duration from now, at most felix.MaxExpiryMillis.
func expiry(now, millis int64) int64 {
	return min(now, felix.MaxExpiryMillis-millis) + millis
}

// sum is a + b, at most math.MaxInt64; neither is negative.
func sum(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}
