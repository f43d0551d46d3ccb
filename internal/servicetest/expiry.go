package servicetest

import (
	"math"
	"testing"

	"github.com/felix-go/felix"
)

func testExpiry(t *testing.T, e *env) {
	script(t, e, "who keeps an expiry", []step{
		{add("k", 1, at(far)), expiring(sum(1), far)},
		{add("k", 1), expiring(sum(2), far)},
		{add("k", 1, keep), expiring(sum(3), far)},
		{get("k"), expiring(counter(3), far)},
		{setInt("k", 5, keep, old), applied(expiring(counter(3), far))},
		{get("k"), expiring(counter(5), far)},
		{setInt("k", 6, ifAbsent), expiring(counter(5), far)},
		{setInt("k", 6), did},
		{get("k"), counter(6)},
		{setInt("k", 7, at(far)), did},
		{add("k", 1, at(far+1)), expiring(sum(8), far+1)},
		{add("k", 1, clearTTL), sum(9)},
		{setInt("k", 1, at(far)), did},
		{setInt("k", 1, clearTTL), did},
		{get("k"), counter(1)},
		{del("k"), did},
		{add("k", 1, keep), sum(1)},
		{setInt("k", 1, at(far)), did},
		{del("k", old), applied(expiring(counter(1), far))},
		{add("k", 1), sum(1)},
	})
	for _, c := range []struct {
		name string
		o    option
		set  felix.Op
		rec  felix.Reply
	}{
		{"counter", func(*felix.Op) {}, setInt("k", 5), counter(5)},
		{"value", inValues, set("k", "v", inValues), value("v")},
		{"redis counter", redis, set("k", "5"), counter(5)},
		{"redis value", redis, set("k", "v"), value("v")},
	} {
		testExpireRules(t, e, c.name, c.o, c.set, c.rec)
	}
	testExpiryBounds(t, e)
	if clocked, ok := e.service.(Clocked); ok {
		testSetClock(t, e, clocked)
	} else {
		t.Run("in real time", func(t *testing.T) { testRealTime(t, e) })
	}
}

// testExpireRules is every rule of Expire on one kind of record.
func testExpireRules(t *testing.T, e *env, name string, o option, set felix.Op, rec felix.Reply) {
	script(t, e, "expire a "+name, []step{
		{expire("k", o, at(far)), none},
		{expire("k", o, at(far), nx), none},
		{expire("k", o, clearTTL, old), none},
		{set, did},
		{expire("k", o, clearTTL), rec},
		{expire("k", o, keep), did},
		{expire("k", o, old), applied(rec)},
		{expire("k", o, at(far), old), applied(rec)},
		{get("k", o), expiring(rec, far)},
		{expire("k", o, at(far), old), applied(expiring(rec, far))},
		{expire("k", o, keep, old), applied(expiring(rec, far))},
		{expire("k", o, clearTTL), did},
		{get("k", o), rec},
		{expire("k", o, at(far)), did},
		{expire("k", o, at(1), old), applied(expiring(rec, far))},
		{get("k", o), none},
		{set, did},
		{expire("k", o, in(-1)), did},
		{get("k", o), none},
		{set, did},
		{expire("k", o, in(0)), did},
		{get("k", o), none},
		{set, did},
		{expire("k", o, in(math.MinInt64)), did},
		{get("k", o), none},
		{set, did},
		{expire("k", o, at(math.MinInt64)), did},
		{get("k", o), none},
	})
	script(t, e, "conditions on the expiry of a "+name, []step{
		{set, did},
		{expire("k", o, at(far), xx), rec}, // no expiry yet
		{expire("k", o, at(far), gt), rec}, // nothing is later than never
		{expire("k", o, at(far), gt, xx), rec},
		{expire("k", o, at(far), lt, xx), rec},
		{expire("k", o, at(far), lt), did},
		{expire("k", o, at(far+9), nx), expiring(rec, far)},
		{expire("k", o, at(far), lt), expiring(rec, far)},
		{expire("k", o, at(far), gt), expiring(rec, far)},
		{expire("k", o, at(far-1), gt), expiring(rec, far)},
		{expire("k", o, at(far+1), lt), expiring(rec, far)},
		{expire("k", o, at(far+1), gt), did},
		{expire("k", o, at(far+2), gt, xx), did},
		{expire("k", o, at(far), lt, xx), did},
		{expire("k", o, at(far-5), xx), did},
		{get("k", o), expiring(rec, far-5)},
		{expire("k", o, at(1), nx), expiring(rec, far-5)},
		{expire("k", o, at(1), gt), expiring(rec, far-5)},
		{get("k", o), expiring(rec, far-5)},
		{expire("k", o, at(1), lt), did},
		{get("k", o), none},
		{set, did},
		{expire("k", o, at(far), nx), did},
		{get("k", o), expiring(rec, far)},
	})
}

