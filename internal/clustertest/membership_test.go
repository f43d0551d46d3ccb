package clustertest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/broker"
)

// anyone is a broker that runs, other than those of some nodes.
func (c *cluster) anyone(not ...uint64) *broker.Broker {
	c.t.Helper()
	var found *broker.Broker
	eventually(c.t, "a broker runs", func() error {
		for _, n := range c.all() {
			if i := n.current(); i != nil && i.opened.Load() != nil && !slices.Contains(not, n.id) {
				found = i.opened.Load()
				return nil
			}
		}
		return errors.New("none does")
	})
	return found
}

// shards are all of the cluster's, as a broker tells of them.
func (c *cluster) shards(not ...uint64) ([]felix.ShardInfo, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	return c.anyone(not...).Shards(ctx, nil)
}

// ids of replicas that were seen, by shard: where each is, or was.
type raftIDs map[uint64]map[uint64]uint64

// note looks for a replica's id that is used twice, and for two replicas on a node.
func (ids raftIDs) note(t *testing.T, all []felix.ShardInfo) {
	t.Helper()
	for _, s := range all {
		if ids[s.ID] == nil {
			ids[s.ID] = map[uint64]uint64{}
		}
		nodes := map[uint64]int{}
		for _, r := range s.Replicas {
			if was, is := ids[s.ID][r.RaftID]; is && was != r.Node {
				t.Errorf("shard %d: the replica %d is on node %d, and was on node %d", s.ID, r.RaftID, r.Node, was)
			}
			ids[s.ID][r.RaftID] = r.Node
			if nodes[r.Node]++; nodes[r.Node] > 1 {
				t.Errorf("shard %d has two replicas on node %d: %+v", s.ID, r.Node, s.Replicas)
			}
		}
	}
}

// settled says what is left to do until every shard of the cache has so many
// voters, and nothing else, none of them on the nodes that have to be free, and an owner.
func settled(all []felix.ShardInfo, cache string, voters int, free ...uint64) error {
	found := false
	for _, s := range all {
		for _, r := range s.Replicas {
			if r.Want != r.Have {
				return fmt.Errorf("shard %d: replica %d on node %d is %q and shall be %q", s.ID, r.RaftID, r.Node, r.Have, r.Want)
			}
			if !s.Meta && slices.Contains(free, r.Node) {
				return fmt.Errorf("shard %d still has replica %d on node %d", s.ID, r.RaftID, r.Node)
			}
		}
		if s.Owner == 0 {
			return fmt.Errorf("shard %d has no owner", s.ID)
		}
		if s.Cache != cache {
			continue
		}
		found = true
		if len(s.Replicas) != voters {
			return fmt.Errorf("shard %d has %d replicas, and shall have %d", s.ID, len(s.Replicas), voters)
		}
	}
	if !found {
		return fmt.Errorf("there is no cache %s", cache)
	}
	return nil
}

// change is something that is done to a cluster of four, and can be done again
// and again.
type change struct {
	name string
	// options adapts those of the brokers, if that is not nil.
	options func(o *broker.Options)
	// before prepares for the change, if that is not nil.
	before func(c *cluster, turn int)
	// begin asks for the change; it may be asked twice. turn says how often it was
	// done before.
	begin func(ctx context.Context, c *cluster, b *broker.Broker, turn int) error
	// done says what is left of it.
	done func(c *cluster, all []felix.ShardInfo, turn int) error
	// after brings back what the change has taken away, if that is not nil.
	after func(c *cluster, turn int)
	// who is the node whose steps it is about; nil is all of them.
	who func(turn int) uint64
}

// changes are those that need no broker to join.
func changes() []change {
	return []change{
		{name: "create",
			begin: func(ctx context.Context, c *cluster, b *broker.Broker, turn int) error {
				_, _, _, err := b.CreateCache(ctx, scopeOf(fmt.Sprint("new", turn)), felix.CacheSettings{Shards: 2})
				return err
			},
			done: func(c *cluster, all []felix.ShardInfo, turn int) error {
				return settled(all, fmt.Sprint("new", turn), 3)
			},
		},
		{name: "drain",
			begin: func(ctx context.Context, c *cluster, b *broker.Broker, turn int) error {
				_, err := b.DrainNode(ctx, uint64(turn%4+1), true)
				return err
			},
			done: func(c *cluster, all []felix.ShardInfo, turn int) error {
				return settled(all, "main", 3, uint64(turn%4+1))
			},
			after: func(c *cluster, turn int) {
				eventually(c.t, "the drain is undone", func() error {
					_, err := c.anyone().DrainNode(context.Background(), uint64(turn%4+1), false)
					return err
				})
			},
		},
		{name: "move",
			begin: func(ctx context.Context, c *cluster, b *broker.Broker, turn int) error {
				all, err := b.Shards(ctx, scope("main"))
				if err != nil {
					return err
				}
				from := uint64(turn%4 + 1)
				if replicaOn(all[0], from) == 0 {
					return nil // done, or there is nothing to do
				}
				to := uint64(1)
				for replicaOn(all[0], to) != 0 {
					to++
				}
				_, err = b.MoveShard(ctx, scopeOf("main"), 0, from, to)
				return err
			},
			done: func(c *cluster, all []felix.ShardInfo, turn int) error {
				if err := settled(all, "main", 3); err != nil {
					return err
				}
				for _, s := range all {
					if s.Cache == "main" && s.Number == 0 && replicaOn(s, uint64(turn%4+1)) != 0 {
						return fmt.Errorf("the replica on node %d has not moved", turn%4+1)
					}
				}
				return nil
			},
		},
		{name: "replication",
			begin: func(ctx context.Context, c *cluster, b *broker.Broker, turn int) error {
				_, _, err := b.SetReplication(ctx, scopeOf("main"), []int{1, 4, 2, 3}[turn%4])
				return err
			},
			done: func(c *cluster, all []felix.ShardInfo, turn int) error {
				return settled(all, "main", []int{1, 4, 2, 3}[turn%4])
			},
		},
	}
}

