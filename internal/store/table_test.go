package store

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"github.com/felix-go/felix/internal/invariant"
	"github.com/felix-go/felix/internal/record"
)

// payload builds an entry; the counts that it changes are given.
type payload struct {
	change record.Counts
	writes []byte
}

func (p *payload) put(key string, sum int64) *payload {
	p.writes = record.AppendPutCounter(p.writes, []byte(key), sum, 0, 1)
	p.change.Add(record.Counts{Counters: 1, Keys: 1})
	return p
}

func (p *payload) del(key string) *payload {
	p.writes = record.AppendDelete(p.writes, record.DeleteCounter, []byte(key))
	p.change.Add(record.Counts{Counters: -1, Keys: -1})
	return p
}

// apply applies the entry as a follower does, as the next one.
func (p *payload) apply(t *testing.T, table *Table) {
	t.Helper()
	header := record.AppendHeader(nil, record.Header{Base: 1 << 40, Change: p.change})
	if err := table.Apply(table.Applied().Index+1, 1, append(header, p.writes...), nil); err != nil {
		t.Fatal(err)
	}
}

func clearShard(t *testing.T, table *Table) {
	t.Helper()
	e := record.AppendClear(record.AppendHeader(nil, record.Header{}))
	if err := table.Apply(table.Applied().Index+1, 1, e, nil); err != nil {
		t.Fatal(err)
	}
}

// save takes a whole checkpoint up to the cleaning, which is left.
func save(t *testing.T, table *Table, d *disk) *Capture {
	t.Helper()
	c := table.BeginCheckpoint()
	if !table.CaptureSlice(c, 1<<30) {
		t.Fatal("a slice without bound is not the whole")
	}
	d.write(t, c.Checkpoint)
	return c
}

func finish(t *testing.T, table *Table, c *Capture) {
	t.Helper()
	if !table.FinishSlice(c, 1<<30) {
		t.Fatal("a slice without bound is not the whole")
	}
}

func newDisk() disk { return disk{cells: cells{}} }

// TestDeletionAmongWritesNeedsItsTombstone: an entry that makes a counter and
// deletes one that only the disk has. In its middle the table holds as many
// counters as there are, but not the same ones.
func TestDeletionAmongWritesNeedsItsTombstone(t *testing.T) {
	d := newDisk()
	d.cells["old"] = record.Cell{Has: record.HasCounter, Sum: 5, CounterVer: 1}
	d.applied = appliedAt(1)
	d.applied.Counts = record.Counts{Counters: 1, Keys: 1}
	table := NewTable(d.applied, &Budget{MaxBytes: 1 << 20})
	new(payload).put("new", 7).del("old").apply(t, table)
	finish(t, table, save(t, table, &d))
	if c, ok := d.cells["old"]; ok {
		t.Errorf("the deleted counter is still on disk: %+v", c)
	}
	if c := d.cells["new"]; c.Sum != 7 {
		t.Errorf("the new counter is on disk as %+v", c)
	}
	if n := table.Counts(); n != (record.Counts{Counters: 1, Keys: 1}) {
		t.Errorf("counts: %+v", n)
	}
}

// TestScanWhileACheckpointIsCleaned: from the first cleaned entry on, the disk
// has what the checkpoint wrote, and a scan needs it.
func TestScanWhileACheckpointIsCleaned(t *testing.T) {
	d := newDisk()
	table := NewTable(appliedAt(1), &Budget{MaxBytes: 1 << 20})
	clearShard(t, table)
	new(payload).put("a", 1).put("b", 2).apply(t, table)
	if !table.DiskVoid() {
		t.Error("a cleared table lets the disk count")
	}
	c := save(t, table, &d)
	if !table.DiskVoid() {
		t.Error("before the first entry is cleaned, nobody knows that the checkpoint is on disk")
	}
	if table.FinishSlice(c, 1) {
		t.Fatal("one of two entries is all")
	}
	items, _, _ := table.Overlay(nil, nil, 10)
	if len(items) != 1 || table.DiskVoid() {
		t.Errorf("with %d dirty cells, the disk does not count: %v", len(items), table.DiskVoid())
	}
	finish(t, table, c)
	if items, _, _ = table.Overlay(nil, nil, 10); len(items) != 0 || table.DiskVoid() {
		t.Errorf("with %d dirty cells, the disk does not count: %v", len(items), table.DiskVoid())
	}
}

