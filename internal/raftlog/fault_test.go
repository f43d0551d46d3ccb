package raftlog

import (
	"errors"
	"fmt"
	"math"
	"path"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
)

// faultyFS is an errorfs.FS that also fails what errorfs lets pass: files that
// are reused, and closing.
type faultyFS struct {
	*errorfs.FS
	inject errorfs.InjectorFunc
}

// faulty is a disk that fails the operations that match, once armed.
func faulty(base vfs.FS, armed *atomic.Bool, match func(errorfs.Op) bool) vfs.FS {
	inject := errorfs.InjectorFunc(func(op errorfs.Op) error {
		if armed.Load() && match(op) {
			return syscall.EIO
		}
		return nil
	})
	return &faultyFS{FS: errorfs.Wrap(base, inject), inject: inject}
}

func (f *faultyFS) ReuseForWrite(oldname, newname string, category vfs.DiskWriteCategory) (vfs.File, error) {
	if err := f.inject(errorfs.Op{Kind: errorfs.OpReuseForWrite, Path: newname}); err != nil {
		return nil, err
	}
	if err := f.Rename(oldname, newname); err != nil {
		return nil, err
	}
	file, err := f.OpenReadWrite(newname, category)
	return &faultyFile{File: file, fs: f, name: newname}, err
}

func (f *faultyFS) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	file, err := f.FS.Create(name, category)
	return &faultyFile{File: file, fs: f, name: name}, err
}

type faultyFile struct {
	vfs.File
	fs   *faultyFS
	name string
}

func (f *faultyFile) Close() error {
	if err := f.fs.inject(errorfs.Op{Kind: errorfs.OpFileClose, Path: f.name}); err != nil {
		return err
	}
	return f.File.Close()
}

// failures are the operations that fail, and what Fatal is told then.
var failures = map[string]struct {
	match func(errorfs.Op) bool
	want  string
	// stops says that, if Fatal returned, Pebble would end the process, or
	// Commit would wait for ever for a flush.
	stops bool
}{
	"sync of the WAL": {match: func(op errorfs.Op) bool {
		return isWAL(op) && (op.Kind == errorfs.OpFileSync || op.Kind == errorfs.OpFileSyncData)
	}, want: ".log: input/output error"},
	"write of the WAL": {match: func(op errorfs.Op) bool { return isWAL(op) && op.Kind == errorfs.OpFileWrite },
		want: ".log: input/output error"},
	"new WAL": {match: func(op errorfs.Op) bool {
		return isWAL(op) && (op.Kind == errorfs.OpCreate || op.Kind == errorfs.OpReuseForWrite)
	}, want: "cannot create ", stops: true},
	"end of a WAL": {match: func(op errorfs.Op) bool { return isWAL(op) && op.Kind == errorfs.OpFileClose },
		want: "cannot close ", stops: true},
	"flush": {match: func(op errorfs.Op) bool { return path.Ext(op.Path) == ".sst" && op.Kind == errorfs.OpFileWrite },
		want: "cannot write ", stops: true},
	"sync of the directory": {match: func(op errorfs.Op) bool {
		return op.Path == testDir && (op.Kind == errorfs.OpFileSync || op.Kind == errorfs.OpFileSyncData)
	}, want: "cannot sync log: input/output error", stops: true},
}

func isWAL(op errorfs.Op) bool { return strings.HasSuffix(op.Path, ".log") }

// TestDiskFailure: whatever fails, Fatal is told why, once, no commit is
// acknowledged from then on, and what was acknowledged before is there when the
// disk works again. Fatal does not return, as in production.
func TestDiskFailure(t *testing.T) {
	for name, f := range failures {
		t.Run(name, func(t *testing.T) {
			mem := vfs.NewCrashableMem()
			rec := newFatalRecorder()
			var armed atomic.Bool
			o := smallOptions(t, faulty(mem, &armed, f.match))
			o.Fatal = func(err error) {
				rec.fatal(err)
				select {} // the process ends
			}
			var acked atomic.Uint64
			l := mustOpen(t, o)
			ended := make(chan error, 1)
			go func() { ended <- commitForever(l, &acked, &armed) }()
			select {
			case <-rec.once:
			case err := <-ended:
				t.Fatalf("after %d commits Fatal was told nothing: %v", acked.Load(), err)
			}
			last := acked.Load()
			if all := rec.all(); !strings.HasPrefix(all[0].Error(), "raft log in log: ") || !strings.Contains(all[0].Error(), f.want) {
				t.Errorf("Fatal was told %q, which should contain %q", all, f.want)
			}
			l = mustOpen(t, smallOptions(t, mem.CrashClone(vfs.CrashCloneCfg{})))
			defer mustClose(t, l)
			if got, _ := mustShard(t, l, 1).LastIndex(); got < last {
				t.Errorf("%d entries were acknowledged, %d are there", last, got)
			}
		})
	}
}

