package limit

import (
	"math"
	"slices"
	"strings"
	"testing"
)

// made is a policy as a limiter.
func made(t testing.TB, p Policy) *Limiter {
	t.Helper()
	l, err := New(p, &Zones{})
	if err != nil {
		t.Fatalf("%+v: %v", p, err)
	}
	return &l
}

// key is a limiter and the state of one key, which charge replaces.
type key struct {
	t testing.TB
	l *Limiter
	s State
}

func (k *key) charge(cost, now int64) Decision {
	var d Decision
	d, k.s = k.l.Check(k.s, cost, now)
	return d
}

// used makes a key of which so much was charged at now.
func used(t testing.TB, p Policy, cost, now int64) *key {
	k := &key{t: t, l: made(t, p)}
	if d := k.charge(cost, now); !d.Allowed {
		t.Fatalf("%+v: charging %d: %+v", p, cost, d)
	}
	return k
}

// become gives the key another policy.
func (k *key) become(p Policy) { k.l = made(k.t, p) }

const aMinute = 60_000

var examples = []Policy{
	{Algorithm: FixedWindow, Limit: 10, PeriodMillis: aMinute},
	{Algorithm: SlidingCounter, Limit: 10, PeriodMillis: aMinute},
	{Algorithm: SlidingLog, Limit: 10, PeriodMillis: aMinute},
	{Algorithm: TokenBucket, Limit: 10, PeriodMillis: aMinute},
	{Algorithm: FixedWindow, Limit: 10, Unit: Day, Zone: "Europe/Berlin"},
}

// The sequence of issue 7: a bucket of ten that gets ten in 30 s, hit every second.
func TestBucketGivesFractions(t *testing.T) {
	k := &key{t: t, l: made(t, Policy{Algorithm: TokenBucket, Limit: 10, PeriodMillis: 30_000, Burst: 10})}
	var got []int64
	for second := range int64(11) {
		got = append(got, k.charge(1, 1_000_000+second*1000).Remaining)
	}
	if want := []int64{9, 8, 7, 7, 6, 5, 5, 4, 3, 3, 2}; !slices.Equal(got, want) {
		t.Errorf("remaining %v, want %v", got, want)
	}
}

// Limit 100, previous 50, current 10, 10 % into the window: remaining 45.
func TestSlidingCounterWeighsThePreviousWindow(t *testing.T) {
	k := used(t, Policy{Algorithm: SlidingCounter, Limit: 100, PeriodMillis: aMinute}, 50, 5*aMinute+1)
	k.charge(10, 6*aMinute)
	if d := k.charge(0, 6*aMinute+aMinute/10); d.Remaining != 45 {
		t.Errorf("%+v, want 45 remaining", d)
	}
}

// Sliding 1 per 10 s: the first call is allowed, the next when nothing of it counts.
func TestSlidingOneIsAllowedOnce(t *testing.T) {
	for _, a := range []Algorithm{SlidingCounter, SlidingLog} {
		k := &key{t: t, l: made(t, Policy{Algorithm: a, Limit: 1, PeriodMillis: 10_000})}
		if d := k.charge(1, 123_456); !d.Allowed || d.Remaining != 0 {
			t.Errorf("%s, first: %+v", a, d)
		}
		if d := k.charge(1, 123_456); d.Allowed || d.RetryAfterMillis < 10_000 {
			t.Errorf("%s, second: %+v", a, d)
		}
	}
}

// A fixed window's end is not moved by any hit, and count and reset change
// together: at the end of the window and at no other moment.
func TestFixedWindowEndsWhenItEnds(t *testing.T) {
	k := &key{t: t, l: made(t, Policy{Algorithm: FixedWindow, Limit: 10, PeriodMillis: aMinute})}
	const start = 7 * aMinute
	for now := int64(start); now < start+3*aMinute; now += 500 {
		if k.charge(0, now).Remaining > 0 {
			k.charge(1, now)
		}
		d := k.charge(0, now)
		left := aMinute - now%aMinute
		if d.ResetAfterMillis != left {
			t.Fatalf("at %d: reset after %d, want %d", now, d.ResetAfterMillis, left)
		}
		if want := max(10-(now%aMinute/500+1), 0); d.Remaining != want {
			t.Fatalf("at %d: remaining %d, want %d", now, d.Remaining, want)
		}
	}
}

