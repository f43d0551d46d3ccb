package servicetest

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/engine"
	"github.com/felix-go/felix/internal/slots"
)

// recorder is a Completer that checks the promises made to completers.
type recorder struct {
	shards int // of the cache, to check that a shard's operations come together
	done   chan struct{}

	mu    sync.Mutex
	batch *felix.Batch
	told  []int // how often each operation was told
	left  int
	wrong []string
}

func submit(cache felix.Cache, shards int, ops []felix.Op, deadline time.Time) *recorder {
	rec := &recorder{shards: shards, done: make(chan struct{}), told: make([]int, len(ops)), left: len(ops)}
	rec.batch = &felix.Batch{Ops: ops, Replies: make([]felix.Reply, len(ops)), Deadline: deadline, Done: rec}
	cache.Submit(rec.batch)
	return rec
}

// OpsDone implements felix.Completer.
func (rec *recorder) OpsDone(b *felix.Batch, part []int32) {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	if b != rec.batch {
		rec.wrong = append(rec.wrong, "told of another batch")
		return
	}
	if len(part) == 0 {
		rec.wrong = append(rec.wrong, "told of no operation")
	}
	inPart, shardsSeen := map[int32]bool{}, map[int]bool{}
	for _, i := range part {
		inPart[i] = true
		rec.told[i]++
		rec.left--
		if rec.told[i] > 1 {
			rec.wrong = append(rec.wrong, fmt.Sprintf("operation %d told again", i))
		}
		if r := &b.Replies[i]; r.Err == nil && !r.Applied && b.Ops[i].Kind == felix.Add {
			rec.wrong = append(rec.wrong, fmt.Sprintf("operation %d told before its reply was filled", i))
		}
		if engine.Validate(&b.Ops[i]) == nil {
			shardsSeen[rec.shard(int(i))] = true
		}
	}
	for i := range b.Ops {
		if !inPart[int32(i)] && shardsSeen[rec.shard(i)] && engine.Validate(&b.Ops[i]) == nil {
			rec.wrong = append(rec.wrong, fmt.Sprintf("operation %d not told together with the others of its shard", i))
		}
	}
	if rec.left == 0 {
		close(rec.done)
	}
}

func validKey(key []byte) bool { return felix.ValidateKey(key) == nil }

func (rec *recorder) shard(i int) int {
	key := rec.batch.Ops[i].Key
	if !validKey(key) {
		return -1 - i // belongs to none
	}
	return slots.Shard(slots.Slot(key), rec.shards)
}

// wait waits for every reply and reports what was wrong.
func (rec *recorder) wait(t *testing.T) []felix.Reply {
	t.Helper()
	select {
	case <-rec.done:
	case <-time.After(patience):
	}
	rec.mu.Lock()
	defer rec.mu.Unlock()
	for _, w := range rec.wrong {
		t.Error(w)
	}
	if rec.left != 0 {
		t.Fatalf("%d of %d operations were not told of", rec.left, len(rec.told))
	}
	return rec.batch.Replies
}

func testBatches(t *testing.T, e *env) {
	for _, shards := range []int{1, 4, 37} {
		t.Run(fmt.Sprintf("%d shards", shards), func(t *testing.T) {
			cache := e.cacheWith(t, felix.CacheSettings{Shards: shards})
			testManyKeys(t, cache, shards)
			testOrderWithinKey(t, cache, shards)
			testErrorsAmongOthers(t, cache, shards)
			testPastDeadline(t, cache, shards)
		})
	}
	t.Run("an empty batch", func(t *testing.T) {
		cache := e.cache(t)
		rec := submit(cache, felix.DefaultShards, nil, time.Time{})
		one(t, cache, add("k", 1))
		rec.mu.Lock()
		defer rec.mu.Unlock()
		if len(rec.wrong) != 0 {
			t.Error(rec.wrong)
		}
	})
	t.Run("batches in order", func(t *testing.T) { testBatchesInOrder(t, e.cache(t)) })
}

