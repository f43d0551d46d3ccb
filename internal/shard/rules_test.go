package shard

import (
	"fmt"
	"math"
	"testing"
	"time"

	"go.etcd.io/raft/v3/raftpb"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/record"
)

// Each test here is named after a rule of design.md section 3, and says which
// line it misses when that is broken (each was broken once).

// Broken: `applied >= firstOwn` in Owns (shard.go).
func TestRule1NothingBeforeTheOwnFirstEntryIsApplied(t *testing.T) {
	c, a := led(t, 3, felix.Quorum)
	b := c.nodes[1]
	k := a.ops(add("k", 5))
	c.run()
	k.want("first add", 0, 5, 0)
	// The next add is on a majority, but b does not know that it is committed.
	c.block = func(m *raftpb.Message) bool { return m.GetFrom() == a.id && m.GetTo() == b.id && m.GetCommit() > 3 }
	k = a.ops(add("k", 7))
	c.run()
	k.want("second add", 0, 12, 0)
	a.crash()
	c.block = types(raftpb.MsgAppResp)
	c.net = nil
	c.elect(b)
	k = b.ops(add("k", 1), get("k"))
	c.run()
	if k.waits("a leader that may lack committed entries"); b.Owns() || b.Stats().Operations != 0 {
		t.Errorf("a new leader evaluates before its first entry is applied")
	}
	c.block = nil
	c.run()
	k.want("add at the new owner", 0, 13, 0)
	k.want("get at the new owner", 1, 13, 0)
}

// Broken: DisableProposalForwarding in New (shard.go), leader in Owns.
func TestRule1NothingIsForwarded(t *testing.T) {
	c, a := led(t, 3, felix.Quorum)
	b := c.nodes[1]
	if err := b.node.Propose([]byte("x")); err == nil {
		t.Error("a follower takes a proposal")
	}
	k := b.ops(add("k", 1))
	c.run()
	k.waits("a follower")
	if len(a.proposals) != 0 || a.lastIndex != b.lastIndex || b.Stats().Operations != 0 {
		t.Error("a follower's request moved the log")
	}
	c.elect(b)
	k.want("once it is owner", 0, 1, 0)
}

// Broken: `s.inflight >= s.cfg.MaxInflightBytes` in evaluate (evaluate.go).
func TestRule2TheBudgetIsCheckedBeforeEvaluating(t *testing.T) {
	c, a := led(t, 1, felix.Quorum)
	a.cfg.MaxInflightBytes = 300
	a.hold = true
	var calls []*call
	for i := range 100 {
		calls = append(calls, a.ops(add("hot", 1), add(fmt.Sprintf("key%02d", i), 1)))
	}
	c.run()
	evaluated := a.Stats().Operations
	if evaluated < 2 || evaluated > 40 || a.inflight < 300 || a.inflight > 600 {
		t.Errorf("with room for 300 bytes, %d operations and %d bytes are in flight", evaluated, a.inflight)
	}
	for i := range 100 {
		if _, p := a.table.Find(fmt.Appendf(nil, "key%02d", i)); p == 0 != (i < int(evaluated/2)) {
			t.Errorf("key %d: presence %d, with %d operations evaluated", i, p, evaluated)
		}
	}
	a.hold = false
	c.run()
	for i, k := range calls {
		k.want("add", 0, int64(i+1), 0)
	}
	if a.inflight != 0 {
		t.Errorf("at rest %d bytes are in flight", a.inflight)
	}
}

// stall makes a's Raft refuse proposals: a transfer that does not come about.
func (c *cluster) stall(a *replica, to uint64) {
	c.block = types(raftpb.MsgTimeoutNow)
	c.must(a.Step(&raftpb.Message{Type: raftpb.MsgTransferLeader.Enum(), From: new(to), To: new(a.id)}))
}

