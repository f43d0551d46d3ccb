package broker

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/peer"
	"github.com/felix-go/felix/internal/placement"
)

// TestNobodyKnowsTheShard: when two brokers in a row do not know who owns a
// shard, the metadata is asked: a cache that it does not have is gone, and
// otherwise it says who else may be asked.
func TestNobodyKnowsTheShard(t *testing.T) {
	t.Parallel()
	for _, gone := range []bool{true, false} {
		var asked4 atomic.Bool
		n := &scriptedNet{do: func(_ int, node uint64, c *peer.Call) peer.Outcome {
			if node != 4 {
				return peer.NotOwner
			}
			asked4.Store(true)
			return answer(c)
		}}
		b, c := openElsewhere(t, n, nil)
		if gone {
			if _, err := felix.Do(context.Background(), b.meta, felix.Op{Kind: felix.Delete, View: felix.ViewValue, Key: cacheKey(c.scope)}); err != nil {
				t.Fatal(err)
			}
		} else {
			moveShard(t, b, c)
		}
		began := time.Now()
		err := forwarded[0].run(t, c)
		switch {
		case gone && !errors.Is(err, errCacheGone):
			t.Errorf("a cache that is gone: %v", err)
		case !gone && (err != nil || !asked4.Load()):
			t.Errorf("a cache whose shard was moved: %v", err)
		}
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("it took %v", took)
		}
	}
}

// moveShard says in the metadata that the cache's only shard is at node 4.
func moveShard(t *testing.T, b *Broker, c *cache) {
	t.Helper()
	m, err := b.readCache(context.Background(), c.scope)
	if err != nil {
		t.Fatal(err)
	}
	m.Shards[0] = placement.Sole(m.Shards[0].ID, 4)
	op, err := metaSet(cacheKey(c.scope), m.newest(), felix.IfVersion, m.version)
	if err != nil {
		t.Fatal(err)
	}
	if reply, err := b.metaDo(context.Background(), op); err != nil || !reply.Applied {
		t.Fatalf("%+v, %v", reply, err)
	}
}

// TestAsksInOrder: the preferred owner is asked first, and nobody who has nothing.
func TestAsksInOrder(t *testing.T) {
	t.Parallel()
	p := &placement.Shard{ID: 5, Prefer: 3, Replicas: []placement.Replica{{Raft: 1, Node: 1, Want: placement.Gone, Have: placement.Voter},
		{Raft: 2, Node: 2, Want: placement.Voter}, {Raft: 3, Node: 3, Want: placement.Voter, Have: placement.Voter},
		{Raft: 4, Node: 4, Want: placement.Gone}}}
	if got := asksOf(p); len(got) != 3 || got[0] != 3 {
		t.Errorf("asked are %v", got)
	}
}
