package broker

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/peer"
	"github.com/felix-go/felix/internal/peer/peerv1"
	"github.com/felix-go/felix/internal/record"
	"github.com/felix-go/felix/internal/store"
)

// chain is the chain of a node's replica, and how far it is applied.
func (g *group) chain(node uint64) (index uint64, c record.Chain) {
	g.t.Helper()
	g.onWorker(node, func(r *replica) {
		a := r.shard.Table().Applied()
		index, c = a.Index, a.Chain
	})
	return index, c
}

// sameChains waits until the nodes' replicas have the same chain, from the shard's
// first entry on.
func (g *group) sameChains(nodes ...uint64) {
	g.t.Helper()
	eventually(g.t, "the chains are the same", func() bool {
		index, want := g.chain(nodes[0])
		if want.Base != bootstrapIndex || want.Sum == 0 {
			g.t.Fatalf("the chain of node %d is %+v", nodes[0], want)
		}
		for _, node := range nodes[1:] {
			at, got := g.chain(node)
			if at == index && got != want {
				g.t.Fatalf("the chain of node %d is %+v, that of node %d %+v at entry %d", node, got, nodes[0], want, index)
			}
			if at != index {
				return false
			}
		}
		return true
	})
}

// TestChainGoesOn: a replica's chain is what it would be without a restart, a lost
// power, a snapshot, a change of the configuration.
func TestChainGoesOn(t *testing.T) {
	t.Parallel()
	g := newGroup(t)
	g.add()
	g.checkpoint()
	g.add() // replayed
	node := g.follower()
	g.waitFor(node)
	g.name(node)
	g.restart(node, g.mems[node].CrashClone(vfs.CrashCloneCfg{}))
	g.waitFor(node)
	g.sameChains(1, 2, 3)
	node = g.lag()
	g.heal(node)
	g.waitFor(node)
	if g.pipes.snapshots == 0 {
		t.Error("no snapshot was sent")
	}
	g.join()
	eventually(t, "the new replica has something", func() bool { return g.status(4).Applied > 1 })
	g.waitFor(4)
	g.sameChains(1, 2, 3, 4)
}

