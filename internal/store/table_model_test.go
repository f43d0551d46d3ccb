package store

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/felix-go/felix/internal/record"
)

// The model of a table: the dumbest things that can be right.

type cells map[string]record.Cell

func (c cells) counts() (n record.Counts) {
	for _, cell := range c {
		n.Add(record.CountChange(0, cell.Has))
	}
	return n
}

func (c cells) set(key string, cell record.Cell) {
	if cell.Exists() {
		c[key] = cell
	} else {
		delete(c, key)
	}
}

// disk is where checkpoints go: a map, and in some runs a DB beside it.
type disk struct {
	cells   cells
	applied record.Applied
	db      *DB
}

// write does what the documentation of Checkpoint says, to the letter: what
// is not named stays.
func (d *disk) write(t *testing.T, c Checkpoint) {
	c.Shard = 7
	if c.Clear {
		d.cells = cells{}
	}
	for _, r := range c.Records {
		cell := d.cells[string(r.Key)]
		gone := func(has record.Has) bool {
			return r.Cell.Has&has == 0 && r.OnDisk&has != 0
		}
		if r.Cell.Has&record.HasCounter != 0 {
			cell.Has |= record.HasCounter
			cell.Sum, cell.CounterExpiry, cell.CounterVer = r.Cell.Sum, r.Cell.CounterExpiry, r.Cell.CounterVer
		} else if gone(record.HasCounter) {
			cell.DropCounter()
		}
		if r.Cell.Has&record.HasValue != 0 {
			cell.Has |= record.HasValue
			cell.Value, cell.ValueExpiry, cell.ValueVer = bytes.Clone(r.Cell.Value), r.Cell.ValueExpiry, r.Cell.ValueVer
		} else if gone(record.HasValue) {
			cell.DropValue()
		}
		d.cells.set(string(r.Key), cell)
	}
	d.applied = c.Applied
	if d.db != nil {
		if err := d.db.WriteCheckpoint(c); err != nil {
			t.Fatal(err)
		}
	}
}

func (d *disk) load(t *testing.T, key string) (c record.Cell) {
	if d.db == nil {
		return d.cells[key]
	}
	if err := d.db.Load(7, []byte(key), &c); err != nil {
		t.Fatal(err)
	}
	return c
}

// logged is an entry of the log, with what it is to do.
type logged struct {
	term    uint64
	payload []byte
	conf    bool
	changes cells // the cells as the entry leaves them; absent ones without Has
	clear   bool
	touched []Touch // of the owner; nil for a follower
	ceiling int64
	highest uint64 // version
}

type modelLoad struct {
	key        string
	ref        Ref
	generation uint64
	cell       record.Cell
}

// life drives a table and its model through everything that may happen.
type life struct {
	t      *testing.T
	rng    *rand.Rand
	keys   []string
	hot    int // how many keys are used often; few, so that all of them may be known
	cold   int // how many of ten times it is any key
	budget *Budget
	table  *Table
	disk   disk

	applied cells
	index   uint64 // applied
	term    uint64
	ceiling int64
	version uint64
	sums    map[uint64]uint64 // of the chain, by index
	log     map[uint64]logged // all entries from the disk's applied index on
	last    uint64            // index of the last one

	owner   bool
	newest  cells // applied, and what is in flight; for the owner
	base    uint64
	loads   []modelLoad
	capture *Capture
	asOf    disk // what the capture must make of the disk
	whole   bool // captured
	written bool
	steps   map[string]int
}

func newLife(t *testing.T, seed uint64, db *DB) *life {
	l := &life{t: t, rng: rand.New(rand.NewPCG(seed, 1)), applied: cells{}, term: 1, index: 1, last: 1, base: 1 << 40,
		sums: map[uint64]uint64{}, log: map[uint64]logged{}, steps: map[string]int{}, disk: disk{cells: cells{}, db: db}}
	for i := range 40 {
		l.keys = append(l.keys, fmt.Sprintf("key%d", i))
	}
	for _, n := range []int{1, 27, 28, 29, 64, 300, 65_535} {
		l.keys = append(l.keys, string(bytes.Repeat([]byte{byte(n)}, n)))
	}
	for i := range 1500 { // more than one chunk
		l.keys = append(l.keys, fmt.Sprintf("cold/%d", i))
	}
	l.hot = []int{4, 12, 47}[l.rng.IntN(3)]
	l.cold = []int{0, 3, 10}[l.rng.IntN(3)]
	l.budget = &Budget{MaxBytes: []int64{0, 2_000, 20_000, 1 << 30}[l.rng.IntN(4)]}
	l.disk.write(t, Checkpoint{Applied: appliedAt(1)})
	l.table = NewTable(l.disk.applied, l.budget)
	return l
}

