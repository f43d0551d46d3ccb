package sim

import (
	"slices"
	"time"

	"github.com/felix-go/felix/internal/placement"
)

const (
	// planEvery is how often the metadata's owner looks whether replicas are
	// where they should be.
	planEvery = 150 * time.Millisecond
	// deadAfter is for how long a node is away before others take its place: much
	// sooner than in a real cluster.
	deadAfter = 700 * time.Millisecond
)

// placementLimits are as internal/broker's.
var placementLimits = placement.Limits{Shards: 8, Receiving: 2, Preferred: 8}

// metaOf is the metadata's shard, of which every node has a replica. It is not
// simulated: there is one metadata, and nobody has to agree on it.
func (w *world) metaOf() placement.Shard {
	return placement.Create(w.placementNodes(), nil, []uint64{1}, len(w.nodes))[0]
}

// placementNodes are the nodes as the metadata's owner sees them.
func (w *world) placementNodes() (nodes []placement.Node) {
	for _, n := range w.nodes {
		node := placement.Node{ID: n.id, State: n.state, Up: n.up && n.pausedUntil <= w.now}
		node.Dead = !n.up && w.now-n.downSince >= deadAfter
		nodes = append(nodes, node)
	}
	return nodes
}

// changes are what the shipped rules want to be changed now.
func (w *world) changes() []placement.Change {
	in := placement.Input{Nodes: w.placementNodes(), Meta: w.meta, Limits: placementLimits}
	for _, g := range w.shards {
		in.Shards = append(in.Shards, placement.Target{Shard: g.place, Replication: g.replication})
	}
	return slices.DeleteFunc(placement.Plan(in), func(c placement.Change) bool { return c.Shard == w.meta.ID })
}

// plan makes the changes, again and again: each over the very placement that it
// was planned for. Whoever drives them may be lost at any point.
func (w *world) plan() {
	changes := w.changes()
	if !w.healed && w.one(4) {
		changes = changes[:w.rng.IntN(len(changes)+1)]
	}
	for _, c := range changes {
		g := w.shards[slices.IndexFunc(w.shards, func(g *group) bool { return g.id == c.Shard })]
		seen := g.place
		w.after(w.between(0, planEvery), func() {
			if slices.Equal(g.place.Replicas, seen.Replicas) && g.place.Prefer == seen.Prefer {
				g.change(c)
			}
		})
	}
	w.after(2*planEvery, w.plan)
}

// change writes a change into the metadata.
func (g *group) change(c placement.Change) {
	w := g.w
	g.place.Apply(c)
	for uint64(len(g.homes)) < g.place.NextRaft-1 {
		id := uint64(len(g.homes)) + 1
		at := slices.IndexFunc(g.place.Replicas, func(p placement.Replica) bool { return p.Raft == id })
		g.homes = append(g.homes, w.nodes[g.place.Replicas[at].Node-1])
	}
	w.must(g.place.Check())
	for _, want := range c.Wants {
		leaves := uint64(0)
		if want.Role == placement.Gone {
			leaves = 1
		}
		w.note("shard %d: its replica on node %d shall come, or leave %d", g.id, want.Node, leaves)
		w.count("moves")
	}
	if c.Prefer != 0 {
		w.note("shard %d shall be owned by node %d", g.id, c.Prefer)
	}
}

// command is what an operator wants: another number of replicas, a node without
// any, or one that is used again.
func (w *world) command(n *node) {
	switch w.rng.IntN(5) {
	case 0:
		g := w.shards[w.rng.IntN(len(w.shards))]
		g.replication = 1 + w.rng.IntN(5)
		w.note("shard %d shall have %d replicas", g.id, uint64(g.replication))
	case 1, 2:
		n.state = placement.Draining
		w.note("node %d is to be drained", n.id)
	case 3:
		n.state = placement.Removing
		w.note("node %d is to be removed", n.id)
	default:
		for _, n := range w.nodes {
			n.state = placement.Active
		}
		w.note("all nodes are to be used")
	}
}

// heirEntries is how many entries a replica may lack that is to take over.
const heirEntries = 64

// giveBack hands the shard over to the node that should own it, if that can take
// over at once.
func (r *replica) giveBack() {
	g := r.group
	status := r.shard.Status()
	to := g.place.ReplicaOn(g.place.Prefer)
	if g.w.healed || g.w.profile.onlySums || !status.Owns || to == 0 || to == r.raftID || len(status.Conf.GetVotersOutgoing()) > 0 || !g.w.one(4) {
		return
	}
	for _, p := range status.Progress {
		if p.RaftID == to && !p.Learner && p.Active && p.Replicates && p.Match+heirEntries >= status.Commit && g.home(to).up {
			g.w.note("shard %d: replica %d gives it back to %d", g.id, r.raftID, to)
			g.w.count("given back")
			r.shard.HandOver(to)
			r.advance()
			return
		}
	}
}
