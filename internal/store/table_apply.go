package store

import (
	"bytes"

	"github.com/felix-go/felix/internal/invariant"
	"github.com/felix-go/felix/internal/record"
)

// Touch says that the log entry has Writes writes, in order, for the entry
// that Ref names. The owner knows it from evaluation, and saves the look-ups.
type Touch struct {
	Ref    Ref
	Writes uint8
}

// Apply makes the writes of the committed log entry at (index, term) the
// applied state. touched is what the owner staged for it, or nil. An error is
// a payload that this build cannot read: the process must not go on.
func (t *Table) Apply(index, term uint64, payload []byte, touched []Touch) error {
	invariant.Check(index == t.applied.Index+1, "entry %d was applied after %d", index, t.applied.Index)
	r, err := record.ReadEntry(payload)
	if err != nil {
		return err
	}
	owned := touched != nil
	// Counts change at the end, what is held with every write: in between the
	// two say nothing about each other.
	complete := [...]bool{t.complete(), t.completeFor(flagID)}
	var w record.Write
	warm := 0 // of touched: how many are warm
	for r.More() {
		if err := r.Next(&w); err != nil {
			return err
		}
		if warm == 0 && len(touched) > 0 {
			warm = min(len(touched), WarmGroup)
			t.warmTouched(touched[:warm])
		}
		if w.Kind == record.ClearShard {
			t.clear()
			complete[0], complete[1] = true, true
			continue
		}
		ref := Ref(0)
		if owned {
			if len(touched) == 0 { // Check would allocate for its words, with every write
				invariant.Fail("entry %d has more writes than were staged", index)
			}
			ref = touched[0].Ref
			if touched[0].Writes--; touched[0].Writes == 0 {
				touched = touched[1:]
				warm--
			}
		} else {
			ref = t.entryOf(&w)
		}
		if isID(w.Kind) {
			t.applyIDWrite(ref, &w, r.Header.Base+w.Step, complete[1])
		} else {
			t.applyWrite(ref, &w, r.Header.Base+w.Step, complete[0])
		}
		if e := t.at(ref); owned && e.flight != 0 && t.flights[e.flight].index == index &&
			(len(touched) == 0 || touched[0].Ref != ref) {
			t.freeFlightOf(e)
		}
	}
	t.applied.Ceiling = max(t.applied.Ceiling, r.Header.Ceiling)
	t.applied.Counts.Add(r.Header.Change)
	t.advance(index, term, 0, payload)
	t.tellDirty()
	return nil
}

// entryOf finds or makes the entry of a write that was not staged here.
func (t *Table) entryOf(w *record.Write) Ref {
	id := flags(0)
	if isID(w.Kind) {
		id = flagID
	}
	ref := t.lookup(t.Hash(w.Key), w.Key, id)
	if ref == 0 {
		ref = t.insert(w.Key, id)
	}
	return ref
}

// SkipTo applies an entry that changes no record but the Raft configuration, to
// conf; kind is Raft's type of it.
func (t *Table) SkipTo(index, term uint64, kind byte, data, conf []byte) {
	invariant.Check(index == t.applied.Index+1, "entry %d was applied after %d", index, t.applied.Index)
	t.applied.ConfState = conf
	t.advance(index, term, kind, data)
}

// advance notes that all of an entry is applied.
func (t *Table) advance(index, term uint64, kind byte, data []byte) {
	t.applied.Index, t.applied.Term = index, term
	t.link(kind, data)
	if index == t.captureAt {
		t.captureNow()
	}
}

// applyWrite makes a write; complete is what the table was before the entry.
func (t *Table) applyWrite(ref Ref, w *record.Write, version uint64, complete bool) {
	e := t.at(ref)
	t.touch(ref, e)
	if w.Kind == record.PutCounter || w.Kind == record.PutValue {
		t.applied.Version = max(t.applied.Version, version)
	}
	switch w.Kind {
	case record.PutCounter:
		e.learn(flagKnownCounter, flagDiskCounter, complete)
		if e.flags&flagHasCounter == 0 {
			t.held.Counters++
		}
		e.flags |= flagHasCounter
		e.sum, e.expiry, e.version = w.Sum, w.Expiry, version
	case record.PutValue:
		e.learn(flagKnownValue, flagDiskValue, complete)
		if e.flags&flagHasValue == 0 {
			t.held.Values++
		}
		e.flags |= flagHasValue
		t.setValue(e, t.ownValue(e, w.Value, version), w.Expiry, version)
	case record.DeleteCounter:
		e.learn(flagKnownCounter, flagDiskCounter, complete)
		t.setHas(e, e.flags&flagHasValue)
	case record.DeleteValue:
		e.learn(flagKnownValue, flagDiskValue, complete)
		t.setHas(e, e.flags&flagHasCounter)
	}
}

// ownValue is a copy of an entry's value, or the one that is already in flight.
func (t *Table) ownValue(e *entry, value []byte, version uint64) []byte {
	if e.flight != 0 && t.flights[e.flight].cell.ValueVer == version {
		return t.flights[e.flight].cell.Value
	}
	return bytes.Clone(value)
}

// learn notes that a record of the entry is known from now on. If it was not,
// the DB may hold an older one, unless the table was complete.
func (e *entry) learn(known, disk flags, complete bool) {
	if e.flags&known == 0 {
		if !complete {
			e.flags |= disk
		}
		e.flags |= known
	}
}

// touch makes an entry dirty, and first saves it for a running checkpoint that
// has not captured it yet.
func (t *Table) touch(ref Ref, e *entry) {
	now := flagDirty0 << t.parity
	if c := t.checkpoint; c != nil {
		old := flagDirty0 << (t.parity ^ 1)
		if e.flags&(old|flagCaptured) == old {
			c.capture(t, e)
		}
	}
	if e.flags&now == 0 {
		t.soil(e)
		e.flags |= now
		t.dirty = append(t.dirty, ref)
	}
}

// clear is a ClearShard: every record is gone. Loads under way are void.
func (t *Table) clear() {
	t.forget()
	t.clearDisk = true
	t.applied.Counts = record.Counts{}
}

// TrimStep is Trim in proportion to what was inserted since the last one, so
// that the budget is kept and a step over budget costs little where there is
// nothing to evict: an entry that was used is looked at twice before it goes,
// and most may be dirty.
func (t *Table) TrimStep() {
	const atLeast, perInsert, atMost = 64, 16, 64 << 10
	examine := min(atLeast+perInsert*t.inserted, atMost)
	t.inserted = 0
	t.Trim(examine)
}

// Trim evicts entries that are only cached, as long as the broker's tables are
// over their budget, looking at no more than examine entries (a clock with one
// bit of history).
func (t *Table) Trim(examine int) {
	for ; examine > 0 && t.budget.used.Load() > t.budget.MaxBytes && len(t.chunks) > 0; examine-- {
		t.hand++
		if int(t.hand>>chunkBits) >= len(t.chunks) {
			t.hand = 1
		}
		c := t.chunks[t.hand>>chunkBits]
		if c == nil {
			t.hand |= chunkSize - 1
			continue
		}
		e := &c.entries[t.hand&(chunkSize-1)]
		switch {
		case e.flags&flagLive == 0 || e.flags&(flagDirtyAny|flagLoading|flagPinned) != 0 || e.flight != 0:
		case e.flags&flagUsed != 0:
			e.flags &^= flagUsed
		default:
			t.remove(t.hand)
		}
	}
}