// testExpiryBounds: which times are an error, and that it comes before anything
// else.
func testExpiryBounds(t *testing.T, e *env) {
	bad := fails(felix.ErrInvalidExpire)
	steps := []step{{setInt("k", 5), did}, {set("v", "x"), did}}
	for _, o := range []option{
		in(0), in(-1), in(math.MinInt64), in(felix.MaxExpiryMillis), in(felix.MaxExpiryMillis + 1), in(math.MaxInt64),
		at(0), at(-1), at(math.MinInt64), at(felix.MaxExpiryMillis + 1), at(math.MaxInt64),
	} {
		steps = append(steps,
			step{setInt("k", 1, o), bad},
			step{setInt("k", 1, o, ifAbsent), bad},
			step{add("k", 1, o), bad},
			step{add("v", 1, o, redis), bad},
			step{set("v", "y", o), bad},
			step{set("v", "y", o, inValues, ifPresent), bad},
			step{add("new", 1, o), bad})
	}
	for _, o := range []option{
		in(felix.MaxExpiryMillis), in(felix.MaxExpiryMillis + 1), in(math.MaxInt64),
		at(felix.MaxExpiryMillis + 1), at(math.MaxInt64),
	} {
		steps = append(steps, step{expire("k", o), bad}, step{expire("new", o), bad}, step{expire("k", o, xx), bad})
	}
	steps = append(steps,
		step{get("k"), counter(5)}, step{get("v", redis), value("x")}, step{get("new"), none},
		step{expire("k", at(felix.MaxExpiryMillis)), did},
		step{add("k", 1), expiring(sum(6), felix.MaxExpiryMillis)},
		step{setInt("k", 1, at(felix.MaxExpiryMillis)), did},
		step{add("n", 1, at(felix.MaxExpiryMillis)), expiring(sum(1), felix.MaxExpiryMillis)})
	script(t, e, "bounds of an expiry", steps)
	script(t, e, "a set or add that is over at once", []step{
		{setInt("k", 5, at(1)), did},
		{get("k"), none},
		{setInt("k", 5), did},
		{setInt("k", 6, at(1), old), applied(counter(5))},
		{get("k"), none},
		{add("k", 5), sum(5)},
		{add("k", 1, at(1)), expiring(sum(6), 1)},
		{get("k"), none},
		{set("k", "v"), did},
		{set("k", "w", at(1)), did},
		{get("k", redis), none},
	})
}

