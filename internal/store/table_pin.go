package store

import "github.com/felix-go/felix/internal/invariant"

// Pin keeps an entry in the table until as many calls of Unpin: whoever needs
// several entries at one moment, of which some must still be loaded, would
// otherwise wait for each other one in turn. The entry is in the table.
func (t *Table) Pin(ref Ref) {
	if t.pins == nil {
		t.pins = map[Ref]int{}
	}
	t.pins[ref]++
	t.at(ref).flags |= flagPinned
}

// Unpin undoes one Pin of an entry. A ClearShard or a snapshot has undone all.
func (t *Table) Unpin(ref Ref) {
	invariant.Check(t.pins[ref] > 0, "an entry was let go that nobody holds")
	if t.pins[ref]--; t.pins[ref] == 0 {
		delete(t.pins, ref)
		t.at(ref).flags &^= flagPinned
	}
}

// ValueBytes is the length of the entry's applied value.
func (t *Table) ValueBytes(ref Ref) int64 {
	if e := t.at(ref); e.value != 0 {
		return int64(len(t.values[e.value].data))
	}
	return 0
}
