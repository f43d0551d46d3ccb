package shard

import (
	"math"
	"testing"

	"go.etcd.io/raft/v3/raftpb"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/record"
)

// addOnce is an add with an id.
func addOnce(key string, delta int64, id string) felix.Op {
	op := add(key, delta)
	op.Once = &felix.Once{ID: []byte(id)}
	return op
}

// wantReplayed checks a reply that is a duplicate's, or the first's.
func (k *call) wantReplayed(what string, i int, sum int64, replayed bool) {
	k.on.c.t.Helper()
	k.want(what, i, sum, 0)
	if k.reply(i).Replayed != replayed {
		k.on.c.t.Errorf("%s: replayed %v", what, k.reply(i).Replayed)
	}
}

// Broken: endOnce left out where the operation has changed nothing (evaluate.go).
func TestRule5ARefusalWithAnIDIsRecorded(t *testing.T) {
	c, a := led(t, 3, felix.Quorum)
	a.ops(add("max", math.MaxInt64))
	c.run()
	k := a.ops(addOnce("max", 1, "x"))
	c.run()
	k.want("overflow", 0, 0, felix.OutOfRange)
	a.ops(add("max", -10))
	c.run()
	c.elect(c.nodes[1])
	k = c.nodes[1].ops(addOnce("max", 1, "x"), addOnce("max", 1, "y"))
	c.run()
	k.want("the refusal again, at another owner", 0, 0, felix.OutOfRange)
	k.wantReplayed("another id", 1, math.MaxInt64-9, false)
}

// Broken: `r.dep = max(r.dep, inflight)` in beginOnce (ids.go).
func TestRule5ADuplicateWaitsForTheFirst(t *testing.T) {
	for _, n := range []int{1, 3} {
		c, a := led(t, n, felix.Quorum)
		a.ops(addOnce("other", 1, "x")) // so that no ceiling is waited for
		c.run()
		for _, r := range c.nodes {
			r.hold = true
		}
		first := a.ops(addOnce("k", 1, "x"))
		c.run()
		again, other := a.ops(addOnce("k", 1, "x")), a.ops(addOnce("k", 2, "x"))
		c.run()
		first.waits("nothing is on disk")
		again.waits("what it saw is not committed")
		other.waits("neither is this")
		for _, r := range c.nodes {
			r.hold = false
		}
		c.run()
		first.wantReplayed("the first", 0, 1, false)
		again.wantReplayed("the duplicate", 0, 1, true)
		other.want("another operation", 0, 0, felix.IDReused)
	}
}

// Broken: the fence of what beginOnce answers (read, in evaluateOps); Replayed in
// fail (request.go).
func TestRule5AReplayedReplyIsARead(t *testing.T) {
	c, a := led(t, 3, felix.Quorum)
	k := a.ops(addOnce("k", 1, "x"))
	c.run()
	k.wantReplayed("the first", 0, 1, false)
	entries := a.Stats().Entries
	c.block = types(raftpb.MsgHeartbeatResp)
	k = a.ops(addOnce("k", 1, "x"))
	c.run()
	k.waits("a replayed reply is a read, which waits for a fence")
	c.block = nil
	c.run()
	k.wantReplayed("a duplicate", 0, 1, true)
	if n := a.Stats().Entries; n != entries {
		t.Errorf("a duplicate made %d entries", n-entries)
	}
	c.cut[a.id] = true
	k = a.ops(addOnce("k", 1, "x"))
	c.elect(c.nodes[1])
	c.tick(2*testElectionTicks + 1)
	k.want("a duplicate at an owner that was deposed", 0, 0, felix.Unavailable)
}

// TestAnUnknownOutcomeIsRetried: whether the first was lost with its owner or not,
// its retry at the next owner counts once.
func TestAnUnknownOutcomeIsRetried(t *testing.T) {
	for _, kept := range []bool{false, true} {
		c, a := led(t, 3, felix.Quorum)
		b := c.nodes[1]
		if !kept {
			c.cut[a.id] = true
		} else {
			c.block = types(raftpb.MsgAppResp)
		}
		k := a.ops(addOnce("k", 5, "x"))
		c.run()
		k.waits("no majority has said that it has it")
		c.block = nil
		c.cut[a.id] = true
		c.elect(b)
		again := b.ops(addOnce("k", 5, "x"))
		c.run()
		again.wantReplayed("the retry", 0, 5, kept)
		c.cut[a.id] = false
		c.tick(2*testElectionTicks + 1)
		k.want("the first", 0, 0, felix.OutcomeUnknown)
		last := b.ops(addOnce("k", 5, "x"), get("k"))
		c.run()
		last.wantReplayed("once more", 0, 5, true)
		last.want("the sum", 1, 5, 0)
	}
}

