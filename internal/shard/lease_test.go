package shard

import (
	"testing"
	"time"

	"go.etcd.io/raft/v3/raftpb"

	"github.com/felix-go/felix"
)

// testLease is shorter than an election of the harness, whose tick is 100 ms.
const testLease = 700 * time.Millisecond

// leased makes a cluster whose owner has a lease from now on, and whose
// followers do not answer heartbeats.
func leased(t *testing.T) (*cluster, *replica) {
	t.Helper()
	c, a := led(t, 3, felix.Quorum)
	for _, r := range c.nodes {
		r.cfg.Reads, r.cfg.LeaseFor = Leases, testLease
	}
	k := a.ops(get("k"))
	k.waits("before there is a lease")
	c.run()
	k.want("by its fence", 0, 0, 0)
	c.block = types(raftpb.MsgHeartbeatResp)
	a.ops(get("k")).want("by the lease", 0, 0, 0)
	return c, a
}

// Broken: the lease in needFence; `now.Mono < s.lease.until` there and in
// Confirm; renewed.
func TestLeaseAnswersAtOnceUntilItEnds(t *testing.T) {
	c, a := leased(t)
	c.mono += testLease - 1
	for _, k := range []*call{a.ops(get("k")), a.submit(&Request{Kind: Count}), a.submit(&Request{Kind: Scan, Scan: felix.ScanRequest{Limit: 1}}),
		a.ops(felix.Op{Kind: felix.Delete, Key: []byte("k")})} {
		if c.run(); !k.done || k.Err != nil {
			t.Errorf("kind %d: done %v, %v", k.Kind, k.done, k.Err)
		}
	}
	c.mono++
	k := a.ops(get("k"))
	c.run()
	k.waits("the lease has ended")
	c.block = nil
	c.run()
	k.want("by a fence", 0, 0, 0)
}

// Broken: fenceBegan in startFence (ready.go) or renewed: the time of the answer.
func TestLeaseCountsFromBeforeTheRoundWasSent(t *testing.T) {
	c, a := leased(t)
	c.mono += testLease
	k := a.ops(get("k"))
	c.run()
	const slow = testLease/4 - 1 // the answers are; it is too early for the next round
	c.mono += slow
	c.block = nil
	c.run()
	k.want("by a fence", 0, 0, 0)
	c.block = types(raftpb.MsgHeartbeatResp)
	c.mono += testLease - slow - 1
	a.ops(get("k")).want("in the lease", 0, 0, 0)
	c.mono++
	a.ops(get("k")).waits("a lease after the round was sent")
}

// Broken: Confirm without its look at the lease; `!r.leased` in release
// (request.go).
func TestLeaseIsLookedAtAfterEvaluating(t *testing.T) {
	c, a := leased(t)
	c.pause = func(*replica) { c.mono += testLease }
	k := a.ops(get("k"))
	k.waits("the process was paused after it was evaluated")
	if !a.Unfinished() {
		t.Error("nobody is told that a fence is to begin")
	}
	c.run()
	k.waits("without a fence")
	c.pause, c.block = nil, nil
	c.run()
	k.want("by a fence", 0, 0, 0)
}

// Broken: `r.dep` of leased requests: release in Confirm.
func TestLeaseAReadWaitsForWhatItSaw(t *testing.T) {
	c, a := leased(t)
	for _, r := range c.nodes {
		r.hold = true
	}
	write := a.ops(add("k", 1))
	read := a.ops(get("k"))
	c.run()
	write.waits("on no disk")
	read.waits("it saw what is on no disk")
	c.mono += testLease // that it was the owner is confirmed
	for _, r := range c.nodes {
		r.hold = false
	}
	c.run()
	read.want("on a majority", 0, 1, 0)
}

// Broken: `r.leased` in evaluateRequest (evaluate.go).
func TestLeaseOfARequestThatWaitsForALoad(t *testing.T) {
	c, a := cold(t, 3, "a", "b")
	a.cfg.Reads, a.cfg.LeaseFor = Leases, testLease
	a.stuck = false
	a.ops(get("a")) // it is in memory from now on, and there is a lease
	c.run()
	a.stuck = true
	k := a.ops(get("a"), add("b", 1))
	c.run()
	k.waits("for a load")
	a.stuck = false
	c.run()
	if !k.done || k.reply(0).Err != nil || k.reply(1).Err != nil {
		t.Errorf("done %v: %+v", k.done, k.Batch.Replies)
	}
}

// Broken: the line in SetReads, applyConfChange or loseLeadership that ends the
// lease.
func TestLeaseIsGivenUp(t *testing.T) {
	for name, test := range map[string]func(*cluster, *replica){
		"fences":     func(_ *cluster, a *replica) { a.SetReads(Fences) },
		"turned off": func(_ *cluster, a *replica) { a.SetReads(Fences); a.SetReads(Leases) },
		"membership": func(c *cluster, a *replica) { c.must(a.ChangeConf(learner(4))); c.run() },
		"another term": func(c *cluster, a *replica) {
			c.block = nil
			c.elect(c.nodes[1])
			c.elect(a)
			c.block = types(raftpb.MsgHeartbeatResp)
		},
	} {
		c, a := leased(t)
		c.add()
		test(c, a)
		k := a.ops(get("k"))
		if a.advance(); k.done {
			t.Errorf("%s: a read is answered by the lease of before", name)
		}
		c.block = nil
		c.run()
		k.want(name, 0, 0, 0)
	}
}

