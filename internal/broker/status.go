package broker

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/felix-go/felix/internal/peer/peerv1"
	"github.com/felix-go/felix/internal/shard"
)

// clusterStatus is what this broker tells of its replicas.
func (b *Broker) clusterStatus(ctx context.Context) (*peerv1.StatusResponse, error) {
	b.mu.RLock()
	replicas := slices.Collect(maps.Values(b.replicas))
	b.mu.RUnlock()
	status := &peerv1.StatusResponse{ClockEligible: b.eligible.Load(), ClockOffsetMillis: b.clockOffset().Milliseconds()}
	b.onWorkers(replicas, func(r *replica) {
		if ctx.Err() == nil {
			status.Shards = append(status.Shards, r.describe(r.shard.Status()))
		}
	})
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	slices.SortFunc(status.Shards, func(x, y *peerv1.ShardStatus) int { return cmp.Compare(x.GetShard(), y.GetShard()) })
	return status, nil
}

// clockOffset is how far this broker's clock is ahead of the median of the others'.
func (b *Broker) clockOffset() time.Duration { return b.clock.Offset(b.opts.Wall(), b.mono()) }

// describe is what the broker tells of a replica. It runs on the worker.
func (r *replica) describe(s shard.Status) *peerv1.ShardStatus {
	d := &peerv1.ShardStatus{Shard: r.id, RaftId: r.raftID, Term: s.Term, Lead: s.Lead, Owns: s.Owns,
		Commit: s.Commit, Applied: s.Applied, LastIndex: s.LastIndex, LogBytes: r.log.Size(),
		Voters: s.Conf.GetVoters(), VotersOutgoing: s.Conf.GetVotersOutgoing(), Learners: s.Conf.GetLearners(),
		Receiving: r.transfers.receiving(), Differing: r.route.b.equality.differing(r.id)}
	for _, p := range s.Progress {
		node := r.nodeOf(p.RaftID)
		d.Progress = append(d.Progress, &peerv1.ReplicaProgress{RaftId: p.RaftID, Node: node, Match: p.Match, Active: p.Active,
			State: progressState(&p), Sending: r.transfers.sending(node)})
	}
	return d
}

// progressState says how a leader feeds a replica.
func progressState(p *shard.Progress) string {
	switch {
	case p.PendingSnapshot != 0:
		return "snapshot"
	case p.Replicates:
		return "replicates"
	}
	return "probed"
}

// statusTimeout bounds what asking all brokers takes: one that is slow is left
// out.
const statusTimeout = time.Second

// statuses are what this broker and those that it reaches tell of their replicas,
// by node.
func (b *Broker) statuses(ctx context.Context) map[uint64]*peerv1.StatusResponse {
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	var mu sync.Mutex
	all := map[uint64]*peerv1.StatusResponse{}
	var asking sync.WaitGroup
	for node := range b.reached() {
		asking.Go(func() {
			ask := b.clusterStatus
			if node != b.node {
				ask = func(ctx context.Context) (*peerv1.StatusResponse, error) { return b.net.Status(ctx, node) }
			}
			s, err := ask(ctx)
			if err != nil {
				b.opts.Logger.Debug("a broker does not tell of its shards", "node", node, "err", err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			all[node] = s
		})
	}
	asking.Wait()
	return all
}

// ownerStatus is a shard's owner, and what it tells.
type ownerStatus struct {
	node   uint64
	status *peerv1.ShardStatus
}

// ownersIn are the owners of shards, by shard. Two may believe that they are: then
// it is the later one.
func ownersIn(statuses map[uint64]*peerv1.StatusResponse) map[uint64]ownerStatus {
	owners := map[uint64]ownerStatus{}
	for node, all := range statuses {
		for _, s := range all.GetShards() {
			if before := owners[s.GetShard()]; s.GetOwns() && (before.status == nil || s.GetTerm() > before.status.GetTerm()) {
				owners[s.GetShard()] = ownerStatus{node, s}
			}
		}
	}
	return owners
}
