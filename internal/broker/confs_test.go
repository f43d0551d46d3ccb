package broker

import (
	"context"
	"reflect"
	"slices"
	"testing"
	"time"

	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"github.com/felix-go/felix/internal/placement"
	"github.com/felix-go/felix/internal/shard"
)

// TestOwnerKnows: a learner is caught up when it lacks little, and has what was
// committed at the look before; only those that were heard of are active.
func TestOwnerKnows(t *testing.T) {
	t.Parallel()
	learner := func(match uint64) shard.Progress {
		return shard.Progress{RaftID: 2, Match: match, Learner: true, Active: true, Replicates: true}
	}
	with := func(p shard.Progress, change func(*shard.Progress)) shard.Progress { change(&p); return p }
	for name, v := range map[string]struct {
		seen     uint64
		progress shard.Progress
		caughtUp bool
	}{
		"keeps up":                        {4000, learner(4500), true},
		"has just what was committed":     {4500, learner(4500), true},
		"lacks what was committed then":   {4501, learner(4500), false},
		"lacks too much":                  {3000, learner(4000), false},
		"lacks nearly too much":           {3000, learner(4001), true},
		"is looked at for the first time": {0, learner(5000), false},
		"was not heard of":                {4000, with(learner(4500), func(p *shard.Progress) { p.Active = false }), false},
		"gets a snapshot":                 {4000, with(learner(4500), func(p *shard.Progress) { p.Replicates = false }), false},
		"votes":                           {4000, with(learner(4500), func(p *shard.Progress) { p.Learner = false }), false},
	} {
		o := owned{replica: &replica{raftID: 1}, before: v.seen, status: shard.Status{LastIndex: 5000, Commit: 4900,
			Conf:     &raftpb.ConfState{Voters: []uint64{1}, Learners: []uint64{2}},
			Progress: []shard.Progress{{RaftID: 1}, v.progress}}}
		k := o.knows()
		if got := len(k.CaughtUp) == 1; got != v.caughtUp {
			t.Errorf("a learner that %s: caught up %v", name, k.CaughtUp)
		}
		active := []uint64{1}
		if v.progress.Active {
			active = append(active, 2)
		}
		if !reflect.DeepEqual(k.Active, active) || k.Conf.Joint {
			t.Errorf("a learner that %s: %+v", name, k)
		}
	}
	if !confOf(&raftpb.ConfState{Voters: []uint64{1}, VotersOutgoing: []uint64{2}}).Joint {
		t.Error("a joint configuration is none")
	}
}

func TestConfChangeOfSteps(t *testing.T) {
	t.Parallel()
	got := confChange([]placement.Step{{Raft: 4, Role: placement.Voter}, {Raft: 5, Role: placement.Learner}, {Raft: 6, Role: placement.Gone}})
	want := &raftpb.ConfChangeV2{Changes: []*raftpb.ConfChangeSingle{
		{Type: raftpb.ConfChangeAddNode.Enum(), NodeId: proto.Uint64(4)},
		{Type: raftpb.ConfChangeAddLearnerNode.Enum(), NodeId: proto.Uint64(5)},
		{Type: raftpb.ConfChangeRemoveNode.Enum(), NodeId: proto.Uint64(6)}}}
	if !proto.Equal(got, want) {
		t.Errorf("%v", got)
	}
}

