package record

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// EntryFormat is the first byte of every non-empty entry payload, and
// entryFormatIDs of one that changes how many ids there are.
const (
	EntryFormat    = 1
	entryFormatIDs = 2
)

// WriteKind says what one write of an entry does. A process that meets a kind
// it does not know stops: going on would make its state differ.
type WriteKind uint8

// The write kinds.
const (
	// PutCounter replaces the key's counter.
	PutCounter WriteKind = iota + 1
	// PutValue replaces the key's value.
	PutValue
	// DeleteCounter removes the key's counter.
	DeleteCounter
	// DeleteValue removes the key's value.
	DeleteValue
	// ClearShard removes every record of the shard, and makes its counts zero.
	// It has no key and stands alone in its entry.
	ClearShard
	// PutID makes the record of an idempotency id; its key is an IDKey.
	PutID
	// DeleteID removes it.
	DeleteID
)

// Header precedes the writes of an entry.
type Header struct {
	// Ceiling raises the shard's clock ceiling to this time (Unix
	// milliseconds); 0 leaves it.
	Ceiling int64
	// Base is the version of a record that the entry writes with Step 0.
	Base uint64
	// Change is what the writes change in the counts. The owner knows it; a
	// follower, whose record may be on disk only, would have to read.
	Change Counts
}

// Write is one record write. Its slices alias the payload that it was read
// from.
type Write struct {
	Kind   WriteKind
	Key    []byte
	Sum    int64  // PutCounter
	Value  []byte // PutValue; PutID: an Outcome
	Expiry int64  // PutCounter, PutValue, PutID; Unix milliseconds, 0 means never
	// Step, above the header's Base, is the record's version: how often the
	// key had changed before in this entry. PutCounter, PutValue, PutID.
	Step uint64
}

// ErrCorrupt is wrapped by every error of this package's decoders.
var ErrCorrupt = errors.New("corrupt record")

// AppendHeader begins an entry payload.
func AppendHeader(b []byte, h Header) []byte {
	format := byte(EntryFormat)
	if h.Change.IDs != 0 {
		format = entryFormatIDs
	}
	b = append(b, format)
	b = binary.AppendUvarint(b, uint64(h.Ceiling))
	b = binary.AppendUvarint(b, h.Base)
	b = binary.AppendVarint(b, h.Change.Counters)
	b = binary.AppendVarint(b, h.Change.Values)
	b = binary.AppendVarint(b, h.Change.Keys)
	if format == entryFormatIDs {
		b = binary.AppendVarint(b, h.Change.IDs)
	}
	return b
}

// AppendPutCounter adds a PutCounter.
func AppendPutCounter(b, key []byte, sum, expiry int64, step uint64) []byte {
	b = appendKey(b, PutCounter, key)
	b = binary.AppendVarint(b, sum)
	b = binary.AppendUvarint(b, uint64(expiry))
	return binary.AppendUvarint(b, step)
}

// AppendPutValue adds a PutValue.
func AppendPutValue(b, key, value []byte, expiry int64, step uint64) []byte {
	return appendPut(b, PutValue, key, value, expiry, step)
}

// AppendPutID adds a PutID; outcome is what AppendOutcome made.
func AppendPutID(b, key, outcome []byte, expiry int64, step uint64) []byte {
	return appendPut(b, PutID, key, outcome, expiry, step)
}

func appendPut(b []byte, kind WriteKind, key, value []byte, expiry int64, step uint64) []byte {
	b = appendKey(b, kind, key)
	b = binary.AppendUvarint(b, uint64(len(value)))
	b = append(b, value...)
	b = binary.AppendUvarint(b, uint64(expiry))
	return binary.AppendUvarint(b, step)
}

// AppendDelete adds a DeleteCounter, DeleteValue or DeleteID.
func AppendDelete(b []byte, kind WriteKind, key []byte) []byte { return appendKey(b, kind, key) }

// AppendClear adds a ClearShard.
func AppendClear(b []byte) []byte { return append(b, byte(ClearShard)) }

func appendKey(b []byte, kind WriteKind, key []byte) []byte {
	b = append(b, byte(kind))
	b = binary.AppendUvarint(b, uint64(len(key)))
	return append(b, key...)
}

// EntryReader reads the payload of one entry.
type EntryReader struct {
	Header Header
	rest   []byte
}

// ReadEntry reads the header; the writes follow by Next. An empty payload (the
// first entry of a Raft term) has no writes.
func ReadEntry(payload []byte) (EntryReader, error) {
	var r EntryReader
	if len(payload) == 0 {
		return r, nil
	}
	format := payload[0]
	if format != EntryFormat && format != entryFormatIDs {
		return r, fmt.Errorf("%w: entry format %d, this build knows %d", ErrCorrupt, format, entryFormatIDs)
	}
	d := decoder{rest: payload[1:]}
	r.Header.Ceiling = int64(d.uvarint())
	r.Header.Base = d.uvarint()
	r.Header.Change.Counters = d.varint()
	r.Header.Change.Values = d.varint()
	r.Header.Change.Keys = d.varint()
	if format == entryFormatIDs {
		r.Header.Change.IDs = d.varint()
	}
	if d.bad || r.Header.Ceiling < 0 {
		return r, fmt.Errorf("%w: entry header", ErrCorrupt)
	}
	r.rest = d.rest
	return r, nil
}

// More says whether there is another write.
func (r *EntryReader) More() bool { return len(r.rest) > 0 }

// Next reads the next write into w.
func (r *EntryReader) Next(w *Write) error {
	d := decoder{rest: r.rest}
	*w = Write{Kind: WriteKind(d.byte())}
	if w.Kind != ClearShard {
		w.Key = d.bytes()
		if len(w.Key) == 0 {
			d.bad = true
		}
	}
	switch w.Kind {
	case PutCounter:
		w.Sum = d.varint()
		w.Expiry = int64(d.uvarint())
		w.Step = d.uvarint()
	case PutValue, PutID:
		w.Value = d.bytes()
		w.Expiry = int64(d.uvarint())
		w.Step = d.uvarint()
	case DeleteCounter, DeleteValue, ClearShard, DeleteID:
	default:
		return fmt.Errorf("%w: write kind %d is not known to this build", ErrCorrupt, w.Kind)
	}
	if isID := w.Kind == PutID || w.Kind == DeleteID; d.bad || w.Expiry < 0 || isID && len(w.Key) != IDKeyBytes {
		return fmt.Errorf("%w: write of kind %d", ErrCorrupt, w.Kind)
	}
	if w.Kind == PutID {
		if err := CheckOutcome(w.Value); err != nil {
			return err
		}
	}
	r.rest = d.rest
	return nil
}
