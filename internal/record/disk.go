package record

import (
	"encoding/binary"
	"fmt"
)

// Class is the byte after the shard id in a key of the state store. It keeps
// the kinds of record apart and each in key order.
type Class byte

// The classes.
const (
	// AppliedClass is the shard's one Applied record; the key ends here.
	AppliedClass Class = 'a'
	// CounterClass is followed by the counter's key.
	CounterClass Class = 'c'
	// IDClass is followed by an IDKey.
	IDClass Class = 'd'
	// InstallingClass marks a shard whose snapshot is not whole; the key ends
	// here. Nothing writes it any more: a snapshot is installed in one step.
	InstallingClass Class = 'i'
	// ReplicaClass is the shard's one Replica record; the key ends here.
	ReplicaClass Class = 'r'
	// ValueClass is followed by the value's key.
	ValueClass Class = 'v'
	// ExpiryClass is the expiry index: expiry time (8 bytes, big endian),
	// class of the record, its key. It is a hint, written with the record and
	// checked against it when its time has come; the value is empty.
	ExpiryClass Class = 'x'
)

// shardFormat is the first byte of every record's value.
const shardFormat = 1

// AppendShard begins a key: every key of a shard lies between
// AppendShard(nil, id) and AppendShard(nil, id+1).
func AppendShard(b []byte, shard uint64) []byte { return binary.BigEndian.AppendUint64(b, shard) }

// AppendStateKey is the key of a record: shard id, class, key.
func AppendStateKey(b []byte, shard uint64, class Class, key []byte) []byte {
	b = append(AppendShard(b, shard), byte(class))
	return append(b, key...)
}

// StateKeyPrefixBytes is how many bytes AppendStateKey puts before the key.
const StateKeyPrefixBytes = 9

// AppendExpiryKey is the key of an expiry index record.
func AppendExpiryKey(b []byte, shard uint64, expiry int64, class Class, key []byte) []byte {
	b = append(AppendShard(b, shard), byte(ExpiryClass))
	b = binary.BigEndian.AppendUint64(b, uint64(expiry))
	b = append(b, byte(class))
	return append(b, key...)
}

// ParseExpiryKey reads what AppendExpiryKey wrote; key aliases b.
func ParseExpiryKey(b []byte) (expiry int64, class Class, key []byte, err error) {
	if len(b) < StateKeyPrefixBytes+10 || b[8] != byte(ExpiryClass) {
		return 0, 0, nil, fmt.Errorf("%w: expiry index key of %d bytes", ErrCorrupt, len(b))
	}
	b = b[StateKeyPrefixBytes:]
	expiry, class, key = int64(binary.BigEndian.Uint64(b)), Class(b[8]), b[9:]
	if expiry <= 0 || class != CounterClass && class != ValueClass && class != IDClass ||
		class == IDClass && len(key) != IDKeyBytes {
		return 0, 0, nil, fmt.Errorf("%w: expiry index key of time %d, class %q", ErrCorrupt, expiry, class)
	}
	return expiry, class, key, nil
}

// AppendCounter is the stored form of the cell's counter.
func AppendCounter(b []byte, c *Cell) []byte {
	b = append(b, shardFormat)
	b = binary.AppendVarint(b, c.Sum)
	b = binary.AppendUvarint(b, uint64(c.CounterExpiry))
	return binary.AppendUvarint(b, c.CounterVer)
}

// ReadCounter puts a stored counter into the cell.
func ReadCounter(b []byte, c *Cell) error {
	d := decoder{rest: b}
	format := d.byte()
	sum, expiry, version := d.varint(), int64(d.uvarint()), d.uvarint()
	if d.bad || format != shardFormat || len(d.rest) != 0 || expiry < 0 {
		return fmt.Errorf("%w: counter of %d bytes, format %d", ErrCorrupt, len(b), format)
	}
	c.Has |= HasCounter
	c.Sum, c.CounterExpiry, c.CounterVer = sum, expiry, version
	return nil
}

// AppendValue is the stored form of the cell's value.
func AppendValue(b []byte, c *Cell) []byte {
	b = append(b, shardFormat)
	b = binary.AppendUvarint(b, uint64(c.ValueExpiry))
	b = binary.AppendUvarint(b, c.ValueVer)
	return append(b, c.Value...)
}

// ReadValue puts a stored value into the cell. The cell gets its own copy.
func ReadValue(b []byte, c *Cell) error {
	value, err := readValue(b, c)
	if err != nil {
		return err
	}
	c.Value = append(make([]byte, 0, len(value)), value...)
	return nil
}

// ReadValueHead is ReadValue without the value's bytes.
func ReadValueHead(b []byte, c *Cell) error {
	_, err := readValue(b, c)
	return err
}

// readValue answers the bytes in b.
func readValue(b []byte, c *Cell) (value []byte, err error) {
	d := decoder{rest: b}
	format := d.byte()
	expiry, version := int64(d.uvarint()), d.uvarint()
	if d.bad || format != shardFormat || expiry < 0 {
		return nil, fmt.Errorf("%w: value of %d bytes, format %d", ErrCorrupt, len(b), format)
	}
	c.Has |= HasValue
	c.ValueExpiry, c.ValueVer = expiry, version
	return d.rest, nil
}