// commitForever commits one entry after the other until one fails. The disk
// fails from the tenth on.
func commitForever(l *Log, acked *atomic.Uint64, armed *atomic.Bool) error {
	s, err := l.Shard(1)
	for i := uint64(1); err == nil && i < 5000; i++ {
		armed.Store(i > 10)
		err = l.Commit([]Append{{Shard: s, Entries: []*raftpb.Entry{entry(i, 1, strings.Repeat("x", 2000))}, Sync: true}})
		if err == nil {
			acked.Store(i)
		}
	}
	return err
}

// TestFailedLogRefuses: if Fatal returns all the same, nothing is acknowledged.
func TestFailedLogRefuses(t *testing.T) {
	for name, f := range failures {
		if f.stops {
			continue
		}
		t.Run(name, func(t *testing.T) {
			rec := newFatalRecorder()
			var armed atomic.Bool
			var acked atomic.Uint64
			o := smallOptions(t, faulty(vfs.NewMem(), &armed, f.match))
			o.Fatal = rec.fatal
			l := mustOpen(t, o)
			s := mustShard(t, l, 1)
			err := commitForever(l, &acked, &armed)
			<-rec.once
			if acked.Load() != 10 {
				t.Errorf("%d commits were acknowledged, the disk failed after 10", acked.Load())
			}
			if last, _ := s.LastIndex(); last != acked.Load() {
				t.Errorf("entry %d is visible, but %d were acknowledged", last, acked.Load())
			}
			for what, again := range map[string]error{
				"Commit": l.Commit([]Append{{Shard: s, HardState: hard(9, 9, 9)}}),
				"Drop":   l.Drop(1), "Compact": s.Compact(1), "PrepareRestart": s.PrepareRestart(9, 9), "Close": l.Close(),
			} {
				if again == nil || again.Error() != err.Error() || strings.Contains(again.Error(), "\n") {
					t.Errorf("after %q, %s says %q", err, what, again)
				}
			}
			if l.Metrics() != nil {
				t.Error("there are metrics")
			}
			if all := rec.all(); len(all) != 1 || all[0].Error() != err.Error() {
				t.Errorf("Fatal was told %q, Commit %q", all, err)
			}
		})
	}
}

// TestReadBeforeAReplacedEnd: while entries are replaced, however long the disk
// takes, those before them can be read; Raft panics where they cannot.
//
// Broken: `hi > s.rewriteFrom` (read.go) always true, or never; any from of
// beginRewrite (commit.go); min in it.
func TestReadBeforeAReplacedEnd(t *testing.T) {
	for name, v := range map[string]struct {
		appends []Append
		from    uint64 // the first that cannot be read
	}{
		"entries": {[]Append{{Entries: entries(8, 2, 2), Sync: true}}, 8},
		"twice":   {[]Append{{Entries: entries(6, 4, 2)}, {Entries: entries(8, 2, 3), Sync: true}}, 6},
		"reset":   {[]Append{{Reset: &Reset{Index: 20, Term: 2}, Sync: true}}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			var armed atomic.Bool
			begun, goOn := make(chan struct{}), make(chan struct{})
			o := smallOptions(t, faulty(vfs.NewMem(), &armed, func(op errorfs.Op) bool {
				if isWAL(op) && (op.Kind == errorfs.OpFileSync || op.Kind == errorfs.OpFileSyncData) && armed.Swap(false) {
					close(begun)
					<-goOn
				}
				return false
			}))
			l := mustOpen(t, o)
			mustCommit(t, l, Append{Shard: mustShard(t, l, 1), Entries: entries(1, 10, 1), Sync: true})
			mustClose(t, l)
			l = mustOpen(t, o) // none of the entries is in memory
			defer mustClose(t, l)
			s := mustShard(t, l, 1)
			for i := range v.appends {
				v.appends[i].Shard = s
			}
			armed.Store(true)
			ended := make(chan error, 1)
			go func() { ended <- l.Commit(v.appends) }()
			<-begun
			for hi := uint64(2); hi <= 11; hi++ {
				switch got, err := s.Entries(1, hi, math.MaxUint64); {
				case hi <= v.from && (err != nil || len(got) != int(hi)-1):
					t.Errorf("entries before %d: %d, %v", hi, len(got), err)
				case hi > v.from && !errors.Is(err, raft.ErrUnavailable):
					t.Errorf("entries before %d, where those from %d on are being replaced: %d, %v", hi, v.from, len(got), err)
				}
			}
			close(goOn)
			if err := <-ended; err != nil {
				t.Fatal(err)
			}
			imageOf(t, s)
			if s.rewriteFrom != noRewrite {
				t.Errorf("entries from %d on are still being replaced", s.rewriteFrom)
			}
		})
	}
}

// TestFillFailure: a disk that has no room for prefilled files is no reason to
// fail.
func TestFillFailure(t *testing.T) {
	var armed atomic.Bool
	armed.Store(true)
	o := smallOptions(t, faulty(vfs.NewMem(), &armed, func(op errorfs.Op) bool {
		return strings.Contains(op.Path, prefillPrefix) && op.Kind == errorfs.OpFileWrite
	}))
	l := mustOpen(t, o)
	s := mustShard(t, l, 1)
	for i := range uint64(100) {
		mustCommit(t, l, Append{Shard: s, Entries: []*raftpb.Entry{entry(i+1, 1, strings.Repeat("x", 2000))}, Sync: true})
	}
	if st := l.Stats(); st.PrefilledWALs != 0 || st.PlainWALs == 0 {
		t.Errorf("%+v; want only plain WALs", st)
	}
	mustClose(t, l)
	names, err := o.FS.List(testDir)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if strings.HasPrefix(name, prefillPrefix) {
			t.Errorf("%s was left behind", name)
		}
	}
}

