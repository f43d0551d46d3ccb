package limit

import (
	"bytes"
	"encoding/hex"
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/felix-go/felix"
)

// stored are states with the bytes that docs/format.md gives them.
func stored() map[string]State {
	return map[string]State{
		"0100":                       {},
		"0101e807 07":                {algorithm: FixedWindow, at: 1000, used: 7},
		"0102e807 07 ac02":           {algorithm: SlidingCounter, at: 1000, used: 7, prev: 300},
		"0103":                       {algorithm: SlidingLog},
		"0103e807 02 05 01":          {algorithm: SlidingLog, used: 3, log: []byte("\xe8\x07\x02\x05\x01")},
		"0104e807 07 05 8827":        {algorithm: TokenBucket, at: 1000, used: 7, frac: 5, period: 5000},
		"0105e807 02 05 01":          {algorithm: Concurrency, used: 3, log: []byte("\xe8\x07\x02\x05\x01")},
		"0101 808080808080808020 00": {algorithm: FixedWindow, at: felix.MaxExpiryMillis},
		"0101 00 ffffffffffffffff7f": {algorithm: FixedWindow, used: math.MaxInt64},
	}
}

func TestStoredForm(t *testing.T) {
	for text, want := range stored() {
		b, err := hex.DecodeString(strings.ReplaceAll(text, " ", ""))
		if err != nil {
			t.Fatal(err)
		}
		got, err := ParseState(b)
		if err != nil || !same(got, want) {
			t.Errorf("%s: %+v, %v, want %+v", text, got, err, want)
		}
		if again := AppendState(nil, want); !bytes.Equal(again, b) {
			t.Errorf("%+v: % x, want %s", want, again, text)
		}
	}
	if s, err := ParseState(nil); err != nil || !same(s, State{}) {
		t.Errorf("no bytes: %+v, %v", s, err)
	}
}

func same(a, b State) bool {
	log := bytes.Equal(a.log, b.log)
	a.log, b.log = nil, nil
	return log && a.algorithm == b.algorithm && a.at == b.at && a.used == b.used && a.prev == b.prev && a.frac == b.frac && a.period == b.period
}

// What no build has written is refused.
func TestCorruptState(t *testing.T) {
	for what, text := range map[string]string{
		"one byte":                     "01",
		"another format":               "0201e80707",
		"another algorithm":            "0106e80707",
		"no algorithm, and bytes":      "010000",
		"cut short":                    "0101e807",
		"bytes behind":                 "0101e8070700",
		"a time that is too late":      "0101 8180808080808080 20 00",
		"a negative count":             "0101 00 ffffffffffffffffff01",
		"a part that is more than one": "0104e807 07 8827 8827",
		"a period of 0":                "0104e807 07 00 00",
		"a charge of 0":                "0103e807 00",
		"the same time twice":          "0103e807 02 00 01",
		"half a charge":                "0103e807 02 05",
		"a sum that overflows":         "0103e807 ffffffffffffffff7f 01 01",
		"a time that overflows":        "0103e807 01 ffffffffffffffff7f 01",
	} {
		b, err := hex.DecodeString(strings.ReplaceAll(text, " ", ""))
		if err != nil {
			t.Fatal(err)
		}
		if s, err := ParseState(b); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: %+v, %v", what, s, err)
		}
	}
	if _, err := ParseState(make([]byte, MaxStateBytes+1)); !errors.Is(err, ErrCorrupt) {
		t.Errorf("too long: %v", err)
	}
}

// FuzzState: what parses is written as it was read, and any policy can be checked
// against it: the answer is sane, and what is stored then parses.
func FuzzState(f *testing.F) {
	for text := range stored() {
		if b, err := hex.DecodeString(strings.ReplaceAll(text, " ", "")); err == nil {
			f.Add(b, int64(1000), int64(1), int64(10))
		}
	}
	f.Fuzz(func(t *testing.T, b []byte, now, cost, most int64) {
		s, err := ParseState(b)
		if err != nil {
			if !errors.Is(err, ErrCorrupt) {
				t.Fatal(err)
			}
			return
		}
		now = now & (felix.MaxExpiryMillis - 1)
		for a := FixedWindow; a <= Concurrency; a++ {
			p := Policy{Algorithm: a, Limit: most & math.MaxInt64, PeriodMillis: 1 + (most & (1<<40 - 1))}
			if a == SlidingLog {
				p.Limit %= MaxLogLimit
			}
			l := made(t, p)
			d, next := l.Check(s, cost, now)
			if d.Remaining < 0 || d.Remaining > d.Limit || d.ResetAfterMillis < 0 || d.RetryAfterMillis < NoRetry ||
				d.Allowed && d.RetryAfterMillis != NoRetry {
				t.Fatalf("%+v, %+v, cost %d at %d: %+v", p, s, cost, now, d)
			}
			again, err := ParseState(AppendState(nil, next))
			if err != nil || !same(again, next) {
				t.Fatalf("%+v: stored and read %+v, %v", next, again, err)
			}
		}
	})
}
