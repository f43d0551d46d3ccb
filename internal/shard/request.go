package shard

import (
	"cmp"
	"slices"
	"sync/atomic"
	"time"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/record"
	"github.com/felix-go/felix/internal/store"
)

// RequestKind says what a request asks for.
type RequestKind uint8

const (
	// Ops evaluates Batch.Ops at Positions into Batch.Replies.
	Ops RequestKind = iota
	// Sweep deletes those records of the keys of Batch.Ops at Positions that
	// have expired.
	Sweep
	// Scan fills Overlay, for the runner to merge with the DB.
	Scan
	// Count fills Counts.
	Count
	// Clear deletes every record.
	Clear
	// Barrier sets Index so that whatever was acknowledged before the Barrier
	// was submitted is in the log up to there. A majority confirms, in leader
	// caches too, that this replica is still the leader.
	Barrier
	// LocalScan is Scan of what this replica has applied, whoever leads, up to
	// Index. It is never Returned, and knows no expiry.
	LocalScan
	// SweepIDs deletes those of the records of IDs that have expired.
	SweepIDs
)

// Request is a piece of work for one shard. Between Submit and Done it belongs
// to the shard.
type Request struct {
	Kind      RequestKind
	Batch     *felix.Batch // Ops, Sweep
	Positions []int32      // of Batch.Ops, in order of evaluation
	Bytes     int64        // what the request holds in memory, for budgets; grows by Config.Room
	// Deadline, as Now.Mono, is when to stop waiting.
	Deadline time.Duration

	IDs  []record.IDKey    // SweepIDs
	Scan felix.ScanRequest // Scan: what to list; Limit bounds the overlay

	// Err is the failure of all kinds but Ops and Sweep (which have theirs in
	// their replies).
	Err       *felix.Error
	Overlay   []store.OverlayItem // Scan
	Cut       bool                // Scan: there are more dirty keys above the overlay
	DiskVoid  bool                // Scan: nothing that the DB holds counts
	NowMillis int64               // Scan: shard time
	Counts    record.Counts       // Count
	Index     uint64              // Barrier, LocalScan
	// ShardID and what follows is for the runner: the shard only sets the first.
	// Scanned is what it made of the Overlay and the DB.
	ShardID uint64
	Scanned felix.ScanPage
	// MaxPageBytes bounds it.
	MaxPageBytes int
	// Finished is closed by the runner, for all kinds but Ops.
	Finished chan struct{}
	LetGo    atomic.Int32 // of a Scan: see the runner
	Parts    any          // of Ops: what it shares with the other requests of its Batch
	Tag      any          // the runner's

	number  uint64 // counts the requests of the shard, in order of Submit
	next    int    // of Positions: the first not evaluated
	loading int    // loads it waits for
	first   uint64 // the first entry that carries a write of it; 0 is none
	dep     uint64 // the reply waits for this index to be committed
	// strict is as dep, but even on a leader cache: the entry with the clock
	// ceiling that the evaluation relied on.
	strict uint64
	fence  uint64 // the reply waits for this fence round; 0 is none
	leased bool   // the reply waits for Confirm
	room   int64  // in Bytes for more values
	pins   pins
}

func (r *Request) reset() {
	r.Err, r.Overlay, r.Cut, r.NowMillis, r.Counts, r.Index = nil, nil, false, 0, record.Counts{}, 0
	r.leased, r.pins = false, pins{}
	r.next, r.loading, r.first, r.dep, r.strict, r.fence, r.room = 0, 0, 0, 0, 0, 0, 0
}

