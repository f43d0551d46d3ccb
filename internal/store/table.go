package store

import (
	"bytes"
	"hash/maphash"
	"sync/atomic"

	"github.com/felix-go/felix/internal/invariant"
	"github.com/felix-go/felix/internal/record"
)

// Ref names an entry of a Table. 0 names none. It stays valid until the entry
// is evicted or removed (only by Trim and FinishCheckpoint, never while the
// entry is dirty, in flight, loading or pinned), the shard is cleared or a snapshot of it
// is installed.
type Ref uint32

// Budget bounds the memory of all tables of a broker.
type Budget struct {
	MaxBytes int64
	used     atomic.Int64
	dirty    atomic.Int64
}

// UsedBytes is what the tables hold, roughly.
func (b *Budget) UsedBytes() int64 { return b.used.Load() }

// Presence is what Find knows about a key.
type Presence uint8

const (
	// Present means that the Ref holds all there is of the key (which may be
	// that there is nothing).
	Present Presence = iota
	// Absent means that there is no such key, and no entry for it.
	Absent
	// Unloaded means that the DB may know more; call MarkLoading, then Load
	// from the DB, then Loaded.
	Unloaded
	// Loading means that MarkLoading was called and Loaded was not yet.
	Loading
)

// flags of an entry.
type flags uint16

const (
	// flagHas* say which applied records there are.
	flagHasCounter flags = 1 << iota
	flagHasValue
	// flagKnown* say that flagHas* is the truth, not just what was not loaded.
	flagKnownCounter
	flagKnownValue
	// flagDisk* say that the DB may hold the record.
	flagDiskCounter
	flagDiskValue
	// flagDirty0 and flagDirty1 say that the applied records differ from the
	// DB's, one bit for each parity of the checkpoint epoch.
	flagDirty0
	flagDirty1
	// flagCaptured says that the running checkpoint already has the entry.
	flagCaptured
	// flagUsed is set by Find and taken by the clock of Trim.
	flagUsed
	flagLoading
	flagLongKey
	flagLive   // the slot holds an entry
	flagPinned // Table.pins has the entry
	flagID     // the record of an idempotency id: see table_ids.go

	flagHasAll   = flagHasCounter | flagHasValue
	flagKnownAll = flagKnownCounter | flagKnownValue
	flagDirtyAny = flagDirty0 | flagDirty1
)

func (f flags) has() record.Has    { return record.Has(f & flagHasAll) }
func (f flags) onDisk() record.Has { return record.Has(f >> 4 & 3) }

const inlineKeyBytes = 28

// entry is one key's slot: 64 bytes, one cache line, no pointers.
type entry struct {
	sum     int64  // the counter, applied
	expiry  int64  // its expiry
	version uint64 // its version
	value   uint32 // slot in Table.values of the applied value; 0 is none
	flight  uint32 // slot in Table.flights of the newest in-flight cell; 0 is none
	keyLen  uint16
	flags   flags
	// key is the key itself, or with flagLongKey the slot in Table.longKeys
	// in its first four bytes.
	key [inlineKeyBytes]byte
}

// valueSlot is an applied value.
type valueSlot struct {
	data    []byte
	expiry  int64
	version uint64
}

// flight is a cell evaluated and proposed, but not applied.
type flight struct {
	cell  record.Cell
	index uint64 // of the log entry that carries it
	last  uint64 // the version of the newest change
	// before is what the cell had before the entry at index, so that the
	// entry knows what it deletes.
	before record.Has
}

const (
	chunkBits = 10
	chunkSize = 1 << chunkBits
	// entryBytes is what an entry costs: itself and its share of the index.
	entryBytes = 64 + 12
	valueBytes = 40 + 16
	// longKeyBytes is what a key outside of its entry costs beside its bytes.
	longKeyBytes = 24
)

type chunk struct {
	entries [chunkSize]entry
	live    int
}