// Broken: `s.discard()` in refused; there, `s.firstOwn = max(…)` in discard;
// `r.next = 0` in refused (evaluate.go).
func TestRule2ARefusedProposalPoisonsNothing(t *testing.T) {
	c, a := led(t, 3, felix.Quorum)
	k := a.ops(add("k", 1))
	c.run()
	k.want("first add", 0, 1, 0)

	for _, r := range c.nodes {
		r.hold = true
	}
	accepted := a.ops(add("k", 10))
	c.run()
	c.stall(a, 2)
	refused, version := a.ops(add("k", 100), get("k"), add("k", math.MaxInt64), add("other", 1)), a.nextVersion
	refused.want("refused add", 0, 0, felix.Unavailable)
	refused.want("refused get", 1, 0, felix.Unavailable)
	refused.want("refusal in a refused entry", 2, 0, felix.Unavailable)
	if a.nextVersion != version || a.Owns() {
		t.Error("evaluation goes on before what was accepted is applied")
	}
	later := a.ops(add("k", 1000))
	for _, r := range c.nodes {
		r.hold = false
	}
	c.run()
	accepted.want("the accepted add", 0, 11, 0)
	if later.done {
		later.want("while Raft refuses", 0, 0, felix.Unavailable)
		later = a.ops(add("k", 1000))
	}
	c.net = nil
	c.tick(testElectionTicks + 1) // the transfer is given up
	if !a.leader {
		t.Fatal("the leader was lost")
	}
	if later.done {
		later = a.ops(add("k", 1000))
	}
	k = a.ops(get("k"), get("other"))
	c.run()
	later.want("add afterwards", 0, 1011, 0)
	k.want("get afterwards", 0, 1011, 0)
	if k.reply(1).Found != felix.NoRecord {
		t.Errorf("what was refused is there: %+v", k.reply(1))
	}
	c.sameState()
}

// Broken: `if r.first == 0 || r.first == e.index` in refused (evaluate.go) made
// unconditional.
func TestRule2ARequestRefusedInPartIsUnknown(t *testing.T) {
	c, a := led(t, 3, felix.Quorum)
	a.cfg.MaxEntryBytes = 60
	a.cfg.MaxInflightBytes = 1 // one entry at a time
	q := opsRequest(add("a", 1), add("b", 1), add("c", 1), add("d", 1), add("e", 1))
	for _, r := range c.nodes {
		r.hold = true
	}
	k := a.submit(q)
	c.run()
	if q.next == 0 || q.next == 5 {
		t.Fatalf("%d of 5 operations are in the first entry", q.next)
	}
	first := q.next
	c.stall(a, 2)
	for _, r := range c.nodes {
		r.hold = false
	}
	c.run()
	for i := range 5 {
		code := felix.OutcomeUnknown // the request has writes in an entry that was taken
		if i >= first && k.reply(i).Err.Code == felix.Unavailable {
			code = felix.Unavailable // never evaluated
		}
		k.want("split add", i, 0, code)
	}
	k.want("the last one, which no entry had room for", 4, 0, felix.Unavailable)
	c.net = nil
	c.tick(testElectionTicks + 1)
	for i, key := range []string{"a", "b", "c", "d", "e"} {
		k := a.ops(get(key))
		c.run()
		if found := k.reply(0).Found != felix.NoRecord; found != (i < first) {
			t.Errorf("operation %d of %d accepted: applied %v", i, first, found)
		}
	}
}

// Broken: `r.dep <= s.commit` in release (request.go).
func TestRule3NoReplyBeforeAMajorityHasIt(t *testing.T) {
	for _, n := range []int{1, 3, 5} {
		c, a := led(t, n, felix.Quorum)
		for _, r := range c.nodes {
			r.hold = true
		}
		k := a.ops(add("k", 1))
		c.run()
		k.waits("on no disk")
		// All but one of a majority have it.
		for _, r := range c.nodes[:n/2] {
			r.hold = false
		}
		c.run()
		k.waits("on no majority")
		c.nodes[n/2].hold = false
		c.run()
		k.want("on a majority", 0, 1, 0)
	}
}

