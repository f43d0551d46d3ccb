package store

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/felix-go/felix/internal/record"
)

// diskModel is what a DB must hold: the dumbest thing that can be right.
type diskModel map[uint64]*modelShard

type modelShard struct {
	uninit  bool // there is no state, only a replica
	applied record.Applied
	cells   map[string]record.Cell
	replica record.Replica // without a RaftID: there is none
}

func (m diskModel) clone() diskModel {
	c := diskModel{}
	for shard, s := range m {
		c[shard] = &modelShard{uninit: s.uninit, applied: s.applied, cells: maps.Clone(s.cells), replica: s.replica}
	}
	return c
}

func (m diskModel) shard(id uint64) *modelShard {
	if m[id] == nil {
		m[id] = &modelShard{uninit: true, cells: map[string]record.Cell{}}
	}
	return m[id]
}

func (m diskModel) write(parts []Checkpoint) {
	for _, p := range parts {
		s := m.shard(p.Shard)
		if p.Clear {
			s.cells = map[string]record.Cell{}
		}
		if p.Replica != nil {
			s.replica = *p.Replica
		}
		s.uninit, s.applied = false, p.Applied
		for _, r := range p.Records {
			if r.Cell.Exists() {
				s.cells[string(r.Key)] = r.Cell
			} else {
				delete(s.cells, string(r.Key))
			}
		}
	}
}

// rawRecords are the keys and values that must be on disk, hints included.
func (m diskModel) rawRecords() map[string]string {
	raw := map[string]string{}
	for shard, s := range m {
		if !s.uninit {
			raw[string(record.AppendStateKey(nil, shard, record.AppliedClass, nil))] = string(record.AppendApplied(nil, s.applied))
		}
		if s.replica.RaftID != 0 {
			raw[string(record.AppendStateKey(nil, shard, record.ReplicaClass, nil))] = string(record.AppendReplica(nil, s.replica))
		}
		for key, c := range s.cells {
			if c.Has&record.HasCounter != 0 {
				raw[string(record.AppendStateKey(nil, shard, record.CounterClass, []byte(key)))] = string(record.AppendCounter(nil, &c))
				if c.CounterExpiry != 0 {
					raw[string(record.AppendExpiryKey(nil, shard, c.CounterExpiry, record.CounterClass, []byte(key)))] = ""
				}
			}
			if c.Has&record.HasValue != 0 {
				raw[string(record.AppendStateKey(nil, shard, record.ValueClass, []byte(key)))] = string(record.AppendValue(nil, &c))
				if c.ValueExpiry != 0 {
					raw[string(record.AppendExpiryKey(nil, shard, c.ValueExpiry, record.ValueClass, []byte(key)))] = ""
				}
			}
		}
	}
	return raw
}

// diff compares the disk with the model, record by record; hints that are
// outdated may be there besides.
func (m diskModel) diff(db *DB) error {
	raw, stale, err := readRaw(db, m)
	if err != nil {
		return err
	}
	for _, k := range stale {
		delete(raw, k)
	}
	want := m.rawRecords()
	for k, v := range want {
		if got, ok := raw[k]; !ok || got != v {
			return fmt.Errorf("record %q: disk has %q (there: %v), want %q", k, got, ok, v)
		}
	}
	for k := range raw {
		if _, ok := want[k]; !ok {
			return fmt.Errorf("record %q should not be on disk", k)
		}
	}
	return nil
}

func readRaw(db *DB, m diskModel) (raw map[string]string, stale []string, err error) {
	it, err := db.kv.NewIter(nil)
	if err != nil {
		return nil, nil, err
	}
	raw = map[string]string{}
	want := m.rawRecords()
	for ok := it.First(); ok; ok = it.Next() {
		k := string(it.Key())
		raw[k] = string(it.Value())
		if _, ok := want[k]; !ok && k[8] == byte(record.ExpiryClass) && len(k) > 9 {
			stale = append(stale, k)
		}
	}
	return raw, stale, it.Close()
}

