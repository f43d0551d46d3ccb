package broker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/peer"
	"github.com/felix-go/felix/internal/peer/peerv1"
	"github.com/felix-go/felix/internal/placement"
	"github.com/felix-go/felix/internal/slots"
)

// TestFirstSlots: the topology's slots are those that requests are sent by.
func TestFirstSlots(t *testing.T) {
	t.Parallel()
	for _, shards := range []int{1, 2, 3, 7, 64, 100, felix.MaxShardsPerCache} {
		for number := range shards {
			first, next := firstSlot(number, shards), firstSlot(number+1, shards)
			if slots.Shard(uint16(first), shards) != number || slots.Shard(uint16(next-1), shards) != number {
				t.Errorf("shard %d of %d has slots %d to %d", number, shards, first, next-1)
			}
		}
		if firstSlot(0, shards) != 0 || firstSlot(shards, shards) != felix.SlotCount {
			t.Errorf("%d shards do not cover the slots", shards)
		}
	}
}

// TestShardInfo: a shard is described as its owner knows it; without one, as it
// was placed.
func TestShardInfo(t *testing.T) {
	t.Parallel()
	s := &placement.Shard{ID: 7, NextRaft: 4, Prefer: 2, Replicas: []placement.Replica{
		{Raft: 1, Node: 1, Want: placement.Gone, Have: placement.Voter}, {Raft: 2, Node: 2, Want: placement.Voter, Have: placement.Learner},
		{Raft: 3, Node: 3, Want: placement.Voter}}}
	owner := func(term uint64) *peerv1.StatusResponse {
		return &peerv1.StatusResponse{Shards: []*peerv1.ShardStatus{{Shard: 7, RaftId: 1, Term: term, Owns: true, Commit: 90,
			Voters: []uint64{2}, VotersOutgoing: []uint64{1}, Learners: []uint64{3},
			Progress: []*peerv1.ReplicaProgress{{RaftId: 1, Node: 1, Match: 95}, {RaftId: 2, Node: 2, Match: 80, Active: true},
				{RaftId: 3, Node: 3, Sending: &peerv1.SnapshotStatus{Bytes: 10, EstimatedBytes: 20}}}}}}
	}
	owners := ownersIn(map[uint64]*peerv1.StatusResponse{1: owner(6), 2: owner(5), 3: {Shards: []*peerv1.ShardStatus{{Shard: 7, Term: 9}}}})
	got := shardInfo(s, owners[7])
	want := felix.ShardInfo{ID: 7, Owner: 1, Preferred: 2, Term: 6, Commit: 90, Replicas: []felix.ReplicaInfo{
		{Node: 1, RaftID: 1, Want: felix.ReplicaGone, Have: felix.ReplicaVoter, Match: 95, Active: true},
		{Node: 2, RaftID: 2, Want: felix.ReplicaVoter, Have: felix.ReplicaVoter, Match: 80, Lag: 10, Active: true},
		{Node: 3, RaftID: 3, Want: felix.ReplicaVoter, Have: felix.ReplicaLearner, Lag: 90, Snapshot: &felix.SnapshotInfo{SentBytes: 10, EstimateBytes: 20}}}}
	if got.Owner != want.Owner || got.Term != want.Term || got.Commit != want.Commit || got.Preferred != want.Preferred {
		t.Errorf("%+v", got)
	}
	for i, r := range got.Replicas {
		w := want.Replicas[i]
		if (r.Snapshot == nil) != (w.Snapshot == nil) || r.Snapshot != nil && *r.Snapshot != *w.Snapshot {
			t.Errorf("snapshot of replica %d: %+v", r.RaftID, r.Snapshot)
		}
		if r.Snapshot, w.Snapshot = nil, nil; r != w {
			t.Errorf("%+v, want %+v", r, w)
		}
	}
	if got := shardInfo(s, ownersIn(nil)[7]); got.Owner != 0 || got.Replicas[1].Have != felix.ReplicaLearner || got.Replicas[1].Match != 0 {
		t.Errorf("without an owner: %+v", got)
	}
}

