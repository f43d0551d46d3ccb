package broker

import (
	"context"

	"github.com/felix-go/felix/internal/peer/peerv1"
	"github.com/felix-go/felix/internal/store"
)

// adoptAt has a replica adopt the chain of others (store.AdoptChain).
func (e *equality) adoptAt(r *replica, base, index, sum uint64) (adopted bool) {
	e.b.onWorkers([]*replica{r}, func(r *replica) {
		adopted = r.shard.Table().AdoptChain(base, store.ChainPoint{Index: index, Sum: sum})
	})
	return adopted
}

// compare answers what another broker asks of the same shards' replicas.
func (b *Broker) compare(ctx context.Context, questions []*peerv1.ReplicaHashes) ([]*peerv1.ReplicaHashes, error) {
	asked := make(map[uint64]*peerv1.ReplicaHashes, len(questions))
	var replicas []*replica
	for _, q := range questions {
		if r := b.replicaOf(q.GetShard()); r != nil && asked[r.id] == nil {
			asked[r.id] = q
			replicas = append(replicas, r)
		}
	}
	var answers []*peerv1.ReplicaHashes
	b.onWorkers(replicas, func(r *replica) {
		if ctx.Err() == nil {
			answers = append(answers, b.equality.answer(r, asked[r.id]))
		}
	})
	return answers, ctx.Err()
}

// answer answers a question about a replica. It runs on its worker.
func (e *equality) answer(r *replica, q *peerv1.ReplicaHashes) *peerv1.ReplicaHashes {
	a := r.hashes()
	table := r.shard.Table()
	for _, p := range q.GetChain() {
		if sum, known := table.ChainAt(p.GetIndex()); known && p.GetIndex() > 0 {
			a.Chain = append(a.Chain, &peerv1.HashPoint{Index: p.GetIndex(), Hash: sum})
		}
	}
	if at := q.GetHashStateAt(); at != 0 && e.hashStateAt(r, at) {
		a.HashStateAt = at
	}
	a.States = e.states.of(r.id)
	if q.GetRaftId() != r.raftID && odd(q, a) {
		e.suspect(r.id)
	}
	return a
}

// odd says whether a question does not fit the answer: the sender has other hashes,
// or knows an earlier begin of the chain.
func odd(q, a *peerv1.ReplicaHashes) bool {
	if base := q.GetChainBase(); base != 0 && base < a.GetChainBase() {
		return true
	}
	return q.GetChainBase() == a.GetChainBase() && contradict(q.GetChain(), a.GetChain()) || contradict(q.GetStates(), a.GetStates())
}

func contradict(x, y []*peerv1.HashPoint) bool {
	for _, p := range x {
		if hash, is := hashAt(y, p.GetIndex()); is && hash != p.GetHash() {
			return true
		}
	}
	return false
}