// Table holds the live records of one shard. It is used by one goroutine.
type Table struct {
	seed   maphash.Seed
	index  index
	chunks []*chunk // nil where a chunk was given back
	// free are slots to use again; entries of chunks that were given back are
	// filtered when popped.
	free       []Ref
	freeChunks []uint32
	next       Ref // the slot after the last ever used in the newest chunk

	values     []valueSlot
	freeValues []uint32
	longKeys   [][]byte
	freeLong   []uint32
	flights    []flight
	freeFlight []uint32

	applied record.Applied
	chain   chain
	// held counts the applied records that are in the table. Where it equals
	// applied.Counts, the table is complete: what it lacks does not exist.
	held record.Counts

	dirty      []Ref // entries with the dirty bit of the current parity
	parity     uint8
	checkpoint *Capture
	captureAt  uint64   // see CaptureAt
	agreed     *Capture // begun there, and not taken yet
	// clearDisk says that the DB's records are from before a ClearShard, so
	// the next checkpoint deletes them.
	clearDisk  bool
	generation uint64 // counts ClearShards and snapshots: a Ref from before is void

	pins     map[Ref]int // how often an entry is pinned; nil is none
	hand     Ref
	inserted int // entries since the last TrimStep
	// warmed is written, so that the compiler keeps the reads that Warm is for.
	warmed uint64
	bytes  int64
	// dirtyBytes is the part of bytes that only a checkpoint can free;
	// dirtyTold is what the budget knows of it.
	dirtyBytes, dirtyTold int64
	budget                *Budget
}

// NewTable makes the table of a shard whose DB state is applied.
func NewTable(applied record.Applied, budget *Budget) *Table {
	t := &Table{applied: applied, budget: budget, seed: maphash.MakeSeed()}
	t.beginChain()
	t.reset()
	return t
}

// reset empties the table, whatever it holds.
func (t *Table) reset() {
	t.charge(-t.bytes)
	t.index = index{}
	t.chunks, t.free, t.freeChunks, t.next = nil, nil, nil, chunkSize // 0: make a chunk first
	t.values, t.freeValues = make([]valueSlot, 1), nil
	t.longKeys, t.freeLong = make([][]byte, 1), nil
	t.flights, t.freeFlight = make([]flight, 1), nil
	t.held = record.Counts{}
	t.dirty, t.dirtyBytes = nil, 0
	t.hand, t.pins = 0, nil
}

func (t *Table) charge(n int64) {
	t.bytes += n
	t.budget.used.Add(n)
}

// Applied is the log prefix that the applied records are the result of.
func (t *Table) Applied() record.Applied { return t.applied }

// Generation changes when a ClearShard or a snapshot made every Ref void.
func (t *Table) Generation() uint64 { return t.generation }

// Bytes is roughly what the table holds in memory.
func (t *Table) Bytes() int64 { return t.bytes }

// DirtyEntries is how many entries the next checkpoint would write.
func (t *Table) DirtyEntries() int { return len(t.dirty) }

// Release gives the table's memory back to the budget; the table is dead.
func (t *Table) Release() {
	t.charge(-t.bytes)
	t.dirtyBytes = 0
	t.tellDirty()
}

func (t *Table) complete() bool {
	return t.held.Counters == t.applied.Counts.Counters && t.held.Values == t.applied.Counts.Values
}

// completeFor is complete, of the kind of entries that id says.
func (t *Table) completeFor(id flags) bool {
	if id != 0 {
		return t.held.IDs == t.applied.Counts.IDs
	}
	return t.complete()
}

func (t *Table) at(ref Ref) *entry {
	return &t.chunks[ref>>chunkBits].entries[ref&(chunkSize-1)]
}

func (t *Table) keyOf(e *entry) []byte {
	if e.flags&flagLongKey != 0 {
		return t.longKeys[e.longSlot()]
	}
	return e.key[:e.keyLen]
}

func (e *entry) longSlot() uint32 {
	return uint32(e.key[0]) | uint32(e.key[1])<<8 | uint32(e.key[2])<<16 | uint32(e.key[3])<<24
}

// Key is the entry's key; it is valid as long as the Ref.
func (t *Table) Key(ref Ref) []byte { return t.keyOf(t.at(ref)) }