// wantCode fails unless err has the code, and says the words.
func wantCode(t *testing.T, what string, err error, code felix.Code, words string) {
	t.Helper()
	if err == nil || felix.AsError(err).Code != code || !strings.Contains(err.Error(), words) {
		t.Errorf("%s: %v", what, err)
	}
}

// TestRefusalsOfOperators: what cannot be is refused, with what to do.
func TestRefusalsOfOperators(t *testing.T) {
	t.Parallel()
	c := openCluster(t, 3, func(o *Options) { o.ReplicationIsTarget = true })
	b, ctx := c.brokers[1], context.Background()
	c.create(2, 2)
	c.awaitReplicas(2)
	on := func(number int) (nodes []uint64, free uint64) {
		shards, err := b.Shards(ctx, &testScope)
		c.must(err)
		for _, r := range shards[number].Replicas {
			nodes = append(nodes, r.Node)
		}
		for free = 1; slices.Contains(nodes, free); free++ {
		}
		return nodes, free
	}
	nodes, free := on(0)
	move := func(number int, from, to uint64) error {
		_, err := b.MoveShard(ctx, testScope, number, from, to)
		return err
	}
	wantCode(t, "a shard that is not", move(2, nodes[0], free), felix.ShardNotFound, "0 to 1")
	wantCode(t, "from a node that is not", move(0, 9, free), felix.NodeNotFound, "node 9")
	wantCode(t, "to a node that is not", move(0, nodes[0], 9), felix.NodeNotFound, "node 9")
	wantCode(t, "to itself", move(0, nodes[0], nodes[0]), felix.InvalidArgument, "another node")
	wantCode(t, "to one that has one", move(0, nodes[0], nodes[1]), felix.InvalidArgument, "has a replica")
	wantCode(t, "from one that has none", move(0, free, free%3+1), felix.InvalidArgument, "")
	_, err := b.MoveShard(ctx, felix.Scope{Tenant: "t", Namespace: "n", Cache: "none"}, 0, 1, 2)
	wantCode(t, "a cache that is not", err, felix.CacheNotFound, "no such cache")
	_, err = b.PreferOwner(ctx, testScope, 0, free)
	wantCode(t, "an owner without a replica", err, felix.InvalidArgument, "move one there")
	_, err = b.PreferOwner(ctx, testScope, 0, 9)
	wantCode(t, "an owner that is not", err, felix.NodeNotFound, "node 9")
	for _, do := range []func(uint64) error{
		func(id uint64) error { _, err := b.DrainNode(ctx, id, true); return err },
		func(id uint64) error { _, err := b.DrainNode(ctx, id, false); return err },
		func(id uint64) error { _, err := b.RemoveNode(ctx, id); return err },
	} {
		wantCode(t, "a node that is not", do(9), felix.NodeNotFound, "node 9")
	}
	c.pipes.setCut(free, true)
	wantCode(t, "to one that is away", move(0, nodes[0], free), felix.InvalidArgument, "cannot be reached")
	c.pipes.setCut(free, false)
	for _, id := range []uint64{1, 2} {
		_, err := b.DrainNode(ctx, id, true)
		c.must(err)
	}
	_, err = b.DrainNode(ctx, 3, true)
	wantCode(t, "the last node", err, felix.InvalidArgument, "only one")
	_, err = b.RemoveNode(ctx, 3)
	wantCode(t, "the last node", err, felix.InvalidArgument, "only one")
	_, err = b.FinalizeFeature(ctx, "no_such")
	wantCode(t, "a feature that is not", err, felix.FeatureNotFound, "no_such")
}

