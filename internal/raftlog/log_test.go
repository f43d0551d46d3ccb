package raftlog

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
)

func TestGroupCommitIsOneSync(t *testing.T) {
	var hooked []time.Duration
	o := smallOptions(t, vfs.NewMem())
	o.MemTableBytes = 1 << 20
	o.OnSync = func(d time.Duration) { hooked = append(hooked, d) }
	l := mustOpen(t, o)
	defer mustClose(t, l)
	before, told := l.Stats(), len(hooked)
	var appends []Append
	for id := uint64(1); id <= 100; id++ {
		appends = append(appends, Append{Shard: mustShard(t, l, id), Entries: entries(1, 3, 1), HardState: hard(1, 1, 2), Sync: id == 50})
	}
	mustCommit(t, l, appends...)
	after := l.Stats()
	if after.Commits-before.Commits != 1 || after.Syncs-before.Syncs != 1 || len(hooked) != told+1 {
		t.Errorf("100 shards took %d batches, %d syncs, %d hooks", after.Commits-before.Commits, after.Syncs-before.Syncs, len(hooked)-told)
	}
	if after.WrittenBytes-before.WrittenBytes < 100*3*20 {
		t.Errorf("%+v", after)
	}
	for _, a := range appends {
		if im := imageOf(t, a.Shard); im.last() != 3 || im.hard.commit != 2 {
			t.Errorf("shard %d: %v", a.Shard.ID(), im)
		}
	}
	ids, err := l.Shards()
	if err != nil || len(ids) != 100 || ids[0] != 1 || ids[99] != 100 || !slices.IsSorted(ids) {
		t.Errorf("Shards() = %v, %v", ids, err)
	}
	if m := l.Metrics(); m == nil || m.WAL.BytesIn == 0 {
		t.Errorf("Metrics() = %v", m)
	}
}

// TestCommitIndexRidesAlong: a hard state that needs no sync costs no write, and
// is written with the next batch.
func TestCommitIndexRidesAlong(t *testing.T) {
	o := smallOptions(t, vfs.NewCrashableMem())
	l := mustOpen(t, o)
	defer mustClose(t, l)
	s, other := mustShard(t, l, 1), mustShard(t, l, 2)
	mustCommit(t, l, Append{Shard: s, Entries: entries(1, 3, 1), HardState: hard(1, 1, 0), Sync: true})
	before := l.Stats().Commits
	mustCommit(t, l, Append{Shard: s, HardState: hard(1, 1, 3)})
	if n := l.Stats().Commits - before; n != 0 || s.hardState().commit != 3 {
		t.Errorf("a commit index took %d writes; it is %d", n, s.hardState().commit)
	}
	if got := crashed(t, o, 1); got.hard.commit != 0 {
		t.Errorf("a commit index was on disk: %v", got)
	}
	mustCommit(t, l, Append{Shard: other, Entries: entries(1, 1, 1), Sync: true})
	if got := crashed(t, o, 1); got.hard.commit != 3 || got.last() != 3 {
		t.Errorf("after the next batch: %v", got)
	}
	// Entries without a sync wait for the next one, even one that is for
	// nothing else.
	mustCommit(t, l, Append{Shard: s, Entries: entries(4, 1, 1)})
	mustCommit(t, l, Append{Shard: other, Sync: true})
	if got := crashed(t, o, 1); got.last() != 4 {
		t.Errorf("after an empty append with a sync: %v", got)
	}
}

// crashed is a shard after a power cut now.
func crashed(t *testing.T, o Options, id uint64) image {
	t.Helper()
	o.FS = o.FS.(*vfs.MemFS).CrashClone(vfs.CrashCloneCfg{})
	l := mustOpen(t, o)
	defer mustClose(t, l)
	return imageOf(t, mustShard(t, l, id))
}

