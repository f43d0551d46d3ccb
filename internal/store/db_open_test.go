package store

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/felix-go/felix/internal/record"
)

// wantOpenError opens what must not open, and wants a line that says what to do.
func wantOpenError(t *testing.T, fs vfs.FS, dir string, want error) {
	t.Helper()
	db, err := Open(dir, Options{FS: fs, Logger: quiet(), Fatal: func(error) {}})
	if err == nil {
		closeDB(t, db)
		t.Fatalf("opened, want %v", want)
	}
	if !errors.Is(err, want) || strings.Contains(err.Error(), "\n") || !strings.Contains(err.Error(), dir) {
		t.Fatalf("got %q, want one line with %q", err, want)
	}
}

func TestOpenInUse(t *testing.T) {
	mem := vfs.NewMem()
	db := openMem(t, mem, Options{})
	wantOpenError(t, mem, "data/state", ErrInUse)
	closeDB(t, db)
	closeDB(t, openMem(t, mem, Options{}))

	dir := t.TempDir()
	db, err := Open(dir, Options{Logger: quiet()})
	if err != nil {
		t.Fatal(err)
	}
	wantOpenError(t, vfs.Default, dir, ErrInUse)
	closeDB(t, db)
}

func TestOpenNotWritable(t *testing.T) {
	for _, kind := range []errorfs.OpKind{errorfs.OpMkdirAll, errorfs.OpLock, errorfs.OpCreate} {
		inj := errorfs.InjectorFunc(func(op errorfs.Op) error {
			if op.Kind == kind {
				return &os.PathError{Op: "open", Path: op.Path, Err: fs.ErrPermission}
			}
			return nil
		})
		wantOpenError(t, errorfs.Wrap(vfs.NewMem(), inj), "data/state", ErrNotWritable)
	}
}

func TestOpenNewerFormat(t *testing.T) {
	mem := vfs.NewMem()
	kv, err := pebble.Open("data/state", &pebble.Options{FS: mem, FormatMajorVersion: diskFormat + 1, Logger: pebbleLogger{&DB{log: quiet()}}})
	if err != nil {
		t.Fatal(err)
	}
	if err := kv.Close(); err != nil {
		t.Fatal(err)
	}
	wantOpenError(t, mem, "data/state", ErrNewerFormat)
}

// TestOpenDamaged cuts or garbles each file of a store in turn.
func TestOpenDamaged(t *testing.T) {
	for _, name := range []string{"MANIFEST", ".sst"} {
		dir := filepath.Join(t.TempDir(), "state")
		db, err := Open(dir, Options{Logger: quiet()})
		if err != nil {
			t.Fatal(err)
		}
		mustWrite(t, db, 1, expiringCounter("a", 10))
		closeDB(t, db)
		files, err := filepath.Glob(filepath.Join(dir, "*"))
		if err != nil {
			t.Fatal(err)
		}
		found := false
		for _, f := range files {
			base := filepath.Base(f)
			if strings.HasPrefix(base, name) || strings.HasSuffix(base, name) {
				found = true
				if err := os.Truncate(f, 30); err != nil {
					t.Fatal(err)
				}
			}
		}
		if !found {
			t.Fatalf("no %s among %q", name, files)
		}
		wantOpenError(t, vfs.Default, dir, ErrDamaged)
	}
}

func TestOpenRemovesLeftovers(t *testing.T) {
	mem := vfs.NewMem()
	closeDB(t, openMem(t, mem, Options{}))
	leftover := "data/state/" + leftoverPrefix + "000007" + leftoverSuffix
	other := "data/state/checkpoint-notes.txt"
	for _, name := range []string{leftover, other} {
		f, err := mem.Create(name, diskWrites)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(f, "half"); err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
	db := openMem(t, mem, Options{})
	if _, err := mem.Stat(leftover); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("the leftover is still there: %v", err)
	}
	if _, err := mem.Stat(other); err != nil {
		t.Fatalf("a file of somebody else is gone: %v", err)
	}
	closeDB(t, db)
}

// TestOpenDiscardsInstalling drops shards whose snapshot was not whole, and
// only those.
func TestOpenDiscardsInstalling(t *testing.T) {
	mem := vfs.NewMem()
	db := openMem(t, mem, Options{})
	disk := diskModel{}
	for _, shard := range []uint64{1, 2, 3} {
		p := Checkpoint{Shard: shard, Records: []CheckpointRecord{expiringCounter("a", 10)}}
		if err := db.WriteCheckpoint(p); err != nil {
			t.Fatal(err)
		}
		if shard == 2 || shard == 3 {
			disk.write([]Checkpoint{p})
		}
	}
	for _, shard := range []uint64{1, 4} { // 4 has nothing but the mark
		if err := db.kv.Set(record.AppendStateKey(nil, shard, record.InstallingClass, nil), nil, pebble.NoSync); err != nil {
			t.Fatal(err)
		}
	}
	if err := db.kv.Flush(); err != nil {
		t.Fatal(err)
	}
	closeDB(t, db)
	for range 2 {
		db = openMem(t, mem, Options{})
		disk.check(t, db)
		closeDB(t, db)
	}
}
