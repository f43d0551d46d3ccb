package record

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"testing"

	"github.com/felix-go/felix"
)

func counters() []Cell {
	return []Cell{
		{Has: HasCounter},
		{Has: HasCounter, Sum: 1, CounterVer: 1},
		{Has: HasCounter, Sum: math.MaxInt64, CounterExpiry: math.MaxInt64, CounterVer: math.MaxUint64},
		{Has: HasCounter, Sum: math.MinInt64, CounterExpiry: felix.MaxExpiryMillis, CounterVer: 3<<40 | 77},
	}
}

func values() []Cell {
	return []Cell{
		{Has: HasValue, Value: []byte{}},
		{Has: HasValue, Value: []byte("\x00\xff\x01bytes"), ValueVer: 1},
		{Has: HasValue, Value: []byte("v"), ValueExpiry: math.MaxInt64, ValueVer: math.MaxUint64},
		{Has: HasValue, Value: bytes.Repeat([]byte{1}, 300), ValueExpiry: 1, ValueVer: 1<<60 | 5},
	}
}

func applieds() []Applied {
	return []Applied{
		{},
		{Index: 7, Term: 2, Ceiling: 3, Counts: Counts{1, 2, 3, 0}, ConfState: []byte("conf")},
		{Index: math.MaxUint64, Term: math.MaxUint64, Ceiling: math.MaxInt64,
			Counts: Counts{math.MaxInt64, math.MinInt64, -1, 7}, ConfState: []byte{1, 0xff, 0}},
		{Index: 9, Term: 2, Chain: Chain{Base: 9}},
		{Index: math.MaxUint64, Chain: Chain{Base: 300, Sum: math.MaxUint64 - 1}, ConfState: []byte{0}},
		{Index: 8, Chain: Chain{Base: 3, Sum: 4}, Counts: Counts{0, 0, 0, 5}, ConfState: []byte{1}},
	}
}

// corrupt fails unless err says that a record is corrupt.
func corrupt(t *testing.T, what string, err error) {
	t.Helper()
	if !errors.Is(err, ErrCorrupt) {
		t.Errorf("%s: error %v, want that it is corrupt", what, err)
	}
}

func TestCounterRoundTrip(t *testing.T) {
	for _, want := range counters() {
		b := AppendCounter(nil, &want)
		got := Cell{Has: HasValue, Value: []byte("stays"), ValueVer: 4}
		if err := ReadCounter(b, &got); err != nil {
			t.Errorf("%+v: %v", want, err)
		}
		if string(got.Value) != "stays" || got.ValueVer != 4 {
			t.Errorf("reading a counter changed the value: %+v", got)
		}
		if got.DropValue(); !reflect.DeepEqual(got, want) {
			t.Errorf("got %+v, want %+v", got, want)
		}
		for n := range b {
			var c Cell
			corrupt(t, "a cut counter", ReadCounter(b[:n:n], &c))
			if c.Exists() {
				t.Errorf("a counter cut to %d bytes left %+v", n, c)
			}
		}
		corrupt(t, "a counter with a byte too many", ReadCounter(append(b, 0), &Cell{}))
		b[0]++
		corrupt(t, "a counter of another format", ReadCounter(b[:len(b):len(b)], &Cell{}))
	}
}

func TestValueRoundTrip(t *testing.T) {
	for _, want := range values() {
		b := AppendValue(nil, &want)
		got := Cell{Has: HasCounter, Sum: 9, CounterVer: 4}
		if err := ReadValue(b, &got); err != nil {
			t.Errorf("%+v: %v", want, err)
		}
		if got.Sum != 9 || got.CounterVer != 4 {
			t.Errorf("reading a value changed the counter: %+v", got)
		}
		if got.DropCounter(); !reflect.DeepEqual(got, want) {
			t.Errorf("got %+v, want %+v", got, want)
		}
		head := len(b) - len(want.Value)
		for n := range head {
			corrupt(t, "a cut value", ReadValue(b[:n:n], &Cell{}))
		}
		clear(b) // the cell has its own copy
		if !bytes.Equal(got.Value, want.Value) {
			t.Error("the value read shares memory with the record")
		}
		corrupt(t, "a value of another format", ReadValue(b, &Cell{}))
	}
}