// Broken: bar in stepHandover (handover.go): the message to the other replica is
// on its way when the transfer is given up, and has everybody vote for it.
func TestLeaseEndsForTheTermWithATransfer(t *testing.T) {
	c, a := leased(t)
	b := c.nodes[1]
	c.block = types(raftpb.MsgTimeoutNow)
	a.HandOver(b.id)
	c.run()
	c.tick(testElectionTicks + 1)
	k := a.ops(get("k"))
	if c.run(); !a.Owns() || !k.done {
		t.Fatalf("the transfer is not given up: owns %v", a.Owns())
	}
	// Now the message comes, and a does not hear of it.
	c.block = func(m *raftpb.Message) bool { return m.GetTo() == a.id }
	c.run()
	write := b.ops(add("k", 1))
	if c.run(); !b.Owns() || !a.Owns() {
		t.Fatalf("the other owns %v, the old one %v", b.Owns(), a.Owns())
	}
	write.want("at the new owner", 0, 1, 0)
	read := a.ops(get("k"))
	c.run()
	read.waits("it would not see the write")
}

// Broken: renew in startFence (ready.go); leaseIdle; `s.cfg.LeaseFor/4`.
func TestLeaseIsKeptUpWhileThereAreReads(t *testing.T) {
	c, a := leased(t)
	c.block = nil
	rounds := a.fenceSeq
	for range 50 {
		c.tick(1)
		a.ops(get("k")).want("by the lease", 0, 0, 0)
	}
	if n := a.fenceSeq - rounds; n < 10 || n > 30 {
		t.Errorf("in 5 seconds there were %d rounds", n)
	}
	c.tick(int(leaseIdle / (100 * time.Millisecond)))
	rounds = a.fenceSeq
	if c.tick(20); a.fenceSeq != rounds {
		t.Errorf("without reads there were %d rounds", a.fenceSeq-rounds)
	}
	c.block = types(raftpb.MsgHeartbeatResp)
	a.ops(get("k")).waits("the lease has ended")
}

// Broken: the lease as long as an election (here: two elections).
func TestLeaseADeposedOwnerAnswersNoRead(t *testing.T) {
	c, a := leased(t)
	b := c.nodes[1]
	c.block = nil
	c.cut[a.id] = true
	for range 4 * testElectionTicks { // a is not advanced in between: it is paused
		c.mono += 100 * time.Millisecond
		for _, r := range c.nodes[1:] {
			r.Tick()
		}
		paused := a.Shard
		a.Shard = nil
		c.run()
		a.Shard = paused
	}
	owner := b
	if !b.Owns() {
		owner = c.nodes[2]
	}
	k := owner.ops(add("k", 1))
	c.run()
	k.want("at the new owner", 0, 1, 0)
	a.ops(get("k")).waits("a deposed owner")
}

// Broken: asks in StepPeer (shard.go).
func TestLeaseAFollowerKeepsItsPromise(t *testing.T) {
	c, a := leased(t)
	b, d := c.nodes[1], c.nodes[2]
	stray := func(kind raftpb.MessageType) *raftpb.Message {
		return &raftpb.Message{Type: kind.Enum(), From: new(d.id), To: new(b.id), Term: new(a.term + 1), Reject: new(true)}
	}
	for _, kind := range []raftpb.MessageType{raftpb.MsgAppResp, raftpb.MsgHeartbeatResp, raftpb.MsgVoteResp, raftpb.MsgPreVoteResp} {
		b.StepPeer(stray(kind))
		b.advance()
		if b.Lead() != a.id || b.term != a.term {
			t.Fatalf("%v: the follower's leader is %d, its term %d", kind, b.Lead(), b.term)
		}
	}
	vote := stray(raftpb.MsgVote)
	vote.Reject, vote.Index, vote.LogTerm = nil, new(b.lastIndex), new(a.term)
	b.StepPeer(vote)
	b.advance()
	if b.Lead() != a.id || b.term != a.term {
		t.Error("it votes for another one")
	}
}

// Broken: the first condition of needFence (lease.go).
func TestLeaseOnlyWhereItIsNeeded(t *testing.T) {
	for _, test := range []struct {
		n           int
		consistency felix.Consistency
	}{{1, felix.Quorum}, {3, felix.Leader}} {
		c, a := led(t, test.n, test.consistency)
		a.cfg.Reads, a.cfg.LeaseFor = Leases, testLease
		for range 5 {
			a.ops(get("k")).want("at once", 0, 0, 0)
			c.tick(3)
		}
		if a.fenceSeq != 0 {
			t.Errorf("%d replicas, %v: %d rounds", test.n, test.consistency, a.fenceSeq)
		}
	}
}
