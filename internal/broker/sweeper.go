package broker

import (
	"context"
	"time"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/record"
	"github.com/felix-go/felix/internal/shard"
)

// sweepKeys is how many expired keys one request deletes: few enough not to
// hold up the shard.
const sweepKeys = 512

// sweep is the goroutine that finds expired records and has their owner delete
// them, through the log like any other change. Until then they are invisible.
func (b *Broker) sweep(ctx context.Context) {
	ticker := time.NewTicker(b.opts.SweepEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		b.mu.RLock()
		var owned []*replica
		for _, r := range b.replicas {
			if r.owns.Load() {
				owned = append(owned, r)
			}
		}
		b.mu.RUnlock()
		for _, r := range owned {
			if !b.sweepShard(ctx, r) {
				return
			}
		}
	}
}

// sweepShard deletes what has expired in one shard, and says whether to go on.
func (b *Broker) sweepShard(ctx context.Context, r *replica) (goOn bool) {
	for more := true; more && r.owns.Load(); {
		var keys [][]byte
		var ids []record.IDKey
		var err error
		if keys, ids, more, err = b.db.Expired(r.id, b.opts.Wall(), sweepKeys); err != nil {
			b.opts.Fatal(err)
			return false
		}
		if len(ids) > 0 && !b.sweepRequest(ctx, r, &shard.Request{Kind: shard.SweepIDs, IDs: ids}) {
			return false
		}
		if len(keys) == 0 {
			continue
		}
		request := &shard.Request{Kind: shard.Sweep, Batch: &felix.Batch{Ops: make([]felix.Op, len(keys)),
			Replies: make([]felix.Reply, len(keys))}}
		for i, key := range keys {
			// As a mutation: a lost answer is no refusal.
			request.Batch.Ops[i] = felix.Op{Kind: felix.Delete, Key: key}
			request.Positions = append(request.Positions, int32(i))
		}
		if !b.sweepRequest(ctx, r, request) {
			return false
		}
	}
	return ctx.Err() == nil
}

// sweepRequest has the owner delete what has expired, and says whether to go on.
func (b *Broker) sweepRequest(ctx context.Context, r *replica, request *shard.Request) (goOn bool) {
	request.Finished, request.Deadline = newFinished(), b.mono()+b.opts.RequestTimeout
	b.submit(r, request)
	select {
	case <-request.Finished:
		return true
	case <-ctx.Done():
		return false
	}
}
