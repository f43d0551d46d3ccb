package broker

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/placement"
	"github.com/felix-go/felix/internal/record"
)

// testCluster is brokers over pipes with one metadata.
type testCluster struct {
	t       *testing.T
	pipes   *pipes
	brokers []*Broker // by node id, from 1
	stop    context.CancelFunc
	loops   sync.WaitGroup
}

func openCluster(t *testing.T, n int, change func(*Options)) *testCluster {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	c := &testCluster{t: t, pipes: &pipes{brokers: map[uint64]*Broker{}, cut: map[uint64]bool{}}, stop: stop}
	t.Cleanup(c.close)
	for range n {
		c.add(ctx, change)
	}
	return c
}

func (c *testCluster) close() {
	c.stop()
	c.loops.Wait()
	var closing sync.WaitGroup
	for _, b := range c.brokers {
		closing.Go(func() {
			if err := closeBroker(b); err != nil {
				c.t.Error(err)
			}
		})
	}
	closing.Wait()
}

// add opens one more broker, which takes the metadata of the first one.
func (c *testCluster) add(ctx context.Context, change func(*Options)) *Broker {
	c.t.Helper()
	node := uint64(len(c.brokers) + 1)
	o := Options{Dir: "data", FS: vfs.NewMem(), net: pipe{c.pipes, node}, NodeID: node, TickInterval: 10 * time.Millisecond,
		RequestTimeout: 20 * time.Second, Workers: 2, ReplicationIsTarget: true}
	if change != nil {
		change(&o)
	}
	b, err := Open(context.Background(), o)
	if err != nil {
		c.t.Fatal(err)
	}
	if node > 1 {
		b.release(b.routeOf(metaShard), nil)
		if err := b.dropData([]uint64{metaShard}); err != nil {
			c.t.Fatal(err)
		}
		b.routeOf(metaShard).setAsks([]uint64{1, 2, 3})
		c.must(c.brokers[0].metaWrite(ctx, []felix.Op{c.op(metaSet(nodeKey(node), &nodeMeta{Format: nodeMetaFormat, ID: node,
			StoreID: b.dir.id().StoreID, Features: supportedFeatures(), State: nodeActive, Starts: 1}, felix.IfAbsent, 0))}))
	}
	c.brokers = append(c.brokers, b)
	c.pipes.mu.Lock()
	c.pipes.brokers[node] = b
	c.pipes.mu.Unlock()
	c.loops.Go(func() { c.reconcile(ctx, b) })
	return b
}

func (c *testCluster) must(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatal(err)
	}
}

func (c *testCluster) op(op felix.Op, err error) felix.Op {
	c.must(err)
	return op
}

func (c *testCluster) reconcile(ctx context.Context, b *Broker) {
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		read, cancel := context.WithTimeout(ctx, time.Second)
		v, err := b.confirmedView(read)
		cancel()
		if err != nil {
			continue
		}
		for id, s := range v.placements() {
			c.place(b, id, s)
		}
		b.stepConfs(ctx, v)
		if r := b.routeOf(metaShard).here.Load(); r != nil && r.owns.Load() {
			b.drive(ctx, v)
		}
	}
}

// place makes or drops the broker's replica of a shard. New ones wait for a
// snapshot.
func (c *testCluster) place(b *Broker, id uint64, s *placement.Shard) {
	rt := b.addRoute(id, 1)
	var asks []uint64
	var mine uint64
	for _, r := range s.Replicas {
		asks = append(asks, r.Node)
		if r.Node == b.node && (mine == 0 || r.Want != placement.Gone) {
			mine = r.Raft
		}
	}
	rt.setAsks(asks)
	have := rt.local
	if have != nil && have.raftID != mine {
		b.release(rt, nil)
		if err := b.dropData([]uint64{id}); err != nil {
			c.t.Error(err)
		}
		have = nil
	}
	if have == nil && s.ReplicaOn(b.node) != 0 {
		err := b.db.SetReplicas(map[uint64]record.Replica{id: {RaftID: mine, Consistency: byte(felix.Quorum)}})
		if err == nil {
			have, err = b.openReplica(rt, electionTicks)
		}
		if err != nil {
			c.t.Error(err)
			return
		}
	}
	if have != nil {
		have.worker.callWait(func() { have.learnNodes(s) })
	}
}

