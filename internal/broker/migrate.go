package broker

import (
	"context"
	"fmt"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/record"
)

// migrate makes a directory of format 1, which is of a broker alone, one of a
// cluster of one. Every step can be repeated, and the directory's format comes
// last: after a crash before that, all of them are.
//
// Its lease_free_reads is not finalized: there may be brokers without fences
// that are to join it. New clusters begin with it.
func (b *Broker) migrate(ctx context.Context) error {
	v, err := b.readConfirmed(ctx)
	if err != nil {
		return fmt.Errorf("reading the metadata: %w", err)
	}
	id, err := b.dir.id().alone(firstNode)
	if err != nil {
		return err
	}
	id.Format, id.Bootstrapped, id.Starts = dataFormat, true, 1
	if v.cluster != nil { // told to the cluster before a crash
		id.ClusterID = v.cluster.ClusterID
	}
	if err := b.db.SetReplicas(v.replicas(id.NodeID)); err != nil {
		return err
	}
	var ops []felix.Op
	for _, m := range v.caches {
		if m.Format == cacheMetaFormat {
			continue
		}
		op, err := metaSet(cacheKey(m.scope()), m.newest(), felix.IfVersion, m.version)
		if err != nil {
			return err
		}
		ops = append(ops, op)
	}
	first, err := b.firstRecords(&id, false)
	if err != nil {
		return err
	}
	if err := b.metaWrite(ctx, append(ops, first...)); err != nil {
		return fmt.Errorf("writing the metadata: %w", err)
	}
	if err := b.dir.save(id); err != nil {
		return err
	}
	b.opts.Logger.Info("the data directory was migrated: older builds refuse it now", "format", id.Format, "cluster_id", id.ClusterID)
	return nil
}

// replicas are the replicas that a node has of the caches' shards.
func (v *view) replicas(node uint64) map[uint64]record.Replica {
	all := map[uint64]record.Replica{}
	for id, s := range v.shards {
		if raft := s.placement.ReplicaOn(node); raft != 0 && s.cache != nil {
			all[id] = record.Replica{RaftID: raft, Consistency: byte(s.consistency())}
		}
	}
	return all
}
