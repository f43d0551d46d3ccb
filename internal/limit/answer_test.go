package limit

import (
	"math"
	"strings"
	"testing"
)

// CL.THROTTLE k 15 30 60, as redis-cell's README has it.
func TestThrottleAsRedisCell(t *testing.T) {
	p, err := ThrottlePolicy(15, 30, 60)
	if err != nil {
		t.Fatal(err)
	}
	k := &key{t: t, l: made(t, p)}
	const now = 1_700_000_000_123
	for n := int64(1); n <= 16; n++ {
		if got, want := Throttle(k.charge(1, now)), [5]int64{0, 16, 16 - n, -1, 2 * n}; got != want {
			t.Errorf("call %d: %v, want %v", n, got, want)
		}
	}
	for what, c := range map[string]struct {
		cost, now int64
		want      [5]int64
	}{
		"the 17th":                         {1, now, [5]int64{1, 16, 0, 2, 32}},
		"rounded up":                       {1, now + 1, [5]int64{1, 16, 0, 2, 32}},
		"a second later":                   {1, now + 1000, [5]int64{1, 16, 0, 1, 31}},
		"more than there ever is":          {17, now, [5]int64{1, 16, 0, -1, 32}},
		"more than there ever is, refused": {math.MaxInt64, now + 32_000, [5]int64{1, 16, 16, -1, 0}},
	} {
		if got := Throttle(k.charge(c.cost, c.now)); got != c.want {
			t.Errorf("%s: %v, want %v", what, got, c.want)
		}
	}
	if got, want := Throttle(k.charge(1, now+2000)), [5]int64{0, 16, 0, -1, 32}; got != want {
		t.Errorf("exactly when it may: %v, want %v", got, want)
	}
}

func TestSecondsAreRoundedUp(t *testing.T) {
	for millis, want := range map[int64]int64{0: 0, 1: 1, 999: 1, 1000: 1, 2000: 2, 2001: 3, math.MaxInt64: 9223372036854776} {
		if got := secondsUp(millis); got != want {
			t.Errorf("%d ms: %d s, want %d", millis, got, want)
		}
	}
}

func TestThrottleArguments(t *testing.T) {
	for _, c := range []struct {
		burst, count, period int64
		want                 string
	}{
		{0, 1, 1, ""},
		{math.MaxInt64 - 1, math.MaxInt64, MaxPeriodMillis / 1000, ""},
		{-1, 1, 1, "max_burst must be 0 to 9223372036854775806, not -1"},
		{math.MaxInt64, 1, 1, "max_burst must be"},
		{1, 0, 1, "count must be 1 to"},
		{1, 1, 0, "period must be 1 to 3162240000 seconds"},
		{1, 1, math.MaxInt64, "period must be 1 to 3162240000 seconds"},
	} {
		p, err := ThrottlePolicy(c.burst, c.count, c.period)
		if c.want == "" {
			if err == nil {
				err = p.Validate(nil)
			}
			if err != nil {
				t.Errorf("%+v: %v", c, err)
			}
		} else if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

func TestRateLimitFields(t *testing.T) {
	for _, c := range []struct {
		p            Policy
		d            Decision
		policy, item string
		retry        string // "" if there is none
	}{
		{Policy{Algorithm: FixedWindow, Limit: 100, PeriodMillis: 60_000},
			Decision{Allowed: true, Remaining: 50, ResetAfterMillis: 29_001, RetryAfterMillis: NoRetry},
			`"a";q=100;w=60`, `"a";r=50;t=30`, ""},
		{Policy{Algorithm: SlidingCounter, Limit: 100, PeriodMillis: 1500},
			Decision{Remaining: 0, ResetAfterMillis: 2000, RetryAfterMillis: 1001},
			`"a";q=100;w=2`, `"a";r=0;t=2`, "2"},
		{Policy{Algorithm: TokenBucket, Limit: 30, Burst: 16, PeriodMillis: 60_000},
			Decision{Remaining: 0, ResetAfterMillis: 32_000, RetryAfterMillis: 2000},
			`"a";q=16;w=32`, `"a";r=0;t=2`, "2"},
		{Policy{Algorithm: FixedWindow, Limit: math.MaxInt64, Unit: Hour},
			Decision{Allowed: true, Remaining: math.MaxInt64, ResetAfterMillis: 0, RetryAfterMillis: NoRetry},
			`"a";q=999999999999999;w=3600`, `"a";r=999999999999999;t=0`, ""},
		{Policy{Algorithm: FixedWindow, Limit: 5, Unit: Month},
			Decision{Remaining: 5, ResetAfterMillis: 1, RetryAfterMillis: NoRetry},
			`"a";q=5`, `"a";r=5;t=1`, ""},
		{Policy{Algorithm: TokenBucket, PeriodMillis: 60_000},
			Decision{RetryAfterMillis: NoRetry}, `"a";q=0;w=60`, `"a";r=0;t=0`, ""},
		{Policy{Algorithm: Concurrency, Limit: 5, PeriodMillis: 60_000},
			Decision{Remaining: 5, RetryAfterMillis: NoRetry},
			`"a";q=5;qu="concurrent-requests"`, `"a";r=5;t=0`, ""},
	} {
		if got := string(made(t, c.p).AppendRateLimitPolicy(nil, "a")); got != c.policy {
			t.Errorf("%+v: RateLimit-Policy %s, want %s", c.p, got, c.policy)
		}
		if got := string(AppendRateLimit(nil, "a", c.d)); got != c.item {
			t.Errorf("%+v: RateLimit %s, want %s", c.d, got, c.item)
		}
		if got, ok := AppendRetryAfter(nil, c.d); string(got) != c.retry || ok != (c.retry != "") {
			t.Errorf("%+v: Retry-After %s, %v, want %q", c.d, got, ok, c.retry)
		}
	}
}
