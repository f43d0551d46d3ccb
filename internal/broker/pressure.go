package broker

import (
	"sync"
	"sync/atomic"

	"github.com/felix-go/felix/internal/shard"
)

// pressure says how far the state store is behind what was applied. From a
// quarter of a bound on, everything is checkpointed; at the bound, operations
// that may write wait until a checkpoint has made room (shard.Hold).
type pressure struct {
	b        *Broker
	logBytes atomic.Int64 // of all logs, what the state store does not have, as of the workers' last ticks
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

// room takes room in the broker's budget for operations in flight, for what one
// of a shard has read. The metadata is always read.
func (b *Broker) room(shard uint64, bytes int64) bool {
	for {
		used := b.inflight.Load()
		if used+bytes > b.opts.InflightBytes && shard != metaShard {
			return false
		}
		if b.inflight.CompareAndSwap(used, used+bytes) {
			return true
		}
	}
}

// parts is what the requests of one batch share. The replies of one that is
// finished are held in memory until the door has those of all.
type parts struct {
	left  atomic.Int32 // requests that are not finished
	bytes atomic.Int64 // that those which are have taken of the budget
}

var batchParts = sync.Pool{New: func() any { return new(parts) }}

// freeRoom gives the room of a finished request back, when the whole batch is.
func (b *Broker) freeRoom(r *shard.Request) {
	p, shared := r.Parts.(*parts)
	if !shared {
		b.inflight.Add(-r.Bytes)
		return
	}
	r.Parts = nil
	p.bytes.Add(r.Bytes)
	if p.left.Add(-1) > 0 {
		return
	}
	total := p.bytes.Swap(0)
	batchParts.Put(p)
	b.inflight.Add(-total)
}