// 1 per 86,400 s with cost 200,000,000 is never allowed, and no waiting helps.
func TestCostThatCanNeverFit(t *testing.T) {
	for _, p := range examples {
		p.Limit = 1
		k := &key{t: t, l: made(t, p)}
		for _, now := range []int64{0, 86_400_000, 1 << 60} {
			if d := k.charge(200_000_000, now); d.Allowed || d.RetryAfterMillis != NoRetry || d.Changed || d.Remaining != 1 {
				t.Errorf("%+v at %d: %+v", p, now, d)
			}
		}
	}
}

// With 7 used, a limit of 10 leaves 3, and one of 5 none, and nothing negative.
func TestChangedLimitKeepsUsage(t *testing.T) {
	for _, p := range examples {
		k := used(t, withLimit(p, 7), 7, 1_000_000)
		for _, limit := range []int64{10, 5, 20, 7} {
			k.become(withLimit(p, limit))
			d := k.charge(0, 1_000_000)
			if want := max(limit-7, 0); d.Remaining != want || d.Limit != limit {
				t.Errorf("%s, limit %d with 7 used: %+v, want %d remaining", p.Algorithm, limit, d, want)
			}
			if d := k.charge(limit, 1_000_000); d.Allowed || d.RetryAfterMillis < 1 {
				t.Errorf("%s, limit %d with 7 used, cost %d: %+v", p.Algorithm, limit, limit, d)
			}
		}
	}
}

func withLimit(p Policy, limit int64) Policy {
	p.Limit = limit
	return p
}

// An exhausted bucket that gets more per second is allowed as the new rate says.
func TestChangedRateIsHonoured(t *testing.T) {
	day := Policy{Algorithm: TokenBucket, Limit: 10, PeriodMillis: 86_400_000}
	k := used(t, day, 10, 1_000_000)
	if d := k.charge(1, 1_001_000); d.RetryAfterMillis != 8_640_000-1000 {
		t.Fatalf("%+v", d)
	}
	k.become(Policy{Algorithm: TokenBucket, Limit: 10, PeriodMillis: 10_000})
	if d := k.l.Peek(k.s, 1, 1_000_999); d.Allowed || d.RetryAfterMillis != 1 {
		t.Errorf("a millisecond before: %+v", d)
	}
	if d := k.charge(1, 1_001_000); !d.Allowed {
		t.Errorf("after as long as the new rate needs: %+v", d)
	}
}

// A part of a token that is owed does not get lost when the period changes.
func TestChangedPeriodRoundsUp(t *testing.T) {
	k := used(t, Policy{Algorithm: TokenBucket, Limit: 1, PeriodMillis: 1000, Burst: 5}, 5, 0)
	k.charge(-1, 1) // lacks 3 and 999/1000
	k.become(Policy{Algorithm: TokenBucket, Limit: 1, PeriodMillis: 10, Burst: 5})
	if d := k.charge(2, 1); d.Allowed || d.Remaining != 1 || d.RetryAfterMillis != 10 {
		t.Errorf("%+v, want 4 tokens owed", d)
	}
}

