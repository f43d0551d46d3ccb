package broker

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/peer"
	"github.com/felix-go/felix/internal/placement"
	"github.com/felix-go/felix/internal/shard"
)

// scriptedNet is a network on which each call goes as the test says.
type scriptedNet struct {
	noPeers
	mu    sync.Mutex
	nodes []uint64 // asked, in order
	do    func(attempt int, node uint64, c *peer.Call) peer.Outcome
}

func (n *scriptedNet) Forward(node uint64, c *peer.Call) {
	n.mu.Lock()
	n.nodes = append(n.nodes, node)
	attempt := len(n.nodes)
	n.mu.Unlock()
	c.Owner, c.Err = 0, nil
	c.Outcome = n.do(attempt, node, c)
	c.Done(c)
}

func (n *scriptedNet) asked() []uint64 {
	n.mu.Lock()
	defer n.mu.Unlock()
	return append([]uint64(nil), n.nodes...)
}

// answer gives a call the answer that the tests expect.
func answer(c *peer.Call) peer.Outcome {
	for _, p := range c.Positions {
		c.Batch.Replies[p] = felix.Reply{Int: 42, Applied: true}
	}
	c.Page = felix.ScanPage{Items: []felix.ScanItem{{Key: []byte("k"), Int: 42}}, NowMillis: 7}
	c.Count, c.Index = felix.RecordCount{Counters: 42, Keys: 42}, 42
	return peer.Answered
}

// openElsewhere opens a broker with a cache of one shard of which it has no
// replica any more; nodes 2 and 3 have.
func openElsewhere(t *testing.T, n network, change func(*Options)) (*Broker, *cache) {
	t.Helper()
	b, c := openOn(t, vfs.NewMem(), 1, func(o *Options) {
		o.net = func(*Broker) network { return n }
		if change != nil {
			change(o)
		}
	})
	t.Cleanup(func() {
		if err := closeBroker(b); err != nil {
			t.Error(err)
		}
	})
	placeShard(t, b, c.(*cache).shards[0].id, placement.Shard{NextRaft: 4, Prefer: 2, Replicas: []placement.Replica{
		{Raft: 2, Node: 2, Want: placement.Voter, Have: placement.Voter}, {Raft: 3, Node: 3, Want: placement.Voter, Have: placement.Voter}}})
	return b, c.(*cache)
}

// errorOf is the one error of the replies or of the call, nil if there is none.
func errorOf(t *testing.T, replies []felix.Reply, err error) *felix.Error {
	t.Helper()
	if err != nil {
		return felix.AsError(err)
	}
	for _, r := range replies {
		if r.Err != nil {
			return r.Err
		}
		if r.Int != 42 {
			t.Errorf("a reply is %+v", r)
		}
	}
	return nil
}

var get = felix.Op{Kind: felix.Get, Key: []byte("k")}

// forwarded are the kinds of requests, each with what runs one and whether it
// changes anything.
var forwarded = []struct {
	name    string
	mutates bool
	run     func(t *testing.T, c *cache) *felix.Error
}{
	{"a write", true, func(t *testing.T, c *cache) *felix.Error {
		replies, err := felix.Do(context.Background(), c, add("k", 1))
		return errorOf(t, replies, err)
	}},
	{"reads", false, func(t *testing.T, c *cache) *felix.Error {
		replies, err := felix.Do(context.Background(), c, get, get)
		return errorOf(t, replies, err)
	}},
	{"a scan", false, func(t *testing.T, c *cache) *felix.Error {
		page, err := c.Scan(context.Background(), felix.ScanRequest{Limit: 10})
		if err == nil && (len(page.Items) != 1 || page.Items[0].Int != 42 || page.NowMillis != 7) {
			t.Errorf("the page is %+v", page)
		}
		return errorOf(t, nil, err)
	}},
	{"a count", false, func(t *testing.T, c *cache) *felix.Error {
		n, err := c.Count(context.Background())
		if err == nil && n.Counters != 42 {
			t.Errorf("the count is %+v", n)
		}
		return errorOf(t, nil, err)
	}},
	{"a clear", true, func(t *testing.T, c *cache) *felix.Error { return errorOf(t, nil, c.Clear(context.Background())) }},
	{"a barrier", false, func(t *testing.T, c *cache) *felix.Error {
		all, err := c.broadcast(context.Background(), func() *shard.Request { return &shard.Request{Kind: shard.Barrier} })
		if err == nil {
			err = await(context.Background(), all[0])
		}
		if err == nil && all[0].Index != 42 {
			t.Errorf("the index is %d", all[0].Index)
		}
		return errorOf(t, nil, err)
	}},
}

