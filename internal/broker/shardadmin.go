package broker

import (
	"cmp"
	"context"
	"maps"
	"slices"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/peer/peerv1"
	"github.com/felix-go/felix/internal/placement"
)

// Shards implements felix.Cluster.
func (b *Broker) Shards(ctx context.Context, scope *felix.Scope) ([]felix.ShardInfo, error) {
	v := b.adminView(ctx)
	var caches []*cacheMeta
	var all []felix.ShardInfo
	owners := ownersIn(b.statuses(ctx))
	if scope != nil {
		m := v.caches[*scope]
		if m == nil {
			return nil, noCache(*scope)
		}
		caches = []*cacheMeta{m}
	} else {
		caches = slices.SortedFunc(maps.Values(v.caches), func(x, y *cacheMeta) int { return cmp.Compare(x.scope().String(), y.scope().String()) })
		if v.cluster != nil {
			info := shardInfo(&v.cluster.Shard, owners[metaShard])
			info.Meta = true
			all = append(all, info)
		}
	}
	for _, m := range caches {
		for number := range m.Shards {
			all = append(all, cacheShardInfo(m, number, owners))
		}
	}
	return all, nil
}

func noCache(scope felix.Scope) *felix.Error {
	return felix.Errorf(felix.CacheNotFound, "no such cache: %s", scope)
}

func cacheShardInfo(m *cacheMeta, number int, owners map[uint64]ownerStatus) felix.ShardInfo {
	s := &m.Shards[number]
	info := shardInfo(s, owners[s.ID])
	info.Scope, info.Number = m.scope(), number
	return info
}

// shardInfo is a shard as its owner knows it, or only its placement where no owner
// answers.
func shardInfo(s *placement.Shard, owner ownerStatus) felix.ShardInfo {
	o := owner.status
	info := felix.ShardInfo{ID: s.ID, Owner: owner.node, Preferred: s.Prefer, Term: o.GetTerm(), Commit: o.GetCommit()}
	for _, r := range s.Replicas {
		replica := felix.ReplicaInfo{Node: r.Node, RaftID: r.Raft, Want: felix.ReplicaRole(r.Want), Have: felix.ReplicaRole(r.Have)}
		if o != nil {
			replica.Have = roleIn(o, r.Raft)
			followed(&replica, o)
		}
		info.Replicas = append(info.Replicas, replica)
	}
	return info
}

// roleIn is what a replica is in the owner's configuration.
func roleIn(o *peerv1.ShardStatus, raftID uint64) felix.ReplicaRole {
	switch {
	case slices.Contains(o.GetVoters(), raftID) || slices.Contains(o.GetVotersOutgoing(), raftID):
		return felix.ReplicaVoter
	case slices.Contains(o.GetLearners(), raftID):
		return felix.ReplicaLearner
	}
	return ""
}

// followed adds how far a replica is, as the shard's owner sees it.
func followed(r *felix.ReplicaInfo, o *peerv1.ShardStatus) {
	r.Differs = slices.Contains(o.GetDiffering(), r.RaftID)
	for _, p := range o.GetProgress() {
		if p.GetRaftId() != r.RaftID {
			continue
		}
		r.Match, r.Active = p.GetMatch(), p.GetActive() || r.RaftID == o.GetRaftId()
		r.Lag = max(o.GetCommit(), r.Match) - r.Match
		if s := p.GetSending(); s != nil {
			r.Snapshot = &felix.SnapshotInfo{SentBytes: s.GetBytes(), EstimateBytes: s.GetEstimatedBytes()}
		}
	}
}

// MoveShard implements felix.Cluster. It only writes down what is wanted: a new
// replica, which first learns, and then takes the place of the old one in one
// change.
func (b *Broker) MoveShard(ctx context.Context, scope felix.Scope, number int, from, to uint64) (felix.ShardInfo, error) {
	up := b.reached()
	return b.place(ctx, scope, number, func(v *view, s *placement.Shard) (placement.Change, *felix.Error) {
		target := v.nodes[to]
		at := slices.IndexFunc(s.Replicas, func(r placement.Replica) bool { return r.Node == from })
		there := slices.IndexFunc(s.Replicas, func(r placement.Replica) bool { return r.Node == to })
		switch {
		case v.nodes[from] == nil:
			return placement.Change{}, noNode(from)
		case target == nil || target.State == nodeRemoved:
			return placement.Change{}, noNode(to)
		case from == to:
			return placement.Change{}, felix.Errorf(felix.InvalidArgument, "the replica on node %d is there already: give another node", from)
		case there >= 0 && s.Replicas[there].Want == placement.Voter && at >= 0 && s.Replicas[at].Want == placement.Gone:
			return placement.Change{}, nil // asked for before
		case there >= 0:
			return placement.Change{}, felix.Errorf(felix.InvalidArgument, "node %d has a replica of the shard, or still has one that is to go: give another node", to)
		case at < 0 || s.Replicas[at].Want == placement.Gone:
			return placement.Change{}, felix.Errorf(felix.InvalidArgument, "node %d has no replica of the shard that could move", from)
		case target.State != nodeActive:
			return placement.Change{}, felix.Errorf(felix.InvalidArgument, "node %d is %s and gets no replicas: give another node", to, target.State)
		case !up[to]:
			return placement.Change{}, felix.Errorf(felix.InvalidArgument, "node %d cannot be reached: start it, or give another node", to)
		case v.replicasOn(to) >= felix.MaxShards:
			return placement.Change{}, felix.Errorf(felix.ResourceExhausted, "node %d has %d replicas, which is as many as a broker may have: give another node", to, felix.MaxShards)
		}
		change := placement.Change{Shard: s.ID, Wants: []placement.Want{{Node: to, Role: placement.Voter}, {Node: from, Role: placement.Gone}}}
		if s.Prefer == from {
			change.Prefer = to
		}
		return change, nil
	})
}

