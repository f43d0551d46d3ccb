package record

import (
	"bytes"
	"errors"
	"math"
	"reflect"
	"strings"
	"testing"

	"github.com/felix-go/felix"
)

// entryOf encodes an entry.
func entryOf(h Header, writes ...Write) []byte {
	b := AppendHeader(nil, h)
	for _, w := range writes {
		switch w.Kind {
		case PutCounter:
			b = AppendPutCounter(b, w.Key, w.Sum, w.Expiry, w.Step)
		case PutValue:
			b = AppendPutValue(b, w.Key, w.Value, w.Expiry, w.Step)
		case PutID:
			b = AppendPutID(b, w.Key, w.Value, w.Expiry, w.Step)
		case ClearShard:
			b = AppendClear(b)
		default:
			b = AppendDelete(b, w.Kind, w.Key)
		}
	}
	return b
}

// decode reads a whole entry.
func decode(payload []byte) (Header, []Write, error) {
	r, err := ReadEntry(payload)
	if err != nil {
		return Header{}, nil, err
	}
	var writes []Write
	for r.More() {
		var w Write
		if err := r.Next(&w); err != nil {
			return r.Header, writes, err
		}
		writes = append(writes, w)
	}
	return r.Header, writes, nil
}

// entries are valid ones of every kind, with extreme numbers.
func entries() []struct {
	header Header
	writes []Write
} {
	long := []byte(strings.Repeat("k", felix.MaxKeyBytes))
	extreme := Header{Ceiling: math.MaxInt64, Base: math.MaxUint64, Change: Counts{math.MaxInt64, math.MinInt64, -1, 7}}
	return []struct {
		header Header
		writes []Write
	}{
		{Header{}, nil},
		{extreme, nil},
		{Header{Ceiling: 1}, []Write{{Kind: ClearShard}}},
		{Header{}, []Write{{Kind: PutCounter, Key: []byte("k")}}},
		{extreme, []Write{
			{Kind: PutCounter, Key: []byte{0}, Sum: math.MinInt64, Expiry: math.MaxInt64},
			{Kind: PutCounter, Key: long, Sum: math.MaxInt64, Expiry: 1, Step: math.MaxUint64},
			{Kind: PutValue, Key: []byte("v"), Value: []byte{}},
			{Kind: PutValue, Key: []byte("\xff\x00"), Value: []byte("\x01some\xffbytes"), Expiry: felix.MaxExpiryMillis, Step: 3},
			{Kind: DeleteCounter, Key: []byte("\x01\x01")},
			{Kind: PutID, Key: []byte("0123456789abcdef"), Value: someOutcome(), Expiry: 9, Step: 1},
			{Kind: DeleteID, Key: []byte("fedcba9876543210")},
			{Kind: DeleteValue, Key: []byte("x")},
			{Kind: PutCounter, Key: []byte("k"), Sum: -1},
		}},
	}
}

func TestEntryRoundTrip(t *testing.T) {
	for i, e := range entries() {
		header, writes, err := decode(entryOf(e.header, e.writes...))
		if err != nil || header != e.header || !reflect.DeepEqual(writes, e.writes) {
			t.Errorf("entry %d: %+v %+v, error %v, want %+v %+v", i, header, writes, err, e.header, e.writes)
		}
	}
}

// TestEmptyEntry: the first entry of a Raft term has no payload.
func TestEmptyEntry(t *testing.T) {
	for _, payload := range [][]byte{nil, {}} {
		header, writes, err := decode(payload)
		if err != nil || header != (Header{}) || len(writes) != 0 {
			t.Errorf("%+v %+v, error %v", header, writes, err)
		}
	}
}

// TestEntryTruncated: an entry that was cut is refused, or, where the cut falls
// between two writes, has the writes before it and nothing else.
func TestEntryTruncated(t *testing.T) {
	for i, e := range entries() {
		clean := map[int]int{} // length of the prefix with so many writes
		for n := range len(e.writes) + 1 {
			clean[len(entryOf(e.header, e.writes[:n]...))] = n
		}
		whole := entryOf(e.header, e.writes...)
		for length := 1; length < len(whole); length++ {
			if length > 100 && length < len(whole)-100 && length%997 != 0 {
				continue // inside the longest key
			}
			header, writes, err := decode(whole[:length:length])
			n, ok := clean[length]
			if !ok {
				if !errors.Is(err, ErrCorrupt) {
					t.Errorf("entry %d cut to %d bytes: %+v, error %v, want that it is corrupt", i, length, writes, err)
				}
			} else if err != nil || header != e.header || len(writes) != n {
				t.Errorf("entry %d cut to %d bytes: %+v, error %v, want its first %d writes", i, length, writes, err, n)
			}
		}
	}
}

