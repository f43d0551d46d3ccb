package shard

import (
	"testing"

	"go.etcd.io/raft/v3/raftpb"

	"github.com/felix-go/felix"
)

// Broken: returnQueue without its condition, or without `s.held` (shard.go); the
// loop over the queue in loseLeadership (ready.go).
func TestReturnedOnlyIfNotEvaluated(t *testing.T) {
	c := newCluster(t, 3, felix.Quorum, 1)
	a, b := c.nodes[0], c.nodes[1]
	early := b.ops(get("k"))
	if len(b.returned) != 0 {
		t.Fatal("a request comes back though nobody leads")
	}
	if c.elect(a); len(b.returned) != 1 {
		t.Fatalf("%d requests come back once somebody leads", len(b.returned))
	}
	b.returned = nil
	a.Submit(early.Request)
	c.run()
	early.want("where it was sent on to", 0, 0, 0)
	k := b.ops(add("k", 1), get("k"))
	if len(b.returned) != 1 || b.Lead() != a.id || b.Leader() || b.Owns() {
		t.Fatalf("a follower returns %d requests; its leader is %d", len(b.returned), b.Lead())
	}
	b.returned = nil
	a.Submit(k.Request)
	c.run()
	k.want("where it was sent on to", 0, 1, 0)

	a.cfg.MaxEntryBytes, a.cfg.MaxInflightBytes = 60, 1
	c.cut[a.id] = true
	begun := a.ops(add("a", 1), add("b", 1), add("c", 1), add("d", 1))
	whole := a.ops(add("k", 1))
	a.Hold(true, false)
	held := a.ops(add("k", 1))
	scan := a.submit(&Request{Kind: Scan, Scan: felix.ScanRequest{Limit: 1}})
	a.advance()
	if begun.next == 0 || begun.next == 4 || len(a.held) == 0 {
		t.Fatalf("%d of 4 operations are evaluated, %d requests held", begun.next, len(a.held))
	}
	c.elect(b)
	if len(a.returned) != 0 {
		t.Error("an owner that knows of no other returns requests")
	}
	c.cut[a.id] = false
	c.tick(1)
	begun.want("evaluated in part", 0, 0, felix.OutcomeUnknown)
	begun.want("evaluated in part", 3, 0, felix.Unavailable)
	if len(a.returned) != 3 || a.returned[0] != whole.Request || a.returned[1] != held.Request || a.returned[2] != scan.Request {
		t.Fatalf("%d requests come back, or in another order", len(a.returned))
	}
	for _, q := range a.returned {
		b.Submit(q)
	}
	a.returned = nil
	c.run()
	whole.want("sent on", 0, 2, 0)
	held.want("sent on", 0, 3, 0)
	if !scan.done || scan.Err != nil {
		t.Errorf("scan: done %v, %v", scan.done, scan.Err)
	}
	c.sameState()
}

// A replica that may never hear of a leader keeps no requests: one without a vote
// at once, a voter when an election takes too long. The runner is told.
//
// Broken: Strays in returnQueue; votes, or patience, in Strays; s.changed in
// countLeaderless, or in Tick (shard.go); s.leaderless in handleRole (ready.go).
func TestStraysReturnWhatWaits(t *testing.T) {
	c := newCluster(t, 3, felix.Quorum, 1)
	a, empty := c.nodes[0], c.add()
	empty.start()
	if empty.ops(get("k")); len(empty.returned) != 1 || !empty.Strays() {
		t.Errorf("one that is in no configuration returns %d requests", len(empty.returned))
	}
	c.run()
	for _, r := range c.nodes {
		c.cut[r.id] = true
	}
	told := 0
	c.changed = func(r *replica) {
		if r == a && a.Strays() {
			told++
		}
	}
	stranded := func(what string) {
		t.Helper()
		a.returned, told = nil, 0
		a.ops(get("k"))
		for range 2*testElectionTicks - 1 {
			c.tick(1)
			if len(a.returned) != 0 || a.Strays() {
				t.Fatalf("%s: it does not wait for an election", what)
			}
		}
		if c.tick(1); len(a.returned) != 1 || !a.Strays() || told != 1 {
			t.Fatalf("%s: %d requests come back from one that hears nothing; it was told %d times", what, len(a.returned), told)
		}
	}
	stranded("at first")
	clear(c.cut)
	c.elect(a)
	if a.Strays() || c.nodes[1].Strays() {
		t.Error("one that has a leader strays")
	}
	c.cut[a.id] = true
	for a.leader {
		c.tick(1)
	}
	stranded("again")
}

