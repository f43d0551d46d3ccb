package store

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/felix-go/felix/internal/record"
)

func expiringCounter(key string, expiry int64) CheckpointRecord {
	return CheckpointRecord{Key: []byte(key), OnDisk: record.HasCounter,
		Cell: record.Cell{Has: record.HasCounter, Sum: expiry, CounterExpiry: expiry}}
}

func gone(key string) CheckpointRecord {
	return CheckpointRecord{Key: []byte(key), OnDisk: record.HasCounter | record.HasValue}
}

func mustWrite(t *testing.T, db *DB, shard uint64, records ...CheckpointRecord) {
	t.Helper()
	if err := db.WriteCheckpoint(Checkpoint{Shard: shard, Records: records}); err != nil {
		t.Fatal(err)
	}
}

func expired(t *testing.T, db *DB, shard uint64, now int64, limit int) ([]string, bool) {
	t.Helper()
	keys, _, more, err := db.Expired(shard, now, limit)
	if err != nil {
		t.Fatal(err)
	}
	var s []string
	for _, k := range keys {
		s = append(s, string(k))
	}
	return s, more
}

func hintsOnDisk(t *testing.T, db *DB, shard uint64) (n int) {
	t.Helper()
	it, err := db.iterate(firstHint(shard), shardEnd(shard))
	if err != nil {
		t.Fatal(err)
	}
	for ok := it.First(); ok; ok = it.Next() {
		n++
	}
	if err := it.Close(); err != nil {
		t.Fatal(err)
	}
	return n
}

func wantKeys(t *testing.T, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Fatalf("expired %q, want %q", got, want)
	}
}

// TestExpiredTellsOnce: once until the next checkpoint, again after it, and
// again after a minute.
func TestExpiredTellsOnce(t *testing.T) {
	db := openMem(t, vfs.NewMem(), Options{})
	mustWrite(t, db, 1, expiringCounter("a", 10), expiringCounter("b", 20), expiringCounter("c", 30), expiringCounter("d", 21))
	mustWrite(t, db, 2, expiringCounter("other", 10))
	keys, more := expired(t, db, 1, 9, 5)
	wantKeys(t, keys)
	if more {
		t.Fatal("more before anything is due")
	}
	keys, more = expired(t, db, 1, 21, 2)
	wantKeys(t, keys, "a", "b")
	if !more {
		t.Fatal("no more, but d is due")
	}
	keys, more = expired(t, db, 1, 21, 2)
	wantKeys(t, keys, "d")
	if more {
		t.Fatal("more, but nothing else is due")
	}
	keys, _ = expired(t, db, 1, 29, 2)
	wantKeys(t, keys)
	keys, _ = expired(t, db, 1, 30, 2)
	wantKeys(t, keys, "c")
	keys, _ = expired(t, db, 1, 9+repeatMillis-1, 9)
	wantKeys(t, keys)
	keys, _ = expired(t, db, 1, 9+repeatMillis, 9)
	wantKeys(t, keys, "a", "b", "d", "c")
	mustWrite(t, db, 2)
	keys, _ = expired(t, db, 1, 9+repeatMillis, 9)
	wantKeys(t, keys)
	mustWrite(t, db, 1, gone("a"))
	keys, _ = expired(t, db, 1, 9+repeatMillis, 9)
	wantKeys(t, keys, "b", "d", "c")
	closeDB(t, db)
}

// TestStaleHintsGo: with the next checkpoint when they are few, at once when
// they are many.
func TestStaleHintsGo(t *testing.T) {
	db := openMem(t, vfs.NewMem(), Options{})
	mustWrite(t, db, 1, expiringCounter("a", 10), expiringCounter("b", 11), expiringCounter("keep", 12))
	mustWrite(t, db, 1, gone("a"), expiringCounter("b", 500))
	keys, _ := expired(t, db, 1, 100, 9)
	wantKeys(t, keys, "keep")
	if n := hintsOnDisk(t, db, 1); n != 4 {
		t.Fatalf("%d hints, want 4: two stale ones wait for the checkpoint", n)
	}
	mustWrite(t, db, 1)
	if n := hintsOnDisk(t, db, 1); n != 2 {
		t.Fatalf("%d hints, want 2", n)
	}
	if s := db.CheckpointStats(); s.StaleHints != 2 {
		t.Fatalf("stats: %+v", s)
	}
	keys, _ = expired(t, db, 1, 500, 9)
	wantKeys(t, keys, "keep", "b")

	var put, remove []CheckpointRecord
	for i := range 3*staleBatch + 10 {
		put = append(put, expiringCounter(fmt.Sprintf("many%d", i), 20))
		remove = append(remove, gone(fmt.Sprintf("many%d", i)))
	}
	mustWrite(t, db, 1, put...)
	mustWrite(t, db, 1, remove...)
	told, calls := 0, 0
	for more := true; more; calls++ {
		keys, more = expired(t, db, 1, 100, 9)
		told += len(keys)
	}
	if n := hintsOnDisk(t, db, 1); n != 2+10 || told != 1 || calls > 6 {
		t.Fatalf("%d hints, want 12; told %d in %d calls", n, told, calls)
	}
	closeDB(t, db)
}