func TestDrop(t *testing.T) {
	o := smallOptions(t, vfs.NewCrashableMem())
	l := mustOpen(t, o)
	defer mustClose(t, l)
	var shards []*Shard
	for _, id := range []uint64{1, 2, 3, math.MaxUint64} {
		s := mustShard(t, l, id)
		mustCommit(t, l, Append{Shard: s, Entries: entries(1, 3, 1), HardState: hard(1, 1, 1), Sync: true})
		shards = append(shards, s)
	}
	if err := shards[1].Compact(2); err != nil { // it waits when the shard goes
		t.Fatal(err)
	}
	if err := l.Drop(2, math.MaxUint64, 77, 0); err != nil {
		t.Fatal(err)
	}
	// What was under way for it must not bring it back.
	mustCommit(t, l, Append{Shard: shards[1], Entries: entries(4, 1, 1), HardState: hard(2, 1, 1), Sync: true})
	for range 2 {
		if ids, err := l.Shards(); err != nil || !slices.Equal(ids, []uint64{1, 3}) {
			t.Fatalf("Shards() = %v, %v", ids, err)
		}
		if im := crashed(t, o, 2); !im.equal(image{}) {
			t.Errorf("after Drop and a power cut: %v", im)
		}
		if im := imageOf(t, mustShard(t, l, 2)); !im.equal(image{}) {
			t.Errorf("after Drop: %v", im)
		}
		if im := imageOf(t, mustShard(t, l, 3)); im.last() != 3 {
			t.Errorf("the neighbour: %v", im)
		}
		mustClose(t, l)
		l = mustOpen(t, o)
	}
}

func TestShardsCountsWhatRidesAlong(t *testing.T) {
	l := mustOpen(t, smallOptions(t, vfs.NewMem()))
	defer mustClose(t, l)
	mustShard(t, l, 4) // has nothing
	mustCommit(t, l, Append{Shard: mustShard(t, l, 9), HardState: hard(1, 1, 0)})
	if ids, err := l.Shards(); err != nil || !slices.Equal(ids, []uint64{9}) {
		t.Errorf("Shards() = %v, %v", ids, err)
	}
	if _, err := l.Shard(0); err == nil {
		t.Error("shard 0 was opened")
	}
	if s, again := mustShard(t, l, 9), mustShard(t, l, 9); s != again {
		t.Error("two Shards for one id")
	}
}

