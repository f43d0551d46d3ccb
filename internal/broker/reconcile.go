package broker

import (
	"context"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/placement"
)

// poke has the broker look again at what the metadata wants of it.
func (b *Broker) poke() {}

// awaitMeta waits until the broker has acted on the metadata up to index.
func (b *Broker) awaitMeta(context.Context, uint64) error { return errNoOwner }

// updateShard changes the placement of a shard, unless change says that there is
// nothing to change; it is asked again when somebody else was faster.
func (b *Broker) updateShard(ctx context.Context, id uint64, change func(*placement.Shard) bool) error {
	for {
		v, err := b.readView(ctx)
		if err != nil {
			return err
		}
		key, record, s, version := []byte(clusterKey), any(v.cluster), (*placement.Shard)(nil), uint64(0)
		if id == metaShard {
			reply, err := b.metaDo(ctx, felix.Op{Kind: felix.Get, View: felix.ViewValue, Key: key})
			if err != nil {
				return err
			}
			m, err := parseClusterMeta(reply.Value)
			if err != nil {
				return err
			}
			record, s, version = m, &m.Shard, reply.Version
		}
		for _, m := range v.caches {
			for i := range m.Shards {
				if m.Shards[i].ID == id {
					key, record, s, version = cacheKey(m.scope()), m.newest(), &m.Shards[i], m.version
				}
			}
		}
		if s == nil || !change(s) {
			return nil
		}
		if done, err := b.metaSwap(ctx, key, record, version); done || err != nil {
			return err
		}
	}
}

// updateNode is the same for the record of a node.
func (b *Broker) updateNode(ctx context.Context, id uint64, change func(*nodeMeta) bool) error {
	for {
		reply, err := b.metaDo(ctx, felix.Op{Kind: felix.Get, View: felix.ViewValue, Key: nodeKey(id)})
		if err != nil || reply.Found == felix.NoRecord {
			return err
		}
		m, err := parseNodeMeta(string(nodeKey(id)), reply.Value)
		if err != nil || !change(m) {
			return err
		}
		if done, err := b.metaSwap(ctx, nodeKey(id), m, reply.Version); done || err != nil {
			return err
		}
	}
}

func (b *Broker) metaSwap(ctx context.Context, key []byte, record any, version uint64) (done bool, err error) {
	op, err := metaSet(key, record, felix.IfVersion, version)
	if err != nil {
		return false, err
	}
	reply, err := b.metaDo(ctx, op)
	return reply.Applied, err
}
