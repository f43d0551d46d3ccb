package shard

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/record"
	"github.com/felix-go/felix/internal/store"
)

func set(key string, bytes int) felix.Op {
	return felix.Op{Kind: felix.Set, View: felix.ViewValue, Key: []byte(key), Value: make([]byte, bytes)}
}

// entrySizes are the payloads in the log above index.
func (r *replica) entrySizes(index uint64) (sizes []int) {
	last, err := r.log.LastIndex()
	r.c.must(err)
	entries, err := r.log.Entries(index+1, last+1, 1<<40)
	r.c.must(err)
	for _, e := range entries {
		sizes = append(sizes, len(e.GetData()))
	}
	return sizes
}

// Broken: `s.entry.bytes >= s.cfg.MaxEntryBytes` in evaluateOps (evaluate.go).
func TestALargeRequestIsSplitOverEntries(t *testing.T) {
	c, a := led(t, 3, felix.Quorum)
	a.cfg.MaxEntryBytes = 1000
	var ops []felix.Op
	for i := range 200 {
		ops = append(ops, add("hot", 1), add(fmt.Sprintf("key%03d", i), int64(i)), get(fmt.Sprintf("key%03d", i)))
	}
	before := a.lastIndex
	k := a.ops(ops...)
	c.run()
	for i := range 200 {
		k.want("hot", 3*i, int64(i+1), 0)
		k.want("cold", 3*i+1, int64(i), 0)
		k.want("get", 3*i+2, int64(i), 0)
	}
	sizes := a.entrySizes(before)
	if len(sizes) < 8 || slices.Max(sizes) > 1100 {
		t.Errorf("200 keys are in entries of %v bytes", sizes)
	}
	c.sameState()
}

// Broken: the growth of a cell in the bytes of the entry, in evaluateOps
// (evaluate.go).
func TestAnEntryCountsTheBytesOfItsLastValues(t *testing.T) {
	c, a := led(t, 1, felix.Quorum)
	a.cfg.MaxEntryBytes = 10_000
	var ops []felix.Op
	for _, size := range []int{0, 2000, 10, 3000} {
		for i := range 50 {
			ops = append(ops, set(fmt.Sprintf("key%03d", i), size))
		}
	}
	before := a.lastIndex
	k := a.ops(ops...)
	c.run()
	if !k.done {
		t.Fatal("no reply")
	}
	if sizes := a.entrySizes(before); slices.Max(sizes) > 14_000 {
		t.Errorf("entries of about 10,000 bytes have %v", sizes)
	}
}

// cold makes a cluster whose owner has these counters on disk only.
func cold(t *testing.T, n int, keys ...string) (*cluster, *replica) {
	t.Helper()
	c, a := led(t, n, felix.Quorum)
	var ops []felix.Op
	for i, key := range keys {
		ops = append(ops, add(key, int64(i+1)))
	}
	a.ops(ops...)
	c.run()
	for _, r := range c.nodes {
		r.checkpoint()
		r.budget.MaxBytes = 0
		for range 200 {
			r.advance() // trims
		}
		r.budget.MaxBytes = 1 << 30
		r.stuck = true
		for _, key := range keys {
			if _, p := r.table.Find([]byte(key)); p != store.Unloaded {
				t.Fatalf("replica %d: key %s is not on disk only: %d", r.id, key, p)
			}
		}
	}
	return c, a
}

// Broken: wake (request.go); the order of findAll (evaluate.go).
func TestLoadsKeepTheOrderOfARequest(t *testing.T) {
	c, a := cold(t, 1, "a", "b")
	k := a.ops(add("a", 10), add("new", 1), add("b", 10), add("a", 100), get("b"), get("a"))
	second := a.ops(add("a", 1000))
	other := a.ops(add("c", 1))
	c.run()
	k.waits("two keys are not loaded")
	second.waits("its key is not loaded")
	if len(a.loads) != 4 || string(a.loads[0].Key) != "a" || string(a.loads[1].Key) != "new" || string(a.loads[2].Key) != "b" {
		t.Fatalf("loads: %+v", a.loads)
	}
	a.stuck = false
	c.run()
	for i, sum := range []int64{11, 1, 12, 1111, 12, 1111} { // the second may go between
		k.want("add", i, sum, 0)
	}
	second.want("after its first add", 0, 1011, 0)
	other.want("beside it", 0, 1, 0)
	if len(a.Shard.loads) != 0 {
		t.Errorf("%d loads are left", len(a.Shard.loads))
	}
}

