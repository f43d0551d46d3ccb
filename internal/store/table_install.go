package store

import (
	"bytes"

	"github.com/felix-go/felix/internal/invariant"
	"github.com/felix-go/felix/internal/record"
)

// Install makes the table that of a, after the DB has installed a snapshot as of
// a: nothing that the table held counts any more, nor a checkpoint under way.
func (t *Table) Install(a record.Applied) {
	invariant.Check(a.Index > t.applied.Index, "a snapshot of entry %d was installed over entry %d", a.Index, t.applied.Index)
	t.forget()
	t.clearDisk = false
	t.applied = a
	t.applied.ConfState = bytes.Clone(a.ConfState)
	t.beginChain()
	t.tellDirty()
}

// forget empties the table. Refs and loads under way are void.
func (t *Table) forget() {
	invariant.Check(len(t.flights)-1 == len(t.freeFlight), "a table was emptied with operations in flight")
	if t.checkpoint != nil {
		t.checkpoint.abort()
		t.checkpoint = nil
	}
	t.reset()
	t.captureAt, t.agreed = 0, nil
	t.generation++
}
