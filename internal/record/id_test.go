package record

import (
	"encoding/hex"
	"errors"
	"math"
	"reflect"
	"testing"

	"github.com/felix-go/felix"
)

func someReplies() []felix.Reply {
	return []felix.Reply{
		{Replayed: true},
		{Replayed: true, Applied: true, Int: -5, Delta: 3, ExpiresAtMillis: 9, NowMillis: 8, Version: 1 << 40},
		{Replayed: true, Found: felix.ValueRecord, Int: math.MinInt64, Version: math.MaxUint64},
		{Replayed: true, Aborted: true},
		{Err: felix.ErrNotInteger},
		{Err: felix.ErrOverflow},
		{Err: felix.ErrInvalidExpire},
	}
}

func someOutcome() []byte {
	return AppendOutcome(nil, new(Digest).Fingerprint([]felix.Op{{Kind: felix.Add}}), someReplies())
}

func TestOutcomeRoundTrip(t *testing.T) {
	want := someReplies()
	b := someOutcome()
	got := make([]felix.Reply, len(want))
	if err := ReadOutcome(b, got); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, error %v, want %+v", got, err, want)
	}
	if got[4].Err != felix.ErrNotInteger {
		t.Error("doors know the error by its pointer, and it is another one")
	}
	f, err := OutcomeFingerprint(b)
	if err != nil || f != new(Digest).Fingerprint([]felix.Op{{Kind: felix.Add}}) {
		t.Errorf("fingerprint %x, error %v", f, err)
	}
	for n := range b {
		corrupt(t, "a cut outcome", CheckOutcome(b[:n:n]))
		corrupt(t, "a cut outcome", ReadOutcome(b[:n:n], got))
	}
	corrupt(t, "an outcome with a byte too many", CheckOutcome(append(b, 0)))
	corrupt(t, "an outcome of other operations", ReadOutcome(b, got[:1]))
	other := []felix.Reply{{Err: felix.Errorf(felix.OutOfRange, "words")}}
	if err := ReadOutcome(AppendOutcome(nil, f, other), got[:1]); err != nil || !reflect.DeepEqual(got[0], other[0]) {
		t.Errorf("an error of its own becomes %+v, %v", got[0].Err, err)
	}
}

// TestIDsGolden: what is on disk stays what it is.
func TestIDsGolden(t *testing.T) {
	var d Digest
	key := d.Key([]byte("k"), []byte("id"))
	add := felix.Op{Kind: felix.Add, Key: []byte("k"), Int: 5, Once: &felix.Once{ID: []byte("id")}}
	print := d.Fingerprint([]felix.Op{add})
	outcome := AppendOutcome(nil, print, []felix.Reply{{Applied: true, Int: 5, Version: 7}, {Err: felix.ErrOverflow}})
	for what, c := range map[string]struct{ got, want string }{
		"key":         {hex.EncodeToString(key[:]), goldenKey},
		"fingerprint": {hex.EncodeToString(print[:]), goldenFingerprint},
		"outcome":     {hex.EncodeToString(outcome), "01" + goldenFingerprint + "02" + "520a0007" + "0102"},
		"entry": {hex.EncodeToString(AppendPutID(AppendHeader(nil, Header{Base: 1, Change: Counts{IDs: 1}}), key[:], []byte{7}, 300, 0)),
			"02" + "00" + "01" + "000000" + "02" + "06" + "10" + goldenKey + "0107" + "ac02" + "00"},
		"applied": {hex.EncodeToString(AppendApplied(nil, Applied{Index: 1, Term: 2, Ceiling: 3, Version: 4, Counts: Counts{1, 0, 1, 3}, ConfState: []byte{9}})),
			"02" + "01020304" + "020002" + "06" + "09"},
	} {
		if c.got != c.want {
			t.Errorf("the %s is %s, want %s", what, c.got, c.want)
		}
	}
}

const (
	goldenKey         = "1d3069db3e8c7f2ebd6bfa24fe993562"
	goldenFingerprint = "cc2823ad3e45d7d9b2581000d5a7235e"
)