// TestChainIsStoredOnceAllCanReadIt: until the feature is finalized the disk has
// what older builds can read, and a restart begins a new chain.
func TestChainIsStoredOnceAllCanReadIt(t *testing.T) {
	t.Parallel()
	mem, ctx := vfs.NewMem(), context.Background()
	b, _ := openOn(t, mem, 1, nil)
	if _, err := b.metaDo(ctx, felix.Op{Kind: felix.Delete, View: felix.ViewValue, Key: []byte(featurePrefix + replicaHashes)}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the feature is not finalized", func() bool { return !b.view().features[replicaHashes] })
	c := makeCache(t, b, "d", 1)
	id := c.(*cache).shards[0].id
	stored := func() record.Applied {
		t.Helper()
		mustDo(t, c, add("k", 1))
		if err := b.checkpoint.all(ctx); err != nil {
			t.Fatal(err)
		}
		a, ok, err := b.db.Applied(id)
		if !ok || err != nil || a.Index <= bootstrapIndex {
			t.Fatalf("%+v, %v", a, err)
		}
		return a
	}
	before := stored()
	if before.Chain != (record.Chain{}) {
		t.Errorf("stored before all can read it: %+v", before.Chain)
	}
	if err := closeBroker(b); err != nil {
		t.Fatal(err)
	}
	b, _ = openOnAgain(t, mem)
	c, err := b.Cache(ctx, felix.Scope{Tenant: "t", Namespace: "n", Cache: "d"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.FinalizeFeature(ctx, replicaHashes); err != nil {
		t.Fatal(err)
	}
	if after := stored(); after.Chain.Base < before.Index || after.Chain.Sum == 0 {
		t.Errorf("stored when all can read it: %+v, was at %d", after.Chain, before.Index)
	}
	if err := closeBroker(b); err != nil {
		t.Fatal(err)
	}
}

// fatals are the reasons why brokers have ended, by node.
type fatals struct {
	mu  sync.Mutex
	why map[uint64]string
}

// newWatchedGroup is a group whose brokers may end.
func newWatchedGroup(t *testing.T, tune func(*Options)) (*group, *fatals) {
	f := &fatals{why: map[uint64]string{}}
	return newGroupWith(t, func(o *Options) {
		node := o.NodeID
		o.Fatal = func(err error) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.why[node] += err.Error()
		}
		tune(o)
	}), f
}

func (f *fatals) of(node uint64) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.why[node]
}

// only fails unless just this node has ended, and says what to do.
func (f *fatals) only(t *testing.T, node uint64, what string) {
	t.Helper()
	eventually(t, "the broker ends", func() bool { return f.of(node) != "" })
	f.mu.Lock()
	defer f.mu.Unlock()
	why := f.why[node]
	if len(f.why) != 1 || strings.Contains(why, "\n") || !strings.Contains(why, fmt.Sprintf("shard %d: ", sharedShard)) ||
		!strings.Contains(why, what+" differs at entry ") || !strings.Contains(why, fmt.Sprintf("`felixctl node rm %d`", node)) {
		t.Errorf("the brokers ended with %v", f.why)
	}
}

// plant has the nodes get another entry than the others the next time that the sum
// of key 7 is written.
func (g *group) plant(nodes ...uint64) {
	p := g.pipes
	p.mu.Lock()
	defer p.mu.Unlock()
	p.alter = func(to uint64, m peer.Message) {
		for _, node := range nodes {
			if to != node || m.Shard != sharedShard || m.M.GetType() != raftpb.MsgApp {
				continue
			}
			for _, e := range m.M.GetEntries() {
				e.Data = altered(e.GetData())
			}
		}
	}
}

// altered is an entry with another sum of key 7.
func altered(payload []byte) []byte {
	r, err := record.ReadEntry(payload)
	if err != nil || len(payload) == 0 {
		return payload
	}
	b := record.AppendHeader(nil, r.Header)
	var w record.Write
	for r.More() {
		if err := r.Next(&w); err != nil || w.Kind != record.PutCounter {
			return payload
		}
		if string(w.Key) == "key 7" {
			w.Sum += 1000
		}
		b = record.AppendPutCounter(b, w.Key, w.Sum, w.Expiry, w.Step)
	}
	return b
}

// calm waits until the owner has compared all replicas, and nobody has anything
// against them.
func (g *group) calm(f *fatals) {
	g.t.Helper()
	compared := func() (n uint64) {
		for _, b := range g.brokers {
			n += b.Stats().Compared
		}
		return n
	}
	before := compared()
	g.add() // what rests is not compared
	eventually(g.t, "the replicas are compared", func() bool { return compared() >= before+2 })
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, b := range g.brokers {
		if n := b.Stats().Differing; n != 0 || len(f.why) > 0 {
			g.t.Fatalf("node %d knows of %d differences, and there are none; ended: %v", b.node, n, f.why)
		}
	}
}

// TestReplicaThatDiffersStops: one that has applied something else than most, the
// owner as well as another, ends, and no other does.
func TestReplicaThatDiffersStops(t *testing.T) {
	t.Parallel()
	for name, planted := range map[string]func(owner uint64) (nodes []uint64, wrong uint64){
		"a follower": func(owner uint64) ([]uint64, uint64) { return []uint64{owner%3 + 1}, owner%3 + 1 },
		"the owner":  func(owner uint64) ([]uint64, uint64) { return []uint64{owner%3 + 1, (owner+1)%3 + 1}, owner },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g, f := newWatchedGroup(t, func(*Options) {})
			g.calm(f)
			nodes, wrong := planted(g.owner())
			g.plant(nodes...)
			g.add()
			f.only(t, wrong, "log")
			if err := closeBroker(g.brokers[wrong-1]); err != nil {
				t.Error(err)
			}
			g.brokers[wrong-1] = nil
			b, err := Open(context.Background(), Options{Dir: "data", NodeID: wrong, FS: g.disks[wrong]})
			if err == nil || !strings.HasSuffix(err.Error(), f.of(wrong)) {
				t.Errorf("started again on what cannot be trusted: %v, %v", b, err)
			}
		})
	}
}

// TestReplicasThatDifferRaiseAnAlarm: where no majority is known to be right nobody
// ends; and when there is one, the other does.
func TestReplicasThatDifferRaiseAnAlarm(t *testing.T) {
	t.Parallel()
	g, f := newWatchedGroup(t, func(*Options) {})
	g.calm(f)
	leads := g.owner()
	wrong, away := leads%3+1, (leads+1)%3+1
	g.pipes.setCut(away, true)
	g.plant(wrong)
	g.add()
	eventually(t, "the alarm is raised", func() bool {
		return g.brokers[leads-1].Stats().Differing == 1 && g.brokers[wrong-1].Stats().Differing == 1
	})
	g.alarm(f, leads, chainHash, verdictUndecided, wrong)
	g.heal(away)
	f.only(t, wrong, "log")
	eventually(t, "it is known who was right", func() bool { return g.alarmed(leads, chainHash).verdict == verdictOther })
}

// alarmed is what a node knows of replicas that differ.
func (g *group) alarmed(node uint64, what hashKind) judgement {
	e := g.brokers[node-1].equality
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.differ[mismatch{sharedShard, what}]
}