// Broken: `err == nil` in Close (shard.go).
func TestCloseReturnsWhatIsNotEvaluated(t *testing.T) {
	c, a := cold(t, 3, "a", "b")
	c.cut[a.id] = true
	a.stuck = false
	written := a.ops(add("x", 1))
	c.run()
	a.stuck = true
	loading := a.ops(add("a", 1), add("b", 1))
	a.cfg.MaxInflightBytes = 1
	queued := a.ops(add("x", 1))
	a.Close(nil, &a.out)
	a.take()
	written.want("written", 0, 0, felix.OutcomeUnknown)
	if len(a.returned) != 2 || a.returned[0] != loading.Request || a.returned[1] != queued.Request {
		t.Errorf("%d requests come back", len(a.returned))
	}
}

// Broken: `s.changed` in handleRole, startOwning or setConf (ready.go), or never
// set to false again (shard.go).
func TestChangedIsToldOnce(t *testing.T) {
	c := newCluster(t, 3, felix.Quorum, 1)
	told := map[uint64]int{}
	c.changed = func(r *replica) { told[r.id]++ }
	c.run()
	c.elect(c.nodes[0])
	c.tick(3)
	for _, r := range c.nodes {
		if told[r.id] == 0 || r.Lead() != 1 {
			t.Errorf("replica %d told %d changes; its leader is %d", r.id, told[r.id], r.Lead())
		}
	}
	clear(told)
	c.nodes[0].ops(add("k", 1))
	c.tick(2 * testElectionTicks)
	if len(told) != 0 {
		t.Errorf("changes while nothing changes: %v", told)
	}
	c.elect(c.nodes[1])
	c.tick(1)
	if len(told) != 3 || c.nodes[0].Lead() != 2 {
		t.Errorf("changes of another owner: %v; the leader is %d", told, c.nodes[0].Lead())
	}
}

// Broken: the list in StepPeer (shard.go).
func TestRule1APeerProposesNothing(t *testing.T) {
	c, a := led(t, 3, felix.Quorum)
	last, term := a.lastIndex, a.term
	for _, m := range []*raftpb.Message{
		{Type: raftpb.MsgProp.Enum(), Entries: []*raftpb.Entry{{Data: []byte("x")}}},
		{Type: raftpb.MsgReadIndex.Enum(), Entries: []*raftpb.Entry{{Data: []byte("x")}}},
		{Type: raftpb.MsgTransferLeader.Enum()},
		{Type: raftpb.MsgHup.Enum()},
		{Type: raftpb.MsgUnreachable.Enum()},
		{Type: raftpb.MsgForgetLeader.Enum()},
		{Type: raftpb.MsgStorageAppendResp.Enum(), Index: new(last + 1), LogTerm: new(term), Term: new(term)},
		{Type: raftpb.MsgAppResp.Enum(), Index: new(last), Term: new(term)}, // of a stranger
	} {
		m.From, m.To, m.Term = new(uint64(2)), new(a.id), new(term)
		if m.GetType() == raftpb.MsgAppResp {
			m.From = new(uint64(9))
		}
		a.StepPeer(m)
	}
	c.run()
	c.tick(2)
	if !a.Owns() || a.term != term || a.lastIndex != last || a.node.BasicStatus().LeadTransferee != 0 {
		t.Errorf("a peer's messages: owns %v, term %d, last entry %d; they were %d and %d", a.Owns(), a.term, a.lastIndex, term, last)
	}
}

// Broken: any part of Tick's answer (shard.go).
func TestTickSaysWhetherThereIsSomethingToDo(t *testing.T) {
	c, a := led(t, 3, felix.Quorum)
	c.tick(2)
	idle := c.nodes[1]
	if idle.Tick() {
		t.Error("an idle follower is busy")
	}
	if !a.Tick() {
		t.Error("a leader has heartbeats to send")
	}
	idle.Submit(opsRequest(get("k")))
	if !idle.Tick() {
		t.Error("a request waits, and its deadline may have come")
	}
}