// Broken: release moved behind apply (r.dep <= applied instead of commit).
func TestRule3AMajorityWithoutTheOwnerIsEnough(t *testing.T) {
	c, a := led(t, 3, felix.Quorum)
	a.hold = true
	k := a.ops(add("k", 1))
	c.run()
	k.want("durable on the two followers only", 0, 1, 0)
	if a.table.Counts().Counters != 0 {
		t.Error("the owner has applied what it does not have on disk")
	}
	k = a.ops(add("k", 1))
	c.run()
	k.want("evaluated over what is in flight", 0, 2, 0)
	a.hold = false
	c.run()
	if a.table.Counts().Counters != 1 || len(a.proposals) != 0 {
		t.Error("nothing was applied in the end")
	}
	c.sameState()
}

// Broken: the call of loseLeadership in handleRole (ready.go); its `if r.next
// > 0`; the cases of fail (request.go).
func TestRule3LostLeadership(t *testing.T) {
	c, a := led(t, 3, felix.Quorum)
	b := c.nodes[1]
	k := a.ops(add("k", 1), add("max", math.MaxInt64))
	c.run()
	k.want("first add", 0, 1, 0)

	c.cut[a.id] = true
	a.cfg.MaxInflightBytes = 1
	written := a.submit(opsRequest(add("k", 1), add("max", 1), get("k")))
	read := a.ops(get("k"))
	queued := a.ops(add("k", 100)) // there is no room for it
	c.run()
	written.waits("without a majority")
	read.waits("without a majority")

	c.elect(b)
	c.cut[a.id] = false
	c.tick(1)
	if a.leader {
		t.Fatal("the old leader does not step down")
	}
	written.want("a write in flight", 0, 0, felix.OutcomeUnknown)
	written.want("a refusal", 1, 0, felix.Unavailable)
	written.want("a get beside a write", 2, 0, felix.Unavailable)
	read.want("a get", 0, 0, felix.Unavailable)
	queued.waits("what was not evaluated")
	if len(a.proposals) != 0 || a.inflight != 0 {
		t.Error("proposals are left")
	}
	a.cfg.MaxInflightBytes = 1 << 20
	c.elect(a)
	queued.want("what waited for an owner", 0, 101, 0)
	c.sameState()
}

// Broken: `if r.next > 0` in loseLeadership (ready.go).
func TestRule3LostLeadershipInTheMiddleOfARequest(t *testing.T) {
	c, a := led(t, 3, felix.Quorum)
	a.cfg.MaxEntryBytes, a.cfg.MaxInflightBytes = 60, 1
	c.cut[a.id] = true
	k := a.ops(add("a", 1), add("b", 1), add("c", 1), add("d", 1))
	c.run()
	first := k.next
	if first == 0 || first == 4 || len(a.queue) != 1 {
		t.Fatalf("%d of 4 operations are in the first entry", first)
	}
	c.elect(c.nodes[1])
	c.cut[a.id] = false
	c.tick(1)
	for i := range 4 {
		code := felix.Unavailable
		if i < first {
			code = felix.OutcomeUnknown
		}
		k.want("split add", i, 0, code)
	}
	c.sameState()
}

// Broken: the call of loseLeadership in handleRole (ready.go), or the commit
// index and release before it.
func TestRule3ACommitOfAnothersEntryAtTheSameIndex(t *testing.T) {
	c, a := led(t, 3, felix.Quorum)
	b, index := c.nodes[1], a.lastIndex+1
	c.block = func(m *raftpb.Message) bool { return m.GetTo() == a.id || m.GetFrom() == a.id }
	lost := a.ops(add("k", 1000))
	c.elect(b)
	kept := b.ops(add("k", 1))
	c.run()
	kept.want("add at the new owner", 0, 1, 0)
	if a.lastIndex != index || b.commit < index {
		t.Fatalf("indexes: %d and %d, want %d", a.lastIndex, b.commit, index)
	}
	// One message makes a a follower, replaces its entry and commits the new one.
	for i, m := range c.net {
		if m.GetTo() == a.id && m.GetType() == raftpb.MsgApp && m.GetFrom() == b.id && len(m.GetEntries()) > 0 {
			m.Commit = new(index)
			c.deliver(i)
			break
		}
	}
	if a.leader || a.commit != index || a.term != b.term {
		t.Fatalf("leader %v, commit %d, term %d", a.leader, a.commit, a.term)
	}
	lost.want("an add whose index another leader's entry has", 0, 0, felix.OutcomeUnknown)
	c.block = nil
	c.tick(2)
	k := b.ops(get("k"))
	c.run()
	k.want("get", 0, 1, 0)
	c.sameState()
}

