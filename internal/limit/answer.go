package limit

import (
	"math"
	"strconv"
)

// ThrottlePolicy is the policy of redis-cell's CL.THROTTLE key max_burst count
// period: a bucket of max_burst + 1 tokens that gets count of them in period
// seconds. Error: felix.InvalidArgument.
func ThrottlePolicy(maxBurst, count, periodSeconds int64) (Policy, error) {
	switch {
	case maxBurst < 0 || maxBurst == math.MaxInt64:
		return Policy{}, invalid("max_burst must be 0 to %d, not %d", int64(math.MaxInt64-1), maxBurst)
	case count < 1:
		return Policy{}, invalid("count must be 1 to %d, not %d", int64(math.MaxInt64), count)
	case periodSeconds < 1 || periodSeconds > MaxPeriodMillis/1000:
		return Policy{}, invalid("period must be 1 to %d seconds (100 years), not %d", int64(MaxPeriodMillis/1000), periodSeconds)
	}
	return Policy{Algorithm: TokenBucket, Limit: count, PeriodMillis: periodSeconds * 1000, Burst: maxBurst + 1}, nil
}

// Throttle is a decision in the shape of redis-cell's reply to CL.THROTTLE: 0 if
// allowed and 1 if not, limit, remaining, retry-after, reset-after. The durations
// are in seconds, rounded up; retry-after is -1 where there is none.
func Throttle(d Decision) [5]int64 {
	r := [5]int64{0, d.Limit, d.Remaining, NoRetry, secondsUp(d.ResetAfterMillis)}
	if !d.Allowed {
		r[0] = 1
	}
	if d.RetryAfterMillis != NoRetry && !d.Allowed {
		r[3] = secondsUp(d.RetryAfterMillis)
	}
	return r
}

// secondsUp is a duration of 0 or more in seconds, rounded up.
func secondsUp(millis int64) int64 { return -floorDiv(-millis, 1000) }

// The fields of draft-ietf-httpapi-ratelimit-headers-11, "RateLimit header fields for HTTP".
// They are lists: what is about several policies stands in one field, with ", "
// between.

// AppendRateLimit adds the item of the RateLimit field for a policy of that name:
//
//	"name";r=50;t=30
//
// t is the time to Decision.ResetAfterMillis, or to RetryAfterMillis if that is
// sooner: the draft has Retry-After not be earlier than t. name is one that
// felix.ValidateName accepts.
func AppendRateLimit(b []byte, name string, d Decision) []byte {
	t := d.ResetAfterMillis
	if d.RetryAfterMillis != NoRetry {
		t = min(t, d.RetryAfterMillis)
	}
	b = appendItem(b, name)
	b = appendParameter(b, ";r=", d.Remaining)
	return appendParameter(b, ";t=", secondsUp(t))
}

// AppendRateLimitPolicy adds the item of the RateLimit-Policy field for a policy
// of that name:
//
//	"name";q=100;w=60
//
// Of a token bucket q is what it holds and w the time in which it fills. There is no w where
// windows differ in length, and for concurrency, whose unit is
// "concurrent-requests".
func (l *Limiter) AppendRateLimitPolicy(b []byte, name string) []byte {
	b = appendItem(b, name)
	b = appendParameter(b, ";q=", l.capacity)
	p := l.policy
	window := p.PeriodMillis
	switch {
	case p.Algorithm == Concurrency:
		return append(b, `;qu="concurrent-requests"`...)
	case p.Unit != NoUnit:
		window = p.Unit.seconds() * 1000
	case p.Algorithm == TokenBucket && l.capacity > 0:
		window = l.timeFor(tokens{whole: l.capacity})
	}
	if window == 0 {
		return b
	}
	return appendParameter(b, ";w=", secondsUp(window))
}

// AppendRetryAfter adds the value of the Retry-After field (RFC 9110, 10.2.3), and
// nothing if there is none: ok is false then.
func AppendRetryAfter(b []byte, d Decision) (_ []byte, ok bool) {
	if d.RetryAfterMillis == NoRetry {
		return b, false
	}
	return strconv.AppendInt(b, secondsUp(d.RetryAfterMillis), 10), true
}

func appendItem(b []byte, name string) []byte {
	b = append(b, '"')
	b = append(b, name...)
	return append(b, '"')
}

// appendParameter adds a number, at most the greatest that an Integer may be (RFC
// 9651, 3.3.1).
func appendParameter(b []byte, name string, n int64) []byte {
	const greatest = 999_999_999_999_999
	return strconv.AppendInt(append(b, name...), min(n, greatest), 10)
}
