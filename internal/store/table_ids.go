package store

import "github.com/felix-go/felix/internal/record"

// The records of idempotency ids live in the same table as everything else, in
// flight, dirty and cached alike, and in a key space of their own: flagID says so.
// Their keys are record.IDKeys, and the record itself is held as a value.

// FindID is Find of an id.
func (t *Table) FindID(id record.IDKey) (Ref, Presence) { return t.find(t.Hash(id[:]), id[:], flagID) }

// HasAllIDs says that there is no id that the table does not hold.
func (t *Table) HasAllIDs() bool { return t.completeFor(flagID) }

// MarkLoadingID is MarkLoading of an id.
func (t *Table) MarkLoadingID(ref Ref, id record.IDKey) Ref {
	if ref == 0 {
		ref = t.insert(id[:], flagID)
	}
	return t.MarkLoading(ref, id[:])
}

// StageID is Stage of an id.
func (t *Table) StageID(ref Ref, id record.IDKey, c *record.Cell, index, version uint64) (_ Ref, first bool) {
	if ref == 0 {
		ref = t.insert(id[:], flagID)
		t.at(ref).flags |= flagKnownAll
	}
	return t.stage(ref, c, index, version)
}

// appendIDWrite is AppendWrites of an id.
func (t *Table) appendIDWrite(b []byte, e *entry, f *flight, base uint64) []byte {
	c := &f.cell
	if c.Has&record.HasValue == 0 {
		return record.AppendDelete(b, record.DeleteID, t.keyOf(e))
	}
	return record.AppendPutID(b, t.keyOf(e), c.Value, c.ValueExpiry, c.ValueVer-base)
}

func isID(k record.WriteKind) bool { return k == record.PutID || k == record.DeleteID }

// applyIDWrite is applyWrite of an id; complete is whether the table had all ids
// before the entry.
func (t *Table) applyIDWrite(ref Ref, w *record.Write, version uint64, complete bool) {
	e := t.at(ref)
	t.touch(ref, e)
	e.learn(flagKnownValue, flagDiskValue, complete)
	if w.Kind == record.DeleteID {
		t.setHas(e, 0)
		return
	}
	t.applied.Version = max(t.applied.Version, version)
	if e.flags&flagHasValue == 0 {
		t.holdValues(e, 1)
	}
	e.flags |= flagHasValue
	t.setValue(e, t.ownValue(e, w.Value, version), w.Expiry, version)
}

// holdValues counts n more values, or ids, that are in the table.
func (t *Table) holdValues(e *entry, n int64) {
	if e.flags&flagID != 0 {
		t.held.IDs += n
	} else {
		t.held.Values += n
	}
}