// TestRemovalThatLeavesTooFew: a cache that has replicas on all brokers keeps its
// brokers, unless one is away.
func TestRemovalThatLeavesTooFew(t *testing.T) {
	t.Parallel()
	c := openCluster(t, 3, nil)
	c.create(1, 3)
	c.awaitReplicas(3)
	b := c.brokers[0]
	b.opts.ReplicationIsTarget = false // as in production
	_, err := b.RemoveNode(context.Background(), 3)
	wantCode(t, "one of three", err, felix.InvalidArgument, "--replication 2")
	c.pipes.setCut(3, true)
	info, err := b.RemoveNode(context.Background(), 3)
	c.must(err)
	if info.State != felix.NodeRemoving || info.Up {
		t.Errorf("%+v", info)
	}
	again, err := b.RemoveNode(context.Background(), 3)
	if c.must(err); again.State != felix.NodeRemoving && again.State != felix.NodeRemoved {
		t.Errorf("%+v", again)
	}
	eventually(t, "it is removed, though it is away", func() bool { return c.meta().nodes[3].State == nodeRemoved })
	_, err = b.DrainNode(context.Background(), 3, false)
	wantCode(t, "back from the dead", err, felix.InvalidArgument, "new id")
}

// TestFinalizeFeature: a feature is finalized once all have it, for good.
func TestFinalizeFeature(t *testing.T) {
	t.Parallel()
	c := openCluster(t, 2, nil)
	b, ctx := c.brokers[1], context.Background()
	features, err := b.Features(ctx)
	c.must(err)
	if len(features) != len(supportedFeatures()) || features[1].Name != leaseFreeReads || !features[1].Finalized || features[1].FinalizedAtMillis == 0 || features[1].Summary == "" || len(features[1].Lacking) > 0 {
		t.Errorf("%+v", features)
	}
	again, err := b.FinalizeFeature(ctx, leaseFreeReads)
	if c.must(err); again.FinalizedAtMillis != features[1].FinalizedAtMillis {
		t.Errorf("finalized twice: %+v", again)
	}
	_, err = b.metaDo(ctx, felix.Op{Kind: felix.Delete, View: felix.ViewValue, Key: []byte(featurePrefix + leaseFreeReads)})
	c.must(err)
	setFeatures := func(features []string) {
		c.must(b.updateNode(ctx, 1, func(n *nodeMeta) bool { n.Features = features; return true }))
	}
	setFeatures([]string{})
	_, err = b.FinalizeFeature(ctx, leaseFreeReads)
	wantCode(t, "one lacks it", err, felix.InvalidArgument, "[1]")
	setFeatures(supportedFeatures())
	if f, err := b.FinalizeFeature(ctx, leaseFreeReads); err != nil || !f.Finalized || f.FinalizedAtMillis < time.Now().Add(-time.Minute).UnixMilli() {
		t.Errorf("%+v, %v", f, err)
	}
}

// TestTopology: it names the owner of each slot.
func TestTopology(t *testing.T) {
	t.Parallel()
	c := openCluster(t, 3, nil)
	c.create(3, 3)
	c.awaitReplicas(3)
	top, err := c.brokers[2].Topology(context.Background(), testScope)
	c.must(err)
	next := 0
	for i, s := range top.Shards {
		if s.Number != i || s.FirstSlot != next || s.Owner == 0 || len(s.Nodes) != 3 {
			t.Errorf("shard %d: %+v", i, s)
		}
		next = s.LastSlot + 1
	}
	if next != felix.SlotCount {
		t.Errorf("the slots end at %d", next)
	}
	nodes, err := c.brokers[2].Nodes(context.Background())
	c.must(err)
	owned, replicas := 0, 0
	for i, n := range nodes {
		owned, replicas = owned+n.Owned, replicas+n.Replicas
		if n.ID != uint64(i+1) || !n.Up || n.Here != (n.ID == 3) || n.State != felix.NodeActive {
			t.Errorf("%+v", n)
		}
	}
	if owned != 4 || replicas != 12 {
		t.Errorf("%d owned, %d replicas: %+v", owned, replicas, nodes)
	}
}