// TestDeadIsWhoWasAwayForLong: a node is dead when the driver has seen it away
// for long, without having been away itself.
func TestDeadIsWhoWasAwayForLong(t *testing.T) {
	t.Parallel()
	const replaceAfter = 10 * time.Second
	v := newView()
	v.cluster = &clusterMeta{Shard: placement.Sole(metaShard, 1)}
	for id, state := range map[uint64]string{1: nodeActive, 2: nodeActive, 3: nodeDraining, 4: nodeRemoving, 5: nodeRemoved} {
		v.nodes[id] = &nodeMeta{ID: id, State: state}
	}
	d := &driver{}
	at := time.Duration(0)
	look := func(after time.Duration, up ...uint64) map[uint64]placement.Node {
		at += after
		there := map[uint64]bool{1: true}
		for _, id := range up {
			there[id] = true
		}
		d.look(v, at, there)
		nodes := map[uint64]placement.Node{}
		for _, n := range d.input(v, at, there, replaceAfter).Nodes {
			nodes[n.ID] = n
		}
		return nodes
	}
	dead := func(when string, want bool, nodes map[uint64]placement.Node) {
		t.Helper()
		if n := nodes[2]; n.Dead != want || n.Up {
			t.Errorf("%s: %+v", when, n)
		}
	}
	nodes := look(time.Hour, 3, 4, 5)
	dead("first seen away", false, nodes)
	if want := map[uint64]placement.Node{1: {ID: 1, Up: true}, 2: {ID: 2}, 3: {ID: 3, Up: true, State: placement.Draining},
		4: {ID: 4, Up: true, State: placement.Removing}}; !reflect.DeepEqual(nodes, want) {
		t.Errorf("nodes %+v", nodes)
	}
	for range 9 {
		dead("not for long yet", false, look(time.Second))
	}
	dead("for long", true, look(time.Second))
	if n := look(time.Second, 2)[2]; n.Dead || !n.Up {
		t.Errorf("back again: %+v", n)
	}
	dead("away again", false, look(time.Second))
	dead("not for long again", false, look(4*time.Second))
	dead("the driver was away itself", false, look(time.Minute))
	for range 9 {
		look(time.Second)
	}
	dead("it was there for long", true, look(time.Second))
}

// TestWhatARemovalWaitsFor says it in every case.
func TestWhatARemovalWaitsFor(t *testing.T) {
	t.Parallel()
	replicas := func(nodes ...uint64) (s placement.Shard) {
		s = placement.Shard{ID: 7, NextRaft: 10, Prefer: 1}
		for i, n := range nodes {
			s.Replicas = append(s.Replicas, placement.Replica{Raft: uint64(i + 1), Node: n, Want: placement.Voter, Have: placement.Voter})
		}
		return s
	}
	for name, c := range map[string]struct {
		state  string
		on     []uint64
		metaOn []uint64
		up     []uint64
		want   string
	}{
		"is active":          {nodeActive, []uint64{3}, []uint64{1}, []uint64{1, 2, 3}, ""},
		"goes":               {nodeRemoving, []uint64{2, 3}, []uint64{1}, []uint64{1, 2, 3}, "1 replica of cache t/n/c to go to other brokers"},
		"has no heirs":       {nodeDraining, []uint64{3}, []uint64{1}, []uint64{3}, "1 replica of cache t/n/c, for which there is no other broker that is up and may have them"},
		"has no majority":    {nodeRemoving, []uint64{2, 3}, []uint64{1}, []uint64{1, 3}, "1 replica, 1 of them of shards that have no majority, of cache t/n/c: bring their brokers back, or delete what may be lost"},
		"has only metadata":  {nodeRemoving, []uint64{2}, []uint64{1, 3}, []uint64{1, 2, 3}, "its copy of the metadata to be given up"},
		"keeps the metadata": {nodeDraining, []uint64{2}, []uint64{1, 3}, []uint64{1, 2, 3}, ""},
		"has nothing":        {nodeRemoving, []uint64{2}, []uint64{1}, []uint64{1, 2, 3}, "its removal to be noted"},
		"was removed":        {nodeRemoved, []uint64{2}, []uint64{1}, []uint64{1, 2}, ""},
	} {
		meta := replicas(c.metaOn...)
		meta.ID = metaShard
		v := viewWith(&clusterMeta{Shard: meta}, &cacheMeta{Tenant: "t", Namespace: "n", Name: "c", Shards: []placement.Shard{replicas(c.on...)}})
		v.nodes = map[uint64]*nodeMeta{1: {ID: 1, State: nodeActive}, 2: {ID: 2, State: nodeActive}, 3: {ID: 3, State: c.state}}
		up := map[uint64]bool{}
		for _, id := range c.up {
			up[id] = true
		}
		if got := v.waitsFor(v.nodes[3], up); got != c.want {
			t.Errorf("a node that %s: %q", name, got)
		}
	}
}