func scope(cache string) *felix.Scope {
	s := scopeOf(cache)
	return &s
}

// replicaOn is the shard's replica on a node, 0 if there is none that shall stay.
func replicaOn(s felix.ShardInfo, node uint64) uint64 {
	for _, r := range s.Replicas {
		if r.Node == node && r.Want != felix.ReplicaGone {
			return r.RaftID
		}
	}
	return 0
}

// make does a change, and waits until nothing is left of it.
func (c *cluster) make(ch change, turn int, ids raftIDs) {
	c.t.Helper()
	eventually(c.t, "asking for: "+ch.name, func() error {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		return ch.begin(ctx, c, c.anyone(), turn)
	})
	eventually(c.t, ch.name, func() error {
		all, err := c.shards()
		if err != nil {
			return err
		}
		ids.note(c.t, all)
		return ch.done(c, all, turn)
	})
}

// TestMembershipCrashes does each change of a cluster once for each of the steps
// that it consists of, and crashes the broker that takes the step. Started again,
// the change goes on to its end, while clients work, and nothing is lost. Under
// the race detector it is two of the steps, by chance.
func TestMembershipCrashes(t *testing.T) {
	for _, ch := range slices.Concat(changes(), joins(), losses()) {
		t.Run(ch.name, func(t *testing.T) {
			t.Parallel()
			c := startCluster(t, 4, func(_ uint64, o *broker.Options) {
				o.Cluster.GiveBackAfter = 200 * time.Millisecond
				if ch.options != nil {
					ch.options(o)
				}
			})
			c.create(1, "main", felix.CacheSettings{Shards: 2, Replication: 3})
			l := c.startLoad("main", 3, 1, 2, 3, 4)
			l.advance(100)
			ids, turn := raftIDs{}, 0
			if ch.before != nil {
				ch.before(c, turn)
			}
			told := c.steps()
			c.make(ch, turn, ids)
			var steps []string
			for _, p := range told() {
				if !slices.Contains(steps, p.step) && !strings.HasPrefix(p.step, "form-") && (ch.who == nil || p.node == ch.who(turn)) {
					steps = append(steps, p.step)
				}
			}
			t.Logf("%q", steps)
			if raceDetector {
				rand.Shuffle(len(steps), func(i, k int) { steps[i], steps[k] = steps[k], steps[i] })
				steps = steps[:min(2, len(steps))]
			}
			for _, step := range steps {
				if ch.after != nil {
					ch.after(c, turn)
				}
				if turn++; ch.before != nil {
					ch.before(c, turn)
				}
				c.makeWithCrash(ch, turn, ids, step)
			}
			for id := range uint64(4) {
				if c.node(id+1).current() == nil {
					c.start(id + 1)
				}
			}
			l.advance(100)
			l.check(1, 2, 3, 4)
		})
	}
}

// makeWithCrash does a change, and crashes the first broker that comes to the
// step.
func (c *cluster) makeWithCrash(ch change, turn int, ids raftIDs, step string) {
	c.t.Helper()
	nodes := c.all()
	if ch.who != nil {
		nodes = []*node{c.node(ch.who(turn))}
	}
	trap := c.trapAt(step, nodes...)
	restarted := make(chan struct{})
	go func() {
		defer close(restarted)
		if id, ok := <-trap.crashed; ok {
			c.t.Logf("%s, turn %d: node %d crashed at %s", ch.name, turn, id, step)
			c.start(id)
		} else {
			c.t.Logf("%s, turn %d: nobody came to %s", ch.name, turn, step)
		}
	}()
	c.make(ch, turn, ids)
	trap.disarm()
	<-restarted
	c.make(ch, turn, ids) // it stays so
}
