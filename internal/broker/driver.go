package broker

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/felix-go/felix/internal/placement"
)

const (
	// driveEvery is how often the owner of the metadata looks for what to change
	// when nothing happens: nodes are away for longer and longer.
	driveEvery = time.Second
	// driveTimeout bounds a look, which others wait for.
	driveTimeout = 2 * time.Second
	// forgetsAfter is for how long an owner of the metadata may not have looked
	// that still relies on what it saw then: it may have been stopped, or somebody
	// else have owned the metadata.
	forgetsAfter = 5 * time.Second
)

// placementLimits bound what changes at the same time: each replica that is being
// filled costs its owner's and its own broker a disk's attention.
var placementLimits = placement.Limits{Shards: 8, Receiving: 2, Preferred: 8}

// driver is what the owner of the metadata remembers between looks. It is not
// stored: a new owner has to see for as long that a node is away before it is
// replaced.
type driver struct {
	at   time.Duration
	view *view
	down map[uint64]time.Duration // node → since when it has not been reached
}

// drive changes placements, so that every shard has as many replicas as it should
// and nodes have even shares. It is for the owner of the metadata, but nothing
// bad comes of two: each change is made to the very placement that it was planned
// for, or not at all.
func (b *Broker) drive(ctx context.Context, v *view) {
	d, now := &b.driver, b.mono()
	if v.cluster == nil || v == d.view && now-d.at < driveEvery {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, driveTimeout)
	defer cancel()
	up := b.reached()
	d.look(v, now, up)
	for _, change := range placement.Plan(d.input(v, now, up, b.opts.Cluster.ReplaceAfter)) {
		if err := b.wish(ctx, v, change); err != nil {
			b.opts.Logger.Warn("a placement cannot be changed", "shard", change.Shard, "error", err)
			return // nor can the others
		}
	}
	b.bury(ctx, v)
}

// look notes which nodes are away.
func (d *driver) look(v *view, now time.Duration, up map[uint64]bool) {
	if now-d.at > forgetsAfter {
		d.down = nil
	}
	down := map[uint64]time.Duration{}
	for id := range v.nodes {
		if !up[id] {
			down[id] = now
			if since, was := d.down[id]; was {
				down[id] = since
			}
		}
	}
	d.at, d.view, d.down = now, v, down
}

// input is what there is to plan with.
func (d *driver) input(v *view, now time.Duration, up map[uint64]bool, replaceAfter time.Duration) placement.Input {
	in := placement.Input{Meta: v.cluster.Shard, Shards: v.targets(), Limits: placementLimits}
	for id, n := range v.nodes {
		if n.State == nodeRemoved {
			continue
		}
		since, down := d.down[id]
		in.Nodes = append(in.Nodes, placement.Node{ID: id, State: n.placementState(), Up: up[id], Dead: down && now-since >= replaceAfter})
	}
	return in
}

func (n *nodeMeta) placementState() placement.State {
	switch n.State {
	case nodeDraining:
		return placement.Draining
	case nodeRemoving:
		return placement.Removing
	}
	return placement.Active
}

// targets are the shards of all caches, in the order of their names.
func (v *view) targets() (all []placement.Target) {
	caches := slices.SortedFunc(maps.Values(v.caches), func(x, y *cacheMeta) int { return cmp.Compare(x.scope().String(), y.scope().String()) })
	for _, m := range caches {
		for i := range m.Shards {
			all = append(all, placement.Target{Shard: m.Shards[i], Replication: m.Replication})
		}
	}
	return all
}

// reached are the nodes that this broker reaches, itself among them.
func (b *Broker) reached() map[uint64]bool {
	up := map[uint64]bool{b.node: true}
	for _, l := range b.net.Links() {
		up[l.Node] = up[l.Node] || l.Up
	}
	return up
}

// wish writes a change into the metadata, unless the shard's placement is not any
// more what it is in v: then it is planned again.
func (b *Broker) wish(ctx context.Context, v *view, change placement.Change) error {
	planned := v.placements()[change.Shard]
	made := false
	err := b.updateShard(ctx, change.Shard, func(s *placement.Shard) bool {
		if made = samePlacement(s, planned); made {
			s.Apply(change)
		}
		return made
	})
	if err != nil || !made {
		return err
	}
	b.opts.Logger.Info("the placement of a shard was changed", "shard", change.Shard, "wants", describeWants(change))
	b.opts.Cluster.OnStep("wish-written")
	return nil
}

// describeWants says what a change is, for people.
func describeWants(c placement.Change) string {
	var parts []string
	for _, w := range c.Wants {
		parts = append(parts, fmt.Sprintf("%s on node %d", w.Role, w.Node))
	}
	if c.Prefer != 0 {
		parts = append(parts, fmt.Sprintf("owner on node %d", c.Prefer))
	}
	return strings.Join(parts, ", ")
}

// bury makes tombstones of the nodes that are to be removed and hold nothing any
// more.
func (b *Broker) bury(ctx context.Context, v *view) {
	if !slices.ContainsFunc(slices.Collect(maps.Values(v.nodes)), func(n *nodeMeta) bool { return v.emptied(n) }) {
		return
	}
	confirmed, err := b.confirmedView(ctx)
	if err != nil {
		return // next time
	}
	for id, n := range confirmed.nodes {
		if !confirmed.emptied(n) {
			continue
		}
		err := b.updateNode(ctx, id, func(n *nodeMeta) bool {
			is := n.State == nodeRemoving
			n.State = nodeRemoved
			return is
		})
		if err != nil {
			b.opts.Logger.Warn("a node cannot be removed", "node", id, "error", err)
			return
		}
		b.opts.Logger.Info("a node was removed", "node", id)
		b.opts.Cluster.OnStep("node-removed")
	}
}

// emptied says whether the node is to be removed, and holds nothing any more.
func (v *view) emptied(n *nodeMeta) bool {
	if n.State != nodeRemoving || v.cluster == nil {
		return false
	}
	return !placement.Holds(append(v.targets(), placement.Target{Shard: v.cluster.Shard}), n.ID)
}