var (
	errNoOwner = &felix.Error{Code: felix.Unavailable,
		Message:    "the key's shard has no owner with a majority right now; nothing was applied, try again",
		RetryAfter: 200 * time.Millisecond}
	errLostOwner = &felix.Error{Code: felix.Unavailable,
		Message:    "the key's shard changed its owner before the answer was confirmed; nothing was applied, try again",
		RetryAfter: 100 * time.Millisecond}
	errBusy = &felix.Error{Code: felix.ResourceExhausted,
		Message:    "the key's shard could not take the operation up in time, because its disk does not keep up; nothing was applied, try again a little later",
		RetryAfter: 500 * time.Millisecond}
	errCrowded = &felix.Error{Code: felix.ResourceExhausted,
		Message:    "too much waits for the key's shard to have an owner; nothing was applied, try again a little later",
		RetryAfter: 200 * time.Millisecond}
	errLate = &felix.Error{Code: felix.Unavailable,
		Message:    "the operation came after its deadline; nothing was applied, try again",
		RetryAfter: 100 * time.Millisecond}
	errUnconfirmed = &felix.Error{Code: felix.Unavailable,
		Message:    "the answer could not be confirmed in time, by the disk or by a majority; nothing was applied, try again",
		RetryAfter: 200 * time.Millisecond}
	errNoRoom = &felix.Error{Code: felix.ResourceExhausted,
		Message:    "what operations in flight have read takes as much memory as the broker allows; nothing was applied, try again a little later, with fewer keys",
		RetryAfter: 100 * time.Millisecond}
	errUnknown = &felix.Error{Code: felix.OutcomeUnknown,
		Message: "the operation was logged but its commit could not be confirmed: it may or may not be applied"}
)

// fail answers all of a request that is not answered yet with err, but what
// may have been written as unknown.
func (s *Shard) fail(r *Request, err *felix.Error, out *Output) {
	s.unpin(r)
	switch r.Kind {
	case Ops, Sweep:
		for i, p := range r.Positions {
			reply := &r.Batch.Replies[p]
			switch {
			case i >= r.next:
				*reply = felix.Reply{Err: err}
			case reply.Err != nil && !r.Batch.Ops[p].Mutates():
				// Its own error stands: a read cannot be made worse.
			case reply.Applied && !reply.Replayed && r.Batch.Ops[p].Mutates():
				*reply = felix.Reply{Err: errUnknown}
			default:
				// A read, a replayed reply or a refusal that was not confirmed (rule 5).
				*reply = felix.Reply{Err: err}
			}
		}
	case Clear:
		if r.next > 0 {
			err = errUnknown
		}
		r.Err = err
	default:
		r.Err = err
	}
	out.Done = append(out.Done, r)
}

// expire fails the requests whose deadline has passed. Those that wait for
// loads are not looked at: the disk answers, or the process ends.
func (s *Shard) expire(out *Output) {
	s.queue = s.expireIn(s.queue, s.late, out)
	s.held = s.expireIn(s.held, s.late, out)
	unconfirmed := func(*Request) *felix.Error { return errUnconfirmed }
	s.waiting = s.expireIn(s.waiting, unconfirmed, out)
	s.local = s.expireIn(s.local, unconfirmed, out)
}

// late is why a request was not evaluated in time. What an owner has not
// evaluated in its last step must wait: for rule 2, or Hold.
func (s *Shard) late(r *Request) *felix.Error {
	switch {
	case !s.Owns():
		return errNoOwner
	case r.number <= s.seen:
		return errBusy
	}
	return errLate
}

// boundQueue fails the newest of what waits for an election beyond what the shard
// may hold up: the runner's memory is for the other shards, too. The oldest one
// may be larger.
func (s *Shard) boundQueue(out *Output) {
	if s.leader {
		return
	}
	bytes := int64(0)
	bound := func(list []*Request) []*Request {
		kept := list[:0]
		for _, r := range list {
			if bytes > 0 && bytes+r.Bytes > s.cfg.MaxInflightBytes {
				s.fail(r, errCrowded, out)
				continue
			}
			bytes += r.Bytes
			kept = append(kept, r)
		}
		clear(list[len(kept):])
		return kept
	}
	s.held = bound(s.held)
	s.queue = bound(s.queue)
}

func (s *Shard) expireIn(list []*Request, why func(*Request) *felix.Error, out *Output) []*Request {
	kept := list[:0]
	for _, r := range list {
		if r.Deadline > s.now.Mono {
			kept = append(kept, r)
			continue
		}
		s.fail(r, why(r), out)
	}
	clear(list[len(kept):])
	return kept
}

