package shard

import (
	"bytes"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/engine"
	"github.com/felix-go/felix/internal/invariant"
	"github.com/felix-go/felix/internal/record"
	"github.com/felix-go/felix/internal/store"
)

// entry is the log entry that evaluation is filling.
type entry struct {
	index    uint64
	base     uint64 // the lowest version that its changes give
	next     uint64 // above all versions that they gave
	touched  []store.Touch
	bytes    int
	change   record.Counts
	now      int64 // shard time of this evaluation; 0 while nobody asked
	ceiling  int64 // to raise to; 0 is not
	clear    bool
	requests int // of waiting: how many were evaluated for this entry, at the end
}

// entryOverheadBytes is what one write costs in an entry beyond its key and
// value, at most.
const entryOverheadBytes = 32

// evaluate works through the queue until an entry is full, and proposes it. It
// says whether there was one.
func (s *Shard) evaluate(out *Output) (proposed bool) {
	s.setAside()
	if len(s.queue) == 0 || !s.mayEvaluate() {
		return false
	}
	if n := len(s.proposals); n > 0 && s.proposals[n-1].clear {
		return false // the table still shows what that entry clears
	}
	s.entry = entry{index: s.lastIndex + 1, base: s.nextVersion, next: s.nextVersion, touched: s.takeTouches()}
	for len(s.queue) > 0 && s.entry.bytes < s.cfg.MaxEntryBytes {
		// Rule 2: what does not fit is not evaluated.
		if s.inflight >= s.cfg.MaxInflightBytes || s.entry.clear {
			break
		}
		r := s.queue[0]
		if r.Kind == Clear && (len(s.proposals) > 0 || len(s.entry.touched) > 0) {
			break // a barrier: what is in flight must be applied first
		}
		if !s.evaluateRequest(r, out) {
			break // the entry is full in the middle of the request
		}
		s.queue[0] = nil
		s.queue = s.queue[1:]
	}
	if len(s.queue) == 0 {
		s.queue = s.queue[:0:cap(s.queue)]
	}
	return s.propose(out)
}

// evaluateRequest evaluates a request and says whether it is through with it:
// evaluated, or waiting for loads.
func (s *Shard) evaluateRequest(r *Request, out *Output) (through bool) {
	switch r.Kind {
	case Ops, Sweep:
		present := s.findAll(r, out)
		whole := s.evaluateOps(r)
		if !present {
			return true
		}
		if !whole {
			return false
		}
	case SweepIDs:
		if !s.sweepIDs(r, out) {
			return true
		}
	case Scan:
		r.NowMillis = s.Now()
		r.dep = s.lastIndex
		s.needFence(r)
	case Count:
		r.dep = s.lastIndex
		s.needFence(r)
	case Barrier:
		r.Index, r.dep = s.lastIndex, s.lastIndex
		s.needFence(r)
	case Clear:
		r.next = 1
		s.entry.clear = true
		r.wrote(s.entry.index)
	}
	r.readClock(s)
	// A part may have been evaluated before, and Confirm does not see what waits
	// for loads.
	s.leased = s.leased || r.leased
	s.waiting = append(s.waiting, r)
	s.entry.requests++
	return true
}

// readClock makes a request whose evaluation may have read the clock wait for
// the ceiling that it relied on.
func (r *Request) readClock(s *Shard) {
	if s.entry.now != 0 {
		r.strict = max(r.strict, s.ceilingFrom)
	}
}

// loadAhead bounds the loads that a request has under way: enough to keep the
// disk busy, few enough that what is loaded is not evicted before its turn.
const loadAhead = 1024

