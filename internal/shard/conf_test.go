package shard

import (
	"slices"
	"testing"

	"go.etcd.io/raft/v3/raftpb"

	"github.com/felix-go/felix"
)

// change is a configuration change: positive ids are added as voters, negative
// ones removed.
func change(ids ...int) *raftpb.ConfChangeV2 {
	cc := &raftpb.ConfChangeV2{}
	for _, id := range ids {
		kind := raftpb.ConfChangeAddNode
		if id < 0 {
			id, kind = -id, raftpb.ConfChangeRemoveNode
		}
		cc.Changes = append(cc.Changes, &raftpb.ConfChangeSingle{Type: kind.Enum(), NodeId: new(uint64(id))})
	}
	return cc
}

func learner(id uint64) *raftpb.ConfChangeV2 {
	return &raftpb.ConfChangeV2{Changes: []*raftpb.ConfChangeSingle{
		{Type: raftpb.ConfChangeAddLearnerNode.Enum(), NodeId: new(id)}}}
}

// change makes the owner change the configuration, and lets it happen.
func (c *cluster) change(owner *replica, cc *raftpb.ConfChangeV2) {
	c.t.Helper()
	c.must(owner.ChangeConf(cc))
	c.run()
	c.tick(2)
}

// wantConf fails the test unless all replicas that are in it know this
// configuration.
func (c *cluster) wantConf(voters, learners []uint64) {
	c.t.Helper()
	for _, r := range c.nodes {
		conf := r.Status().Conf
		if !slices.Contains(voters, r.id) && !slices.Contains(learners, r.id) {
			continue
		}
		if !slices.Equal(conf.GetVoters(), voters) || !slices.Equal(conf.GetLearners(), learners) || len(conf.GetVotersOutgoing()) > 0 {
			c.t.Fatalf("replica %d: configuration %v, want voters %v, learners %v", r.id, conf, voters, learners)
		}
	}
}

// Broken: setConf in applyConfChange or Installed (ready.go, snapshot.go); alone
// as the number of replicas.
func TestConfChangeLearner(t *testing.T) {
	c, a := led(t, 1, felix.Quorum)
	k := a.ops(add("k", 1))
	c.run()
	k.want("add", 0, 1, 0)
	b := c.add()
	b.start()
	c.change(a, learner(b.id))
	c.wantConf([]uint64{1}, []uint64{2})
	p := a.Status().Progress
	if len(p) != 2 || p[0].RaftID != 1 || p[0].Learner || !p[1].Learner || !p[1].Replicates || !p[1].Active || p[1].Match != a.lastIndex {
		t.Errorf("progress: %+v", p)
	}
	c.cut[b.id] = true
	k = a.ops(add("k", 1), get("k"))
	c.run()
	k.want("beside a learner that is cut off", 1, 2, 0)
	if b.node.BasicStatus(); b.Owns() || b.table.Counts().Counters != 1 {
		t.Errorf("the learner has %+v", b.table.Counts())
	}
	c.cut[b.id] = false
	c.tick(3 * testElectionTicks)
	if !a.Owns() {
		t.Error("the learner took the leadership")
	}
	c.sameState()
}

// Broken: each of the conditions in ChangeConf (conf.go); confIndex in
// handleEntries (ready.go).
func TestConfChangeJoint(t *testing.T) {
	c, a := led(t, 3, felix.Quorum)
	d := c.add()
	d.start()
	c.change(a, learner(d.id))
	c.wantConf([]uint64{1, 2, 3}, []uint64{4})

	if err := c.nodes[1].ChangeConf(change(4, -3)); err == nil {
		t.Error("a follower changes the configuration")
	}
	c.block = func(m *raftpb.Message) bool { return m.GetTo() == d.id || m.GetTo() == 2 }
	c.must(a.ChangeConf(change(4, -3)))
	if err := a.ChangeConf(change(4)); err == nil {
		t.Error("a change is proposed over another one")
	}
	a.advance()
	if err := a.ChangeConf(change(4)); err == nil {
		t.Error("a change is proposed while another one is in the log")
	}
	c.run() // it is committed by 1 and 3; leaving it needs a majority of 1, 2 and 4, too
	if joint := a.Status().Conf; !slices.Equal(joint.GetVotersOutgoing(), []uint64{1, 2, 3}) {
		t.Fatalf("the configuration is not joint: %v", joint)
	}
	k := a.ops(add("k", 1))
	read := a.ops(get("other"))
	c.run()
	k.waits("it is on no majority of the new voters")
	read.waits("no majority of the new voters confirms it")
	if err := a.ChangeConf(change(-2)); err == nil {
		t.Error("a change is proposed in a joint configuration")
	}
	c.block = nil
	c.tick(3)
	k.want("add", 0, 1, 0)
	read.want("get", 0, 0, 0)
	c.wantConf([]uint64{1, 2, 4}, nil)
	c.nodes[2].crash()
	c.nodes[1].crash()
	k = a.ops(add("k", 1))
	c.run()
	k.want("on a majority of the new configuration", 0, 2, 0)
	c.sameState()
}

// Broken: stepConf without its look at the incoming voters, or without the
// transition in ChangeConf (conf.go).
func TestConfChangeOwnerRemoved(t *testing.T) {
	c, a := led(t, 3, felix.Quorum)
	k := a.ops(add("k", 1))
	c.must(a.ChangeConf(change(-1)))
	later := a.ops(add("k", 1))
	c.run()
	c.tick(2)
	k.want("in flight", 0, 1, 0)
	if a.Leader() || a.Owns() {
		t.Fatalf("the removed owner: leads %v, owns %v", a.Leader(), a.Owns())
	}
	c.wantConf([]uint64{2, 3}, nil)
	owner := c.nodes[1]
	if !owner.Owns() {
		owner = c.nodes[2]
	}
	if !later.done { // it came back
		a.returned = nil
		owner.Submit(later.Request)
		c.run()
	}
	later.want("after it", 0, 2, 0)
}

