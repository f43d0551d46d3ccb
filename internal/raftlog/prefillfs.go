package raftlog

import (
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// Names of prefilled files. Pebble knows neither, so it leaves them alone.
const (
	prefillPrefix = "prefill-"
	prefillReady  = ".zero" // whole and synced
	prefillTemp   = ".tmp"  // being filled; worthless after a crash
)

// fillChunkBytes is how much is written and synced at a time: large enough to
// be quick, small enough that a commit's sync does not wait long behind it.
const fillChunkBytes = 1 << 20

// prefillFS hands out files that are already full of zeros where Pebble makes
// a new WAL. A sync then overwrites blocks that exist, and the file system has
// no metadata to journal, which is most of what a sync costs (fallocate alone
// does not help: the first write to a block still changes its extent).
//
// Why recovery is right: every chunk of a WAL carries the low 32 bits of the
// WAL's number and a checksum over it, because Pebble itself reuses WAL files.
// A reader stops at the first chunk that is not of its WAL. At the end of a WAL
// that was closed it finds an end mark; at the end of the newest one it finds
// zeros, which Pebble takes as the end unless a later chunk of the same WAL
// says that more had been synced. So whatever a prefilled file held before is
// never read, and an older WAL with zeros instead of an end mark cannot be: Open
// flushes what it replayed, and forgets those WALs, before it makes a new one.
//
// A file goes prefill-N.tmp → prefill-N.zero (synced) → NNNNNN.log, all in one
// directory; Pebble syncs the directory after it made a WAL and before it
// writes to it. If none is ready, or filling fails (a full disk), the WAL is
// made the plain way: filling is never a reason to fail.
type prefillFS struct {
	vfs.FS
	dir    string
	size   int64 // bytes of a prefilled file
	want   int   // files to keep ready
	logger *slog.Logger

	wake chan struct{} // one slot: a file was taken
	stop chan struct{}
	done chan struct{} // closed when the filler has ended

	mu    sync.Mutex
	ready []string // paths of whole files, guarded by mu
	next  uint64   // the number of the next file; only the filler uses it once it runs

	handedOut atomic.Uint64 // WALs that were prefilled
	plain     atomic.Uint64 // WALs that were not
}

// newPrefillFS takes over what an earlier process left in dir, and starts the
// filler. If nothing was left it fills here, so that the first commit ever gains
// too: a new log takes two WALs at once (see writeFormat). The directory must be
// locked by us.
func newPrefillFS(base vfs.FS, dir string, size int64, want int, logger *slog.Logger) (*prefillFS, error) {
	p := &prefillFS{
		FS: base, dir: dir, size: size, want: want, logger: logger,
		wake: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{}),
	}
	if err := p.adopt(); err != nil {
		return nil, err
	}
	if len(p.ready) == 0 {
		for p.lacking() && p.fillOne() {
		}
	}
	go p.fillLoop()
	return p, nil
}

// adopt finds whole files of the right size and removes other leftovers.
func (p *prefillFS) adopt() error {
	names, err := p.List(p.dir)
	if err != nil {
		return err
	}
	for _, name := range names {
		number, isOurs := strings.CutPrefix(name, prefillPrefix)
		if !isOurs {
			continue
		}
		path := p.PathJoin(p.dir, name)
		number, whole := strings.CutSuffix(number, prefillReady)
		n, err := strconv.ParseUint(number, 10, 64)
		if whole && err == nil {
			p.next = max(p.next, n+1)
			if info, err := p.Stat(path); err == nil && info.Size() == p.size && len(p.ready) < p.want {
				p.ready = append(p.ready, path)
				continue
			}
		}
		if err := p.Remove(path); err != nil {
			return err
		}
	}
	return nil
}

// close ends the filler. Files that are ready stay for the next start.
func (p *prefillFS) close() {
	close(p.stop)
	<-p.done
}

func (p *prefillFS) fillLoop() {
	defer close(p.done)
	for {
		for p.lacking() && p.fillOne() {
		}
		select {
		case <-p.wake:
		case <-p.stop:
			return
		}
	}
}

func (p *prefillFS) lacking() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.ready) < p.want
}

