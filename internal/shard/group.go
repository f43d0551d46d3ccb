package shard

import (
	"bytes"
	"cmp"
	"slices"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/engine"
	"github.com/felix-go/felix/internal/record"
	"github.com/felix-go/felix/internal/store"
)

// A group is evaluated on copies of its cells. Only when all of it has been, and
// nothing stops it, are they staged, into one entry: so there is nothing to undo,
// and nobody else ever sees a part of it (rules 2 and 6). One that is stopped
// writes nothing, so it is a read, and waits for all that it saw (rules 4 and 5).

var errLargeGroup = felix.Errorf(felix.ResourceExhausted,
	"the atomic group would write more than %d bytes at once; nothing was applied: split it", felix.MaxGroupBytes)

// groupCell is the copy of a key's cell that a group is evaluated on.
type groupCell struct {
	ref  store.Ref // 0: not in the table
	hash uint64
	key  []byte
	cell record.Cell
	// inflight and last are what Table.Newest said; last is then the version of
	// the group's newest change.
	inflight, last uint64
	before         record.Has // what the cell had
	size           int        // of the value that it had
	changed        bool
	next           int // of the cells whose hash has the same bucket; -1 is none
}

// groupAt is the group that has the operation at Positions[i], and the first and
// the end of its Positions; nil is none.
func (r *Request) groupAt(i int) (g *felix.Group, from, to int) {
	if i >= len(r.Positions) || len(r.Batch.Groups) == 0 {
		return nil, i, i
	}
	p := r.Positions[i]
	at, found := slices.BinarySearchFunc(r.Batch.Groups, p, func(g felix.Group, p int32) int {
		if g.From <= p && p < g.To {
			return 0
		}
		return cmp.Compare(g.From, p)
	})
	if !found {
		return nil, i, i
	}
	g = &r.Batch.Groups[at]
	for from = i; from > 0 && r.Positions[from-1] >= g.From; from-- {
	}
	for to = i + 1; to < len(r.Positions) && r.Positions[to] < g.To; to++ {
	}
	return g, from, to
}

// evaluateGroup evaluates the operations of a group, from Positions[from] on,
// whose refs these are. It says no, and has done nothing, if the entry has no
// room for all of it.
func (s *Shard) evaluateGroup(r *Request, g *felix.Group, from int, refs []store.Ref) (done bool) {
	s.unpin(r)
	defer s.dropCells()
	positions := r.Positions[from : from+len(refs)]
	cells := s.copyCells(r, positions, refs)
	room, seen := r.room, uint64(0)
	for i, p := range positions {
		op, reply := &r.Batch.Ops[p], &r.Batch.Replies[p]
		c := &cells[s.groupIndex[i]]
		seen = max(seen, c.inflight)
		version := s.entry.base
		if c.changed || c.inflight == s.entry.index {
			version = c.last + 1
		}
		if engine.Eval(op, &c.cell, version, s, reply) {
			c.changed, c.last = true, version
		}
		if len(reply.Value) > smallValue && !s.roomFor(r, int64(len(reply.Value))) {
			r.refuseGroup(positions, errNoRoom)
			s.sawGroup(r, seen)
			return true
		}
		if g.Stops(op, reply) {
			r.abort(positions, i)
			s.sawGroup(r, seen)
			return true
		}
	}
	bytes := s.groupBytes(cells)
	switch {
	case bytes == 0:
		s.sawGroup(r, seen)
		return true
	case bytes > felix.MaxGroupBytes:
		r.refuseGroup(positions, errLargeGroup)
		s.sawGroup(r, seen)
		return true
	case s.entry.bytes > 0 && s.entry.bytes+bytes > s.cfg.MaxEntryBytes:
		r.room = room
		return false
	}
	s.stageGroup(cells)
	s.entry.bytes += bytes
	r.wrote(s.entry.index)
	return true
}

// copyCells gathers the cells of a group's keys, each once; s.groupIndex says
// which one an operation works on.
func (s *Shard) copyCells(r *Request, positions []int32, refs []store.Ref) []groupCell {
	cells, index := s.groupCells[:0], s.groupIndex[:0]
	// Chained hashing; the table has at least twice as many buckets as keys.
	mask := uint64(1)
	for mask < 2*uint64(len(refs)) {
		mask = mask<<1 | 1
	}
	buckets := slices.Grow(s.groupBuckets[:0], int(mask)+1)[:mask+1]
	for i := range buckets {
		buckets[i] = -1
	}
	for i, p := range positions {
		key := r.Batch.Ops[p].Key
		hash := s.table.Hash(key)
		at := buckets[hash&mask]
		for at >= 0 && (cells[at].hash != hash || !bytes.Equal(cells[at].key, key)) {
			at = cells[at].next
		}
		if at < 0 {
			at = len(cells)
			c := groupCell{ref: refs[i], hash: hash, key: key, next: buckets[hash&mask]}
			if c.ref == 0 { // absent when looked up; an operation before may have made it
				c.ref, _ = s.table.FindHashed(hash, key)
			}
			c.inflight, c.last = s.table.Newest(c.ref, &c.cell)
			c.before, c.size = c.cell.Has, len(c.cell.Value)
			cells = append(cells, c)
			buckets[hash&mask] = at
		}
		index = append(index, at)
	}
	s.groupCells, s.groupIndex, s.groupBuckets = cells, index, buckets
	return cells
}