func appliedAt(index uint64) record.Applied {
	return record.Applied{Index: index, Term: 1, ConfState: []byte("conf")}
}

func (l *life) key() string {
	if l.rng.IntN(10) >= l.cold {
		return l.keys[47-l.hot+l.rng.IntN(l.hot)]
	}
	return l.keys[l.rng.IntN(len(l.keys))]
}

// bulk is an entry that writes most keys, or deletes them all.
func (l *life) bulk() {
	if l.owner {
		return
	}
	drop := l.rng.IntN(2) == 0
	l.followWith(l.keys[l.rng.IntN(400):], func(c record.Cell) record.Cell {
		if drop {
			return record.Cell{}
		}
		return l.mutate(c, l.base+1)
	})
}

// mutate makes some other cell of c; version is that of the change.
func (l *life) mutate(c record.Cell, version uint64) record.Cell {
	for {
		n := c
		switch l.rng.IntN(6) {
		case 0, 1:
			n.Has |= record.HasCounter
			n.Sum, n.CounterExpiry, n.CounterVer = l.rng.Int64()-l.rng.Int64(), l.rng.Int64N(3)*1000, version
		case 2:
			n.Has |= record.HasValue
			value := bytes.Repeat([]byte{byte(version)}, l.rng.IntN(3)*40)
			n.Value, n.ValueExpiry, n.ValueVer = value, l.rng.Int64N(3)*1000, version
		case 3:
			n.DropCounter()
		case 4:
			n.DropValue()
		case 5:
			n = record.Cell{}
		}
		if !reflect.DeepEqual(n, c) {
			return n
		}
	}
}

func (l *life) state(key string) record.Cell {
	if l.owner {
		return l.newest[key]
	}
	return l.applied[key]
}

// find looks a key up as the shard does, and says whether it can be evaluated.
func (l *life) find(key string) (Ref, bool) {
	ref, presence := l.table.Find([]byte(key))
	switch presence {
	case Absent:
		if c := l.state(key); c.Exists() || ref != 0 {
			l.t.Fatalf("key %.20q is called absent, but is %+v", key, c)
		}
	case Unloaded:
		ref = l.table.MarkLoading(ref, []byte(key))
		l.loads = append(l.loads, modelLoad{key, ref, l.table.Generation(), record.Cell{Has: 255}})
		return 0, false
	case Loading:
		return 0, false
	}
	var c record.Cell
	index, last := l.table.Newest(ref, &c)
	if want := l.state(key); !sameCell(c, want) {
		l.t.Fatalf("key %.20q: the newest cell is %+v, want %+v", key, c, want)
	}
	if (index != 0) != (last != 0) || index > l.last+1 {
		l.t.Fatalf("key %.20q: in flight in %d with version %d; the last entry is %d", key, index, last, l.last)
	}
	return ref, true
}

// propose is an owner's entry: staged, encoded, in the log.
func (l *life) propose() {
	index := l.last + 1
	e := logged{term: l.term, changes: cells{}, touched: []Touch{}}
	var change record.Counts
	next := l.base
	for range 1 + l.rng.IntN(12) {
		key := l.key()
		ref, ok := l.find(key)
		if !ok {
			continue
		}
		var c record.Cell
		version := l.base
		if inflight, last := l.table.Newest(ref, &c); inflight == index {
			version = last + 1
		}
		n := l.mutate(c, version)
		ref, first := l.table.Stage(ref, []byte(key), &n, index, version)
		if _, again := e.changes[key]; first == again {
			l.t.Fatalf("key %.20q: Stage says first %v, but it was staged before: %v", key, first, again)
		}
		if first {
			e.touched = append(e.touched, Touch{Ref: ref})
		}
		change.Add(record.CountChange(c.Has, n.Has))
		next = max(next, version+1)
		e.changes[key] = n
		l.newest.set(key, n)
	}
	if len(e.touched) == 0 {
		return
	}
	e.ceiling = l.rng.Int64N(2) * int64(index)
	e.payload = record.AppendHeader(nil, record.Header{Base: l.base, Change: change, Ceiling: e.ceiling})
	for i := range e.touched {
		var n int
		e.payload, n = l.table.AppendWrites(e.payload, e.touched[i].Ref, l.base)
		e.touched[i].Writes = uint8(n)
	}
	l.base = next
	l.append(e)
}

