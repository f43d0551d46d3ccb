package store

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/felix-go/felix/internal/record"
)

// streamed is a record as it goes from one broker to another.
type streamed struct{ key, value string }

// snapshot makes a random state and its records.
func (w *world) snapshot(shard uint64) (*modelShard, []streamed) {
	s := &modelShard{cells: map[string]record.Cell{}, replica: *w.replica()}
	for range w.rng.IntN(30) {
		if c := w.cell(); c.Exists() {
			s.cells[w.key()] = c
		}
	}
	w.index++
	s.applied = record.Applied{Index: w.index, Term: 3, Ceiling: w.now, ConfState: []byte("conf")}
	for _, c := range s.cells {
		s.applied.Counts.Add(record.CountChange(0, c.Has))
	}
	return s, s.records(shard)
}

// records are those of the shard that a snapshot has, in order.
func (s *modelShard) records(shard uint64) []streamed {
	raw := diskModel{shard: s}.rawRecords()
	var all []streamed
	for _, key := range slices.Sorted(maps.Keys(raw)) {
		if class := record.Class(key[8]); class != record.AppliedClass && class != record.ReplicaClass {
			all = append(all, streamed{key[8:], raw[key]})
		}
	}
	return all
}

// receive adds records and finishes.
func receive(db *DB, shard uint64, s *modelShard, records []streamed) (*Install, error) {
	i, err := db.BeginInstall(shard, s.applied, s.replica)
	if err != nil {
		return nil, err
	}
	for _, r := range records {
		if err := i.Add([]byte(r.key), []byte(r.value)); err != nil {
			return i, err
		}
	}
	return i, i.Finish()
}

// install replaces a shard, while another change comes between.
func (w *world) install(t *testing.T, db *DB) {
	t.Helper()
	shard := []uint64{1, 2, 255, 1<<64 - 1}[w.rng.IntN(4)]
	s, records := w.snapshot(shard)
	i, err := receive(db, shard, s, records)
	if err != nil {
		t.Fatal(err)
	}
	w.disk.check(t, db) // as if nothing had come
	if parts := w.parts(); w.rng.IntN(2) == 0 {
		if err := db.WriteCheckpoint(parts...); err != nil {
			t.Fatal(err)
		}
		w.disk.write(parts)
	}
	if w.rng.IntN(5) == 0 {
		if err := i.Abort(); err != nil {
			t.Fatal(err)
		}
		return
	}
	if err := errors.Join(i.Commit(), i.Abort()); err != nil {
		t.Fatal(err)
	}
	w.disk[shard] = s
}

// TestSnapshotStream reads a snapshot from one DB, which drops the shard
// meanwhile, and installs it in another.
func TestSnapshotStream(t *testing.T) {
	for seed := range uint64(6) {
		w := &world{rng: rand.New(rand.NewPCG(seed, 21)), disk: diskModel{}, now: 1000}
		source, target := openMem(t, vfs.NewMem(), Options{FileBytes: 200}), openMem(t, vfs.NewMem(), Options{FileBytes: 300})
		s, records := w.snapshot(7)
		i, err := receive(source, 7, s, records)
		if err = errors.Join(err, i.Commit()); err != nil {
			t.Fatal(err)
		}
		reader, err := source.OpenSnapshot(7)
		if err == nil {
			err = source.Drop(7)
		}
		if err != nil {
			t.Fatal(err)
		}
		got := &modelShard{applied: reader.Applied(), cells: s.cells, replica: record.Replica{RaftID: 77}}
		if fmt.Sprint(got.applied) != fmt.Sprint(s.applied) || reader.EstimatedBytes() <= 0 {
			t.Fatalf("the snapshot is as of %+v, of %d bytes; want %+v", got.applied, reader.EstimatedBytes(), s.applied)
		}
		i, err = receive(target, 7, got, readAll(t, reader))
		if err = errors.Join(err, i.Commit()); err != nil {
			t.Fatal(err)
		}
		reader.Close()
		diskModel{7: got}.check(t, target)
		closeDB(t, source)
		closeDB(t, target)
	}
}

func readAll(t *testing.T, s *SnapshotReader) (all []streamed) {
	t.Helper()
	for {
		key, value, ok, err := s.Next()
		if err != nil {
			t.Fatal(err)
		}
		if !ok {
			return all
		}
		all = append(all, streamed{string(key), string(value)})
	}
}

