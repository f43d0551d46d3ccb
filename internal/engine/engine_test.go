package engine_test

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"strings"
	"testing"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/engine"
	"github.com/felix-go/felix/internal/invariant"
	"github.com/felix-go/felix/internal/model"
	"github.com/felix-go/felix/internal/record"
	"github.com/felix-go/felix/internal/servicetest"
)

const now = 1_000_000

// fixedClock always says the same.
type fixedClock int64

func (c fixedClock) Now() int64 { return int64(c) }

// TestRandomAgainstModel compares the engine with the model on many random
// operations: replies, versions and times.
func TestRandomAgainstModel(t *testing.T) {
	for seed := range uint64(60) {
		time := int64(now)
		m := model.New(func() int64 { return time })
		ctx, scope := context.Background(), felix.Scope{Tenant: "t", Namespace: "n", Cache: "c"}
		if _, _, _, err := m.CreateCache(ctx, scope, felix.CacheSettings{}); err != nil {
			t.Fatal(err)
		}
		ref, err := m.Cache(ctx, scope)
		if err != nil {
			t.Fatal(err)
		}
		cells := map[string]*record.Cell{}
		gen, versions := servicetest.NewGenerator(seed), servicetest.NewVersions()
		gen.Timed = true
		for n := range 3000 {
			time += int64(n % 50)
			gen.Now = time
			op := gen.Op(versions.Known)
			want, err := felix.Do(ctx, ref, op)
			if err != nil {
				t.Fatal(err)
			}
			cell := cells[string(op.Key)]
			if cell == nil {
				cell = &record.Cell{}
				cells[string(op.Key)] = cell
			}
			before, their := *cell, versions.Translate(op)
			var got felix.Reply
			if got.Err = engine.Validate(&their); got.Err == nil {
				engine.Eval(&their, cell, uint64(1000+n), fixedClock(time), &got)
			}
			if err := versions.Compare(&op, got, want[0], true); err != nil {
				t.Fatalf("seed %d, operation %d at %d: %+v on %+v: %v", seed, n, time, op, before, err)
			}
			if n%10 == 0 {
				engine.Sweep(cell, time)
			}
		}
	}
}

// TestValidateAgreesWithModel tries every combination of modes.
func TestValidateAgreesWithModel(t *testing.T) {
	m := model.New(func() int64 { return now })
	ctx, scope := context.Background(), felix.Scope{Tenant: "t", Namespace: "n", Cache: "c"}
	if _, _, _, err := m.CreateCache(ctx, scope, felix.CacheSettings{}); err != nil {
		t.Fatal(err)
	}
	ref, err := m.Cache(ctx, scope)
	if err != nil {
		t.Fatal(err)
	}
	var ops []felix.Op
	for n := range 8 * 4 * 5 * 8 * 18 * 2 * 2 * 3 {
		digit := func(base int) int { d := n % base; n /= base; return d }
		op := felix.Op{
			Kind: felix.Kind(digit(8)), View: felix.View(digit(4)), If: felix.If(digit(5)), TTL: felix.TTL(digit(8)),
			ExpireIf: felix.ExpireIf(digit(18)), ReturnOld: digit(2) == 1, ExpiryMillis: 5, Key: []byte("k"),
		}
		if digit(2) == 1 {
			op.Value = []byte("v")
		}
		if which := digit(3); which > 0 {
			op.Bounds = &felix.Bounds{Min: int64(which), Max: 1}
		}
		ops = append(ops, op)
	}
	replies, err := felix.Do(ctx, ref, ops...)
	if err != nil {
		t.Fatal(err)
	}
	legal := 0
	for i := range ops {
		got := engine.Validate(&ops[i])
		refused := replies[i].Err != nil && replies[i].Err != felix.ErrNotInteger
		if (got != nil) != refused {
			t.Fatalf("%+v: Validate says %v, the model %v", ops[i], got, replies[i].Err)
		}
		if got == nil {
			legal++
		} else if got.Code != felix.InvalidArgument || got.Message == "" {
			t.Fatalf("%+v: %v", ops[i], got)
		}
	}
	if legal < 100 || legal == len(ops) {
		t.Errorf("%d of %d combinations are legal: the test proves nothing", legal, len(ops))
	}
}

func TestValidateSizes(t *testing.T) {
	bytes := func(n int) []byte { return []byte(strings.Repeat("x", n)) }
	for _, c := range []struct {
		op    felix.Op
		legal bool
	}{
		{felix.Op{Kind: felix.Get, Key: nil}, false},
		{felix.Op{Kind: felix.Get, Key: bytes(1)}, true},
		{felix.Op{Kind: felix.Get, Key: bytes(felix.MaxKeyBytes)}, true},
		{felix.Op{Kind: felix.Get, Key: bytes(felix.MaxKeyBytes + 1)}, false},
		{felix.Op{Kind: felix.Set, View: felix.ViewValue, Key: bytes(1), Value: bytes(felix.MaxValueBytes)}, true},
		{felix.Op{Kind: felix.Set, View: felix.ViewValue, Key: bytes(1), Value: bytes(felix.MaxValueBytes + 1)}, false},
		{felix.Op{Kind: felix.Set, View: felix.ViewRedis, Key: bytes(1), Value: bytes(felix.MaxValueBytes + 1)}, false},
	} {
		if err := engine.Validate(&c.op); (err == nil) != c.legal {
			t.Errorf("kind %d, key of %d, value of %d bytes: %v", c.op.Kind, len(c.op.Key), len(c.op.Value), err)
		}
	}
}

