package broker

import (
	"errors"
	"os"
	"strings"
	"sync"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// diskOp is one operation on the disk that may change it or make it durable.
type diskOp struct {
	kind string // create, reuse, opendir, link, rename, remove, mkdir, write, sync, close
	path string
}

// class is the kind of operation and of file: numbers are taken out of the
// name, so that all WAL files, say, are one class.
func (o diskOp) class() string {
	name := strings.Map(func(r rune) rune {
		if r >= '0' && r <= '9' {
			return -1
		}
		return r
	}, o.path)
	return o.kind + " " + name
}

// isWAL says whether the operation is on the log's write-ahead log.
func (o diskOp) isWAL() bool {
	return strings.HasSuffix(o.path, ".log") && strings.Contains(o.path, "data/log/")
}

// diskFS lets a test see, delay, fail or answer every change of a file system.
// before runs ahead of the operation, which an error from it replaces; after
// runs when the operation succeeded. Both are called from many goroutines.
type diskFS struct {
	vfs.FS
	before func(diskOp) error
	after  func(diskOp)
	// reuse keeps ReuseForWrite and crash clones apart: MemFS takes a read lock
	// twice there, which deadlocks when CrashClone waits in between.
	reuse sync.Mutex
}

// Unwrap implements vfs.FS.
func (d *diskFS) Unwrap() vfs.FS { return d.FS }

func (d *diskFS) do(kind, path string, f func() error) error {
	op := diskOp{kind, path}
	if d.before != nil {
		if err := d.before(op); err != nil {
			return err
		}
	}
	err := f()
	if err == nil && d.after != nil {
		d.after(op)
	}
	return err
}

func (d *diskFS) open(kind, path string, f func() (vfs.File, error)) (file vfs.File, err error) {
	err = d.do(kind, path, func() error {
		var err error
		file, err = f()
		return err
	})
	if err != nil {
		return nil, err
	}
	return &diskFile{File: file, fs: d, path: path}, nil
}

// Create makes a MANIFEST's directory entry durable at once. Pebble writes the
// entry that points to it right after, without a sync in between, and so relies
// on file systems to keep the entries of one directory in order. MemFS does not.
func (d *diskFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	return d.open("create", name, func() (vfs.File, error) {
		f, err := d.FS.Create(name, c)
		if err != nil || !strings.Contains(name, "MANIFEST-") {
			return f, err
		}
		dir, err := d.FS.OpenDir(d.FS.PathDir(name))
		if err != nil {
			return nil, errors.Join(err, f.Close())
		}
		return f, errors.Join(dir.Sync(), dir.Close())
	})
}

// ReuseForWrite implements vfs.FS.
func (d *diskFS) ReuseForWrite(o, n string, c vfs.DiskWriteCategory) (vfs.File, error) {
	return d.open("reuse", n, func() (vfs.File, error) {
		d.reuse.Lock()
		defer d.reuse.Unlock()
		return d.FS.ReuseForWrite(o, n, c)
	})
}

// OpenReadWrite implements vfs.FS.
func (d *diskFS) OpenReadWrite(name string, c vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	return d.open("create", name, func() (vfs.File, error) { return d.FS.OpenReadWrite(name, c, opts...) })
}

// OpenDir implements vfs.FS.
func (d *diskFS) OpenDir(name string) (vfs.File, error) {
	return d.open("opendir", name, func() (vfs.File, error) { return d.FS.OpenDir(name) })
}

// Link implements vfs.FS.
func (d *diskFS) Link(o, n string) error {
	return d.do("link", n, func() error { return d.FS.Link(o, n) })
}

// Rename implements vfs.FS.
func (d *diskFS) Rename(o, n string) error {
	return d.do("rename", n, func() error { return d.FS.Rename(o, n) })
}

// Remove implements vfs.FS.
func (d *diskFS) Remove(name string) error {
	return d.do("remove", name, func() error { return d.FS.Remove(name) })
}

// RemoveAll implements vfs.FS.
func (d *diskFS) RemoveAll(name string) error {
	return d.do("remove", name, func() error { return d.FS.RemoveAll(name) })
}

// MkdirAll implements vfs.FS.
func (d *diskFS) MkdirAll(name string, perm os.FileMode) error {
	return d.do("mkdir", name, func() error { return d.FS.MkdirAll(name, perm) })
}

type diskFile struct {
	vfs.File
	fs   *diskFS
	path string
}

// Write implements vfs.File.
func (f *diskFile) Write(p []byte) (n int, err error) {
	err = f.fs.do("write", f.path, func() error {
		n, err = f.File.Write(p)
		return err
	})
	return n, err
}

// WriteAt implements vfs.File.
func (f *diskFile) WriteAt(p []byte, off int64) (n int, err error) {
	err = f.fs.do("write", f.path, func() error {
		n, err = f.File.WriteAt(p, off)
		return err
	})
	return n, err
}

// Sync implements vfs.File.
func (f *diskFile) Sync() error { return f.fs.do("sync", f.path, f.File.Sync) }

// SyncData implements vfs.File.
func (f *diskFile) SyncData() error { return f.fs.do("sync", f.path, f.File.SyncData) }

// SyncTo implements vfs.File.
func (f *diskFile) SyncTo(n int64) (full bool, err error) {
	err = f.fs.do("sync", f.path, func() error {
		full, err = f.File.SyncTo(n)
		return err
	})
	return full, err
}

// Close implements vfs.File.
func (f *diskFile) Close() error { return f.fs.do("close", f.path, f.File.Close) }
