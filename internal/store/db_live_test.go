package store

import (
	"bytes"
	"fmt"
	"sync"
	"testing"

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
	for sum := range int64(100) {
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
	items, _, err := c.Page(felix.ViewRedis, nil, false, 0, 100)
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
	db := openMem(t, vfs.NewMem(), Options{})
	var records []CheckpointRecord
	for i := range 40_000 {
		records = append(records, CheckpointRecord{Key: fmt.Appendf(nil, "user:%d", i*7919%1_000_003), OnDisk: record.HasCounter})
	}
	var once uint64
	for round := range 25 {
		for i := range records {
			records[i].Cell = record.Cell{Has: record.HasCounter, Sum: int64(i * 31 * round), CounterVer: 1<<40 | (uint64(round))}
		}
		mustWrite(t, db, 1, records...)
		if round == 0 {
			once = db.DiskBytes()
		}
	}
	settle(t, db)
	if now := db.DiskBytes(); now > 3*once {
		t.Fatalf("%d bytes on disk, one copy takes %d", now, once)
	}
	if m := db.PebbleMetrics(); m.Levels[0].Sublevels > 2 {
		t.Fatalf("level 0 is %d deep", m.Levels[0].Sublevels)
	}
	closeDB(t, db)
}

// settle waits until no compaction is left to do.
func settle(t *testing.T, db *DB) {
	t.Helper()
	for m := db.PebbleMetrics(); m.Compact.NumInProgress > 0 || m.Levels[0].Score >= 1; m = db.PebbleMetrics() {
		<-db.levelMoved
	}
}

// TestDropFreesTheDisk: what was dropped goes from the disk without a full
// compaction by hand.
func TestDropFreesTheDisk(t *testing.T) {
	db := openMem(t, vfs.NewMem(), Options{})
	var records []CheckpointRecord
	for i := range 2000 {
		records = append(records, CheckpointRecord{Key: fmt.Appendf(nil, "%d", i),
			Cell: record.Cell{Has: record.HasValue, Value: bytes.Repeat(fmt.Append(nil, i*i), 50)}})
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
	for db.DiskBytes() > full/2 {
		<-db.levelMoved
	}
	closeDB(t, db)
}

// TestWriterAwaitsLevel0 stops compactions from keeping up.
func TestWriterAwaitsLevel0(t *testing.T) {
	db := openMem(t, vfs.NewMem(), Options{})
	for i := range 200 {
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