func TestSnapshotOfNothing(t *testing.T) {
	db := openMem(t, vfs.NewMem(), Options{})
	if err := db.SetReplicas(map[uint64]record.Replica{7: {RaftID: 3}}); err != nil {
		t.Fatal(err)
	}
	mustWrite(t, db, 8, expiringCounter("a", 1))
	for _, shard := range []uint64{6, 7} {
		if s, err := db.OpenSnapshot(shard); err == nil || !strings.Contains(err.Error(), "no state") {
			t.Fatalf("shard %d has a snapshot: %v, %v", shard, s, err)
		}
	}
	closeDB(t, db)
}

// TestSnapshotOfAnUnknownClass: what this build does not know it must not leave out.
func TestSnapshotOfAnUnknownClass(t *testing.T) {
	var fatal recorder
	db := openMem(t, vfs.NewMem(), Options{Fatal: fatal.fatal})
	mustWrite(t, db, 8, expiringCounter("a", 1))
	w := db.newSSTWriter()
	w.key = record.AppendStateKey(nil, 8, 'q', []byte("new"))
	if err := errors.Join(w.set(), db.ingest(w)); err != nil {
		t.Fatal(err)
	}
	s, err := db.OpenSnapshot(8)
	if err != nil {
		t.Fatal(err)
	}
	for ok := true; ok && err == nil; {
		_, _, ok, err = s.Next()
	}
	if !errors.Is(err, record.ErrCorrupt) || len(fatal.all()) != 1 {
		t.Fatalf("%v, fatal %v", err, fatal.all())
	}
	s.Close()
	_ = db.Close()
}

// TestInstallRefusesNonsense: a peer's bad snapshot changes nothing and leaves
// nothing, and the DB goes on.
func TestInstallRefusesNonsense(t *testing.T) {
	counter := string(record.AppendCounter(nil, &record.Cell{Sum: 1, CounterExpiry: 5}))
	value := string(record.AppendValue(nil, &record.Cell{Value: []byte("v")}))
	hint := string(record.AppendExpiryKey(nil, 0, 5, record.CounterClass, []byte("k"))[8:])
	long := strings.Repeat("k", 1<<16)
	good := []streamed{{"ck", counter}, {"vk", value}, {hint, ""}}
	for name, c := range map[string]struct {
		records []streamed
		why     string
	}{
		"no key":             {[]streamed{{"", counter}}, "does not come after"},
		"empty key":          {[]streamed{{"c", counter}}, "key of 0 bytes"},
		"empty key of value": {[]streamed{good[0], {"v", value}}, "key of 0 bytes"},
		"long key":           {[]streamed{{"c" + long, counter}}, "key of 65536 bytes"},
		"long key in a hint": {[]streamed{good[0], good[1], {hint + long, ""}}, "key of 65537 bytes"},
		"applied":            {[]streamed{{"a", "x"}}, "class 'a'"},
		"installing":         {[]streamed{{"i", ""}}, "class 'i'"},
		"replica":            {[]streamed{good[0], {"r", string(record.AppendReplica(nil, record.Replica{RaftID: 1}))}}, "class 'r'"},
		"unknown class":      {[]streamed{{"qk", counter}}, "class 'q'"},
		"bad counter":        {[]streamed{{"ck", counter + "x"}}, "corrupt record"},
		"bad value":          {[]streamed{good[0], {"vk", "\x07"}}, "corrupt record"},
		"bad hint":           {[]streamed{good[0], good[1], {"x1", ""}}, "corrupt record"},
		"hint with a value":  {[]streamed{good[0], good[1], {hint, "x"}}, "hint has a value"},
		"order of classes":   {[]streamed{good[1], good[0], good[2]}, "does not come after"},
		"order of keys":      {[]streamed{{"ck", counter}, {"cj", counter}}, "does not come after"},
		"key twice":          {[]streamed{good[0], good[1], good[2], good[2]}, "does not come after"},
		"too few":            {good[:1], "1 counters, 0 values and 0 ids"},
		"too many":           {[]streamed{good[0], {"ckk", counter}, good[1]}, "2 counters, 1 values and 0 ids"},
		"nothing":            {nil, "0 counters, 0 values and 0 ids"},
	} {
		t.Run(name, func(t *testing.T) {
			fs := vfs.NewMem()
			db := openMem(t, fs, Options{FileBytes: 1})
			mustWrite(t, db, 5, expiringCounter("old", 9))
			before, _, err := readRaw(db, diskModel{})
			if err != nil {
				t.Fatal(err)
			}
			s := &modelShard{applied: record.Applied{Index: 9, Term: 1, Counts: record.Counts{Counters: 1, Values: 1, Keys: 1}}, replica: record.Replica{RaftID: 2}}
			i, err := receive(db, 5, s, c.records)
			if !errors.Is(err, ErrBadSnapshot) || !strings.Contains(err.Error(), c.why) {
				t.Fatalf("%v", err)
			}
			if err := i.Add([]byte(hint+"z"), nil); !errors.Is(err, ErrBadSnapshot) { // also if nobody looked
				t.Fatalf("went on after %v", err)
			}
			if err := i.Finish(); !errors.Is(err, ErrBadSnapshot) {
				t.Fatalf("finished after %v", err)
			}
			if err := errors.Join(i.Abort(), i.Abort()); err != nil {
				t.Fatal(err)
			}
			if left := leftovers(t, fs); len(left) > 0 {
				t.Fatalf("left behind: %q", left)
			}
			after, _, err := readRaw(db, diskModel{})
			if err != nil || !maps.Equal(before, after) {
				t.Fatalf("the disk changed: %q, %v", after, err)
			}
			i, err = receive(db, 5, s, good)
			if err = errors.Join(err, i.Commit()); err != nil {
				t.Fatal(err)
			}
			closeDB(t, db)
		})
	}
}