// Broken: `s.fenceSeq + 1` in needFence (evaluate.go) by the round under way.
func TestRule4AnAcknowledgementOnItsWayProvesNothing(t *testing.T) {
	c, a := led(t, 3, felix.Quorum)
	first := a.ops(get("k"))
	c.block = types(raftpb.MsgHeartbeatResp)
	c.run()
	first.waits("before the round is over")
	acks := len(c.net)
	if acks == 0 {
		t.Fatal("no round has begun")
	}
	second := a.ops(get("k"))
	c.run()
	second.waits("before any round")
	for range acks { // of the first round
		for i, m := range c.net {
			if m.GetType() == raftpb.MsgHeartbeatResp {
				c.deliver(i)
				break
			}
		}
	}
	if !first.done {
		t.Error("the first round releases nothing")
	}
	second.waits("released by a round that began before it came")
	c.run()
	second.waits("the second round's acknowledgements are on their way")
	c.block = nil
	c.run()
	if !second.done {
		t.Error("the second round releases nothing")
	}
}

// Broken: fencePending kept in loseLeadership (ready.go).
func TestRule4ARoundThatWasLostWithTheLeadershipHoldsUpNoOther(t *testing.T) {
	c, a := led(t, 3, felix.Quorum)
	c.block = types(raftpb.MsgHeartbeatResp)
	lost := a.ops(get("k"))
	c.run()
	c.block = nil
	c.cut[a.id] = true
	c.elect(c.nodes[1])
	c.cut[a.id] = false
	c.tick(1)
	lost.want("get of the lost owner", 0, 0, felix.Unavailable)
	c.elect(a)
	k := a.ops(get("k"))
	c.run()
	k.want("get at the owner again", 0, 0, 0)
}

// Broken: needFence (evaluate.go) as for a sole voter.
func TestRule4ADeposedOwnerAnswersNoRead(t *testing.T) {
	c, a := led(t, 3, felix.Quorum)
	k := a.ops(add("k", 1))
	c.run()
	k.want("add", 0, 1, 0)
	c.cut[a.id] = true
	c.elect(c.nodes[1])
	k = c.nodes[1].ops(add("k", 1))
	c.run()
	k.want("add at the new owner", 0, 2, 0)
	if !a.leader {
		t.Fatal("the old owner knows already")
	}
	reads := []*call{a.ops(get("k")), a.ops(add("k", math.MaxInt64)), a.submit(&Request{Kind: Count}),
		a.submit(&Request{Kind: Scan, Scan: felix.ScanRequest{Limit: 10}})}
	c.run()
	for _, k := range reads {
		k.waits("an owner without a majority")
	}
	c.tick(2*testElectionTicks + 1)
	reads[0].want("get, once it has stepped down", 0, 0, felix.Unavailable)
	reads[1].want("refusal, once it has stepped down", 0, 0, felix.Unavailable)
	for _, k := range reads[2:] {
		if !k.done || k.Err == nil || k.Err.Code != felix.Unavailable {
			t.Errorf("kind %d: done %v, %v", k.Kind, k.done, k.Err)
		}
	}
}

// Broken: `r.dep = max(r.dep, inflight)` in evaluateOps (evaluate.go).
func TestRule4AReadWaitsForWhatItSaw(t *testing.T) {
	for _, n := range []int{1, 3} {
		c, a := led(t, n, felix.Quorum)
		for _, r := range c.nodes {
			r.hold = true
		}
		k := a.ops(add("k", 1))
		read := a.ops(get("k"))
		other := a.ops(get("other"))
		refusal := a.ops(felix.Op{Kind: felix.Set, Key: []byte("k"), If: felix.IfAbsent})
		c.run()
		k.waits("on no disk")
		read.waits("it saw what is on no disk")
		refusal.waits("it saw what is on no disk")
		if !other.done {
			t.Error("a get of another key waits")
		}
		for _, r := range c.nodes {
			r.hold = false
		}
		c.run()
		read.want("get", 0, 1, 0)
		if !refusal.done || refusal.reply(0).Applied || refusal.reply(0).Err != nil {
			t.Errorf("refusal: %+v", refusal.reply(0))
		}
	}
}