// cacheOn is a cache as a broker sees it that did not make it.
func (c *testCluster) cacheOn(b *Broker, m *cacheMeta) *cache {
	k := &cache{b: b, scope: m.scope(), settings: felix.CacheSettings{Shards: len(m.Shards)}}
	for _, id := range m.shardIDs() {
		k.shards = append(k.shards, b.addRoute(id, len(m.Shards)))
		k.shards[len(k.shards)-1].setAsks([]uint64{1})
	}
	return k
}

// meta is the metadata as it is.
func (c *testCluster) meta() *view {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	v, err := c.brokers[0].confirmedView(ctx)
	if err != nil {
		return newView()
	}
	return v
}

// settled says whether nothing is left to do.
func (c *testCluster) settled(voters int) bool {
	v := c.meta()
	for _, t := range v.targets() {
		if len(t.Shard.Replicas) != voters {
			return false
		}
		for _, r := range t.Shard.Replicas {
			if r.Want != placement.Voter || r.Have != placement.Voter {
				return false
			}
		}
	}
	return v.cluster != nil
}

var testScope = felix.Scope{Tenant: "default", Namespace: "default", Cache: "moved"}

// TestReplicationChangesUnderLoad: a cache gets more replicas and fewer, while
// every broker adds to it. Every add counts once.
func TestReplicationChangesUnderLoad(t *testing.T) {
	t.Parallel()
	c := openCluster(t, 5, nil)
	_, _, _, err := c.brokers[0].CreateCache(context.Background(), testScope, felix.CacheSettings{Shards: 3})
	c.must(err)
	load := c.load()
	for _, replication := range []int{3, 5, 1} {
		_, _, err := c.brokers[0].SetReplication(context.Background(), testScope, replication)
		c.must(err)
		eventually(t, fmt.Sprint("there are replicas: ", replication), func() bool { return c.settled(replication) })
		load.goesOn()
	}
	load.end()
}

// load adds to a counter of the cache through all brokers.
type load struct {
	c              *testCluster
	acked, unknown atomic.Int64
	stop           chan struct{}
	all            sync.WaitGroup
	caches         []*cache
}

func (c *testCluster) load() *load {
	l := &load{c: c, stop: make(chan struct{})}
	m := c.meta().caches[testScope]
	for _, b := range c.brokers {
		k := c.cacheOn(b, m)
		l.caches = append(l.caches, k)
		l.all.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-l.stop:
					return
				default:
				}
				batch, d := submit(k, add(fmt.Sprint(i%10), 1))
				<-d.done
				switch err := batch.Replies[0].Err; {
				case err == nil:
					l.acked.Add(1)
				case err.MayBeApplied():
					l.unknown.Add(1)
				}
			}
		})
	}
	return l
}

// goesOn waits for more adds.
func (l *load) goesOn() {
	l.c.t.Helper()
	n := l.acked.Load()
	eventually(l.c.t, "adds go on", func() bool { return l.acked.Load() > n+50 })
}

// end stops adding, and compares the sums.
func (l *load) end() {
	l.c.t.Helper()
	close(l.stop)
	l.all.Wait()
	for i, k := range l.caches {
		sum := int64(0)
		for n := range 10 {
			sum += mustDo(l.c.t, k, felix.Op{Kind: felix.Get, Key: fmt.Append(nil, n)})[0].Int
		}
		if acked, unknown := l.acked.Load(), l.unknown.Load(); sum < acked || sum > acked+unknown {
			l.c.t.Errorf("broker %d: the sum is %d, %d adds were acknowledged and %d are unknown", i+1, sum, acked, unknown)
		}
	}
	l.c.t.Logf("%d acknowledged, %d unknown", l.acked.Load(), l.unknown.Load())
}