// Broken: the table's budget while a request waits for many loads: everything
// that is loaded is evicted before the last comes, and so on for ever.
func TestLoadsOfManyKeysUnderNoBudget(t *testing.T) {
	var keys []string
	var ops []felix.Op
	for i := range 300 {
		keys = append(keys, fmt.Sprintf("key%03d", i))
		ops = append(ops, add(keys[i], 1))
	}
	c, a := cold(t, 1, keys...)
	a.budget.MaxBytes = 0
	k := a.ops(ops...)
	loads := 0
	for ; !k.done && loads < 3000; loads++ {
		if len(a.loads) == 0 {
			a.stuck = true
			c.run()
			continue
		}
		a.load()
		a.stuck = true
		c.run()
	}
	if !k.done {
		t.Fatalf("%d loads did not do for 300 keys", loads)
	}
	for i := range keys {
		k.want("add", i, int64(i+2), 0)
	}
}

// Broken: the generation in Loaded; forgetLoads in applyEntry (ready.go).
func TestLoadsEndWithAClear(t *testing.T) {
	c, a := cold(t, 3, "a", "b")
	waiting := a.ops(add("a", 1), add("b", 1), get("a"))
	c.run()
	waiting.waits("nothing is loaded")
	k := a.submit(&Request{Kind: Clear})
	c.run()
	if !k.done || k.Err != nil {
		t.Fatalf("clear: done %v, %v", k.done, k.Err)
	}
	waiting.want("after the clear", 0, 1, 0)
	waiting.want("after the clear", 1, 1, 0)
	for _, r := range c.nodes {
		r.stuck = false
	}
	c.run() // the loads come now
	late := a.ops(add("a", 1), add("b", 1))
	c.run()
	late.want("after the loads", 0, 2, 0)
	late.want("after the loads", 1, 2, 0)
	c.sameState()
}

// Broken: takeStarted in loseLeadership (ready.go).
func TestLoadsOfARequestEvaluatedInPartWhenLeadershipIsLost(t *testing.T) {
	c, a := cold(t, 3, "a", "b")
	c.cut[a.id] = true
	k := a.ops(add("new", 1), add("a", 1)) // new has to be loaded too
	a.load()
	whole := a.ops(add("b", 1))
	if k.next != 1 {
		t.Fatalf("%d operations are evaluated, want 1", k.next)
	}
	c.elect(c.nodes[1])
	c.cut[a.id] = false
	c.tick(1)
	if a.leader {
		t.Fatal("the old leader does not step down")
	}
	k.want("evaluated", 0, 0, felix.OutcomeUnknown)
	k.want("not evaluated", 1, 0, felix.Unavailable)
	whole.waits("nothing of it was evaluated")
	c.elect(a)
	for _, r := range c.nodes {
		r.stuck = false
	}
	c.run()
	whole.want("once it is owner again", 0, 3, 0)
	get := a.ops(get("new"), get("a"))
	c.run()
	if get.reply(0).Found != felix.NoRecord {
		t.Errorf("a lost add is there: %+v", get.reply(0))
	}
	c.sameState()
}

// Broken: takeStarted in refused (evaluate.go).
func TestLoadsOfARequestWhoseFirstPartIsRefused(t *testing.T) {
	c, a := cold(t, 3, "a", "b")
	a.stuck = false
	a.ops(get("new")) // it is in memory from now on
	c.run()
	a.stuck = true
	c.stall(a, 2)
	k := a.ops(add("new", 1), add("a", 1))
	k.want("evaluated for a refused entry", 0, 0, felix.Unavailable)
	k.want("not evaluated", 1, 0, felix.Unavailable)
	a.stuck = false
	c.net = nil
	c.tick(testElectionTicks + 1)
	again := a.ops(add("new", 1), add("a", 1))
	c.run()
	again.want("once Raft takes it", 0, 1, 0)
	again.want("once Raft takes it", 1, 2, 0)
}

// Broken: the barrier in evaluate for what is in flight; `proposals[n-1].clear`
// there (evaluate.go).
func TestClearIsABarrier(t *testing.T) {
	c, a := led(t, 3, felix.Quorum)
	k := a.ops(add("k", 1))
	c.run()
	a.hold = true
	before := a.ops(add("k", 1), add("x", 1))
	clearAll := a.submit(&Request{Kind: Clear})
	count := a.submit(&Request{Kind: Count})
	after := a.ops(add("k", 5), get("x"))
	scan := a.submit(&Request{Kind: Scan, Scan: felix.ScanRequest{Limit: 10}})
	c.run()
	k.want("first", 0, 1, 0)
	before.want("before the clear", 0, 2, 0)
	if clearAll.done || after.done || count.done {
		t.Error("a clear does not wait for what is in flight")
	}
	a.hold = false
	c.run()
	if !clearAll.done || clearAll.Err != nil {
		t.Fatalf("clear: done %v, %v", clearAll.done, clearAll.Err)
	}
	after.want("after the clear", 0, 5, 0)
	if after.reply(1).Found != felix.NoRecord {
		t.Errorf("after the clear: %+v", after.reply(1))
	}
	if !scan.done || len(scan.Scanned.Items) != 1 || scan.Scanned.Items[0].Int != 5 {
		t.Errorf("scan: %+v", scan.Scanned)
	}
	if !count.done || count.Counts.Keys > 1 {
		t.Errorf("count: %+v", count.Counts)
	}
	c.sameState()
}

