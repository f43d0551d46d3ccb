package servicetest

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/felix-go/felix"
)

func testIDs(t *testing.T, e *env) {
	script(t, e, "a duplicate counts once", []step{
		{add("k", 5, id("a")), sum(5)},
		{add("k", 5, id("a")), again(sum(5))},
		{add("k", 1), sum(6)},
		{add("k", 5, id("a")), again(sum(5))},
		{add("k", 5, id("b")), sum(11)},
		{add("k", 5, idFor("b", 1000)), again(sum(11))},
		{get("k"), counter(11)},
	})
	script(t, e, "an id is of its key", []step{
		{add("k", 5, id("a")), sum(5)},
		{add("other", 7, id("a")), sum(7)},
		{add("k", 5, id("a")), again(sum(5))},
		{add("ka", 1, id("b")), sum(1)},
		{add("k", 1, id("ab")), sum(6)},
	})
	script(t, e, "another operation is refused", []step{
		{add("k", 5, id("a")), sum(5)},
		{add("k", 6, id("a")), fails(felix.ErrIDReused)},
		{add("k", 5, id("a"), at(far)), fails(felix.ErrIDReused)},
		{add("k", 5, id("a"), atMost(9)), fails(felix.ErrIDReused)},
		{add("k", 5, id("a"), redis), fails(felix.ErrIDReused)},
		{del("k", id("a")), fails(felix.ErrIDReused)},
		{setInt("k", 5, id("a")), fails(felix.ErrIDReused)},
		{add("k", 5, id("a")), again(sum(5))},
		{get("k"), counter(5)},
	})
	testKeptRefusals(t, e)
	testIDsOfKinds(t, e)
	t.Run("whole replies are the same", func(t *testing.T) { testWholeReplies(t, e.cache(t)) })
	t.Run("ids are no keys", func(t *testing.T) { testIDsAreNoKeys(t, e.cache(t)) })
	t.Run("a bound", func(t *testing.T) { testMaxIDs(t, e) })
	t.Run("duplicates at once", func(t *testing.T) { testDuplicatesAtOnce(t, e.cache(t)) })
	if clocked, ok := e.service.(Clocked); ok {
		t.Run("retention", func(t *testing.T) { testRetention(t, e.cache(t), clocked) })
	}
}

// testKeptRefusals: what was refused is, also when it would not be any more.
func testKeptRefusals(t *testing.T, e *env) {
	script(t, e, "what is refused stays refused", []step{
		{add("k", 8, id("a"), atMost(9)), moved(8, 8)},
		{add("k", 2, id("b"), atMost(9)), counter(8)},
		{setInt("k", 1, id("c"), ifAbsent), counter(8)},
		{set("k", "x", inValues, ifPresent, id("d")), none},
		{del("gone", id("e")), none},
		{del("k"), did},
		{set("k", "x", inValues), did},
		{add("gone", 1), sum(1)},
		{add("k", 8, id("a"), atMost(9)), again(moved(8, 8))},
		{add("k", 2, id("b"), atMost(9)), again(counter(8))},
		{setInt("k", 1, id("c"), ifAbsent), again(counter(8))},
		{set("k", "x", inValues, ifPresent, id("d")), again(none)},
		{del("gone", id("e")), again(none)},
		{get("k"), none},
	})
	script(t, e, "errors are kept", []step{
		{set("k", "words"), did},
		{add("k", 1, redis, id("a")), fails(felix.ErrNotInteger)},
		{setInt("n", 1<<62), did},
		{add("n", 1<<62, id("a")), fails(felix.ErrOverflow)},
		{setInt("n", 1, in(felix.MaxExpiryMillis), id("b")), fails(felix.ErrInvalidExpire)},
		{del("k", redis), did},
		{del("n"), did},
		{add("k", 1, redis, id("a")), fails(felix.ErrNotInteger)},
		{add("n", 1<<62, id("a")), fails(felix.ErrOverflow)},
		{get("k", redis), none},
		{get("n"), none},
	})
}

// testIDsOfKinds: ids of all kinds of operations and records, and illegal ones.
func testIDsOfKinds(t *testing.T, e *env) {
	script(t, e, "no reply of an id has bytes of values", []step{
		{set("k", "words", inValues), did},
		{set("k", "more", inValues, old, id("a")), applied(felix.Reply{Found: felix.ValueRecord, Int: 5})},
		{set("k", "none", inValues, ifAbsent, id("b")), felix.Reply{Found: felix.ValueRecord, Int: 4}},
		{set("k", "more", inValues, old, id("a")), again(applied(felix.Reply{Found: felix.ValueRecord, Int: 5}))},
		{set("k", "none", inValues, ifAbsent, id("b")), again(felix.Reply{Found: felix.ValueRecord, Int: 4})},
		{get("k", inValues), value("more")},
	})
	script(t, e, "every kind takes one", []step{
		{setInt("k", 4, id("a")), did},
		{expire("k", at(far), id("b")), did},
		{expire("k", clearTTL), did},
		{expire("k", at(far), id("b")), again(did)},
		{del("k", id("c")), did},
		{setInt("k", 4, id("a")), again(did)},
		{add("k", 1), sum(1)},
		{del("k", id("c")), again(did)},
		{get("k"), counter(1)},
	})
	script(t, e, "illegal ids", []step{
		{get("k", id("a")), fails(illegal)},
		{add("k", 1, id("")), fails(illegal)},
		{add("k", 1, id(strings.Repeat("i", felix.MaxIDBytes+1))), fails(illegal)},
		{add("k", 1, idFor("a", -1)), fails(illegal)},
		{add("k", 1, idFor("a", felix.MaxIDRetention.Milliseconds()+1)), fails(illegal)},
		{add("k", 1, idFor(strings.Repeat("\xff", felix.MaxIDBytes), felix.MaxIDRetention.Milliseconds())), sum(1)},
	})
}

