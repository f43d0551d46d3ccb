package broker

import (
	"context"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/placement"
)

// updateShard changes the placement of a shard, unless change says that there is
// nothing to change; it is asked again, about what is there then, when somebody
// else was faster. Of a shard that is gone there is nothing to change.
func (b *Broker) updateShard(ctx context.Context, id uint64, change func(*placement.Shard) bool) error {
	if id == metaShard {
		return b.update(ctx, []byte(clusterKey), func(raw []byte, _ uint64) (any, error) {
			m, err := parseClusterMeta(raw)
			if err != nil || !change(&m.Shard) {
				return nil, err
			}
			return m, nil
		})
	}
	s := b.view().shards[id]
	if s == nil {
		v, err := b.confirmedView(ctx)
		if err != nil {
			return err
		}
		if s = v.shards[id]; s == nil {
			return nil
		}
	}
	_, err := b.updateCache(ctx, s.cache.scope(), func(m *cacheMeta) bool {
		return s.number < len(m.Shards) && m.Shards[s.number].ID == id && change(&m.Shards[s.number])
	})
	if err != nil && felix.AsError(err).Code == felix.CacheNotFound {
		return nil
	}
	return err
}

// updateCache does the same with the record of a cache, which there has to be, and
// answers what it then is.
func (b *Broker) updateCache(ctx context.Context, scope felix.Scope, change func(*cacheMeta) bool) (m *cacheMeta, err error) {
	key := cacheKey(scope)
	version, err := b.swap(ctx, key, func(raw []byte, version uint64) (any, error) {
		if m, err = parseCacheMeta(string(key), raw, version); err != nil || !change(m) {
			return nil, err
		}
		return m.newest(), nil
	})
	if err == nil && version == 0 {
		err = felix.Errorf(felix.CacheNotFound, "no such cache: %s", scope)
	}
	if err != nil {
		return nil, err
	}
	m.version = version
	return m, nil
}

// updateNode does the same with the record of a node.
func (b *Broker) updateNode(ctx context.Context, id uint64, change func(*nodeMeta) bool) error {
	return b.update(ctx, nodeKey(id), func(raw []byte, _ uint64) (any, error) {
		m, err := parseNodeMeta(string(nodeKey(id)), raw)
		if err != nil || !change(m) {
			return nil, err
		}
		return m, nil
	})
}

func (b *Broker) update(ctx context.Context, key []byte, change func(raw []byte, version uint64) (any, error)) error {
	_, err := b.swap(ctx, key, change)
	return err
}

// swap replaces a record of the metadata by what change makes of it, as often as
// somebody else is faster; nil leaves it. It answers the version of the record
// then, 0 if there is none.
func (b *Broker) swap(ctx context.Context, key []byte, change func(raw []byte, version uint64) (any, error)) (version uint64, err error) {
	for {
		reply, err := b.metaDo(ctx, felix.Op{Kind: felix.Get, View: felix.ViewValue, Key: key})
		if err != nil || reply.Found == felix.NoRecord {
			return 0, err
		}
		m, err := change(reply.Value, reply.Version)
		if err != nil {
			b.mustRead(badMeta{err})
			return 0, err
		}
		if m == nil {
			return reply.Version, nil
		}
		op, err := metaSet(key, m, felix.IfVersion, reply.Version)
		if err != nil {
			return 0, err
		}
		if reply, err = b.metaDo(ctx, op); err != nil {
			return 0, err
		}
		if reply.Applied {
			return reply.Version, nil
		}
	}
}