// testSetClock steps the clock of the service over expiries.
func testSetClock(t *testing.T, e *env, service Clocked) {
	cache := e.cache(t)
	now := one(t, cache, add("base", 1, at(far))).NowMillis + 10_000
	tick := func(millis int64) { now += millis; service.SetNow(now) }
	check := func(what string, op felix.Op, want felix.Reply) {
		t.Helper()
		r := do(t, cache, op)[0]
		checkReply(t, what, r, want)
		if r.NowMillis != 0 && r.NowMillis != now {
			t.Errorf("%s: shard time %d, the clock says %d", what, r.NowMillis, now)
		}
	}
	tick(0)
	for _, c := range []struct {
		name      string
		o         option
		set, bump felix.Op
		rec       felix.Reply
	}{
		{"counter", func(*felix.Op) {}, setInt("k", 5), setInt("k", 5, ifPresent), counter(5)},
		{"value", inValues, set("k", "v", inValues), set("k", "v", inValues, ifPresent), value("v")},
		{"redis counter", redis, set("k", "5"), set("k", "5", ifPresent), counter(5)},
		{"redis value", redis, set("k", "v"), set("k", "v", ifPresent), value("v")},
	} {
		first := one(t, cache, makeOp(c.set, []option{in(1000)}))
		end := now + 1000
		check(c.name+" at first", get("k", c.o), expiring(c.rec, end))
		tick(999)
		check(c.name+" just before", get("k", c.o), expiring(c.rec, end))
		check("an expire just before", expire("k", c.o, at(end), old), applied(expiring(c.rec, end)))
		tick(1)
		check(c.name+" when its time has come", get("k", c.o), none)
		check("a set if present", c.bump, none)
		check("an expire", expire("k", c.o, at(far)), none)
		check("a delete", del("k", c.o, old), none)
		check("a delete of its version", del("k", c.o, ifVersion(first.Version)), none)
		check("a set of its version", makeOp(c.set, []option{ifVersion(first.Version)}), none)
		check("a set that keeps", makeOp(c.set, []option{keep, ifAbsent, old}), did)
		check(c.name+" afterwards", get("k", c.o), c.rec)
		if r := one(t, cache, get("k", c.o)); r.Version <= first.Version {
			t.Errorf("%s: version %d after version %d had expired", c.name, r.Version, first.Version)
		}
		check("a delete afterwards", del("k", c.o), did)
	}
	check("a window", add("w", 1, in(50)), expiring(sum(1), now+50))
	tick(49)
	check("the same window", add("w", 1), expiring(sum(2), now+1))
	tick(1)
	check("the next window", add("w", 1), sum(1))
	testHiddenValueReappears(t, cache, now, tick)
	testExpiredLeavesCounts(t, cache, tick)
}

// testHiddenValueReappears: in the Redis view, a value behind a counter that
// expires is seen again, since nothing replaced it.
func testHiddenValueReappears(t *testing.T, cache felix.Cache, now int64, tick func(int64)) {
	one(t, cache, setInt("both", 1, in(10)))
	one(t, cache, set("both", "41", inValues, in(30)))
	checkReply(t, "both", one(t, cache, get("both", redis)), expiring(counter(1), now+10))
	tick(10)
	checkReply(t, "the value alone", one(t, cache, get("both", redis)), expiring(value("41"), now+30))
	checkReply(t, "an add to the value alone", one(t, cache, add("both", 1, redis)), expiring(sum(42), now+30))
	tick(20)
	checkReply(t, "nothing", one(t, cache, get("both", redis)), none)
}

// testExpiredLeavesCounts: expired records are invisible to scans at once and
// leave the counts in the end.
func testExpiredLeavesCounts(t *testing.T, cache felix.Cache, tick func(int64)) {
	if err := cache.Clear(within(t)); err != nil {
		t.Fatal(err)
	}
	do(t, cache, add("a", 1, in(100)), add("b", 1), set("c", "v", in(100)), set("d", "v"), set("a", "v", inValues))
	tick(100)
	if items := pages(t, cache, felix.ScanRequest{View: felix.ViewRedis, Limit: 10}); len(items) != 3 {
		t.Errorf("a scan shows %d items, want 3: a (the value), b, d", len(items))
	}
	want := felix.RecordCount{Counters: 1, Values: 2, Keys: 3}
	eventually(t, "the expired records are not counted any more", func() bool {
		counts, err := cache.Count(within(t))
		if err != nil {
			t.Fatal(err)
		}
		return counts == want
	})
}

// testRealTime waits for an expiry. It makes no assumption on how fast the
// machine is: only the service's own time counts.
func testRealTime(t *testing.T, e *env) {
	cache := e.cache(t)
	r := one(t, cache, add("k", 1, in(80)))
	if r.ExpiresAtMillis != r.NowMillis+80 {
		t.Fatalf("an expiry in 80 ms: now is %d, it expires at %d", r.NowMillis, r.ExpiresAtMillis)
	}
	end := r.ExpiresAtMillis
	eventually(t, "the counter has expired", func() bool {
		r := one(t, cache, get("k"))
		if r.Found == felix.NoRecord {
			return true
		}
		if r.NowMillis >= end || r.ExpiresAtMillis != end {
			t.Fatalf("at %d a counter is there that expires at %d (it was %d)", r.NowMillis, r.ExpiresAtMillis, end)
		}
		return false
	})
	r = one(t, cache, add("k", 1, at(far)))
	if r.Int != 1 || r.NowMillis < end {
		t.Errorf("after the expiry at %d an add at %d makes %d, want 1", end, r.NowMillis, r.Int)
	}
}
