package raftlog

import (
	"bytes"
	"encoding/hex"
	"math"
	"testing"

	"go.etcd.io/raft/v3/raftpb"
)

// TestFormatBytes pins the bytes on disk: a change here needs a new version.
func TestFormatBytes(t *testing.T) {
	conf := &raftpb.Entry{Index: new(uint64(300)), Term: new(uint64(300)), Type: raftpb.EntryConfChangeV2.Enum(), Data: []byte("ab")}
	for what, c := range map[string]struct {
		got  []byte
		want string
	}{
		"format key":       {appendRecordKey(nil, 0, classFormat), "000000000000000066"},
		"entry key":        {appendEntryKey(nil, 258, 772), "0000000000000102650000000000000304"},
		"hard state key":   {appendRecordKey(nil, 258, classHardState), "000000000000010268"},
		"install key":      {appendRecordKey(nil, 258, classInstall), "000000000000010269"},
		"start key":        {appendRecordKey(nil, 258, classStart), "000000000000010274"},
		"entry":            {appendEntryValue(nil, entry(1, 7, "x")), "01000778"},
		"empty entry":      {appendEntryValue(nil, entry(1, 7, "")), "010007"},
		"conf change":      {appendEntryValue(nil, conf), "0102ac026162"},
		"hard state":       {appendHardState(nil, hardState{term: 300, vote: 2, commit: 5}), "01ac020205"},
		"start":            {appendPosition(nil, position{index: 5, term: 300}), "0105ac02"},
		"zero hard state":  {appendHardState(nil, hardState{}), "01000000"},
		"largest position": {appendPosition(nil, position{index: math.MaxUint64}), "01ffffffffffffffffff0100"},
	} {
		if got := hex.EncodeToString(c.got); got != c.want {
			t.Errorf("%s: %s; want %s", what, got, c.want)
		}
	}
}

func TestFormatSizes(t *testing.T) {
	for _, v := range []uint64{0, 1, 127, 128, 1 << 14, 1<<63 - 1, math.MaxUint64} {
		e := entry(1, v, "data")
		if got := len(appendEntryValue(nil, e)); got != entryValueBytes(e) {
			t.Errorf("an entry of term %d has %d bytes, not %d", v, got, entryValueBytes(e))
		}
		hs := hardState{term: v, vote: v, commit: v}
		if got := len(appendHardState(nil, hs)); got != hardStateBytes(hs) {
			t.Errorf("the hard state of %d has %d bytes, not %d", v, got, hardStateBytes(hs))
		}
		p := position{index: v, term: v}
		if got := len(appendPosition(nil, p)); got != positionBytes(p) {
			t.Errorf("the position %d has %d bytes, not %d", v, got, positionBytes(p))
		}
	}
}

// FuzzRecords gives the decoders any bytes. What they accept must encode to the
// same bytes again.
func FuzzRecords(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{1, 0, 7})
	f.Add([]byte{1, 2, 0xac, 2, 'a', 'b'})
	f.Add([]byte{1, 3, 7})
	f.Add([]byte{2, 0, 7})
	f.Add([]byte{1, 0, 0x80, 0})
	f.Add([]byte{1, 0xac, 2, 2, 5})
	f.Add([]byte{1, 5, 0xac, 2})
	f.Add(appendEntryKey(nil, 258, 772))
	f.Fuzz(func(t *testing.T, b []byte) {
		if typ, term, data, err := parseEntryValue(b); err == nil {
			e := &raftpb.Entry{Term: &term, Type: &typ, Data: data}
			same(t, b, appendEntryValue(nil, e))
		}
		if hs, err := parseHardState(b); err == nil {
			same(t, b, appendHardState(nil, hs))
		}
		if p, err := parsePosition("position", b); err == nil {
			same(t, b, appendPosition(nil, p))
		}
		if index, err := parseEntryKey(b); err == nil {
			shard, err := shardOfKey(b)
			if err != nil {
				t.Fatal(err)
			}
			same(t, b, appendEntryKey(nil, shard, index))
		}
	})
}

func same(t *testing.T, read, written []byte) {
	t.Helper()
	if !bytes.Equal(read, written) {
		t.Fatalf("%x was read, and is written as %x", read, written)
	}
}