// Applied says which log prefix a shard's stored state is the result of.
type Applied struct {
	Index     uint64
	Term      uint64 // of the entry at Index
	Ceiling   int64  // the clock ceiling, Unix milliseconds
	Version   uint64 // the highest version of any record ever written
	Counts    Counts
	Chain     Chain  // of the entries up to Index
	ConfState []byte // raftpb.ConfState, protobuf
}

// What an Applied record has beside what the first builds wrote: its format is
// shardFormat and these. One that has none of it can be read by builds that know
// none of it.
const (
	appliedIDs     = 1 // how many ids there are
	appliedChained = 2 // a chain
	appliedAll     = appliedIDs | appliedChained
)

// AppendApplied is the stored form.
func AppendApplied(b []byte, a Applied) []byte {
	format := byte(shardFormat)
	if a.Counts.IDs != 0 {
		format += appliedIDs
	}
	if a.Chain.Base != 0 {
		format += appliedChained
	}
	b = append(b, format)
	b = binary.AppendUvarint(b, a.Index)
	b = binary.AppendUvarint(b, a.Term)
	b = binary.AppendUvarint(b, uint64(a.Ceiling))
	b = binary.AppendUvarint(b, a.Version)
	b = binary.AppendVarint(b, a.Counts.Counters)
	b = binary.AppendVarint(b, a.Counts.Values)
	b = binary.AppendVarint(b, a.Counts.Keys)
	if a.Counts.IDs != 0 {
		b = binary.AppendVarint(b, a.Counts.IDs)
	}
	if a.Chain.Base != 0 {
		b = appendChain(b, a.Chain)
	}
	return append(b, a.ConfState...)
}

// ReadApplied reads the stored form; ConfState is a copy.
func ReadApplied(b []byte) (Applied, error) {
	d := decoder{rest: b}
	format := d.byte()
	a := Applied{Index: d.uvarint(), Term: d.uvarint(), Ceiling: int64(d.uvarint()), Version: d.uvarint()}
	a.Counts = Counts{Counters: d.varint(), Values: d.varint(), Keys: d.varint()}
	has := format - shardFormat
	if has&appliedIDs != 0 {
		a.Counts.IDs = d.varint()
	}
	chained := has&appliedChained != 0
	if chained {
		a.Chain = d.chain()
	}
	if d.bad || has&^appliedAll != 0 || a.Ceiling < 0 {
		return Applied{}, fmt.Errorf("%w: applied state of %d bytes, format %d", ErrCorrupt, len(b), format)
	}
	if err := a.Chain.check(a.Index); chained && err != nil {
		return Applied{}, err
	}
	a.ConfState = append([]byte(nil), d.rest...)
	return a, nil
}

// Replica says which replica of a shard a broker has. It is on disk before the
// replica's Raft node exists, so that a broker opens what it has without asking
// anybody; one with a Replica and no Applied record has no state yet and waits
// for a snapshot.
type Replica struct {
	RaftID      uint64 // never 0
	Consistency byte   // the cache's: 0 is quorum, 1 is leader
}

// maxConsistency is the highest Consistency that this build knows.
const maxConsistency = 1

// AppendReplica is the stored form.
func AppendReplica(b []byte, r Replica) []byte {
	b = append(b, shardFormat)
	b = binary.AppendUvarint(b, r.RaftID)
	return append(b, r.Consistency)
}

// ReadReplica reads the stored form.
func ReadReplica(b []byte) (Replica, error) {
	d := decoder{rest: b}
	format := d.byte()
	r := Replica{RaftID: d.uvarint(), Consistency: d.byte()}
	if d.bad || format != shardFormat || len(d.rest) != 0 || r.RaftID == 0 || r.Consistency > maxConsistency {
		return Replica{}, fmt.Errorf("%w: replica record of %d bytes, format %d", ErrCorrupt, len(b), format)
	}
	return r, nil
}

// decoder reads primitives; after a failure bad is set and all reads are zero.
type decoder struct {
	rest []byte
	bad  bool
}

func (d *decoder) byte() byte {
	if len(d.rest) == 0 {
		d.bad = true
		return 0
	}
	c := d.rest[0]
	d.rest = d.rest[1:]
	return c
}

func (d *decoder) uvarint() uint64 {
	v, n := binary.Uvarint(d.rest)
	if n <= 0 {
		d.fail()
		return 0
	}
	d.rest = d.rest[n:]
	return v
}

func (d *decoder) varint() int64 {
	v, n := binary.Varint(d.rest)
	if n <= 0 {
		d.fail()
		return 0
	}
	d.rest = d.rest[n:]
	return v
}

// bytes reads a length and that many bytes.
func (d *decoder) bytes() []byte {
	n := d.uvarint()
	if n > uint64(len(d.rest)) {
		d.fail()
		return nil
	}
	b := d.rest[:n:n]
	d.rest = d.rest[n:]
	return b
}

func (d *decoder) fail() {
	d.bad = true
	d.rest = nil
}
