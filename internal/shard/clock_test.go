package shard

import (
	"math/rand/v2"
	"testing"
	"time"

	"go.etcd.io/raft/v3/raftpb"

	"github.com/felix-go/felix"
)

// Broken: `if t < c.last` in read; `/2` there; start without max (clock.go).
func TestClockNeverGoesBack(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	var c clock
	now := Now{WallMillis: wallStart}
	c.start(wallStart-5000, now)
	last, skew, ceiling := int64(0), int64(0), int64(wallStart)
	for range 20_000 {
		step := time.Duration(rng.IntN(200)) * time.Millisecond
		now.Mono += step
		now.WallMillis = wallStart + now.Mono.Milliseconds() + skew
		switch rng.IntN(500) {
		case 0:
			skew = rng.Int64N(20_000) - 10_000
		case 1:
			ceiling = max(ceiling, last) + rng.Int64N(2000)
			c.start(ceiling, now)
			last = ceiling
		}
		got := c.read(now)
		if got < last {
			t.Fatalf("time went back from %d to %d", last, got)
		}
		if got > last+step.Milliseconds() && got != now.WallMillis && last != 0 {
			t.Fatalf("in %v time moved from %d to %d, ahead of the wall at %d", step, last, got, now.WallMillis)
		}
		last = got
	}
}

// Broken: `/2` in read (clock.go), as a whole or by nothing; `if t > c.last`.
func TestClockRunsAtHalfSpeedUntilTheWallHasCaughtUp(t *testing.T) {
	var c clock
	now := Now{WallMillis: wallStart}
	c.start(wallStart+10_000, now)
	last := int64(wallStart + 10_000)
	for i := range int64(40) {
		now.Mono += time.Second
		now.WallMillis += 1000
		want := max(last, now.WallMillis)
		if now.WallMillis < last {
			want = last + 500
		}
		if last = c.read(now); last != want {
			t.Fatalf("after %d s: %d, want %d", i+1, last-wallStart, want-wallStart)
		}
	}
	now.Mono += 100 * time.Hour // the wall stands still, as when it was set back
	now.WallMillis -= 50_000
	if got := c.read(now); got <= wallStart+40_000 {
		t.Errorf("time stands still at %d", got-wallStart)
	}
	last = c.read(now)
	for range 1000 { // asked often, it must not lose what is less than a unit
		now.Mono += time.Millisecond
		c.read(now)
	}
	if got := c.read(now); got != last+500 {
		t.Errorf("in a second of often asking, %d ms went by", got-last)
	}
}

// time evaluates something that tells the shard's time.
func (r *replica) time(what string) int64 {
	r.c.t.Helper()
	k := r.ops(addTimed("timed"))
	r.c.run()
	reply := k.reply(0)
	if !k.done || reply.Err != nil || reply.NowMillis == 0 {
		r.c.t.Fatalf("%s: done %v, %+v", what, k.done, reply)
	}
	return reply.NowMillis
}

// checkCeilings fails the test unless a majority has a ceiling above now in
// its applied state.
func (c *cluster) checkCeilings(what string, now int64) {
	c.t.Helper()
	above := 0
	for _, r := range c.nodes {
		if r.Shard != nil && r.table.Applied().Ceiling > now {
			above++
		}
	}
	if above <= len(c.nodes)/2 {
		c.t.Fatalf("%s: the time %d was told, but only %d replicas know of a ceiling above it", what, now-wallStart, above)
	}
}

// Broken: clock.start in startOwning (ready.go); the ceiling in Now or propose
// (evaluate.go), or in store's Apply.
func TestClockNeverGoesBackAcrossOwners(t *testing.T) {
	c, a := led(t, 3, felix.Quorum)
	a.skew, c.nodes[1].skew, c.nodes[2].skew = 60_000, 0, -60_000
	last := int64(0)
	for i := range 30 {
		r := c.nodes[i%3]
		c.elect(r)
		for range 5 {
			now := r.time("timed add")
			if now < last {
				t.Fatalf("replica %d tells %d after %d", r.id, now-wallStart, last-wallStart)
			}
			c.checkCeilings("timed add", now)
			last = now
			c.tick(1)
			if i%7 == 3 {
				r.skew -= 10_000
			}
		}
	}
}

