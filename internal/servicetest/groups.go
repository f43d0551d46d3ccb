package servicetest

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/slots"
)

var aborted = felix.Reply{Aborted: true}

func check(key string, o ...option) felix.Op {
	return makeOp(felix.Op{Kind: felix.Check, Key: []byte(key)}, o)
}

// group runs operations as one group.
func group(t *testing.T, cache felix.Cache, all bool, ops ...felix.Op) []felix.Reply {
	t.Helper()
	return doGroups(t, cache, ops, []felix.Group{{To: int32(len(ops)), AllOrNothing: all}})
}

func checkReplies(t *testing.T, what string, ops []felix.Op, got, want []felix.Reply) {
	t.Helper()
	for i := range ops {
		checkReply(t, fmt.Sprintf("%s, op %d, %s", what, i+1, describe(&ops[i])), got[i], want[i])
	}
}

func testGroups(t *testing.T, e *env) {
	if _, is := e.service.(Ungrouped); is {
		return
	}
	t.Run("all or nothing", func(t *testing.T) { testAllOrNothing(t, e.cache(t)) })
	t.Run("ids", func(t *testing.T) { testGroupIDs(t, e.cache(t)) })
	t.Run("checks", func(t *testing.T) { testChecks(t, e.cache(t)) })
	t.Run("as exec", func(t *testing.T) { testLenientGroup(t, e.cache(t)) })
	t.Run("shards", func(t *testing.T) { testGroupShards(t, e.cacheWith(t, felix.CacheSettings{Shards: 4}), 4) })
	t.Run("too large", func(t *testing.T) { testLargeGroup(t, e.cache(t)) })
	t.Run("moment", func(t *testing.T) { testOneMoment(t, e.cache(t)) })
	t.Run("many keys", func(t *testing.T) { testManyInGroup(t, e.cache(t)) })
}

// testGroupIDs: what would count a retry twice is refused, not overlooked.
func testGroupIDs(t *testing.T, cache felix.Cache) {
	once := &felix.Once{ID: []byte("id")}
	own := add("{a}n", 1)
	own.Once = once
	for n, g := range []struct {
		ops  []felix.Op
		once *felix.Once
	}{{[]felix.Op{add("{a}n", 1), add("{a}m", 1)}, once}, {[]felix.Op{add("{a}n", 1)}, once}, {[]felix.Op{own}, nil}, {[]felix.Op{own}, nil}} {
		for i, r := range doGroups(t, cache, g.ops, []felix.Group{{To: int32(len(g.ops)), AllOrNothing: n%2 == 0, Once: g.once}}) {
			if r.Err == nil || r.Err.Code != felix.InvalidArgument {
				t.Errorf("operation %d of a group with an id: %+v", i, r)
			}
		}
	}
	checkReply(t, "get", one(t, cache, get("{a}n")), none)
}

// testAllOrNothing: whatever fails, nothing stays; a counter and a value change
// together.
func testAllOrNothing(t *testing.T, cache felix.Cache) {
	one(t, cache, add("{a}n", 5))
	one(t, cache, set("{a}v", "word", inValues))
	for i, failing := range []struct {
		op   felix.Op
		want felix.Reply
	}{
		{add("{a}n", 1<<62), fails(felix.ErrOverflow)},
		{add("{a}v", 1, redis), fails(felix.ErrNotInteger)},
		{setInt("{a}n", 1, in(0)), fails(felix.ErrInvalidExpire)},
		{setInt("{a}n", 1, ifAbsent), counter(1<<62 + 6)},
		{setInt("{a}new", 1, ifPresent), none},
		{del("{a}n", ifVersion(1)), counter(1<<62 + 6)},
		{expire("{a}none", in(1000)), none},
		{add("", 1), fails(illegal)},
	} {
		ops := []felix.Op{add("{a}n", 1<<62), get("{a}n"), add("{a}other", 1), add("{a}n", 1), failing.op,
			set("{a}v", "changed", inValues), del("{a}v", inValues), add("{a}last", 1)}
		want := []felix.Reply{aborted, aborted, aborted, aborted, failing.want, aborted, aborted, aborted}
		checkReplies(t, fmt.Sprintf("failure %d", i+1), ops, group(t, cache, true, ops...), want)
		after := []felix.Op{get("{a}n"), get("{a}v", inValues), get("{a}other"), get("{a}last"), get("{a}new")}
		checkReplies(t, fmt.Sprintf("after failure %d", i+1), after, do(t, cache, after...),
			[]felix.Reply{counter(5), value("word"), none, none, none})
	}
	ops := []felix.Op{add("{a}n", 1), set("{a}v", "two", inValues, old), get("{a}n"), add("{a}n", 1), del("{a}absent"), get("{a}v", inValues)}
	checkReplies(t, "what nothing stops", ops, group(t, cache, true, ops...),
		[]felix.Reply{sum(6), applied(value("word")), counter(6), sum(7), none, value("two")})
	after := []felix.Op{get("{a}n"), get("{a}v", inValues)}
	checkReplies(t, "after it", after, do(t, cache, after...), []felix.Reply{counter(7), value("two")})
}