// TestScanPastEntriesThatAreGone: cleaning a checkpoint of deletions gives
// chunks back; what is left of it can still be scanned.
func TestScanPastEntriesThatAreGone(t *testing.T) {
	d := newDisk()
	table := NewTable(appliedAt(1), &Budget{MaxBytes: 1 << 30})
	const n = 3 * chunkSize
	put, del := new(payload), new(payload)
	for i := range n {
		put.put(fmt.Sprintf("%05d", i), 1)
		if i < n-5 {
			del.del(fmt.Sprintf("%05d", i))
		}
	}
	put.apply(t, table)
	finish(t, table, save(t, table, &d))
	del.apply(t, table)
	new(payload).put("99999", 1).apply(t, table)
	c := save(t, table, &d)
	for left := n - 5 + 1; !table.FinishSlice(c, 100); {
		left -= 100
		items, cut, _ := table.Overlay(nil, nil, n)
		if len(items) != left || cut {
			t.Fatalf("the overlay has %d items, want %d", len(items), left)
		}
	}
	if gone := len(table.freeChunks); gone == 0 {
		t.Error("no chunk was given back")
	}
	if len(d.cells) != 6 {
		t.Errorf("the disk has %d keys, want 6", len(d.cells))
	}
}

// TestCheckpointIsOfItsBeginning: changes, deletions and new keys between the
// slices of a checkpoint belong to the next one.
func TestCheckpointIsOfItsBeginning(t *testing.T) {
	d := newDisk()
	table := NewTable(appliedAt(1), &Budget{MaxBytes: 1 << 20})
	new(payload).put("a", 1).put("b", 2).put("c", 3).apply(t, table)
	c := table.BeginCheckpoint()
	table.CaptureSlice(c, 1)
	changed := payload{writes: record.AppendPutCounter(nil, []byte("c"), 33, 0, 5)}
	changed.del("b").put("d", 4).apply(t, table)
	for !table.CaptureSlice(c, 1) {
	}
	d.write(t, c.Checkpoint)
	if d.cells["a"].Sum != 1 || d.cells["b"].Sum != 2 || d.cells["c"].Sum != 3 || len(d.cells) != 3 {
		t.Errorf("the checkpoint holds %+v", d.cells)
	}
	if d.applied.Index != 2 || d.applied.Counts.Counters != 3 {
		t.Errorf("the checkpoint is of %+v", d.applied)
	}
	finish(t, table, c)
	finish(t, table, save(t, table, &d))
	if d.cells["a"].Sum != 1 || d.cells["c"].Sum != 33 || d.cells["d"].Sum != 4 || len(d.cells) != 3 {
		t.Errorf("the next checkpoint leaves %+v", d.cells)
	}
}

// TestStagedCellsAreNotApplied: rule 6 of design.md section 3. What is in
// flight is in no checkpoint, no overlay, no count, and is not evicted.
func TestStagedCellsAreNotApplied(t *testing.T) {
	d := newDisk()
	budget := &Budget{}
	table := NewTable(appliedAt(1), budget)
	new(payload).put("a", 1).apply(t, table)
	ref, _ := table.Find([]byte("a"))
	staged := record.Cell{Has: record.HasCounter, Sum: 100, CounterVer: 1<<40 + 9}
	table.Stage(ref, []byte("a"), &staged, 3, staged.CounterVer)
	made, _ := table.Stage(0, []byte("b"), &staged, 3, staged.CounterVer)
	table.Trim(1 << 16)
	if items, _, _ := table.Overlay(nil, nil, 10); len(items) != 1 || items[0].Cell.Sum != 1 {
		t.Errorf("a scan sees %+v", items)
	}
	finish(t, table, save(t, table, &d))
	table.Trim(1 << 16)
	if len(d.cells) != 1 || d.cells["a"].Sum != 1 {
		t.Errorf("a checkpoint has %+v", d.cells)
	}
	if n := table.Counts(); n.Counters != 1 {
		t.Errorf("counts: %+v", n)
	}
	for _, r := range []Ref{ref, made} {
		var c record.Cell
		if index, last := table.Newest(r, &c); index != 3 || last != staged.CounterVer || c.Sum != 100 {
			t.Errorf("in flight is %+v in %d with %d", c, index, last)
		}
		table.DropFlight(r)
		table.DropFlight(r) // as of two entries that staged the key
	}
	var c record.Cell
	if table.Newest(ref, &c); c.Sum != 1 {
		t.Errorf("after the flight was dropped, there is %+v", c)
	}
	table.Trim(1 << 16)
	if budget.UsedBytes() != 0 {
		t.Errorf("what is only cached keeps %d bytes", budget.UsedBytes())
	}
}