// Broken: readClock (evaluate.go); `r.strict <= s.commit` in release
// (request.go).
func TestClockCeilingIsLoggedBeforeItsTimeIsTold(t *testing.T) {
	for _, consistency := range []felix.Consistency{felix.Quorum, felix.Leader} {
		c, a := led(t, 3, consistency)
		for _, r := range c.nodes {
			r.hold = true
		}
		k := a.ops(addTimed("k"))
		read := a.ops(get("k"))
		c.run()
		k.waits("its time is below no ceiling in the log")
		read.waits("its time is below no ceiling in the log")
		for _, r := range c.nodes {
			r.hold = false
		}
		c.run()
		k.want("once it is", 0, 1, 0)
		c.checkCeilings("once it is", read.reply(0).NowMillis)
		if consistency == felix.Leader {
			for _, r := range c.nodes {
				r.hold = true
			}
			a.ops(addTimed("k")).want("below the ceiling", 0, 2, 0)
		}
	}
}

// Broken: `now != 0` of the clock's use in the first part of a request that is
// split (readClock in evaluateOps, evaluate.go).
func TestClockCeilingOfASplitRequest(t *testing.T) {
	c, a := led(t, 3, felix.Leader)
	a.cfg.MaxEntryBytes = 10
	for _, r := range c.nodes {
		r.hold = true
	}
	k := a.ops(addTimed("k"), add("other", 1))
	c.run()
	k.waits("the time of its first part is below no ceiling in the log")
	for _, r := range c.nodes {
		r.hold = false
	}
	c.run()
	k.want("once it is", 1, 1, 0)
}

// Broken: start with the ceiling of an entry that was lost (clock.go).
func TestClockForgetsACeilingThatWasLost(t *testing.T) {
	c, a := led(t, 3, felix.Quorum)
	a.time("first")
	c.tick(12) // the next use raises the ceiling
	c.cut[a.id] = true
	lost := a.ops(addTimed("timed"))
	lost.waits("without a majority")
	if a.table.Applied().Ceiling >= a.clock.ceiling {
		t.Fatal("no ceiling is in flight")
	}
	c.elect(c.nodes[1])
	c.cut[a.id] = false
	c.tick(1)
	c.elect(a)
	for range 10 {
		c.checkCeilings("the old owner again", a.time("the old owner again"))
		c.tick(2)
	}
}

// Broken: as above. The entry of the lost ceiling, for which reads would wait,
// may be far beyond the end of the log.
func TestClockWaitsForNoLostCeiling(t *testing.T) {
	c, a := led(t, 3, felix.Quorum)
	c.nodes[1].skew = -60_000
	a.time("first")
	c.cut[a.id] = true
	for range 30 {
		c.mono += 1100 * time.Millisecond
		a.ops(addTimed("lost"))
	}
	c.elect(c.nodes[1])
	c.nodes[1].time("the owner between")
	c.cut[a.id] = false
	c.tick(1)
	c.elect(a)
	if a.lastIndex >= a.ceilingFrom && a.ceilingFrom > a.commit {
		t.Fatal("the log is as long as it was")
	}
	k := a.ops(get("timed"))
	c.run()
	if !k.done || k.reply(0).Err != nil {
		t.Errorf("done %v: %+v", k.done, k.reply(0))
	}
}

// Broken: `ceilingMargin` in Now (evaluate.go).
func TestClockSeldomMakesAnEntryOfItsOwn(t *testing.T) {
	c, a := led(t, 1, felix.Quorum)
	a.time("first")
	entries := a.Stats().Entries
	for range 100 { // 10 seconds of reads
		k := a.ops(get("timed"))
		if !k.done {
			k.waits("waits for a ceiling") // then it is answered a sync later
			t.Fatal("a read waits for the disk")
		}
		c.tick(1)
	}
	if n := a.Stats().Entries - entries; n < 5 || n > 11 {
		t.Errorf("10 seconds of reads made %d entries", n)
	}
	if c.block = types(raftpb.MsgApp); len(c.net) != 0 {
		t.Error("a sole voter sends messages")
	}
}
