package servicetest

import (
	"math"
	"sync"
	"testing"

	"github.com/felix-go/felix"
)

// testBounds checks adds that are only applied within bounds.
func testBounds(t *testing.T, e *env) {
	script(t, e, "outside of the bounds nothing changes", []step{
		{add("k", 3, atMost(2)), none},
		{get("k"), none},
		{add("k", 2, atMost(2)), moved(2, 2)},
		{add("k", 1, atMost(2)), counter(2)},
		{add("k", 0, atMost(2)), moved(2, 0)},
		{add("k", -2, between(0, 2)), moved(0, -2)},
		{add("k", -1, between(0, 2)), counter(0)},
		{get("k"), counter(0)},
		{add("n", -1, between(0, 2)), none},
		{add("n", 0, between(1, 2)), none},
		{add("n", 1, between(1, 2)), moved(1, 1)},
		{add("n", 5), sum(6)},
	})
	script(t, e, "saturating goes as far as the bound", []step{
		{add("k", 99, atMost(100), saturating), moved(99, 99)},
		{add("k", 5, atMost(100), saturating), moved(100, 1)},
		{add("k", 5, atMost(100), saturating), moved(100, 0)},
		{add("k", -1000, between(-7, 100), saturating), moved(-7, -107)},
		{get("k"), counter(-7)},
		{add("new", 5, between(0, 0), saturating), moved(0, 0)},
		{get("new"), counter(0)},
		{add("far", 1, between(10, 20), saturating), moved(10, 10)},
	})
	script(t, e, "a sum that is outside already", []step{
		{setInt("k", 50), did},
		{add("k", 5, atMost(30)), counter(50)},
		{add("k", -5, atMost(30)), counter(50)},
		{add("k", 0, atMost(30)), counter(50)},
		{add("k", -25, atMost(30)), moved(25, -25)},
		{setInt("k", 50), did},
		{add("k", 5, atMost(30), saturating), moved(30, -20)},
		{setInt("k", -50), did},
		{add("k", 1, between(-30, 0), saturating), moved(-30, 20)},
	})
	testBoundsOverflow(t, e)
	testBoundsExpiry(t, e)
	testBoundsRedis(t, e)
	t.Run("together they stay within", func(t *testing.T) { testBoundsTogether(t, e.cache(t)) })
	t.Run("versions", func(t *testing.T) { testBoundsVersions(t, e.cache(t)) })
}

// testBoundsOverflow: with bounds the end of the range is one like another.
func testBoundsOverflow(t *testing.T, e *env) {
	script(t, e, "an overflow is a bound", []step{
		{setInt("k", math.MaxInt64-7), did},
		{add("k", 10, atMost(math.MaxInt64)), counter(math.MaxInt64 - 7)},
		{add("k", 10), fails(felix.ErrOverflow)},
		{add("k", math.MaxInt64, atMost(math.MaxInt64), saturating), moved(math.MaxInt64, 7)},
		{add("k", 1, atMost(math.MaxInt64), saturating), moved(math.MaxInt64, 0)},
		{add("k", math.MaxInt64, atMost(100), saturating), moved(100, 100-math.MaxInt64)},
		{setInt("k", math.MinInt64+8), did},
		{add("k", -9, atMost(math.MaxInt64)), counter(math.MinInt64 + 8)},
		{add("k", math.MinInt64, between(0, 5)), counter(math.MinInt64 + 8)},
		{add("k", math.MinInt64, between(9, 9), saturating), fails(felix.ErrOverflow)},
		{add("k", math.MinInt64, atMost(math.MaxInt64), saturating), moved(math.MinInt64, -8)},
		{add("k", 1, between(math.MaxInt64, math.MaxInt64), saturating), fails(felix.ErrOverflow)},
		{get("k"), counter(math.MinInt64)},
	})
}