// Broken: `case Clear` in fail (request.go).
func TestClearOfALostOwnerIsUnknown(t *testing.T) {
	c, a := led(t, 3, felix.Quorum)
	a.ops(add("k", 1))
	c.run()
	c.cut[a.id] = true
	k := a.submit(&Request{Kind: Clear})
	second := a.submit(&Request{Kind: Clear})
	c.run()
	c.elect(c.nodes[1])
	c.cut[a.id] = false
	c.tick(1)
	if !k.done || k.Err == nil || k.Err.Code != felix.OutcomeUnknown {
		t.Errorf("clear: done %v, %v", k.done, k.Err)
	}
	if second.done {
		t.Errorf("a clear that was not evaluated: %v", second.Err)
	}
	get := c.nodes[1].ops(get("k"))
	c.run()
	get.want("get", 0, 1, 0)
}

// Broken: the unloaded entries of the overlay in look (request.go). A follower
// applies deletions and writes of counters whose values it has on disk only.
func TestScanLoadsWhatAFollowerKnowsInPart(t *testing.T) {
	c, a := cold(t, 3, "a", "b", "c")
	b := c.nodes[1]
	a.stuck = false
	k := a.ops(add("a", 10), felix.Op{Kind: felix.Delete, Key: []byte("b")}, add("d", 1))
	c.run()
	k.want("add", 0, 11, 0)
	c.elect(b)
	scan := b.submit(&Request{Kind: Scan, Scan: felix.ScanRequest{Limit: 10}})
	c.run()
	if scan.done || len(b.loads) == 0 {
		t.Fatalf("done %v, with %d loads", scan.done, len(b.loads))
	}
	for _, r := range c.nodes {
		r.stuck = false
	}
	c.run()
	var got []string
	for _, item := range scan.Scanned.Items {
		got = append(got, fmt.Sprintf("%s=%d", item.Key, item.Int))
	}
	if s := strings.Join(got, " "); !scan.done || s != "a=11 c=3 d=1" {
		t.Errorf("scan: done %v, %s", scan.done, s)
	}
}

// Broken: expire in Advance (shard.go); `r.Deadline > s.now.Mono` (request.go).
func TestDeadlines(t *testing.T) {
	c, a := led(t, 3, felix.Quorum)
	k := a.ops(add("max", 1<<62))
	c.run()
	k.want("add", 0, 1<<62, 0)
	c.cut[a.id] = true
	with := func(r *Request, after time.Duration) *call {
		r.Deadline = c.mono + after
		k := a.submit(r)
		a.advance()
		return k
	}
	written := with(opsRequest(add("k", 1), get("k"), add("max", 1<<62)), time.Second)
	count := with(&Request{Kind: Count}, time.Second)
	scan := with(&Request{Kind: Scan, Scan: felix.ScanRequest{Limit: 1}}, time.Second)
	a.cfg.MaxInflightBytes = 1
	queued := with(opsRequest(add("k", 1), get("k")), time.Second)
	later := with(opsRequest(add("k", 1)), 2*time.Second)
	follower := c.nodes[1].submit(opsRequest(add("k", 1)))
	follower.Deadline = c.mono + time.Second
	c.mono += time.Second - 1
	c.run()
	for _, k := range []*call{written, count, scan, queued, later, follower} {
		k.waits("before its deadline")
	}
	c.mono++
	c.run()
	written.want("written", 0, 0, felix.OutcomeUnknown)
	written.want("read", 1, 0, felix.Unavailable)
	written.want("refused", 2, 0, felix.Unavailable)
	for _, k := range []*call{count, scan} {
		if !k.done || k.Err == nil || k.Err.Code != felix.Unavailable {
			t.Errorf("kind %d: done %v, %v", k.Kind, k.done, k.Err)
		}
	}
	queued.want("not evaluated", 0, 0, felix.ResourceExhausted)
	queued.want("not evaluated", 1, 0, felix.ResourceExhausted)
	follower.want("without an owner", 0, 0, felix.Unavailable)
	later.waits("its deadline is later")
	if err := queued.reply(0).Err; err.RetryAfter == 0 {
		t.Errorf("%v says not when to try again", err)
	}
	c.cut[a.id] = false
	a.cfg.MaxInflightBytes = 1 << 20
	c.run()
	c.tick(3)
	later.want("in time", 0, 2, 0)
}

