package netloop

import (
	"sort"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/invariant"
)

// maxKeptOps bounds the operations that an engine's recycled batches have room
// for together; each takes about 160 bytes, with its reply.
const maxKeptOps = 128 << 10

// batch is a felix.Batch with what is needed to hand its replies out. Its
// operations come from many connections and finish in parts.
type batch struct {
	felix.Batch
	eng   *engine
	cache felix.Cache // nil until the first operation
	// runs are the connections' shares: disjoint, ascending, covering Ops.
	runs []run

	// done[:ndone] are the positions that have been told, in the order of
	// telling; each position stands there once. Below ndone it is never
	// written again until the batch is recycled. done and ndone are guarded by
	// eng.mu from Submit on; so is queued.
	done   []int32
	ndone  int
	queued bool // stands in eng.finished

	// seen is how many of done have been handed out; upto how many may be:
	// ndone as it was when the batch was taken off eng.finished.
	seen, upto int
}

// run is one connection's share of a batch: its turn's operations.
type run struct {
	c        *conn
	first, n int
	left     int // operations without a reply yet
}

// OpsDone implements felix.Completer: it notes the positions and wakes the
// engine; everything else is done there.
func (b *batch) OpsDone(_ *felix.Batch, part []int32) {
	e := b.eng
	e.mu.Lock()
	invariant.Check(b.ndone+len(part) <= len(b.done),
		"a batch of %d operations was told of %d finished ones", len(b.done), b.ndone+len(part))
	b.ndone += copy(b.done[b.ndone:], part)
	if !b.queued {
		b.queued = true
		e.finished = append(e.finished, b)
	}
	e.wakeLocked()
	e.mu.Unlock()
}

// seal readies the batch for Submit.
func (b *batch) seal() {
	n := len(b.Ops)
	if cap(b.Replies) < n {
		b.Replies = make([]felix.Reply, n, cap(b.Ops))
		b.done = make([]int32, n, cap(b.Ops))
	}
	b.Replies, b.done = b.Replies[:n], b.done[:n]
	b.Ends = b.Ends[:0]
	for i := range b.runs {
		b.Ends = append(b.Ends, int32(b.runs[i].first+b.runs[i].n))
	}
	b.Done = b
}

// handOut answers the connections whose operations all have replies, and
// forgets their share, so that a batch that waits for one stalled shard holds
// on to nothing else.
func (b *batch) handOut() {
	e := b.eng
	if b.seen == 0 && b.upto == len(b.Ops) {
		for i := range b.runs {
			b.answer(&b.runs[i])
		}
	} else {
		k := 0
		for _, pos := range b.done[b.seen:b.upto] {
			k = b.find(int(pos), k)
			r := &b.runs[k]
			r.left--
			invariant.Check(r.left >= 0, "operation %d of a batch was told to be finished twice", pos)
			if r.left == 0 {
				b.answer(r)
			}
		}
	}
	e.outstanding -= b.upto - b.seen
	b.seen = b.upto
}

func (b *batch) answer(r *run) {
	replies := b.Replies[r.first : r.first+r.n]
	b.eng.turnDone(r.c, replies)
	clear(replies)
	clear(b.Ops[r.first : r.first+r.n])
	r.c = nil
}

// find answers the run that position pos belongs to, looking near k first: a
// part's positions ascend as a rule.
func (b *batch) find(pos, k int) int {
	for ; k < len(b.runs) && pos >= b.runs[k].first; k++ {
		if pos < b.runs[k].first+b.runs[k].n {
			return k
		}
	}
	return sort.Search(len(b.runs), func(i int) bool { return pos < b.runs[i].first+b.runs[i].n })
}

// reset empties a batch whose every operation has been handed out.
func (b *batch) reset() {
	b.Ops, b.Groups, b.runs = b.Ops[:0], b.Groups[:0], b.runs[:0]
	b.cache = nil
	b.ndone, b.seen, b.upto = 0, 0, 0
}
