package broker

import (
	"fmt"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// dirSyncFS tells of a directory that cannot be synced before Pebble hears of
// it: Pebble panics then, also on goroutines of its own while it opens, and the
// reason would drown in their stacks.
type dirSyncFS struct {
	vfs.FS
	failed func(error) // does not return in production
}

// OpenDir implements vfs.FS.
func (d *dirSyncFS) OpenDir(name string) (vfs.File, error) {
	f, err := d.FS.OpenDir(name)
	if err != nil {
		return nil, err
	}
	return &syncedDir{File: f, fs: d, name: name}, nil
}

// Unwrap implements vfs.FS.
func (d *dirSyncFS) Unwrap() vfs.FS { return d.FS }

type syncedDir struct {
	vfs.File
	fs   *dirSyncFS
	name string
}

// Sync implements vfs.File.
func (d *syncedDir) Sync() error {
	err := d.File.Sync()
	if err != nil {
		d.fs.failed(fmt.Errorf("directory %s cannot be synced: %w", d.name, err))
	}
	return err
}