func TestAppliedRoundTrip(t *testing.T) {
	for _, want := range applieds() {
		b := AppendApplied(nil, want)
		got, err := ReadApplied(b)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("got %+v, error %v, want %+v", got, err, want)
		}
		for n := range len(b) - len(want.ConfState) {
			_, err := ReadApplied(b[:n:n])
			corrupt(t, "a cut applied record", err)
		}
		clear(b)
		if !bytes.Equal(got.ConfState, want.ConfState) {
			t.Error("the ConfState read shares memory with the record")
		}
		_, err = ReadApplied(b)
		corrupt(t, "an applied record of another format", err)
	}
}

// TestAppliedOfOlderBuilds: a record of format 1 is read, and says that nothing is
// known of the chain; without one, it is what is written.
func TestAppliedOfOlderBuilds(t *testing.T) {
	old := []byte{1, 7, 2, 3, 4, 2, 4, 6, 'c'}
	want := Applied{Index: 7, Term: 2, Ceiling: 3, Version: 4, Counts: Counts{1, 2, 3, 0}, ConfState: []byte("c")}
	if got, err := ReadApplied(old); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, error %v, want %+v", got, err, want)
	}
	if b := AppendApplied(nil, want); !bytes.Equal(b, old) {
		t.Errorf("written as %v, want %v", b, old)
	}
}

// TestImpossibleChains: a chain that does not end with the state means damage.
func TestImpossibleChains(t *testing.T) {
	for _, c := range []Chain{{Base: 8}, {Base: 7, Sum: 1}} {
		_, err := ReadApplied(AppendApplied(nil, Applied{Index: 7, Chain: c}))
		corrupt(t, fmt.Sprintf("a chain %+v of entry 7", c), err)
	}
	b := AppendApplied(nil, Applied{Index: 7, Chain: Chain{Base: 1, Sum: 1}})
	b[8] = 0 // Base
	_, err := ReadApplied(b)
	corrupt(t, "a chain without a base", err)
}

func replicas() []Replica {
	return []Replica{{RaftID: 1}, {RaftID: 300, Consistency: byte(felix.Leader)}, {RaftID: math.MaxUint64}}
}

func TestReplicaRoundTrip(t *testing.T) {
	for _, want := range replicas() {
		b := AppendReplica(nil, want)
		if got, err := ReadReplica(b); err != nil || got != want {
			t.Errorf("got %+v, error %v, want %+v", got, err, want)
		}
		for n := range b {
			_, err := ReadReplica(b[:n:n])
			corrupt(t, "a cut replica record", err)
		}
		_, err := ReadReplica(append(b, 0))
		corrupt(t, "a replica record with a byte too many", err)
		b[0]++
		_, err = ReadReplica(b)
		corrupt(t, "a replica record of another format", err)
	}
	for name, r := range map[string]Replica{"raft id 0": {}, "an unknown consistency": {RaftID: 1, Consistency: 2}} {
		_, err := ReadReplica(AppendReplica(nil, r))
		corrupt(t, name, err)
	}
}

// TestNegativeTimes: a time is never below 0, so one that is means damage.
func TestNegativeTimes(t *testing.T) {
	counter, value := Cell{CounterExpiry: -1}, Cell{ValueExpiry: math.MinInt64}
	corrupt(t, "a counter", ReadCounter(AppendCounter(nil, &counter), &Cell{}))
	corrupt(t, "a value", ReadValue(AppendValue(nil, &value), &Cell{}))
	_, err := ReadApplied(AppendApplied(nil, Applied{Ceiling: -1}))
	corrupt(t, "an applied record", err)
}