// TestOnlyWhatWasNotEvaluatedIsSentAgain: each outcome of a first attempt, for
// each kind of request: what was provably not evaluated goes elsewhere, what
// changes nothing is asked again, and a change that was lost is told as unknown,
// and never sent twice.
func TestOnlyWhatWasNotEvaluatedIsSentAgain(t *testing.T) {
	t.Parallel()
	refusal := &felix.Error{Code: felix.ResourceExhausted, Message: "full"}
	for _, first := range []struct {
		name  string
		do    func(c *peer.Call) peer.Outcome
		again bool // whatever it is
		reads bool // again, if it changes nothing
		code  felix.Code
		asked []uint64
	}{
		{name: "answered", do: answer},
		{name: "refused", do: func(c *peer.Call) peer.Outcome { c.Err = refusal; return peer.Answered }, code: felix.ResourceExhausted},
		{name: "not sent", do: func(*peer.Call) peer.Outcome { return peer.NotSent }, again: true, asked: []uint64{2, 3}},
		{name: "not the owner", do: func(*peer.Call) peer.Outcome { return peer.NotOwner }, again: true, asked: []uint64{2, 3}},
		{name: "not the owner, but 5", do: func(c *peer.Call) peer.Outcome { c.Owner = 5; return peer.NotOwner }, again: true, asked: []uint64{2, 5}},
		{name: "not the owner, but you", do: func(c *peer.Call) peer.Outcome { c.Owner = 1; return peer.NotOwner }, again: true, asked: []uint64{2, 3}},
		{name: "expired", do: func(*peer.Call) peer.Outcome { return peer.Expired }, again: true, asked: []uint64{2, 3}},
		{name: "lost", do: func(*peer.Call) peer.Outcome { return peer.Lost }, reads: true, code: felix.OutcomeUnknown, asked: []uint64{2, 3}},
	} {
		for _, kind := range forwarded {
			t.Run(first.name+"/"+kind.name, func(t *testing.T) {
				t.Parallel()
				n := &scriptedNet{do: func(attempt int, _ uint64, c *peer.Call) peer.Outcome {
					if attempt == 1 {
						return first.do(c)
					}
					return answer(c)
				}}
				b, c := openElsewhere(t, n, nil)
				err := kind.run(t, c)
				again := first.again || first.reads && !kind.mutates
				switch {
				case (first.code == 0 || again) != (err == nil) || err != nil && err.Code != first.code:
					t.Errorf("the error is %v", err)
				case again && fmt.Sprint(n.asked()) != fmt.Sprint(first.asked):
					t.Errorf("nodes %v were asked, want %v", n.asked(), first.asked)
				case !again && len(n.asked()) != 1:
					t.Errorf("nodes %v were asked, want one", n.asked())
				}
				if left := b.Stats().InflightBytes; left != 0 {
					t.Errorf("%d bytes are still in flight", left)
				}
			})
		}
	}
}

// TestLostBatchTellsOperationsApart: of a batch that was lost only those that
// change something are unknown.
func TestLostBatchTellsOperationsApart(t *testing.T) {
	t.Parallel()
	n := &scriptedNet{do: func(int, uint64, *peer.Call) peer.Outcome { return peer.Lost }}
	_, c := openElsewhere(t, n, nil)
	batch, d := submit(c, get, add("k", 1), get)
	<-d.done
	for i, want := range []felix.Code{felix.Unavailable, felix.OutcomeUnknown, felix.Unavailable} {
		if err := batch.Replies[i].Err; err == nil || err.Code != want {
			t.Errorf("operation %d: %v, want %v", i, err, want)
		}
	}
	if len(n.asked()) != 1 {
		t.Errorf("nodes %v were asked", n.asked())
	}
}

// TestRequestsEndInTime: whatever stands in the way, a request ends at its
// deadline, as not applied, and asks ever less often until then.
func TestRequestsEndInTime(t *testing.T) {
	t.Parallel()
	const timeout = 300 * time.Millisecond
	for _, v := range []struct {
		name    string
		outcome peer.Outcome
		asks    []uint64
		want    *felix.Error
		asked   int
	}{
		{"nobody owns it", peer.NotOwner, []uint64{2, 3}, errUnreached, 12},
		{"no link", peer.NotSent, []uint64{2}, errUnreached, 12},
		{"reads are lost", peer.Lost, []uint64{2}, errUnread, 12},
		{"nobody to ask", peer.Lost, nil, errNoOwner, 0},
	} {
		t.Run(v.name, func(t *testing.T) {
			t.Parallel()
			n := &scriptedNet{do: func(int, uint64, *peer.Call) peer.Outcome { return v.outcome }}
			b, c := openElsewhere(t, n, func(o *Options) { o.RequestTimeout = timeout })
			c.shards[0].setAsks(v.asks)
			began := b.mono()
			batch, d := submit(c, get)
			<-d.done
			if took := b.mono() - began; took < timeout {
				t.Errorf("it ended after %v", took)
			}
			if err := batch.Replies[0].Err; err != v.want && (v.outcome != peer.Lost || err != errUnreached) {
				t.Errorf("the error is %v", err)
			}
			if asked := len(n.asked()); asked > v.asked || asked == 0 && v.asked > 0 {
				t.Errorf("it was asked %d times", asked)
			}
		})
	}
}

