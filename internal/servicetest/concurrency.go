package servicetest

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/felix-go/felix"
)

func testConcurrency(t *testing.T, e *env) {
	for _, consistency := range []felix.Consistency{felix.Quorum, felix.Leader} {
		t.Run("adds on a "+consistency.String()+" cache", func(t *testing.T) {
			testConcurrentAdds(t, e.cacheWith(t, felix.CacheSettings{Consistency: consistency}))
		})
	}
	t.Run("compare and set", func(t *testing.T) { testConcurrentCAS(t, e.cache(t)) })
	t.Run("one of many", func(t *testing.T) { testOneOfMany(t, e) })
	t.Run("a key of two kinds", func(t *testing.T) { testConcurrentKinds(t, e.cache(t)) })
}

// together runs n functions at the same time and waits for all.
func together(n int, run func(i int)) {
	var wg sync.WaitGroup
	start := make(chan struct{})
	for i := range n {
		wg.Go(func() { <-start; run(i) })
	}
	close(start)
	wg.Wait()
}

// testConcurrentAdds: no add is lost or counted twice, every sum on the way is
// told to exactly one, and readers never see a counter go back.
func testConcurrentAdds(t *testing.T, cache felix.Cache) {
	const adders, readers, times, batch = 16, 4, 40, 3
	ctx := within(t)
	var told [adders*times*batch + 1]atomic.Int32
	var finished atomic.Bool
	var readersDone sync.WaitGroup
	for range readers {
		readersDone.Go(func() {
			for last := int64(0); !finished.Load(); {
				replies, err := felix.Do(ctx, cache, get("hot"))
				if err != nil || replies[0].Err != nil || replies[0].Int < last {
					t.Errorf("a reader that saw %d: %v, error %v", last, replies, err)
					return
				}
				last = replies[0].Int
			}
		})
	}
	together(adders, func(i int) {
		mine := fmt.Sprintf("mine%d", i)
		for n := range times {
			replies, err := felix.Do(ctx, cache, add("hot", 1), add(mine, 1), add("hot", 1), add("hot", 1))
			if err != nil {
				t.Errorf("add: %v", err)
				return
			}
			if replies[1].Int != int64(n+1) {
				t.Errorf("add %d to a key of one goroutine answers %s", n+1, show(replies[1]))
			}
			last := int64(0)
			for _, r := range []felix.Reply{replies[0], replies[2], replies[3]} {
				if r.Err != nil || r.Int <= last || r.Int >= int64(len(told)) {
					t.Errorf("an add after %d answers %s", last, show(r))
					return
				}
				told[r.Int].Add(1)
				last = r.Int
			}
		}
	})
	finished.Store(true)
	readersDone.Wait()
	for n := range told[1:] {
		if c := told[n+1].Load(); c != 1 {
			t.Errorf("the sum %d was told %d times", n+1, c)
		}
	}
	checkReply(t, "the final sum", one(t, cache, get("hot")), counter(adders*times*batch))
}

// testConcurrentCAS increments by reading and setting on the version that was
// read, retrying: the sum is exact if and only if no set overwrote another.
func testConcurrentCAS(t *testing.T, cache felix.Cache) {
	const workers, times = 8, 15
	ctx := within(t)
	one(t, cache, setInt("k", 0))
	together(workers, func(int) {
		replies, err := felix.Do(ctx, cache, get("k"))
		for done := 0; done < times && err == nil && replies[0].Err == nil; {
			was := replies[0]
			replies, err = felix.Do(ctx, cache, setInt("k", was.Int+1, ifVersion(was.Version)))
			if err == nil && replies[0].Applied {
				done++
				// What was written has the version that the reply says.
				replies[0].Int = was.Int + 1
			}
		}
		if err != nil || replies[0].Err != nil {
			t.Errorf("compare and set: %v, error %v", replies, err)
		}
	})
	checkReply(t, "after compare-and-sets", one(t, cache, get("k")), counter(workers*times))
}

// testOneOfMany: of many who do the same at once, exactly one succeeds.
func testOneOfMany(t *testing.T, e *env) {
	const workers = 12
	ctx, cache := within(t), e.cache(t)
	count := func(what string, run func(i int) (bool, error)) {
		t.Helper()
		var won atomic.Int32
		together(workers, func(i int) {
			ok, err := run(i)
			if err != nil {
				t.Errorf("%s: %v", what, err)
			}
			if ok {
				won.Add(1)
			}
		})
		if won.Load() != 1 {
			t.Errorf("%s: %d of %d succeeded, want 1", what, won.Load(), workers)
		}
	}
	runOp := func(op felix.Op) (bool, error) {
		replies, err := felix.Do(ctx, cache, op)
		if err != nil {
			return false, err
		}
		if replies[0].Err != nil {
			return false, replies[0].Err
		}
		return replies[0].Applied, nil
	}
	for n := range 5 {
		key := fmt.Sprint("key", n)
		count("set if absent", func(i int) (bool, error) { return runOp(set(key, fmt.Sprint("by ", i), ifAbsent)) })
		version := one(t, cache, get(key, redis)).Version
		count("set on a version", func(int) (bool, error) { return runOp(set(key, "x", ifVersion(version))) })
		count("expire if none", func(int) (bool, error) { return runOp(expire(key, redis, at(far), nx)) })
		count("delete", func(int) (bool, error) { return runOp(del(key, redis)) })
	}
	scope := e.scope()
	count("create a cache", func(int) (bool, error) {
		_, created, _, err := e.service.CreateCache(ctx, scope, felix.CacheSettings{Shards: 2})
		if err == nil {
			_, err = e.service.Cache(ctx, scope)
		}
		return created, err
	})
}

// testConcurrentKinds switches a key between counter and value in the Redis
// view: nobody ever sees both, or neither.
func testConcurrentKinds(t *testing.T, cache felix.Cache) {
	ctx := within(t)
	one(t, cache, set("k", "0"))
	together(6, func(i int) {
		for n := range 30 {
			switch i {
			case 0:
				if _, err := felix.Do(ctx, cache, set("k", "abc")); err != nil {
					t.Errorf("set: %v", err)
				}
			case 1:
				if _, err := felix.Do(ctx, cache, set("k", fmt.Sprint(n))); err != nil {
					t.Errorf("set: %v", err)
				}
			default:
				replies, err := felix.Do(ctx, cache, get("k"), get("k", inValues), get("k", redis))
				if err != nil {
					t.Errorf("get: %v", err)
					return
				}
				isCounter := replies[0].Found == felix.CounterRecord
				isValue := replies[1].Found == felix.ValueRecord
				if isCounter == isValue || replies[2].Found == felix.NoRecord {
					t.Errorf("one batch sees counter %v, value %v, redis kind %d", isCounter, isValue, replies[2].Found)
				}
			}
		}
	})
	if counts, err := cache.Count(ctx); err != nil || counts.Keys != 1 || counts.Counters+counts.Values != 1 {
		t.Errorf("counts %+v, error %v: want one record under one key", counts, err)
	}
}