// findAll looks up the keys that are still to be evaluated; those before the
// first that is not in memory go into s.refs, or before its group. If some must be
// loaded, findAll says no, and the request waits for the first of them: what can
// be evaluated is, at once. Were it looked up again when the last is loaded, it
// might have been evicted, and a request for many keys could load them in turns
// for ever. Of a group whose turn it is, it waits for all.
func (s *Shard) findAll(r *Request, out *Output) bool {
	s.refs, s.hashes, s.groupRefs = s.refs[:0], s.hashes[:0], s.groupRefs[:0]
	s.roomForPins(r)
	waiter, missing := r, 0
	_, _, front := r.groupAt(r.next)
	rest := r.Positions[r.next:]
	for _, p := range rest {
		s.hashes = append(s.hashes, s.table.Hash(r.Batch.Ops[p].Key))
	}
	s.table.Warm(s.hashes)
	for i, p := range rest {
		op := &r.Batch.Ops[p]
		key, waits := op.Key, false
		ref, presence := s.table.FindHashed(s.hashes[i], key)
		grouped := r.next+i < front
		switch presence {
		case store.Unloaded:
			ref = s.table.MarkLoading(ref, key)
			fallthrough
		case store.Loading:
			if grouped {
				waiter = r
			}
			s.load(ref, key, false, waiter, out)
			waits = true
		}
		if op.Once != nil && s.loadsID(key, op.Once, waiter, out) {
			waits = true
		}
		if waits {
			waiter = nil
			missing++
		} else if missing == 0 {
			s.refs = append(s.refs, ref)
		}
		if grouped {
			s.groupRefs = append(s.groupRefs, ref)
		}
		if missing == loadAhead {
			break
		}
	}
	if missing == 0 {
		return true
	}
	s.wholeGroups(r)
	if len(s.refs) == 0 {
		s.pin(r, s.groupRefs)
	}
	return false
}

// evaluateOps evaluates the request's operations from r.next on, whose refs are
// in s.refs, and says whether the entry had room for all of these.
func (s *Shard) evaluateOps(r *Request) (whole bool) {
	var cell record.Cell
	read := false
	done := 0
	for done < len(s.refs) {
		if s.entry.bytes >= s.cfg.MaxEntryBytes {
			break
		}
		if g, from, to := r.groupAt(r.next + done); g != nil {
			if !s.evaluateGroup(r, g, from, s.refs[done:done+to-from]) {
				break
			}
			done += to - from
			continue
		}
		ref, p := s.refs[done], r.Positions[r.next+done]
		done++
		op, reply := &r.Batch.Ops[p], &r.Batch.Replies[p]
		if op.Once != nil && !s.beginOnce(r, op.Key, op.Once, r.Batch.Ops[p:p+1], r.Batch.Replies[p:p+1]) {
			read = true
			continue
		}
		if ref == 0 { // absent when looked up; an operation before may have made it
			ref, _ = s.table.Find(op.Key)
		}
		inflight, last := s.table.Newest(ref, &cell)
		version := s.entry.base
		if inflight == s.entry.index {
			version = last + 1 // changed before in this very entry
		}
		before, size := cell.Has, len(cell.Value)
		var changed bool
		if r.Kind == Sweep {
			*reply = felix.Reply{}
			changed = engine.Sweep(&cell, s.Now())
		} else {
			changed = engine.Eval(op, &cell, version, s, reply)
			if len(reply.Value) > smallValue && !s.roomFor(r, int64(len(reply.Value))) {
				*reply, changed = felix.Reply{Err: errNoRoom}, false
			}
		}
		if op.Once != nil && s.endOnce(r, op.Once, r.Batch.Replies[p:p+1]) && !changed {
			continue // the refusal is a write
		}
		if !changed {
			r.dep = max(r.dep, inflight) // all it saw must be committed (rules 4, 5)
			read = true
			continue
		}
		ref, first := s.table.Stage(ref, op.Key, &cell, s.entry.index, version)
		if first {
			s.entry.touched = append(s.entry.touched, store.Touch{Ref: ref})
			s.entry.bytes += len(op.Key) + len(cell.Value) + entryOverheadBytes
		} else {
			s.entry.bytes += max(0, len(cell.Value)-size)
		}
		s.entry.next = max(s.entry.next, version+1)
		s.entry.change.Add(record.CountChange(before, cell.Has))
		r.wrote(s.entry.index)
	}
	s.stats.Operations += uint64(done)
	r.next += done
	if read {
		s.needFence(r)
	}
	r.readClock(s)
	return done == len(s.refs)
}

const (
	// smallValue is what the overhead of an operation in a request's Bytes
	// covers, too.
	smallValue = 256
	// roomStep is how much room for values a request asks for at least.
	roomStep = 4 << 10
)

// roomFor takes room for a value that a reply of the request is to carry: it may
// be evicted from the table, and loaded again, long before the request is
// answered. Without room the operation is refused, as if it had never been
// evaluated.
func (s *Shard) roomFor(r *Request, bytes int64) bool {
	if bytes > r.room {
		more := max(bytes-r.room, roomStep)
		if !s.cfg.Room(more) {
			return false
		}
		r.room += more
		r.Bytes += more
	}
	r.room -= bytes
	return true
}