func TestPrepareRestart(t *testing.T) {
	full := []Append{{Reset: &Reset{Index: 10, Term: 2}, Entries: append(entries(11, 5, 3), entries(16, 5, 4)...), HardState: hard(5, 7, 12), Sync: true}}
	announced := Append{Install: &Reset{Index: 25, Term: 5}, HardState: hard(6, 7, 25), Sync: true}
	other := Append{Install: &Reset{Index: 15, Term: 5}, HardState: hard(6, 7, 15), Sync: true}
	for name, c := range map[string]struct {
		log         []Append
		index, term uint64
		start       position // after it
		last        uint64
		hard        hardState
		corrupt     string // or this
	}{
		"new shard, no state": {},
		"new shard, state":    {index: 5, term: 2, start: position{5, 2}, last: 5, hard: hardState{2, 0, 5}},
		"commit above":        {log: full, index: 11, term: 3, start: position{10, 2}, last: 20, hard: hardState{5, 7, 12}},
		"commit below":        {log: full, index: 18, term: 4, start: position{10, 2}, last: 20, hard: hardState{5, 7, 18}},
		"at the start":        {log: full, index: 10, term: 2, start: position{10, 2}, last: 20, hard: hardState{5, 7, 12}},
		"at the end":          {log: full, index: 20, term: 4, start: position{10, 2}, last: 20, hard: hardState{5, 7, 20}},
		"log too short":       {log: full, index: 25, term: 5, corrupt: "entry 25 is applied, but the log ends with entry 20: synced data is missing"},
		"other term":          {log: full, index: 11, term: 4, corrupt: "entry 11 of term 4 is applied, but the log has one of term 3"},
		"never voted":         {log: []Append{{Entries: entries(1, 3, 1)}}, index: 5, term: 2, start: position{5, 2}, last: 5, hard: hardState{2, 0, 5}},
		"state too old":       {log: full, index: 9, term: 2, corrupt: "begins after entry 10"},
		"no state":            {log: full, corrupt: "begins after entry 10"},
		"vote lost":           {log: full, index: 25, term: 6, corrupt: "hard state is of term 5"},
		"installed":           {log: append(full, announced), index: 25, term: 5, start: position{25, 5}, last: 25, hard: hardState{6, 7, 25}},
		"installed over":      {log: append(full, other), index: 15, term: 5, start: position{15, 5}, last: 15, hard: hardState{6, 7, 15}},
		"not installed":       {log: append(full, announced), index: 18, term: 4, start: position{10, 2}, last: 20, hard: hardState{6, 7, 18}},
		"installed something": {log: append(full, announced), index: 26, term: 5, corrupt: "entry 26 is applied, but the log ends with entry 20"},
		"installed another":   {log: append(full, announced), index: 25, term: 6, corrupt: "entry 25 is applied, but the log ends with entry 20"},
		"installed nothing":   {log: []Append{announced}, index: 25, term: 5, start: position{25, 5}, last: 25, hard: hardState{6, 7, 25}},
		"installed no more":   {log: append(full, announced, Append{Reset: &Reset{Index: 25, Term: 5}}, Append{Reset: &Reset{Index: 20, Term: 5}}), index: 25, term: 5, corrupt: "ends with entry 20"},
		"no snapshot yet":     {log: []Append{announced}, hard: hardState{6, 7, 0}},
		"entries lost":        {log: []Append{{Entries: entries(1, 3, 1), HardState: hard(1, 1, 9)}}, index: 2, term: 1, corrupt: "ends with entry 3"},
	} {
		t.Run(name, func(t *testing.T) {
			o := smallOptions(t, vfs.NewCrashableMem())
			l := mustOpen(t, o)
			defer mustClose(t, l)
			s := mustShard(t, l, 1)
			for _, a := range c.log {
				a.Shard = s
				mustCommit(t, l, a)
			}
			before := imageOf(t, s)
			err := s.PrepareRestart(c.index, c.term)
			if c.corrupt != "" {
				if !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), c.corrupt) || !imageOf(t, s).equal(before) {
					t.Errorf("PrepareRestart() = %v", err)
				}
				return
			}
			im := imageOf(t, s)
			if err != nil || im.start != c.start || im.last() != c.last || im.hard != c.hard || im.install != (position{}) {
				t.Fatalf("PrepareRestart() = %v: %v", err, im)
			}
			if im.start != before.start && !crashed(t, o, 1).equal(im) {
				t.Errorf("after a power cut: %v; want %v", crashed(t, o, 1), im)
			}
			if c.index > 0 {
				if _, err := raft.NewRawNode(&raft.Config{ID: 1, Applied: c.index, Storage: s, ElectionTick: 10,
					HeartbeatTick: 1, MaxSizePerMsg: 1, MaxInflightMsgs: 1, AsyncStorageWrites: true}); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// TestInstall: at every step of installing a snapshot a crash leaves a log that
// fits the state of before, or the new one; and once it was settled at a start,
// a log that lacks what is applied is damage again.
func TestInstall(t *testing.T) {
	o := smallOptions(t, vfs.NewCrashableMem())
	l := mustOpen(t, o)
	defer mustClose(t, l)
	s := mustShard(t, l, 1)
	mustCommit(t, l, Append{Shard: s, Reset: &Reset{Index: 10, Term: 2}, Entries: entries(11, 5, 3), HardState: hard(3, 7, 12), Sync: true})
	want := imageOf(t, s)
	mustCommit(t, l, want.announce(Append{Shard: s}, 40, 3)) // its commit index, 40, would be a lie
	for name, im := range map[string]image{"memory": imageOf(t, s), "disk": crashed(t, o, 1)} {
		if !im.equal(want) {
			t.Fatalf("announced, %s: %v; want %v", name, im, want)
		}
	}
	for state, c := range map[position]image{
		{index: 12, term: 3}: {start: position{10, 2}, entries: entries(11, 5, 3), hard: hardState{4, 0, 12}},
		{index: 40, term: 3}: {start: position{40, 3}, hard: hardState{4, 0, 40}},
	} {
		t.Run(fmt.Sprint("a crash with the state at ", state.index), func(t *testing.T) {
			o := o
			o.FS = o.FS.(*vfs.MemFS).CrashClone(vfs.CrashCloneCfg{})
			l := mustOpen(t, o)
			s := mustShard(t, l, 1)
			if err := s.PrepareRestart(state.index, state.term); err != nil || !imageOf(t, s).equal(c) {
				t.Fatalf("%v: %v; want %v", err, imageOf(t, s), c)
			}
			mustClose(t, l)
			l = mustOpen(t, o)
			s = mustShard(t, l, 1)
			if err := s.PrepareRestart(50, 3); !errors.Is(err, ErrCorrupt) || !imageOf(t, s).equal(c) {
				t.Fatalf("a log that lacks entry 50: %v: %v", err, imageOf(t, s))
			}
			if state.index == 12 {
				if err := s.PrepareRestart(40, 3); !errors.Is(err, ErrCorrupt) {
					t.Fatalf("the announcement outlived the start: %v", err)
				}
			}
			mustClose(t, l)
		})
	}
	mustCommit(t, l, Append{Shard: s, Reset: &Reset{Index: 40, Term: 3}, Entries: entries(41, 2, 4), HardState: hard(4, 0, 40), Sync: true})
	want = image{start: position{40, 3}, entries: entries(41, 2, 4), hard: hardState{4, 0, 40}}
	if im := crashed(t, o, 1); !im.equal(want) {
		t.Fatalf("installed: %v; want %v", im, want)
	}
}

// TestResetBackwards: a reset may also go back, even while a compaction waits.
func TestResetBackwards(t *testing.T) {
	o := smallOptions(t, vfs.NewMem())
	l := mustOpen(t, o)
	s := mustShard(t, l, 1)
	mustCommit(t, l, Append{Shard: s, Entries: entries(1, 20, 1), Sync: true})
	if err := s.Compact(15); err != nil {
		t.Fatal(err)
	}
	mustCommit(t, l, Append{Shard: s, Reset: &Reset{Index: 3, Term: 1}, Entries: entries(4, 2, 2), Sync: true})
	want := image{start: position{3, 1}, entries: entries(4, 2, 2)}
	for range 2 {
		if im := imageOf(t, s); !im.equal(want) {
			t.Errorf("%v", im)
		}
		mustClose(t, l)
		l = mustOpen(t, o)
		s = mustShard(t, l, 1)
	}
	mustClose(t, l)
}

// TestAppendBelowCompaction: entries that a compaction, not yet written, has
// dropped are no news, and must not remove what follows them.
func TestAppendBelowCompaction(t *testing.T) {
	o := smallOptions(t, vfs.NewMem())
	l := mustOpen(t, o)
	s := mustShard(t, l, 1)
	mustCommit(t, l, Append{Shard: s, Entries: entries(1, 20, 1), Sync: true})
	if err := s.Compact(15); err != nil {
		t.Fatal(err)
	}
	mustCommit(t, l, Append{Shard: s, Entries: entries(10, 3, 1), Sync: true})
	mustClose(t, l)
	l = mustOpen(t, o)
	defer mustClose(t, l)
	if im := imageOf(t, mustShard(t, l, 1)); !im.equal(image{start: position{15, 1}, entries: entries(16, 5, 1)}) {
		t.Errorf("%v", im)
	}
}

func TestCommitRefusesBrokenAppends(t *testing.T) {
	install := &Reset{Index: 9, Term: 1}
	for name, a := range map[string]Append{
		"gap":              {Entries: entries(5, 1, 1), Sync: true},
		"hole":             {Entries: []*raftpb.Entry{entry(4, 1, ""), entry(6, 1, "")}, Sync: true},
		"unknown type":     {Entries: []*raftpb.Entry{{Index: new(uint64(4)), Term: new(uint64(1)), Type: raftpb.EntryType(3).Enum()}}, Sync: true},
		"install unsynced": {Install: install},
		"install, entries": {Install: install, Entries: entries(4, 1, 1), Sync: true},
		"install, reset":   {Install: install, Reset: install, Sync: true},
	} {
		t.Run(name, func(t *testing.T) {
			o := smallOptions(t, vfs.NewMem())
			rec := newFatalRecorder()
			o.Fatal = rec.fatal
			l := mustOpen(t, o)
			s := mustShard(t, l, 1)
			mustCommit(t, l, Append{Shard: s, Entries: entries(1, 3, 1), Sync: true})
			a.Shard = s
			if err := l.Commit([]Append{a}); err == nil || len(rec.all()) != 1 {
				t.Errorf("Commit() = %v, Fatal was told %v", err, rec.all())
			}
			_ = l.Close()
		})
	}
}

func TestSnapshotAndConfState(t *testing.T) {
	l := mustOpen(t, smallOptions(t, vfs.NewMem()))
	defer mustClose(t, l)
	s := mustShard(t, l, 1)
	if _, err := s.Snapshot(); !errors.Is(err, raft.ErrSnapshotTemporarilyUnavailable) {
		t.Errorf("Snapshot() = %v", err)
	}
	want := &raftpb.Snapshot{Data: []byte("x")}
	s.SetSnapshotSource(func() (*raftpb.Snapshot, error) { return want, nil })
	if got, err := s.Snapshot(); got != want || err != nil {
		t.Errorf("Snapshot() = %v, %v", got, err)
	}
	conf := &raftpb.ConfState{Voters: []uint64{3, 4}}
	s.SetConfState(conf)
	conf.Voters[0] = 9 // ours now
	if hs, got, err := s.InitialState(); hs != nil || err != nil || !slices.Equal(got.GetVoters(), []uint64{3, 4}) {
		t.Errorf("InitialState() = %v, %v, %v", hs, got, err)
	}
}

func TestOpenErrors(t *testing.T) {
	made := func() *vfs.MemFS {
		mem := vfs.NewMem()
		o := smallOptions(t, mem)
		o.MemTableBytes = 1 << 20
		l := mustOpen(t, o)
		// Pebble tells damage from the end by later blocks of 32 KiB.
		for i := range uint64(5) {
			e := entry(i+1, 1, strings.Repeat("x", 20_000))
			mustCommit(t, l, Append{Shard: mustShard(t, l, 1), Entries: []*raftpb.Entry{e}, Sync: true})
		}
		mustClose(t, l)
		return mem
	}
	newer := made()
	db, err := pebble.Open(testDir, &pebble.Options{FS: newer, FormatMajorVersion: pebbleFormat, Logger: pebbleLogger{&Log{opts: smallOptions(t, nil).withDefaults()}}})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(db.Set(appendRecordKey(nil, 0, classFormat), []byte{formatVersion + 1}, pebble.Sync), db.Close()); err != nil {
		t.Fatal(err)
	}
	newerPebble := made()
	renameMarker(t, newerPebble, "marker.format-version.", ".999")
	used := made()
	l := mustOpen(t, smallOptions(t, used))
	defer mustClose(t, l)
	for name, c := range map[string]struct {
		fs   vfs.FS
		want error
	}{
		"in use":             {used, ErrInUse},
		"newer format":       {newer, ErrNewerFormat},
		"newer Pebble":       {newerPebble, ErrNewerFormat},
		"damaged manifest":   {damage(t, made(), "MANIFEST"), ErrCorrupt},
		"damaged WAL":        {damage(t, made(), ".log"), ErrCorrupt},
		"no permission":      {failing(made(), errorfs.OpMkdirAll, fs.ErrPermission), ErrNotWritable},
		"no permission here": {failing(made(), errorfs.OpLock, &fs.PathError{Op: "open", Path: "LOCK", Err: fs.ErrPermission}), ErrNotWritable},
		// Pebble would try to flush for ever.
		"read only": {failing(made(), errorfs.OpCreate, &fs.PathError{Op: "open", Path: "x", Err: fs.ErrPermission}), ErrNotWritable},
		"other":     {failing(made(), errorfs.OpFileSync, errors.New("it is on fire\nreally")), nil},
	} {
		t.Run(name, func(t *testing.T) {
			l, err := Open(testDir, smallOptions(t, c.fs))
			if err == nil {
				_ = l.Close()
				t.Fatal("it opens")
			}
			if c.want != nil && !errors.Is(err, c.want) || strings.Contains(err.Error(), "\n") ||
				strings.Count(err.Error(), "raft log in log: ") != 1 || !strings.HasPrefix(err.Error(), "raft log in log: ") {
				t.Errorf("Open() = %q; want %v", err, c.want)
			}
			t.Log(err)
			if name != "in use" && name != "read only" { // a failed Open lets go of the directory
				mem := vfs.Root(c.fs)
				if lock, err := pebble.LockDirectory(testDir, mem); err != nil {
					t.Errorf("the directory is still locked: %v", err)
				} else {
					_ = lock.Close()
				}
			}
		})
	}
}

func failing(base vfs.FS, kind errorfs.OpKind, err error) vfs.FS {
	return errorfs.Wrap(base, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind == kind {
			return err
		}
		return nil
	}))
}

func renameMarker(t *testing.T, mem *vfs.MemFS, prefix, suffix string) {
	t.Helper()
	names, err := mem.List(testDir)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if strings.HasPrefix(name, prefix) {
			base := name[:strings.LastIndexByte(name, '.')]
			if err := mem.Rename(mem.PathJoin(testDir, name), mem.PathJoin(testDir, base+suffix)); err != nil {
				t.Fatal(err)
			}
			return
		}
	}
	t.Fatalf("no file %s*", prefix)
}