// A window of another length counts what may have been charged since it began.
func TestChangedWindowKeepsUsage(t *testing.T) {
	const hour = 60 * aMinute
	hourly := Policy{Algorithm: FixedWindow, Limit: 100, PeriodMillis: hour}
	minutely := Policy{Algorithm: FixedWindow, Limit: 100, PeriodMillis: aMinute}
	for _, c := range []struct {
		name      string
		from, to  Policy
		last, now int64
		remaining int64
	}{
		{"minute to hour", minutely, hourly, hour + 1, hour + 5*aMinute, 93},
		{"hour to minute, charged in it", hourly, minutely, hour + 1, hour + 2, 93},
		{"hour to minute, charged before", hourly, minutely, hour + 1, hour + 5*aMinute, 100},
	} {
		k := used(t, c.from, 7, c.last)
		k.become(c.to)
		if d := k.charge(0, c.now); d.Remaining != c.remaining {
			t.Errorf("%s: %+v, want %d remaining", c.name, d, c.remaining)
		}
	}
}

func TestChangedAlgorithmStartsAfresh(t *testing.T) {
	for _, from := range examples {
		for _, to := range examples {
			k := used(t, from, 10, 1_000_000)
			k.become(to)
			d := k.charge(1, 1_000_000)
			if same := from.Algorithm == to.Algorithm; d.Allowed == same {
				t.Errorf("%+v to %+v: %+v", from, to, d)
			}
		}
	}
}

// A refused check charges nothing, whatever else it is.
func TestDeniedChangesNothing(t *testing.T) {
	for _, p := range examples {
		k := used(t, p, 9, 1_000_000)
		before, peek := k.s, k.charge(0, 1_000_001)
		for _, cost := range []int64{2, 10, 11, math.MaxInt64} {
			d := k.charge(cost, 1_000_001)
			if d.Allowed || d.Changed || d.Remaining != 1 {
				t.Errorf("%s, cost %d: %+v", p.Algorithm, cost, d)
			}
		}
		if after := k.charge(0, 1_000_001); after != peek || string(AppendState(nil, before)) != string(AppendState(nil, k.s)) {
			t.Errorf("%s: %+v after denials, before %+v", p.Algorithm, after, peek)
		}
	}
}

// What is given back is never more than there is.
func TestNegativeCostGivesBack(t *testing.T) {
	for _, p := range examples {
		k := used(t, p, 7, 1_000_000)
		for _, c := range []struct{ cost, remaining int64 }{{-3, 6}, {-5, 10}, {-1, 10}, {math.MinInt64, 10}} {
			if d := k.charge(c.cost, 1_000_000); !d.Allowed || d.Remaining != c.remaining {
				t.Errorf("%s, giving back %d: %+v, want %d remaining", p.Algorithm, -c.cost, d, c.remaining)
			}
		}
		if d := k.charge(-1, 1_000_000); d.Changed {
			t.Errorf("%s: giving back to what is full: %+v", p.Algorithm, d)
		}
		if d := k.charge(11, 1_000_000); d.Allowed {
			t.Errorf("%s: more than the limit after giving back: %+v", p.Algorithm, d)
		}
	}
}

// Peek answers what a check would, and charges nothing.
func TestPeekAnswersAsACheck(t *testing.T) {
	for _, p := range examples {
		k := used(t, p, 6, 1_000_000)
		for _, cost := range []int64{-1, 0, 1, 4, 5, 10, 11} {
			d := k.l.Peek(k.s, cost, 1_000_500)
			check, _ := k.l.Check(k.s, cost, 1_000_500)
			if d.Allowed != check.Allowed || d.RetryAfterMillis != check.RetryAfterMillis || d.Remaining != 4 || d.Changed {
				t.Errorf("%s, cost %d: peek %+v, check %+v", p.Algorithm, cost, d, check)
			}
		}
	}
}

// A shadow allows what it would deny, says so, and charges only what fits.
func TestShadowAllows(t *testing.T) {
	for _, p := range examples {
		p.Shadow = true
		k := used(t, p, 9, 1_000_000)
		if d := k.charge(2, 1_000_000); !d.Allowed || !d.Shadowed || d.Changed || d.Remaining != 1 || d.RetryAfterMillis < 1 {
			t.Errorf("%s: %+v", p.Algorithm, d)
		}
		if d := k.charge(1, 1_000_000); !d.Allowed || d.Shadowed || !d.Changed {
			t.Errorf("%s: %+v", p.Algorithm, d)
		}
	}
}

