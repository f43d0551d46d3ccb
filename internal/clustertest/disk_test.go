package clustertest

import (
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// disk is a node's disk: in memory, it can lose what was not synced, and stall.
type disk struct {
	vfs.FS
	mem *vfs.MemFS
	// reuse keeps ReuseForWrite and crash clones apart: MemFS takes a read lock
	// twice there, which deadlocks when CrashClone waits in between.
	reuse sync.Mutex
	stall atomic.Int64 // nanoseconds that each sync takes
}

func newDisk(mem *vfs.MemFS) *disk { return &disk{FS: mem, mem: mem} }

// crashed is the disk as a power cut leaves it: what was not synced is gone.
func (d *disk) crashed() *disk {
	d.reuse.Lock()
	defer d.reuse.Unlock()
	return newDisk(d.mem.CrashClone(vfs.CrashCloneCfg{}))
}

// Unwrap implements vfs.FS.
func (d *disk) Unwrap() vfs.FS { return d.FS }

func (d *disk) wrap(f vfs.File, err error) (vfs.File, error) {
	if err != nil {
		return nil, err
	}
	return &diskFile{File: f, disk: d}, nil
}

// Create makes a MANIFEST's directory entry durable at once. Pebble writes the
// entry that points to it right after, without a sync in between, and so relies
// on file systems to keep the entries of one directory in order. MemFS does not.
func (d *disk) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := d.wrap(d.FS.Create(name, c))
	if err != nil || !strings.Contains(name, "MANIFEST-") {
		return f, err
	}
	dir, err := d.FS.OpenDir(d.FS.PathDir(name))
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, errors.Join(dir.Sync(), dir.Close())
}

// ReuseForWrite implements vfs.FS.
func (d *disk) ReuseForWrite(o, n string, c vfs.DiskWriteCategory) (vfs.File, error) {
	d.reuse.Lock()
	defer d.reuse.Unlock()
	return d.wrap(d.FS.ReuseForWrite(o, n, c))
}

// OpenReadWrite implements vfs.FS.
func (d *disk) OpenReadWrite(name string, c vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	return d.wrap(d.FS.OpenReadWrite(name, c, opts...))
}

type diskFile struct {
	vfs.File
	disk *disk
}

func (f *diskFile) wait() {
	if d := time.Duration(f.disk.stall.Load()); d > 0 {
		time.Sleep(d)
	}
}

// Sync implements vfs.File.
func (f *diskFile) Sync() error { f.wait(); return f.File.Sync() }

// SyncData implements vfs.File.
func (f *diskFile) SyncData() error { f.wait(); return f.File.SyncData() }

// SyncTo implements vfs.File.
func (f *diskFile) SyncTo(n int64) (full bool, err error) { f.wait(); return f.File.SyncTo(n) }