// damage flips bytes early in every file whose name has part in it.
func damage(t *testing.T, mem *vfs.MemFS, part string) vfs.FS {
	t.Helper()
	names, err := mem.List(testDir)
	if err != nil {
		t.Fatal(err)
	}
	damaged := 0
	for _, name := range names {
		if !strings.Contains(name, part) || strings.HasPrefix(name, "marker") {
			continue
		}
		data, err := mem.UnsafeGetFileDataBuffer(mem.PathJoin(testDir, name))
		if err != nil || len(data) < 30 {
			t.Fatalf("%s has %d bytes, %v", name, len(data), err)
		}
		for i := 20; i < 30; i++ {
			data[i] ^= 0x55
		}
		damaged++
	}
	if damaged == 0 {
		t.Fatalf("no file *%s*", part)
	}
	return mem
}

func TestCloseTwice(t *testing.T) {
	l := mustOpen(t, smallOptions(t, vfs.NewMem()))
	s := mustShard(t, l, 1)
	mustCommit(t, l, Append{Shard: s, Entries: entries(1, 50, 1)})
	mustClose(t, l)
	mustClose(t, l)
	if err := l.Commit(nil); !errors.Is(err, ErrClosed) {
		t.Errorf("Commit() = %v", err)
	}
	if _, err := s.Entries(1, 2, 1); !errors.Is(err, ErrClosed) && err != nil {
		t.Errorf("Entries() = %v", err)
	}
	if _, err := l.Shards(); !errors.Is(err, ErrClosed) {
		t.Errorf("Shards() = %v", err)
	}
}