// TestCachesAreNamed: a sentence names the first few caches, each once.
func TestCachesAreNamed(t *testing.T) {
	t.Parallel()
	for names, want := range map[string]string{
		"b": "cache t/n/b", "bb": "cache t/n/b", "ba": "caches t/n/a, t/n/b", "cba": "caches t/n/a, t/n/b, t/n/c",
		"dcbae": "caches t/n/a, t/n/b, t/n/c and 2 more",
	} {
		var caches []*cacheMeta
		for _, name := range names {
			caches = append(caches, &cacheMeta{Tenant: "t", Namespace: "n", Name: string(name)})
		}
		if got := namesOf(caches); got != want {
			t.Errorf("%s: %q", names, got)
		}
	}
}

// TestDirectoryIsNamedOnce: errors on their way out are not given the directory's
// name again.
func TestDirectoryIsNamedOnce(t *testing.T) {
	t.Parallel()
	err := inDir("d", dirErrorf("d", "it has gone: %w", peer.OldCopy(2)))
	var refused *peer.Refusal
	if text := err.Error(); !strings.HasPrefix(text, "data directory d: it has gone: node 2 ") || strings.Count(text, "data directory") != 1 || !errors.As(err, &refused) {
		t.Error(err)
	}
}

// during has the brokers of a cluster call f once, when one of them comes to the
// step.
type during struct {
	mu   sync.Mutex
	step string
	f    func()
}

func (d *during) at(step string, f func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.step, d.f = step, f
}

func (d *during) told(step string) {
	d.mu.Lock()
	f := d.f
	if step != d.step {
		f = nil
	} else {
		d.f, d.step = nil, ""
	}
	d.mu.Unlock()
	if f != nil {
		f()
	}
}

// TestTwoAreEmptiedAtOnce: of the last two nodes that can have replicas one stays,
// even if both are found to be able to go.
func TestTwoAreEmptiedAtOnce(t *testing.T) {
	t.Parallel()
	var d during
	c := openCluster(t, 2, func(o *Options) { o.Cluster.OnStep = d.told })
	ctx := context.Background()
	both := func(name string, empty func(id uint64) error) {
		t.Helper()
		d.at("node-state-checked", func() { c.must(empty(1)) })
		wantCode(t, "both are "+name, empty(2), felix.InvalidArgument, "only one")
		if s := c.meta().nodes[2].State; s != nodeActive {
			t.Errorf("both are %s: node 2 is %s", name, s)
		}
	}
	b := c.brokers[0]
	both("drained", func(id uint64) error { _, err := b.DrainNode(ctx, id, true); return err })
	_, err := b.DrainNode(ctx, 1, false)
	c.must(err)
	both("removed", func(id uint64) error { _, err := b.RemoveNode(ctx, id); return err })
}

// TestCreatedWhileANodeIsRemoved: a cache is not left on a node that was removed
// after it was chosen.
func TestCreatedWhileANodeIsRemoved(t *testing.T) {
	t.Parallel()
	var d during
	c := openCluster(t, 3, func(o *Options) { o.Cluster.OnStep = d.told })
	ctx := context.Background()
	d.at("create-ids", func() {
		_, err := c.brokers[0].RemoveNode(ctx, 3)
		c.must(err)
		eventually(t, "node 3 is removed", func() bool { return c.meta().nodes[3].State == nodeRemoved })
	})
	c.create(8, 1)
	for _, s := range c.meta().caches[testScope].Shards {
		if s.ReplicaOn(3) != 0 {
			t.Errorf("shard %d is on node 3", s.ID)
		}
	}
	ca, err := c.brokers[0].Cache(ctx, testScope)
	c.must(err)
	for k := range 30 {
		mustDo(t, ca.(*cache), add(fmt.Sprint(k), 1))
	}
}
