package store

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/felix-go/felix/internal/record"
)

// powerCut is the disk as a power cut would leave it at one moment.
type powerCut struct {
	fs     *vfs.MemFS
	lo, hi int // the states of history that it may show: completed, begun
	op     string
}

// history is a DB whose power is cut before and after every operation that
// makes something durable.
type history struct {
	mem    *vfs.MemFS
	db     *DB
	states []diskModel
	begun  atomic.Int64 // index of the newest state that may be on disk
	done   atomic.Int64 // index of the newest state that must be
	mu     sync.Mutex
	cuts   []powerCut
	rng    *rand.Rand
}

func newHistory(t *testing.T, seed int64) *history {
	h := &history{mem: vfs.NewCrashableMem(), states: []diskModel{{}}, rng: rand.New(rand.NewPCG(uint64(seed), 3))}
	inj := errorfs.InjectorFunc(func(op errorfs.Op) error {
		switch op.Kind {
		case errorfs.OpFileSync, errorfs.OpFileSyncData, errorfs.OpFileSyncTo, errorfs.OpLink, errorfs.OpRename, errorfs.OpRemove:
			h.cut(fmt.Sprint(op.Kind, " ", op.Path))
		}
		return nil
	})
	h.db = openMem(t, errorfs.Wrap(linkingFS{h.mem, &h.mu}, inj), Options{FileBytes: 400})
	return h
}

// linkingFS keeps Link and CrashClone apart: MemFS.Link takes the same read lock
// twice, so a CrashClone between the two stops both for ever.
type linkingFS struct {
	vfs.FS
	mu *sync.Mutex // held while the disk is cloned
}

// Link implements vfs.FS.
func (fs linkingFS) Link(oldname, newname string) error {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	return fs.FS.Link(oldname, newname)
}

// cut takes what is surely on disk, and some of what may be.
func (h *history) cut(op string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	lo := int(h.done.Load())
	for _, percent := range []int{0, 50} {
		fs := h.mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: h.rng})
		h.cuts = append(h.cuts, powerCut{fs: fs, lo: lo, hi: int(h.begun.Load()), op: op})
	}
}

// step makes one change of the disk.
func (h *history) step(t *testing.T, next diskModel, change func() error) {
	t.Helper()
	h.states = append(h.states, next)
	h.begun.Add(1)
	if err := change(); err != nil {
		t.Fatal(err)
	}
	h.done.Add(1)
	h.cut("after the step")
}

// TestPowerLoss cuts the power at every moment of a random history. Afterwards
// the disk shows the last completed checkpoint or the one under way, whole.
func TestPowerLoss(t *testing.T) {
	for seed := range int64(2) {
		h := newHistory(t, seed)
		w := &world{rng: rand.New(rand.NewPCG(uint64(seed), 9)), disk: diskModel{}, now: 1000}
		for i := range 14 {
			switch {
			case i%7 == 3:
				next := w.disk.clone()
				delete(next, 1)
				delete(next, 256)
				h.step(t, next, func() error { return h.db.Drop(1, 256) })
				w.disk = next
			case i%7 == 5:
				w.sweep(t, h.db) // stale hints ride along in the next
			case i%7 == 1:
				w.disk = w.disk.clone()
				replicas := w.setReplicas()
				h.step(t, w.disk.clone(), func() error { return h.db.SetReplicas(replicas) })
			default:
				parts := w.parts()
				next := w.disk.clone()
				next.write(parts)
				h.step(t, next, func() error { return h.db.WriteCheckpoint(parts...) })
				w.disk = next
			}
		}
		closeDB(t, h.db)
		h.cut("after closing")
		for i, cut := range h.cuts {
			h.check(t, i, cut)
		}
		t.Logf("seed %d: %d power cuts", seed, len(h.cuts))
	}
}

// TestPowerLossWhileCreating: a directory whose creation was interrupted must
// open, whichever of the unsynced files and names the disk has kept.
func TestPowerLossWhileCreating(t *testing.T) {
	for seed := range int64(12) {
		h := newHistory(t, seed)
		closeDB(t, h.db)
		for i, cut := range h.cuts {
			h.check(t, i, cut)
		}
	}
}

func (h *history) check(t *testing.T, i int, cut powerCut) {
	t.Helper()
	db, err := Open("data/state", Options{FS: cut.fs, Logger: quiet(), Fatal: func(err error) { t.Errorf("fatal: %v", err) }})
	if err != nil {
		t.Fatalf("cut %d (%s): %v", i, cut.op, err)
	}
	defer closeDB(t, db)
	var errs []error
	for s := cut.lo; s <= cut.hi; s++ {
		err := h.states[s].diff(db)
		if err == nil {
			// What comes next must be possible, too.
			mustWrite(t, db, 3, expiringCounter("next", 1))
			return
		}
		errs = append(errs, err)
	}
	t.Fatalf("cut %d (%s) shows none of the states %d to %d: %v", i, cut.op, cut.lo, cut.hi, errors.Join(errs...))
}

