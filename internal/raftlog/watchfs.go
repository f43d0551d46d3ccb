package raftlog

import (
	"fmt"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// watchFS tells of every write that fails, before Pebble hears of it. Pebble's
// own ways to tell are many (an error, Fatalf, BackgroundError), and one of them
// is a panic, while making a new WAL, that cannot be recovered from: it unlocks
// a mutex that is not locked. So the reason is told here, where it is known.
type watchFS struct {
	vfs.FS
	failed func(error)
}

// check tells of err, which happened to the file of this name.
func (w *watchFS) check(what, name string, err error) error {
	if err != nil {
		w.failed(fmt.Errorf("cannot %s %s: %w", what, w.PathBase(name), oneLine(err)))
	}
	return err
}

func (w *watchFS) watch(what, name string, f vfs.File, err error) (vfs.File, error) {
	if w.check(what, name, err) != nil {
		return nil, err
	}
	return &watchedFile{File: f, fs: w, name: name}, nil
}

// Create implements vfs.FS.
func (w *watchFS) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := w.FS.Create(name, category)
	return w.watch("create", name, f, err)
}

// ReuseForWrite implements vfs.FS.
func (w *watchFS) ReuseForWrite(oldname, newname string, category vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := w.FS.ReuseForWrite(oldname, newname, category)
	return w.watch("create", newname, f, err)
}

// OpenDir implements vfs.FS.
func (w *watchFS) OpenDir(name string) (vfs.File, error) {
	f, err := w.FS.OpenDir(name)
	return w.watch("open", name, f, err)
}

// Rename implements vfs.FS.
func (w *watchFS) Rename(oldname, newname string) error {
	return w.check("rename", oldname, w.FS.Rename(oldname, newname))
}

// Unwrap implements vfs.FS.
func (w *watchFS) Unwrap() vfs.FS { return w.FS }

type watchedFile struct {
	vfs.File
	fs   *watchFS
	name string
}

// Write implements vfs.File.
func (f *watchedFile) Write(p []byte) (int, error) {
	n, err := f.File.Write(p)
	if err != nil {
		return n, f.fs.check("write", f.name, err)
	}
	return n, nil
}

// Sync implements vfs.File.
func (f *watchedFile) Sync() error { return f.fs.check("sync", f.name, f.File.Sync()) }

// SyncData implements vfs.File.
func (f *watchedFile) SyncData() error { return f.fs.check("sync", f.name, f.File.SyncData()) }

// SyncTo implements vfs.File.
func (f *watchedFile) SyncTo(length int64) (bool, error) {
	full, err := f.File.SyncTo(length)
	return full, f.fs.check("sync", f.name, err)
}

// Close implements vfs.File. Some file systems tell of a failed write only now.
func (f *watchedFile) Close() error { return f.fs.check("close", f.name, f.File.Close()) }
