package broker

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/placement"
)

// closeBroker closes a broker, with a minute for it.
func closeBroker(b *Broker) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return b.Close(ctx)
}

// putCache writes a cache with these shards into a broker's metadata, and waits
// until the broker has acted on it.
func putCache(t testing.TB, b *Broker, name string, shards ...placement.Shard) *cache {
	t.Helper()
	m := &cacheMeta{Tenant: "t", Namespace: "n", Name: name, Format: cacheMetaFormat, Replication: len(shards[0].Replicas), Consistency: "quorum", Shards: shards}
	op, err := metaSet(cacheKey(m.scope()), m, felix.IfAbsent, 0)
	if err == nil {
		_, err = b.metaDo(context.Background(), op)
	}
	if err = errors.Join(err, b.metaChanged(context.Background())); err != nil {
		t.Fatal(err)
	}
	return b.cacheAt(m.scope())
}

// placeShard changes the placement of a shard in a broker's metadata, and waits
// until the broker has acted on it.
func placeShard(t testing.TB, b *Broker, id uint64, s placement.Shard) {
	t.Helper()
	s.ID = id
	err := b.updateShard(context.Background(), id, func(now *placement.Shard) bool { *now = s; return true })
	if err = errors.Join(err, b.metaChanged(context.Background())); err != nil {
		t.Fatal(err)
	}
}

// openFounders opens brokers that have formed a cluster of their own.
func openFounders(t testing.TB, founders []founder, change func(node uint64, o *Options)) []*Broker {
	t.Helper()
	all := make([]*Broker, len(founders))
	t.Cleanup(func() { closeAll(t, all) })
	var opening sync.WaitGroup
	for i, f := range founders {
		opening.Go(func() {
			o := Options{Dir: "data", FS: vfs.NewMem(), NodeID: f.ID, RequestTimeout: 20 * time.Second, Workers: 2}
			id := identity{Format: dataFormat, StoreID: f.StoreID, ClusterID: "cluster", NodeID: f.ID, Formed: true, Founders: founders}
			change(f.ID, &o)
			raw, err := id.encode()
			if err == nil {
				err = makeDir(o.FS, o.Dir)
			}
			if err == nil {
				err = writeFile(o.FS, o.Dir, "felix.json", raw)
			}
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			if err == nil {
				all[i], err = Open(ctx, o)
			}
			if err != nil {
				t.Errorf("broker %d: %v", f.ID, err)
			}
		})
	}
	opening.Wait()
	if t.Failed() {
		t.FailNow()
	}
	return all
}

// closeAll closes brokers, all at once; nil is one that was closed already.
func closeAll(t testing.TB, all []*Broker) {
	t.Helper()
	var closing sync.WaitGroup
	for _, b := range all {
		if b == nil {
			continue
		}
		closing.Go(func() {
			if err := closeBroker(b); err != nil {
				t.Error(err)
			}
		})
	}
	closing.Wait()
}

// sharedPlacement is the placement of the shard that all nodes but the last of so
// many have.
func sharedPlacement(nodes int) placement.Shard {
	s := placement.Shard{ID: sharedShard, NextRaft: 101, Prefer: 1}
	for node := uint64(1); node < uint64(nodes); node++ {
		s.Replicas = append(s.Replicas, placement.Replica{Raft: s.NextRaft, Node: node, Want: placement.Voter, Have: placement.Voter})
		s.Initial = append(s.Initial, s.NextRaft)
		s.NextRaft++
	}
	return s
}

// shareCache makes a cache of one shard, of which all brokers of the cluster but
// the last have a replica, and answers it as each of them has it.
func shareCache(t testing.TB, all []*Broker) (caches []*cache) {
	t.Helper()
	putCache(t, all[0], "shared", sharedPlacement(len(all)))
	for _, b := range all {
		c, err := b.Cache(context.Background(), felix.Scope{Tenant: "t", Namespace: "n", Cache: "shared"})
		if err != nil {
			t.Fatal(err)
		}
		caches = append(caches, c.(*cache))
	}
	return caches
}
