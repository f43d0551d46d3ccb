package model

import (
	"maps"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/slots"
)

// groupOf is the group of an operation, or nil.
func groupOf(b *felix.Batch, i int) *felix.Group {
	for j := range b.Groups {
		if g := &b.Groups[j]; int(g.From) <= i && i < int(g.To) {
			return g
		}
	}
	return nil
}

// evalGroup evaluates a group; if it is stopped, everything is as it was before.
// What makes the whole of it illegal is looked for first.
func (c *cache) evalGroup(b *felix.Batch, g *felix.Group) {
	ops, replies := b.Ops[g.From:g.To], b.Replies[g.From:g.To]
	homes, stopped, bytes := map[int]bool{}, false, 0
	for i := range ops {
		replies[i] = felix.Reply{}
		why := illegal(&ops[i])
		if g.Once != nil || ops[i].Once != nil {
			why, stopped = "no ids in groups", true
		}
		if why != "" {
			replies[i].Err = felix.Errorf(felix.InvalidArgument, "%s", why)
			stopped = stopped || g.Stops(&ops[i], &replies[i])
			continue
		}
		homes[slots.Shard(slots.Slot(ops[i].Key), c.settings.Shards)] = true
		bytes += len(ops[i].Value)
	}
	counters, values := maps.Clone(c.counters), maps.Clone(c.values)
	switch {
	case len(homes) > 1:
		for i := range replies {
			replies[i] = felix.Reply{Err: felix.ErrCrossShard}
		}
		return
	case stopped:
		for i := range replies {
			replies[i].Aborted = replies[i].Err == nil
		}
		return
	case bytes > felix.MaxGroupBytes: // enough of a check for a model
		for i := range replies {
			replies[i] = felix.Reply{Err: felix.Errorf(felix.ResourceExhausted, "the group is too large")}
		}
		return
	}
	for i := range ops {
		if replies[i] = c.eval(&ops[i]); !g.Stops(&ops[i], &replies[i]) {
			continue
		}
		c.counters, c.values = counters, values
		for j := range replies {
			if j != i && illegal(&ops[j]) == "" {
				replies[j] = felix.Reply{Aborted: true}
			}
		}
		return
	}
}