// ownedShard is the cache's only shard as its owner has it, with its broker.
func (c *testCluster) ownedShard() (b *Broker, o owned) {
	c.t.Helper()
	s := c.meta().caches[testScope].Shards[0]
	eventually(c.t, "somebody owns the shard", func() bool {
		for _, b = range c.brokers {
			r := b.replicaOf(s.ID)
			if r == nil {
				continue
			}
			b.onWorker(r, func(s *shard.Shard) { o = owned{replica: r, status: s.Status(), before: 1} })
			if o.status.Owns {
				return true
			}
		}
		return false
	})
	o.wish = &s
	return b, o
}

// TestOnlyAnOwnerReports: who has no majority does not know what the
// configuration is.
func TestOnlyAnOwnerReports(t *testing.T) {
	t.Parallel()
	c := openCluster(t, 3, nil)
	c.create(1, 3)
	c.awaitReplicas(3)
	b, o := c.ownedShard()
	if len(b.confirmOwners(context.Background(), []owned{o})) != 1 {
		t.Error("an owner is not confirmed")
	}
	other := o
	other.status.Term--
	if len(b.confirmOwners(context.Background(), []owned{other})) != 0 {
		t.Error("one of an earlier term is")
	}
	c.pipes.setCut(b.node, true)
	if len(b.confirmOwners(context.Background(), []owned{o})) != 0 {
		t.Error("one that is cut off is")
	}
}

// TestNothingIsChangedOnOldNews: a change of replicas is proposed only to the
// very configuration and term that it was thought of for, and what adds one only
// if the metadata still says so.
func TestNothingIsChangedOnOldNews(t *testing.T) {
	t.Parallel()
	c := openCluster(t, 1, nil)
	c.create(1, 1)
	b, o := c.ownedShard()
	stale := *o.wish
	stale.Replicas = append(slices.Clone(stale.Replicas), placement.Replica{Raft: stale.NextRaft, Node: 2, Want: placement.Voter})
	stale.NextRaft++
	o.wish = &stale
	steps := placement.NextConf(o.wish, o.knows())
	if len(steps) != 1 || !addsReplica(o.wish, steps) {
		t.Fatalf("steps %v", steps)
	}
	unchanged := func(what string) {
		t.Helper()
		b.onWorker(o.replica, func(s *shard.Shard) {
			if now := s.Status(); now.LastIndex != o.status.LastIndex || !proto.Equal(now.Conf, o.status.Conf) {
				t.Errorf("%s: it is changed: %+v, was %+v", what, now, o.status)
			}
		})
	}
	b.changeConfs(context.Background(), []owned{o})
	unchanged("a placement that is not in the metadata")
	later, other := o, o
	later.status.Term++
	b.changeConf(later, steps)
	unchanged("another term")
	other.status.Conf = &raftpb.ConfState{Voters: []uint64{1, 9}}
	b.changeConf(other, steps)
	unchanged("another configuration")
	b.changeConf(o, steps)
	b.onWorker(o.replica, func(*shard.Shard) {}) // it has been advanced
	b.onWorker(o.replica, func(s *shard.Shard) {
		if now := s.Status(); now.LastIndex == o.status.LastIndex {
			t.Error("nothing is changed at all")
		}
	})
}

// TestWishesAreForWhatWasPlanned: a change of a placement is not made to a later
// one.
func TestWishesAreForWhatWasPlanned(t *testing.T) {
	t.Parallel()
	c := openCluster(t, 2, nil)
	c.create(1, 2)
	c.awaitReplicas(2)
	b, v := c.brokers[0], c.meta()
	s := v.caches[testScope].Shards[0]
	other := 3 - s.Prefer
	change := placement.Change{Shard: s.ID, Prefer: other}
	c.must(b.updateShard(context.Background(), s.ID, func(s *placement.Shard) bool { s.NextRaft++; return true }))
	c.must(b.wish(context.Background(), v, change))
	if s := c.meta().caches[testScope].Shards[0]; s.Prefer == other {
		t.Errorf("a change for an earlier placement was made: %+v", s)
	}
	c.must(b.wish(context.Background(), c.meta(), change))
	if s := c.meta().caches[testScope].Shards[0]; s.Prefer != other {
		t.Errorf("it was not made at all: %+v", s)
	}
}

// viewWith is a view of these records.
func viewWith(cluster *clusterMeta, caches ...*cacheMeta) *view {
	v := newView()
	v.take(cluster)
	for _, m := range caches {
		v.take(m)
	}
	return v
}
