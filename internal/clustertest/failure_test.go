package clustertest

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/broker"
)

// owner is the node whose broker owns most shards.
func (c *cluster) owner() (id uint64) {
	c.t.Helper()
	eventually(c.t, "somebody owns shards", func() error {
		most := 0
		for _, n := range c.all() {
			if i := n.current(); i != nil && i.opened.Load() != nil {
				if owned := i.opened.Load().Stats().Owned; owned > most {
					id, most = n.id, owned
				}
			}
		}
		if most == 0 {
			return fmt.Errorf("nobody does")
		}
		return nil
	})
	return id
}

// others are all nodes but one.
func (c *cluster) others(id uint64) (all []uint64) {
	for _, n := range c.all() {
		if n.id != id {
			all = append(all, n.id)
		}
	}
	return all
}

// TestFailover crashes the owner of most shards, again and again: no answered add
// is lost, and none is there twice.
func TestFailover(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 3, nil)
	c.create(1, "main", felix.CacheSettings{Shards: 4})
	l := c.startLoad("main", 8, 1, 2, 3)
	for range 6 {
		l.advance(200)
		id := c.owner()
		c.crash(id)
		l.advance(200)
		c.start(id)
	}
	l.advance(200)
	l.check(1, 2, 3)
}

// TestOneDown: with one of three brokers down everything works, and when it is
// back it knows all.
func TestOneDown(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 3, nil)
	c.create(1, "main", felix.CacheSettings{Shards: 4})
	down := c.owner()
	c.crash(down)
	up := c.others(down)
	for _, id := range up { // they have noticed
		cache := c.cache(id, "main")
		eventually(t, "all shards have an owner", func() error {
			for k := range keys {
				if r := doOne(cache, felix.Op{Kind: felix.Get, Key: keyOf(k)}); r.Err != nil {
					return r.Err
				}
			}
			return nil
		})
	}
	l := c.startLoad("main", 4, up...)
	l.refused = func(id uint64, op felix.Op, err *felix.Error) {
		t.Errorf("node %d: %v of %q: %v", id, op.Kind, op.Key, err)
	}
	l.advance(1000)
	c.create(up[0], "second", felix.CacheSettings{Replication: 2})
	must(t, c.cache(up[1], "second"), felix.Op{Kind: felix.Add, Key: []byte("k"), Int: 1})
	l.end()
	c.start(down)
	// What the third missed counts as soon as one of the others is gone.
	eventually(t, "the third is ready", func() error { return c.broker(down).Ready() })
	l.check(1, 2, 3)
	must(t, c.cache(down, "second"), felix.Op{Kind: felix.Add, Key: []byte("k"), Int: 1})
}

// TestTwoDown: with two of three brokers down nothing is done, and every request
// is told so in time; when one is back, all is well by itself.
func TestTwoDown(t *testing.T) {
	t.Parallel()
	const timeout = time.Second
	c := startCluster(t, 3, func(_ uint64, o *broker.Options) { o.RequestTimeout = timeout })
	c.create(1, "main", felix.CacheSettings{Shards: 4})
	l := c.startLoad("main", 4, 1)
	l.advance(200)
	c.crash(2)
	c.crash(3)
	cache := c.cache(1, "main")
	var adds []felix.Op
	for k := range keys {
		adds = append(adds, felix.Op{Kind: felix.Add, Key: keyOf(k)})
	}
	eventually(t, "the last owner notices", func() error {
		replies, err := felix.Do(context.Background(), cache, adds...)
		for k := 0; err == nil && k < keys; k++ {
			if r := replies[k]; code(r.Err) != felix.Unavailable {
				return fmt.Errorf("an add is answered %d, error %v", r.Int, r.Err)
			}
		}
		return err
	})
	var all sync.WaitGroup
	for k := range keys {
		for _, kind := range []felix.Kind{felix.Add, felix.Get} {
			all.Go(func() {
				began := time.Now()
				r := doOne(cache, felix.Op{Kind: kind, Key: keyOf(k)})
				if took := time.Since(began); code(r.Err) != felix.Unavailable || took > 2*timeout {
					t.Errorf("%v of %s: after %v: %d, error %v; want unavailable within %v", kind, keyOf(k), took, r.Int, r.Err, timeout)
				}
			})
		}
	}
	all.Wait()
	c.start(2)
	l.advance(200)
	c.start(3)
	l.advance(200)
	l.check(1, 2, 3)
}

// TestLeaderCacheTail: what a leader cache loses with its owner are the adds of
// the last moment: it stops to answer when the others do not follow.
func TestLeaderCacheTail(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 3, nil)
	c.create(1, "main", felix.CacheSettings{Shards: 1, Consistency: felix.Leader})
	owner := c.shardOwner("main")
	cache := c.cache(owner, "main")
	add := func() bool { return doOne(cache, felix.Op{Kind: felix.Add, Key: []byte("k"), Int: 1}).Err == nil }
	var before, after int64 // adds that were answered until long before the cut, and after it
	var last time.Time
	for began := time.Now(); time.Since(began) < 500*time.Millisecond; {
		if add() {
			before++
		}
	}
	time.Sleep(2 * felix.LeaderTail) // the others have them all
	c.wire.part([]uint64{owner}, c.others(owner))
	cut := time.Now()
	for time.Since(cut) < time.Second {
		if add() {
			after, last = after+1, time.Now()
		}
	}
	if tail := last.Sub(cut); after == 0 || tail > felix.LeaderTail+200*time.Millisecond {
		t.Errorf("cut off, the owner answered %d adds, the last after %v; want some within %v", after, tail, felix.LeaderTail)
	}
	c.crash(owner)
	c.wire.heal()
	sum := must(t, c.cache(c.others(owner)[0], "main"), felix.Op{Kind: felix.Get, Key: []byte("k")})[0].Int
	if sum < before {
		t.Errorf("the new owner has %d adds; %d were answered before the tail", sum, before)
	}
	c.start(owner)
	eventually(t, "the old owner follows", func() error {
		r := doOne(c.cache(owner, "main"), felix.Op{Kind: felix.Get, Key: []byte("k")})
		if r.Err != nil || r.Int != sum {
			return fmt.Errorf("it reads %d, error %v; the new owner has %d", r.Int, r.Err, sum)
		}
		return nil
	})
	t.Logf("%d adds were answered before, %d after the cut, of which %d were lost", before, after, before+after-sum)
}

// shardOwner finds the node that owns the cache's only shard: the one that
// evaluates what it is asked.
func (c *cluster) shardOwner(cache string) (id uint64) {
	c.t.Helper()
	operations := func() map[uint64]uint64 {
		all := map[uint64]uint64{}
		for _, n := range c.all() {
			if i := n.current(); i != nil && i.opened.Load() != nil {
				all[n.id] = i.opened.Load().Stats().Operations
			}
		}
		return all
	}
	const probes = 100
	eventually(c.t, "one broker evaluates what all are asked", func() error {
		was := operations()
		for range probes {
			must(c.t, c.cache(c.node(1).id, cache), felix.Op{Kind: felix.Get, Key: []byte("k")})
		}
		for node, n := range operations() {
			if n-was[node] >= probes {
				id = node
				return nil
			}
		}
		return fmt.Errorf("nobody does: %v, then %v", was, operations())
	})
	return id
}