func leftovers(t *testing.T, fs vfs.FS) (left []string) {
	t.Helper()
	names, err := fs.List("data/state")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if strings.HasSuffix(name, leftoverSuffix) {
			left = append(left, name)
		}
	}
	return left
}

// TestInstallForgetsStaleHints: a hint that was outdated may not be any more.
func TestInstallForgetsStaleHints(t *testing.T) {
	db := openMem(t, vfs.NewMem(), Options{})
	mustWrite(t, db, 1, expiringCounter("k", 10))
	mustWrite(t, db, 1, expiringCounter("k", 99))
	if keys, _, _, err := db.Expired(1, 50, 10); err != nil || len(keys) > 0 { // finds the hint of time 10
		t.Fatalf("%q, %v", keys, err)
	}
	s := &modelShard{applied: record.Applied{Index: 20, Term: 2, Counts: record.Counts{Counters: 1, Keys: 1}}, replica: record.Replica{RaftID: 2},
		cells: map[string]record.Cell{"k": expiringCounter("k", 10).Cell}}
	i, err := receive(db, 1, s, s.records(1))
	if err = errors.Join(err, i.Commit()); err != nil {
		t.Fatal(err)
	}
	mustWrite(t, db, 1, expiringCounter("other", 1000))
	if keys, _, _, err := db.Expired(1, 50, 10); err != nil || len(keys) != 1 {
		t.Fatalf("the record does not expire: %q, %v", keys, err)
	}
	closeDB(t, db)
}

// TestInstallPowerLoss cuts the power at every moment of installs, beside other
// changes: the disk shows the old state or the new one, and the replica record
// always.
func TestInstallPowerLoss(t *testing.T) {
	for seed := range int64(2) {
		h := newHistory(t, seed)
		w := &world{rng: rand.New(rand.NewPCG(uint64(seed), 31)), disk: diskModel{}, now: 1000}
		for range 4 {
			parts := w.parts()
			w.disk.write(parts)
			h.step(t, w.disk.clone(), func() error { return h.db.WriteCheckpoint(parts...) })
			shard := parts[0].Shard
			s, records := w.snapshot(shard)
			w.disk[shard] = s
			h.step(t, w.disk.clone(), func() error {
				i, err := receive(h.db, shard, s, records)
				return errors.Join(err, i.Commit())
			})
		}
		closeDB(t, h.db)
		h.cut("after closing")
		for i, cut := range h.cuts {
			h.check(t, i, cut)
		}
		t.Logf("seed %d: %d power cuts", seed, len(h.cuts))
	}
}