// check fails the test where the disk differs from the model.
func (m diskModel) check(t *testing.T, db *DB) {
	t.Helper()
	if err := m.diff(db); err != nil {
		t.Fatal(err)
	}
	shards, err := db.Shards()
	if want := slices.Sorted(maps.Keys(m)); err != nil || !slices.Equal(shards, want) {
		t.Fatalf("Shards: %v, %v; want %v", shards, err, want)
	}
	for shard, s := range m {
		a, ok, err := db.Applied(shard)
		if err != nil || ok == s.uninit || !reflect.DeepEqual(a, s.applied) {
			t.Fatalf("Applied(%d): %+v, %v, %v; want %+v", shard, a, ok, err, s.applied)
		}
		r, ok, err := db.Replica(shard)
		if err != nil || ok != (s.replica.RaftID != 0) || r != s.replica {
			t.Fatalf("Replica(%d): %+v, %v, %v; want %+v", shard, r, ok, err, s.replica)
		}
	}
}

// recorder is a Fatal that remembers.
type recorder struct {
	mu   sync.Mutex
	errs []error
}

func (r *recorder) fatal(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.errs = append(r.errs, err)
}

func (r *recorder) all() []error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.errs)
}

func quiet() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

// openMem opens a DB on fs whose fatal errors fail the test.
func openMem(t testing.TB, fs vfs.FS, o Options) *DB {
	t.Helper()
	o.FS, o.Logger = fs, quiet()
	if o.Fatal == nil {
		o.Fatal = func(err error) { t.Errorf("fatal: %v", err) }
	}
	db, err := Open("data/state", o)
	if err != nil {
		t.Fatal(err)
	}
	return db
}

func closeDB(t testing.TB, db *DB) {
	t.Helper()
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
}

// world makes random checkpoints that fit what is on disk.
type world struct {
	rng   *rand.Rand
	disk  diskModel
	index uint64
	now   int64
}

var worldKeys = []string{"a", "a\x00", "b", "ba", "bab", "b\xff", "b\xff\xff", "c{1}", "\x00", "\xff", "\xff\xff", "user:1", "user:10", "user:2"}

func (w *world) key() string {
	if w.rng.IntN(2) == 0 {
		return worldKeys[w.rng.IntN(len(worldKeys))]
	}
	return fmt.Sprintf("user:%05d", w.rng.IntN(40))
}

func (w *world) expiry() int64 {
	if w.rng.IntN(2) == 0 {
		return 0
	}
	return w.now + w.rng.Int64N(20) - 5 // few different ones, so that they recur
}

func (w *world) cell() (c record.Cell) {
	w.index++
	if w.rng.IntN(3) > 0 {
		c.Has |= record.HasCounter
		c.Sum, c.CounterExpiry, c.CounterVer = w.rng.Int64()-w.rng.Int64(), w.expiry(), 2<<40|(w.index)
	}
	if w.rng.IntN(3) == 0 {
		c.Has |= record.HasValue
		c.Value = bytes.Repeat([]byte{byte(w.index)}, w.rng.IntN(50))
		c.ValueExpiry, c.ValueVer = w.expiry(), 2<<40|(w.index)
	}
	return c
}

func (w *world) checkpoint(shard uint64) Checkpoint {
	p := Checkpoint{Shard: shard, Clear: w.rng.IntN(12) == 0}
	seen := map[string]bool{}
	for range w.rng.IntN(12) {
		key := w.key()
		if seen[key] {
			continue
		}
		seen[key] = true
		r := CheckpointRecord{Key: []byte(key), Cell: w.cell(), OnDisk: record.Has(w.rng.IntN(4))}
		if s := w.disk[shard]; s != nil {
			r.OnDisk |= s.cells[key].Has // may say too much, never too little
		}
		p.Records = append(p.Records, r)
	}
	w.rng.Shuffle(len(p.Records), func(i, j int) { p.Records[i], p.Records[j] = p.Records[j], p.Records[i] })
	if w.rng.IntN(10) == 0 {
		p.Replica = w.replica()
	}
	w.index++
	p.Applied = record.Applied{Index: w.index, Term: 2, Ceiling: w.now,
		Counts: record.Counts{Counters: 1, Values: 2, Keys: 3}, ConfState: []byte{byte(w.index), 1}}
	return p
}

