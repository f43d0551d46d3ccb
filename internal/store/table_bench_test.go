package store

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/felix-go/felix/internal/record"
)

// benchKeys are keys as long as "user:1234567:day".
func benchKeys(n int) [][]byte {
	keys := make([][]byte, n)
	for i := range keys {
		keys[i] = fmt.Appendf(nil, "user:%08d:day", i)
	}
	return keys
}

// cycler is an owner that adds to keys: all that the table does for it.
type cycler struct {
	table   *Table
	touched []Touch
	payload []byte
	index   uint64
	version uint64
}

// entry adds 1 to each of the keys in one log entry, and applies it.
func (c *cycler) entry(t testing.TB, keys [][]byte) {
	c.index++
	c.touched = c.touched[:0]
	var change record.Counts
	base := c.version
	for _, key := range keys {
		ref, presence := c.table.Find(key)
		if presence != Present && presence != Absent {
			t.Fatal("the table is not complete")
		}
		var cell record.Cell
		inflight, last := c.table.Newest(ref, &cell)
		version, before := base, cell.Has
		if inflight == c.index {
			version = last + 1
		}
		cell.Has, cell.Sum, cell.CounterVer = cell.Has|record.HasCounter, cell.Sum+1, version
		ref, first := c.table.Stage(ref, key, &cell, c.index, version)
		if first {
			c.touched = append(c.touched, Touch{Ref: ref})
		}
		change.Add(record.CountChange(before, cell.Has))
		c.version = max(c.version, version+1)
	}
	c.payload = record.AppendHeader(c.payload[:0], record.Header{Base: base, Change: change})
	for i := range c.touched {
		var n int
		c.payload, n = c.table.AppendWrites(c.payload, c.touched[i].Ref, base)
		c.touched[i].Writes = uint8(n)
	}
	if err := c.table.Apply(c.index, 1, c.payload, c.touched); err != nil {
		t.Fatal(err)
	}
}

// filled is a table that holds the keys, all of them dirty.
func filled(t testing.TB, keys [][]byte) *cycler {
	c := &cycler{table: NewTable(appliedAt(1000), &Budget{MaxBytes: 1 << 40}), index: 1000, version: 1 << 40}
	for len(keys) > 0 {
		n := min(len(keys), 1000)
		c.entry(t, keys[:n])
		keys = keys[n:]
	}
	return c
}

func BenchmarkTable(b *testing.B) {
	for _, n := range []int{100_000, 1_000_000} {
		keys := benchKeys(n)
		c := filled(b, keys)
		order := rand.New(rand.NewPCG(1, 1)).Perm(n)
		b.Run(fmt.Sprintf("find/hit/%d", n), func(b *testing.B) {
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if _, p := c.table.Find(keys[order[i%n]]); p != Present {
					b.Fatal("not found")
				}
			}
		})
		b.Run(fmt.Sprintf("find/miss/%d", n), func(b *testing.B) {
			b.ReportAllocs()
			key := []byte("none:........")
			for i := uint64(0); b.Loop(); i++ {
				binary.LittleEndian.PutUint64(key[5:], i)
				if _, p := c.table.Find(key); p != Absent {
					b.Fatal("found")
				}
			}
		})
		b.Run(fmt.Sprintf("add/%d", n), func(b *testing.B) {
			b.ReportAllocs()
			batch, i := make([][]byte, 64), 0
			for b.Loop() {
				for j := range batch {
					batch[j] = keys[order[i%n]]
					i++
				}
				c.entry(b, batch)
			}
			b.ReportMetric(float64(b.Elapsed())/float64(i), "ns/add")
		})
	}
}

// heapBytes is what is live.
func heapBytes() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// TestTableBytesPerEntry holds the memory of a million counters against what
// the budget is charged: it must not be told much less than is used.
func TestTableBytesPerEntry(t *testing.T) {
	const n = 300_000
	keys := benchKeys(n)
	before := heapBytes()
	c := filled(t, keys)
	used := float64(heapBytes()-before) / n
	charged := float64(c.table.Bytes()) / n
	t.Logf("%.1f bytes an entry in memory, %.1f charged", used, charged)
	// 64 for the entry, 8/0.75 to 8/0.375 for its slot, 4 as it is dirty.
	if used > 1.35*charged || used < 64 {
		t.Errorf("an entry takes %.1f bytes and is charged %.1f", used, charged)
	}
	runtime.KeepAlive(c)
	runtime.KeepAlive(keys)
}

// TestTableAllocatesNothing holds the hot operations to it.
func TestTableAllocatesNothing(t *testing.T) {
	keys := benchKeys(1000)
	c := filled(t, keys)
	for range 3 {
		c.entry(t, keys[:64]) // slabs and slices find their size
	}
	i, follow := 0, append([]byte(nil), c.payload...)
	for name, do := range map[string]func(){
		"find":   func() { i++; c.table.Find(keys[i%1000]) },
		"miss":   func() { c.table.Find([]byte("none")) },
		"adds":   func() { c.entry(t, keys[:64]) },
		"follow": func() { c.index++; _ = c.table.Apply(c.index, 1, follow, nil) },
	} {
		most := map[string]float64{"adds": 2, "follow": 2}[name] // an entry; of 64 operations none
		if n := testing.AllocsPerRun(100, do); n > most {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

// BenchmarkOverlay is a page of a scan over many dirty entries, of which a
// shard's worker must not make everybody wait: under 10 ms.
func BenchmarkOverlay(b *testing.B) {
	const dirty, limit = 262_144, 1000
	keys := benchKeys(dirty)
	rand.Shuffle(len(keys), func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
	c := filled(b, keys)
	for b.Loop() {
		if items, cut, _ := c.table.Overlay([]byte("user:"), nil, limit); len(items) != limit || !cut {
			b.Fatalf("%d items, cut %v", len(items), cut)
		}
	}
}