// TestFatalComesFirst: Raft panics where a read fails, so no read says that it
// failed while Fatal still writes down why.
func TestFatalComesFirst(t *testing.T) {
	o := smallOptions(t, vfs.NewMem())
	o.ShardTailBytes = 1 // so that reads go to disk
	telling, told := make(chan struct{}), make(chan struct{})
	o.Fatal = func(error) { close(telling); <-told }
	l := mustOpen(t, o)
	s := mustShard(t, l, 1)
	mustCommit(t, l, Append{Shard: s, Entries: entries(1, 3, 1), Sync: true})
	if err := l.db.Delete(appendEntryKey(nil, 1, 2), nil); err != nil {
		t.Fatal(err)
	}
	read := make(chan error, 2)
	reader := func() {
		_, err := s.Entries(1, 4, 1<<20)
		read <- err
	}
	go reader()
	<-telling
	go reader()
	select {
	case err := <-read:
		t.Errorf("a read ended with %q before Fatal did", err)
		read <- err
	case <-time.After(50 * time.Millisecond):
	}
	close(told)
	for range 2 {
		if err := <-read; !errors.Is(err, ErrCorrupt) {
			t.Errorf("Entries() = %v", err)
		}
	}
	_ = l.Close()
}

// TestCorruptEntry: damage on disk that is found late is the end, not an answer.
func TestCorruptEntry(t *testing.T) {
	o := smallOptions(t, nil)
	o.ShardTailBytes = 1 // so that reads go to disk
	for name, damage := range map[string]func(l *Log) error{
		"bad value": func(l *Log) error { return l.db.Set(appendEntryKey(nil, 1, 2), []byte{9, 9, 9}, nil) },
		"gone":      func(l *Log) error { return l.db.Delete(appendEntryKey(nil, 1, 2), nil) },
		"other term": func(l *Log) error {
			return l.db.Set(appendEntryKey(nil, 1, 2), appendEntryValue(nil, entry(2, 9, "x")), nil)
		},
	} {
		t.Run(name, func(t *testing.T) {
			rec := newFatalRecorder()
			o.FS, o.Fatal = vfs.NewMem(), rec.fatal
			l := mustOpen(t, o)
			s := mustShard(t, l, 1)
			mustCommit(t, l, Append{Shard: s, Entries: entries(1, 3, 1), Sync: true})
			if err := damage(l); err != nil {
				t.Fatal(err)
			}
			if es, err := s.Entries(1, 4, 1<<20); !errors.Is(err, ErrCorrupt) {
				t.Fatalf("Entries() = %v, %v", es, err)
			}
			if all := rec.all(); len(all) != 1 || !errors.Is(all[0], ErrCorrupt) {
				t.Errorf("Fatal was called with %v", all)
			}
			if err := l.Commit(nil); !errors.Is(err, ErrCorrupt) {
				t.Errorf("Commit() = %v", err)
			}
			_ = l.Close()
		})
	}
}

// TestCorruptShard: damage is found when the shard is opened.
func TestCorruptShard(t *testing.T) {
	for name, c := range map[string]struct{ key, value []byte }{
		"gap":             {appendEntryKey(nil, 1, 5), appendEntryValue(nil, entry(5, 1, "x"))},
		"before start":    {appendRecordKey(nil, 1, classStart), appendPosition(nil, position{index: 2, term: 1})},
		"start version":   {appendRecordKey(nil, 1, classStart), []byte{2, 0, 0}},
		"hard state":      {appendRecordKey(nil, 1, classHardState), []byte{1, 1}},
		"entry":           {appendEntryKey(nil, 1, 2), []byte{1, 7, 1}},
		"short entry key": {appendRecordKey(nil, 1, classEntry), []byte{1}},
		"unknown class":   {appendRecordKey(nil, 1, 'q'), []byte{1}},
	} {
		t.Run(name, func(t *testing.T) {
			o := smallOptions(t, vfs.NewMem())
			l := mustOpen(t, o)
			mustCommit(t, l, Append{Shard: mustShard(t, l, 1), Entries: entries(1, 3, 1), HardState: hard(1, 1, 1), Sync: true})
			if err := l.db.Set(c.key, c.value, nil); err != nil {
				t.Fatal(err)
			}
			mustClose(t, l)
			l = mustOpen(t, o)
			defer mustClose(t, l)
			if _, err := l.Shard(1); !errors.Is(err, ErrCorrupt) || strings.Contains(fmt.Sprint(err), "\n") {
				t.Errorf("Shard() = %v", err)
			}
			if _, err := l.Shard(2); err != nil {
				t.Errorf("another shard: %v", err)
			}
		})
	}
}