func (l *life) append(e logged) {
	for _, c := range e.changes {
		e.highest = max(e.highest, c.CounterVer, c.ValueVer)
	}
	l.last++
	l.log[l.last] = e
}

// follow is an entry that another owner proposed.
func (l *life) follow() {
	var keys []string
	for range 1 + l.rng.IntN(12) {
		if key := l.key(); !slices.Contains(keys, key) {
			keys = append(keys, key)
		}
	}
	l.followWith(keys, func(c record.Cell) record.Cell { return l.mutate(c, l.base+1) })
}

func (l *life) followWith(keys []string, change func(record.Cell) record.Cell) {
	e := logged{term: l.term, changes: cells{}}
	state := maps.Clone(l.applied)
	for i := l.index + 1; i <= l.last; i++ {
		state.apply(l.log[i])
	}
	before := state.counts()
	var writes []byte
	for _, key := range keys {
		c := state[key]
		n := change(c)
		writes = appendCell(writes, []byte(key), c, n, l.base)
		e.changes[key] = n
		state.set(key, n)
	}
	after := state.counts()
	after.Add(record.Counts{Counters: -before.Counters, Values: -before.Values, Keys: -before.Keys})
	e.payload = append(record.AppendHeader(nil, record.Header{Base: l.base, Change: after}), writes...)
	l.base += 2
	l.append(e)
}

func (c cells) apply(e logged) {
	if e.clear {
		clear(c)
	}
	for key, cell := range e.changes {
		c.set(key, cell)
	}
}

// appendCell encodes what makes one cell of another.
func appendCell(b, key []byte, from, to record.Cell, base uint64) []byte {
	switch {
	case to.Has&record.HasCounter == 0 && from.Has&record.HasCounter != 0:
		b = record.AppendDelete(b, record.DeleteCounter, key)
	case to.CounterVer > base:
		b = record.AppendPutCounter(b, key, to.Sum, to.CounterExpiry, to.CounterVer-base)
	}
	switch {
	case to.Has&record.HasValue == 0 && from.Has&record.HasValue != 0:
		b = record.AppendDelete(b, record.DeleteValue, key)
	case to.ValueVer > base:
		b = record.AppendPutValue(b, key, to.Value, to.ValueExpiry, to.ValueVer-base)
	}
	return b
}

// apply applies the next entry of the log, as the owner that proposed it or
// as anybody else.
func (l *life) apply() {
	if l.index == l.last {
		return
	}
	l.index++
	e := l.log[l.index]
	if e.conf {
		l.table.SkipTo(l.index, e.term, 1, nil, []byte("conf"))
	} else if err := l.table.Apply(l.index, e.term, e.payload, e.touched); err != nil {
		l.t.Fatal(err)
	}
	l.applied.apply(e)
	l.sums[l.index] = chainAfter(l.sums[l.index-1], l.index, &e)
	l.ceiling, l.version = max(l.ceiling, e.ceiling), max(l.version, e.highest)
	if e.clear && l.capture != nil {
		if !l.capture.Aborted() {
			l.t.Fatal("a cleared table's checkpoint is not aborted")
		}
		l.capture = nil
	}
	e.touched = nil
	l.log[l.index] = e
}

// own makes the table the owner's, which has applied everything.
func (l *life) own() {
	for l.index < l.last {
		l.apply()
	}
	l.owner, l.newest = true, maps.Clone(l.applied)
	l.term++
	l.base = record.FirstVersion(l.term, l.version)
}

// lose drops what is in flight; some of the log is cut off, the rest comes.
func (l *life) lose() {
	for i := l.index + 1; i <= l.last; i++ {
		e := l.log[i]
		for _, touch := range e.touched {
			l.table.DropFlight(touch.Ref)
		}
		e.touched = nil
		l.log[i] = e
	}
	l.last = l.index + l.rng.Uint64N(l.last-l.index+1)
	l.owner = false
	l.term++
	l.base = l.term << 40
}