// testChecks: a check is what the rest depends on, in both kinds of group, and
// alone it is a question.
func testChecks(t *testing.T, cache felix.Cache) {
	v := one(t, cache, add("{c}n", 1)).Version
	alone := []felix.Op{check("{c}n", ifVersion(v)), check("{c}n", ifVersion(v+1)), check("{c}n", ifAbsent), check("{c}x", ifAbsent),
		check("{c}n", ifPresent), check("{c}x", ifPresent), check("{c}n"), check("{c}n", ifAbsent, inValues), check("{c}n", ifPresent, redis)}
	checkReplies(t, "alone", alone, do(t, cache, alone...),
		[]felix.Reply{did, counter(1), counter(1), did, did, none, fails(illegal), did, did})
	for _, all := range []bool{false, true} {
		for i, broken := range []struct {
			op   felix.Op
			want felix.Reply
		}{
			{check("{c}n", ifVersion(v+1)), counter(1)},
			{check("{c}n", ifAbsent), counter(1)},
			{check("{c}x", ifPresent), none},
			{check("{c}x", ifVersion(v)), none},
			{check("{c}n"), fails(illegal)},
		} {
			ops := []felix.Op{check("{c}n", ifPresent), add("{c}n", 1), add("{c}x", 1), broken.op, add("{c}y", 1)}
			if i < 4 { // what an operation before has changed counts
				ops = []felix.Op{check("{c}n", ifPresent), broken.op, add("{c}n", 1), add("{c}x", 1)}
			}
			want := make([]felix.Reply, len(ops))
			for j := range ops {
				if want[j] = aborted; ops[j].Kind == felix.Check && ops[j].If == broken.op.If && bytes.Equal(ops[j].Key, broken.op.Key) && (i >= 4) == (j == 3) && j > 0 {
					want[j] = broken.want
				}
			}
			checkReplies(t, fmt.Sprintf("check %d, all or nothing %v", i+1, all), ops, group(t, cache, all, ops...), want)
		}
		checkReply(t, "afterwards", one(t, cache, get("{c}n")), counter(1))
		checkReply(t, "afterwards", one(t, cache, get("{c}x")), none)
	}
	ops := []felix.Op{check("{c}n", ifVersion(v)), check("{c}x", ifAbsent), add("{c}n", 1), add("{c}x", 1), check("{c}x", ifPresent)}
	got := group(t, cache, false, ops...)
	checkReplies(t, "checks that hold", ops, got, []felix.Reply{did, did, sum(2), sum(1), did})
	if got[2].Version <= v {
		t.Errorf("version %d after %d", got[2].Version, v)
	}
}

// testLenientGroup: without AllOrNothing an error does not stop the others.
func testLenientGroup(t *testing.T, cache felix.Cache) {
	ops := []felix.Op{set("{l}s", "abc"), add("{l}s", 1, redis), add("{l}n", 1, redis), add("", 1), set("{l}n", "2", redis, ifAbsent), get("{l}n", redis)}
	checkReplies(t, "with errors", ops, group(t, cache, false, ops...),
		[]felix.Reply{did, fails(felix.ErrNotInteger), sum(1), fails(illegal), counter(1), counter(1)})
	checkReply(t, "afterwards", one(t, cache, get("{l}n")), counter(1))
}

