package broker

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"syscall"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// dataFormat is the layout of the data directory that this build writes. A
// newer one is refused.
const dataFormat = 1

// identity is the file felix.json of a data directory.
type identity struct {
	Format  int    `json:"format"`
	StoreID string `json:"store_id"` // random: a copied or wiped directory is told apart
}

type dataDir struct {
	fs       vfs.FS
	dir      string
	lock     io.Closer
	identity identity
	isNew    bool
}

func (d *dataDir) path(name string) string { return d.fs.PathJoin(d.dir, name) }

// openDataDir makes or opens the directory, locks it, and reads its identity.
// Every error is one line that names the directory and what to do.
func openDataDir(fs vfs.FS, dir string) (_ *dataDir, err error) {
	if dir == "" {
		return nil, errors.New("no data directory was given: counters need durable storage")
	}
	d := &dataDir{fs: fs, dir: dir}
	if err := makeDir(fs, dir); err != nil {
		return nil, fmt.Errorf("data directory %s: it cannot be made: %w", dir, err)
	}
	if d.lock, err = fs.Lock(d.path("LOCK")); err != nil {
		return nil, fmt.Errorf("data directory %s: %s: %w", dir, lockProblem(err), err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.lock.Close())
		}
	}()
	raw, err := readFile(fs, d.path("felix.json"))
	switch {
	case errors.Is(err, os.ErrNotExist):
		return d, d.create()
	case err != nil:
		return nil, fmt.Errorf("data directory %s: felix.json cannot be read: %w", dir, err)
	}
	if err := json.Unmarshal(raw, &d.identity); err != nil || d.identity.Format <= 0 || d.identity.StoreID == "" {
		return nil, fmt.Errorf("data directory %s: felix.json is corrupt: restore the directory from a backup, or start on an empty one", dir)
	}
	if d.identity.Format > dataFormat {
		return nil, fmt.Errorf("data directory %s: its format %d is newer than this build knows (%d): use the newer build", dir, d.identity.Format, dataFormat)
	}
	return d, d.complete()
}

// complete refuses a directory that has lost its log: the log is made before
// the state, and what was acknowledged last is only there.
func (d *dataDir) complete() error {
	names, err := d.fs.List(d.dir)
	if err != nil {
		return fmt.Errorf("data directory %s: %w", d.dir, err)
	}
	if slices.Contains(names, "state") && !slices.Contains(names, "log") {
		return fmt.Errorf("data directory %s: the log is missing beside the state: the directory is damaged, restore it", d.dir)
	}
	return nil
}

// lockProblem tells a lock that somebody holds from a file that cannot be made.
func lockProblem(err error) string {
	var path *os.PathError
	switch {
	case !errors.As(err, &path):
		return "it is in use by another process"
	case errors.Is(err, os.ErrPermission), errors.Is(err, syscall.EROFS):
		return "it is not writable"
	}
	return "it cannot be used"
}

// create writes the identity of a new directory. Anything else in it means
// that the identity was lost.
func (d *dataDir) create() error {
	names, err := d.fs.List(d.dir)
	if err != nil {
		return fmt.Errorf("data directory %s: %w", d.dir, err)
	}
	for _, name := range names {
		if name == "log" || name == "state" {
			return fmt.Errorf("data directory %s: felix.json is missing beside %s: restore it, or start on an empty directory", d.dir, name)
		}
	}
	id := make([]byte, 16)
	if _, err := rand.Read(id); err != nil {
		return fmt.Errorf("data directory %s: no random store id: %w", d.dir, err)
	}
	d.identity = identity{Format: dataFormat, StoreID: hex.EncodeToString(id)}
	d.isNew = true
	raw, err := json.Marshal(d.identity)
	if err != nil {
		return err
	}
	if err := writeFile(d.fs, d.dir, "felix.json", append(raw, '\n')); err != nil {
		return fmt.Errorf("data directory %s: it is not writable: %w", d.dir, err)
	}
	return nil
}

func (d *dataDir) close() error { return d.lock.Close() }

func readFile(fs vfs.FS, path string) ([]byte, error) {
	f, err := fs.Open(path)
	if err != nil {
		return nil, err
	}
	raw, err := io.ReadAll(f)
	return raw, errors.Join(err, f.Close())
}

// writeFile replaces a file so that after a crash it is the old or the new one.
func writeFile(fs vfs.FS, dir, name string, raw []byte) error {
	temporary := fs.PathJoin(dir, name+".new")
	f, err := fs.Create(temporary, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	_, err = f.Write(raw)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := fs.Rename(temporary, fs.PathJoin(dir, name)); err != nil {
		return err
	}
	return syncDir(fs, dir)
}

// makeDir makes a directory and what is missing above it, so that a power cut
// does not take them away again, with all that is synced inside.
func makeDir(fs vfs.FS, dir string) error {
	if _, err := fs.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	parent := fs.PathDir(dir)
	if parent != dir {
		if err := makeDir(fs, parent); err != nil {
			return err
		}
	}
	if err := fs.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return syncDir(fs, parent)
}

func syncDir(fs vfs.FS, dir string) error {
	d, err := fs.OpenDir(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