func (w *world) replica() *record.Replica {
	return &record.Replica{RaftID: 1 + w.rng.Uint64N(300), Consistency: byte(w.rng.IntN(2))}
}

// parts are checkpoints of one to three shards.
func (w *world) parts() (parts []Checkpoint) {
	shards := []uint64{1, 2, 3, 255, 256, 1<<64 - 1}
	w.rng.Shuffle(len(shards), func(i, j int) { shards[i], shards[j] = shards[j], shards[i] })
	for _, shard := range shards[:1+w.rng.IntN(3)] {
		parts = append(parts, w.checkpoint(shard))
	}
	return parts
}

// TestDBAgainstModel runs random histories of checkpoints, drops, sweeps and
// reopens, in files so small that a checkpoint needs several.
func TestDBAgainstModel(t *testing.T) {
	for seed := range uint64(9) {
		w := &world{rng: rand.New(rand.NewPCG(seed, 5)), disk: diskModel{}, now: 1000}
		fs := vfs.NewMem()
		o := Options{FileBytes: []int64{100, 300, 1 << 20}[seed%3]}
		db := openMem(t, fs, o)
		for range 25 {
			w.now += w.rng.Int64N(5)
			switch w.rng.IntN(10) {
			case 0:
				closeDB(t, db)
				db = openMem(t, fs, o)
			case 1:
				shard := []uint64{1, 255, 1<<64 - 1}[w.rng.IntN(3)]
				if err := db.Drop(shard, 2); err != nil {
					t.Fatal(err)
				}
				delete(w.disk, shard)
				delete(w.disk, 2)
			case 2:
				w.sweep(t, db)
			case 3:
				if err := db.SetReplicas(w.setReplicas()); err != nil {
					t.Fatal(err)
				}
			case 4, 5:
				w.install(t, db)
			default:
				parts := w.parts()
				if err := db.WriteCheckpoint(parts...); err != nil {
					t.Fatal(err)
				}
				w.disk.write(parts)
			}
			w.disk.check(t, db)
			w.loads(t, db)
			if t.Failed() {
				t.Fatalf("seed %d", seed)
			}
		}
		closeDB(t, db)
	}
}

// setReplicas makes random replica records and notes them in the model.
func (w *world) setReplicas() map[uint64]record.Replica {
	replicas := map[uint64]record.Replica{}
	for _, shard := range []uint64{1, 255, 256}[:1+w.rng.IntN(3)] {
		replicas[shard] = *w.replica()
		w.disk.shard(shard).replica = replicas[shard]
	}
	return replicas
}

// sweep compares Expired with the model.
func (w *world) sweep(t *testing.T, db *DB) {
	t.Helper()
	for shard, s := range w.disk {
		due := map[string]bool{}
		for key, c := range s.cells {
			if c.CounterExpiry != 0 && c.CounterExpiry <= w.now || c.ValueExpiry != 0 && c.ValueExpiry <= w.now {
				due[key] = true
			}
		}
		db.sweeps.changed([]Checkpoint{{Shard: shard}}) // so that it tells all of them again
		told := map[string]bool{}
		for more := true; more; {
			var keys [][]byte
			var err error
			limit := 1 + w.rng.IntN(4)
			if keys, _, more, err = db.Expired(shard, w.now, limit); err != nil || len(keys) > limit {
				t.Fatalf("Expired: %q, %v with limit %d", keys, err, limit)
			}
			for _, k := range keys {
				told[string(k)] = true
			}
		}
		if !maps.Equal(due, told) {
			t.Fatalf("shard %d at %d: expired %v, want %v", shard, w.now, told, due)
		}
	}
}

