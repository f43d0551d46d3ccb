package shard

import (
	"testing"

	"go.etcd.io/raft/v3/raftpb"

	"github.com/felix-go/felix"
)

// Broken: asideAll in setAside (hold.go); each part of underWay but the last
// (handover.go).
func TestRule8NothingIsEvaluatedWhileHandingOver(t *testing.T) {
	c, a := led(t, 3, felix.Quorum)
	b := c.nodes[1]
	a.cfg.MaxEntryBytes, a.cfg.MaxInflightBytes = 60, 1
	for _, r := range c.nodes {
		r.hold = true
	}
	begun := a.ops(add("a", 1), add("b", 1), add("c", 1), add("d", 1))
	if begun.next == 0 || begun.next == 4 {
		t.Fatalf("%d of 4 operations are evaluated", begun.next)
	}
	a.HandOver(b.id)
	later := a.ops(add("a", 10))
	if a.Owns() || later.next != 0 || a.node.BasicStatus().LeadTransferee != 0 {
		t.Fatalf("owns %v; %d evaluated; transfer to %d", a.Owns(), later.next, a.node.BasicStatus().LeadTransferee)
	}
	if err := a.ChangeConf(change(-3)); err == nil {
		t.Error("an owner that hands over changes the configuration")
	}
	for _, r := range c.nodes {
		r.hold = false
	}
	c.run()
	for i := range 4 {
		begun.want("begun before the handover", i, 1, 0)
	}
	if c.tick(1); !b.Owns() || a.Leader() || a.handover.to != 0 {
		t.Fatalf("the other owns %v, the old one leads %v", b.Owns(), a.Leader())
	}
	if len(a.returned) != 1 || a.returned[0] != later.Request {
		t.Fatalf("%d requests come back", len(a.returned))
	}
	a.returned = nil
	b.Submit(later.Request)
	c.run()
	later.want("at the new owner", 0, 11, 0)
	c.sameState()
}

// Broken: each part of underWay (handover.go); returnQueue without held
// (shard.go).
func TestRule8WhatWaitsIsReturned(t *testing.T) {
	c, a := cold(t, 3, "a", "b")
	b := c.nodes[1]
	a.stuck = false
	a.ops(get("x")) // it is in memory from now on
	c.run()
	a.stuck = true
	c.block = types(raftpb.MsgHeartbeatResp)
	read := a.ops(get("x"))
	half := a.ops(add("x", 1), add("a", 1))
	whole := a.ops(add("b", 1))
	a.HandOver(b.id)
	queued := a.ops(add("x", 1))
	scan := a.submit(&Request{Kind: Scan, Scan: felix.ScanRequest{Limit: 10}})
	c.run()
	asked := func(what string) {
		t.Helper()
		if a.node.BasicStatus().LeadTransferee != 0 || !a.leader {
			t.Fatalf("the transfer begins while %s", what)
		}
	}
	asked("a read waits for its fence, and a request for a load")
	a.load() // of a
	c.run()
	half.want("evaluated in part before", 1, 2, 0)
	read.waits("its fence is not answered")
	asked("a read waits for its fence")
	c.block = nil
	c.run()
	read.want("a read", 0, 0, 0)
	c.tick(1)
	if !b.Owns() || len(a.returned) != 2 {
		t.Fatalf("the other owns %v; %d requests come back", b.Owns(), len(a.returned))
	}
	a.stuck, b.stuck = false, false
	c.run()
	if len(a.returned) != 3 {
		t.Fatalf("%d requests come back, one of them after its load", len(a.returned))
	}
	for _, q := range a.returned {
		b.Submit(q)
	}
	a.returned = nil
	c.run()
	whole.want("at the new owner", 0, 3, 0)
	queued.want("at the new owner", 0, 2, 0)
	if !scan.done || scan.Err != nil {
		t.Errorf("scan: done %v, %v", scan.done, scan.Err)
	}
}

// Broken: the end in stepHandover; `h.ticks > 0` there; `which != s.aside` in
// setAside (hold.go).
func TestRule8AnAbortedTransferGoesOn(t *testing.T) {
	c, a := cold(t, 3, "a")
	b := c.nodes[1]
	a.stuck = false
	c.block = types(raftpb.MsgTimeoutNow)
	a.HandOver(b.id)
	k := a.ops(add("x", 1))
	c.run()
	if k.waits("handing over"); a.node.BasicStatus().LeadTransferee != b.id {
		t.Fatal("no transfer is under way")
	}
	c.tick(testElectionTicks + 1)
	k.want("once Raft has given up", 0, 1, 0)

	d := c.add()
	d.start()
	c.change(a, learner(d.id))
	a.HandOver(d.id) // which can be no leader
	k = a.ops(add("x", 1))
	c.tick(1)
	k.want("once Raft has refused", 0, 2, 0)

	a.stuck = true // what is begun cannot be finished
	half := a.ops(add("x", 1), add("a", 1))
	a.HandOver(b.id)
	queued := a.ops(add("x", 10))
	c.tick(testElectionTicks)
	queued.waits("handing over")
	c.tick(testElectionTicks + 2)
	queued.want("once the handover is given up", 0, 13, 0)
	a.stuck = false
	c.run()
	half.want("in the end", 1, 2, 0)
	if a.HandOver(a.id); !a.Owns() {
		t.Error("an owner hands over to itself")
	}
	c.nodes[2].HandOver(a.id)
	if c.nodes[2].handover.to != 0 {
		t.Error("a follower hands over")
	}
}