// TestReadersDuringCommits runs every shard's goroutine beside the committer, as
// in a broker: what was committed is read back and compacted, also from disk.
func TestReadersDuringCommits(t *testing.T) {
	const shards, rounds = 4, 150
	l := mustOpen(t, smallOptions(t, vfs.NewMem()))
	var wg sync.WaitGroup
	var done [shards]chan uint64
	var all []*Shard
	for i := range done {
		s := mustShard(t, l, uint64(i+1))
		done[i], all = make(chan uint64, rounds), append(all, s)
		wg.Go(func() { readBack(t, s, done[i]) })
	}
	stop := make(chan struct{})
	var scrape sync.WaitGroup
	scrape.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				_, _ = l.Metrics(), l.Stats()
				if _, err := l.Shards(); err != nil {
					t.Error(err)
				}
			}
		}
	})
	for r := range uint64(rounds) {
		var appends []Append
		for _, s := range all {
			es := []*raftpb.Entry{entry(r*2+1, 1+r/50, strings.Repeat("a", 300)), entry(r*2+2, 1+r/50, "b")}
			appends = append(appends, Append{Shard: s, Entries: es, HardState: hard(1+r/50, 1, r*2), Sync: r%2 == 0})
		}
		mustCommit(t, l, appends...)
		for _, c := range done {
			c <- r*2 + 2
		}
	}
	for _, c := range done {
		close(c)
	}
	wg.Wait()
	close(stop)
	scrape.Wait()
	mustClose(t, l)
}