// lookup finds the entry of a key, or, where id is flagID, of an idempotency
// id; or 0.
func (t *Table) lookup(hash uint64, key []byte, id flags) Ref {
	s := t.index.sub(hash)
	if len(s.slots) == 0 {
		return 0
	}
	mask := uint64(len(s.slots) - 1)
	want := hash & 0xffffffff
	for i := want & mask; ; i = (i + 1) & mask {
		slot := s.slots[i]
		if slot == 0 {
			return 0
		}
		if slot>>32 == want {
			ref := Ref(slot)
			if e := t.at(ref); e.flags&flagID == id && bytes.Equal(t.keyOf(e), key) {
				return ref
			}
		}
	}
}

// Find looks a key up. With Unloaded there may be an entry (some of the key is
// known) or none; MarkLoading makes one.
func (t *Table) Find(key []byte) (Ref, Presence) { return t.FindHashed(t.Hash(key), key) }

// FindHashed is Find of a key whose Hash is known.
func (t *Table) FindHashed(hash uint64, key []byte) (Ref, Presence) {
	return t.find(hash, key, 0)
}

func (t *Table) find(hash uint64, key []byte, id flags) (Ref, Presence) {
	ref := t.lookup(hash, key, id)
	if ref == 0 {
		if t.completeFor(id) {
			return 0, Absent
		}
		return 0, Unloaded
	}
	e := t.at(ref)
	e.flags |= flagUsed
	if e.flags&flagKnownAll == flagKnownAll {
		return ref, Present
	}
	if t.completeFor(id) {
		e.flags |= flagKnownAll
		return ref, Present
	}
	if e.flags&flagLoading != 0 {
		return ref, Loading
	}
	return ref, Unloaded
}

// MarkLoading notes that the key is being read from the DB; ref is what Find
// answered, possibly 0. Until Loaded, the entry stays.
func (t *Table) MarkLoading(ref Ref, key []byte) Ref {
	if ref == 0 {
		ref = t.insert(key, 0)
	}
	t.at(ref).flags |= flagLoading
	return ref
}

// Loaded hands in what the DB holds for an entry that was marked. What the
// table learned meanwhile is newer and stays. generation is what Generation
// was at MarkLoading; after a ClearShard or a snapshot it does nothing.
func (t *Table) Loaded(ref Ref, generation uint64, c *record.Cell) {
	if generation != t.generation {
		return
	}
	e := t.at(ref)
	invariant.Check(e.flags&flagLoading != 0, "a record was loaded that nobody asked for")
	e.flags &^= flagLoading
	t.inserted++ // its value comes only now: there must be room for it
	if e.flags&flagKnownCounter == 0 && c.Has&record.HasCounter != 0 {
		e.sum, e.expiry, e.version = c.Sum, c.CounterExpiry, c.CounterVer
		e.flags |= flagHasCounter | flagDiskCounter
		t.held.Counters++
	}
	if e.flags&flagKnownValue == 0 && c.Has&record.HasValue != 0 {
		t.setValue(e, c.Value, c.ValueExpiry, c.ValueVer)
		e.flags |= flagHasValue | flagDiskValue
		t.holdValues(e, 1)
	}
	e.flags |= flagKnownAll
}

// insert makes an entry of which nothing is known; the caller knows there is
// none for the key. id is 0, or flagID.
func (t *Table) insert(key []byte, id flags) Ref {
	ref := t.allocate()
	c := t.chunks[ref>>chunkBits]
	c.live++
	t.inserted++
	e := &c.entries[ref&(chunkSize-1)]
	*e = entry{keyLen: uint16(len(key)), flags: flagLive | flagUsed | id}
	if id != 0 {
		e.flags |= flagKnownCounter // an id has none
	}
	if len(key) <= inlineKeyBytes {
		copy(e.key[:], key)
	} else {
		slot := take(&t.freeLong, &t.longKeys)
		t.longKeys[slot] = bytes.Clone(key)
		e.key[0], e.key[1], e.key[2], e.key[3] = byte(slot), byte(slot>>8), byte(slot>>16), byte(slot>>24)
		e.flags |= flagLongKey
	}
	t.index.add(maphash.Bytes(t.seed, key), ref)
	t.charge(t.cost(e))
	return ref
}