func TestExpiryKeyRoundTrip(t *testing.T) {
	for _, expiry := range []int64{1, 255, 256, math.MaxInt64} {
		for _, class := range []Class{CounterClass, ValueClass} {
			for _, key := range []string{"k", "\x00", "\xff\xffx", string(bytes.Repeat([]byte("k"), felix.MaxKeyBytes))} {
				b := AppendExpiryKey(nil, 9, expiry, class, []byte(key))
				gotExpiry, gotClass, gotKey, err := ParseExpiryKey(b)
				if err != nil || gotExpiry != expiry || gotClass != class || string(gotKey) != key {
					t.Errorf("got %d %q %q, error %v, want %d %q %q", gotExpiry, gotClass, gotKey, err, expiry, class, key)
				}
				for n := range StateKeyPrefixBytes + 10 {
					_, _, _, err := ParseExpiryKey(b[:n:n])
					corrupt(t, "a cut expiry key", err)
				}
			}
		}
	}
	for name, b := range map[string][]byte{
		"another class":   AppendStateKey(nil, 9, CounterClass, []byte("12345678ckey")),
		"time 0":          AppendExpiryKey(nil, 9, 0, CounterClass, []byte("k")),
		"a negative time": AppendExpiryKey(nil, 9, -5, CounterClass, []byte("k")),
		"no record class": AppendExpiryKey(nil, 9, 5, AppliedClass, []byte("k")),
		"a short id":      AppendExpiryKey(nil, 9, 5, IDClass, []byte("k")),
		"no key":          AppendExpiryKey(nil, 9, 5, CounterClass, nil),
	} {
		_, _, _, err := ParseExpiryKey(b)
		corrupt(t, name, err)
	}
}

// TestKeyOrder: the order of the store's keys is by shard, class, then key; of
// the expiry index by time. The store's scans depend on it.
func TestKeyOrder(t *testing.T) {
	var ordered [][]byte
	for _, shard := range []uint64{0, 1, 255, 256, math.MaxUint64 - 1} {
		ordered = append(ordered,
			AppendShard(nil, shard),
			AppendStateKey(nil, shard, AppliedClass, nil),
			AppendStateKey(nil, shard, CounterClass, []byte("\x00")),
			AppendStateKey(nil, shard, CounterClass, []byte("a")),
			AppendStateKey(nil, shard, CounterClass, []byte("a\x00")),
			AppendStateKey(nil, shard, CounterClass, []byte("b")),
			AppendStateKey(nil, shard, CounterClass, []byte("\xff\xff")),
			AppendStateKey(nil, shard, IDClass, make([]byte, IDKeyBytes)),
			AppendStateKey(nil, shard, InstallingClass, nil),
			AppendStateKey(nil, shard, ReplicaClass, nil),
			AppendStateKey(nil, shard, ValueClass, []byte("\x00")),
			AppendStateKey(nil, shard, ValueClass, []byte("\xff\xff")),
			AppendExpiryKey(nil, shard, 1, CounterClass, []byte("z")),
			AppendExpiryKey(nil, shard, 1, ValueClass, []byte("a")),
			AppendExpiryKey(nil, shard, 255, CounterClass, []byte("a")),
			AppendExpiryKey(nil, shard, 256, CounterClass, []byte("a")),
			AppendExpiryKey(nil, shard, math.MaxInt64, ValueClass, []byte("a")),
		)
	}
	if !slices.IsSortedFunc(ordered, bytes.Compare) {
		t.Error("the keys are not in order")
	}
	if n := len(AppendStateKey(nil, 5, CounterClass, nil)); n != StateKeyPrefixBytes {
		t.Errorf("the prefix has %d bytes, StateKeyPrefixBytes says %d", n, StateKeyPrefixBytes)
	}
	if got := AppendStateKey([]byte("x"), 1, CounterClass, []byte("k")); string(got) != "x\x00\x00\x00\x00\x00\x00\x00\x01ck" {
		t.Errorf("a state key is %q", got)
	}
}

func TestCellDrops(t *testing.T) {
	full := Cell{Has: HasCounter | HasValue, Sum: 1, CounterExpiry: 2, CounterVer: 3, Value: []byte("v"), ValueExpiry: 4, ValueVer: 5}
	c := full
	c.DropCounter()
	if want := (Cell{Has: HasValue, Value: []byte("v"), ValueExpiry: 4, ValueVer: 5}); !reflect.DeepEqual(c, want) || !c.Exists() {
		t.Errorf("without its counter: %+v", c)
	}
	c.DropValue()
	if !reflect.DeepEqual(c, Cell{}) || c.Exists() {
		t.Errorf("without anything: %+v", c)
	}
	c = full
	c.DropValue()
	if want := (Cell{Has: HasCounter, Sum: 1, CounterExpiry: 2, CounterVer: 3}); !reflect.DeepEqual(c, want) {
		t.Errorf("without its value: %+v", c)
	}
}

