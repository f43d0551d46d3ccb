package broker

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/placement"
)

// testCluster is brokers over pipes.
type testCluster struct {
	t       *testing.T
	pipes   *pipes
	brokers []*Broker // by node id, from 1
}

func openCluster(t *testing.T, n int, change func(*Options)) *testCluster {
	t.Helper()
	p, brokers := openPiped(t, n, func(_ uint64, o *Options) {
		o.ReplicationIsTarget = true
		if change != nil {
			change(o)
		}
	})
	return &testCluster{t, p, brokers}
}

func (c *testCluster) must(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatal(err)
	}
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

// create makes the cache that is moved about.
func (c *testCluster) create(shards, replication int) {
	c.t.Helper()
	_, _, _, err := c.brokers[0].CreateCache(context.Background(), testScope, felix.CacheSettings{Shards: shards, Replication: replication})
	c.must(err)
}

// awaitReplicas waits until every shard of the cache has so many, and nothing is
// left to do.
func (c *testCluster) awaitReplicas(n int) {
	c.t.Helper()
	eventually(c.t, fmt.Sprint("there are replicas: ", n), func() bool { return c.settled(n) })
}

var testScope = felix.Scope{Tenant: "default", Namespace: "default", Cache: "moved"}

// TestReplicationChangesUnderLoad: a cache gets more replicas and fewer, while
// every broker adds to it. Every add counts once.
func TestReplicationChangesUnderLoad(t *testing.T) {
	t.Parallel()
	c := openCluster(t, 5, nil)
	c.create(3, 1)
	load := c.load()
	for _, replication := range []int{3, 5, 1} {
		_, _, err := c.brokers[0].SetReplication(context.Background(), testScope, replication)
		c.must(err)
		c.awaitReplicas(replication)
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
	for _, b := range c.brokers {
		found, err := b.Cache(context.Background(), testScope)
		c.must(err)
		k := found.(*cache)
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

// holds says whether a node has a replica of any of the cache's shards, or owns
// one.
func (c *testCluster) holds(node uint64) bool {
	return placement.Holds(c.meta().targets(), node)
}

// TestMoveUnderLoad: a shard's only replica, and its owner's, move to other
// brokers, while every broker adds to it.
func TestMoveUnderLoad(t *testing.T) {
	t.Parallel()
	c := openCluster(t, 4, nil)
	c.create(1, 1)
	load := c.load()
	ctx, b := context.Background(), c.brokers[1]
	at := func() []uint64 {
		var nodes []uint64
		for _, r := range c.meta().caches[testScope].Shards[0].Replicas {
			nodes = append(nodes, r.Node)
		}
		return nodes
	}
	from := at()[0]
	for _, to := range []uint64{from%4 + 1, (from+1)%4 + 1} {
		_, err := b.MoveShard(ctx, testScope, 0, from, to)
		c.must(err)
		eventually(t, fmt.Sprintf("it is on node %d alone", to), func() bool { n := at(); return c.settled(1) && n[0] == to })
		load.goesOn()
		if s := c.meta().caches[testScope].Shards[0]; !s.Pinned || s.Prefer != to {
			t.Errorf("it does not stay where it was moved to: %+v", s)
		}
		from = to
	}
	_, _, err := c.brokers[0].SetReplication(ctx, testScope, 3)
	c.must(err)
	c.awaitReplicas(3)
	to := uint64(1)
	for slices.Contains(at(), to) {
		to++
	}
	var owner uint64
	eventually(t, "somebody owns it", func() bool {
		shards, err := b.Shards(ctx, &testScope)
		c.must(err)
		owner = shards[0].Owner
		return owner != 0
	})
	_, err = b.MoveShard(ctx, testScope, 0, owner, to)
	c.must(err)
	_, err = b.MoveShard(ctx, testScope, 0, owner, to) // asked again
	if err != nil && felix.AsError(err).Code != felix.InvalidArgument {
		t.Error(err)
	}
	eventually(t, "the owner's has moved", func() bool { n := at(); return c.settled(3) && !slices.Contains(n, owner) && slices.Contains(n, to) })
	load.goesOn()
	load.end()
}

// TestDrainAndRemoveUnderLoad: a node gives everything away, gets some again, and
// is then removed; the others go on.
func TestDrainAndRemoveUnderLoad(t *testing.T) {
	t.Parallel()
	c := openCluster(t, 4, nil)
	c.create(6, 2)
	c.awaitReplicas(2)
	load := c.load()
	ctx, b := context.Background(), c.brokers[0]
	info, err := b.DrainNode(ctx, 3, true)
	c.must(err)
	if info.State != felix.NodeDraining {
		t.Errorf("%+v", info)
	}
	eventually(t, "node 3 has nothing", func() bool { return !c.holds(3) && c.settled(2) })
	if n := c.node(3); n.Waiting != "" || n.Replicas != 1 {
		t.Errorf("a node that was drained: %+v", n)
	}
	_, err = b.DrainNode(ctx, 3, false)
	c.must(err)
	eventually(t, "node 3 has its share again", func() bool { return c.node(3).Replicas == 4 && c.settled(2) })
	load.goesOn()
	if info, err = b.RemoveNode(ctx, 3); err != nil || info.State != felix.NodeRemoving {
		t.Errorf("%+v, %v", info, err)
	}
	eventually(t, "node 3 is removed", func() bool { return c.node(3).State == felix.NodeRemoved })
	if n := c.node(3); c.holds(3) || n.Up || n.Waiting != "" || n.Replicas != 0 {
		t.Errorf("a node that was removed: %+v", n)
	}
	load.goesOn()
	load.end()
}

// node is a node as the first broker tells.
func (c *testCluster) node(id uint64) felix.NodeInfo {
	c.t.Helper()
	all, err := c.brokers[0].Nodes(context.Background())
	c.must(err)
	for _, n := range all {
		if n.ID == id {
			return n
		}
	}
	c.t.Fatalf("there is no node %d", id)
	return felix.NodeInfo{}
}

// TestDeadBrokerIsReplaced: a broker that stays away for long is replaced, and
// its share is made up when it comes back.
func TestDeadBrokerIsReplaced(t *testing.T) {
	t.Parallel()
	c := openCluster(t, 4, func(o *Options) { o.Cluster.ReplaceAfter = 300 * time.Millisecond })
	c.create(4, 3)
	c.awaitReplicas(3)
	load := c.load()
	load.goesOn()
	c.pipes.setCut(4, true)
	eventually(t, "node 4 is replaced", func() bool { return !c.holds(4) && c.settled(3) })
	load.goesOn()
	c.pipes.setCut(4, false)
	eventually(t, "node 4 has its share again", func() bool { return c.node(4).Replicas == 4 && c.settled(3) })
	load.goesOn()
	load.end()
}

// TestDriversAreLostOnTheWay: the owner of the metadata, who places shards, is
// cut off again and again while a node is removed. Whoever owns it next goes on.
func TestDriversAreLostOnTheWay(t *testing.T) {
	t.Parallel()
	c := openCluster(t, 5, nil)
	c.create(8, 3)
	c.awaitReplicas(3)
	load := c.load()
	_, err := c.brokers[0].RemoveNode(context.Background(), 5)
	c.must(err)
	for range 3 {
		driver := uint64(0)
		eventually(t, "somebody owns the metadata", func() bool {
			driver = 0
			for _, b := range c.brokers {
				if r := b.replicaOf(metaShard); r != nil && r.owns.Load() {
					driver = b.node
				}
			}
			return driver != 0
		})
		c.pipes.setCut(driver, true)
		eventually(t, "another one owns the metadata", func() bool {
			for _, b := range c.brokers {
				if r := b.replicaOf(metaShard); b.node != driver && r != nil && r.owns.Load() {
					return true
				}
			}
			return false
		})
		load.goesOn()
		c.pipes.setCut(driver, false)
	}
	eventually(t, "node 5 is removed", func() bool { return c.meta().nodes[5].State == nodeRemoved && c.settled(3) })
	if c.holds(5) {
		t.Error("node 5 has something left")
	}
	load.goesOn()
	load.end()
}

// TestRemovedBrokerStops: a broker that was removed while it ran hears so from
// the others, and stops with a sentence that says what to do.
func TestRemovedBrokerStops(t *testing.T) {
	t.Parallel()
	var fatal atomic.Pointer[error]
	brokers, _ := openLinked(t, 3, func(node uint64, o *Options) {
		o.Fatal = func(err error) {
			if node != 3 {
				t.Errorf("broker %d stops: %v", node, err)
			}
			fatal.Store(&err)
		}
	})
	ctx := context.Background()
	if _, err := brokers[0].RemoveNode(ctx, 3); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it stops", func() bool { return fatal.Load() != nil })
	if err := *fatal.Load(); !strings.Contains(err.Error(), "node 3 was removed from this cluster") {
		t.Errorf("it says %v", err)
	}
	info, err := brokers[1].RemoveNode(ctx, 3) // once more
	if err != nil || info.State != felix.NodeRemoved {
		t.Errorf("%+v, %v", info, err)
	}
}

// TestStepsAreTold: what changes replicas tells of each step, so that tests can
// crash a broker there.
func TestStepsAreTold(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	told := map[string]int{}
	c := openCluster(t, 3, func(o *Options) {
		o.Cluster.OnStep = func(step string) {
			mu.Lock()
			defer mu.Unlock()
			told[step]++
		}
	})
	c.create(1, 1)
	c.awaitReplicas(1)
	from := c.meta().caches[testScope].Shards[0].Replicas[0].Node
	_, err := c.brokers[0].MoveShard(context.Background(), testScope, 0, from, from%3+1)
	c.must(err)
	eventually(t, "it has moved", func() bool {
		s := c.meta().caches[testScope].Shards[0]
		return c.settled(1) && s.Replicas[0].Node == from%3+1
	})
	_, err = c.brokers[0].RemoveNode(context.Background(), 3)
	c.must(err)
	eventually(t, "the node is removed", func() bool { return c.meta().nodes[3].State == nodeRemoved })
	for _, step := range []string{"wish-written", "conf-learner-proposed", "conf-learner-applied", "conf-reported", "conf-joint-proposed",
		"conf-joint-applied", "conf-left", "node-state-written", "node-removed"} {
		mu.Lock()
		if told[step] == 0 {
			t.Errorf("nobody was told of %s: %v", step, told)
		}
		mu.Unlock()
	}
}