// TestParkedRequestsGo: requests that wait for an owner go as soon as one is
// known; those of a cache that is deleted and of a broker that stops
// are refused.
func TestParkedRequestsGo(t *testing.T) {
	t.Parallel()
	for _, v := range []struct {
		name string
		news func(b *Broker, c *cache)
		want *felix.Error
	}{
		{"an owner", func(_ *Broker, c *cache) { c.shards[0].setOwner(3) }, nil},
		{"replicas", func(_ *Broker, c *cache) { c.shards[0].setAsks([]uint64{3}) }, nil},
		{"a deletion", func(b *Broker, c *cache) { b.dropRoute(c.shards[0], errCacheGone) }, errCacheGone},
		{"a stop", func(b *Broker, _ *cache) { b.stop() }, errStopping},
	} {
		t.Run(v.name, func(t *testing.T) {
			t.Parallel()
			n := &scriptedNet{do: func(_ int, _ uint64, c *peer.Call) peer.Outcome { return answer(c) }}
			b, c := openElsewhere(t, n, nil)
			c.shards[0].setAsks(nil)
			batch, d := submit(c, add("k", 1), get)
			if isDone(d) {
				t.Fatal("it did not wait")
			}
			rt := c.shards[0]
			eventually(t, "it is parked, for long", func() bool {
				rt.mu.Lock()
				defer rt.mu.Unlock()
				for _, trip := range rt.parked {
					trip.due = time.Hour
				}
				return len(rt.parked) == 1
			})
			v.news(b, c)
			<-d.done
			for _, r := range batch.Replies {
				if r.Err != v.want || v.want == nil && r.Int != 42 {
					t.Errorf("%+v", r)
				}
			}
			if v.want == nil {
				return
			}
			batch, d = submit(c, get) // later ones, too
			<-d.done
			if err := batch.Replies[0].Err; err != v.want {
				t.Errorf("a later one: %v", err)
			}
		})
	}
}

// TestMovedReplicaReturnsRequests: when a replica leaves this broker, what it had
// not evaluated goes to where the shard is.
func TestMovedReplicaReturnsRequests(t *testing.T) {
	t.Parallel()
	n := &scriptedNet{do: func(_ int, _ uint64, c *peer.Call) peer.Outcome { return answer(c) }}
	b, c := openOn(t, vfs.NewMem(), 1, func(o *Options) { o.net = func(*Broker) network { return n } })
	rt := c.(*cache).shards[0]
	r := rt.here.Load()
	var first, second *told
	var batches [2]*felix.Batch
	r.worker.callWait(func() {
		batches[0], first = submit(c, add("k", 1))
		r.worker.drop(r, nil)
		rt.setLocal(nil)
		rt.setOwner(2)
		batches[1], second = submit(c, add("k", 1))
	})
	<-first.done
	<-second.done
	for _, batch := range batches {
		if reply := batch.Replies[0]; reply.Err != nil || reply.Int != 42 {
			t.Errorf("%+v", reply)
		}
	}
	b.mu.Lock()
	delete(b.replicas, r.id)
	b.mu.Unlock()
	if err := closeBroker(b); err != nil {
		t.Error(err)
	}
}

// TestOutcomesAreExact: whatever happens to calls, every operation is told once,
// applied at most once, and neither an acknowledged one is missing nor one that
// was not applied, by its answer, there.
func TestOutcomesAreExact(t *testing.T) {
	t.Parallel()
	const submitters, each = 8, 150
	var mu sync.Mutex
	random, applied := rand.New(rand.NewPCG(1, 2)), map[string]int{}
	do := func(_ int, _ uint64, c *peer.Call) peer.Outcome {
		mu.Lock()
		defer mu.Unlock()
		outcome := peer.Outcome(random.IntN(5))
		if outcome == peer.NotOwner {
			c.Owner = uint64(random.IntN(4))
		}
		if outcome == peer.Answered || outcome == peer.Lost && random.IntN(2) == 0 {
			for _, p := range c.Positions {
				applied[string(c.Batch.Ops[p].Key)]++
			}
			answer(c)
		}
		return outcome
	}
	b, c := openElsewhere(t, &scriptedNet{do: do}, nil)
	var all sync.WaitGroup
	var unknown atomic.Int64
	for s := range submitters {
		all.Go(func() {
			for i := range each {
				keys := []string{fmt.Sprint(s, "/", i, "a"), fmt.Sprint(s, "/", i, "b")}
				batch, d := submit(c, add(keys[0], 1), add(keys[1], 1))
				<-d.done
				if ops := d.twice(); ops != nil {
					t.Errorf("operations %v were not told once", ops)
				}
				mu.Lock()
				for n, key := range keys {
					err := batch.Replies[n].Err
					switch times := applied[key]; {
					case err == nil && times == 1:
					case err != nil && err.MayBeApplied() && times <= 1:
						unknown.Add(1)
					case err != nil && !err.MayBeApplied() && times == 0:
					default:
						t.Errorf("%s was applied %d times and answered with %v", key, times, err)
					}
				}
				mu.Unlock()
			}
		})
	}
	all.Wait()
	if n := unknown.Load(); n == 0 || n == 2*submitters*each {
		t.Errorf("%d outcomes were unknown", n)
	}
	if left := b.Stats().InflightBytes; left != 0 {
		t.Errorf("%d bytes are still in flight", left)
	}
}