func (w *world) loads(t *testing.T, db *DB) {
	t.Helper()
	for range 10 {
		shard, key := uint64(1+w.rng.IntN(3)), w.key()
		var want record.Cell
		if s := w.disk[shard]; s != nil {
			want = s.cells[key]
		}
		got := record.Cell{Sum: 99, Value: []byte("left over")}
		if err := db.Load(shard, []byte(key), &got); err != nil || !sameCell(got, want) {
			t.Fatalf("Load(%d, %q): %+v, %v; want %+v", shard, key, got, err, want)
		}
	}
}

func sameCell(a, b record.Cell) bool {
	same := bytes.Equal(a.Value, b.Value)
	a.Value, b.Value = nil, nil
	return same && reflect.DeepEqual(a, b)
}

func TestWriteCheckpointRefusesNonsense(t *testing.T) {
	counter := record.Cell{Has: record.HasCounter, Sum: 1}
	for name, parts := range map[string][]Checkpoint{
		"shard twice":   {{Shard: 1}, {Shard: 1}},
		"key twice":     {{Shard: 1, Records: []CheckpointRecord{{Key: []byte("k"), Cell: counter}, {Key: []byte("j")}, {Key: []byte("k")}}}},
		"empty key":     {{Shard: 1, Records: []CheckpointRecord{{Key: nil, Cell: counter}}}},
		"odd expiry":    {{Shard: 1, Records: []CheckpointRecord{{Key: []byte("k"), Cell: record.Cell{Has: record.HasValue, ValueExpiry: -1}}}}},
		"second is bad": {{Shard: 1, Records: []CheckpointRecord{{Key: []byte("k"), Cell: counter}}}, {Shard: 2, Records: []CheckpointRecord{{}}}},
	} {
		t.Run(name, func(t *testing.T) {
			var fatal recorder
			fs := vfs.NewMem()
			db := openMem(t, fs, Options{Fatal: fatal.fatal})
			err := db.WriteCheckpoint(parts...)
			if err == nil || len(fatal.all()) != 1 || !errors.Is(fatal.all()[0], err) {
				t.Fatalf("got %v, fatal %v", err, fatal.all())
			}
			if err2 := db.Load(1, []byte("k"), &counter); err2 != err {
				t.Fatalf("Load after the failure: %v", err2)
			}
			if err := db.Close(); err == nil {
				t.Fatal("Close hides the failure")
			}
			db = openMem(t, fs, Options{})
			diskModel{}.check(t, db)
			closeDB(t, db)
		})
	}
}

// TestLargeCheckpoint splits millions of bytes over files of the usual way and
// clears the shard in the same checkpoint.
func TestLargeCheckpoint(t *testing.T) {
	fs := vfs.NewMem()
	db := openMem(t, fs, Options{FileBytes: 64 << 10})
	disk := diskModel{}
	for round := range 3 {
		p := Checkpoint{Shard: 9, Clear: true, Applied: record.Applied{Index: uint64(round)}}
		for i := range 8000 {
			p.Records = append(p.Records, CheckpointRecord{Key: fmt.Appendf(nil, "k%d", i*(round+1)),
				Cell: record.Cell{Has: record.HasCounter, Sum: int64(round), CounterExpiry: int64(1 + i%7)}})
		}
		if err := db.WriteCheckpoint(p); err != nil {
			t.Fatal(err)
		}
		disk.write([]Checkpoint{p})
		disk.check(t, db)
	}
	if s := db.CheckpointStats(); s.Files < 9 || s.Checkpoints != 3 || s.Records != 24000 || s.Bytes == 0 {
		t.Fatalf("stats: %+v", s)
	}
	if n := db.PebbleMetrics().Ingest.Count; n != 3 {
		t.Fatalf("%d ingests, want one a checkpoint", n)
	}
	closeDB(t, db)
}