// testGroupShards: keys of several shards are refused, each operation of the
// group and nothing else of the batch.
func testGroupShards(t *testing.T, cache felix.Cache, shards int) {
	other := 0
	for ; slots.Shard(slots.Slot(fmt.Appendf(nil, "k%d", other)), shards) == slots.Shard(slots.Slot([]byte("{s}")), shards); other++ {
	}
	far := fmt.Sprintf("k%d", other)
	ops := []felix.Op{add("{s}1", 1), add("{s}2", 1), get(far), add("{s}1", 1), add("{s}1", 1), add(far, 1), add(far, 1)}
	rec := &recorder{shards: shards, done: make(chan struct{}), told: make([]int, len(ops)), left: len(ops)}
	rec.batch = &felix.Batch{Ops: ops, Replies: make([]felix.Reply, len(ops)), Done: rec, Deadline: time.Now().Add(patience),
		Groups: []felix.Group{{From: 1, To: 3, AllOrNothing: true}, {From: 3, To: 5, AllOrNothing: true}, {From: 5, To: 6}}}
	cache.Submit(rec.batch)
	select {
	case <-rec.done:
	case <-time.After(patience):
		t.Fatal("not all operations were told of")
	}
	cross := fails(felix.ErrCrossShard)
	checkReplies(t, "several shards", ops, rec.batch.Replies, []felix.Reply{sum(1), cross, cross, sum(2), sum(3), sum(1), sum(2)})
	checkReply(t, "of the refused one", one(t, cache, get("{s}2")), none)
}

// testLargeGroup: what does not fit into one log entry is refused as a whole.
func testLargeGroup(t *testing.T, cache felix.Cache) {
	large := string(bytes.Repeat([]byte("x"), felix.MaxValueBytes))
	var ops []felix.Op
	for i := range 5 {
		ops = append(ops, set(fmt.Sprintf("{big}%d", i), large, inValues))
	}
	for i, r := range group(t, cache, true, ops...) {
		if r.Err == nil || r.Err.Code != felix.ResourceExhausted {
			t.Fatalf("op %d of a group of 5 MiB: %s", i, show(r))
		}
	}
	checkReply(t, "afterwards", one(t, cache, get("{big}0", inValues)), none)
	for i, r := range group(t, cache, true, ops[:3]...) {
		if r.Err != nil || !r.Applied {
			t.Fatalf("op %d of a group of 3 MiB: %s", i, show(r))
		}
	}
}

// testOneMoment: nobody sees a part of a group, and no two groups mix.
func testOneMoment(t *testing.T, cache felix.Cache) {
	const keys, writers, rounds = 5, 4, 32
	ctx := within(t)
	failed := make(chan error, writers)
	for w := range writers {
		go func() {
			var why error
			for i := range rounds {
				var ops []felix.Op
				for k := range keys {
					if i%2 == 0 {
						ops = append(ops, add(fmt.Sprintf("{m}%d", k), int64(w+1)))
					} else {
						ops = append(ops, get(fmt.Sprintf("{m}%d", k)))
					}
				}
				stop := i%4 == 2
				if stop {
					ops = append(ops, check("{m}never", ifPresent))
				}
				replies, err := felix.DoGroups(ctx, cache, ops, []felix.Group{{To: int32(len(ops)), AllOrNothing: true}})
				for k := 0; err == nil && k < keys; k++ {
					if r := replies[k]; r.Err != nil || r.Aborted != stop || r.Int != replies[0].Int {
						err = fmt.Errorf("round %d, key %d: %s, of the first %s", i, k, show(r), show(replies[0]))
					}
				}
				if why == nil {
					why = err
				}
			}
			failed <- why
		}()
	}
	for range writers {
		if err := <-failed; err != nil {
			t.Error(err)
		}
	}
	checkReply(t, "the sum", one(t, cache, get("{m}0")), counter(rounds/4*(1+2+3+4)))
}

// testManyInGroup: as many operations as a request may have, on fewer keys, in one
// group.
func testManyInGroup(t *testing.T, cache felix.Cache) {
	ops := make([]felix.Op, felix.MaxBatchItems)
	for i := range ops {
		ops[i] = add(fmt.Sprintf("{many}%d", i%7919), 1)
	}
	for i, r := range group(t, cache, true, ops...) {
		if r.Err != nil || r.Int != int64(1+i/7919) {
			t.Fatalf("op %d: %s", i, show(r))
		}
	}
	ops[9999] = check("{many}x", ifPresent)
	if r := group(t, cache, true, ops...); !r[0].Aborted || r[9999].Aborted || r[9999].Err != nil {
		t.Errorf("stopped at its end: %s, %s", show(r[0]), show(r[9999]))
	}
	checkReply(t, "afterwards", one(t, cache, get("{many}0")), counter(2))
}
