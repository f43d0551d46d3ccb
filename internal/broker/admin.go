package broker

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/placement"
)

var _ felix.Cluster = (*Broker)(nil)

// adminPatience is how long an operator's question waits for the metadata's owner
// before it is answered from what this broker has: it may be all that is left.
const adminPatience = time.Second

// adminView is the metadata as of now, or, where nobody can tell, as this broker
// last saw it.
func (b *Broker) adminView(ctx context.Context) *view {
	ctx, cancel := context.WithTimeout(ctx, adminPatience)
	defer cancel()
	if v, err := b.confirmedView(ctx); err == nil {
		return v
	}
	return b.view()
}

// Nodes implements felix.Cluster.
func (b *Broker) Nodes(ctx context.Context) ([]felix.NodeInfo, error) {
	v := b.adminView(ctx)
	up, owners := b.reached(), ownersIn(b.statuses(ctx))
	var all []felix.NodeInfo
	for _, id := range slices.Sorted(maps.Keys(v.nodes)) {
		all = append(all, b.nodeInfo(v, v.nodes[id], up, owners))
	}
	return all, nil
}

// oneNode is a node as it is now.
func (b *Broker) oneNode(ctx context.Context, id uint64) (felix.NodeInfo, error) {
	v := b.adminView(ctx)
	n := v.nodes[id]
	if n == nil {
		return felix.NodeInfo{}, noNode(id)
	}
	return b.nodeInfo(v, n, b.reached(), ownersIn(b.statuses(ctx))), nil
}

func noNode(id uint64) *felix.Error {
	return felix.Errorf(felix.NodeNotFound, "there is no node %d; felixctl node ls shows those that there are", id)
}

func (b *Broker) nodeInfo(v *view, n *nodeMeta, up map[uint64]bool, owners map[uint64]ownerStatus) felix.NodeInfo {
	info := felix.NodeInfo{ID: n.ID, State: felix.NodeState(n.State), Up: up[n.ID] && n.State != nodeRemoved, Here: n.ID == b.node,
		StoreID: n.StoreID, Version: n.Version, Features: slices.Clone(n.Features),
		PeerAddr: n.PeerAddr, HTTPAddr: n.HTTPAddr, RESPAddr: n.RESPAddr, Waiting: v.waitsFor(n, up)}
	if n.State == nodeRemoved {
		return info
	}
	if info.Up {
		info.ClockOffset = b.clock.Ahead(n.ID, b.opts.Wall(), b.mono())
		info.Ineligible = b.whyIneligible(n.ID)
	}
	for id, s := range v.placements() {
		if s.ReplicaOn(n.ID) != 0 {
			info.Replicas++
		}
		if owners[id].node == n.ID {
			info.Owned++
		}
	}
	return info
}

// whyIneligible says why a node that is up owns no shards, as far as this broker
// knows, or nothing.
func (b *Broker) whyIneligible(node uint64) string {
	if node == b.node {
		if b.stopping.Load() {
			return "it is stopping"
		}
		return *b.ineligible.Load()
	}
	if b.links == nil {
		return ""
	}
	b.links.mu.Lock()
	defer b.links.mu.Unlock()
	switch p := b.links.peers[node]; {
	case p == nil || p.pong.WallMillis == 0:
	case p.pong.Stopping:
		return "it is stopping"
	case !p.pong.Eligible:
		return "its clock does not agree with those of most other brokers, or was not compared with them yet"
	}
	return ""
}

// DrainNode implements felix.Cluster.
func (b *Broker) DrainNode(ctx context.Context, id uint64, drain bool) (felix.NodeInfo, error) {
	v, err := b.confirmedView(ctx)
	if err != nil {
		return felix.NodeInfo{}, err
	}
	n := v.nodes[id]
	if n == nil {
		return felix.NodeInfo{}, noNode(id)
	}
	if drain && n.State == nodeActive {
		return b.empty(ctx, v, id, nodeDraining, (*Broker).mayDrain)
	}
	return b.setState(ctx, id, func(state string) (string, *felix.Error) {
		switch {
		case state == nodeRemoving || state == nodeRemoved:
			return "", felix.Errorf(felix.InvalidArgument, "node %d is %s: that cannot be changed any more; a new broker needs a new id", id, state)
		case drain:
			return nodeDraining, nil
		}
		return nodeActive, nil
	})
}

// RemoveNode implements felix.Cluster.
func (b *Broker) RemoveNode(ctx context.Context, id uint64) (felix.NodeInfo, error) {
	v, err := b.confirmedView(ctx)
	if err != nil {
		return felix.NodeInfo{}, err
	}
	n := v.nodes[id]
	switch {
	case n == nil:
		return felix.NodeInfo{}, noNode(id)
	case n.State == nodeRemoving || n.State == nodeRemoved:
		return b.oneNode(ctx, id)
	}
	return b.empty(ctx, v, id, nodeRemoving, (*Broker).mayRemove)
}

// mayDrain says why a node must keep its replicas, or nil.
func (b *Broker) mayDrain(v *view, id uint64) *felix.Error {
	if len(v.others(id)) > 0 {
		return nil
	}
	return felix.Errorf(felix.InvalidArgument,
		"node %d is the only one that can have replicas: add another broker, or undo the drain of one, first", id)
}

// mayRemove says why a node must stay, or nil. It is refused where fewer brokers
// would remain than a cache has replicas, unless the node is away: then it is no
// loss.
func (b *Broker) mayRemove(v *view, id uint64) *felix.Error {
	if why := b.mayDrain(v, id); why != nil {
		return why
	}
	remain := len(v.others(id))
	if c := v.mostReplicated(); c != nil && c.Replication > remain && b.reached()[id] && !b.opts.ReplicationIsTarget {
		return felix.Errorf(felix.InvalidArgument,
			"cache %s has replication %d, and without node %d there are only %d brokers for its replicas: add a broker first, or lower it with felixctl cache set --replication %d",
			c.scope(), c.Replication, id, remain, remain)
	}
	return nil
}

