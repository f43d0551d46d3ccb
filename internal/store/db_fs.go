package store

import (
	"errors"
	"fmt"
	iofs "io/fs"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/atomicfs"

	"github.com/felix-go/felix/internal/record"
)

// haltingFS lets nothing change on disk after halt. After a failed write
// pebble cleans up, retries and compacts on; if the failed write did reach the
// disk after all, that would remove files which the disk now refers to.
type haltingFS struct {
	vfs.FS
	halted atomic.Bool
}

var errHalted = errors.New("the state store has stopped after an error")

func (fs *haltingFS) halt() { fs.halted.Store(true) }

func (fs *haltingFS) check() error {
	if fs.halted.Load() {
		return errHalted
	}
	return nil
}

func (fs *haltingFS) wrap(f vfs.File, err error) (vfs.File, error) {
	if err != nil {
		return nil, err
	}
	return &haltingFile{File: f, fs: fs}, nil
}

// Create implements vfs.FS.
func (fs *haltingFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	if err := fs.check(); err != nil {
		return nil, err
	}
	return fs.wrap(fs.FS.Create(name, c))
}

// OpenReadWrite implements vfs.FS.
func (fs *haltingFS) OpenReadWrite(name string, c vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	if err := fs.check(); err != nil {
		return nil, err
	}
	return fs.wrap(fs.FS.OpenReadWrite(name, c, opts...))
}

// ReuseForWrite implements vfs.FS.
func (fs *haltingFS) ReuseForWrite(oldname, newname string, c vfs.DiskWriteCategory) (vfs.File, error) {
	if err := fs.check(); err != nil {
		return nil, err
	}
	return fs.wrap(fs.FS.ReuseForWrite(oldname, newname, c))
}

// Link implements vfs.FS.
func (fs *haltingFS) Link(oldname, newname string) error {
	if err := fs.check(); err != nil {
		return err
	}
	return fs.FS.Link(oldname, newname)
}

// Remove implements vfs.FS.
func (fs *haltingFS) Remove(name string) error {
	if err := fs.check(); err != nil {
		return err
	}
	return fs.FS.Remove(name)
}

// RemoveAll implements vfs.FS.
func (fs *haltingFS) RemoveAll(name string) error {
	if err := fs.check(); err != nil {
		return err
	}
	return fs.FS.RemoveAll(name)
}

// Rename implements vfs.FS.
func (fs *haltingFS) Rename(oldname, newname string) error {
	if err := fs.check(); err != nil {
		return err
	}
	return fs.FS.Rename(oldname, newname)
}

// Unwrap implements vfs.FS.
func (fs *haltingFS) Unwrap() vfs.FS { return fs.FS }

// haltingFile is a file being written on a haltingFS.
type haltingFile struct {
	vfs.File
	fs *haltingFS
}

// Write implements vfs.File.
func (f *haltingFile) Write(p []byte) (int, error) {
	if err := f.fs.check(); err != nil {
		return 0, err
	}
	return f.File.Write(p)
}

// WriteAt implements vfs.File.
func (f *haltingFile) WriteAt(p []byte, off int64) (int, error) {
	if err := f.fs.check(); err != nil {
		return 0, err
	}
	return f.File.WriteAt(p, off)
}

// makeDir creates dir and what is missing above it, durably.
func makeDir(fs vfs.FS, dir string) error {
	var parents []string // of the directories to create, innermost first
	for d := dir; ; {
		if _, err := fs.Stat(d); err == nil || !errors.Is(err, iofs.ErrNotExist) {
			break
		}
		parent := fs.PathDir(d)
		parents = append(parents, parent)
		if parent == d {
			break
		}
		d = parent
	}
	if err := fs.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, p := range parents {
		if err := syncDir(fs, p); err != nil {
			return err
		}
	}
	return nil
}

func syncDir(fs vfs.FS, dir string) error {
	d, err := fs.OpenDir(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// lockError tells a lock that is held from one that cannot be made: locking
// itself fails with a bare error number, or pebble's words for a lock of this
// process; creating the file with a path error.
func lockError(err error) error {
	var path *os.PathError
	held := errors.Is(err, syscall.EAGAIN) || errors.Is(err, syscall.EACCES) ||
		strings.Contains(err.Error(), "lock held by current process")
	if !errors.As(err, &path) && held {
		return fmt.Errorf("%w (%w)", ErrInUse, err)
	}
	return err
}

// checkFormat refuses a directory that a newer Felix has written. Pebble would
// go on with any format that it knows itself. created is false for a directory
// without a format: it is new, or the power failed while it was created.
func checkFormat(fs vfs.FS, dir string) (created bool, err error) {
	marker, err := atomicfs.ReadMarker(fs, dir, "format-version")
	if err != nil || marker == "" {
		return false, err
	}
	format, err := strconv.ParseUint(marker, 10, 64)
	if err != nil {
		return true, fmt.Errorf("%w: its format marker is %q", ErrDamaged, marker)
	}
	if format > uint64(diskFormat) {
		return true, fmt.Errorf("%w (it has format %d, this one knows up to %d)", ErrNewerFormat, format, diskFormat)
	}
	return true, nil
}

// uncreate removes what an interrupted creation has left, which pebble might
// refuse to open: the format marker is the last thing that creating writes, so
// without it there cannot be any record yet. Should there be an sstable all the
// same, nothing is touched.
func uncreate(fs vfs.FS, dir string) error {
	names, err := fs.List(dir)
	if err != nil {
		return err
	}
	var remove []string
	for _, name := range names {
		switch {
		case strings.HasSuffix(name, ".sst"):
			return nil
		case strings.HasPrefix(name, "MANIFEST-"), strings.HasPrefix(name, "OPTIONS-"),
			strings.HasPrefix(name, "marker.manifest."), strings.HasSuffix(name, ".dbtmp"):
			remove = append(remove, name)
		}
	}
	for _, name := range remove {
		err = errors.Join(err, fs.Remove(fs.PathJoin(dir, name)))
	}
	return errors.Join(err, syncDir(fs, dir))
}

// openError tells files that contradict each other from a disk that fails:
// the operating system's errors have a path or a number.
func openError(err error) error {
	var path *os.PathError
	var link *os.LinkError
	var number syscall.Errno
	if errors.Is(err, iofs.ErrNotExist) || !errors.As(err, &path) && !errors.As(err, &link) && !errors.As(err, &number) {
		return fmt.Errorf("%w (%w)", ErrDamaged, err)
	}
	return err
}

// explain adds our words to an error of Open.
func explain(err error) error {
	switch {
	case errors.Is(err, ErrInUse), errors.Is(err, ErrNewerFormat), errors.Is(err, ErrDamaged):
		return oneLine(err)
	case errors.Is(err, iofs.ErrPermission), errors.Is(err, syscall.EROFS):
		return fmt.Errorf("%w (%w)", ErrNotWritable, oneLine(err))
	case pebble.IsCorruptionError(err), errors.Is(err, record.ErrCorrupt):
		return fmt.Errorf("%w (%w)", ErrDamaged, oneLine(err))
	}
	return oneLine(err)
}

// lineError is an error whose text has been made one line.
type lineError struct {
	error
	text string
}

func (e lineError) Error() string { return e.text }

func (e lineError) Unwrap() error { return e.error }

func oneLine(err error) error {
	text := strings.Join(strings.Fields(err.Error()), " ")
	return lineError{error: err, text: text}
}