func testBoundsExpiry(t *testing.T, e *env) {
	script(t, e, "an unmet bound leaves the expiry", []step{
		{add("k", 1, at(far)), expiring(sum(1), far)},
		{add("k", 5, atMost(3), at(far+1)), expiring(counter(1), far)},
		{add("k", 5, atMost(3), clearTTL), expiring(counter(1), far)},
		{get("k"), expiring(counter(1), far)},
		{add("k", 1, atMost(3)), expiring(moved(2, 1), far)},
		{add("k", 5, atMost(3), saturating, at(far+1)), expiring(moved(3, 1), far+1)},
		{add("k", 5, atMost(3), saturating, at(far+2)), expiring(moved(3, 0), far+2)},
		{get("k"), expiring(counter(3), far+2)},
		{add("k", 0, atMost(3), clearTTL), moved(3, 0)},
		{add("k", 5, atMost(3), at(far)), counter(3)},
		{get("k"), counter(3)},
		{add("k", -1, atMost(3), at(1)), expiring(moved(2, -1), 1)},
		{get("k"), none},
		{add("k", 1, atMost(3), at(0)), fails(felix.ErrInvalidExpire)},
		{add("k", 9, atMost(3), at(-1)), fails(felix.ErrInvalidExpire)},
	})
	script(t, e, "an expiry where there is none", []step{
		{add("k", 1, at(far), ifNone), expiring(sum(1), far)},
		{add("k", 1, at(far+5), ifNone), expiring(sum(2), far)},
		{add("k", 1, at(1), ifNone), expiring(sum(3), far)},
		{add("k", 1, clearTTL), sum(4)},
		{add("k", 1, at(far+5), ifNone), expiring(sum(5), far+5)},
		{add("k", 1, at(0), ifNone), fails(felix.ErrInvalidExpire)},
		{add("k", 1, in(math.MaxInt64), ifNone), fails(felix.ErrInvalidExpire)},
		{get("k"), expiring(counter(5), far+5)},
		{add("r", 1, at(1), ifNone), expiring(sum(1), 1)},
		{get("r"), none},
		{add("w", 1, atMost(2), at(far), ifNone), expiring(moved(1, 1), far)},
		{add("w", 1, atMost(2), at(far+1), ifNone), expiring(moved(2, 1), far)},
		{add("w", 1, atMost(2), at(far+2), ifNone), expiring(counter(2), far)},
	})
	clock, ok := e.service.(Clocked)
	if !ok {
		return
	}
	t.Run("a window begins with its first hit", func(t *testing.T) {
		cache := e.cache(t)
		hit := func() felix.Reply { return one(t, cache, add("k", 1, atMost(3), in(60_000), ifNone)) }
		began := hit().NowMillis
		clock.SetNow(began + 59_999)
		hit()
		hit()
		checkReply(t, "the fourth within the window", hit(), expiring(counter(3), began+60_000))
		clock.SetNow(began + 60_000)
		checkReply(t, "the first of the next window", hit(), expiring(moved(1, 1), began+120_000))
	})
}

// testBoundsRedis checks bounds on a key as a Redis string.
func testBoundsRedis(t *testing.T, e *env) {
	seen := func(n int64) felix.Reply { return felix.Reply{Found: felix.ValueRecord, Int: n} }
	script(t, e, "a value that holds digits", []step{
		{set("k", "99", inValues, at(far)), did},
		{add("k", 5, redis, atMost(100)), expiring(seen(99), far)},
		{get("k", inValues), expiring(value("99"), far)},
		{add("k", 5, redis, atMost(100), saturating), expiring(moved(100, 1), far)},
		{get("k", inValues), none},
		{get("k"), expiring(counter(100), far)},
		{set("k", "x", inValues), did},
		{add("k", 5, redis, atMost(100)), expiring(counter(100), far)},
		{get("k", inValues), value("x")},
		{add("k", 5, redis, atMost(100), saturating), expiring(moved(100, 0), far)},
		{get("k", inValues), none},
		{set("k", "x"), did},
		{add("k", 5, redis, atMost(100)), fails(felix.ErrNotInteger)},
	})
}

// testBoundsTogether lets many add one at a time up to a bound, as seats are sold.
func testBoundsTogether(t *testing.T, cache felix.Cache) {
	const seats, buyers, each = 100, 8, 25
	var all sync.WaitGroup
	sold := make([]int, buyers)
	for b := range buyers {
		all.Go(func() {
			for range each {
				replies, err := felix.Do(within(t), cache, add("seats", 1, atMost(seats)))
				if err != nil || replies[0].Err != nil {
					t.Errorf("a bounded add: %v, %v", err, replies)
					return
				}
				if replies[0].Applied {
					sold[b]++
				}
			}
		})
	}
	all.Wait()
	total := 0
	for _, n := range sold {
		total += n
	}
	if total != seats {
		t.Errorf("%d of %d seats were sold", total, seats)
	}
	checkReply(t, "the sum", one(t, cache, get("seats")), counter(seats))
}

// testBoundsVersions: what changes nothing has the version that is, so that it
// needs no log.
func testBoundsVersions(t *testing.T, cache felix.Cache) {
	v := one(t, cache, add("k", 3, atMost(3))).Version
	for _, op := range []felix.Op{
		add("k", 1, atMost(3)),
		add("k", 1, atMost(3), saturating),
		add("k", 0, atMost(3)),
		add("k", 1, redis, atMost(3), saturating),
	} {
		if r := one(t, cache, op); r.Version != v {
			t.Errorf("%s: version %d, want that of the counter, %d", describe(&op), r.Version, v)
		}
	}
	if r := one(t, cache, add("k", 1, atMost(3), saturating, at(far))); r.Version <= v {
		t.Errorf("a new expiry has version %d, not above %d", r.Version, v)
	}
}
