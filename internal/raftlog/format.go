package raftlog

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"

	"go.etcd.io/raft/v3/raftpb"
)

// The format on disk, byte by byte. Numbers in keys are big endian, so that
// keys sort by shard, then class, then index; a uvarint is the variable-length
// unsigned integer of encoding/binary.
//
//	format    key    00 00 00 00 00 00 00 00 'f'          (shard 0 is nobody's)
//	          value  version (1 byte)
//
//	entry     key    shard (8 bytes) 'e' index (8 bytes)
//	          value  version (1 byte) | type (1 byte) | term (uvarint) | data (the rest)
//
//	hard      key    shard (8 bytes) 'h'
//	state     value  version (1 byte) | term (uvarint) | vote (uvarint) | commit (uvarint)
//
//	install   key    shard (8 bytes) 'i'
//	          value  version (1 byte) | index (uvarint) | term (uvarint)
//
//	start     key    shard (8 bytes) 't'
//	          value  version (1 byte) | index (uvarint) | term (uvarint)
//
// type is raft's: 0 normal, 1 ConfChange, 2 ConfChangeV2. Data is opaque; none
// and an empty one are the same. The start record says where the log begins:
// its first entry is index+1, and term is that of the entry at index, which is
// gone. Without a start record the log begins after (0, 0). The entries of a
// shard are contiguous from there on. The install record says that a snapshot
// that ends with this entry is being installed, so that the state may end there
// although the log does not know the entry; it goes when the log begins there.
const (
	// formatVersion is the version of the whole log and the first byte of
	// every record.
	formatVersion = 1

	classEntry     = 'e'
	classFormat    = 'f'
	classHardState = 'h'
	classInstall   = 'i'
	classStart     = 't'
	// classEnd is above every class: the end of a shard's keys.
	classEnd = 0xff

	recordKeyBytes = 9
	entryKeyBytes  = 17
)

// errRecord is wrapped by the errors of the decoders.
var errRecord = errors.New("malformed record")

// hardState is raftpb.HardState without its pointers. The zero value is none.
type hardState struct{ term, vote, commit uint64 }

// position is an entry's place in the log.
type position struct{ index, term uint64 }

func appendRecordKey(b []byte, shard uint64, class byte) []byte {
	return append(binary.BigEndian.AppendUint64(b, shard), class)
}

func appendEntryKey(b []byte, shard, index uint64) []byte {
	return binary.BigEndian.AppendUint64(appendRecordKey(b, shard, classEntry), index)
}

// parseEntryKey is the index in an entry's key.
func parseEntryKey(key []byte) (index uint64, err error) {
	if len(key) != entryKeyBytes || key[8] != classEntry {
		return 0, fmt.Errorf("%w: entry key of %d bytes", errRecord, len(key))
	}
	return binary.BigEndian.Uint64(key[recordKeyBytes:]), nil
}

func appendEntryValue(b []byte, e *raftpb.Entry) []byte {
	b = append(b, formatVersion, byte(e.GetType()))
	b = binary.AppendUvarint(b, e.GetTerm())
	return append(b, e.GetData()...)
}

// entryValueBytes is how long appendEntryValue's result is.
func entryValueBytes(e *raftpb.Entry) int { return 2 + uvarintBytes(e.GetTerm()) + len(e.GetData()) }

// parseEntryValue reads an entry's value; data aliases b and is nil when empty.
func parseEntryValue(b []byte) (typ raftpb.EntryType, term uint64, data []byte, err error) {
	if len(b) < 3 || b[0] != formatVersion {
		return 0, 0, nil, fmt.Errorf("%w: entry of %d bytes, version %d", errRecord, len(b), version(b))
	}
	typ = raftpb.EntryType(b[1])
	if typ > raftpb.EntryConfChangeV2 {
		return 0, 0, nil, fmt.Errorf("%w: entry type %d", errRecord, typ)
	}
	term, n := uvarint(b[2:])
	if n == 0 {
		return 0, 0, nil, fmt.Errorf("%w: entry term", errRecord)
	}
	if data = b[2+n:]; len(data) == 0 {
		data = nil
	}
	return typ, term, data, nil
}

func appendHardState(b []byte, hs hardState) []byte {
	b = append(b, formatVersion)
	b = binary.AppendUvarint(b, hs.term)
	b = binary.AppendUvarint(b, hs.vote)
	return binary.AppendUvarint(b, hs.commit)
}

func hardStateBytes(hs hardState) int {
	return 1 + uvarintBytes(hs.term) + uvarintBytes(hs.vote) + uvarintBytes(hs.commit)
}

func parseHardState(b []byte) (hardState, error) {
	var v [3]uint64
	if err := parseUvarints(b, v[:]); err != nil {
		return hardState{}, fmt.Errorf("hard state: %w", err)
	}
	return hardState{term: v[0], vote: v[1], commit: v[2]}, nil
}

func appendPosition(b []byte, p position) []byte {
	b = append(b, formatVersion)
	b = binary.AppendUvarint(b, p.index)
	return binary.AppendUvarint(b, p.term)
}

func positionBytes(p position) int { return 1 + uvarintBytes(p.index) + uvarintBytes(p.term) }

func parsePosition(what string, b []byte) (position, error) {
	var v [2]uint64
	if err := parseUvarints(b, v[:]); err != nil {
		return position{}, fmt.Errorf("%s: %w", what, err)
	}
	return position{index: v[0], term: v[1]}, nil
}

// parseUvarints reads a version byte and exactly len(out) uvarints.
func parseUvarints(b []byte, out []uint64) error {
	if version(b) != formatVersion {
		return fmt.Errorf("%w: %d bytes, version %d", errRecord, len(b), version(b))
	}
	rest := b[1:]
	for i := range out {
		v, n := uvarint(rest)
		if n == 0 {
			return fmt.Errorf("%w: %d bytes end early", errRecord, len(b))
		}
		out[i], rest = v, rest[n:]
	}
	if len(rest) != 0 {
		return fmt.Errorf("%w: %d bytes too many", errRecord, len(rest))
	}
	return nil
}

// version is a record's first byte; 0, which is no version, if there is none.
func version(b []byte) byte {
	if len(b) == 0 {
		return 0
	}
	return b[0]
}

// uvarint reads a uvarint in its shortest form, so that every value has one
// encoding; n is 0 if there is none.
func uvarint(b []byte) (v uint64, n int) {
	v, n = binary.Uvarint(b)
	if n <= 0 || n != uvarintBytes(v) {
		return 0, 0
	}
	return v, n
}

func uvarintBytes(v uint64) int { return (bits.Len64(v|1) + 6) / 7 }

// protoBytes is proto.Size of the entry, without its reflection: raft measures
// the entries it asks for in these bytes. Every field is optional and has a tag
// of one byte.
func protoBytes(e *raftpb.Entry) uint64 {
	n := 0
	if e.Type != nil {
		n += 1 + uvarintBytes(uint64(e.GetType()))
	}
	if e.Term != nil {
		n += 1 + uvarintBytes(e.GetTerm())
	}
	if e.Index != nil {
		n += 1 + uvarintBytes(e.GetIndex())
	}
	if e.Data != nil {
		n += 1 + uvarintBytes(uint64(len(e.Data))) + len(e.Data)
	}
	return uint64(n)
}
