package model

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/felix-go/felix"
)

// Cluster implements felix.Cluster for the caches of a Service, as if it had
// several brokers, all of them up: every shard has two replicas, and every change
// is done when the call returns. It is for tests of doors, as Service is.
type Cluster struct {
	service *Service

	mu       sync.Mutex
	nodes    []felix.NodeInfo
	features []felix.FeatureInfo
	placed   map[shardKey]*felix.ShardInfo
}

type shardKey struct {
	scope  felix.Scope
	number int
}

var _ felix.Cluster = (*Cluster)(nil)

// NewCluster makes a cluster of so many brokers, the first of which answers. It
// knows two features, one of which the last broker lacks.
func NewCluster(service *Service, nodes int) *Cluster {
	c := &Cluster{service: service, placed: map[shardKey]*felix.ShardInfo{}, features: []felix.FeatureInfo{
		{Name: "lease_free_reads", Summary: "reads are confirmed by fences"},
		{Name: "not_everywhere", Summary: "what not every build has", Lacking: []uint64{uint64(nodes)}},
	}}
	for i := range nodes {
		id := i + 1
		c.nodes = append(c.nodes, felix.NodeInfo{ID: uint64(id), State: felix.NodeActive, Up: true, Here: id == 1,
			StoreID: fmt.Sprintf("store-%d", id), Version: "v0", Features: []string{"lease_free_reads"},
			PeerAddr: fmt.Sprintf("felix-%d:7381", id), HTTPAddr: fmt.Sprintf("felix-%d:7380", id), RESPAddr: fmt.Sprintf("felix-%d:7379", id)})
	}
	return c
}

// node finds one; mu is held.
func (c *Cluster) node(id uint64) (*felix.NodeInfo, error) {
	for i := range c.nodes {
		if c.nodes[i].ID == id {
			return &c.nodes[i], nil
		}
	}
	return nil, felix.Errorf(felix.NodeNotFound, "there is no node %d", id)
}

// shard finds one, and places it if that is not done yet; mu is held.
func (c *Cluster) shard(scope felix.Scope, number int) (*felix.ShardInfo, error) {
	info, err := c.service.CacheInfo(context.Background(), scope)
	if err != nil {
		return nil, err
	}
	if number < 0 || number >= info.Shards {
		return nil, felix.Errorf(felix.ShardNotFound, "cache %s has no shard %d, but 0 to %d", scope, number, info.Shards-1)
	}
	key := shardKey{scope, number}
	if c.placed[key] == nil {
		s := &felix.ShardInfo{Scope: scope, Number: number, ID: uint64(2 + len(c.placed)), Term: 1}
		for i := range c.nodes {
			if n := &c.nodes[(i+number)%len(c.nodes)]; n.State == felix.NodeActive && len(s.Replicas) < 2 {
				s.Replicas = append(s.Replicas, replicaOn(n.ID, uint64(len(s.Replicas)+1)))
			}
		}
		s.Owner = s.Replicas[0].Node
		s.Preferred = s.Owner
		c.placed[key] = s
	}
	return c.placed[key], nil
}

func replicaOn(node, raftID uint64) felix.ReplicaInfo {
	return felix.ReplicaInfo{Node: node, RaftID: raftID, Want: felix.ReplicaVoter, Have: felix.ReplicaVoter, Active: true}
}

// holds is the index of the shard's replica on a node, or -1.
func holds(s *felix.ShardInfo, node uint64) int {
	return slices.IndexFunc(s.Replicas, func(r felix.ReplicaInfo) bool { return r.Node == node })
}

// move gives a replica to another node; mu is held.
func move(s *felix.ShardInfo, at int, to uint64) {
	from := s.Replicas[at].Node
	s.Replicas[at] = replicaOn(to, uint64(100)+s.Term)
	if s.Owner == from {
		s.Owner, s.Term = to, s.Term+1
	}
	if s.Preferred == from {
		s.Preferred = to
	}
}

// counted is a node with its numbers; mu is held.
func (c *Cluster) counted(n felix.NodeInfo) felix.NodeInfo {
	for _, s := range c.placed {
		if holds(s, n.ID) >= 0 {
			n.Replicas++
		}
		if s.Owner == n.ID {
			n.Owned++
		}
	}
	return n
}

// Nodes implements felix.Cluster.
func (c *Cluster) Nodes(context.Context) ([]felix.NodeInfo, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := make([]felix.NodeInfo, len(c.nodes))
	for i, n := range c.nodes {
		all[i] = c.counted(n)
	}
	return all, nil
}

// clear moves everything away from a node that has another place, and says what
// is left; mu is held.
func (c *Cluster) clear(id uint64) (waiting string) {
	for _, s := range c.placed {
		at := holds(s, id)
		for i := 0; at >= 0 && i < len(c.nodes); i++ {
			if n := &c.nodes[i]; n.State == felix.NodeActive && holds(s, n.ID) < 0 {
				move(s, at, n.ID)
				at = -1
			}
		}
		if at >= 0 {
			waiting = "there is no other broker for its replicas"
		}
	}
	return waiting
}