// answers is a peer.Link for tests.
type answers chan *peer.Call

func (a answers) Answer(calls ...*peer.Call) {
	for _, c := range calls {
		a <- c
	}
}

// call has a broker answer a call as if it came from another one.
func call(b *Broker, c *peer.Call) *peer.Call {
	got := make(answers, 1)
	c.Deadline = b.mono() + time.Minute
	b.takeCalls(got, []*peer.Call{c})
	return <-got
}

func opsCall(id uint64, ops ...felix.Op) *peer.Call {
	c := &peer.Call{Kind: peer.CallOps, Shard: id, Batch: &felix.Batch{Ops: ops, Replies: make([]felix.Reply, len(ops))}}
	for i := range ops {
		c.Positions = append(c.Positions, int32(i))
	}
	return c
}

// TestCallsOfOthersAreAnswered: each kind of call from another broker, and why
// some are not evaluated.
func TestCallsOfOthersAreAnswered(t *testing.T) {
	t.Parallel()
	b, opened := openOn(t, vfs.NewMem(), 1, func(o *Options) { o.InflightBytes = 64 << 10 })
	rt := opened.(*cache).shards[0]
	id := rt.id
	if c := call(b, opsCall(id, add("a", 1), add("a", 2))); c.Outcome != peer.Answered || c.Err != nil || c.Batch.Replies[1].Int != 3 {
		t.Errorf("operations: %+v", c)
	}
	scan := &peer.Call{Kind: peer.CallScan, Shard: id, Scan: felix.ScanRequest{View: felix.ViewCounter, Limit: 5}}
	if c := call(b, scan); c.Outcome != peer.Answered || c.Err != nil || len(c.Page.Items) != 1 || c.Page.NowMillis == 0 {
		t.Errorf("a scan: %+v", c)
	}
	if c := call(b, &peer.Call{Kind: peer.CallCount, Shard: id}); c.Outcome != peer.Answered || c.Count.Counters != 1 {
		t.Errorf("a count: %+v", c)
	}
	if c := call(b, &peer.Call{Kind: peer.CallBarrier, Shard: id}); c.Outcome != peer.Answered || c.Index < 2 {
		t.Errorf("a barrier: %+v", c)
	}
	if c := call(b, &peer.Call{Kind: peer.CallClear, Shard: id}); c.Outcome != peer.Answered || c.Err != nil {
		t.Errorf("a clear: %+v", c)
	}
	if c := call(b, opsCall(id, add("a", 1), felix.Op{Kind: felix.Add})); c.Err == nil || c.Err.Code != felix.InvalidArgument {
		t.Errorf("an illegal operation: %+v", c.Err)
	}
	large := felix.Op{Kind: felix.Set, View: felix.ViewValue, Key: []byte("l"), Value: make([]byte, 100_000)}
	if c := call(b, opsCall(id, add("a", 1), large)); c.Err != errTooMuch {
		t.Errorf("a large one: %v", c.Err)
	}
	if r := mustDo(t, opened, add("a", 0)); r[0].Int != 0 {
		t.Errorf("what was refused was applied: %d", r[0].Int)
	}
	if c := call(b, opsCall(id+1000, add("a", 1))); c.Outcome != peer.NotOwner || c.Owner != 0 {
		t.Errorf("an unknown shard: %+v", c)
	}
	b.release(rt, nil)
	rt.setOwner(3)
	if c := call(b, opsCall(id, add("a", 1))); c.Outcome != peer.NotOwner || c.Owner != 3 {
		t.Errorf("a shard that has moved: %+v", c)
	}
	eventually(t, "nothing is in flight", func() bool { return b.Stats().InflightBytes == 0 })
	if err := closeBroker(b); err != nil {
		t.Error(err)
	}
	if c := call(b, opsCall(metaShard, add("a", 1))); c.Outcome != peer.NotOwner {
		t.Errorf("a broker that has stopped: %+v", c)
	}
}