// Broken: as above. The owner that has no vote afterwards has entries that
// nobody else has, and nobody hears that the joint configuration is left.
func TestConfChangeLeavingNeedsNobodyWhoIsGone(t *testing.T) {
	c, a := led(t, 2, felix.Quorum)
	b := c.nodes[1]
	c.must(a.ChangeConf(change(-1)))
	for range 1000 {
		if c.runOne(); len(a.conf.GetVotersOutgoing()) > 0 {
			break
		}
	}
	// If it leaves the joint configuration, b has that entry, but no other of
	// after it, and does not hear that it is committed.
	left := a.confIndex
	c.block = func(m *raftpb.Message) bool {
		entries := m.GetEntries()
		return m.GetFrom() == a.id && (m.GetCommit() >= left || len(entries) > 0 && entries[len(entries)-1].GetIndex() > left)
	}
	a.ops(add("k", 1))
	c.run()
	c.block, c.net = nil, nil
	c.tick(12 * testElectionTicks)
	if !b.Owns() {
		t.Fatalf("nobody owns the shard: %+v, %+v", a.Status(), b.Status())
	}
	c.wantConf([]uint64{2}, nil)
}

// Broken: `if s.fencePending` in applyConfChange (ready.go).
func TestConfChangeFenceSurvivesShrinking(t *testing.T) {
	c, a := led(t, 3, felix.Quorum)
	c.block = types(raftpb.MsgHeartbeatResp)
	read := a.ops(get("k"))
	c.run()
	read.waits("its fence is answered by nobody")
	c.must(a.ChangeConf(change(-2, -3)))
	c.run()
	read.want("of the only voter", 0, 0, 0)
	c.wantConf([]uint64{1}, nil)
	if !a.alone {
		t.Error("the only voter does not know that it is alone")
	}
	later := a.ops(get("k"), add("k", 1))
	c.run()
	later.want("without a fence", 0, 0, 0)
}

// Broken: checkChange in ChangeConf (conf.go): Raft panics.
func TestConfChangeThatMakesNoSenseIsRefused(t *testing.T) {
	c, a := led(t, 3, felix.Quorum)
	for name, cc := range map[string]*raftpb.ConfChangeV2{
		"no voter is left": change(-1, -2, -3), "nothing": {}, "a voter without a number": {Changes: []*raftpb.ConfChangeSingle{
			{Type: raftpb.ConfChangeType(99).Enum(), NodeId: new(uint64(4))}}}} {
		if err := a.ChangeConf(cc); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	c.run()
	k := a.ops(add("k", 1))
	c.run()
	k.want("afterwards", 0, 1, 0)
	c.change(a, change(-3))
	c.wantConf([]uint64{1, 2}, nil)
}

// Broken: `s.confIndex` in handleRole (ready.go).
func TestConfChangeThatWasLostBlocksNoOther(t *testing.T) {
	c, a := led(t, 3, felix.Quorum)
	c.cut[a.id] = true
	for range 5 {
		a.ops(add("k", 1))
	}
	c.must(a.ChangeConf(change(-3)))
	c.run()
	c.elect(c.nodes[1])
	c.cut[a.id] = false
	c.tick(1)
	c.elect(a)
	if err := a.ChangeConf(change(-3)); err != nil {
		t.Error(err)
	}
}

// Broken: the first condition of Campaign (conf.go).
func TestCampaign(t *testing.T) {
	c := newCluster(t, 3, felix.Quorum, 1)
	c.must(c.nodes[0].Campaign())
	if c.run(); !c.nodes[0].Owns() {
		t.Fatal("nobody leads, and a campaign is not won")
	}
	term := c.nodes[0].term
	c.must(c.nodes[1].Campaign())
	if c.nodes[1].node.BasicStatus().Lead != 1 {
		t.Error("a follower that campaigns forgets its leader")
	}
	if c.run(); c.nodes[0].term != term {
		t.Error("a campaign ended a leadership")
	}
}

// Broken: SnapshotSent and Unreachable (conf.go), `ok` turned round.
func TestReportsAreHeard(t *testing.T) {
	c, a := led(t, 1, felix.Quorum)
	b := c.add()
	b.start()
	c.block = types(raftpb.MsgSnap)
	c.change(a, learner(b.id))
	sent := func() int { return len(c.snapshots) }
	first := sent()
	if c.tick(5); first == 0 || sent() != first || a.Status().Progress[1].PendingSnapshot == 0 {
		t.Fatalf("%d snapshots were sent, and then %d: %+v", first, sent(), a.Status().Progress)
	}
	c.net = nil // it was lost
	a.SnapshotSent(b.id, false)
	if p := a.node.Status().Progress[b.id]; p.Next != p.Match+1 {
		t.Errorf("after a failure entry %d is sent next, entry %d is there", p.Next, p.Match)
	}
	if c.tick(2); sent() != first+1 {
		t.Fatalf("after a failure %d snapshots were sent", sent()-first)
	}
	c.block = nil
	c.run()
	a.SnapshotSent(b.id, true)
	if c.tick(2); !a.Status().Progress[1].Replicates || sent() != first+1 {
		t.Fatalf("progress: %+v", a.Status().Progress)
	}
	a.Unreachable(b.id)
	if a.Status().Progress[1].Replicates {
		t.Error("nothing is known of lost messages")
	}
	if c.tick(2); !a.Status().Progress[1].Replicates {
		t.Error("it stays unreachable")
	}
}