// A limit of 0 allows nothing; another limit later finds the usage kept.
func TestLimitOfZero(t *testing.T) {
	for _, p := range examples {
		k := used(t, p, 7, 1_000_000)
		k.become(withLimit(p, 0))
		if d := k.charge(1, 1_000_000); d.Allowed || d.RetryAfterMillis != NoRetry || d.Limit != 0 || d.Remaining != 0 {
			t.Errorf("%s: %+v", p.Algorithm, d)
		}
		k.become(p)
		if d := k.charge(0, 1_000_000); d.Remaining != 3 {
			t.Errorf("%s: %+v, want 3 remaining", p.Algorithm, d)
		}
	}
}

// The greatest numbers, where 64 bits would not do.
func TestGreatestNumbers(t *testing.T) {
	const most = math.MaxInt64
	for _, a := range []Algorithm{FixedWindow, SlidingCounter, TokenBucket} {
		p := Policy{Algorithm: a, Limit: most, PeriodMillis: MaxPeriodMillis}
		k := used(t, p, most-1, 1_000)
		if d := k.charge(most, 1_000); d.Allowed || d.Remaining != 1 || d.RetryAfterMillis < 1 {
			t.Errorf("%s: %+v", a, d)
		}
		if d := k.charge(1, 1_000); !d.Allowed || d.Remaining != 0 || d.ExpiresAtMillis < MaxPeriodMillis {
			t.Errorf("%s: %+v", a, d)
		}
		if d := k.charge(most, 1<<61); !d.Allowed || d.Remaining != 0 || d.ExpiresAtMillis != MaxAfterMillis {
			t.Errorf("%s: %+v", a, d)
		}
	}
	// It fills in 2^63 centuries, which is told as the longest.
	k := used(t, Policy{Algorithm: TokenBucket, Limit: 1, Burst: most, PeriodMillis: MaxPeriodMillis}, most, 0)
	if d := k.charge(most, 1); d.Allowed || d.RetryAfterMillis != MaxAfterMillis || d.ResetAfterMillis != MaxAfterMillis {
		t.Errorf("%+v", d)
	}
}

// Shard time never goes back; should it, nothing is handed out twice.
func TestTimeThatGoesBackAdmitsNothing(t *testing.T) {
	for _, p := range examples {
		k := used(t, p, 10, 100*aMinute+500)
		for _, now := range []int64{100*aMinute + 499, 90 * aMinute, 0} {
			if d := k.charge(1, now); d.Allowed {
				t.Errorf("%s at %d: %+v", p.Algorithm, now, d)
			}
		}
	}
}

