package clustertest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/broker"
)

// caughtUp says how far a node's replicas are behind, nil if they are not.
func (c *cluster) caughtUp(id uint64) error {
	all, err := c.shards()
	if err != nil {
		return err
	}
	for _, s := range all {
		for _, r := range s.Replicas {
			if r.Node == id && s.Owner != id && (s.Owner == 0 || r.Lag > 0 || !r.Active || r.Snapshot != nil) {
				return fmt.Errorf("shard %d, owned by node %d: node %d lacks %d entries, active %v, snapshot %v", s.ID, s.Owner, id, r.Lag, r.Active, r.Snapshot)
			}
		}
	}
	return nil
}

// lagging compares how many replicas are behind of the shards that two nodes own,
// as these say, with what it should be.
func (c *cluster) lagging(a, b uint64, want int64) error {
	if n := c.broker(a).Stats().Lagging + c.broker(b).Stats().Lagging; n != want {
		return fmt.Errorf("%d replicas lag, want %d", n, want)
	}
	return nil
}

// TestCatchUpByLog: a broker that was cut off for a while gets what it missed.
// That it has it is seen when another one is lost.
func TestCatchUpByLog(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 3, nil)
	c.create(1, "main", felix.CacheSettings{Shards: 4})
	l := c.startLoad("main", 6, 1, 2)
	l.advance(200)
	c.wire.part([]uint64{3}, []uint64{1, 2})
	l.advance(1000)
	eventually(t, "owners notice that replicas are behind", func() error { return c.lagging(1, 2, 5) })
	c.wire.heal()
	eventually(t, "node 3 has caught up", func() error { return errors.Join(c.caughtUp(3), c.lagging(1, 2, 0)) })
	c.crash(1)
	l.check(2, 3)
	c.start(1)
}

// TestCatchUpBySnapshot: a broker that was away until the others had dropped the
// log that it needs gets a snapshot, while the shard goes on.
func TestCatchUpBySnapshot(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 3, func(_ uint64, o *broker.Options) { o.CheckpointBytes = 1 << 20 })
	c.create(1, "main", felix.CacheSettings{Shards: 1})
	l := c.startLoad("main", 2, 1, 2)
	l.advance(100)
	c.crash(3)
	// More than is kept of a log for a replica that may come back.
	value := bytes.Repeat([]byte("x"), 128<<10)
	cache := c.cache(1, "main")
	const values = 170
	for n := range values {
		eventually(t, "a value is set", func() error {
			if r := doOne(cache, felix.Op{Kind: felix.Set, View: felix.ViewValue, Key: fmt.Append(nil, n), Value: value}); r.Err != nil {
				return r.Err
			}
			return nil
		})
	}
	eventually(t, "the log is dropped", func() error {
		if bytes := c.broker(1).Stats().LogBytes; bytes > 20<<20 {
			return fmt.Errorf("it has %d bytes", bytes)
		}
		return nil
	})
	told := c.steps()
	c.start(3)
	eventually(t, "node 3 has caught up", func() error { return c.caughtUp(3) })
	installed := false
	for _, p := range told() {
		installed = installed || p == place{3, "install-log"}
	}
	if !installed {
		t.Errorf("node 3 has caught up without a snapshot: %v", told())
	}
	c.crash(1)
	l.check(2, 3)
	count, err := c.cache(3, "main").Count(context.Background())
	if err != nil || count.Values != values {
		t.Errorf("node 3 counts %+v, error %v; want %d values", count, err, values)
	}
	c.start(1)
}

// TestEmptyReplicas: a shard gets replicas on brokers that have none of it, by
// snapshot, while clients work and none of their requests fails.
func TestEmptyReplicas(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 3, calm)
	c.create(1, "main", felix.CacheSettings{Shards: 2, Replication: 1})
	l := c.startLoad("main", 6, 1, 2, 3)
	l.refused = func(id uint64, op felix.Op, err *felix.Error) {
		t.Errorf("node %d: %v of %q: %v", id, op.Kind, op.Key, err)
	}
	l.advance(500)
	if _, _, err := c.broker(2).SetReplication(context.Background(), scopeOf("main"), 3); err != nil {
		t.Fatal(err)
	}
	eventually(t, "there are three replicas of each shard", func() error {
		all, err := c.shards()
		if err != nil {
			return err
		}
		return settled(all, "main", 3)
	})
	l.advance(500)
	l.end()
	l.refused = nil
	c.crash(1)
	l.check(2, 3)
}

// TestDrainAndMoveUnderLoad: nodes are drained and come back, shards move and are
// owned by others, and no request fails.
func TestDrainAndMoveUnderLoad(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 4, func(id uint64, o *broker.Options) {
		calm(id, o)
		o.Cluster.GiveBackAfter = 200 * time.Millisecond
	})
	c.create(1, "main", felix.CacheSettings{Shards: 4, Replication: 3})
	l := c.startLoad("main", 8, 1, 2, 3, 4)
	l.refused = func(id uint64, op felix.Op, err *felix.Error) {
		t.Errorf("node %d: %v of %q: %v", id, op.Kind, op.Key, err)
	}
	l.advance(300)
	ids := raftIDs{}
	for turn := range 4 {
		for _, ch := range changes() {
			if ch.name == "drain" || ch.name == "move" {
				c.make(ch, turn, ids)
				if ch.after != nil {
					ch.after(c, turn)
				}
			}
		}
		all, err := c.shards()
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range all {
			if s.Cache == "main" {
				heir := s.Replicas[turn%len(s.Replicas)].Node
				if _, err := c.anyone().PreferOwner(context.Background(), s.Scope, s.Number, heir); err != nil {
					t.Error(err)
				}
			}
		}
		l.advance(300)
	}
	l.check(1, 2, 3, 4)
}

// TestReplacement: the replicas of a broker that stays away are made anew on
// another one; when it comes back it drops what it has.
func TestReplacement(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 4, func(_ uint64, o *broker.Options) { o.Cluster.ReplaceAfter = 500 * time.Millisecond })
	c.create(1, "main", felix.CacheSettings{Shards: 4, Replication: 3})
	l := c.startLoad("main", 4, 1, 2, 3)
	l.advance(300)
	c.crash(4)
	ids := raftIDs{}
	eventually(t, "node 4 is replaced", func() error {
		all, err := c.shards()
		if err != nil {
			return err
		}
		ids.note(t, all)
		return settled(all, "main", 3, 4)
	})
	l.advance(300)
	c.start(4)
	eventually(t, "node 4 has only what it shall have", func() error {
		all, err := c.shards()
		if err != nil {
			return err
		}
		ids.note(t, all)
		return c.hasItsShare(4, all)
	})
	l.check(1, 2, 3, 4)
}
