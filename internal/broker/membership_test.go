package broker

import (
	"context"
	"fmt"
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