// Broken: `if !changed` in evaluateOps (evaluate.go), so that it stages.
func TestRule5ARefusalWritesNothing(t *testing.T) {
	c, a := led(t, 3, felix.Quorum)
	k := a.ops(add("max", math.MaxInt64))
	c.run()
	k.want("add", 0, math.MaxInt64, 0)
	entries, last := a.Stats().Entries, a.lastIndex
	k = a.ops(add("max", 1), get("none"), felix.Op{Kind: felix.Delete, Key: []byte("none")},
		felix.Op{Kind: felix.Set, Key: []byte("max"), If: felix.IfVersion, Version: 1},
		felix.Op{Kind: felix.Add, Key: []byte("max"), Int: 1, Bounds: &felix.Bounds{Max: 5}},
		felix.Op{Kind: felix.Add, Key: []byte("max"), Int: 1, Bounds: &felix.Bounds{Max: math.MaxInt64, Saturate: true}})
	c.block = types(raftpb.MsgHeartbeatResp)
	c.run()
	k.waits("a refusal is a read, which waits for a fence")
	c.block = nil
	c.run()
	k.want("overflow", 0, 0, felix.OutOfRange)
	k.want("unmet bound", 4, math.MaxInt64, 0)
	k.want("at the bound", 5, math.MaxInt64, 0)
	if a.Stats().Entries != entries || a.lastIndex != last {
		t.Errorf("refusals made %d entries", a.Stats().Entries-entries)
	}
}

// Broken: AppendWrites or Apply writing in-flight cells; store's own tests say
// more. Also `case applied < r.dep` in release (request.go).
func TestRule6OnlyAppliedStateIsSeen(t *testing.T) {
	c, a := led(t, 3, felix.Quorum)
	a.hold = true
	k := a.ops(add("k", 1), felix.Op{Kind: felix.Set, View: felix.ViewValue, Key: []byte("v"), Value: []byte("x")})
	count := a.submit(&Request{Kind: Count})
	scan := a.submit(&Request{Kind: Scan, Scan: felix.ScanRequest{Limit: 10}})
	c.run()
	k.want("add", 0, 1, 0)
	count.waits("committed, but not applied")
	scan.waits("committed, but not applied")
	if a.checkpoint(); len(a.db) != 0 || a.dbApplied.Counts != (record.Counts{}) {
		t.Errorf("a checkpoint has %+v of %+v", a.db, a.dbApplied)
	}
	a.hold = false
	c.run()
	if !count.done || count.Counts != (record.Counts{Counters: 1, Values: 1, Keys: 2}) {
		t.Errorf("count: %+v", count.Counts)
	}
	if !scan.done || len(scan.Scanned.Items) != 1 || scan.Scanned.Items[0].Int != 1 {
		t.Errorf("scan: %+v", scan.Scanned)
	}
}

// Broken: FirstVersion without the term in startOwning (ready.go); `version =
// last + 1` in evaluateOps; `s.entry.next = max(…)` there (evaluate.go).
func TestRule7VersionsOnlyGrow(t *testing.T) {
	c, a := led(t, 3, felix.Leader)
	highest := uint64(0)
	grow := func(what string, r *replica, ops ...felix.Op) {
		t.Helper()
		k := r.ops(ops...)
		c.run()
		for i := range ops {
			reply := k.reply(i)
			if !k.done || reply.Err != nil || ops[i].Kind == felix.Add && reply.Version <= highest {
				t.Fatalf("%s: %+v after version %d", what, reply, highest)
			}
			highest = max(highest, reply.Version)
		}
	}
	del := felix.Op{Kind: felix.Delete, Key: []byte("k")}
	grow("in one entry", a, add("k", 1), add("k", 1), del, add("k", 1), add("k", 1))
	grow("in the next", a, add("k", 1), del)
	grow("made again", a, add("k", 1))
	a.ops(add("other", 1), add("other", 1), add("other", 1))
	c.run()
	clearAll := a.submit(&Request{Kind: Clear})
	c.run()
	if !clearAll.done || clearAll.Err != nil {
		t.Fatalf("clear: %v", clearAll.Err)
	}
	grow("after a clear", a, add("k", 1))
	c.cut[a.id] = true // what follows is lost
	for range 50 {
		grow("the lost tail", a, add("k", 1), add("k", 1))
	}
	c.elect(c.nodes[1])
	grow("the new owner", c.nodes[1], add("k", 1))
	c.cut[a.id] = false
	c.tick(2)
	c.elect(a)
	grow("the old one again", a, add("k", 1))
	c.sameState()
}

