package store

import (
	"github.com/felix-go/felix/internal/invariant"
	"github.com/felix-go/felix/internal/record"
)

// Install makes the table that of a shard whose state in the DB has become
// another: a snapshot's, which ends with a. Whatever the table held is
// forgotten; Refs, loads and a checkpoint under way are void.
func (t *Table) Install(a record.Applied) {
	invariant.Check(a.Index > t.applied.Index, "a snapshot of entry %d was installed over entry %d", a.Index, t.applied.Index)
	invariant.Check(len(t.flights)-1 == len(t.freeFlight), "a snapshot was installed with operations in flight")
	if t.checkpoint != nil {
		t.checkpoint.abort()
		t.checkpoint = nil
	}
	t.reset()
	t.generation++
	t.clearDisk = false
	t.applied = a
	t.tellDirty()
}