// TestBrokenCallsEndTheProcess: calls that can only be a bug.
func TestBrokenCallsEndTheProcess(t *testing.T) {
	newTable := func() *Table {
		table := NewTable(appliedAt(1), &Budget{MaxBytes: 1 << 20})
		new(payload).put("a", 1).apply(t, table)
		return table
	}
	cell := record.Cell{Has: record.HasCounter, Sum: 1, CounterVer: 1}
	for name, do := range map[string]func(*Table){
		"an entry left out":     func(table *Table) { _ = table.Apply(4, 1, nil, nil) },
		"an entry twice":        func(table *Table) { _ = table.Apply(2, 1, nil, nil) },
		"a configuration twice": func(table *Table) { table.SkipTo(2, 1, 1, nil, nil) },
		"two checkpoints":       func(table *Table) { table.BeginCheckpoint(); table.BeginCheckpoint() },
		"a record not asked for": func(table *Table) {
			ref, _ := table.Find([]byte("a"))
			table.Loaded(ref, table.Generation(), &cell)
		},
		"a clear over what is in flight": func(table *Table) {
			table.Stage(0, []byte("b"), &cell, 3, 1)
			_ = table.Apply(3, 1, record.AppendClear(record.AppendHeader(nil, record.Header{})), nil)
		},
		"more writes than staged": func(table *Table) {
			e := record.AppendPutCounter(record.AppendHeader(nil, record.Header{}), []byte("b"), 1, 0, 0)
			_ = table.Apply(3, 1, e, []Touch{})
		},
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				var broken invariant.Violation
				if err, _ := recover().(error); !errors.As(err, &broken) {
					t.Errorf("the process goes on: %v", err)
				}
			}()
			do(newTable())
		})
	}
}

// TestUnreadableEntryIsAnError: the process must not go on with it.
func TestUnreadableEntryIsAnError(t *testing.T) {
	for _, p := range [][]byte{{99}, {1}, append(record.AppendHeader(nil, record.Header{}), 77, 1, 'k')} {
		table := NewTable(appliedAt(1), &Budget{MaxBytes: 1 << 20})
		if err := table.Apply(2, 1, p, nil); !errors.Is(err, record.ErrCorrupt) {
			t.Errorf("payload %v: %v", p, err)
		}
	}
}

// TestLoadOfBeforeAClear is void, and its Ref names nothing any more.
func TestLoadOfBeforeAClear(t *testing.T) {
	applied := appliedAt(1)
	applied.Counts = record.Counts{Counters: 1, Keys: 1}
	table := NewTable(applied, &Budget{MaxBytes: 1 << 20})
	key := []byte("old")
	ref, presence := table.Find(key)
	if presence != Unloaded {
		t.Fatalf("presence %d", presence)
	}
	ref, generation := table.MarkLoading(ref, key), table.Generation()
	clearShard(t, table)
	if table.Generation() == generation {
		t.Error("a clear keeps the generation")
	}
	table.Loaded(ref, generation, &record.Cell{Has: record.HasCounter, Sum: 5, CounterVer: 1})
	if _, presence = table.Find(key); presence != Absent {
		t.Errorf("after a clear the key is %d", presence)
	}
	if n := table.Counts(); n != (record.Counts{}) {
		t.Errorf("counts: %+v", n)
	}
}

