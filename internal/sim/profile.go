package sim

import (
	"math/rand/v2"
	"time"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/shard"
)

// profile is what kind of a run it is. Runs differ much: one in which everything
// goes wrong all the time finds other mistakes than one with two faults.
type profile struct {
	nodes       int
	consistency []felix.Consistency // of each shard
	reads       shard.ReadMode
	table       int64 // bytes of a broker's tables
	entry       int   // shard.Config.MaxEntryBytes
	inflight    int64 // MaxInflightBytes
	apply       int   // MaxApplyBytes

	drop, duplicate int           // of a thousand messages
	late            int           // of a thousand messages, by up to lateBy
	delay           time.Duration // of a message, at most, usually
	lateBy          time.Duration
	sync            time.Duration // of a disk, usually
	checkpoint      time.Duration // between two checkpoints of a shard
	truncate        bool          // the log, as far as it may be, whoever needs it
	lost            int           // of a thousand answers
	clients         int
	keys            int  // of a kind, that are in use at a time
	onlySums        bool // nothing but adds and gets of counters of sums
	clears          bool // shards are cleared
	think           time.Duration
	faultEvery      time.Duration // about; 0 is never
	faultTakes      time.Duration // until the next one may come
	weights         [faults]int
	// gentle says that nothing goes wrong but that ownership is handed over, and
	// that no client may see it (rule 8).
	gentle bool
	// hasty says that clients do not wait for long.
	hasty bool
}

// drawProfile is any kind of run, or one about leases.
func drawProfile(rng *rand.Rand, leases bool) profile {
	p := profile{nodes: 3 + rng.IntN(3), table: 1 << 30, entry: 64 << 10, inflight: 1 << 20, apply: 1 << 20,
		delay: 2 * time.Millisecond, lateBy: 100 * time.Millisecond, sync: time.Millisecond,
		checkpoint: time.Duration(100+rng.IntN(1000)) * time.Millisecond, truncate: rng.IntN(2) == 0,
		clients: 3 + rng.IntN(4), keys: 6, clears: rng.IntN(4) == 0, think: time.Duration(2+rng.IntN(30)) * time.Millisecond,
		faultEvery: time.Duration(50+rng.IntN(600)) * time.Millisecond}
	for range 1 + rng.IntN(2) {
		c := felix.Quorum
		if rng.IntN(4) == 0 {
			c = felix.Leader
		}
		p.consistency = append(p.consistency, c)
	}
	if rng.IntN(2) == 0 {
		p.reads = shard.Leases
	}
	switch rng.IntN(3) {
	case 0:
		p.table = 0
	case 1:
		p.table = 1000
	}
	if rng.IntN(2) == 0 {
		p.entry, p.inflight = 100, 200
	}
	if rng.IntN(2) == 0 {
		p.apply = 1
	}
	if rng.IntN(2) == 0 {
		p.drop, p.duplicate, p.late, p.lost = rng.IntN(40), rng.IntN(40), rng.IntN(40), rng.IntN(60)
	}
	if rng.IntN(4) == 0 {
		p.sync = 20 * time.Millisecond
	}
	if p.gentle = rng.IntN(10) == 0 && !leases; p.gentle {
		p.drop, p.duplicate, p.late, p.lost, p.sync = 0, 0, 0, 0, time.Millisecond
		p.faultEvery, p.weights[faultHandOver] = 100*time.Millisecond, 1
		return p
	}
	if leases || rng.IntN(10) == 0 {
		return leaseProfile(rng, p)
	}
	for i := range p.weights {
		if rng.IntN(3) > 0 { // a third of all kinds of faults does not happen
			p.weights[i] = 1 + rng.IntN(3)
		}
	}
	return p
}

const (
	tickEvery      = 50 * time.Millisecond // as internal/broker's
	electionTicks  = 10
	heartbeatTicks = 4
	// maxStride is how many ticks a process may let go by at once.
	maxStride = 2
	// leaseFor is as internal/broker's.
	leaseFor = (electionTicks - maxStride - 1) * tickEvery / 10 * 9
	// maxDrift is how far off a clock's rate is at most, in thousandths.
	maxDrift    = 50
	replication = 3 // of a shard, while nobody wants another one
	wallStart   = 1_800_000_000_000
	runFor      = 4 * time.Second
	// latest is after how long nothing comes any more that was sent before.
	latest = 1500 * time.Millisecond
	// healWithin is how soon a cluster must answer that has nothing against it
	// any more.
	healWithin = 10 * time.Second
)