// TestExpiredRecords: one that is expired is dropped by what writes in its view
// and left by everything else.
func TestExpiredRecords(t *testing.T) {
	both := record.Cell{
		Has: record.HasCounter | record.HasValue, Sum: 5, CounterExpiry: now, CounterVer: 1,
		Value: []byte("7"), ValueExpiry: now - 1, ValueVer: 2,
	}
	none := record.Has(0)
	for _, c := range []struct {
		op   felix.Op
		want record.Has
	}{
		{felix.Op{Kind: felix.Get, View: felix.ViewRedis}, both.Has},
		{felix.Op{Kind: felix.Delete, View: felix.ViewRedis}, both.Has},
		{felix.Op{Kind: felix.Set, View: felix.ViewRedis, If: felix.IfPresent}, both.Has},
		{felix.Op{Kind: felix.Expire, View: felix.ViewRedis, TTL: felix.TTLAt, ExpiryMillis: 1}, both.Has},
		{felix.Op{Kind: felix.Expire, View: felix.ViewRedis, TTL: felix.TTLAt, ExpiryMillis: now + 9}, both.Has},
		{felix.Op{Kind: felix.Add, View: felix.ViewRedis, Int: 1}, record.HasCounter},
		{felix.Op{Kind: felix.Set, View: felix.ViewRedis, Value: []byte("5")}, record.HasCounter},
		{felix.Op{Kind: felix.Set, View: felix.ViewRedis, Value: []byte("x")}, record.HasValue},
		{felix.Op{Kind: felix.Set, View: felix.ViewRedis, Value: []byte("x"), TTL: felix.TTLAt, ExpiryMillis: now}, none},
		{felix.Op{Kind: felix.Add, Int: 1}, both.Has},
		{felix.Op{Kind: felix.Add, Int: 1, TTL: felix.TTLAt, ExpiryMillis: now}, record.HasValue},
		{felix.Op{Kind: felix.Set, View: felix.ViewValue, Value: []byte("x")}, both.Has},
		{felix.Op{Kind: felix.Set, View: felix.ViewValue, TTL: felix.TTLAt, ExpiryMillis: 1}, record.HasCounter},
	} {
		c.op.Key = []byte("k")
		if err := engine.Validate(&c.op); err != nil {
			t.Fatal(err)
		}
		cell := both
		var r felix.Reply
		changed := engine.Eval(&c.op, &cell, 9, fixedClock(now), &r)
		if cell.Has != c.want || changed == sameCell(both, cell) || r.Found != felix.NoRecord {
			t.Errorf("%+v: changed %v, %+v, reply %+v, want the records %b", c.op, changed, cell, r, c.want)
		}
		if c.op.Kind == felix.Add && r.Int != 1 {
			t.Errorf("%+v: an add to an expired counter makes %d", c.op, r.Int)
		}
	}
}

func TestSweep(t *testing.T) {
	full := record.Cell{
		Has: record.HasCounter | record.HasValue, Sum: 5, CounterExpiry: now, CounterVer: 1,
		Value: []byte("7"), ValueExpiry: now + 10, ValueVer: 2,
	}
	forever := full
	forever.CounterExpiry, forever.ValueExpiry = 0, 0
	for _, c := range []struct {
		cell record.Cell
		now  int64
		want record.Has
	}{
		{full, now - 1, full.Has},
		{full, now, record.HasValue},
		{full, now + 9, record.HasValue},
		{full, now + 10, 0},
		{forever, math.MaxInt64, full.Has},
		{record.Cell{}, now, 0},
	} {
		before := c.cell
		changed := engine.Sweep(&c.cell, c.now)
		if c.cell.Has != c.want || changed == sameCell(before, c.cell) || !wellFormed(c.cell) {
			t.Errorf("sweep of %+v at %d: changed %v, %+v", before, c.now, changed, c.cell)
		}
	}
}

// TestUnknownKindStops: what Validate refuses must not get here, and if it does
// the process must not guess.
func TestUnknownKindStops(t *testing.T) {
	defer func() {
		if _, ok := recover().(invariant.Violation); !ok {
			t.Error("an unknown kind of operation was evaluated")
		}
	}()
	var r felix.Reply
	engine.Eval(&felix.Op{Kind: felix.Check + 1, Key: []byte("k")}, &record.Cell{}, 1, fixedClock(now), &r)
}

// FuzzInteger checks that a Redis set makes a counter of exactly the bytes that
// an int64 is printed as.
func FuzzInteger(f *testing.F) {
	for _, s := range []string{
		"0", "-0", "1", "-1", "+1", "01", "", "-", "9223372036854775807", "9223372036854775808", "-9223372036854775808",
		"-9223372036854775809", "99999999999999999999", "-99999999999999999999", "18446744073709551616", "1a", " 1", "１",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		n, err := strconv.ParseInt(string(b), 10, 64)
		isInt := err == nil && fmt.Sprint(n) == string(b)
		var cell record.Cell
		var r felix.Reply
		engine.Eval(&felix.Op{Kind: felix.Set, View: felix.ViewRedis, Key: []byte("k"), Value: b}, &cell, 1, nil, &r)
		if !r.Applied || (cell.Has == record.HasCounter) != isInt || isInt && cell.Sum != n || !isInt && string(cell.Value) != string(b) {
			t.Errorf("%q became %+v", b, cell)
		}
		cell = record.Cell{Has: record.HasValue, Value: b, ValueVer: 1}
		engine.Eval(&felix.Op{Kind: felix.Add, View: felix.ViewRedis, Key: []byte("k")}, &cell, 2, nil, &r)
		if r.Applied != isInt || isInt && r.Int != n || !isInt && r.Err != felix.ErrNotInteger {
			t.Errorf("an add to %q answers %+v", b, r)
		}
	})
}
