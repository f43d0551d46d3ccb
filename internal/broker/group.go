package broker

import (
	"github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/engine"
	"github.com/felix-go/felix/internal/invariant"
	"github.com/felix-go/felix/internal/slots"
)

var errIDInGroup = felix.Errorf(felix.InvalidArgument, "an operation of an atomic group has no idempotency id of its own: the group may have one")

var errIDOfGroup = felix.Errorf(felix.InvalidArgument, "idempotency ids of atomic groups are not known to this build; nothing was applied")

// refuseGroup answers a group that no shard can evaluate, and says whether it is
// one: its keys are of several shards, or an operation that stops it is illegal.
// An illegal one that does not is answered as outside of a group.
func (c *cache) refuseGroup(batch *felix.Batch, g *felix.Group) bool {
	invariant.Check(0 <= g.From && g.From < g.To && int(g.To) <= len(batch.Ops),
		"a group of the operations %d to %d, of %d", g.From, g.To, len(batch.Ops))
	ops, replies := batch.Ops[g.From:g.To], batch.Replies[g.From:g.To]
	if g.Once != nil {
		for i := range replies {
			replies[i] = felix.Reply{Err: errIDOfGroup}
		}
		return true
	}
	home, crossed, stopped := -1, false, false
	for i := range ops {
		err := engine.Validate(&ops[i])
		if err == nil && ops[i].Once != nil {
			err, stopped = errIDInGroup, true
		}
		if replies[i] = (felix.Reply{Err: err}); err != nil {
			stopped = stopped || g.Stops(&ops[i], &replies[i])
			continue
		}
		n := slots.Shard(slots.Slot(ops[i].Key), len(c.shards))
		crossed = crossed || home >= 0 && home != n
		home = n
	}
	for i := range replies {
		switch {
		case crossed:
			replies[i] = felix.Reply{Err: felix.ErrCrossShard}
		case stopped && replies[i].Err == nil:
			replies[i] = felix.Reply{Aborted: true}
		}
	}
	return crossed || stopped
}