// allocate finds a slot that holds no entry.
func (t *Table) allocate() Ref {
	for n := len(t.free); n > 0; n = len(t.free) {
		ref := t.free[n-1]
		t.free = t.free[:n-1]
		// The chunk may have been given back since, and even made anew: then
		// next may have handed out the slot.
		if c := t.chunks[ref>>chunkBits]; c != nil && c.entries[ref&(chunkSize-1)].flags&flagLive == 0 {
			return ref
		}
	}
	for {
		if t.next&(chunkSize-1) == 0 {
			t.newChunk()
		}
		ref := t.next
		t.next++
		if t.at(ref).flags&flagLive == 0 {
			return ref
		}
	}
}

func (t *Table) newChunk() {
	if n := len(t.freeChunks); n > 0 {
		number := t.freeChunks[n-1]
		t.freeChunks = t.freeChunks[:n-1]
		t.chunks[number] = new(chunk)
		t.next = Ref(number) << chunkBits
	} else {
		t.next = Ref(len(t.chunks)) << chunkBits
		t.chunks = append(t.chunks, new(chunk))
	}
	if t.next == 0 {
		t.next = 1 // Ref 0 names no entry
	}
}

// remove forgets an entry: nothing else may hold its Ref.
func (t *Table) remove(ref Ref) {
	e := t.at(ref)
	invariant.Check(e.flags&(flagDirtyAny|flagLoading|flagPinned) == 0 && e.flight == 0, "an entry in use was removed")
	key := t.keyOf(e)
	t.index.remove(maphash.Bytes(t.seed, key), ref)
	t.setHas(e, 0)
	cost := t.cost(e)
	if e.flags&flagLongKey != 0 {
		slot := e.longSlot()
		t.longKeys[slot] = nil
		t.freeLong = append(t.freeLong, slot)
	}
	t.charge(-cost)
	*e = entry{}
	number := uint32(ref >> chunkBits)
	c := t.chunks[number]
	c.live--
	if c.live == 0 && number != uint32(t.next>>chunkBits) && number != 0 {
		t.chunks[number] = nil
		t.freeChunks = append(t.freeChunks, number)
		return
	}
	t.free = append(t.free, ref)
}

// setHas changes which applied records the entry has, and counts. Only
// removal is done here: what is added has its fields set by the caller.
func (t *Table) setHas(e *entry, has flags) {
	if e.flags&flagHasCounter != has&flagHasCounter {
		t.held.Counters += sign(has & flagHasCounter)
	}
	if e.flags&flagHasValue != has&flagHasValue {
		t.holdValues(e, sign(has&flagHasValue))
	}
	if has&flagHasCounter == 0 {
		e.sum, e.expiry, e.version = 0, 0, 0
	}
	if has&flagHasValue == 0 && e.value != 0 {
		t.chargeValue(e, -valueBytes-int64(len(t.values[e.value].data)))
		t.values[e.value] = valueSlot{}
		t.freeValues = append(t.freeValues, e.value)
		e.value = 0
	}
	e.flags = e.flags&^flagHasAll | has
}

func sign(f flags) int64 {
	if f != 0 {
		return 1
	}
	return -1
}

func (t *Table) setValue(e *entry, data []byte, expiry int64, version uint64) {
	if e.value == 0 {
		e.value = take(&t.freeValues, &t.values)
		t.chargeValue(e, valueBytes)
	}
	v := &t.values[e.value]
	t.chargeValue(e, int64(len(data))-int64(len(v.data)))
	*v = valueSlot{data: data, expiry: expiry, version: version}
}

// chargeValue charges a change of the entry's value.
func (t *Table) chargeValue(e *entry, n int64) {
	t.charge(n)
	if e.flags&flagDirtyAny != 0 {
		t.dirtyBytes += n
	}
}

// take finds a free slot of a slab; slot 0 is never given.
func take[T any](free *[]uint32, slab *[]T) uint32 {
	if n := len(*free); n > 0 {
		slot := (*free)[n-1]
		*free = (*free)[:n-1]
		return slot
	}
	var zero T
	*slab = append(*slab, zero)
	return uint32(len(*slab) - 1)
}

