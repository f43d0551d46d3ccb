package store

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	felix "github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/record"
)

// TestReadersBesideCheckpoints: every checkpoint gives all keys of a shard the
// same sum, as counter and as value. A reader must never see two.
func TestReadersBesideCheckpoints(t *testing.T) {
	db := openMem(t, vfs.NewMem(), Options{FileBytes: 200})
	const keys = 20
	write := func(sum int64) {
		t.Helper()
		var parts []Checkpoint
		for shard := range uint64(2) {
			p := Checkpoint{Shard: shard, Clear: sum%10 == 9, Applied: record.Applied{Index: uint64(sum)}}
			for i := range keys {
				p.Records = append(p.Records, CheckpointRecord{Key: fmt.Appendf(nil, "k%02d", i),
					Cell: record.Cell{Has: record.HasCounter | record.HasValue, Sum: sum, Value: fmt.Append(nil, sum)}})
			}
			parts = append(parts, p)
		}
		if err := db.WriteCheckpoint(parts...); err != nil {
			t.Fatal(err)
		}
	}
	write(0)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	reader := func(read func(shard uint64) error) {
		wg.Go(func() {
			for i := uint64(0); ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				if err := read(i % 2); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	reader(func(shard uint64) error {
		var c record.Cell
		if err := db.Load(shard, []byte("k07"), &c); err != nil {
			return err
		}
		if c.Has != record.HasCounter|record.HasValue || string(c.Value) != fmt.Sprint(c.Sum) {
			return fmt.Errorf("Load mixes two checkpoints: %+v", c)
		}
		return nil
	})
	reader(func(shard uint64) error { return wholePage(db, shard, keys) })
	for sum := range int64(40) {
		write(sum)
	}
	close(stop)
	wg.Wait()
	closeDB(t, db)
}

func wholePage(db *DB, shard uint64, keys int) error {
	c, err := db.Cursor(shard, []byte("k"), nil)
	if err != nil {
		return err
	}
	items, _, err := c.Page(PageRequest{View: felix.ViewRedis, Limit: 100, MaxBytes: 1 << 20})
	if err != nil {
		return err
	}
	for _, it := range items {
		if it.Int != items[0].Int {
			return fmt.Errorf("a page mixes sums %d and %d", items[0].Int, it.Int)
		}
	}
	if len(items) != keys {
		return fmt.Errorf("a page has %d keys, want %d", len(items), keys)
	}
	return nil
}

// TestDiskStaysSmall overwrites the same records again and again: the disk
// must hold less than three times what one copy of them takes.
func TestDiskStaysSmall(t *testing.T) {
	records := make([]CheckpointRecord, 10_000)
	fill := func(round int) []CheckpointRecord {
		for i := range records {
			records[i] = CheckpointRecord{Key: fmt.Appendf(nil, "user:%d", i*7919%1_000_003), OnDisk: record.HasCounter,
				Cell: record.Cell{Has: record.HasCounter, Sum: int64(i * 31 * round), CounterVer: uint64(round)}}
		}
		return records
	}
	const rounds = 12
	fresh := openMem(t, vfs.NewMem(), Options{})
	mustWrite(t, fresh, 1, fill(rounds)...)
	once := fresh.DiskBytes()
	closeDB(t, fresh)
	db := openMem(t, vfs.NewMem(), Options{})
	for round := range rounds {
		mustWrite(t, db, 1, fill(round+1)...)
	}
	eventually(t, fmt.Sprintf("to have at most 3 times %d bytes on disk", once), func() bool { return db.DiskBytes() < 3*once })
	closeDB(t, db)
}

// TestLevel0Full: level 0 may be deep while it is small beside the rest, or
// small at all, but never deeper than maxLevel0.
func TestLevel0Full(t *testing.T) {
	for _, c := range []struct {
		depth         int32
		level0, below int64
		full          bool
	}{
		{0, 0, 0, false},
		{maxLevel0 - 1, freeLevel0Bytes, 0, false},
		{maxLevel0, 1, 1 << 40, true},
		{heavyLevel0, freeLevel0Bytes + 2, 1, true},
		{heavyLevel0, freeLevel0Bytes + 1, 1, false},
		{heavyLevel0 - 1, freeLevel0Bytes + 2, 1, false},
	} {
		var m pebble.Metrics
		m.Levels[0].Sublevels, m.Levels[0].TablesSize, m.Levels[5].TablesSize = c.depth, c.level0, c.below
		if level0Full(&m) != c.full {
			t.Errorf("%+v", c)
		}
	}
}

// eventually waits for what pebble does in the background.
func eventually(t *testing.T, what string, done func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(30 * time.Second); !done(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("in vain: %s", what)
		}
	}
}

// TestDropFreesTheDisk: what was dropped goes from the disk without a full
// compaction by hand.
func TestDropFreesTheDisk(t *testing.T) {
	db := openMem(t, vfs.NewMem(), Options{})
	var records []CheckpointRecord
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range 1000 {
		value := make([]byte, 100)
		for j := range value {
			value[j] = byte(rng.Uint32()) // nothing to compress
		}
		records = append(records, CheckpointRecord{Key: fmt.Appendf(nil, "%d", i), Cell: record.Cell{Has: record.HasValue, Value: value}})
	}
	mustWrite(t, db, 7, records...)
	mustWrite(t, db, 8, records[:1]...)
	full := db.DiskBytes()
	if err := db.Drop(7, 9); err != nil {
		t.Fatal(err)
	}
	shards, err := db.Shards()
	if err != nil || fmt.Sprint(shards) != "[8]" {
		t.Fatalf("%v, %v", shards, err)
	}
	ingests := db.PebbleMetrics().Ingest.Count
	if err := db.Drop(7, 9); err != nil || db.PebbleMetrics().Ingest.Count != ingests {
		t.Fatalf("dropping nothing wrote something: %v", err)
	}
	eventually(t, "freeing the disk", func() bool { return db.DiskBytes() < full/2 })
	closeDB(t, db)
}

// TestWriterAwaitsLevel0 stops compactions from keeping up.
func TestWriterAwaitsLevel0(t *testing.T) {
	db := openMem(t, vfs.NewMem(), Options{})
	for i := range 100 {
		mustWrite(t, db, 1, expiringCounter("a", int64(i+1)), expiringCounter("z", int64(i+1)))
		if n := db.PebbleMetrics().Levels[0].Sublevels; n > maxLevel0 {
			t.Fatalf("level 0 is %d deep", n)
		}
	}
	closeDB(t, db)
}

func FuzzStoredRecords(f *testing.F) {
	c := record.Cell{Has: 3, Sum: -5, CounterExpiry: 7, CounterVer: 9, Value: []byte("v"), ValueExpiry: 1, ValueVer: 2}
	f.Add(record.AppendCounter(nil, &c))
	f.Add(record.AppendValue(nil, &c))
	f.Add(record.AppendApplied(nil, record.Applied{Index: 1, Term: 2, Ceiling: 3, Counts: record.Counts{Counters: 4, Values: 5, Keys: 6}, ConfState: []byte("x")}))
	f.Add(record.AppendExpiryKey(nil, 1, 2, record.CounterClass, []byte("k")))
	f.Fuzz(func(t *testing.T, b []byte) {
		var one, two record.Cell
		if record.ReadCounter(b, &one) == nil {
			if err := record.ReadCounter(record.AppendCounter(nil, &one), &two); err != nil || !sameCell(one, two) {
				t.Fatalf("counter %+v became %+v, %v", one, two, err)
			}
		}
		one, two = record.Cell{}, record.Cell{}
		if record.ReadValue(b, &one) == nil {
			if err := record.ReadValue(record.AppendValue(nil, &one), &two); err != nil || !sameCell(one, two) {
				t.Fatalf("value %+v became %+v, %v", one, two, err)
			}
			// The sweep reads only the beginning.
			if ok, err := expires(b, record.ValueClass, one.ValueExpiry); err != nil || !ok {
				t.Fatalf("the expiry %d is not found in the first bytes: %v", one.ValueExpiry, err)
			}
		}
		if a, err := record.ReadApplied(b); err == nil {
			again, err := record.ReadApplied(record.AppendApplied(nil, a))
			if err != nil || fmt.Sprint(again) != fmt.Sprint(a) {
				t.Fatalf("applied %+v became %+v, %v", a, again, err)
			}
		}
		if expiry, class, key, err := record.ParseExpiryKey(b); err == nil {
			shard := b[:8]
			again := append(bytes.Clone(shard), record.AppendExpiryKey(nil, 0, expiry, class, key)[8:]...)
			if !bytes.Equal(again, b) {
				t.Fatalf("expiry key %x became %x", b, again)
			}
		}
	})
}