// clear puts a ClearShard into the log; the owner does so only with nothing
// in flight, and evaluates nothing before it is applied.
func (l *life) clear() {
	if l.owner && l.index < l.last {
		return
	}
	l.append(logged{term: l.term, clear: true, payload: record.AppendClear(record.AppendHeader(nil, record.Header{Base: l.base}))})
	if l.owner {
		l.apply()
		l.newest = cells{}
	}
}

// loaded delivers a load. What the disk says was read at some time between.
func (l *life) loaded() {
	if len(l.loads) == 0 {
		return
	}
	i := l.rng.IntN(len(l.loads))
	load := &l.loads[i]
	if load.cell.Has == 255 || l.rng.IntN(2) == 0 {
		load.cell = l.disk.load(l.t, load.key)
		if l.rng.IntN(2) == 0 {
			return // read, but not told yet
		}
	}
	l.table.Loaded(load.ref, load.generation, &load.cell)
	l.loads = slices.Delete(l.loads, i, i+1)
}

// checkpoint takes the next step of one.
func (l *life) checkpoint() {
	n := 1 + l.rng.IntN(20)
	if l.rng.IntN(4) == 0 {
		n = 10_000
	}
	switch c := l.capture; {
	case c == nil:
		l.capture, l.whole, l.written = l.table.BeginCheckpoint(), false, false
		l.asOf = disk{cells: maps.Clone(l.applied), applied: l.wantApplied()}
	case !l.whole:
		l.whole = l.table.CaptureSlice(c, n)
	case !l.written:
		l.disk.write(l.t, c.Checkpoint)
		l.written = true
		l.checkDisk()
	case l.table.FinishSlice(c, n):
		l.capture = nil
		l.steps["checkpoint finished"]++
		for i := range l.log {
			if i <= l.disk.applied.Index {
				delete(l.log, i)
			}
		}
	}
}

func (l *life) wantApplied() record.Applied {
	a := appliedAt(l.index)
	a.Term, a.Ceiling, a.Version, a.Counts = l.table.Applied().Term, l.ceiling, l.version, l.applied.counts()
	a.Chain = record.Chain{Base: 1, Sum: l.sums[l.index]}
	return a
}

// checkDisk compares the disk after a checkpoint with the state at its begin.
func (l *life) checkDisk() {
	if !reflect.DeepEqual(l.disk.applied, l.asOf.applied) {
		l.t.Fatalf("the checkpoint is of %+v, want %+v", l.disk.applied, l.asOf.applied)
	}
	for key, want := range l.asOf.cells {
		if got := l.disk.cells[key]; !sameCell(got, want) {
			l.t.Fatalf("after a checkpoint the disk has %.20q: %+v, want %+v", key, got, want)
		}
	}
	for key, got := range l.disk.cells {
		if _, ok := l.asOf.cells[key]; !ok {
			l.t.Fatalf("after a checkpoint the disk still has %.20q: %+v", key, got)
		}
		if l.disk.db != nil {
			if c := l.disk.load(l.t, key); !sameCell(c, got) {
				l.t.Fatalf("the DB has %.20q: %+v, want %+v", key, c, got)
			}
		}
	}
}

// restart makes a new table from the disk and replays the log.
func (l *life) restart() {
	if l.capture != nil {
		l.table.Abandon(l.capture)
		if !l.capture.Aborted() {
			l.t.Fatal("an abandoned checkpoint is not aborted")
		}
		l.capture = nil
	}
	l.table.Release()
	if used := l.budget.UsedBytes(); used != 0 {
		l.t.Fatalf("a released table keeps %d bytes of the budget", used)
	}
	l.table, l.loads, l.owner = NewTable(l.disk.applied, l.budget), nil, false
	l.applied, l.index = maps.Clone(l.disk.cells), l.disk.applied.Index
	l.ceiling, l.version = l.disk.applied.Ceiling, l.disk.applied.Version
	for i := range l.log {
		e := l.log[i]
		e.touched = nil
		l.log[i] = e
	}
	l.term++
	l.base = max(l.base, l.term<<40)
}