// alarm fails unless a node, which goes on, shows that the replica of another differs.
func (g *group) alarm(f *fatals, node uint64, what hashKind, want verdict, wrong uint64) {
	g.t.Helper()
	j := g.alarmed(node, what)
	if j.verdict != want || !slices.Equal(j.others, []uint64{100 + wrong}) || f.of(node)+f.of(wrong) != "" {
		g.t.Errorf("the alarm is %+v; ended: %q, %q", j, f.of(node), f.of(wrong))
	}
	status, err := g.brokers[node-1].clusterStatus(context.Background())
	if err != nil {
		g.t.Fatal(err)
	}
	place := sharedPlacement(4)
	for _, r := range shardInfo(&place, ownersIn(map[uint64]*peerv1.StatusResponse{node: status})[sharedShard]).Replicas {
		if r.Differs != (r.Node == wrong) {
			g.t.Errorf("the replica of node %d is shown as %+v", r.Node, r)
		}
	}
}

// spoil changes a record that a node has on its disk, and nowhere else.
func (g *group) spoil(node uint64) {
	g.t.Helper()
	b := g.brokers[node-1]
	a, ok, err := b.db.Applied(sharedShard)
	if !ok || err != nil {
		g.t.Fatalf("%v, %v", ok, err)
	}
	var c record.Cell
	if err := b.db.Load(sharedShard, []byte("key 7"), &c); err != nil || c.Has != record.HasCounter {
		g.t.Fatalf("%+v, %v", c, err)
	}
	c.Sum++
	part := store.Checkpoint{Shard: sharedShard, Applied: a, Records: []store.CheckpointRecord{{Key: []byte("key 7"), Cell: c}}}
	if err := b.db.WriteCheckpoint(part); err != nil {
		g.t.Fatal(err)
	}
}

// TestStateThatDiffersStops: a replica whose state on disk is not what the log
// makes of it ends, though it has applied what all have.
func TestStateThatDiffersStops(t *testing.T) {
	t.Parallel()
	g, f := newWatchedGroup(t, func(o *Options) { o.HashStatesEvery = 300 * time.Millisecond })
	hashed := func(n uint64) {
		t.Helper()
		eventually(t, "states are compared", func() bool {
			for _, b := range g.brokers[:3] {
				if b.Stats().StatesHashed < n {
					return false
				}
			}
			return true
		})
	}
	hashed(2) // of a shard that rests, too
	g.add()
	hashed(4)
	g.calm(f)
	g.checkpoint()
	leads := g.owner()
	wrong, away := leads%3+1, (leads+1)%3+1
	g.pipes.setCut(away, true)
	g.spoil(wrong)
	eventually(t, "the alarm is raised", func() bool {
		return g.brokers[leads-1].Stats().Differing == 1 && g.brokers[wrong-1].Stats().Differing == 1
	})
	g.alarm(f, leads, stateHash, verdictUndecided, wrong)
	g.heal(away)
	f.only(t, wrong, "state")
}

// TestStatesAreHashedUnderLoad: all replicas hash their state as of the same entry,
// though the shard does not rest.
func TestStatesAreHashedUnderLoad(t *testing.T) {
	t.Parallel()
	g, f := newWatchedGroup(t, func(o *Options) { o.HashStatesEvery, o.CheckpointEvery = 300*time.Millisecond, 70*time.Millisecond })
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
				g.add()
			}
		}
	}()
	eventually(t, "states are compared", func() bool {
		same := map[uint64]int{}
		for _, b := range g.brokers[:3] {
			for _, p := range b.equality.states.of(sharedShard) {
				same[p.GetIndex()]++
			}
		}
		for index, n := range same {
			if n == 3 && index > 50 {
				return true
			}
		}
		return false
	})
	close(stop)
	<-stopped
	g.calm(f)
}

// TestRestingReplicasAreNotCompared: what has been compared and has not moved costs
// nobody anything, until a broker comes back.
func TestRestingReplicasAreNotCompared(t *testing.T) {
	t.Parallel()
	g, f := newWatchedGroup(t, func(*Options) {})
	g.calm(f)
	rests := func() (asked int64) {
		eventually(t, "nobody asks any more", func() bool {
			before := g.pipes.compared.Load()
			time.Sleep(4 * 20 * time.Millisecond)
			asked = g.pipes.compared.Load()
			return asked == before
		})
		return asked
	}
	asked := rests()
	g.add()
	eventually(t, "what has moved is compared", func() bool { return g.pipes.compared.Load() > asked })
	rests()
}