// testManyKeys adds to many keys in one batch, each several times.
func testManyKeys(t *testing.T, cache felix.Cache, shards int) {
	const keys, times = 700, 3
	var ops []felix.Op
	for n := range keys * times {
		ops = append(ops, add(fmt.Sprintf("key%d", n%keys), int64(n%keys)))
	}
	for n, r := range submit(cache, shards, ops, time.Time{}).wait(t) {
		want := int64(n%keys) * int64(n/keys+1)
		if r.Err != nil || r.Int != want {
			t.Fatalf("add %d to key%d: %s, want the sum %d", n/keys+1, n%keys, show(r), want)
		}
	}
	for n := range ops {
		ops[n] = get(fmt.Sprintf("key%d", n%keys))
	}
	for n, r := range submit(cache, shards, ops, time.Time{}).wait(t) {
		checkReply(t, fmt.Sprintf("key%d", n%keys), r, counter(int64(n%keys)*times))
	}
}

// testOrderWithinKey mixes reads and writes of a few keys in one batch: each
// sees those before it.
func testOrderWithinKey(t *testing.T, cache felix.Cache, shards int) {
	var ops []felix.Op
	var want []felix.Reply
	for n := range 40 {
		k := fmt.Sprintf("order%d", n%5)
		first := n < 5
		was := counter(1)
		if first {
			was = none
		}
		ops = append(ops, get(k), setInt(k, 5, old), add(k, 2), get(k), del(k, old), get(k), add(k, 1))
		want = append(want, was, applied(was), sum(7), counter(7), applied(counter(7)), none, sum(1))
	}
	for i, r := range submit(cache, shards, ops, time.Time{}).wait(t) {
		checkReply(t, fmt.Sprintf("op %d, %s", i, describe(&ops[i])), r, want[i])
	}
}

// testErrorsAmongOthers: an operation that is refused does not disturb others.
func testErrorsAmongOthers(t *testing.T, cache felix.Cache, shards int) {
	ops := []felix.Op{
		add("e1", 1), add("", 1), add("e2", 1), add("e1", 1, inValues), setInt("e1", 1, in(0)), add("e1", 1), get("e2"),
		add("e3", 1<<62), add("e3", 1<<62), add("e3", 1),
	}
	want := []felix.Reply{
		sum(1), fails(illegal), sum(1), fails(illegal), fails(felix.ErrInvalidExpire), sum(2), counter(1),
		sum(1 << 62), fails(felix.ErrOverflow), sum(1<<62 + 1),
	}
	for i, r := range submit(cache, shards, ops, time.Time{}).wait(t) {
		checkReply(t, fmt.Sprintf("op %d, %s", i, describe(&ops[i])), r, want[i])
	}
	checkReply(t, "one op that is refused", submit(cache, shards, []felix.Op{add("", 1)}, time.Time{}).wait(t)[0], fails(illegal))
}

// testPastDeadline: an operation whose deadline has passed may still be done;
// if it is not, it says so, and what it says is true.
func testPastDeadline(t *testing.T, cache felix.Cache, shards int) {
	ops := []felix.Op{add("late1", 1), add("late2", 1), add("late3", 1), add("late1", 1)}
	replies := submit(cache, shards, ops, time.Now().Add(-time.Second)).wait(t)
	least, most := map[string]int64{}, map[string]int64{}
	for i, r := range replies {
		key := string(ops[i].Key)
		switch {
		case r.Err == nil:
			least[key]++
			most[key]++
		case r.Err.Code == felix.OutcomeUnknown:
			most[key]++
		case r.Err.Code != felix.Unavailable:
			t.Errorf("past its deadline: %v, want done, unavailable or outcome_unknown", r.Err)
		}
	}
	for _, key := range []string{"late1", "late2", "late3"} {
		r := one(t, cache, add(key, 0))
		if r.Int < least[key] || r.Int > most[key] {
			t.Errorf("%s is %d, its replies say %d to %d", key, r.Int, least[key], most[key])
		}
	}
}

// testBatchesInOrder submits batches without waiting, as a pipelining
// connection does: one goroutine's operations on a key keep their order.
func testBatchesInOrder(t *testing.T, cache felix.Cache) {
	var recs []*recorder
	for range 200 {
		recs = append(recs, submit(cache, felix.DefaultShards, []felix.Op{add("a", 1), add("b", 1), get("a")}, time.Time{}))
	}
	for i, rec := range recs {
		r := rec.wait(t)
		n := int64(i + 1)
		if got := []int64{r[0].Int, r[1].Int, r[2].Int}; !slices.Equal(got, []int64{n, n, n}) {
			t.Fatalf("batch %d answers %v, want %d each", i, got, n)
		}
	}
}