// TestKeysOfIDsDiffer: the border between key and id counts, and a group's ids
// are no key's.
func TestKeysOfIDsDiffer(t *testing.T) {
	var d Digest
	seen := map[IDKey]string{}
	for _, c := range [][2]string{{"ab", "c"}, {"a", "bc"}, {"", "abc"}, {"abc", ""}, {"ab", "d"}, {"ac", "c"}} {
		k := d.Key([]byte(c[0]), []byte(c[1]))
		if before, is := seen[k]; is {
			t.Errorf("%q has the key of %s", c, before)
		}
		seen[k] = c[0] + "|" + c[1]
	}
}

// TestFingerprintHasEverything: an operation that differs in any field, but Once,
// is another one. A field that is new in felix.Op has to be looked at.
func TestFingerprintHasEverything(t *testing.T) {
	var d Digest
	full := func() felix.Op {
		return felix.Op{Kind: felix.Add, View: 1, If: 1, TTL: 1, ExpireIf: 1, ReturnOld: true, NoValue: true, Key: []byte("k"),
			Value: []byte("v"), Int: 1, ExpiryMillis: 2, Version: 3, Bounds: &felix.Bounds{Min: 1, Max: 2, Saturate: true},
			Once: &felix.Once{ID: []byte("id")}}
	}
	base := d.Fingerprint([]felix.Op{full()})
	if base != d.Fingerprint([]felix.Op{full()}) {
		t.Fatal("the same operation has two fingerprints")
	}
	differs := func(what string, op felix.Op, want bool) {
		if (d.Fingerprint([]felix.Op{op}) != base) != want {
			t.Errorf("another %s: the fingerprint changes %v, want %v", what, !want, want)
		}
	}
	fields := reflect.TypeFor[felix.Op]()
	for i := range fields.NumField() {
		op := full()
		reflect.ValueOf(&op).Elem().Field(i).SetZero()
		differs(fields.Field(i).Name, op, fields.Field(i).Name != "Once")
	}
	bounds := reflect.TypeFor[felix.Bounds]()
	for i := range bounds.NumField() {
		op := full()
		reflect.ValueOf(op.Bounds).Elem().Field(i).SetZero()
		differs("bound's "+bounds.Field(i).Name, op, true)
	}
	op := full()
	op.Once = &felix.Once{ID: []byte("id"), RetentionMillis: 5}
	differs("retention", op, false)
	if base == d.Fingerprint([]felix.Op{full(), full()}) {
		t.Error("two operations are one")
	}
}

// TestDigestDoesNotAllocate once it is warm.
func TestDigestDoesNotAllocate(t *testing.T) {
	var d Digest
	ops := []felix.Op{{Kind: felix.Add, Key: []byte("some key")}}
	d.Fingerprint(ops)
	if n := testing.AllocsPerRun(100, func() {
		d.Key(ops[0].Key, ops[0].Key)
		d.Fingerprint(ops)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// FuzzOutcome: no bytes make the reader panic, and what it accepts means the same
// when it is written again.
func FuzzOutcome(f *testing.F) {
	f.Add(someOutcome())
	f.Add(AppendOutcome(nil, Fingerprint{1}, []felix.Reply{{Err: felix.Errorf(felix.OutOfRange, "words")}}))
	f.Fuzz(func(t *testing.T, b []byte) {
		if err := CheckOutcome(b); err != nil {
			if !errors.Is(err, ErrCorrupt) {
				t.Errorf("%v does not wrap ErrCorrupt", err)
			}
			return
		}
		d := decoder{rest: b[1+IDKeyBytes:]}
		n := d.uvarint()
		replies, again := make([]felix.Reply, n), make([]felix.Reply, n)
		if err := ReadOutcome(b, replies); err != nil {
			t.Fatal(err)
		}
		print, _ := OutcomeFingerprint(b)
		if err := ReadOutcome(AppendOutcome(nil, print, replies), again); err != nil || !reflect.DeepEqual(replies, again) {
			t.Errorf("written again: %+v, %v, was %+v", again, err, replies)
		}
	})
}