// TestLoadDoesNotHideWhatCameMeanwhile: an entry applied between the request
// and the answer of a load is newer than what was read.
func TestLoadDoesNotHideWhatCameMeanwhile(t *testing.T) {
	applied := appliedAt(1)
	applied.Counts = record.Counts{Counters: 3, Values: 1, Keys: 3}
	table := NewTable(applied, &Budget{MaxBytes: 1 << 20})
	stale := record.Cell{Has: 3, Sum: 5, CounterVer: 1, Value: []byte("v"), ValueVer: 2}
	ref := table.MarkLoading(0, []byte("put"))
	gone := table.MarkLoading(0, []byte("gone"))
	p := payload{writes: record.AppendPutCounter(nil, []byte("put"), 6, 0, 3)}
	p.del("gone").apply(t, table)
	table.Loaded(ref, table.Generation(), &stale)
	table.Loaded(gone, table.Generation(), &record.Cell{Has: record.HasCounter, Sum: 5, CounterVer: 1})
	var c record.Cell
	if table.Newest(ref, &c); c.Sum != 6 || !bytes.Equal(c.Value, stale.Value) {
		t.Errorf("put and loaded: %+v", c)
	}
	if table.Newest(gone, &c); c.Exists() {
		t.Errorf("deleted and loaded: %+v", c)
	}
	if _, presence := table.Find([]byte("gone")); presence != Present {
		t.Errorf("what is known to be gone has to be loaded: %d", presence)
	}
}

// TestChunksAreGivenBackAndMadeAnew fills and empties a table many times.
func TestChunksAreGivenBackAndMadeAnew(t *testing.T) {
	d := newDisk()
	budget := &Budget{MaxBytes: 1 << 30}
	table := NewTable(appliedAt(1), budget)
	for round, n := range []int{5 * chunkSize, 1500, chunkSize - 1, 2 * chunkSize, 3, 10 * chunkSize} {
		put, del := new(payload), new(payload)
		for i := range n {
			put.put(fmt.Sprintf("%d/%05d", round, i), int64(i))
			del.del(fmt.Sprintf("%d/%05d", round, i))
		}
		put.apply(t, table)
		for i := range n {
			ref, _ := table.Find(fmt.Appendf(nil, "%d/%05d", round, i))
			var c record.Cell
			if table.Newest(ref, &c); c.Sum != int64(i) || c.Has != record.HasCounter {
				t.Fatalf("round %d: key %d is %+v", round, i, c)
			}
		}
		finish(t, table, save(t, table, &d))
		del.apply(t, table)
		finish(t, table, save(t, table, &d))
		kept := 0
		for _, c := range table.chunks {
			if c != nil {
				kept++
			}
		}
		if kept > 3 || table.Bytes() != 0 || budget.UsedBytes() != 0 { // the first, the one in use, the one after it
			t.Errorf("round %d: emptied, the table keeps %d chunks of %d, and %d bytes", round, kept, len(table.chunks), table.Bytes())
		}
		if len(table.chunks) > 12 {
			t.Errorf("round %d: %d chunks were made", round, len(table.chunks))
		}
	}
}

// TestOverlayIsTheCallersOwn: a scan goes on while the table changes.
func TestOverlayIsTheCallersOwn(t *testing.T) {
	table := NewTable(appliedAt(1), &Budget{MaxBytes: 1 << 20})
	new(payload).put("aaaa", 1).put("bbbb", 2).apply(t, table)
	items, _, _ := table.Overlay(nil, nil, 10)
	for i := range table.chunks[0].entries { // as when the slots are used again
		table.chunks[0].entries[i] = entry{}
	}
	if string(items[0].Key) != "aaaa" || string(items[1].Key) != "bbbb" {
		t.Errorf("the keys became %q and %q", items[0].Key, items[1].Key)
	}
}