// Broken: the configuration in underWay (handover.go).
func TestRule8AChangeOfTheConfigurationIsFinishedFirst(t *testing.T) {
	c, a := led(t, 3, felix.Quorum)
	d := c.add()
	d.start()
	c.change(a, learner(d.id))
	c.block = func(m *raftpb.Message) bool { return m.GetTo() == d.id || m.GetTo() == 2 }
	c.must(a.ChangeConf(change(4, -3)))
	a.HandOver(3)
	c.run()
	if a.node.BasicStatus().LeadTransferee != 0 {
		t.Fatal("the transfer begins in a joint configuration")
	}
	c.block = nil
	c.tick(2)
	c.wantConf([]uint64{1, 2, 4}, nil)
	if !a.Owns() {
		t.Error("the owner handed over to a replica that was removed")
	}
	c.must(a.ChangeConf(change(-2)))
	a.HandOver(4)
	c.tick(2)
	c.wantConf([]uint64{1, 4}, nil)
	if !d.Owns() {
		t.Error("the handover does not come about")
	}
}

// Broken: maySend or its use (conf.go, ready.go); `default` of a clock that is
// stopped instead.
func TestIneligibleDoesNotCampaignAndVotesForOthers(t *testing.T) {
	for name, stop := range map[string]func(*replica){
		"ineligible": func(r *replica) { r.SetEligible(false) },
		"stopping":   func(r *replica) { r.SetCampaigns(false) },
	} {
		for seed := range uint64(5) {
			c := newCluster(t, 3, felix.Quorum, seed)
			a, b, d := c.nodes[0], c.nodes[1], c.nodes[2]
			stop(b)
			stop(d)
			c.elect(a)
			a.crash()
			c.tick(5 * testElectionTicks)
			if b.leader || d.leader {
				t.Fatalf("%s: a replica was elected", name)
			}
			d.SetEligible(true)
			d.SetCampaigns(true)
			c.tick(5 * testElectionTicks)
			if !d.Owns() || d.Lead() != d.id || b.Lead() != d.id {
				t.Fatalf("%s: the other is not elected, or not with its vote", name)
			}
			a.start()
			c.tick(1)
			d.HandOver(b.id)
			c.tick(testElectionTicks + 2)
			if !d.Owns() {
				t.Errorf("%s: it was handed the ownership", name)
			}
		}
	}
}

// Broken: eligible in Owns, setAside (hold.go) or the changed flag of SetEligible.
func TestIneligibleDoesNotEvaluate(t *testing.T) {
	c, a := led(t, 3, felix.Quorum)
	a.cfg.MaxEntryBytes, a.cfg.MaxInflightBytes = 60, 1
	begun := a.ops(add("a", 1), add("b", 1), add("c", 1), add("d", 1))
	changes := 0
	c.changed = func(r *replica) { changes++ }
	a.SetEligible(false)
	k := a.ops(add("a", 10))
	c.run()
	begun.want("begun before", 3, 1, 0)
	if k.waits("ineligible"); a.Owns() || !a.Leader() || changes != 1 {
		t.Errorf("owns %v, leads %v; told %d times", a.Owns(), a.Leader(), changes)
	}
	a.SetEligible(true)
	c.run()
	k.want("eligible again", 0, 11, 0)
	a.SetEligible(false)
	k = a.ops(add("a", 100))
	a.HandOver(2)
	c.tick(1)
	if !c.nodes[1].Owns() || len(a.returned) != 1 {
		t.Fatalf("an ineligible owner does not hand over: %d requests come back", len(a.returned))
	}
	a.returned = nil
	c.nodes[1].Submit(k.Request)
	c.run()
	k.want("at the new owner", 0, 111, 0)
	a.SetEligible(true)
	c.elect(a)
	a.SetCampaigns(false)
	k = a.ops(add("a", 1))
	c.run()
	k.want("an owner that campaigns no more", 0, 112, 0)
}

// Broken: silent in StepPeer or Tick (shard.go), in maySend (conf.go); transfers
// there.
func TestSilentAfterRestart(t *testing.T) {
	c, a := led(t, 3, felix.Quorum)
	b, d := c.nodes[1], c.nodes[2]
	c.tick(1)
	c.cfg.SilentTicks = testElectionTicks
	restart := func(r *replica) {
		r.crash()
		r.start()
	}
	ask := func() { // as after its election timeout
		c.must(d.node.Campaign())
		c.run()
	}
	a.crash()
	restart(b)
	ask()
	c.tick(testElectionTicks - 1)
	if d.leader || b.leader {
		t.Fatal("a replica that has forgotten whom it heard votes")
	}
	c.tick(3 * testElectionTicks)
	if !d.leader && !b.leader {
		t.Fatal("it is silent for ever")
	}
	b.crash()
	d.SetCampaigns(false)
	c.tick(3 * testElectionTicks) // it leads no more, and has promised nothing
	b.start()
	c.must(b.Campaign())
	if c.run(); b.leader {
		t.Fatal("a replica campaigns just after its start")
	}
	a.start()
	c.tick(4 * testElectionTicks)
	owner := a
	for _, r := range c.nodes {
		if r.Owns() {
			owner = r
		}
	}
	to := c.nodes[owner.id%3]
	for _, r := range c.nodes {
		if r != owner {
			restart(r)
		}
	}
	c.tick(1)
	c.block = func(m *raftpb.Message) bool { return m.GetType() == raftpb.MsgVoteResp && m.GetFrom() == owner.id }
	owner.HandOver(to.id)
	if c.tick(1); !to.Owns() {
		t.Error("silent replicas do not take over, or vote, when their leader says so")
	}
	only, r := led(t, 1, felix.Quorum)
	only.cfg.SilentTicks = testElectionTicks
	restart(r)
	if only.run(); !r.Owns() {
		t.Error("a sole voter is silent")
	}
}