// testWholeReplies: a replay has the version and the time of the first answer.
func testWholeReplies(t *testing.T, cache felix.Cache) {
	op := add("k", 1, in(1_000_000), id("a"))
	first := one(t, cache, op)
	one(t, cache, add("k", 1))
	if got := one(t, cache, op); got.Version != first.Version || got.NowMillis != first.NowMillis || got.ExpiresAtMillis != first.ExpiresAtMillis || first.Version == 0 {
		t.Errorf("a replay is %s, want %s", show(got), show(first))
	}
}

// testIDsAreNoKeys: they are not counted nor listed, and are cleared.
func testIDsAreNoKeys(t *testing.T, cache felix.Cache) {
	one(t, cache, add("k", 1, id("a")))
	one(t, cache, del("gone", id("a")))
	n, err := cache.Count(within(t))
	if err != nil || n != (felix.RecordCount{Counters: 1, Keys: 1}) {
		t.Errorf("%+v, %v", n, err)
	}
	items := 0
	req := felix.ScanRequest{View: felix.ViewRedis, Limit: 100}
	for more := true; more; {
		page, err := cache.Scan(within(t), req)
		if err != nil {
			t.Fatal(err)
		}
		items, more, req.After = items+len(page.Items), page.More, page.Next
	}
	if items != 1 {
		t.Errorf("%d keys are listed", items)
	}
	if err := cache.Clear(within(t)); err != nil {
		t.Fatal(err)
	}
	if r := one(t, cache, add("k", 1, id("a"))); r.Replayed || r.Int != 1 {
		t.Errorf("after a clear: %s", show(r))
	}
}

func testMaxIDs(t *testing.T, e *env) {
	cache := e.cacheWith(t, felix.CacheSettings{Shards: 1, MaxIDs: 3})
	for i := range 3 {
		one(t, cache, add("k", 1, id(fmt.Sprint(i))))
	}
	r := do(t, cache, add("k", 1, id("one too many")))[0]
	wantCode(t, "one id too many", r.Err, felix.ResourceExhausted)
	if r := one(t, cache, add("k", 1, id("0"))); !r.Replayed {
		t.Error("an old id is forgotten")
	}
	if r := one(t, cache, add("k", 1)); r.Int != 4 {
		t.Errorf("without an id: %s", show(r))
	}
	info, err := e.service.SetMaxIDs(within(t), cache.Scope(), 4)
	if err != nil || info.MaxIDs != 4 {
		t.Fatalf("%+v, %v", info, err)
	}
	if r := one(t, cache, add("k", 1, id("one too many"))); r.Replayed || r.Int != 5 {
		t.Errorf("what was not evaluated was kept: %s", show(r))
	}
	for _, n := range []int64{0, -1, felix.MaxIDsPerCache + 1} {
		_, err := e.service.SetMaxIDs(within(t), cache.Scope(), n)
		wantCode(t, fmt.Sprintf("%d ids", n), err, felix.InvalidArgument)
	}
	_, err = e.service.SetMaxIDs(within(t), e.scope(), 5)
	wantCode(t, "no such cache", err, felix.CacheNotFound)
}

// testDuplicatesAtOnce: of many that come together, one is the first.
func testDuplicatesAtOnce(t *testing.T, cache felix.Cache) {
	const clients, times = 16, 30
	ctx := within(t)
	var firsts [times]atomic.Int32
	together(clients, func(int) {
		for n := range times {
			replies, err := felix.Do(ctx, cache, add("k", 1, id(fmt.Sprint(n))))
			switch {
			case err != nil || replies[0].Err != nil:
				t.Errorf("add: %v, %v", replies, err)
				return
			case !replies[0].Replayed:
				firsts[n].Add(1)
			}
		}
	})
	for n := range firsts {
		if got := firsts[n].Load(); got != 1 {
			t.Errorf("id %d: %d are no duplicates", n, got)
		}
	}
	if r := one(t, cache, get("k")); r.Int != times {
		t.Errorf("the sum is %d, want %d", r.Int, times)
	}
}

// testRetention: an id is kept for as long as was asked, on the shard's clock.
func testRetention(t *testing.T, cache felix.Cache, clocked Clocked) {
	now := time.Now().UnixMilli() + 1_000_000_000_000
	clocked.SetNow(now)
	short, long := add("k", 1, idFor("short", 1000)), add("k", 1, id("long"))
	one(t, cache, short)
	one(t, cache, long)
	check := func(after int64, op felix.Op, replayed bool) {
		t.Helper()
		clocked.SetNow(now + after)
		if r := one(t, cache, op); r.Replayed != replayed {
			t.Errorf("after %d ms: %s, replayed %v", after, show(r), r.Replayed)
		}
	}
	check(999, short, true)
	check(1000, short, false)
	check(1999, short, true)
	day := felix.DefaultIDRetention.Milliseconds()
	check(day-1, long, true)
	check(day, long, false)
	if r := one(t, cache, get("k")); r.Int != 4 {
		t.Errorf("the sum is %d", r.Int)
	}
}