// readBack is a shard's goroutine.
func readBack(t *testing.T, s *Shard, committed <-chan uint64) {
	for last := range committed {
		first, _ := s.FirstIndex()
		if have, _ := s.LastIndex(); have < last {
			t.Errorf("the log ends at %d, %d is committed", have, last)
		}
		es, err := s.Entries(first, last+1, math.MaxUint64)
		if err != nil || uint64(len(es)) != last+1-first {
			t.Errorf("Entries(%d, %d) = %d entries, %v", first, last+1, len(es), err)
			return
		}
		for i, e := range es {
			if term, err := s.Term(e.GetIndex()); e.GetIndex() != first+uint64(i) || term != e.GetTerm() || err != nil {
				t.Errorf("entry %d: %v, term %d, %v", first+uint64(i), e, term, err)
			}
		}
		if _, _, err := s.InitialState(); err != nil {
			t.Error(err)
		}
		if last-first > 60 {
			if err := s.Compact(last - 30); err != nil {
				t.Error(err)
			}
		}
	}
}

// TestTailIsBounded: the memory for the newest entries is shared out evenly.
func TestTailIsBounded(t *testing.T) {
	o := smallOptions(t, vfs.NewMem())
	o.ShardTailBytes, o.TotalTailBytes = 10_000, 20_000
	l := mustOpen(t, o)
	defer mustClose(t, l)
	for id := uint64(1); id <= 10; id++ {
		s := mustShard(t, l, id)
		mustCommit(t, l, Append{Shard: s, Entries: entries(1, 500, 1)})
		st := l.Stats()
		if st.TailBytes > o.TotalTailBytes || s.w.tailBytes > o.ShardTailBytes || st.TailBytes < 1500 {
			t.Errorf("with %d shards, %d bytes in memory, %d of the newest", id, st.TailBytes, s.w.tailBytes)
		}
		imageOf(t, s)
	}
}

