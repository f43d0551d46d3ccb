package clustertest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/broker"
)

// losses are changes that the cluster makes by itself: a broker stays dead, and
// when its replicas have been made anew elsewhere it comes back.
func losses() []change {
	lost := func(turn int) uint64 { return uint64(turn%4 + 1) }
	soon := func(o *broker.Options) { o.Cluster.ReplaceAfter = 500 * time.Millisecond }
	replaced := func(_ *cluster, all []felix.ShardInfo, turn int) error { return settled(all, "main", 3, lost(turn)) }
	back := func(c *cluster, turn int) error {
		if id := lost(turn); c.node(id).current() == nil {
			return c.tryStart(id)
		}
		return nil
	}
	// rested says what is left to do once the broker is back.
	rested := func(c *cluster, all []felix.ShardInfo, turn int) error {
		return errors.Join(c.hasItsShare(lost(turn), all), even(all, "main", len(c.all())))
	}
	return []change{
		{name: "replacement", options: soon,
			before: func(c *cluster, turn int) { c.crash(lost(turn)) },
			begin:  func(context.Context, *cluster, *broker.Broker, int) error { return nil },
			done:   replaced,
			after: func(c *cluster, turn int) {
				if err := back(c, turn); err != nil {
					c.t.Fatal(err)
				}
				// What is told afterwards belongs to the next turn.
				eventually(c.t, "the broker is back, and shares are even", func() error {
					all, err := c.shards()
					return errors.Join(err, rested(c, all, turn))
				})
			},
		},
		{name: "return", options: soon,
			before: func(c *cluster, turn int) {
				c.crash(lost(turn))
				eventually(c.t, "a broker is replaced", func() error {
					all, err := c.shards()
					return errors.Join(err, replaced(c, all, turn))
				})
			},
			begin: func(_ context.Context, c *cluster, _ *broker.Broker, turn int) error { return back(c, turn) },
			done:  rested,
			who:   lost,
		},
	}
}

// hasItsShare says what is left until a node's broker has the replicas that it
// shall have, and no others, and all shards are whole.
func (c *cluster) hasItsShare(id uint64, all []felix.ShardInfo) error {
	i := c.node(id).current()
	if i == nil || i.opened.Load() == nil {
		return fmt.Errorf("node %d is not open", id)
	}
	shall := 0
	for _, s := range all {
		if replicaOn(s, id) != 0 {
			shall++
		}
	}
	if has := i.opened.Load().Stats().Shards; has != shall {
		return fmt.Errorf("node %d has %d replicas, and shall have %d", id, has, shall)
	}
	return settled(all, "main", 3)
}

// even says whether nodes have more of a cache's replicas than others.
func even(all []felix.ShardInfo, cache string, nodes int) error {
	count, total := map[uint64]int{}, 0
	for _, s := range all {
		if s.Cache == cache {
			for _, r := range s.Replicas {
				count[r.Node]++
				total++
			}
		}
	}
	for id := range uint64(nodes) {
		if n := count[id+1]; n < total/nodes || n > (total+nodes-1)/nodes {
			return fmt.Errorf("node %d has %d of %d replicas", id+1, n, total)
		}
	}
	return nil
}