// TestStaleHintComesBack: what was stale when it was found may be needed by
// the very checkpoint that would remove it, or by one after it.
func TestStaleHintComesBack(t *testing.T) {
	fs := vfs.NewMem()
	db := openMem(t, fs, Options{})
	mustWrite(t, db, 1, expiringCounter("a", 10))
	mustWrite(t, db, 1, gone("a"))
	expired(t, db, 1, 100, 9) // finds the hint stale
	mustWrite(t, db, 1, expiringCounter("a", 10))
	mustWrite(t, db, 1)
	closeDB(t, db)
	db = openMem(t, fs, Options{})
	keys, _ := expired(t, db, 1, 100, 9)
	wantKeys(t, keys, "a")
	closeDB(t, db)
}

// TestPassOverAChange: what a pass has read before a checkpoint ended must not
// be used after it.
func TestPassOverAChange(t *testing.T) {
	db := openMem(t, vfs.NewMem(), Options{})
	mustWrite(t, db, 1, expiringCounter("a", 10))
	mustWrite(t, db, 1, gone("a"))
	from, generation, _ := db.sweeps.begin(1, 100)
	p := pass{db: db, shard: 1, limit: 9}
	resume, _, err := p.run(from, shardEnd(1))
	if err != nil || len(p.stale) != 1 {
		t.Fatalf("%q, %v", p.stale, err)
	}
	mustWrite(t, db, 1, expiringCounter("a", 10)) // while the pass is under way
	db.sweeps.end(1, generation, resume, p.stale)
	mustWrite(t, db, 1)
	keys, _ := expired(t, db, 1, 100, 9)
	wantKeys(t, keys, "a")
	closeDB(t, db)
}

// TestSweepOfADroppedShard: nothing is kept of a shard that is not there.
func TestSweepOfADroppedShard(t *testing.T) {
	db := openMem(t, vfs.NewMem(), Options{})
	mustWrite(t, db, 1, expiringCounter("a", 10))
	keys, _ := expired(t, db, 1, 100, 9)
	wantKeys(t, keys, "a")
	if err := db.Drop(1); err != nil {
		t.Fatal(err)
	}
	keys, more := expired(t, db, 1, 100, 9) // by a sweeper that has not heard of it
	wantKeys(t, keys)
	if n := len(db.sweeps.shards); n != 0 || more {
		t.Errorf("%d shards are remembered; more: %v", n, more)
	}
	closeDB(t, db)
}

// TestSweepBesideCheckpoints sweeps while the same few keys get and lose the
// same few expiries: a hint that a record needs must always be there.
func TestSweepBesideCheckpoints(t *testing.T) {
	db := openMem(t, vfs.NewMem(), Options{})
	w := &world{rng: rand.New(rand.NewPCG(1, 1)), disk: diskModel{}, now: 100}
	stop, done := make(chan struct{}), make(chan error, 1)
	go func() {
		for now := int64(50); ; now++ {
			select {
			case <-stop:
				done <- nil
				return
			default:
			}
			if _, _, _, err := db.Expired(1, now%150, 3); err != nil {
				done <- err
				return
			}
		}
	}()
	for range 120 {
		parts := []Checkpoint{w.checkpoint(1)}
		if err := db.WriteCheckpoint(parts...); err != nil {
			t.Fatal(err)
		}
		w.disk.write(parts)
		w.disk.check(t, db)
	}
	close(stop)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	closeDB(t, db)
}