func TestEntryRefused(t *testing.T) {
	header := AppendHeader(nil, Header{})
	with := func(b ...byte) []byte { return append(bytes.Clone(header), b...) }
	tooBig := bytes.Repeat([]byte{0xff}, 9)
	for name, payload := range map[string][]byte{
		"format 0":                   append([]byte{0}, header[1:]...),
		"a newer format":             append([]byte{entryFormatIDs + 1}, header[1:]...),
		"a negative ceiling":         append(append([]byte{EntryFormat}, append(tooBig, 1)...), 0, 0, 0, 0),
		"a ceiling of 65 bits":       append(append([]byte{EntryFormat}, append(tooBig, 2)...), 0, 0, 0, 0),
		"write kind 0":               with(0, 1, 'k'),
		"an unknown write kind":      with(byte(DeleteID)+1, 1, 'k'),
		"write kind 255":             with(255, 1, 'k'),
		"an empty key":               with(byte(DeleteCounter), 0),
		"an id of 15 bytes":          with(append([]byte{byte(DeleteID), 15}, "0123456789abcde"...)...),
		"an id without its outcome":  with(append([]byte{byte(PutID), 16}, "0123456789abcdef\x00\x01\x00"...)...),
		"a key longer than the rest": with(byte(DeleteCounter), 2, 'k'),
		"a key of 2^64-1 bytes":      append(with(byte(DeleteCounter)), append(bytes.Clone(tooBig), 1)...),
		"a value longer than that":   with(byte(PutValue), 1, 'k', 5, 'v', 0),
		"a negative expiry":          append(with(byte(PutCounter), 1, 'k', 0), append(bytes.Clone(tooBig), 1, 0)...),
	} {
		if _, writes, err := decode(payload); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: %+v, error %v, want that it is corrupt", name, writes, err)
		}
	}
	_, _, err := decode(with(byte(DeleteID)+1, 1, 'k'))
	if err == nil || !strings.Contains(err.Error(), "kind 8 is not known") {
		t.Errorf("an unknown kind: %v, want its number in the message", err)
	}
}

// TestNextAtTheEnd: reading past the end is an error, not a write.
func TestNextAtTheEnd(t *testing.T) {
	r, err := ReadEntry(AppendHeader(nil, Header{}))
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Next(&Write{}); r.More() || !errors.Is(err, ErrCorrupt) {
		t.Errorf("more %v, error %v", r.More(), err)
	}
}

// TestNextOverwrites: a Write that is used again keeps nothing.
func TestNextOverwrites(t *testing.T) {
	r, err := ReadEntry(entryOf(Header{}, Write{Kind: DeleteValue, Key: []byte("k")}))
	if err != nil {
		t.Fatal(err)
	}
	w := Write{Kind: PutValue, Key: []byte("old"), Sum: 5, Value: []byte("old"), Expiry: 9}
	if err := r.Next(&w); err != nil || !reflect.DeepEqual(w, Write{Kind: DeleteValue, Key: []byte("k")}) {
		t.Errorf("%+v, error %v", w, err)
	}
}

// FuzzEntry: no payload makes the reader panic or read outside of it, and what
// it accepts means the same when written again.
func FuzzEntry(f *testing.F) {
	for _, e := range entries() {
		if payload := entryOf(e.header, e.writes...); len(payload) < 1000 {
			f.Add(payload)
		}
	}
	f.Add([]byte{})
	f.Add([]byte{EntryFormat, 0, 0, 0, 0, 9, 1, 'k'})
	f.Fuzz(func(t *testing.T, payload []byte) {
		header, writes, err := decode(payload)
		if err != nil {
			if !errors.Is(err, ErrCorrupt) {
				t.Errorf("%v does not wrap ErrCorrupt", err)
			}
			return
		}
		header2, writes2, err := decode(entryOf(header, writes...))
		if err != nil || header2 != header || len(writes) != len(writes2) {
			t.Fatalf("written again: %+v %+v, error %v, was %+v %+v", header2, writes2, err, header, writes)
		}
		for i := range writes {
			if !reflect.DeepEqual(writes[i], writes2[i]) {
				t.Errorf("write %d is %+v, was %+v", i, writes2[i], writes[i])
			}
		}
	})
}
