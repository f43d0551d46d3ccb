package store

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"
)

// diskFormat is the pebble format that this build writes. A directory of a
// higher one is refused; one of a lower one is upgraded when it is opened.
const diskFormat = pebble.FormatTableFormatV6

const (
	// filterBitsPerKey makes one lookup in a hundred of an absent key read a
	// block for nothing.
	filterBitsPerKey = 10
	// blockBytes is what one cold read takes from the disk.
	blockBytes = 8 << 10
	// maxLevel0 is how many checkpoints may lie over each other before the
	// next has to wait for a compaction: each costs every read a filter probe,
	// and disk.
	maxLevel0 = 12
	// heavyLevel0 is that bound where level 0 takes more disk than all below
	// it and freeLevel0Bytes: with it, writing all records again and again
	// cannot fill the disk faster than compactions free it.
	heavyLevel0     = 4
	freeLevel0Bytes = 64 << 20
)

// pebbleOptions are for a database that is only ever written by ingesting
// checkpoints and read by key.
func (db *DB) pebbleOptions(cacheBytes int64) *pebble.Options {
	if cacheBytes <= 0 {
		cacheBytes = DefaultCacheBytes
	}
	o := &pebble.Options{
		FS:                 db.fs,
		Lock:               db.lock,
		Logger:             pebbleLogger{db},
		CacheSize:          cacheBytes,
		DisableWAL:         true,
		FormatMajorVersion: diskFormat,
		// Nothing is ever written to the memtable.
		MemTableSize: 256 << 10,
		MaxOpenFiles: 500,
		// Two checkpoints over each other begin a compaction: this bounds the
		// disk to the live records, those two, and the compaction's output.
		L0CompactionThreshold: 4,
		// Checkpoints are only a few files each; many that do not overlap (of
		// different shards) may lie side by side in level 0.
		L0CompactionFileThreshold:  200,
		L0StopWritesThreshold:      1000, // ingesting never stops; see maxLevel0
		CompactionConcurrencyRange: func() (int, int) { return 1, 1 },
		EventListener: &pebble.EventListener{
			BackgroundError: func(err error) { db.fail("compacting", err) },
			DataCorruption: func(info pebble.DataCorruptionInfo) {
				db.fail("reading "+info.Path, fmt.Errorf("%w: %w", ErrDamaged, info.Details))
			},
			CompactionEnd: func(pebble.CompactionInfo) { db.wakeWriter() },
			DiskSlow: func(info pebble.DiskSlowInfo) {
				db.log.Warn("the disk is slow", "what", info.String())
			},
		},
	}
	o.TargetFileSizes[0] = 8 << 20
	for i := 1; i < len(o.TargetFileSizes); i++ {
		o.TargetFileSizes[i] = 16 << 20
	}
	for i := range o.Levels {
		o.Levels[i].BlockSize = blockBytes
		o.Levels[i].IndexBlockSize = 64 << 10
		o.Levels[i].FilterPolicy = bloom.FilterPolicy(filterBitsPerKey)
	}
	o.ApplyCompressionSettings(func() pebble.DBCompressionSettings { return pebble.DBCompressionFastest })
	o.EnsureDefaults()
	return o
}

// wakeWriter lets a writer that waits for level 0 look again.
func (db *DB) wakeWriter() {
	select {
	case db.levelMoved <- struct{}{}:
	default:
	}
}

// awaitLevel0 returns when level 0 is shallow enough for another checkpoint.
// Pebble itself never holds back an ingest.
func (db *DB) awaitLevel0() error {
	for {
		if err := db.failure(); err != nil {
			return err
		}
		if !level0Full(db.kv.Metrics()) {
			return nil
		}
		<-db.levelMoved
	}
}

func level0Full(m *pebble.Metrics) bool {
	var below int64
	for _, l := range m.Levels[1:] {
		below += l.TablesSize
	}
	depth, heavy := m.Levels[0].Sublevels, m.Levels[0].TablesSize > below+freeLevel0Bytes
	return depth >= maxLevel0 || depth >= heavyLevel0 && heavy
}

// pebbleLogger gives pebble's words to slog. Its Info is our Debug.
type pebbleLogger struct{ db *DB }

// Infof implements pebble.Logger.
func (l pebbleLogger) Infof(format string, args ...any) {
	if l.db.log.Enabled(context.Background(), slog.LevelDebug) {
		l.db.log.Debug("pebble: " + fmt.Sprintf(format, args...))
	}
}

// Errorf implements pebble.Logger.
func (l pebbleLogger) Errorf(format string, args ...any) {
	if l.db.failure() == nil { // after that, it is only echoes
		l.db.log.Error("pebble: " + fmt.Sprintf(format, args...))
	}
}

// Fatalf implements pebble.Logger: the manifest could not be written.
func (l pebbleLogger) Fatalf(format string, args ...any) {
	l.db.fail("writing", fmt.Errorf(format, args...))
}
