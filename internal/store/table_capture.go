package store

import (
	"bytes"

	"github.com/felix-go/felix/internal/invariant"
)

// Capture is a checkpoint being taken of a table: its dirty entries as they
// were when it began, gathered a slice at a time so that no slice takes long.
// An entry that changes before its turn is saved by the change.
type Capture struct {
	// Checkpoint is what to write once Capture is whole.
	Checkpoint Checkpoint
	entries    []Ref
	next       int // of entries, to capture; then, to clean
	arena      []byte
	bytes      int64 // charged to the table for it
	aborted    bool
	written    bool // FinishSlice was called: the DB has it, and entries before next may be gone
}

// recordBytes is what a CheckpointRecord takes beside its key and value.
const recordBytes = 104

// BeginCheckpoint starts a checkpoint of the table as it is now. Only one can
// be under way.
func (t *Table) BeginCheckpoint() *Capture {
	invariant.Check(t.checkpoint == nil, "a checkpoint was begun while another is under way")
	c := &Capture{entries: t.dirty, Checkpoint: Checkpoint{Applied: t.applied, Clear: t.clearDisk}}
	c.Checkpoint.Records = make([]CheckpointRecord, 0, len(t.dirty))
	c.Checkpoint.Applied.ConfState = bytes.Clone(t.applied.ConfState)
	t.dirty, t.clearDisk = nil, false
	t.parity ^= 1
	t.checkpoint = c
	t.hold(c, recordBytes*int64(cap(c.Checkpoint.Records)))
	t.tellDirty()
	return c
}

// CaptureSlice captures up to n more entries and says whether that was all.
// After a ClearShard or a snapshot it is all at once, with Aborted set.
func (t *Table) CaptureSlice(c *Capture, n int) (whole bool) {
	old := flagDirty0 << (t.parity ^ 1)
	for ; n > 0 && !c.aborted && c.next < len(c.entries); n-- {
		e := t.at(c.entries[c.next])
		if e.flags&(old|flagCaptured) == old {
			c.capture(t, e)
		}
		c.next++
	}
	t.tellDirty()
	if c.aborted || c.next == len(c.entries) {
		c.next = 0
		return true
	}
	return false
}

// Aborted says that a ClearShard or a snapshot made the checkpoint pointless: it
// must not be written nor finished.
func (c *Capture) Aborted() bool { return c.aborted }

// Abandon gives a checkpoint up, as when its shard is closed.
func (t *Table) Abandon(c *Capture) {
	t.hold(c, -c.bytes)
	t.tellDirty()
	c.abort()
	t.checkpoint = nil
}

// abort is for a table that forgets everything, what c holds included.
func (c *Capture) abort() {
	c.aborted, c.bytes = true, 0
	c.entries = nil
}

func (c *Capture) capture(t *Table, e *entry) {
	r := CheckpointRecord{OnDisk: e.flags.onDisk()}
	t.readApplied(e, &r.Cell)
	key := t.keyOf(e)
	if cap(c.arena)-len(c.arena) < len(key) {
		c.arena = make([]byte, 0, max(64<<10, len(key)))
		t.hold(c, int64(cap(c.arena)))
	}
	from := len(c.arena)
	c.arena = append(c.arena, key...)
	r.Key = c.arena[from:len(c.arena):len(c.arena)]
	if e.flags&flagID != 0 {
		before := cap(c.Checkpoint.IDs)
		c.Checkpoint.IDs = append(c.Checkpoint.IDs, r)
		t.hold(c, recordBytes*int64(cap(c.Checkpoint.IDs)-before))
	} else {
		c.Checkpoint.Records = append(c.Checkpoint.Records, r)
	}
	// What is about to be on disk: from now on a deletion needs a tombstone,
	// and what is deleted by this checkpoint needs none.
	e.flags = e.flags&^(flagDiskCounter|flagDiskValue) | flags(r.Cell.Has)<<4 | flagCaptured
}

// FinishSlice makes up to n entries clean after the checkpoint is durable, and
// says whether that was all. Only then may the next checkpoint begin.
func (t *Table) FinishSlice(c *Capture, n int) (whole bool) {
	if c.aborted {
		return true
	}
	c.written = true
	old := flagDirty0 << (t.parity ^ 1)
	for ; n > 0 && c.next < len(c.entries); n-- {
		ref := c.entries[c.next]
		c.next++
		e := t.at(ref)
		e.flags &^= old | flagCaptured
		t.cleaned(e)
		if e.flags&(flagHasAll|flagDirtyAny|flagLoading|flagPinned) == 0 && e.flags&flagKnownAll == flagKnownAll && e.flight == 0 {
			t.remove(ref)
		}
	}
	whole = c.next == len(c.entries)
	if whole {
		c.Checkpoint.Records, c.Checkpoint.IDs = nil, nil
		t.hold(c, -c.bytes)
		t.checkpoint = nil
	}
	t.tellDirty()
	return whole
}

// DiskVoid says that everything the DB holds of the shard was cleared, and a
// checkpoint has not told it yet: only the table counts.
func (t *Table) DiskVoid() bool {
	c := t.checkpoint
	return t.clearDisk || c != nil && c.Checkpoint.Clear && !c.written
}