// TestAbandonedInstall: a crash before the Commit leaves nothing.
func TestAbandonedInstall(t *testing.T) {
	mem := vfs.NewCrashableMem()
	db := openMem(t, mem, Options{FileBytes: 50})
	w := &world{rng: rand.New(rand.NewPCG(1, 41)), disk: diskModel{}, now: 1000}
	w.install(t, db)
	s, records := w.snapshot(1)
	if _, err := receive(db, 1, s, records); err != nil {
		t.Fatal(err)
	}
	crashed := mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: w.rng})
	if len(leftovers(t, crashed)) < 3 {
		t.Fatal("the snapshot was not on disk at all")
	}
	closeDB(t, db)
	db = openMem(t, crashed, Options{})
	if left := leftovers(t, crashed); len(left) > 0 {
		t.Fatalf("left behind: %q", left)
	}
	w.disk.check(t, db)
	closeDB(t, db)
}

// TestInstallDiskErrors fails the n-th write operation of an install, for every n.
func TestInstallDiskErrors(t *testing.T) {
	for n := int64(0); ; n++ {
		if failNthOfInstall(t, n) {
			if n < 10 {
				t.Fatalf("only %d operations were failed", n)
			}
			return
		}
	}
}

func failNthOfInstall(t *testing.T, n int64) (whole bool) {
	t.Helper()
	mem := vfs.NewCrashableMem()
	var armed atomic.Bool
	var left atomic.Int64
	left.Store(n)
	boom := errors.New("boom")
	inj := errorfs.InjectorFunc(func(op errorfs.Op) error {
		if armed.Load() && op.Kind.ReadOrWrite() == errorfs.OpIsWrite && op.Kind != errorfs.OpFileClose && op.Kind != errorfs.OpRemove &&
			left.Add(-1) == -1 {
			return boom
		}
		return nil
	})
	var fatal recorder
	db := openMem(t, errorfs.Wrap(mem, inj), Options{Fatal: fatal.fatal, FileBytes: 50})
	w := &world{rng: rand.New(rand.NewPCG(5, 5)), disk: diskModel{}, now: 100}
	parts := w.parts()
	if err := db.WriteCheckpoint(parts...); err != nil {
		t.Fatal(err)
	}
	w.disk.write(parts)
	old := w.disk.clone()
	shard := parts[0].Shard
	s, records := w.snapshot(shard)
	w.disk[shard] = s
	armed.Store(true)
	i, err := receive(db, shard, s, records)
	if err == nil {
		err = i.Commit()
	}
	armed.Store(false)
	if err == nil {
		w.disk.check(t, db)
		closeDB(t, db)
		return true
	}
	if !strings.Contains(err.Error(), "boom") || errors.Is(err, ErrBadSnapshot) {
		t.Fatalf("operation %d: %v", n, err)
	}
	if i != nil {
		_ = i.Abort()
	}
	if err := db.Close(); err == nil || len(fatal.all()) != 1 {
		t.Fatalf("operation %d: Close: %v; fatal %v", n, err, fatal.all())
	}
	db = openMem(t, mem.CrashClone(vfs.CrashCloneCfg{}), Options{})
	if errOld, errNew := old.diff(db), w.disk.diff(db); errOld != nil && errNew != nil {
		t.Fatalf("operation %d: the disk is neither old (%v) nor new (%v)", n, errOld, errNew)
	}
	closeDB(t, db)
	return false
}

// TestReplicaRecords: they are there from SetReplicas or the first checkpoint
// on, whatever happens to the shard, until it is dropped.
func TestReplicaRecords(t *testing.T) {
	fs := vfs.NewMem()
	db := openMem(t, fs, Options{})
	want := diskModel{}
	set := map[uint64]record.Replica{1: {RaftID: 7, Consistency: 1}, 300: {RaftID: 8}}
	for shard, r := range set {
		want.shard(shard).replica = r
	}
	if err := errors.Join(db.SetReplicas(set), db.SetReplicas(nil)); err != nil {
		t.Fatal(err)
	}
	want.check(t, db) // no state, but shards
	first := Checkpoint{Shard: 2, Applied: record.Applied{Index: 1, Term: 1, ConfState: []byte{1}}, Replica: &record.Replica{RaftID: 9}}
	value := CheckpointRecord{Key: []byte("k"), Cell: record.Cell{Has: record.HasCounter | record.HasValue, Value: []byte("v")}}
	for _, p := range []Checkpoint{first,
		{Shard: 1, Applied: record.Applied{Index: 5, ConfState: []byte{1}}, Records: []CheckpointRecord{value}},
		{Shard: 1, Applied: record.Applied{Index: 6, ConfState: []byte{1}}, Clear: true},
		{Shard: 2, Applied: record.Applied{Index: 2, ConfState: []byte{1}}, Clear: true, Records: []CheckpointRecord{value}},
	} {
		if err := db.WriteCheckpoint(p); err != nil {
			t.Fatal(err)
		}
		want.write([]Checkpoint{p})
		want.check(t, db)
	}
	closeDB(t, db)
	db = openMem(t, fs, Options{})
	want.check(t, db)
	if err := db.Drop(1, 300); err != nil {
		t.Fatal(err)
	}
	delete(want, 1)
	delete(want, 300)
	want.check(t, db)
	closeDB(t, db)
}

