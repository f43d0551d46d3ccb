package store

import (
	"bytes"
	"hash/maphash"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/felix-go/felix/internal/record"
)

// overlay looks at a page as a scan does: disk and overlay together must be
// the applied state.
func (l *life) overlay() {
	prefix := []byte([]string{"", "", "k", "key1", "cold/", "cold/9", "zz"}[l.rng.IntN(7)])
	var after []byte
	if l.rng.IntN(2) == 0 {
		after = []byte(l.keys[l.rng.IntN(len(l.keys))])
	}
	limit := 1 + l.rng.IntN(30)
	items, cut, unloaded := l.table.Overlay(prefix, after, limit)
	for _, ref := range unloaded {
		key := string(l.table.Key(ref))
		if !slices.ContainsFunc(l.loads, func(m modelLoad) bool { return m.ref == ref && m.generation == l.table.Generation() }) {
			l.table.MarkLoading(ref, []byte(key))
			l.loads = append(l.loads, modelLoad{key, ref, l.table.Generation(), record.Cell{Has: 255}})
		}
	}
	if len(unloaded) > 0 {
		l.steps["overlay unloaded"]++
		return
	}
	if len(items) > limit || cut && len(items) < limit {
		l.t.Fatalf("%d items, cut %v, with limit %d", len(items), cut, limit)
	}
	merged := maps.Clone(l.disk.cells)
	if l.table.DiskVoid() {
		merged = cells{}
	}
	bound := "" // the page ends here
	for i, item := range items {
		key := string(item.Key)
		if !strings.HasPrefix(key, string(prefix)) || after != nil && key <= string(after) || i > 0 && key <= bound {
			l.t.Fatalf("item %.20q does not belong after %.20q in a page of %.20q after %.20q", key, bound, prefix, after)
		}
		merged.set(key, item.Cell)
		bound = key
	}
	for _, key := range l.keys {
		if !strings.HasPrefix(key, string(prefix)) || after != nil && key <= string(after) || cut && key > bound {
			continue
		}
		if got, want := merged[key], l.applied[key]; !sameCell(got, want) {
			l.t.Fatalf("a scan shows %.20q as %+v, want %+v (void %v, cut %v)", key, got, want, l.table.DiskVoid(), cut)
		}
	}
}

// check compares everything that the table knows with the model, and its
// books with what is there.
func (l *life) check() {
	table := l.table
	if a := table.Applied(); a.Index != l.index || a.Counts != l.applied.counts() || a.Version != l.version || a.Ceiling != l.ceiling {
		l.t.Fatalf("applied is %+v; want index %d, counts %+v, version %d, ceiling %d", a, l.index, l.applied.counts(), l.version, l.ceiling)
	}
	if table.Counts() != l.applied.counts() {
		l.t.Fatalf("counts are %+v, want %+v", table.Counts(), l.applied.counts())
	}
	books := l.audit()
	complete := table.complete()
	for _, key := range l.keys {
		want := l.applied[key]
		ref := table.lookup(maphash.Bytes(table.seed, []byte(key)), []byte(key), 0)
		if ref == 0 {
			if complete && want.Exists() {
				l.t.Fatalf("the table says it is complete, but lacks %.20q: %+v", key, want)
			}
			continue
		}
		books.keys--
		l.checkEntry(key, table.at(ref), want, complete)
	}
	if books.keys != 0 {
		l.t.Fatalf("the table has %d entries besides those of all keys", books.keys)
	}
}

func (l *life) checkEntry(key string, e *entry, want record.Cell, complete bool) {
	var got record.Cell
	l.table.readApplied(e, &got)
	if complete && got.Has != want.Has {
		l.t.Fatalf("the table says it is complete, but has %+v of %.20q: %+v", got, key, want)
	}
	if got.Has&^want.Has != 0 {
		l.t.Fatalf("key %.20q: applied is %+v, want %+v", key, got, want)
	}
	if e.flags&flagKnownCounter == 0 {
		want.DropCounter()
	}
	if e.flags&flagKnownValue == 0 {
		want.DropValue()
	}
	if !sameCell(got, want) {
		l.t.Fatalf("key %.20q: applied is %+v, want %+v", key, got, want)
	}
}

// books is what an audit counts.
type books struct {
	keys, values, long, flights int
	bytes                       int64
	held                        record.Counts
}