// TestIDsAreLoaded: an id that only the disk has is loaded first, beside its key;
// what its request asks besides keeps its order.
// Broken: HasAllIDs in loadsID (ids.go); the id in waits of findAll (evaluate.go).
func TestIDsAreLoaded(t *testing.T) {
	c, a := led(t, 1, felix.Quorum)
	k := a.ops(addOnce("k", 1, "x"), addOnce("j", 10, "x"))
	c.run()
	k.want("add", 1, 10, 0)
	a.checkpoint()
	a.crash()
	a.start()
	c.run()
	a.stuck = true
	k = a.ops(addOnce("k", 1, "x"), addOnce("k", 1, "new"), add("j", 1), addOnce("j", 10, "x"))
	c.run()
	k.waits("nothing is loaded")
	ids := 0
	for _, l := range a.loads {
		if l.ID {
			ids++
		}
	}
	if ids != 3 {
		t.Errorf("%d ids are loaded", ids)
	}
	a.stuck = false
	c.run()
	k.wantReplayed("the first id", 0, 1, true)
	k.wantReplayed("a new id", 1, 2, false)
	k.want("without an id", 2, 11, 0)
	k.wantReplayed("the other id", 3, 10, true)
	if n := a.table.Counts().IDs; n != 3 {
		t.Errorf("%d ids", n)
	}
}

// TestIDsAreBounded: what is in flight counts, and what was lost does not.
// Broken: inflight and entry.change in beginOnce (ids.go).
func TestIDsAreBounded(t *testing.T) {
	c, a := led(t, 3, felix.Quorum)
	a.SetMaxIDs(3)
	a.hold = true
	one := a.ops(addOnce("k", 1, "a"))
	c.run()
	k := a.ops(addOnce("k", 1, "b"), addOnce("k", 1, "c"), addOnce("k", 1, "d"), addOnce("k", 1, "b"))
	a.hold = false
	c.run()
	one.want("in flight", 0, 1, 0)
	k.want("the third", 1, 3, 0)
	k.want("the fourth", 2, 0, felix.ResourceExhausted)
	k.wantReplayed("an old one", 3, 2, true)
	c.cut[a.id] = true
	a.SetMaxIDs(4)
	lost := a.ops(addOnce("k", 1, "lost"))
	c.run()
	c.elect(c.nodes[1])
	c.cut[a.id] = false
	c.tick(2*testElectionTicks + 1)
	lost.want("lost", 0, 0, felix.OutcomeUnknown)
	c.elect(a)
	k = a.ops(addOnce("k", 1, "e"), addOnce("k", 1, "f"))
	c.run()
	k.want("what was lost does not count", 0, 4, 0)
	k.want("but this is one too many", 1, 0, felix.ResourceExhausted)
}

// TestIDsAreSwept: what has expired is deleted in the log, on every replica, also
// where it has to be loaded; what has not stays.
// Broken: Sweep in sweepID; waiter in sweepIDs (ids.go).
func TestIDsAreSwept(t *testing.T) {
	c, a := led(t, 3, felix.Quorum)
	short := addOnce("k", 1, "short")
	short.Once.RetentionMillis = 1
	k := a.ops(short, addOnce("k", 1, "long"))
	c.run()
	k.want("add", 1, 2, 0)
	for _, r := range c.nodes {
		r.checkpoint()
		r.crash()
		r.start()
	}
	c.elect(a)
	c.tick(2)
	ids := []record.IDKey{a.ids.digest.Key([]byte("k"), []byte("short")), a.ids.digest.Key([]byte("k"), []byte("long")),
		a.ids.digest.Key([]byte("k"), []byte("none"))}
	swept := a.submit(&Request{Kind: SweepIDs, IDs: ids})
	c.run()
	if !swept.done || swept.Err != nil {
		t.Fatalf("swept %v, %v", swept.done, swept.Err)
	}
	for _, r := range c.nodes {
		if n := r.table.Counts().IDs; n != 1 {
			t.Errorf("replica %d has %d ids", r.id, n)
		}
	}
	k = a.ops(short, addOnce("k", 1, "long"))
	c.run()
	k.wantReplayed("a swept id", 0, 3, false)
	k.wantReplayed("one that is kept", 1, 2, true)
	entries := a.Stats().Entries
	swept = a.submit(&Request{Kind: SweepIDs, IDs: ids[1:2]})
	c.run()
	if n := a.Stats().Entries; n != entries || !swept.done {
		t.Errorf("a sweep that finds nothing made %d entries", n-entries)
	}
}