func TestReplicaWithoutRaftIDIsRefused(t *testing.T) {
	var fatal recorder
	db := openMem(t, vfs.NewMem(), Options{Fatal: fatal.fatal})
	if err := db.SetReplicas(map[uint64]record.Replica{1: {}}); err == nil || len(fatal.all()) != 1 {
		t.Fatalf("%v, fatal %v", err, fatal.all())
	}
	_ = db.Close()
}

// TestTableInstall: a snapshot replaces a table that is dirty, being captured
// and being loaded into.
func TestTableInstall(t *testing.T) {
	for _, whole := range []bool{false, true} {
		budget := &Budget{MaxBytes: 1 << 20}
		table := NewTable(record.Applied{Index: 1, Term: 1, Counts: record.Counts{Counters: 3, Keys: 3}}, budget)
		_, loading := table.Find([]byte("loading"))
		ref, generation := table.MarkLoading(0, []byte("loading")), table.Generation()
		payload := record.AppendPutCounter(record.AppendHeader(nil, record.Header{Base: 9, Change: record.Counts{Counters: 1, Keys: 1}}), []byte("dirty"), 5, 0, 0)
		if err := table.Apply(2, 1, payload, nil); err != nil || loading != Unloaded {
			t.Fatal(err, loading)
		}
		capture := table.BeginCheckpoint()
		if whole {
			table.CaptureSlice(capture, 10)
		}
		conf := []byte("conf")
		a := record.Applied{Index: 50, Term: 3, Ceiling: 7, Version: 8, Counts: record.Counts{Counters: 1, Keys: 1}, ConfState: conf}
		table.Install(a)
		clear(conf)
		if got := table.Applied(); got.Index != 50 || !bytes.Equal(got.ConfState, []byte("conf")) || got.Counts != a.Counts {
			t.Fatalf("applied is %+v", got)
		}
		if !capture.Aborted() || table.DirtyEntries() != 0 || table.DiskVoid() || budget.DirtyBytes() != 0 {
			t.Fatalf("aborted %v, %d dirty, void %v", capture.Aborted(), table.DirtyEntries(), table.DiskVoid())
		}
		table.Abandon(capture) // as its checkpointer does, whichever comes first
		if table.Bytes() != 0 || budget.UsedBytes() != 0 {
			t.Fatalf("%d bytes are used, of %d", table.Bytes(), budget.UsedBytes())
		}
		table.Loaded(ref, generation, &record.Cell{Has: record.HasCounter, Sum: 3})
		for _, key := range []string{"loading", "dirty", "new"} {
			if _, p := table.Find([]byte(key)); p != Unloaded {
				t.Fatalf("%q is %v after a snapshot", key, p)
			}
		}
		next := table.BeginCheckpoint()
		if !table.CaptureSlice(next, 10) || next.Checkpoint.Clear || len(next.Checkpoint.Records) != 0 || !table.FinishSlice(next, 10) {
			t.Fatalf("the next checkpoint is %+v", next.Checkpoint)
		}
	}
}

// TestTableInstallOverAClear: the disk counts again.
func TestTableInstallOverAClear(t *testing.T) {
	table := NewTable(record.Applied{Index: 1}, &Budget{MaxBytes: 1 << 20})
	if err := table.Apply(2, 1, record.AppendClear(record.AppendHeader(nil, record.Header{})), nil); err != nil || !table.DiskVoid() {
		t.Fatal(err)
	}
	table.Install(record.Applied{Index: 9})
	if table.DiskVoid() || table.BeginCheckpoint().Checkpoint.Clear {
		t.Fatal("the next checkpoint clears what the snapshot brought")
	}
}
