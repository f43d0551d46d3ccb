package placement

import (
	"cmp"
	"slices"
)

// evenReplicas moves a replica from a node that has two more than another one,
// and says whether it did.
func (p *planner) evenReplicas() bool {
	if p.limits.Shards <= 0 {
		return false
	}
	from := slices.DeleteFunc(slices.Clone(p.nodes), func(n Node) bool { return !n.good() })
	slices.SortStableFunc(from, func(a, b Node) int { return cmp.Compare(p.load[b.ID].Replicas, p.load[a.ID].Replicas) })
	to := slices.DeleteFunc(slices.Clone(from), func(n Node) bool { return !n.reachable() || p.receiving[n.ID] >= p.limits.Receiving })
	slices.Reverse(to)
	for _, hi := range from {
		for _, lo := range to {
			if p.load[hi.ID].Replicas-p.load[lo.ID].Replicas < 2 {
				break
			}
			if e := p.movable(hi.ID, lo.ID); e != nil {
				p.want(e, lo.ID, Voter)
				p.want(e, hi.ID, Gone)
				return true
			}
		}
	}
	return false
}

// movable is a shard whose replica on a node can move to another one: nothing
// else happens to it, and all its replicas are well. Better one that the node
// does not own.
func (p *planner) movable(from, to uint64) (found *entry) {
	for _, e := range p.entries {
		i := e.shard.on(from)
		if i < 0 || e.shard.Pinned || e.shard.on(to) >= 0 || e.shard.changing() || p.reachable(e.shard) < len(e.shard.Replicas) ||
			p.good(e.shard) < len(e.shard.Replicas) {
			continue
		}
		if e.shard.Prefer != from {
			return e
		}
		if found == nil {
			found = e
		}
	}
	return found
}

// prefer finds a shard another preferred owner, when the one that it has will
// not be its owner for long.
func (p *planner) prefer(e *entry) {
	s := e.shard
	if i := s.on(s.Prefer); i >= 0 && s.Replicas[i].Want == Voter && p.node(s.Prefer).good() {
		return
	}
	best := uint64(0)
	for _, r := range s.Replicas {
		if p.owns(r) && (best == 0 || cmp.Or(cmp.Compare(p.load[r.Node].Preferred, p.load[best].Preferred), cmp.Compare(r.Node, best)) < 0) {
			best = r.Node
		}
	}
	if best != 0 && (e.meta || p.limits.Preferred > 0) {
		p.setPrefer(e, best)
	}
}

// owns says whether a replica can own its shard now, and go on to.
func (p *planner) owns(r Replica) bool {
	n := p.node(r.Node)
	return r.Want == Voter && r.Have == Voter && n.good() && n.reachable()
}

func (p *planner) setPrefer(e *entry, node uint64) {
	if !e.meta {
		p.limits.Preferred--
		p.load.add(e.shard.Prefer, 0, -1)
		p.load.add(node, 0, 1)
	}
	e.shard.Prefer = node
}

// evenOwners takes a shard from a node that should own two more than another
// one, and says whether it did. It may take a chain of nodes, each giving one to
// the next, as not every node has replicas of what the first one owns.
func (p *planner) evenOwners() bool {
	from := slices.DeleteFunc(slices.Clone(p.nodes), func(n Node) bool { return !n.good() })
	slices.SortStableFunc(from, func(a, b Node) int { return cmp.Compare(p.load[b.ID].Preferred, p.load[a.ID].Preferred) })
	if len(from) == 0 || p.load[from[0].ID].Preferred-p.load[from[len(from)-1].ID].Preferred < 2 {
		return false // as it nearly always is
	}
	owned := map[uint64][]*entry{}
	for _, e := range p.entries {
		if !e.shard.Pinned {
			owned[e.shard.Prefer] = append(owned[e.shard.Prefer], e)
		}
	}
	for _, n := range from {
		chain := p.chain(n.ID, owned)
		if len(chain) == 0 || len(chain) > p.limits.Preferred {
			continue
		}
		for _, g := range chain {
			p.setPrefer(g.what, g.to)
		}
		return true
	}
	return false
}

// gift is a shard that a node gives to another.
type gift struct {
	what *entry
	to   uint64
}

// chain is the shortest one from a node to one that should own at least two less.
func (p *planner) chain(start uint64, owned map[uint64][]*entry) []gift {
	came := map[uint64]gift{start: {}} // how the shard would come to a node
	for queue := []uint64{start}; len(queue) > 0; queue = queue[1:] {
		for _, e := range owned[queue[0]] {
			for _, r := range e.shard.Replicas {
				if _, seen := came[r.Node]; seen || !p.owns(r) {
					continue
				}
				came[r.Node] = gift{e, r.Node}
				if p.load[start].Preferred-p.load[r.Node].Preferred < 2 {
					queue = append(queue, r.Node)
					continue
				}
				var chain []gift
				for at := r.Node; at != start; at = came[at].what.shard.Prefer {
					chain = append(chain, came[at])
				}
				return chain
			}
		}
	}
	return nil
}