func TestPolicyErrorsNameTheFieldAndTheRange(t *testing.T) {
	const week = 7 * 24 * 60 * aMinute
	for _, c := range []struct {
		p    Policy
		want string // words of the message, or "" if the policy is good
	}{
		{Policy{}, "algorithm must be"},
		{Policy{Algorithm: 99, Limit: 1, PeriodMillis: 1}, "algorithm must be"},
		{Policy{Algorithm: FixedWindow, Limit: -1, PeriodMillis: 1}, "limit must be 0 to 9223372036854775807, not -1"},
		{Policy{Algorithm: SlidingLog, Limit: -1, PeriodMillis: 1}, "limit must be 0 to 1000, not -1"},
		{Policy{Algorithm: SlidingLog, Limit: 1001, PeriodMillis: 1}, "limit of a sliding_log must be 0 to 1000, not 1001"},
		{Policy{Algorithm: SlidingLog, Limit: 1000, PeriodMillis: 1}, ""},
		{Policy{Algorithm: FixedWindow, Limit: 1}, "period must be 1 to 3162240000000 milliseconds"},
		{Policy{Algorithm: FixedWindow, Limit: 1, PeriodMillis: -5}, "period must be 1 to 3162240000000 milliseconds (100 years), not -5"},
		{Policy{Algorithm: TokenBucket, Limit: 1, PeriodMillis: MaxPeriodMillis + 1}, "period must be"},
		{Policy{Algorithm: TokenBucket, Limit: math.MaxInt64, PeriodMillis: MaxPeriodMillis, Burst: math.MaxInt64}, ""},
		{Policy{Algorithm: TokenBucket, Limit: 1, PeriodMillis: 1, Burst: -1}, "burst must be 0 (as much as the limit) to"},
		{Policy{Algorithm: SlidingCounter, Limit: 1, PeriodMillis: 1, Burst: 1}, "burst must be 0 for sliding_counter"},
		{Policy{Algorithm: SlidingCounter, Limit: 1, Unit: Day}, "unit must be none for sliding_counter"},
		{Policy{Algorithm: FixedWindow, Limit: 1, Unit: 99}, "unit must be second"},
		{Policy{Algorithm: FixedWindow, Limit: 1, Unit: Day, PeriodMillis: 1}, "period must be 0 with a unit: a window is a day"},
		{Policy{Algorithm: FixedWindow, Limit: 1, PeriodMillis: week, Zone: "Europe/Berlin"}, "zone must be empty without a unit"},
		{Policy{Algorithm: FixedWindow, Limit: 1, Unit: Day, Zone: "Europe/Berlim"}, `time zone "Europe/Berlim" is not known`},
		{Policy{Algorithm: FixedWindow, Limit: 1, Unit: Day, Zone: "Local"}, `time zone "Local" is not known`},
		{Policy{Algorithm: FixedWindow, Limit: 1, Unit: Day, Zone: "Europe/"}, `is not known`},
		{Policy{Algorithm: FixedWindow, Limit: 1, Unit: Day, Zone: "UTC"}, ""},
		{Policy{Algorithm: FixedWindow, Limit: 1, Unit: Day, AnchorDay: 1}, "anchor day must be 0: only a window of a week, month or year"},
		{Policy{Algorithm: FixedWindow, Limit: 1, Unit: Week, AnchorDay: 8}, "anchor day of a week must be 0 (the first) to 7, not 8"},
		{Policy{Algorithm: FixedWindow, Limit: 1, Unit: Week, AnchorDay: -1}, "anchor day of a week must be 0 (the first) to 7, not -1"},
		{Policy{Algorithm: FixedWindow, Limit: 1, Unit: Month, AnchorDay: 32}, "anchor day of a month must be 0 (the first) to 31"},
		{Policy{Algorithm: FixedWindow, Limit: 1, Unit: Month, AnchorMonth: 2}, "anchor month must be 0: only a window of a year has one"},
		{Policy{Algorithm: FixedWindow, Limit: 1, Unit: Year, AnchorMonth: 13}, "anchor month must be 0 (January) to 12, not 13"},
		{Policy{Algorithm: FixedWindow, Limit: 1, Unit: Year, AnchorMonth: 2, AnchorDay: 30}, "anchor day of a year must be 0 (the first) to 29, not 30"},
		{Policy{Algorithm: FixedWindow, Limit: 1, Unit: Year, AnchorMonth: 2, AnchorDay: 29}, ""},
		{Policy{Algorithm: FixedWindow, Limit: 1, PeriodMillis: week, AnchorDay: 1}, "anchor day must be 0"},
		{Policy{Algorithm: Concurrency, Limit: 1}, "period must be"},
	} {
		err := c.p.Validate(&Zones{})
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%+v: %v, want %q", c.p, err, c.want)
		}
		if err != nil && !strings.HasPrefix(err.Error(), "invalid_argument: ") {
			t.Errorf("%+v: %v is not an invalid argument", c.p, err)
		}
	}
}