// sameState fails the test unless all replicas have applied the same.
func (c *cluster) sameState() {
	c.t.Helper()
	c.block, c.net = nil, nil
	c.tick(3)
	var want string
	for _, r := range c.nodes {
		if r.Shard == nil {
			continue
		}
		a := r.table.Applied()
		got := fmt.Sprintf("index %d, term %d, ceiling %d, version %d, counts %+v\n", a.Index, a.Term, a.Ceiling, a.Version, a.Counts)
		items, cut, unloaded := r.table.Overlay(nil, nil, 1<<20)
		if cut || len(unloaded) > 0 {
			continue // some is on disk only
		}
		s := &Request{}
		s.Overlay, s.DiskVoid = items, r.table.DiskVoid()
		r.scan(s)
		for _, item := range s.Scanned.Items {
			got += fmt.Sprintf("%s: %d, version %d\n", item.Key, item.Int, item.Version)
		}
		if want == "" {
			want = got
		}
		if got != want {
			c.t.Fatalf("replica %d has applied\n%swant\n%s", r.id, got, want)
		}
	}
}

// Broken: tailIsFresh always true (request.go).
func TestLeaderCacheStopsWithAnOldTail(t *testing.T) {
	c, a := led(t, 3, felix.Leader)
	for _, r := range c.nodes {
		r.hold = true
	}
	k := a.ops(add("k", 1))
	k.want("at once", 0, 1, 0)
	c.mono += felix.LeaderTail
	k = a.ops(add("k", 1), get("k"))
	k.want("with a tail of just the limit", 0, 2, 0)
	c.mono += time.Millisecond
	k = a.ops(add("k", 1))
	read := a.ops(get("k"))
	c.run()
	k.waits("the tail is too old")
	read.waits("it saw the tail, which is too old")
	for _, r := range c.nodes {
		r.hold = false
	}
	c.run()
	k.want("on a majority", 0, 3, 0)
	read.want("get", 0, 3, 0)
	a.hold, c.nodes[1].hold, c.nodes[2].hold = true, true, true
	k = a.ops(add("k", 1))
	k.want("with a fresh tail again", 0, 4, 0)
	c.mono += felix.LeaderTail + 1
	k = a.ops(add("k", 1))
	k.waits("the tail is too old")
	c.cut[a.id] = true
	a.hold, c.nodes[1].hold, c.nodes[2].hold = false, false, false
	c.elect(c.nodes[1])
	c.cut[a.id] = false
	c.tick(2)
	k.want("lost leadership", 0, 0, felix.OutcomeUnknown)
	c.sameState()
}

// Broken: `early` in release without `r.Kind == Ops` (request.go).
func TestLeaderCacheIsClearedWhenAMajorityHasIt(t *testing.T) {
	c, a := led(t, 3, felix.Leader)
	a.ops(add("k", 1)).want("at once", 0, 1, 0)
	c.run()
	for _, r := range c.nodes {
		r.hold = true
	}
	k := a.submit(&Request{Kind: Clear})
	c.run()
	k.waits("a clear is on no disk")
	for _, r := range c.nodes {
		r.hold = false
	}
	c.run()
	if !k.done || k.Err != nil {
		t.Errorf("clear: done %v, %v", k.done, k.Err)
	}
	c.sameState()
}