// TestDiskErrors fails the n-th write operation, for every n, and with it all
// later ones or only that one. The DB stops, says why, and the disk shows one
// of the two states.
func TestDiskErrors(t *testing.T) {
	for _, once := range []bool{true, false} {
		for n := int64(0); ; n++ {
			if whole := failNth(t, n, once); whole {
				if n < 20 {
					t.Fatalf("only %d operations were failed", n)
				}
				break
			}
		}
	}
}

func failNth(t *testing.T, n int64, once bool) (whole bool) {
	t.Helper()
	mem := vfs.NewCrashableMem()
	var armed atomic.Bool
	var left atomic.Int64
	left.Store(n)
	boom := errors.New("boom")
	inj := errorfs.InjectorFunc(func(op errorfs.Op) error {
		if !armed.Load() || op.Kind.ReadOrWrite() != errorfs.OpIsWrite || op.Kind == errorfs.OpFileClose || op.Kind == errorfs.OpRemove {
			return nil
		}
		if l := left.Add(-1); l == -1 || l < -1 && !once {
			return boom
		}
		return nil
	})
	var fatal recorder
	db := openMem(t, errorfs.Wrap(mem, inj), Options{Fatal: fatal.fatal, FileBytes: 200})
	w := &world{rng: rand.New(rand.NewPCG(4, 4)), disk: diskModel{}, now: 100}
	before := w.parts()
	if err := db.WriteCheckpoint(before...); err != nil {
		t.Fatal(err)
	}
	w.disk.write(before)
	old := w.disk.clone()
	parts := w.parts()
	w.disk.write(parts)
	armed.Store(true)
	err := db.WriteCheckpoint(parts...)
	armed.Store(false)
	if err == nil {
		if len(fatal.all()) != 0 {
			t.Fatalf("operation %d: success, but fatal %v", n, fatal.all())
		}
		w.disk.check(t, db)
		closeDB(t, db)
		return true
	}
	if !errors.Is(err, boom) && !strings.Contains(err.Error(), "boom") {
		t.Fatalf("operation %d: %v does not say why", n, err)
	}
	if err := db.WriteCheckpoint(parts...); err == nil {
		t.Fatalf("operation %d: a checkpoint after the failure succeeded", n)
	}
	if _, err := db.Cursor(1, nil, nil); err == nil {
		t.Fatalf("operation %d: reading after the failure succeeded", n)
	}
	if err := db.Close(); err == nil {
		t.Fatalf("operation %d: Close hides the failure", n)
	}
	// Only now: a compaction may have been the first to fail, and to tell.
	if errs := fatal.all(); len(errs) != 1 || errs[0].Error() != err.Error() {
		t.Fatalf("operation %d: fatal %v, want once %v", n, errs, err)
	}
	for _, fs := range []*vfs.MemFS{mem, mem.CrashClone(vfs.CrashCloneCfg{})} {
		db = openMem(t, fs, Options{})
		errOld, errNew := old.diff(db), w.disk.diff(db)
		if errOld != nil && errNew != nil {
			t.Fatalf("operation %d: the disk is neither old (%v) nor new (%v)", n, errOld, errNew)
		}
		closeDB(t, db)
	}
	return false
}

// TestReadErrorsAreFatal: a disk that cannot be read, or lies, stops the DB.
func TestReadErrorsAreFatal(t *testing.T) {
	mem := vfs.NewMem()
	db := openMem(t, mem, Options{})
	mustWrite(t, db, 1, expiringCounter("a", 10))
	closeDB(t, db)
	for _, call := range []struct {
		name string
		do   func(*DB) error
	}{
		{"load", func(db *DB) error { return db.Load(1, []byte("a"), new(record.Cell)) }},
		{"applied", func(db *DB) error { _, _, err := db.Applied(1); return err }},
		{"expired", func(db *DB) error { _, _, _, err := db.Expired(1, 100, 1); return err }},
		{"page", func(db *DB) error {
			c, err := db.Cursor(1, nil, nil)
			if err == nil {
				_, _, err = c.Page(PageRequest{})
			}
			return err
		}},
		{"drop", func(db *DB) error { return db.Drop(1) }},
	} {
		t.Run(call.name, func(t *testing.T) {
			var armed atomic.Bool
			inj := errorfs.InjectorFunc(func(op errorfs.Op) error {
				if armed.Load() && (op.Kind == errorfs.OpFileReadAt || op.Kind == errorfs.OpOpen) && strings.HasSuffix(op.Path, ".sst") {
					return errors.New("unreadable sector")
				}
				return nil
			})
			var fatal recorder
			// What Open has read is cached: take another way in.
			db := newDB("data/state", Options{FS: errorfs.Wrap(mem, inj), Logger: quiet(), Fatal: fatal.fatal})
			if err := db.open(0); err != nil {
				t.Fatal(err)
			}
			armed.Store(true)
			err := call.do(db)
			armed.Store(false)
			if err := db.Close(); err == nil {
				t.Error("Close hides the failure")
			}
			// Only now: a compaction may have been the first to fail, and to tell.
			if errs := fatal.all(); err == nil || !strings.Contains(err.Error(), "unreadable sector") || len(errs) != 1 {
				t.Errorf("%v, fatal %v", err, errs)
			}
		})
	}
}