// replicasOn is how many replicas of caches a node shall have.
func (v *view) replicasOn(node uint64) (n int) {
	for id, s := range v.placements() {
		if id != metaShard && s.ReplicaOn(node) != 0 {
			n++
		}
	}
	return n
}

// PreferOwner implements felix.Cluster.
func (b *Broker) PreferOwner(ctx context.Context, scope felix.Scope, number int, node uint64) (felix.ShardInfo, error) {
	return b.place(ctx, scope, number, func(v *view, s *placement.Shard) (placement.Change, *felix.Error) {
		switch n := v.nodes[node]; {
		case n == nil || n.State == nodeRemoved:
			return placement.Change{}, noNode(node)
		case s.ReplicaOn(node) == 0:
			return placement.Change{}, felix.Errorf(felix.InvalidArgument, "node %d has no replica of the shard: move one there first", node)
		case n.State != nodeActive:
			return placement.Change{}, felix.Errorf(felix.InvalidArgument, "node %d is %s and owns no shards: give another node", node, n.State)
		}
		return placement.Change{Shard: s.ID, Prefer: node}, nil
	})
}

// place changes the placement of a shard as an operator wants it: decide answers
// the change, or why not. It is kept even if nodes have uneven shares then.
func (b *Broker) place(ctx context.Context, scope felix.Scope, number int, decide func(*view, *placement.Shard) (placement.Change, *felix.Error)) (felix.ShardInfo, error) {
	v, err := b.confirmedView(ctx)
	if err != nil {
		return felix.ShardInfo{}, err
	}
	m := v.caches[scope]
	switch {
	case m == nil:
		return felix.ShardInfo{}, noCache(scope)
	case number < 0 || number >= len(m.Shards):
		return felix.ShardInfo{}, felix.Errorf(felix.ShardNotFound, "cache %s has no shard %d, but 0 to %d", scope, number, len(m.Shards)-1)
	}
	found, id := false, m.Shards[number].ID
	var refused *felix.Error
	var after placement.Shard
	err = b.updateShard(ctx, id, func(s *placement.Shard) bool {
		var change placement.Change
		change, refused = decide(v, s)
		found, after = true, *s
		if refused != nil || change.Shard == 0 {
			return false
		}
		s.Apply(change)
		s.Pinned = true
		after = *s
		b.opts.Logger.Info("an operator has placed a shard", "shard", id, "wants", describeWants(change))
		return true
	})
	switch {
	case err != nil:
		return felix.ShardInfo{}, err
	case refused != nil:
		return felix.ShardInfo{}, refused
	case !found:
		return felix.ShardInfo{}, noCache(scope)
	}
	b.opts.Cluster.OnStep("wish-written")
	info := shardInfo(&after, ownersIn(b.statuses(ctx))[id])
	info.Scope, info.Number = scope, number
	return info, nil
}

// Topology implements felix.Cluster.
func (b *Broker) Topology(ctx context.Context, scope felix.Scope) (felix.TopologyInfo, error) {
	shards, err := b.Shards(ctx, &scope)
	if err != nil {
		return felix.TopologyInfo{}, err
	}
	v := b.view()
	t := felix.TopologyInfo{Scope: scope}
	for i := range shards {
		s := &shards[i]
		o := felix.ShardOwner{Number: i, FirstSlot: firstSlot(i, len(shards)), LastSlot: firstSlot(i+1, len(shards)) - 1, Owner: s.Owner}
		if n := v.nodes[s.Owner]; n != nil {
			o.HTTPAddr, o.RESPAddr = n.HTTPAddr, n.RESPAddr
		}
		for _, r := range s.Replicas {
			if r.Have == felix.ReplicaVoter {
				o.Nodes = append(o.Nodes, r.Node)
			}
		}
		t.Shards = append(t.Shards, o)
	}
	return t, nil
}

// firstSlot is the first one that slots.Shard gives to a shard.
func firstSlot(number, shards int) int { return (number*felix.SlotCount + shards - 1) / shards }
