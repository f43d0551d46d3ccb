package clustertest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/broker"
)

// isMember says what is left until a node is one with its copy of the metadata.
func (c *cluster) isMember(id uint64, all []felix.ShardInfo) error {
	if b := c.node(id).current(); b == nil || b.opened.Load() == nil {
		return fmt.Errorf("node %d is not open", id)
	}
	if err := c.broker(id).Ready(); err != nil {
		return err
	}
	for _, s := range all {
		if s.Meta && !slices.ContainsFunc(s.Replicas, func(r felix.ReplicaInfo) bool { return r.Node == id && r.Want != felix.ReplicaGone && r.Have == r.Want }) {
			return fmt.Errorf("node %d has no metadata: %+v", id, s.Replicas)
		}
	}
	return nil
}

// isRemoved says what is left until a node is no member any more.
func (c *cluster) isRemoved(id uint64, all []felix.ShardInfo) error {
	nodes, err := c.anyone(id).Nodes(context.Background())
	if err != nil {
		return err
	}
	for _, n := range nodes {
		if n.ID == id && n.State != felix.NodeRemoved {
			return fmt.Errorf("node %d is %s, waiting: %s", id, n.State, n.Waiting)
		}
	}
	for _, s := range all {
		if replicaOn(s, id) != 0 {
			return fmt.Errorf("shard %d has a replica on node %d", s.ID, id)
		}
	}
	return nil
}

// removal waits for a removed node's broker to end, and says why it did.
func (n *node) removal() <-chan error {
	why := make(chan error, 1)
	f := func(err error) {
		select {
		case why <- err:
		default:
		}
	}
	n.ended.Store(&f)
	return why
}

// TestJoinAndRemove: a fourth broker joins, a first one is removed, both while
// clients work, none of whose requests fails. Who was removed ends with the
// reason, and does not come back.
func TestJoinAndRemove(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 3, calm)
	c.create(1, "main", felix.CacheSettings{Shards: 4, Replication: 3})
	l := c.startLoad("main", 6, 1, 3)
	l.refused = func(id uint64, op felix.Op, err *felix.Error) {
		t.Errorf("node %d: %v of %q: %v", id, op.Kind, op.Key, err)
	}
	l.advance(300)
	joiner := c.joining()
	c.start(joiner.id)
	c.ready(joiner.id)
	must(t, c.cache(joiner.id, "main"), felix.Op{Kind: felix.Add, Key: []byte("k"), Int: 1})
	why := c.node(2).removal()
	if _, err := c.broker(joiner.id).RemoveNode(context.Background(), 2); err != nil {
		t.Fatal(err)
	}
	eventually(t, "node 2 is removed", func() error {
		all, err := c.shards(2)
		return errors.Join(err, c.isRemoved(2, all))
	})
	select {
	case err := <-why:
		if !strings.Contains(err.Error(), "removed") {
			t.Errorf("node 2 ended because: %v", err)
		}
	case <-time.After(patience):
		t.Error("node 2 was removed and goes on")
	}
	l.advance(300)
	if err := c.startWithin(5*time.Second, 2)[2]; err == nil {
		select {
		case err := <-why:
			if !strings.Contains(err.Error(), "removed") {
				t.Errorf("node 2 ended again because: %v", err)
			}
		case <-time.After(patience):
			t.Error("node 2 was removed and serves again")
		}
	}
	eventually(t, "the rest is whole", func() error {
		all, err := c.shards(2)
		return errors.Join(err, settled(all, "main", 3, 2))
	})
	l.check(1, 3, 4)
}

// joins are changes with brokers that come and go.
func joins() []change {
	last := func(c *cluster) uint64 { return uint64(len(c.all())) }
	remove := func(c *cluster, id uint64) {
		eventually(c.t, "asking for a removal", func() error {
			_, err := c.anyone(id).RemoveNode(context.Background(), id)
			return err
		})
		eventually(c.t, "a removal", func() error {
			all, err := c.shards(id)
			if err != nil {
				return err
			}
			return c.isRemoved(id, all)
		})
	}
	join := func(c *cluster) {
		n := c.joining()
		n.removal()
		c.start(n.id)
		eventually(c.t, "a join", func() error {
			all, err := c.shards(n.id)
			if err != nil {
				return err
			}
			return c.isMember(n.id, all)
		})
	}
	return []change{
		{name: "join",
			begin: func(_ context.Context, c *cluster, _ *broker.Broker, turn int) error {
				if last(c) == uint64(turn+4) {
					n := c.joining()
					n.removal()
					n.step.Store(c.node(1).step.Load())
					go func() {
						if err := c.tryStart(n.id); err != nil {
							c.t.Error(err)
						}
					}()
				}
				return nil
			},
			done: func(c *cluster, all []felix.ShardInfo, turn int) error {
				return errors.Join(settled(all, "main", 3), c.isMember(uint64(turn+5), all))
			},
			after: func(c *cluster, turn int) { remove(c, last(c)) },
		},
		{name: "remove",
			before: func(c *cluster, turn int) { join(c) },
			begin: func(ctx context.Context, c *cluster, b *broker.Broker, turn int) error {
				_, err := b.RemoveNode(ctx, uint64(turn+5))
				return err
			},
			done: func(c *cluster, all []felix.ShardInfo, turn int) error {
				return errors.Join(settled(all, "main", 3, uint64(turn+5)), c.isRemoved(uint64(turn+5), all))
			},
		},
	}
}