// TestAllocations pins what the hot paths allocate. Pebble's own commit is most
// of it.
func TestAllocations(t *testing.T) {
	o := smallOptions(t, vfs.NewMem())
	o.MemTableBytes, o.WALPrefillFiles = 64<<20, -1
	o.ShardTailBytes = 1 << 20
	o.TotalTailBytes = 1 << 20
	l := mustOpen(t, o)
	defer mustClose(t, l)
	s := mustShard(t, l, 1)
	const n = 2000
	es := entries(1, n+10, 1)
	appends := make([]Append, 1)
	hs := hard(1, 1, 0)
	next := 0
	commit := func() {
		*hs.Commit = uint64(next)
		appends[0] = Append{Shard: s, Entries: es[next : next+1], HardState: hs, Sync: true}
		if err := l.Commit(appends); err != nil {
			t.Fatal(err)
		}
		next++
	}
	if got := testing.AllocsPerRun(n, commit); got > 2 {
		t.Errorf("Commit allocates %v times", got)
	}
	last := uint64(next)
	if got := testing.AllocsPerRun(100, func() { _, _ = s.Term(last) }); got != 0 {
		t.Errorf("Term allocates %v times", got)
	}
	if got := testing.AllocsPerRun(100, func() { _, _ = s.Entries(last-5, last+1, math.MaxUint64) }); got > 1 {
		t.Errorf("Entries allocates %v times", got)
	}
}
