package broker

import (
	"context"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/engine"
	"github.com/felix-go/felix/internal/record"
	"github.com/felix-go/felix/internal/shard"
)

// errNoIDs is for operations with ids while a broker that cannot read their records
// may be in the cluster, or come to it.
var errNoIDs = felix.Errorf(felix.InvalidArgument,
	"idempotency ids need the cluster's feature %s: when all brokers run a build that has it, felixctl feature finalize %s", idempotencyIDs, idempotencyIDs)

// validate checks an operation that is about to enter a shard.
func (b *Broker) validate(op *felix.Op) *felix.Error {
	if err := engine.Validate(op); err != nil {
		return err
	}
	if op.Once != nil && !b.view().features[idempotencyIDs] {
		return errNoIDs
	}
	return nil
}

// read reads what a shard asks for.
func (b *Broker) read(l shard.Load, c *record.Cell) error {
	if l.ID {
		return b.db.LoadID(l.Shard.ID(), record.IDKey(l.Key), c)
	}
	return b.db.Load(l.Shard.ID(), l.Key, c)
}

// maxIDs is how many ids the cache may have.
func (m *cacheMeta) maxIDs() int64 {
	if m.MaxIDs == 0 {
		return felix.DefaultMaxIDs
	}
	return m.MaxIDs
}

// storedMaxIDs is how a number of ids is stored: the default as builds did that
// knew none.
func storedMaxIDs(n int64) int64 {
	if n == felix.DefaultMaxIDs {
		return 0
	}
	return n
}

// boundIDs tells the cache's shards their shares of its ids. What their sum is more
// than the cache may have, is less than one a shard.
func (b *Broker) boundIDs(m *cacheMeta) {
	shards := int64(len(m.Shards))
	share := (m.maxIDs() + shards - 1) / shards
	for i := range m.Shards {
		rt := b.routeOf(m.Shards[i].ID)
		if rt == nil || rt.maxIDs.Swap(share) == share {
			continue
		}
		if r := b.replicaOf(rt.id); r != nil {
			r.worker.call(func() { r.worker.applyModes(r) })
		}
	}
}

func (b *Broker) checkMaxIDs(n int64) error {
	if n < 1 || n > felix.MaxIDsPerCache {
		return felix.Errorf(felix.InvalidArgument, "max-ids %d: a cache may remember 1 to %d idempotency ids", n, felix.MaxIDsPerCache)
	}
	if n != felix.DefaultMaxIDs && !b.view().features[idempotencyIDs] {
		return errNoIDs
	}
	return nil
}

// SetMaxIDs implements felix.Service.
func (b *Broker) SetMaxIDs(ctx context.Context, scope felix.Scope, maxIDs int64) (felix.CacheInfo, error) {
	if err := scope.Validate(); err != nil {
		return felix.CacheInfo{}, err
	}
	ctx, cancel := b.changing(ctx)
	defer cancel()
	b.metaMu.Lock()
	defer b.metaMu.Unlock()
	v, err := b.confirmedView(ctx)
	if err != nil {
		return felix.CacheInfo{}, err
	}
	if err := b.checkMaxIDs(maxIDs); err != nil {
		return felix.CacheInfo{}, err
	}
	m := v.caches[scope]
	if m == nil {
		return felix.CacheInfo{}, felix.Errorf(felix.CacheNotFound, "no such cache: %s", scope)
	}
	counts, err := b.know(m).Count(ctx)
	if err != nil {
		return felix.CacheInfo{}, err
	}
	m, err = b.updateCache(ctx, scope, func(m *cacheMeta) bool {
		is := m.maxIDs() != maxIDs
		m.MaxIDs = storedMaxIDs(maxIDs)
		return is
	})
	if err != nil {
		return felix.CacheInfo{}, err
	}
	info := b.info(b.know(m), counts)
	return info, b.metaChanged(ctx)
}