// release answers what may be answered.
func (s *Shard) release(out *Output) {
	if len(s.waiting) == 0 {
		return
	}
	early := s.cfg.Consistency == felix.Leader && s.tailIsFresh()
	kept := s.waiting[:0]
	applied := s.table.Applied().Index
	for _, r := range s.waiting {
		ready := !r.leased && r.strict <= s.commit && r.fence <= s.fenceDone && (r.dep <= s.commit || early && r.Kind == Ops)
		switch {
		case !ready:
			kept = append(kept, r)
		case r.Kind == Ops || r.Kind == Sweep || r.Kind == Clear || r.Kind == Barrier || r.Kind == SweepIDs:
			out.Done = append(out.Done, r)
		case applied < r.dep:
			kept = append(kept, r) // committed by others, not on our disk yet
		default:
			s.look(r, out)
		}
	}
	clear(s.waiting[len(kept):])
	s.waiting = kept
}

// overlayItemBytes is what an item of an overlay takes beside its key. Its value
// is the table's.
const overlayItemBytes = 104

// look does a Scan or Count on the applied state, whose time has come.
func (s *Shard) look(r *Request, out *Output) {
	if r.Kind == Count {
		r.Counts = s.table.Counts()
		out.Done = append(out.Done, r)
		return
	}
	items, cut, unloaded := s.table.Overlay(r.Scan.Prefix, r.Scan.After, r.Scan.Limit)
	if len(unloaded) > 0 {
		// Looked at again, behind a new fence, once they are loaded.
		for _, ref := range unloaded {
			key := s.table.Key(ref)
			s.load(s.table.MarkLoading(ref, key), key, false, r, out)
		}
		return
	}
	bytes := int64(0)
	for i := range items {
		bytes += int64(len(items[i].Key)) + overlayItemBytes
	}
	if !s.cfg.Room(bytes) {
		r.Err = errNoRoom
		out.Done = append(out.Done, r)
		return
	}
	r.Bytes += bytes
	r.Overlay, r.Cut, r.DiskVoid = items, cut, s.table.DiskVoid()
	out.Scans = append(out.Scans, r)
}

// tailIsFresh says whether a leader cache may still acknowledge on its own.
func (s *Shard) tailIsFresh() bool {
	for i := range s.proposals {
		if p := &s.proposals[i]; p.index > s.commit {
			return s.now.Mono-p.born <= felix.LeaderTail
		}
	}
	return true
}

// load asks for what there is under a key, or for the record of an id, and makes r
// wait for it, if it is not nil.
func (s *Shard) load(ref store.Ref, key []byte, id bool, r *Request, out *Output) {
	l := s.loads[ref]
	if l == nil {
		l = &pendingLoad{}
		s.loads[ref] = l
		out.Loads = append(out.Loads, Load{Shard: s, Ref: ref, Generation: s.table.Generation(),
			Key: append([]byte(nil), key...), ID: id})
	}
	if r != nil {
		r.loading++
		l.waiters = append(l.waiters, r)
	}
}

// Loaded hands in what the DB holds under the key of a Load.
func (s *Shard) Loaded(l Load, c *record.Cell) {
	if l.Generation != s.table.Generation() {
		return // forgetLoads has queued who waited
	}
	pending := s.loads[l.Ref]
	delete(s.loads, l.Ref)
	s.table.Loaded(l.Ref, l.Generation, c)
	s.wake(pending)
}

// takeStarted takes the requests that were evaluated in part, and wait for
// loads to go on, out of the loads' lists.
func (s *Shard) takeStarted() (started []*Request) {
	for _, l := range s.loads {
		kept := l.waiters[:0]
		for _, r := range l.waiters {
			switch {
			case r.next == 0:
				kept = append(kept, r)
			case r.loading > 0: // the first of the loads that it waits for
				r.loading = 0
				started = append(started, r)
			}
		}
		clear(l.waiters[len(kept):])
		l.waiters = kept
	}
	inOrder(started)
	return started
}

// forgetLoads lets everybody who waits for a load look again.
func (s *Shard) forgetLoads() {
	first := len(s.queue)
	for ref, l := range s.loads {
		delete(s.loads, ref)
		s.wake(l)
	}
	inOrder(s.queue[first:])
}

// inOrder undoes the order of a map.
func inOrder(list []*Request) {
	slices.SortFunc(list, func(a, b *Request) int { return cmp.Compare(a.number, b.number) })
}

func (s *Shard) wake(l *pendingLoad) {
	for _, r := range l.waiters {
		if r.loading--; r.loading == 0 {
			s.enqueue(r)
		}
	}
}
