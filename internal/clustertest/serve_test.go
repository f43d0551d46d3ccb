package clustertest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/broker"
	"github.com/felix-go/felix/internal/peer"
	"github.com/felix-go/felix/internal/servicetest"
)

// TestClusterConformance runs the suite of every Service against one of three
// brokers: most operations go to another one, and all to three replicas.
func TestClusterConformance(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 3, calm)
	servicetest.Run(t, func(t *testing.T) felix.Service {
		b := c.broker(2)
		all, err := b.Caches(context.Background(), "", "")
		for _, info := range all {
			err = errors.Join(err, b.DeleteCache(context.Background(), info.Scope))
		}
		if err != nil {
			t.Fatal(err)
		}
		return b
	})
}

// TestEveryBrokerServesEveryKey: whichever broker is asked, the answer is the
// same, also of what covers all shards.
func TestEveryBrokerServesEveryKey(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 3, calm)
	c.create(2, "main", felix.CacheSettings{Shards: 8})
	const keys = 200
	var ops []felix.Op
	for k := range keys {
		ops = append(ops, felix.Op{Kind: felix.Add, Key: fmt.Appendf(nil, "%03d", k), Int: 1})
	}
	for n, id := range c.ids() {
		for k, r := range must(t, c.cache(id, "main"), ops...) {
			if r.Int != int64(n+1) {
				t.Fatalf("node %d: the add number %d to key %d answers %d", id, n+1, k, r.Int)
			}
		}
	}
	for _, id := range c.ids() {
		cache := c.cache(id, "main")
		count, err := cache.Count(context.Background())
		if err != nil || count.Counters != keys {
			t.Errorf("node %d counts %d counters, error %v", id, count.Counters, err)
		}
		var listed []string
		for page := (felix.ScanPage{More: true}); page.More; {
			if page, err = cache.Scan(context.Background(), felix.ScanRequest{Limit: 37, After: page.Next}); err != nil {
				t.Fatalf("node %d: %v", id, err)
			}
			for _, item := range page.Items {
				listed = append(listed, string(item.Key))
			}
		}
		if len(listed) != keys || !slices.IsSorted(listed) {
			t.Errorf("node %d lists %d keys, in order: %v", id, len(listed), slices.IsSorted(listed))
		}
	}
	if err := c.cache(3, "main").Clear(context.Background()); err != nil {
		t.Fatal(err)
	}
	for _, id := range c.ids() {
		if count, err := c.cache(id, "main").Count(context.Background()); err != nil || count.Keys != 0 {
			t.Errorf("after Clear node %d counts %d keys, error %v", id, count.Keys, err)
		}
	}
}

// TestAddsAreNeverSentTwice cuts connections between brokers in the middle of
// frames: what a broker cannot know to be lost it does not send again.
func TestAddsAreNeverSentTwice(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 3, nil)
	c.create(1, "main", felix.CacheSettings{Shards: 4})
	l := c.startLoad("main", 12, 1, 2, 3)
	rng := rand.New(rand.NewPCG(rand.Uint64(), 1))
	hit := func() bool { return l.errors()[felix.OutcomeUnknown] >= 5 }
	for cuts := int64(0); cuts < 40 || cuts < 400 && !hit(); cuts = c.wire.cuts.Load() {
		from, to := uint64(1+rng.IntN(3)), uint64(1+rng.IntN(3))
		c.wire.set(direction{from, to}, state{cutAfter: 1 + rng.IntN(3000)})
		time.Sleep(time.Duration(rng.IntN(40)) * time.Millisecond)
	}
	c.wire.heal()
	l.advance(200)
	l.check(1, 2, 3)
	if !hit() {
		t.Errorf("%d connections were cut, and no more than %v hit", c.wire.cuts.Load(), l.errors())
	}
}

