package broker

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"go.etcd.io/raft/v3/raftpb"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/placement"
	"github.com/felix-go/felix/internal/record"
	"github.com/felix-go/felix/internal/shard"
)

// group is a replicated shard whose replicas fall behind, and catch up.
type group struct {
	t       *testing.T
	pipes   *pipes
	brokers []*Broker // by node, from 1
	caches  []*cache
	mems    map[uint64]*vfs.MemFS
	disks   map[uint64]*diskFS
	added   int64 // to each of the keys
	tune    func(*Options)

	mu     sync.Mutex
	onStep func(node uint64, step string)
	onDisk func(node uint64, op diskOp)
}

const groupKeys = 40

// newGroup makes four brokers, of which three have a replica. Nothing is
// checkpointed but where somebody asks for it.
func newGroup(t *testing.T) *group { return newGroupWith(t, func(*Options) {}) }

// newGroupWith is newGroup with other options.
func newGroupWith(t *testing.T, change func(*Options)) *group {
	g := &group{t: t, tune: change, mems: map[uint64]*vfs.MemFS{}, disks: map[uint64]*diskFS{}}
	g.pipes, g.brokers, g.caches = openByHand(t, 4, func(o *Options) {
		g.mems[o.NodeID] = vfs.NewCrashableMem()
		node := o.NodeID
		g.disks[node] = &diskFS{FS: g.mems[node], before: func(op diskOp) error { g.disk(node, op); return nil }}
		o.FS = g.disks[o.NodeID]
		g.options(o)
	})
	g.add()
	return g
}

func (g *group) options(o *Options) {
	node := o.NodeID
	o.CheckpointEvery, o.CompareEvery = time.Hour, 20*time.Millisecond
	g.tune(o)
	o.Cluster.OnStep = func(step string) {
		g.mu.Lock()
		f := g.onStep
		g.mu.Unlock()
		if f != nil {
			f(node, step)
		}
	}
}

// disk is told of every operation on a disk.
func (g *group) disk(node uint64, op diskOp) {
	g.mu.Lock()
	f := g.onDisk
	g.mu.Unlock()
	if f != nil {
		f(node, op)
	}
}

// name tells a broker's metadata of the shard, so that it opens it again.
func (g *group) name(node uint64) {
	g.t.Helper()
	m := &cacheMeta{Format: cacheMetaFormat, Tenant: "t", Namespace: "n", Name: "shared", Replication: 3, Consistency: "quorum", Shards: []placement.Shard{sharedPlacement(4)}}
	op, err := metaSet(cacheKey(m.scope()), m, felix.IfAbsent, 0)
	if err == nil {
		_, err = g.brokers[node-1].metaDo(context.Background(), op)
	}
	if err != nil {
		g.t.Fatal(err)
	}
}

func (g *group) setOnStep(f func(node uint64, step string)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.onStep = f
}

// add adds 1 to all keys, through a broker that has links.
func (g *group) add() {
	g.t.Helper()
	g.added++
	for _, c := range g.caches {
		if (pipe{g.pipes, c.b.node}).to(c.b.node) == nil {
			continue
		}
		var ops []felix.Op
		for k := range groupKeys {
			ops = append(ops, add(fmt.Sprint("key ", k), 1))
		}
		mustDo(g.t, c, ops...)
		return
	}
}

func (g *group) replica(node uint64) *replica {
	b := g.brokers[node-1]
	b.mu.RLock()
	defer b.mu.RUnlock()
	return b.replicas[sharedShard]
}

// onWorker runs f on the worker of a node's replica.
func (g *group) onWorker(node uint64, f func(r *replica)) {
	g.t.Helper()
	r := g.replica(node)
	if !r.worker.callWait(func() { f(r); r.worker.activate(r) }) {
		g.t.Fatal("the worker is stopping")
	}
}

func (g *group) status(node uint64) (s shard.Status) {
	g.onWorker(node, func(r *replica) { s = r.shard.Status() })
	return s
}

// linked are the brokers that have links.
func (g *group) linked() (linked []*Broker) {
	for _, b := range g.brokers {
		if (pipe{g.pipes, b.node}).to(b.node) != nil {
			linked = append(linked, b)
		}
	}
	return linked
}

func (g *group) owner() (node uint64) {
	g.t.Helper()
	eventually(g.t, "somebody owns the shard", func() bool { node = owner(g.linked()); return node != 0 })
	return node
}

// follower is a replica that does not lead.
func (g *group) follower() uint64 { return g.owner()%3 + 1 }

// checkpoint writes down all that is dirty at all brokers.
func (g *group) checkpoint() {
	g.t.Helper()
	for _, b := range g.brokers {
		if err := b.checkpoint.all(context.Background()); err != nil {
			g.t.Fatal(err)
		}
	}
}

// forget drops the logs that the state covers, whoever needs them.
func (g *group) forget() {
	g.t.Helper()
	for _, b := range g.linked() {
		if g.replica(b.node) == nil {
			continue
		}
		if err := b.checkpoint.all(context.Background()); err != nil {
			g.t.Fatal(err)
		}
		g.onWorker(b.node, func(r *replica) {
			if err := r.shard.Compact(r.flushed.Index); err != nil {
				g.t.Error(err)
			}
		})
	}
}

