package engine

import (
	"testing"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/record"
)

// fixedClock always says the same.
type fixedClock int64

func (c fixedClock) Now() int64 { return int64(c) }

func TestHotOperationsDoNotAllocate(t *testing.T) {
	const now = 1_000_000
	value := []byte("some bytes")
	cells := map[string]record.Cell{
		"absent":           {},
		"counter":          {Has: record.HasCounter, Sum: 5, CounterVer: 1},
		"expiring counter": {Has: record.HasCounter, Sum: 5, CounterVer: 1, CounterExpiry: now + 5},
		"expired counter":  {Has: record.HasCounter, Sum: 5, CounterVer: 1, CounterExpiry: now - 5},
		"value":            {Has: record.HasValue, Value: value, ValueVer: 1},
		"digits":           {Has: record.HasValue, Value: []byte("123"), ValueVer: 1},
		"both":             {Has: record.HasCounter | record.HasValue, Sum: 3, CounterVer: 1, Value: value, ValueVer: 2},
	}
	ops := map[string]felix.Op{
		"get":             {Kind: felix.Get, View: felix.ViewCounter},
		"get value":       {Kind: felix.Get, View: felix.ViewValue},
		"redis get":       {Kind: felix.Get, View: felix.ViewRedis},
		"add":             {Kind: felix.Add, Int: 1},
		"redis incr":      {Kind: felix.Add, View: felix.ViewRedis, Int: 1},
		"add in a window": {Kind: felix.Add, Int: 1, TTL: felix.TTLIn, ExpiryMillis: 60_000},
		"add in a window that stays": {Kind: felix.Add, Int: 1, TTL: felix.TTLInIfNone, ExpiryMillis: 60_000,
			Bounds: &felix.Bounds{Max: 5}},
		"set counter":       {Kind: felix.Set, Int: 1, ReturnOld: true},
		"redis set counter": {Kind: felix.Set, View: felix.ViewRedis, Value: []byte("-9223372036854775808")},
		"redis delete":      {Kind: felix.Delete, View: felix.ViewRedis},
		"expire":            {Kind: felix.Expire, View: felix.ViewRedis, TTL: felix.TTLIn, ExpiryMillis: 1000, ExpireIf: felix.ExpireIfNone},
	}
	for cellName, cell := range cells {
		for opName, op := range ops {
			op.Key = []byte("k")
			var r felix.Reply
			var clock Clock = fixedClock(now)
			allocs := testing.AllocsPerRun(50, func() {
				c := cell
				if err := Validate(&op); err != nil {
					t.Fatal(err)
				}
				Eval(&op, &c, 9, clock, &r)
			})
			if allocs != 0 {
				t.Errorf("%s on %s allocates %v times", opName, cellName, allocs)
			}
		}
	}
}

func BenchmarkAdd(b *testing.B) {
	for _, bench := range []struct {
		name string
		op   felix.Op
		cell record.Cell
	}{
		{"counter", felix.Op{Kind: felix.Add, Int: 1}, record.Cell{}},
		{"redis", felix.Op{Kind: felix.Add, View: felix.ViewRedis, Int: 1}, record.Cell{}},
		{"expiring", felix.Op{Kind: felix.Add, Int: 1}, record.Cell{Has: record.HasCounter, CounterExpiry: 1 << 50}},
	} {
		b.Run(bench.name, func(b *testing.B) {
			var clock Clock = fixedClock(1)
			var r felix.Reply
			op, cell := bench.op, bench.cell
			b.ReportAllocs()
			for i := range b.N {
				Eval(&op, &cell, uint64(i), clock, &r)
			}
		})
	}
}

func BenchmarkGet(b *testing.B) {
	op := felix.Op{Kind: felix.Get, View: felix.ViewRedis}
	cell := record.Cell{Has: record.HasCounter, Sum: 7}
	var r felix.Reply
	b.ReportAllocs()
	for range b.N {
		Eval(&op, &cell, 1, nil, &r)
	}
}

func BenchmarkValidate(b *testing.B) {
	op := felix.Op{Kind: felix.Add, View: felix.ViewRedis, Int: 1, Key: []byte("page-views")}
	for range b.N {
		if err := Validate(&op); err != nil {
			b.Fatal(err)
		}
	}
}
