package store

import (
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"testing"

	"github.com/felix-go/felix/internal/record"
)

func benchRecords(n int, seed uint64) []CheckpointRecord {
	rng := rand.New(rand.NewPCG(seed, 1))
	records := make([]CheckpointRecord, n)
	for i, k := range rng.Perm(n) {
		records[i] = CheckpointRecord{
			Key:    fmt.Appendf(nil, "user:%08d", k),
			Cell:   record.Cell{Has: record.HasCounter, Sum: rng.Int64N(1e9), CounterVer: 3<<40 | (uint64(i) + seed<<24)},
			OnDisk: record.HasCounter,
		}
	}
	return records
}

func openBench(b *testing.B) *DB {
	b.Helper()
	db, err := Open(b.TempDir(), Options{Logger: slog.New(slog.NewTextHandler(io.Discard, nil)), Fatal: func(err error) { b.Error(err) }})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := db.Close(); err != nil {
			b.Error(err)
		}
	})
	return db
}

// BenchmarkWriteCheckpoint overwrites the same records again and again, as a
// busy broker does, so that it includes the compactions this causes.
func BenchmarkWriteCheckpoint(b *testing.B) {
	for _, n := range []int{1_000, 100_000, 1_000_000} {
		b.Run(fmt.Sprintf("records=%d", n), func(b *testing.B) {
			db := openBench(b)
			records := benchRecords(n, 7)
			b.ReportAllocs()
			for b.Loop() {
				if err := db.WriteCheckpoint(Checkpoint{Shard: 5, Records: records}); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(n)*float64(b.N)/b.Elapsed().Seconds(), "records/s")
			b.ReportMetric(float64(db.CheckpointStats().Bytes)/float64(b.N)/float64(n), "bytes/record")
			b.ReportMetric(float64(db.PebbleMetrics().DiskSpaceUsage())/float64(n), "disk-bytes/record")
		})
	}
}

func BenchmarkLoad(b *testing.B) {
	const n = 1_000_000
	db := openBench(b)
	for i := range 3 {
		if err := db.WriteCheckpoint(Checkpoint{Shard: 5, Records: benchRecords(n, uint64(i))}); err != nil {
			b.Fatal(err)
		}
	}
	run := func(name, format string, has record.Has) {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			rng := rand.New(rand.NewPCG(1, 2))
			var key []byte
			var c record.Cell
			for b.Loop() {
				key = fmt.Appendf(key[:0], format, rng.IntN(n))
				if err := db.Load(5, key, &c); err != nil || c.Has != has {
					b.Fatal(err, c)
				}
			}
		})
	}
	run("present", "user:%08d", record.HasCounter)
	run("absent", "user:%08dx", 0)
}