// Broken: any of the loops in Close (shard.go).
func TestCloseAnswersEverything(t *testing.T) {
	c, a := cold(t, 3, "a", "b")
	c.cut[a.id] = true
	a.stuck = false
	written := a.ops(add("x", 1))
	c.run()
	a.stuck = true
	count := a.submit(&Request{Kind: Count})
	read := a.ops(get("x"))
	loading := a.ops(add("a", 1), add("b", 1))
	a.cfg.MaxInflightBytes = 1
	queued := a.ops(add("x", 1))
	gone := felix.Errorf(felix.CacheNotFound, "gone")
	a.Close(gone, &a.out)
	a.take()
	written.want("written", 0, 0, felix.OutcomeUnknown)
	read.want("read", 0, 0, felix.Unavailable)
	loading.want("waiting for a load", 0, 0, felix.CacheNotFound)
	loading.want("waiting for a load", 1, 0, felix.CacheNotFound)
	queued.want("queued", 0, 0, felix.CacheNotFound)
	if !count.done || count.Err == nil {
		t.Errorf("count: done %v, %v", count.done, count.Err)
	}
	if used := a.budget.UsedBytes(); used != 0 {
		t.Errorf("a closed shard keeps %d bytes of the budget", used)
	}
	for _, k := range c.calls {
		if !k.done {
			t.Errorf("a request is not answered: %+v", k.Request)
		}
	}
}

// Broken: Sweep in evaluateOps (evaluate.go).
func TestSweepDeletesWhatHasExpired(t *testing.T) {
	c, a := led(t, 3, felix.Quorum)
	expiring := add("k", 1)
	expiring.TTL, expiring.ExpiryMillis = felix.TTLIn, 1000
	k := a.ops(expiring, add("stays", 1))
	c.run()
	k.want("add", 0, 1, 0)
	sweep := func() {
		q := opsRequest(get("k"), get("stays"), get("none"))
		q.Kind = Sweep
		k := a.submit(q)
		c.run()
		if !k.done || k.reply(0).Err != nil {
			t.Fatalf("sweep: done %v, %+v", k.done, k.reply(0))
		}
	}
	sweep()
	if n := a.table.Counts(); n != (record.Counts{Counters: 2, Keys: 2}) {
		t.Errorf("before its time: %+v", n)
	}
	c.tick(11)
	k = a.ops(get("k"))
	c.run()
	if k.reply(0).Found != felix.NoRecord || a.table.Counts().Counters != 2 {
		t.Errorf("expired: %+v, %+v", k.reply(0), a.table.Counts())
	}
	sweep()
	if n := a.table.Counts(); n != (record.Counts{Counters: 1, Keys: 1}) {
		t.Errorf("after the sweep: %+v", n)
	}
	c.sameState()
}

// TestStepIsDeterministic: the same events give the same outputs. The table's
// hashes and Go's maps differ between the two runs.
func TestStepIsDeterministic(t *testing.T) {
	trace := func() (s string) {
		rng := rand.New(rand.NewPCG(1, 2))
		c, a := cold(t, 1, "a", "b", "c", "d", "e", "f", "g", "h")
		var order []*call
		for range 30 {
			order = append(order, a.ops(add(string(rune('a'+rng.IntN(8))), 1), add(string(rune('a'+rng.IntN(8))), 1)))
		}
		k := a.submit(&Request{Kind: Clear})
		c.run()
		for _, r := range append(order, k) {
			s += fmt.Sprintf("%v %d ", r.done, r.dep)
			if r.Batch != nil {
				s += fmt.Sprintf("%+v\n", r.Batch.Replies)
			}
		}
		for range 20 {
			a.ops(get(string(rune('a' + rng.IntN(8)))))
		}
		return s
	}
	want := trace()
	for range 5 {
		if got := trace(); got != want {
			t.Fatalf("the same events gave\n%s\nand\n%s", want, got)
		}
	}
}

// What waits for an election may not take all the memory there is.
//
// Broken: boundQueue in Advance (shard.go); any part of it (request.go).
func TestQueueIsBoundedWithoutAnOwner(t *testing.T) {
	c := newCluster(t, 3, felix.Quorum, 1)
	a := c.nodes[0]
	a.cfg.MaxInflightBytes = 1000
	ask := func(bytes int64) *call {
		q := opsRequest(add("k", 1))
		q.Bytes = bytes
		return a.submit(q)
	}
	large, next := ask(5000), ask(1)
	a.advance()
	large.waits("the only one may be as large as it is")
	next.want("behind a large one", 0, 0, felix.ResourceExhausted)
	a.SetEligible(false) // what waits is held
	a.advance()
	more := ask(10)
	a.advance()
	more.want("behind held ones", 0, 0, felix.ResourceExhausted)
	a.SetEligible(true)
	c.elect(a)
	large.want("once there is an owner", 0, 1, 0)
	many := []*call{ask(600), ask(600), ask(600)}
	c.run()
	for i, k := range many {
		k.want("an owner evaluates", 0, int64(i)+2, 0)
	}
}