// readApplied puts the applied records into c.
func (t *Table) readApplied(e *entry, c *record.Cell) {
	*c = record.Cell{Has: e.flags.has(), Sum: e.sum, CounterExpiry: e.expiry, CounterVer: e.version}
	if e.value != 0 {
		v := &t.values[e.value]
		c.Value, c.ValueExpiry, c.ValueVer = v.data, v.expiry, v.version
	}
}

// Newest puts the newest cell into c: the one in flight if there is one, then
// with the log index that carries it and the version of its newest change;
// otherwise the applied one, with zeros.
func (t *Table) Newest(ref Ref, c *record.Cell) (inflight, last uint64) {
	if ref == 0 {
		*c = record.Cell{}
		return 0, 0
	}
	e := t.at(ref)
	if e.flight != 0 {
		f := &t.flights[e.flight]
		*c = f.cell
		return f.index, f.last
	}
	t.readApplied(e, c)
	return 0, 0
}

// Stage makes c, changed with this version, the newest cell of the key, in
// flight in the entry at index. ref is what Find answered for the key: 0 makes
// an entry. first says that it is the first change of the key in that entry.
func (t *Table) Stage(ref Ref, key []byte, c *record.Cell, index, version uint64) (_ Ref, first bool) {
	if ref == 0 {
		ref = t.insert(key, 0)
		t.at(ref).flags |= flagKnownAll
	}
	return t.stage(ref, c, index, version)
}

func (t *Table) stage(ref Ref, c *record.Cell, index, version uint64) (_ Ref, first bool) {
	e := t.at(ref)
	if e.flight == 0 {
		e.flight = take(&t.freeFlight, &t.flights)
		t.flights[e.flight] = flight{cell: *c, index: index, last: version, before: e.flags.has()}
		return ref, true
	}
	f := &t.flights[e.flight]
	if f.index != index {
		f.before, f.index, first = f.cell.Has, index, true
	}
	f.cell, f.last = *c, version
	return ref, first
}

// AppendWrites encodes what the entry whose versions begin at base, in whose
// course ref was staged, changes in the key; it answers how many writes that
// are.
func (t *Table) AppendWrites(b []byte, ref Ref, base uint64) ([]byte, int) {
	e := t.at(ref)
	f := &t.flights[e.flight]
	if e.flags&flagID != 0 {
		return t.appendIDWrite(b, e, f, base), 1
	}
	key, c, writes := t.keyOf(e), &f.cell, 0
	switch {
	case c.Has&record.HasCounter != 0:
		if c.CounterVer >= base {
			b = record.AppendPutCounter(b, key, c.Sum, c.CounterExpiry, c.CounterVer-base)
			writes++
		}
	case f.before&record.HasCounter != 0:
		b = record.AppendDelete(b, record.DeleteCounter, key)
		writes++
	}
	switch {
	case c.Has&record.HasValue != 0:
		if c.ValueVer >= base {
			b = record.AppendPutValue(b, key, c.Value, c.ValueExpiry, c.ValueVer-base)
			writes++
		}
	case f.before&record.HasValue != 0:
		b = record.AppendDelete(b, record.DeleteValue, key)
		writes++
	}
	if writes > 0 {
		return b, writes
	}
	// Made and removed again in the same entry. The cell in flight must still
	// have a write that ends its flight: deleting what is not there.
	kind := record.DeleteCounter
	if c.Has&record.HasCounter != 0 {
		kind = record.DeleteValue
		invariant.Check(c.Has&record.HasValue == 0, "a cell was staged that did not change")
	}
	return record.AppendDelete(b, kind, key), 1
}

// DropFlight forgets a cell in flight, as when leadership is lost: the entry
// may or may not come back through Apply.
func (t *Table) DropFlight(ref Ref) {
	e := t.at(ref)
	if e.flight == 0 {
		return // staged again by a later entry, and dropped with that
	}
	t.freeFlightOf(e)
}

func (t *Table) freeFlightOf(e *entry) {
	t.flights[e.flight] = flight{}
	t.freeFlight = append(t.freeFlight, e.flight)
	e.flight = 0
}
