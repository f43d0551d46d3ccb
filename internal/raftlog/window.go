package raftlog

import (
	"slices"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
)

// window is what is kept in memory of one shard's log: its bounds, all terms,
// the size of every entry, and the newest entries themselves. It is a plain
// value; its owner guards it.
type window struct {
	// start is the position just before the first entry.
	start position
	// last is the index of the last entry; start.index if there is none.
	last uint64
	// runs are the terms, run-length encoded: entries from runs[i].index up to
	// the next run's have runs[i].term. runs[0].index is start.index, indexes
	// increase, and there is always one.
	runs []position
	// sizes are the bytes that each entry takes in Pebble; sizes[i] is that of
	// entry start.index+1+i, and len(sizes) is last-start.index.
	sizes []uint32
	// bytes is the sum of sizes.
	bytes int64
	// tail holds the newest entries: tail[len(tail)-1] has index last.
	tail []*raftpb.Entry
	// tailBytes is the sum of the sizes of the entries in tail.
	tailBytes int64
}

// entryMemoryBytes is added to an entry's size for what it takes in memory
// beside its data: the struct, its boxed numbers and the slice slots.
const entryMemoryBytes = 128

func newWindow(start position) window {
	return window{start: start, last: start.index, runs: []position{start}}
}

// first is the index of the first entry, or of the one to come.
func (w *window) first() uint64 { return w.start.index + 1 }

// tailFirst is the index of the first entry in memory; last+1 if none is.
func (w *window) tailFirst() uint64 { return w.last + 1 - uint64(len(w.tail)) }

// term is the term of the entry at index, as raft.Storage's Term.
func (w *window) term(index uint64) (uint64, error) {
	if index < w.start.index {
		return 0, raft.ErrCompacted
	}
	if index > w.last {
		return 0, raft.ErrUnavailable
	}
	return w.runs[w.run(index)].term, nil
}

// bytesAbove is bytes of the entries above index. It looks at the sizes on the
// shorter side of it.
func (w *window) bytesAbove(index uint64) (sum int64) {
	gone := 0
	if index > w.start.index {
		gone = int(min(index, w.last) - w.start.index)
	}
	if gone <= len(w.sizes)/2 {
		sum = w.bytes
		for _, size := range w.sizes[:gone] {
			sum -= int64(size)
		}
		return sum
	}
	for _, size := range w.sizes[gone:] {
		sum += int64(size)
	}
	return sum
}

// run is the place in runs that covers index, which must be in the window.
// Raft asks for the newest terms most, so it looks from the end.
func (w *window) run(index uint64) int {
	i := len(w.runs) - 1
	for w.runs[i].index > index {
		i--
	}
	return i
}

// reset forgets everything and starts after p.
func (w *window) reset(p position) {
	w.dropTail(len(w.tail))
	*w = window{
		start: p, last: p.index,
		runs:  append(w.runs[:0], p),
		sizes: w.sizes[:0],
		tail:  w.tail[:0],
	}
}

// clip is the part of entries that belongs behind the start: older ones are in
// the snapshot that the log started from.
func clip(entries []*raftpb.Entry, start uint64) []*raftpb.Entry {
	for len(entries) > 0 && entries[0].GetIndex() <= start {
		entries = entries[1:]
	}
	return entries
}

// appendEntries adds entries, which continue the log or replace its end.
func (w *window) appendEntries(entries []*raftpb.Entry) {
	entries = clip(entries, w.start.index)
	if len(entries) == 0 {
		return
	}
	w.cut(entries[0].GetIndex() - 1)
	for _, e := range entries {
		w.note(e.GetTerm(), entryKeyBytes+entryValueBytes(e))
		w.tailBytes += memoryBytes(w.sizes[len(w.sizes)-1])
	}
	w.tail = append(w.tail, entries...)
}

// note adds the next entry's term and size without the entry itself; the tail
// must be extended by the caller, or be empty.
func (w *window) note(term uint64, size int) {
	w.last++
	if w.runs[len(w.runs)-1].term != term {
		w.runs = append(w.runs, position{index: w.last, term: term})
	}
	w.sizes = append(w.sizes, uint32(size))
	w.bytes += int64(size)
}

// cut removes the entries above last, which is not below the start.
func (w *window) cut(last uint64) {
	for ; w.last > last; w.last-- {
		size := w.sizes[len(w.sizes)-1]
		w.sizes = w.sizes[:len(w.sizes)-1]
		w.bytes -= int64(size)
		if n := len(w.tail); n > 0 {
			w.tail[n-1] = nil
			w.tail = w.tail[:n-1]
			w.tailBytes -= memoryBytes(size)
		}
	}
	for len(w.runs) > 1 && w.runs[len(w.runs)-1].index > last {
		w.runs = w.runs[:len(w.runs)-1]
	}
}

// compact removes the entries up to index, which must be in the window.
func (w *window) compact(index uint64) {
	at := w.run(index)
	gone := int(index - w.start.index)
	if first := w.tailFirst(); index >= first {
		w.dropTail(int(index - first + 1))
	}
	for _, size := range w.sizes[:gone] {
		w.bytes -= int64(size)
	}
	w.sizes = w.sizes[gone:]
	if cap(w.sizes) > 4*len(w.sizes)+64 {
		w.sizes = slices.Clone(w.sizes)
	}
	w.start = position{index: index, term: w.runs[at].term}
	w.runs = append(w.runs[:0], w.runs[at:]...)
	w.runs[0].index = index
}

// shrink forgets the oldest entries in memory until they take at most limit
// bytes.
func (w *window) shrink(limit int64) {
	n, left := 0, w.tailBytes
	sizes := w.sizes[len(w.sizes)-len(w.tail):]
	for left > limit {
		left -= memoryBytes(sizes[n])
		n++
	}
	w.dropTail(n)
}

// dropTail forgets the n oldest entries in memory.
func (w *window) dropTail(n int) {
	sizes := w.sizes[len(w.sizes)-len(w.tail):]
	for i := range n {
		w.tailBytes -= memoryBytes(sizes[i])
		w.tail[i] = nil // so that the entry can be collected
	}
	w.tail = w.tail[n:]
}

func memoryBytes(size uint32) int64 { return int64(size) + entryMemoryBytes }
