// This file is put into package daemon by knobs_test.go, and is in no build that
// is shipped.

package daemon

import (
	"bufio"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// knobs are the wall clock and the disk of a broker that a test plays with: it
// writes lines to standard input, "skew" and a number of milliseconds by which the
// clock is wrong, or "sync" and the number of milliseconds that each sync of a
// file takes longer. FELIX_TEST_SKEW is the skew at the start.
type knobs struct {
	vfs.FS
	skew, sync atomic.Int64
}

func newKnobs() *knobs {
	k := &knobs{FS: vfs.Default}
	skew, _ := strconv.ParseInt(os.Getenv("FELIX_TEST_SKEW"), 10, 64) // none is 0
	k.skew.Store(skew)
	go func() {
		for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
			name, text, _ := strings.Cut(lines.Text(), " ")
			value, err := strconv.ParseInt(text, 10, 64)
			if err != nil {
				panic(err)
			}
			map[string]*atomic.Int64{"skew": &k.skew, "sync": &k.sync}[name].Store(value)
		}
	}()
	return k
}

func (k *knobs) wall() int64 { return time.Now().UnixMilli() + k.skew.Load() }

// Create implements vfs.FS.
func (k *knobs) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	return k.wrap(k.FS.Create(name, c))
}

// ReuseForWrite implements vfs.FS.
func (k *knobs) ReuseForWrite(from, to string, c vfs.DiskWriteCategory) (vfs.File, error) {
	return k.wrap(k.FS.ReuseForWrite(from, to, c))
}

// OpenReadWrite implements vfs.FS.
func (k *knobs) OpenReadWrite(name string, c vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	return k.wrap(k.FS.OpenReadWrite(name, c, opts...))
}

// Unwrap implements vfs.FS.
func (k *knobs) Unwrap() vfs.FS { return k.FS }

func (k *knobs) wrap(f vfs.File, err error) (vfs.File, error) {
	if err != nil {
		return nil, err
	}
	return &slowFile{File: f, knobs: k}, nil
}

type slowFile struct {
	vfs.File
	knobs *knobs
}

func (f *slowFile) wait() { time.Sleep(time.Duration(f.knobs.sync.Load()) * time.Millisecond) }

// Sync implements vfs.File.
func (f *slowFile) Sync() error { f.wait(); return f.File.Sync() }

// SyncData implements vfs.File.
func (f *slowFile) SyncData() error { f.wait(); return f.File.SyncData() }

// SyncTo implements vfs.File.
func (f *slowFile) SyncTo(n int64) (full bool, err error) { f.wait(); return f.File.SyncTo(n) }