// TestChainOfAnOlderDirectoryIsMadeUpFor: a replica that does not know where its
// chain began has the same as the others soon after.
func TestChainOfAnOlderDirectoryIsMadeUpFor(t *testing.T) {
	t.Parallel()
	g, f := newWatchedGroup(t, func(*Options) {})
	for range 3 {
		g.add()
	}
	node := g.follower()
	g.waitFor(node)
	g.checkpoint()
	b := g.brokers[node-1]
	a, _, err := b.db.Applied(sharedShard)
	if err != nil || a.Chain.Base != bootstrapIndex {
		t.Fatalf("%+v, %v", a, err)
	}
	a.Chain = record.Chain{}
	if err := b.db.WriteCheckpoint(store.Checkpoint{Shard: sharedShard, Applied: a}); err != nil {
		t.Fatal(err)
	}
	g.name(node)
	g.restart(node, g.mems[node].CrashClone(vfs.CrashCloneCfg{}))
	if found, _, err := g.brokers[node-1].db.Applied(sharedShard); err != nil || found.Chain != (record.Chain{}) {
		t.Fatalf("what is on disk has the chain %+v, %v", found.Chain, err)
	}
	g.add()
	g.sameChainsSoon(node)
	g.calm(f)
}

// sameChainsSoon waits until a node's replica has the chain that the owner has.
func (g *group) sameChainsSoon(node uint64) {
	g.t.Helper()
	eventually(g.t, "the chain is made up for", func() bool {
		_, c := g.chain(node)
		return c.Base == bootstrapIndex
	})
	g.sameChains(g.owner(), node)
}

// TestMajorities: who decides which of several hashes is right.
func TestMajorities(t *testing.T) {
	t.Parallel()
	three := &raftpb.ConfState{Voters: []uint64{1, 2, 3}, Learners: []uint64{4}}
	joint := &raftpb.ConfState{Voters: []uint64{1, 2, 3}, VotersOutgoing: []uint64{1, 2, 5}}
	for name, c := range map[string]struct {
		conf   *raftpb.ConfState
		values map[uint64]uint64 // of 1, too, who judges
		want   verdict
	}{
		"all the same":                   {three, map[uint64]uint64{1: 7, 2: 7, 3: 7, 4: 7}, verdictSame},
		"nobody answers":                 {three, map[uint64]uint64{1: 7}, verdictSame},
		"most have another":              {three, map[uint64]uint64{1: 7, 2: 8, 3: 8}, verdictOwn},
		"one has another":                {three, map[uint64]uint64{1: 7, 2: 8, 3: 7}, verdictOther},
		"one has another, one is away":   {three, map[uint64]uint64{1: 7, 2: 8}, verdictUndecided},
		"all have others":                {three, map[uint64]uint64{1: 7, 2: 8, 3: 9}, verdictUndecided},
		"a learner has no say":           {three, map[uint64]uint64{1: 7, 2: 8, 4: 8}, verdictUndecided},
		"a learner has another":          {three, map[uint64]uint64{1: 7, 2: 7, 4: 8}, verdictOther},
		"a majority of one half":         {joint, map[uint64]uint64{1: 7, 2: 8, 3: 8}, verdictUndecided},
		"a majority of both halves":      {joint, map[uint64]uint64{1: 7, 2: 8, 3: 8, 5: 8}, verdictOwn},
		"the same, and one half is away": {joint, map[uint64]uint64{1: 7, 2: 7, 5: 9}, verdictOther},
	} {
		if got := judged(c.conf, 1, c.values); got.verdict != c.want {
			t.Errorf("%s: %+v, want %d", name, got, c.want)
		}
	}
	if got := judged(three, 4, map[uint64]uint64{1: 7, 2: 7, 4: 8}); got.verdict != verdictOwn || len(got.others) != 2 {
		t.Errorf("of a learner that has another: %+v", got)
	}
}

// TestQuestionsOfStrangers: whatever somebody says about his replica, only what was
// asked for is believed.
func TestQuestionsOfStrangers(t *testing.T) {
	t.Parallel()
	g, f := newWatchedGroup(t, func(*Options) {})
	g.calm(f)
	b := g.brokers[0]
	index, c := g.chain(1)
	for _, q := range []*peerv1.ReplicaHashes{
		{Shard: sharedShard, RaftId: 102, ChainBase: c.Base, Chain: []*peerv1.HashPoint{{Index: index, Hash: c.Sum + 1}}},
		{Shard: sharedShard, RaftId: 102, ChainBase: c.Base, States: []*peerv1.HashPoint{{Index: index, Hash: 1}}},
		{Shard: sharedShard, RaftId: 999, ChainBase: 0, HashStateAt: index - 1},
		{Shard: 12345, RaftId: 102, ChainBase: 1},
	} {
		for range 3 {
			answers, err := b.compare(context.Background(), []*peerv1.ReplicaHashes{q, proto.Clone(q).(*peerv1.ReplicaHashes)})
			if err != nil || len(answers) != map[bool]int{true: 1}[q.Shard == sharedShard] {
				t.Fatalf("%v: %v, %v", q, answers, err)
			}
			if len(answers) == 1 && (answers[0].GetRaftId() != 101 || answers[0].GetHashStateAt() != 0) {
				t.Errorf("%v is answered with %v", q, answers)
			}
		}
	}
	g.add()
	g.calm(f)
}
