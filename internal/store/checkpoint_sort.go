package store

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/felix-go/felix/internal/record"
)

// sortedRecord stands for a record while they are brought into order: most
// comparisons are decided by head, without touching the key's memory.
type sortedRecord struct {
	head  uint64 // the eight bytes after what all keys have in common
	index uint32 // into Checkpoint.Records
}

// sortRecords is the key order of the records, and which kinds of record any
// of them has or had. It refuses empty and repeated keys.
func sortRecords(records []CheckpointRecord) (sorted []sortedRecord, kinds record.Has, err error) {
	if len(records) == 0 {
		return nil, 0, nil
	}
	common := len(commonPrefix(records))
	sorted = make([]sortedRecord, len(records))
	for i := range records {
		kinds |= records[i].Cell.Has | records[i].OnDisk
		sorted[i] = sortedRecord{head: head(records[i].Key[common:]), index: uint32(i)}
	}
	slices.SortFunc(sorted, func(a, b sortedRecord) int {
		if a.head != b.head {
			return cmpUint64(a.head, b.head)
		}
		return bytes.Compare(records[a.index].Key[common:], records[b.index].Key[common:])
	})
	if len(records[sorted[0].index].Key) == 0 {
		return nil, 0, fmt.Errorf("a record has an empty key")
	}
	for i := 1; i < len(sorted); i++ {
		a, b := sorted[i-1], sorted[i]
		if a.head == b.head && bytes.Equal(records[a.index].Key, records[b.index].Key) {
			return nil, 0, fmt.Errorf("key %q is given twice", records[a.index].Key)
		}
	}
	return sorted, kinds, nil
}

// keyOrder is records, and the order of their keys.
type keyOrder struct {
	records []CheckpointRecord
	order   []sortedRecord
}

func (k keyOrder) key(rank uint32) []byte { return k.records[k.order[rank].index].Key }

// sortIDs is the key order of records of ids.
func sortIDs(ids []CheckpointRecord) (keyOrder, error) {
	for i := range ids {
		if n := len(ids[i].Key); n != record.IDKeyBytes {
			return keyOrder{}, fmt.Errorf("an id has a key of %d bytes", n)
		}
	}
	order, _, err := sortRecords(ids)
	return keyOrder{ids, order}, err
}

func commonPrefix(records []CheckpointRecord) []byte {
	prefix := records[0].Key
	for i := 1; i < len(records) && len(prefix) > 0; i++ {
		key := records[i].Key
		if len(key) < len(prefix) {
			prefix = prefix[:len(key)]
		}
		for n := range prefix {
			if prefix[n] != key[n] {
				prefix = prefix[:n]
				break
			}
		}
	}
	return prefix
}

// head is the beginning of a key as a number that sorts alike; what is shorter
// is filled with zeros, so equal heads say nothing.
func head(key []byte) uint64 {
	if len(key) >= 8 {
		return binary.BigEndian.Uint64(key)
	}
	var b [8]byte
	copy(b[:], key)
	return binary.BigEndian.Uint64(b[:])
}

// hint is an expiry index record to write.
type hint struct {
	expiry int64
	rank   uint32 // of the record in key order
	class  record.Class
}

// sortHints brings hints into the order of their keys in the database.
func sortHints(hints []hint) {
	slices.SortFunc(hints, func(a, b hint) int {
		if a.expiry != b.expiry {
			return cmp.Compare(a.expiry, b.expiry)
		}
		if a.class != b.class {
			return cmp.Compare(a.class, b.class)
		}
		return cmp.Compare(a.rank, b.rank)
	})
}

func cmpUint64(a, b uint64) int {
	if a < b {
		return -1
	}
	if a > b {
		return 1
	}
	return 0
}