func TestCountChange(t *testing.T) {
	size := func(h Has) Counts {
		switch h {
		case HasCounter:
			return Counts{1, 0, 1, 0}
		case HasValue:
			return Counts{0, 1, 1, 0}
		case HasCounter | HasValue:
			return Counts{1, 1, 1, 0}
		}
		return Counts{}
	}
	for before := range Has(4) {
		for after := range Has(4) {
			got := size(before)
			got.Add(CountChange(before, after))
			if got != size(after) {
				t.Errorf("from %b to %b: counts become %+v, want %+v", before, after, got, size(after))
			}
		}
	}
}

func TestFirstVersionIsAboveAllBefore(t *testing.T) {
	for _, test := range []struct{ term, highest, want uint64 }{
		{1, 0, 1 << 40},
		{7, 3<<40 + 9, 7 << 40},
		// The owner of term 3 changed a key more than 2^40 times.
		{4, 4<<40 + 9, 5 << 40},
		// As before, and what may be lost runs over the boundary.
		{4, 4<<40 - 1, 5 << 40},
		{4, 4<<40 - 1<<33, 4 << 40},
	} {
		if got := FirstVersion(test.term, test.highest); got != test.want {
			t.Errorf("term %d after version %d begins at %d, want %d", test.term, test.highest, got, test.want)
		}
	}
}

func FuzzReadCounter(f *testing.F) {
	for _, c := range counters() {
		f.Add(AppendCounter(nil, &c))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var c, again Cell
		if err := ReadCounter(b, &c); err != nil {
			corrupt(t, "a counter", err)
		} else if err := ReadCounter(AppendCounter(nil, &c), &again); err != nil || !reflect.DeepEqual(c, again) || c.CounterExpiry < 0 {
			t.Errorf("%+v became %+v, error %v", c, again, err)
		}
	})
}

func FuzzReadValue(f *testing.F) {
	for _, c := range values() {
		f.Add(AppendValue(nil, &c))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var c, again Cell
		if err := ReadValue(b, &c); err != nil {
			corrupt(t, "a value", err)
		} else if err := ReadValue(AppendValue(nil, &c), &again); err != nil || !reflect.DeepEqual(c, again) || c.ValueExpiry < 0 {
			t.Errorf("%+v became %+v, error %v", c, again, err)
		}
	})
}

func FuzzReadApplied(f *testing.F) {
	for _, a := range applieds() {
		f.Add(AppendApplied(nil, a))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		a, err := ReadApplied(b)
		if err != nil {
			corrupt(t, "an applied record", err)
			return
		}
		if again, err := ReadApplied(AppendApplied(nil, a)); err != nil || !reflect.DeepEqual(a, again) || a.Ceiling < 0 {
			t.Errorf("%+v became %+v, error %v", a, again, err)
		}
	})
}

func FuzzReadReplica(f *testing.F) {
	for _, r := range replicas() {
		f.Add(AppendReplica(nil, r))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := ReadReplica(b)
		if err != nil {
			corrupt(t, "a replica record", err)
			return
		}
		if again, err := ReadReplica(AppendReplica(nil, r)); err != nil || again != r || r.RaftID == 0 {
			t.Errorf("%+v became %+v, error %v", r, again, err)
		}
	})
}

func FuzzParseExpiryKey(f *testing.F) {
	f.Add(AppendExpiryKey(nil, 1, 5, CounterClass, []byte("k")))
	f.Add(AppendExpiryKey(nil, math.MaxUint64, math.MaxInt64, ValueClass, []byte("\x00\xff")))
	f.Add([]byte("12345678x"))
	f.Fuzz(func(t *testing.T, b []byte) {
		expiry, class, key, err := ParseExpiryKey(b)
		if err != nil {
			corrupt(t, "an expiry key", err)
			return
		}
		if again := AppendExpiryKey(nil, be(b), expiry, class, key); !bytes.Equal(again, b) {
			t.Errorf("%x written again is %x", b, again)
		}
	})
}

// be is the shard id that a key begins with.
func be(b []byte) (shard uint64) {
	for _, c := range b[:8] {
		shard = shard<<8 | uint64(c)
	}
	return shard
}