// audit counts everything that the table counts, from the entries alone.
func (l *life) audit() (b books) {
	t := l.table
	current := flagDirty0 << t.parity
	dirty, dirtyBytes := 0, int64(0)
	if c := t.checkpoint; c != nil {
		dirtyBytes, b.bytes = c.bytes, c.bytes
	}
	for number, c := range t.chunks {
		if c == nil {
			continue
		}
		live := 0
		for i := range c.entries {
			e := &c.entries[i]
			if e.flags&flagLive == 0 {
				continue
			}
			live++
			b.entry(t, e)
			if e.flags&current != 0 {
				dirty++
			}
			if e.flags&flagDirtyAny != 0 {
				dirtyBytes += t.cost(e)
			}
			if t.checkpoint == nil && e.flags&flagDirtyAny&^current != 0 {
				l.t.Fatalf("key %.20q is dirty for a checkpoint that is over", t.keyOf(e))
			}
		}
		if live != c.live {
			l.t.Fatalf("chunk %d counts %d entries, has %d", number, c.live, live)
		}
		b.keys += live
	}
	if b.bytes != t.bytes || b.bytes != l.budget.UsedBytes() {
		l.t.Fatalf("the table is charged %d bytes, the budget %d, want %d", t.bytes, l.budget.UsedBytes(), b.bytes)
	}
	if dirtyBytes != t.dirtyBytes || l.budget.DirtyBytes() != t.dirtyTold {
		l.t.Fatalf("%d bytes are dirty for the table, the budget was told %d, knows %d; want %d", t.dirtyBytes, t.dirtyTold, l.budget.DirtyBytes(), dirtyBytes)
	}
	if b.held.Counters != t.held.Counters || b.held.Values != t.held.Values {
		l.t.Fatalf("the table counts %+v records that it holds, has %+v", t.held, b.held)
	}
	if dirty != t.DirtyEntries() {
		l.t.Fatalf("%d entries are dirty, %d are listed", dirty, t.DirtyEntries())
	}
	if b.values != len(t.values)-1-len(t.freeValues) || b.long != len(t.longKeys)-1-len(t.freeLong) || b.flights != len(t.flights)-1-len(t.freeFlight) {
		l.t.Fatalf("slabs: %+v; values %d-%d, long keys %d-%d, flights %d-%d", b, len(t.values), len(t.freeValues),
			len(t.longKeys), len(t.freeLong), len(t.flights), len(t.freeFlight))
	}
	for _, slot := range t.freeValues {
		if t.values[slot].data != nil {
			l.t.Fatalf("a free slot keeps a value of %d bytes", len(t.values[slot].data))
		}
	}
	for _, slot := range t.freeLong {
		if t.longKeys[slot] != nil {
			l.t.Fatalf("a free slot keeps a key of %d bytes", len(t.longKeys[slot]))
		}
	}
	return b
}

func (b *books) entry(t *Table, e *entry) {
	b.bytes += entryBytes
	if e.flags&flagLongKey != 0 {
		b.long++
		b.bytes += int64(e.keyLen) + 24
	}
	if e.value != 0 {
		b.values++
		b.bytes += valueBytes + int64(len(t.values[e.value].data))
	}
	if e.flight != 0 {
		b.flights++
	}
	b.held.Add(record.CountChange(0, e.flags.has()))
}

// step does one thing at random.
func (l *life) step() {
	actions := []struct {
		name   string
		weight int
		do     func()
	}{
		{"propose", 30, func() {
			if l.owner && l.last-l.index < 6 {
				l.propose()
			}
		}},
		{"follow", 20, func() {
			if !l.owner && l.last-l.index < 6 {
				l.follow()
			}
		}},
		{"apply", 40, l.apply},
		{"conf", 1, func() {
			l.append(logged{term: l.term, conf: true})
		}},
		{"own", 3, func() {
			if !l.owner {
				l.own()
			}
		}},
		{"lose", 2, func() {
			if l.owner {
				l.lose()
			}
		}},
		{"look", 20, func() { l.find(l.key()) }},
		{"loaded", 60, l.loaded},
		{"trim", 20, func() { l.table.Trim(1 + l.rng.IntN(300)) }},
		{"trim all", 2, func() { l.table.Trim(5000) }},
		{"checkpoint", 50, l.checkpoint},
		{"overlay", 10, l.overlay},
		{"bulk", l.cold / 5, l.bulk},
		{"clear", 1, l.clear},
		{"restart", 1, l.restart},
	}
	total := 0
	for _, a := range actions {
		total += a.weight
	}
	n := l.rng.IntN(total)
	for _, a := range actions {
		if n -= a.weight; n < 0 {
			a.do()
			l.steps[a.name]++
			return
		}
	}
}

