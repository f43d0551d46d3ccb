package broker

import "sync/atomic"

// pressure says how far the state store is behind what was applied. From a
// quarter of a bound on, everything is checkpointed; at the bound, operations
// that may write wait until a checkpoint has made room (shard.Hold).
type pressure struct {
	b        *Broker
	logBytes atomic.Int64 // of all shards' logs, as of the workers' last ticks
}

// soonParts is the part of a bound from which on checkpoints are taken: early
// enough for a checkpoint, which takes more memory than what it writes, and for
// what is written meanwhile.
const soonParts = 4

// minDirtyBytes is the least that MaxDirtyBytes is by default: a few of the
// largest batches. With less, every write would wait for a checkpoint.
const minDirtyBytes = 8 << 20

// behind says that it is time to checkpoint everything.
func (p *pressure) behind() bool {
	return p.dirtySoon() || p.logBytes.Load() >= p.b.opts.MaxLogBytes/soonParts
}

func (p *pressure) dirtySoon() bool {
	return p.b.budget.DirtyBytes() >= p.b.opts.MaxDirtyBytes/soonParts
}

// full says whether writes must wait, and whether the replay of logs must: that
// one adds to what is dirty, but not to the logs.
func (p *pressure) full() (writes, replay bool) {
	replay = p.b.budget.DirtyBytes() >= p.b.opts.MaxDirtyBytes
	return replay || p.logBytes.Load() >= p.b.opts.MaxLogBytes, replay
}