// keptCells is how much of the scratch of a large group is kept.
const keptCells = 1024

// dropCells forgets the copies, which hold on to keys and values.
func (s *Shard) dropCells() {
	clear(s.groupCells)
	if cap(s.groupCells) > keptCells {
		s.groupCells, s.groupIndex, s.groupBuckets = nil, nil, nil
	}
}

// groupBytes is what the changes of a group take of the entry, 0 if there are
// none.
func (s *Shard) groupBytes(cells []groupCell) (bytes int) {
	for i := range cells {
		switch c := &cells[i]; {
		case !c.changed:
		case c.inflight == s.entry.index: // the entry has the key already
			bytes += entryOverheadBytes + max(0, len(c.cell.Value)-c.size)
		default:
			bytes += len(c.key) + len(c.cell.Value) + entryOverheadBytes
		}
	}
	return bytes
}

// stageGroup makes the changes of a group part of the entry.
func (s *Shard) stageGroup(cells []groupCell) {
	for i := range cells {
		c := &cells[i]
		if !c.changed {
			continue
		}
		ref, first := s.table.Stage(c.ref, c.key, &c.cell, s.entry.index, c.last)
		if first {
			s.entry.touched = append(s.entry.touched, store.Touch{Ref: ref})
		}
		s.entry.next = max(s.entry.next, c.last+1)
		s.entry.change.Add(record.CountChange(c.before, c.cell.Has))
	}
}

// sawGroup makes a request wait for what a group saw that changes nothing.
func (s *Shard) sawGroup(r *Request, inflight uint64) {
	r.dep = max(r.dep, inflight)
	s.needFence(r)
}

// abort answers a group that the operation at positions[failed] stops.
func (r *Request) abort(positions []int32, failed int) {
	for i, p := range positions {
		if i != failed {
			r.Batch.Replies[p] = felix.Reply{Aborted: true}
		}
	}
}

// refuseGroup answers a group that is not evaluated.
func (r *Request) refuseGroup(positions []int32, err *felix.Error) {
	for _, p := range positions {
		r.Batch.Replies[p] = felix.Reply{Err: err}
	}
}

// wholeGroups cuts s.refs off where they end within a group: it can only be
// evaluated as a whole.
func (s *Shard) wholeGroups(r *Request) {
	at := r.next + len(s.refs)
	if _, from, _ := r.groupAt(at); from < at {
		s.refs = s.refs[:from-r.next]
	}
}

// A group whose turn it is and which lacks records waits for all of them, and
// keeps in memory what it has: otherwise that might be evicted before the rest has
// come, and the group would load its records in turns for ever.

// pins are the entries that a request keeps in memory, in the order of its
// Positions.
type pins struct {
	refs       []store.Ref
	generation uint64
	bytes      int64 // of their values: in Request.Bytes
}

// pin keeps the entries of the group at r.next in memory: these, of which it may
// have had the first.
func (s *Shard) pin(r *Request, refs []store.Ref) {
	if r.pins.generation != s.table.Generation() {
		r.pins = pins{generation: s.table.Generation()}
	}
	for _, ref := range refs[min(len(refs), len(r.pins.refs)):] {
		s.table.Pin(ref)
		r.pins.refs = append(r.pins.refs, ref)
	}
}

// unpin lets them go.
func (s *Shard) unpin(r *Request) {
	if len(r.pins.refs) > 0 && r.pins.generation == s.table.Generation() {
		for _, ref := range r.pins.refs {
			s.table.Unpin(ref)
		}
	}
	r.pins = pins{}
}

// roomForPins takes room for the values that a group keeps in memory, and refuses
// the group if there is none.
func (s *Shard) roomForPins(r *Request) {
	if len(r.pins.refs) == 0 || r.pins.generation != s.table.Generation() {
		return
	}
	bytes := int64(0)
	for _, ref := range r.pins.refs {
		bytes += s.table.ValueBytes(ref)
	}
	if bytes <= r.pins.bytes {
		return
	}
	if !s.roomFor(r, bytes-r.pins.bytes) {
		_, from, to := r.groupAt(r.next)
		r.refuseGroup(r.Positions[from:to], errNoRoom)
		s.unpin(r)
		r.next = to
		return
	}
	r.pins.bytes = bytes
}
