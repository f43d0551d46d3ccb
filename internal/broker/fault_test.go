package broker

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// TestDiskFault makes one kind of disk operation fail, from a random moment on
// or just once. The broker must say why it ends, once; nothing may be
// acknowledged that is not on the disk; and when the disk works again,
// everything acknowledged is there.
func TestDiskFault(t *testing.T) {
	seed := testSeed(t)
	rng := rand.New(rand.NewPCG(seed, 1))
	for _, kind := range []string{"log write", "log sync", "state create", "state write", "state sync", "any"} {
		for _, errno := range []syscall.Errno{syscall.EIO, syscall.ENOSPC} {
			once := rng.IntN(2) == 0
			after := rng.IntN(60)
			if strings.HasPrefix(kind, "state") {
				after = rng.IntN(8) // a checkpoint has few
			}
			name := fmt.Sprintf("%s, %v, after %d, once %v", kind, errno, after, once)
			runSeed := rng.Uint64()
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				testFault(t, kind, errno, after, once, runSeed)
			})
		}
	}
}

// isDir says whether the operation is on one of the three directories.
func isDir(op diskOp) bool {
	return op.path == "data" || op.path == "data/log" || op.path == "data/state"
}

// matches says whether an operation is of the kind that fails.
func matches(kind string, op diskOp) bool {
	where, what, _ := strings.Cut(kind, " ")
	switch kind {
	case "any":
		return op.kind == "write" || op.kind == "sync" || op.kind == "create"
	case "directories sync":
		return op.kind == "sync" && isDir(op)
	}
	return strings.HasPrefix(op.path, "data/"+where) && op.kind == what
}

// fault is a disk that fails.
type fault struct {
	armed atomic.Bool
	left  atomic.Int64 // operations of the kind that still succeed
	hit   atomic.Bool
}

func (f *fault) inject(kind string, errno syscall.Errno, once bool) func(diskOp) error {
	return func(op diskOp) error {
		if !f.armed.Load() || !matches(kind, op) || f.left.Add(-1) >= 0 {
			return nil
		}
		if once && !f.hit.CompareAndSwap(false, true) {
			return nil
		}
		f.hit.Store(true)
		return errno
	}
}

func testFault(t *testing.T, kind string, errno syscall.Errno, after int, once bool, seed uint64) {
	const clients = 3
	w := newWorld(t, clients)
	w.loose = true
	var f fault
	f.left.Store(int64(after))
	mem := vfs.NewCrashableMem()
	disk := &diskFS{FS: mem, before: f.inject(kind, errno, once)}
	var mu sync.Mutex
	var reasons []string
	failed := make(chan struct{})
	o := w.options()
	o.FS = disk
	o.RequestTimeout = 2 * time.Second
	o.Fatal = func(err error) {
		mu.Lock()
		if reasons = append(reasons, err.Error()); len(reasons) == 1 {
			close(failed)
		}
		mu.Unlock()
		select {} // the process ends
	}
	b, err := Open(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	f.armed.Store(true)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		w.run(b, seed, clients, 100_000)
	}()
	select {
	case <-failed:
	case <-time.After(time.Minute):
		t.Fatal("the disk failed, and the broker did not notice")
	}
	w.stop.Store(true) // what is answered even now is acknowledged too
	<-ended
	cut := &powerCut{where: "at the end", wall: w.wall.Load()}
	cut.lo, cut.lowest = w.marks(true)
	disk.reuse.Lock()
	cut.fs = mem.CrashClone(vfs.CrashCloneCfg{})
	disk.reuse.Unlock()
	cut.hi, cut.higher = w.marks(false)
	mu.Lock()
	checkReasons(t, reasons, errno)
	mu.Unlock()
	w.loose = false
	w.survive(cut, seed, false)
}

// checkReasons: one line that says which part of the disk failed, and how.
func checkReasons(t *testing.T, reasons []string, errno syscall.Errno) {
	t.Helper()
	if len(reasons) != 1 {
		t.Errorf("Fatal was called %d times: %q", len(reasons), reasons)
	}
	r := reasons[0]
	t.Log(r)
	named := strings.Contains(r, "data/log") || strings.Contains(r, "data/state")
	if !named || !strings.Contains(r, errno.Error()) || strings.Contains(r, "\n") {
		t.Errorf("the reason is %q; it should name the part of the data directory and %q, in one line", r, errno)
	}
}

// TestDirectorySyncFault fails the n-th sync of a directory in the course of a
// start, at which Pebble would panic. The broker must say why it ends; the next
// start on the same disk works and has lost nothing.
func TestDirectorySyncFault(t *testing.T) {
	w := newWorld(t, 1)
	mem := vfs.NewCrashableMem()
	o := w.options()
	o.FS = mem
	b, err := Open(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	w.run(b, 1, 1, 20)
	cut := &powerCut{where: "under load", wall: w.wall.Load(), fs: mem.CrashClone(vfs.CrashCloneCfg{})}
	cut.lo, cut.lowest = w.marks(true)
	cut.hi, cut.higher = w.marks(false)
	if err := closeBroker(b); err != nil {
		t.Fatal(err)
	}
	n := int64(0)
	for ; ; n++ {
		base := cut.fs.CrashClone(vfs.CrashCloneCfg{})
		if !openWithFault(t, o, base, n) {
			break
		}
		again := *cut
		again.where = fmt.Sprintf("after directory sync %d of a start failed", n)
		again.fs = base.CrashClone(vfs.CrashCloneCfg{})
		w.survive(&again, 1, false)
	}
	if n < 3 {
		t.Errorf("a start syncs directories %d times: too few to prove anything", n)
	}
}

// openWithFault opens a broker whose n-th sync of a directory fails, and says
// whether there was one.
func openWithFault(t *testing.T, o Options, base *vfs.MemFS, n int64) bool {
	t.Helper()
	var f fault
	f.armed.Store(true)
	f.left.Store(n)
	o.FS = &diskFS{FS: base, before: f.inject("directories sync", syscall.ENOSPC, true)}
	result := make(chan error, 2)
	o.Fatal = func(err error) {
		result <- err
		select {} // the process ends
	}
	go func() {
		b, err := Open(context.Background(), o)
		f.armed.Store(false)
		if err == nil {
			err = closeBroker(b)
		}
		result <- err
	}()
	select {
	case err := <-result:
		if !f.hit.Load() {
			return false
		}
		if err == nil || !strings.Contains(err.Error(), "data") || !strings.Contains(err.Error(), syscall.ENOSPC.Error()) {
			t.Errorf("directory sync %d of a start failed: %v; the reason should name the directory and what is wrong", n, err)
		}
	case <-time.After(time.Minute):
		t.Fatalf("directory sync %d of a start failed, and nothing came of it", n)
	}
	return true
}