// lag makes a follower need a snapshot: it misses writes, whose log is gone.
func (g *group) lag() (node uint64) {
	g.t.Helper()
	node = g.follower()
	g.waitFor(node)
	g.pipes.setCut(node, true)
	g.add()
	g.forget()
	g.add()
	return node
}

// heal gives a node its links back.
func (g *group) heal(node uint64) { g.pipes.setCut(node, false) }

// caughtUp waits until the replica has all that the owner has, then makes it the
// owner, and looks at all keys in its own state.
func (g *group) caughtUp(node uint64) {
	g.t.Helper()
	g.waitFor(node)
	for owner(g.brokers) != node {
		leads := g.owner()
		g.waitFor(node)
		g.handOver(leads, node)
	}
	var ops []felix.Op
	for k := range groupKeys {
		ops = append(ops, felix.Op{Kind: felix.Get, Key: []byte(fmt.Sprint("key ", k))})
	}
	for i, r := range mustDo(g.t, g.caches[node-1], ops...) {
		if r.Int != g.added {
			g.t.Fatalf("node %d has %d as the sum of key %d, want %d", node, r.Int, i, g.added)
		}
	}
	g.clean(node)
}

// handOver has a node give the ownership to another.
func (g *group) handOver(from, to uint64) {
	g.t.Helper()
	g.onWorker(from, func(r *replica) {
		if from != to && r.shard.Owns() {
			r.shard.HandOver(100 + to)
		}
	})
	eventually(g.t, "the shard is handed over", func() bool { return owner(g.brokers) != 0 && !g.status(from).Leader })
}

func (g *group) waitFor(node uint64) {
	g.t.Helper()
	eventually(g.t, "the replica has caught up", func() bool {
		leads := owner(g.linked())
		if leads == 0 {
			return false
		}
		want, got := g.status(leads), g.status(node)
		return got.Applied >= want.Commit && want.Commit > 1 && !got.Installing
	})
}

// clean sees that nothing is left of snapshots that were received.
func (g *group) clean(node uint64) {
	g.t.Helper()
	eventually(g.t, "nothing is under way", func() bool {
		idle := true
		g.onWorker(node, func(r *replica) { idle = r.incoming == nil && r.transfers.idle() })
		return idle && len(g.leftovers(node)) == 0
	})
}

func (g *group) leftovers(node uint64) (names []string) {
	g.t.Helper()
	b := g.brokers[node-1]
	all, err := b.opts.FS.List(b.dir.path("state"))
	if err != nil {
		g.t.Fatal(err)
	}
	for _, name := range all {
		if strings.HasSuffix(name, ".tmp") {
			names = append(names, name)
		}
	}
	return names
}

// join gives the fourth broker a replica, as a learner.
func (g *group) join() {
	g.t.Helper()
	b := g.brokers[3]
	if err := b.db.SetReplicas(map[uint64]record.Replica{sharedShard: {RaftID: 104, Consistency: byte(felix.Quorum)}}); err != nil {
		g.t.Fatal(err)
	}
	if _, err := b.openReplica(b.routeOf(sharedShard), electionTicks); err != nil {
		g.t.Fatal(err)
	}
	g.meet(4)
	g.change(raftpb.ConfChangeAddLearnerNode, 104)
}

// meet tells all replicas where a node's is, and that one where the others are.
func (g *group) meet(node uint64) {
	for _, b := range g.brokers {
		if g.replica(b.node) == nil {
			continue
		}
		g.onWorker(b.node, func(r *replica) { r.learn(100+node, node) })
		g.onWorker(node, func(r *replica) { r.learn(100+b.node, b.node) })
	}
}

func (g *group) change(kind raftpb.ConfChangeType, raftID uint64) {
	g.t.Helper()
	eventually(g.t, "the configuration is changed", func() bool {
		err := errors.New("no owner")
		if leads := owner(g.linked()); leads != 0 {
			g.onWorker(leads, func(r *replica) {
				err = r.shard.ChangeConf(&raftpb.ConfChangeV2{Changes: []*raftpb.ConfChangeSingle{{Type: kind.Enum(), NodeId: &raftID}}})
			})
		}
		return err == nil
	})
}

// restart abandons a broker, as a power cut does, and opens another one on what
// it has left.
func (g *group) restart(node uint64, left *vfs.MemFS) {
	g.t.Helper()
	g.pipes.setCut(node, true)
	if err := closeBroker(g.brokers[node-1]); err != nil {
		g.t.Error(err)
	}
	g.open(node, left)
}

// open opens a broker on a disk, in place of one that is closed.
func (g *group) open(node uint64, left *vfs.MemFS) {
	g.t.Helper()
	o := Options{Dir: "data", NodeID: node, FS: &diskFS{FS: left},
		RequestTimeout: 20 * time.Second, Workers: 2}
	g.options(&o)
	b := g.pipes.open(g.t, o)
	g.brokers[node-1] = b
	rt := b.routeOf(sharedShard)
	rt.setAsks([]uint64{1, 2, 3})
	g.caches[node-1] = &cache{b: b, shards: []*route{rt}}
	g.meet(node)
	g.heal(node)
}
