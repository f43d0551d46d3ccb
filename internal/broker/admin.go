package broker

import (
	"cmp"
	"context"
	"slices"

	"github.com/felix-go/felix/internal/peer/peerv1"
	"github.com/felix-go/felix/internal/shard"
)

// clusterStatus is what this broker tells of its replicas.
func (b *Broker) clusterStatus(ctx context.Context) (*peerv1.StatusResponse, error) {
	byWorker := map[*worker][]*replica{}
	b.mu.RLock()
	for _, r := range b.replicas {
		byWorker[r.worker] = append(byWorker[r.worker], r)
	}
	b.mu.RUnlock()
	status := &peerv1.StatusResponse{ClockEligible: true}
	for w, replicas := range byWorker {
		for some := range slices.Chunk(replicas, lookAtOnce) {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			w.callWait(func() {
				for _, r := range some {
					if !r.closed {
						status.Shards = append(status.Shards, r.describe(r.shard.Status()))
					}
				}
			})
		}
	}
	slices.SortFunc(status.Shards, func(x, y *peerv1.ShardStatus) int { return cmp.Compare(x.GetShard(), y.GetShard()) })
	return status, nil
}

// describe is what the broker tells of a replica. It runs on the worker.
func (r *replica) describe(s shard.Status) *peerv1.ShardStatus {
	d := &peerv1.ShardStatus{Shard: r.id, RaftId: r.raftID, Term: s.Term, Lead: s.Lead, Owns: s.Owns,
		Commit: s.Commit, Applied: s.Applied, LastIndex: s.LastIndex, LogBytes: r.log.Size(),
		Voters: s.Conf.GetVoters(), VotersOutgoing: s.Conf.GetVotersOutgoing(), Learners: s.Conf.GetLearners(),
		Receiving: r.transfers.receiving()}
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