// wrote notes that the entry at index carries a write of the request.
func (r *Request) wrote(index uint64) {
	r.dep = index
	if r.first == 0 {
		r.first = index
	}
}

// Now implements engine.Clock: shard time, the same for all that is evaluated
// for one entry. It makes sure that the time is below a ceiling in the log, or
// in this very entry.
func (s *Shard) Now() int64 {
	if s.entry.now == 0 {
		s.entry.now = s.clock.read(s.now)
		if s.entry.now >= s.clock.ceiling-ceilingMargin {
			s.entry.ceiling = s.entry.now + ceilingAhead
			if s.entry.now >= s.clock.ceiling {
				s.ceilingFrom = s.entry.index
			}
		}
	}
	return s.entry.now
}

// propose hands the entry to Raft, if it holds anything.
func (s *Shard) propose(out *Output) bool {
	e := &s.entry
	if len(e.touched) == 0 && e.ceiling == 0 && !e.clear {
		s.giveTouches(e.touched)
		return false
	}
	if cap(s.payload) > 4*s.cfg.MaxEntryBytes {
		s.payload = nil // one huge entry must not keep its memory for ever
	}
	data := record.AppendHeader(s.payload[:0], record.Header{Ceiling: e.ceiling, Base: e.base, Change: e.change})
	if e.clear {
		data = record.AppendClear(data)
	}
	for i := range e.touched {
		t := &e.touched[i]
		var writes int
		data, writes = s.table.AppendWrites(data, t.Ref, e.base)
		t.Writes = uint8(writes)
	}
	s.payload = data
	if err := s.node.Propose(data); err != nil {
		s.refused(out)
		return false
	}
	s.nextVersion = e.next
	if e.ceiling > 0 {
		s.clock.ceiling = e.ceiling
		s.ceilingFrom = e.index
	}
	s.proposals = append(s.proposals, proposal{index: e.index, bytes: int64(len(data)), touched: e.touched, ids: e.change.IDs, clear: e.clear, born: s.now.Mono})
	s.inflight += int64(len(data))
	s.ids.inflight += e.change.IDs
	s.stats.Entries++
	s.stats.EntryBytes += uint64(len(data))
	return true
}

// refused is rule 2's last line: Raft did not take the entry, so what was
// evaluated for it never was. Nothing was evaluated after it.
func (s *Shard) refused(out *Output) {
	e := &s.entry
	first := len(s.waiting) - e.requests
	failed := s.waiting[first:]
	if len(s.queue) > 0 && s.queue[0].next > 0 { // evaluated in part
		failed = append(failed, s.queue[0])
		s.queue = s.queue[1:]
	}
	failed = append(failed, s.takeStarted()...)
	for _, r := range failed {
		if r.first == 0 || r.first == e.index {
			r.next = 0 // all its writes were for this entry: none is applied
		}
		s.fail(r, errLostOwner, out)
	}
	clear(failed)
	s.waiting = s.waiting[:first]
	s.discard()
	s.giveTouches(e.touched)
}

// discard forgets everything in flight; evaluation goes on once what was
// accepted before has been applied, which firstOwn sees to.
func (s *Shard) discard() {
	for i := range s.proposals {
		for _, t := range s.proposals[i].touched {
			s.table.DropFlight(t.Ref)
		}
	}
	for _, t := range s.entry.touched {
		s.table.DropFlight(t.Ref)
	}
	for i := range s.proposals {
		s.proposals[i].touched = nil
	}
	s.firstOwn = max(s.firstOwn, s.lastIndex)
}

// checkProposed compares what Raft appended with what was proposed: the reply
// and version of every operation rest on the index that was foreseen.
func (s *Shard) checkProposed(index, term uint64, data []byte) {
	if len(s.proposals) == 0 || !s.leader || term != s.term {
		return
	}
	if p := &s.proposals[len(s.proposals)-1]; index == p.index {
		invariant.Check(bytes.Equal(data, s.payload), "shard %d: Raft appended another entry at %d than was foreseen", s.cfg.ID, index)
	}
}

func (s *Shard) takeTouches() []store.Touch {
	if n := len(s.touches); n > 0 {
		t := s.touches[n-1]
		s.touches = s.touches[:n-1]
		return t
	}
	return nil
}

func (s *Shard) giveTouches(t []store.Touch) {
	if cap(t) > 0 && len(s.touches) < 8 {
		s.touches = append(s.touches, t[:0])
	}
}