// DrainNode implements felix.Cluster.
func (c *Cluster) DrainNode(_ context.Context, id uint64, drain bool) (felix.NodeInfo, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n, err := c.node(id)
	switch {
	case err != nil:
		return felix.NodeInfo{}, err
	case n.State == felix.NodeRemoving || n.State == felix.NodeRemoved:
		return felix.NodeInfo{}, felix.Errorf(felix.InvalidArgument, "node %d is %s", id, n.State)
	case drain:
		n.State = felix.NodeDraining
		n.Waiting = c.clear(id)
	default:
		n.State, n.Waiting = felix.NodeActive, ""
	}
	return c.counted(*n), nil
}

// RemoveNode implements felix.Cluster.
func (c *Cluster) RemoveNode(_ context.Context, id uint64) (felix.NodeInfo, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n, err := c.node(id)
	if err != nil {
		return felix.NodeInfo{}, err
	}
	if n.State != felix.NodeRemoved {
		n.State = felix.NodeRemoving
		if n.Waiting = c.clear(id); n.Waiting == "" {
			n.State, n.Up = felix.NodeRemoved, false
		}
	}
	return c.counted(*n), nil
}

// Shards implements felix.Cluster.
func (c *Cluster) Shards(ctx context.Context, scope *felix.Scope) ([]felix.ShardInfo, error) {
	caches, shards := []felix.CacheInfo{}, []felix.ShardInfo{}
	if scope != nil {
		info, err := c.service.CacheInfo(ctx, *scope)
		if err != nil {
			return nil, err
		}
		caches = append(caches, info)
	} else {
		all, err := c.service.Caches(ctx, "", "")
		if err != nil {
			return nil, err
		}
		caches = all
		shards = append(shards, felix.ShardInfo{Meta: true, ID: 1, Owner: 1, Preferred: 1, Term: 1, Replicas: []felix.ReplicaInfo{replicaOn(1, 1)}})
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, info := range caches {
		for number := range info.Shards {
			s, err := c.shard(info.Scope, number)
			if err != nil {
				return nil, err
			}
			shards = append(shards, copyOf(s))
		}
	}
	return shards, nil
}

func copyOf(s *felix.ShardInfo) felix.ShardInfo {
	c := *s
	c.Replicas = slices.Clone(s.Replicas)
	return c
}

// MoveShard implements felix.Cluster.
func (c *Cluster) MoveShard(_ context.Context, scope felix.Scope, number int, from, to uint64) (felix.ShardInfo, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s, err := c.shard(scope, number)
	if err != nil {
		return felix.ShardInfo{}, err
	}
	for _, id := range []uint64{from, to} {
		if _, err := c.node(id); err != nil {
			return felix.ShardInfo{}, err
		}
	}
	at := holds(s, from)
	if at < 0 || holds(s, to) >= 0 {
		return felix.ShardInfo{}, felix.Errorf(felix.InvalidArgument, "the replica on node %d cannot go to node %d", from, to)
	}
	move(s, at, to)
	return copyOf(s), nil
}

// PreferOwner implements felix.Cluster.
func (c *Cluster) PreferOwner(_ context.Context, scope felix.Scope, number int, node uint64) (felix.ShardInfo, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s, err := c.shard(scope, number)
	if err != nil {
		return felix.ShardInfo{}, err
	}
	if _, err := c.node(node); err != nil {
		return felix.ShardInfo{}, err
	}
	if holds(s, node) < 0 {
		return felix.ShardInfo{}, felix.Errorf(felix.InvalidArgument, "node %d has no replica of the shard", node)
	}
	s.Preferred, s.Owner, s.Term = node, node, s.Term+1
	return copyOf(s), nil
}

// Topology implements felix.Cluster.
func (c *Cluster) Topology(ctx context.Context, scope felix.Scope) (felix.TopologyInfo, error) {
	shards, err := c.Shards(ctx, &scope)
	if err != nil {
		return felix.TopologyInfo{}, err
	}
	t := felix.TopologyInfo{Scope: scope}
	firstSlot := func(number int) int { return (number*felix.SlotCount + len(shards) - 1) / len(shards) }
	for i, s := range shards {
		o := felix.ShardOwner{Number: i, FirstSlot: firstSlot(i), LastSlot: firstSlot(i+1) - 1, Owner: s.Owner}
		for _, r := range s.Replicas {
			o.Nodes = append(o.Nodes, r.Node)
		}
		c.mu.Lock()
		if n, err := c.node(s.Owner); err == nil {
			o.HTTPAddr, o.RESPAddr = n.HTTPAddr, n.RESPAddr
		}
		c.mu.Unlock()
		t.Shards = append(t.Shards, o)
	}
	return t, nil
}

// Features implements felix.Cluster.
func (c *Cluster) Features(context.Context) ([]felix.FeatureInfo, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.features), nil
}

// FinalizeFeature implements felix.Cluster.
func (c *Cluster) FinalizeFeature(_ context.Context, name string) (felix.FeatureInfo, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	at := slices.IndexFunc(c.features, func(f felix.FeatureInfo) bool { return f.Name == name })
	if at < 0 {
		return felix.FeatureInfo{}, felix.Errorf(felix.FeatureNotFound, "there is no feature %q", name)
	}
	f := &c.features[at]
	if len(f.Lacking) > 0 {
		return felix.FeatureInfo{}, felix.Errorf(felix.InvalidArgument, "nodes %v have a build without %s", f.Lacking, name)
	}
	if !f.Finalized {
		f.Finalized, f.FinalizedAtMillis = true, 1_000_000
	}
	return *f, nil
}
