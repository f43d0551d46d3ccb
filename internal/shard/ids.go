package shard

import (
	"cmp"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/engine"
	"github.com/felix-go/felix/internal/invariant"
	"github.com/felix-go/felix/internal/record"
	"github.com/felix-go/felix/internal/store"
)

// Operations that count once. The record of an id is staged in the very entry that
// carries what the operation writes, and from then on is seen as everything in
// flight is: a duplicate finds it, answers the same, and waits, as a read does, for
// the commit of what it saw (rules 4 and 5). What is not in the entry's commit is
// lost together: effect, id and reply.

// ids is what the owner keeps about them.
type ids struct {
	most     int64 // that the shard may have: see SetMaxIDs
	inflight int64 // how many more there are with what is proposed and not applied
	digest   record.Digest
	// Of the operation between beginOnce and endOnce:
	key    record.IDKey
	print  record.Fingerprint
	ref    store.Ref
	before record.Has
}

var errMaxIDs = &felix.Error{Code: felix.ResourceExhausted,
	Message: "the cache has as many idempotency ids as it may: nothing was applied; wait until some have expired, give them a shorter retention, or raise its max-ids"}

// SetMaxIDs bounds how many idempotency ids the shard may have. One that has more
// forgets none, but takes no new ones.
func (s *Shard) SetMaxIDs(n int64) { s.ids.most = n }

// loadsID says whether the record of an id has to be loaded first, and then sees to
// it that it is: r, unless it is nil, waits for it.
func (s *Shard) loadsID(key []byte, once *felix.Once, r *Request, out *Output) bool {
	if s.table.HasAllIDs() {
		return false
	}
	return s.loadID(s.ids.digest.Key(key, once.ID), r, out)
}

func (s *Shard) loadID(id record.IDKey, r *Request, out *Output) bool {
	ref, presence := s.table.FindID(id)
	switch presence {
	case store.Unloaded:
		ref = s.table.MarkLoadingID(ref, id)
		fallthrough
	case store.Loading:
		s.load(ref, id[:], true, r, out)
		return true
	}
	return false
}

// beginOnce looks whether operations with an id are to be evaluated. If not, they
// are answered: with what the first with the id were answered, if they ask for the
// same. key is nil for the id of a group. loadsID has said that nothing has to be
// loaded.
func (s *Shard) beginOnce(r *Request, key []byte, once *felix.Once, ops []felix.Op, replies []felix.Reply) (evaluate bool) {
	x := &s.ids
	x.key, x.print = x.digest.Key(key, once.ID), x.digest.Fingerprint(ops)
	ref, presence := s.table.FindID(x.key)
	invariant.Check(presence == store.Present || presence == store.Absent, "shard %d: an id was not loaded", s.cfg.ID)
	var cell record.Cell
	inflight, _ := s.table.Newest(ref, &cell)
	x.ref, x.before = ref, cell.Has
	if !cell.Exists() || cell.ValueExpiry <= s.Now() {
		if more := record.IDChange(x.before, record.HasValue).IDs; more == 0 || s.table.Counts().IDs+x.inflight+s.entry.change.IDs < x.most {
			return true
		}
		fill(replies, felix.Reply{Err: errMaxIDs})
		return false
	}
	r.dep = max(r.dep, inflight)
	print, err := record.OutcomeFingerprint(cell.Value)
	if err == nil && print != x.print {
		fill(replies, felix.Reply{Err: felix.ErrIDReused})
		return false
	}
	if err == nil {
		err = record.ReadOutcome(cell.Value, replies)
	}
	invariant.Check(err == nil, "shard %d: the outcome of an id: %v", s.cfg.ID, err)
	return false
}

func fill(replies []felix.Reply, r felix.Reply) {
	for i := range replies {
		replies[i] = r
	}
}

// endOnce stages the record of the id that beginOnce has looked at last, with what
// its operations were answered, and says so: not if they could not be evaluated.
func (s *Shard) endOnce(r *Request, once *felix.Once, replies []felix.Reply) (recorded bool) {
	for i := range replies {
		if !record.Recorded(&replies[i]) {
			return false
		}
	}
	x, e := &s.ids, &s.entry
	retention := cmp.Or(once.RetentionMillis, felix.DefaultIDRetention.Milliseconds())
	cell := record.Cell{Has: record.HasValue, Value: record.AppendOutcome(nil, x.print, replies),
		ValueExpiry: s.Now() + retention, ValueVer: e.base}
	s.stageID(x.ref, x.key, x.before, &cell, r)
	return true
}

// stageID puts an id as it now is into the entry. In one entry an id changes twice
// only if it was swept and is made anew, so its version need not grow there.
func (s *Shard) stageID(ref store.Ref, id record.IDKey, before record.Has, cell *record.Cell, r *Request) {
	e := &s.entry
	ref, first := s.table.StageID(ref, id, cell, e.index, e.base)
	if first {
		e.touched = append(e.touched, store.Touch{Ref: ref})
	}
	e.bytes += len(id) + len(cell.Value) + entryOverheadBytes
	e.next = max(e.next, e.base+1)
	e.change.Add(record.IDChange(before, cell.Has))
	r.wrote(e.index)
}

// sweepIDs deletes what has expired, up to the first that has to be loaded, for
// which the request then waits; or says that it is through.
func (s *Shard) sweepIDs(r *Request, out *Output) (through bool) {
	waiter := r
	for _, id := range r.IDs[r.next:] {
		switch {
		case s.loadID(id, waiter, out):
			waiter = nil
		case waiter != nil:
			s.sweepID(r, id)
			r.next++
		}
	}
	r.readClock(s)
	return waiter != nil
}

func (s *Shard) sweepID(r *Request, id record.IDKey) {
	var cell record.Cell
	ref, _ := s.table.FindID(id)
	s.table.Newest(ref, &cell)
	if before := cell.Has; engine.Sweep(&cell, s.Now()) {
		s.stageID(ref, id, before, &cell, r)
	}
}
