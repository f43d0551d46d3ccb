package clustertest

import (
	"fmt"
	"testing"
	"time"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/broker"
)

// terms are those of all shards, the metadata's among them.
func (c *cluster) terms() (terms map[uint64]uint64) {
	c.t.Helper()
	eventually(c.t, "all shards have an owner", func() error {
		terms = map[uint64]uint64{}
		all, err := c.shards()
		for _, s := range all {
			if s.Owner == 0 || s.Term == 0 {
				return fmt.Errorf("shard %d has none", s.ID)
			}
			terms[s.ID] = s.Term
		}
		return err
	})
	return terms
}

// TestDiskStall: a disk that takes 600 ms for each sync, on one broker after the
// other, costs time and no election.
func TestDiskStall(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 3, func(_ uint64, o *broker.Options) { o.TickInterval = max(tick(), 50*time.Millisecond) })
	c.create(1, "main", felix.CacheSettings{Shards: 4})
	l := c.startLoad("main", 4, 1, 2, 3)
	l.advance(200)
	before := c.terms()
	for _, n := range c.all() {
		n.current().disk.stall.Store(int64(600 * time.Millisecond))
		time.Sleep(1500 * time.Millisecond)
		n.current().disk.stall.Store(0)
		l.advance(200)
	}
	for id, term := range c.terms() {
		if term != before[id] {
			t.Errorf("shard %d: the term was %d and is %d", id, before[id], term)
		}
	}
	l.check(1, 2, 3)
}

// yearMillis is how wrong a clock may be.
const yearMillis = 365 * 24 * 3600 * 1000

// TestYearAheadBroker: a broker whose clock is a year ahead owns nothing, says so,
// and expires no record; when its clock is right again it takes part.
func TestYearAheadBroker(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, nil)
	c.node(3).skew.Store(yearMillis)
	c.start(1, 2, 3)
	c.ready(1, 2)
	c.create(1, "main", felix.CacheSettings{Shards: 4})
	var ops []felix.Op
	for k := range keys {
		ops = append(ops, felix.Op{Kind: felix.Add, Key: keyOf(k), Int: 1, TTL: felix.TTLIn, ExpiryMillis: 3600_000})
	}
	must(t, c.cache(1, "main"), ops...)
	if off := c.broker(3).Stats().ClockOffset.Milliseconds(); off < yearMillis-60_000 || off > yearMillis+60_000 {
		t.Errorf("node 3 says that its clock is %d ms ahead", off)
	}
	for round := range 2 {
		eventually(t, "node 3 owns nothing", func() error {
			if owned := c.broker(3).Stats().Owned; owned > 0 {
				return fmt.Errorf("it owns %d shards", owned)
			}
			return nil
		})
		if round == 0 {
			c.crash(1) // what is left is a broker with a right clock and one with a wrong one
		}
	}
	// With one broker that is right and one that is wrong nobody knows who is: it
	// is for the third to say.
	c.start(1)
	for _, id := range c.ids() {
		cache := c.cache(id, "main")
		eventually(t, "the records are there", func() error {
			for k := range keys {
				r := doOne(cache, felix.Op{Kind: felix.Get, Key: keyOf(k)})
				if r.Err != nil {
					return r.Err
				}
				if r.Int != 1 || r.NowMillis > time.Now().UnixMilli()+60_000 {
					t.Fatalf("node %d: %s is %d, at %d", id, keyOf(k), r.Int, r.NowMillis)
				}
			}
			return nil
		})
	}
	if err := c.broker(3).Ready(); err == nil {
		t.Error("a broker whose clock is a year ahead says that it is ready")
	}
	c.node(3).skew.Store(0)
	c.ready(1, 2, 3)
	c.crash(1)
	eventually(t, "nodes 2 and 3 serve", func() error {
		for k := range keys {
			if r := doOne(c.cache(3, "main"), felix.Op{Kind: felix.Get, Key: keyOf(k)}); r.Err != nil || r.Int != 1 {
				return fmt.Errorf("%s is %d, error %v", keyOf(k), r.Int, r.Err)
			}
		}
		return nil
	})
	c.start(1)
}

// TestSteppedClock: the clock of one broker after the other jumps, ahead and
// back: shard time neither goes back nor does it jump along, and it does not
// stand still.
func TestSteppedClock(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 3, nil)
	c.create(1, "main", felix.CacheSettings{Shards: 1})
	began := time.Now()
	read := func(id uint64) (now int64) {
		cache := c.cache(id, "main")
		eventually(t, "shard time is told", func() error {
			r := doOne(cache, felix.Op{Kind: felix.Add, Key: []byte("k"), Int: 1, TTL: felix.TTLIn, ExpiryMillis: 3600_000})
			if now = r.NowMillis; r.Err != nil {
				return r.Err
			}
			return nil
		})
		return now
	}
	first := read(1)
	last := first
	for _, step := range []int64{yearMillis, -yearMillis, 10_000, -10_000} {
		for _, n := range c.all() {
			n.skew.Add(step)
			for until := time.Now().Add(300 * time.Millisecond); time.Now().Before(until); {
				now := read(n.id)
				if now < last {
					t.Fatalf("shard time went back from %d to %d when node %d stepped by %d", last, now, n.id, step)
				}
				last = now
			}
			n.skew.Add(-step)
			time.Sleep(100 * time.Millisecond)
		}
	}
	now, real := read(1), time.Since(began).Milliseconds()
	if gone := now - first; gone < real/2 || gone > real+5000 {
		t.Errorf("shard time went on by %d ms in %d ms", gone, real)
	}
}

// TestFailoverToSlowerClock: the next owner's clock is behind by less than is
// allowed, and shard time goes on all the same, never back.
func TestFailoverToSlowerClock(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, nil)
	c.node(1).skew.Store(200)
	c.node(3).skew.Store(-200)
	c.start(1, 2, 3)
	c.ready(1, 2, 3)
	c.create(1, "main", felix.CacheSettings{Shards: 1})
	last := int64(0)
	for range 4 {
		for n := 0; n < 50; {
			r := doOne(c.cache(2, "main"), felix.Op{Kind: felix.Add, Key: []byte("k"), Int: 1, TTL: felix.TTLIn, ExpiryMillis: 3600_000})
			if r.Err != nil {
				continue
			}
			if r.NowMillis < last {
				t.Fatalf("shard time went back from %d to %d", last, r.NowMillis)
			}
			last = r.NowMillis
			n++
		}
		owner := c.shardOwner("main")
		if owner == 2 {
			c.crash(1) // somebody else's turn does not matter: the clocks of all are close
			c.start(1)
			continue
		}
		c.crash(owner)
		eventually(t, "another one owns the shard", func() error {
			if r := doOne(c.cache(2, "main"), felix.Op{Kind: felix.Get, Key: []byte("k")}); r.Err != nil {
				return r.Err
			}
			return nil
		})
		c.start(owner)
	}
}