// TestCreatedAnywhereWorksEverywhere: as soon as a broker has answered that a
// cache was made, or that it was deleted, all others know it.
func TestCreatedAnywhereWorksEverywhere(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 3, calm)
	for n := range 12 {
		name, maker := fmt.Sprint("c", n), uint64(n%3+1)
		c.create(maker, name, felix.CacheSettings{Shards: 2})
		for _, id := range c.ids() {
			cache, err := c.broker(id).Cache(context.Background(), scopeOf(name))
			if err != nil {
				t.Fatalf("node %d, after node %d has created it: %v", id, maker, err)
			}
			must(t, cache, felix.Op{Kind: felix.Add, Key: []byte("k"), Int: 1})
		}
		opened := c.cache(maker%3+1, name)
		if err := c.broker((maker+1)%3+1).DeleteCache(context.Background(), scopeOf(name)); err != nil {
			t.Fatal(err)
		}
		for _, id := range c.ids() {
			if _, err := c.broker(id).Cache(context.Background(), scopeOf(name)); code(err) != felix.CacheNotFound {
				t.Errorf("node %d, after it was deleted: %v", id, err)
			}
		}
		if r := doOne(opened, felix.Op{Kind: felix.Get, Key: []byte("k")}); code(r.Err) != felix.CacheNotFound {
			t.Errorf("a get in a deleted cache: %v", r.Err)
		}
	}
}

// TestUnknownCacheWithoutMetadata: a broker that cannot ask a majority does not
// say that there is no such cache.
func TestUnknownCacheWithoutMetadata(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 3, func(_ uint64, o *broker.Options) { o.RequestTimeout = time.Second })
	if _, err := c.broker(3).Cache(context.Background(), scopeOf("none")); code(err) != felix.CacheNotFound {
		t.Errorf("a cache that nobody made: %v", err)
	}
	c.wire.part([]uint64{3}, []uint64{1, 2})
	eventually(t, "a broker that is cut off does not know", func() error {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_, err := c.broker(3).Cache(ctx, scopeOf("none"))
		if code(err) != felix.Unavailable {
			return fmt.Errorf("error %v", err)
		}
		return nil
	})
	c.create(1, "made", felix.CacheSettings{})
	if _, err := c.broker(3).Cache(context.Background(), scopeOf("made")); code(err) != felix.Unavailable {
		t.Errorf("a cache that was made while this broker was cut off: %v", err)
	}
	c.wire.heal()
	must(t, c.cache(3, "made"), felix.Op{Kind: felix.Add, Key: []byte("k"), Int: 1})
}

// code is an error's, 0 of none.
func code(err error) felix.Code {
	if e := felix.AsError(err); e != nil {
		return e.Code
	}
	return 0
}

// TestFramesAreShared: what brokers have to tell each other of many shards and for
// many clients at the same time travels in far fewer frames.
func TestFramesAreShared(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 3, calm)
	c.create(1, "main", felix.CacheSettings{Shards: 24})
	caches := []felix.Cache{c.cache(1, "main"), c.cache(2, "main"), c.cache(3, "main")}
	before := c.sent()
	const rounds, clients = 4, 40
	for range rounds {
		var done sync.WaitGroup
		for n := range clients {
			done.Go(func() {
				ops := make([]felix.Op, 32)
				for k := range ops {
					ops[k] = felix.Op{Kind: felix.Add, Key: fmt.Append(nil, n, "/", k), Int: 1}
				}
				_, _ = felix.Do(context.Background(), caches[n%len(caches)], ops...) // what fails has been sent all the same
			})
		}
		done.Wait()
	}
	for what, s := range c.sent() {
		frames, items := s.Frames-before[what].Frames, s.Items-before[what].Items
		t.Logf("%d %s in %d frames", items, what, frames)
		if items < 1000 || 4*frames > items {
			t.Errorf("%d %s went in %d frames", items, what, frames)
		}
	}
}

// sent is what all brokers have sent each other.
func (c *cluster) sent() map[string]peer.Sent {
	all := map[string]peer.Sent{}
	add := func(what string, s peer.Sent) {
		all[what] = peer.Sent{Frames: all[what].Frames + s.Frames, Items: all[what].Items + s.Items}
	}
	for _, id := range c.ids() {
		for _, l := range c.broker(id).Links() {
			add("calls", l.Calls)
			add("answers", l.Answers)
			add("messages", l.Raft)
		}
	}
	return all
}