// empty deletes everything, and the table must give all memory back.
func (l *life) empty() {
	if l.owner {
		l.lose()
	}
	for l.index < l.last {
		l.apply()
	}
	e := logged{term: l.term, changes: cells{}}
	var writes []byte
	for key, c := range l.applied {
		writes = appendCell(writes, []byte(key), c, record.Cell{}, l.base)
		e.changes[key] = record.Cell{}
	}
	n := l.applied.counts()
	e.payload = append(record.AppendHeader(nil, record.Header{Base: l.base, Change: record.Counts{
		Counters: -n.Counters, Values: -n.Values, Keys: -n.Keys}}), writes...)
	l.append(e)
	l.apply()
	for len(l.loads) > 0 {
		l.loaded()
	}
	for range 2 { // one may be under way
		for first := true; first || l.capture != nil; first = false {
			l.checkpoint()
		}
	}
	l.budget.MaxBytes = 0
	l.table.Trim(3 * chunkSize * (len(l.table.chunks) + 1))
	l.check()
	if l.table.Bytes() != 0 || l.budget.UsedBytes() != 0 || l.table.DirtyEntries() != 0 {
		l.t.Errorf("an empty table holds %d bytes and %d dirty entries", l.table.Bytes(), l.table.DirtyEntries())
	}
	if len(l.disk.cells) != 0 {
		l.t.Errorf("the disk keeps %d keys", len(l.disk.cells))
	}
	kept := 0
	for _, c := range l.table.chunks {
		if c != nil {
			kept++
		}
	}
	if kept > 3 { // the first, the one in use, the one after it
		l.t.Errorf("an empty table keeps %d chunks", kept)
	}
}

func runLife(t *testing.T, seed uint64, steps int, db *DB) {
	t.Logf("seed %d", seed)
	l := newLife(t, seed, db)
	defer func() {
		if v := recover(); v != nil {
			t.Errorf("seed %d", seed)
			panic(v)
		}
	}()
	for i := range steps {
		l.step()
		if i%8 == 0 || i > steps-50 {
			l.check()
		}
	}
	l.empty()
	t.Logf("budget %d, %v", l.budget.MaxBytes, l.steps)
}

// TestTableLife compares tables with their model through random lives.
func TestTableLife(t *testing.T) {
	for range 12 {
		seed := rand.Uint64()
		t.Run("", func(t *testing.T) { runLife(t, seed, 3000, nil) })
	}
}

// TestTableLifeOnDisk does so with a real DB.
func TestTableLifeOnDisk(t *testing.T) {
	for range 2 {
		seed := rand.Uint64()
		t.Run("", func(t *testing.T) {
			db := openMem(t, vfs.NewMem(), Options{})
			defer closeDB(t, db)
			runLife(t, seed, 2000, db)
		})
	}
}

// TestTableKeepsNothingOfItsCallers checks that the table copies what it keeps.
func TestTableKeepsNothingOfItsCallers(t *testing.T) {
	table := NewTable(appliedAt(1), &Budget{MaxBytes: 1 << 20})
	for _, n := range []int{5, 100} {
		key := bytes.Repeat([]byte("k"), n)
		payload := record.AppendHeader(nil, record.Header{Change: record.Counts{Values: 1, Keys: 1}})
		payload = record.AppendPutValue(payload, key, []byte("value"), 0, 1)
		if err := table.Apply(table.Applied().Index+1, 1, payload, nil); err != nil {
			t.Fatal(err)
		}
		clear(payload)
		ref, presence := table.Find(key)
		var c record.Cell
		table.Newest(ref, &c)
		if presence != Present || string(c.Value) != "value" {
			t.Errorf("after the payload was overwritten the key of %d bytes is %v, %+v", n, presence, c)
		}
		clear(key)
		if got := table.Key(ref); !bytes.Equal(got, bytes.Repeat([]byte("k"), n)) {
			t.Errorf("the key became %q", got)
		}
	}
}