// fillOne makes one file and says whether to go on. After a failure the next
// attempt is made when the next file is taken.
func (p *prefillFS) fillOne() bool {
	base := p.PathJoin(p.dir, prefillPrefix+strconv.FormatUint(p.next, 10))
	p.next++
	temp, path := base+prefillTemp, base+prefillReady
	whole, err := p.fill(temp)
	if err == nil && whole {
		err = p.Rename(temp, path)
	}
	if err != nil || !whole {
		if err != nil {
			p.logger.Warn("could not prefill a log file; commits are slower until it works again", "err", err)
		}
		_ = p.Remove(temp) // the next start removes it otherwise
		return false
	}
	p.mu.Lock()
	p.ready = append(p.ready, path)
	p.mu.Unlock()
	return true
}

// fill writes the file; whole is false if close interrupted it.
func (p *prefillFS) fill(path string) (whole bool, err error) {
	f, err := p.FS.Create(path, walCategory)
	if err != nil {
		return false, err
	}
	defer func() {
		if cerr := f.Close(); err == nil {
			err = cerr
		}
	}()
	zeros := make([]byte, min(fillChunkBytes, p.size))
	for left := p.size; left > 0; {
		select {
		case <-p.stop:
			return false, nil
		default:
		}
		clear(zeros) // vfs.File.Write may change what it is given
		n, err := f.Write(zeros[:min(left, int64(len(zeros)))])
		if err != nil {
			return false, err
		}
		if err := f.Sync(); err != nil {
			return false, err
		}
		left -= int64(n)
	}
	return true, nil
}

// walCategory is what Pebble calls the writes of its WAL in disk statistics.
const walCategory vfs.DiskWriteCategory = "pebble-wal"

// take is a file that is ready, if there is one.
func (p *prefillFS) take() (path string, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.ready) == 0 {
		return "", false
	}
	path, p.ready = p.ready[0], p.ready[1:]
	return path, true
}

// handOut renames a ready file to the WAL's name and opens it. ok is false if
// the plain way is to be taken.
func (p *prefillFS) handOut(name string, category vfs.DiskWriteCategory) (f vfs.File, ok bool) {
	path, ok := p.take()
	if !ok {
		return nil, false
	}
	select {
	case p.wake <- struct{}{}:
	default: // it will see this one too
	}
	f, err := p.FS.ReuseForWrite(path, name, category)
	if err != nil {
		p.logger.Warn("could not use a prefilled log file", "file", path, "err", err)
		return nil, false
	}
	p.handedOut.Add(1)
	return &prefilledFile{File: f, size: p.size}, true
}

// Create implements vfs.FS; a WAL is a prefilled file if one is ready.
func (p *prefillFS) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	if strings.HasSuffix(name, ".log") {
		if f, ok := p.handOut(name, category); ok {
			return f, nil
		}
		p.plain.Add(1)
	}
	return p.FS.Create(name, category)
}

// ReuseForWrite implements vfs.FS. Pebble reuses its old WALs this way; one
// that was made the plain way and is short is replaced by a prefilled file.
func (p *prefillFS) ReuseForWrite(oldname, newname string, category vfs.DiskWriteCategory) (vfs.File, error) {
	info, err := p.Stat(oldname)
	if err != nil {
		return nil, err
	}
	if info.Size() < p.size {
		if f, ok := p.handOut(newname, category); ok {
			if err := p.Remove(oldname); err != nil {
				_ = f.Close()
				return nil, err
			}
			return f, nil
		}
	}
	f, err := p.FS.ReuseForWrite(oldname, newname, category)
	if err != nil {
		return nil, err
	}
	return &prefilledFile{File: f, size: info.Size()}, nil
}

// Unwrap implements vfs.FS.
func (p *prefillFS) Unwrap() vfs.FS { return p.FS }

// prefilledFile has its blocks already, so it needs no preallocation, which
// would journal metadata.
type prefilledFile struct {
	vfs.File
	size int64
}

// Preallocate implements vfs.File.
func (f *prefilledFile) Preallocate(offset, length int64) error {
	if offset+length <= f.size {
		return nil
	}
	return f.File.Preallocate(offset, length)
}