// empty has a node give away what it has, if that may be. It is looked at again
// when it is written: of two nodes that are emptied at the same time each may have
// been seen to be able to go only because the other one stays. Then the last to be
// written, or both, are as they were.
func (b *Broker) empty(ctx context.Context, v *view, id uint64, want string, may func(*Broker, *view, uint64) *felix.Error) (felix.NodeInfo, error) {
	ctx, cancel := b.changing(ctx)
	defer cancel()
	if why := may(b, v, id); why != nil {
		return felix.NodeInfo{}, why
	}
	b.opts.Cluster.OnStep("node-state-checked")
	before := ""
	info, err := b.setState(ctx, id, func(state string) (string, *felix.Error) {
		if before = state; state == nodeRemoved || state == nodeRemoving {
			return state, nil
		}
		return want, nil
	})
	if err != nil || before == want || info.State != felix.NodeState(want) {
		return info, err
	}
	if v, err = b.confirmedView(ctx); err != nil {
		return felix.NodeInfo{}, felix.Errorf(felix.OutcomeUnknown, "node %d is %s, but whether that may be could not be looked at again: %v", id, want, err)
	}
	why := may(b, v, id)
	if why == nil {
		return info, nil
	}
	if _, err := b.setState(ctx, id, func(state string) (string, *felix.Error) {
		if state == want {
			return before, nil
		}
		return state, nil
	}); err != nil {
		return felix.NodeInfo{}, felix.Errorf(felix.OutcomeUnknown, "node %d may be %s for good, though it should not: %v", id, want, err)
	}
	return felix.NodeInfo{}, why
}

// setState changes what is wanted of a node.
func (b *Broker) setState(ctx context.Context, id uint64, next func(state string) (string, *felix.Error)) (felix.NodeInfo, error) {
	var refused *felix.Error
	err := b.updateNode(ctx, id, func(n *nodeMeta) bool {
		state, why := next(n.State)
		if refused = why; why != nil || state == n.State {
			return false
		}
		b.opts.Logger.Info("the state of a node is changed", "node", id, "from", n.State, "to", state)
		n.State = state
		return true
	})
	if err == nil && refused != nil {
		err = refused
	}
	if err != nil {
		return felix.NodeInfo{}, err
	}
	b.opts.Cluster.OnStep("node-state-written")
	return b.oneNode(ctx, id)
}

// others are the nodes that can have replicas, but for one.
func (v *view) others(than uint64) (ids []uint64) {
	for id, n := range v.nodes {
		if id != than && n.State == nodeActive {
			ids = append(ids, id)
		}
	}
	return ids
}

// mostReplicated is the cache that is to have most replicas, nil if there is
// none.
func (v *view) mostReplicated() (most *cacheMeta) {
	for _, m := range v.caches {
		if most == nil || cmp.Or(cmp.Compare(m.Replication, most.Replication), cmp.Compare(most.scope().String(), m.scope().String())) > 0 {
			most = m
		}
	}
	return most
}

// waitsFor says in a sentence what the drain or the removal of a node waits for.
func (v *view) waitsFor(n *nodeMeta, up map[uint64]bool) string {
	if n.State != nodeDraining && n.State != nodeRemoving {
		return ""
	}
	var left, stuck []*cacheMeta // one for each replica
	meta := false
	for id, s := range v.shards {
		if !slices.ContainsFunc(s.placement.Replicas, func(r placement.Replica) bool { return r.Node == n.ID }) {
			continue
		}
		if id == metaShard {
			meta = true
			continue
		}
		left = append(left, s.cache)
		if !canChange(s.placement, up) {
			stuck = append(stuck, s.cache)
		}
	}
	switch {
	case len(left) > 0 && !slices.ContainsFunc(v.others(n.ID), func(id uint64) bool { return up[id] }):
		return fmt.Sprintf("%s of %s, for which there is no other broker that is up and may have them", replicasLeft(len(left)), namesOf(left))
	case len(stuck) > 0:
		return fmt.Sprintf("%s, %d of them of shards that have no majority, of %s: bring their brokers back, or delete what may be lost",
			replicasLeft(len(left)), len(stuck), namesOf(stuck))
	case len(left) > 0:
		return fmt.Sprintf("%s of %s to go to other brokers", replicasLeft(len(left)), namesOf(left))
	case n.State == nodeRemoving && meta:
		return "its copy of the metadata to be given up"
	case n.State == nodeRemoving:
		return "its removal to be noted"
	}
	return ""
}

func replicasLeft(n int) string {
	if n == 1 {
		return "1 replica"
	}
	return fmt.Sprintf("%d replicas", n)
}

// mostNames is how many caches a sentence names.
const mostNames = 3

// namesOf names the first few of some caches, each once.
func namesOf(caches []*cacheMeta) string {
	var names []string
	for _, m := range caches {
		names = append(names, m.scope().String())
	}
	slices.Sort(names)
	names = slices.Compact(names)
	switch more := len(names) - mostNames; {
	case len(names) == 1:
		return "cache " + names[0]
	case more > 0:
		return fmt.Sprintf("caches %s and %d more", strings.Join(names[:mostNames], ", "), more)
	}
	return "caches " + strings.Join(names, ", ")
}

// canChange says whether most of a shard's voters are up.
func canChange(s *placement.Shard, up map[uint64]bool) bool {
	voters, there := 0, 0
	for _, r := range s.Replicas {
		if r.Have == placement.Voter {
			voters++
			if up[r.Node] {
				there++
			}
		}
	}
	return 2*there > voters
}
