package raftlog

import (
	"context"
	"errors"
	"fmt"
	iofs "io/fs"
	"log/slog"
	"os"
	"strings"
	"syscall"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// pebbleFormat pins what Pebble writes, so that a newer Pebble does not change
// the disk format behind our back. This one has table checksums, and WAL chunks
// that say how much was synced, which tells damage from the end of a WAL; except
// in its last block of 32 KiB, where Pebble does not look for later chunks.
const pebbleFormat = pebble.FormatTableFormatV6

// retainedBatchBytes is how large a batch buffer may be to be kept for the next
// commit.
const retainedBatchBytes = 4 << 20

// Open opens the log in dir, which it creates if need be. The errors are one
// line and wrap ErrInUse, ErrNotWritable, ErrCorrupt or ErrNewerFormat where
// they apply. After an error the process should end: some leave the directory
// locked by it.
func Open(dir string, o Options) (*Log, error) {
	o = o.withDefaults()
	l := &Log{dir: dir, opts: o, shards: make(map[uint64]*Shard), openStuck: make(chan struct{})}
	l.tailLimit.Store(o.ShardTailBytes)
	err := l.open()
	if err == nil {
		return l, nil
	}
	l.abandon()
	return nil, fmt.Errorf("raft log in %s: %w", dir, err)
}

func (l *Log) open() error {
	base := l.opts.FS
	if err := base.MkdirAll(l.dir, 0o755); err != nil {
		return openError(err)
	}
	lock, err := pebble.LockDirectory(l.dir, base)
	if err != nil {
		return lockError(err)
	}
	l.lock = lock
	if err := checkWALs(base, l.dir); err != nil {
		return openError(err)
	}
	pebbleFS := base
	if l.opts.WALPrefillFiles > 0 {
		l.prefill, err = newPrefillFS(base, l.dir, l.opts.WALPrefillBytes, l.opts.WALPrefillFiles, l.opts.Logger)
		if err != nil {
			return openError(err)
		}
		pebbleFS = l.prefill
	}
	pebbleFS = &watchFS{FS: pebbleFS, failed: func(err error) { _ = l.fail(err) }}
	if err = l.openPebble(l.pebbleOptions(pebbleFS)); err != nil {
		return openError(err)
	}
	l.batch = l.db.NewBatch(pebble.WithMaxRetainedSizeBytes(retainedBatchBytes))
	if err := l.checkFormat(); err != nil {
		return err
	}
	l.opened.Store(true)
	return l.failed() // what failed before was not told to Fatal
}

// abandon releases what a failed open holds.
func (l *Log) abandon() {
	if l.db != nil && l.failed() == nil {
		_ = l.db.Close()
	}
	if l.prefill != nil {
		l.prefill.close()
	}
	if l.lock != nil {
		_ = l.lock.Close()
	}
}

// openPebble opens Pebble; damage on which it panics is an error here, because
// a data directory may be bad input. Where it cannot flush what it replayed (a
// full disk), Pebble tries again for ever: then it is left behind, stuck in
// backgroundError, and keeps the directory locked until the process ends.
func (l *Log) openPebble(o *pebble.Options) error {
	type result struct {
		db  *pebble.DB
		err error
	}
	done := make(chan result, 1)
	go func() {
		defer func() {
			if r := recover(); r != nil {
				done <- result{err: fmt.Errorf("%w: %v", ErrCorrupt, r)}
			}
		}()
		db, err := pebble.Open(l.dir, o)
		done <- result{db, err}
	}()
	select {
	case r := <-done:
		l.db = r.db
		return r.err
	case <-l.openStuck:
		return l.failed()
	}
}

// backgroundError is told by Pebble of a failed flush or compaction.
func (l *Log) backgroundError(err error) {
	_ = l.fail(fmt.Errorf("the disk failed in the background: %w", oneLine(err)))
	if !l.opened.Load() {
		l.stuckOnce.Do(func() { close(l.openStuck) })
		select {} // see openPebble
	}
}

// l0Files is how many flushed memtables begin a compaction: as many as hold
// what is logged between two checkpoints of a busy broker.
const l0Files = 16

func (l *Log) pebbleOptions(fs vfs.FS) *pebble.Options {
	listener := pebble.EventListener{
		BackgroundError: l.backgroundError,
		DataCorruption: func(info pebble.DataCorruptionInfo) {
			_ = l.fail(fmt.Errorf("%w: %s: %w", ErrCorrupt, info.Path, oneLine(info.Details)))
		},
	}
	o := &pebble.Options{
		FS:                 fs,
		Lock:               l.lock,
		FormatMajorVersion: pebbleFormat,
		MemTableSize:       uint64(l.opts.MemTableBytes),
		// Two memtables being flushed, one filling, and one to spare.
		MemTableStopWritesThreshold: 4,
		// Little is ever read from tables: what raft reads is in memory or in
		// a memtable. Without cgo this is Go heap.
		CacheSize:                  8 << 20,
		MaxOpenFiles:               256,
		CompactionConcurrencyRange: func() (int, int) { return 1, 1 },
		Logger:                     pebbleLogger{l},
		EventListener:              &listener,
		// Almost everything that is flushed is truncated soon after. Compacted
		// late it need not be copied, and compressing it is for nothing.
		L0CompactionThreshold: l0Files,
		L0StopWritesThreshold: 4 * l0Files,
	}
	o.ApplyCompressionSettings(func() pebble.DBCompressionSettings { return pebble.DBCompressionNone })
	return o
}

// checkFormat reads the format record, or writes it into a new log.
func (l *Log) checkFormat() error {
	key := appendRecordKey(nil, 0, classFormat)
	value, closer, err := l.db.Get(key)
	if errors.Is(err, pebble.ErrNotFound) {
		return l.writeFormat(key)
	}
	if err != nil {
		return openError(err)
	}
	defer func() { _ = closer.Close() }()
	switch {
	case len(value) == 1 && value[0] == formatVersion:
		return nil
	case len(value) >= 1 && value[0] > formatVersion:
		return fmt.Errorf("format %d: %w (this one knows up to %d)", value[0], ErrNewerFormat, formatVersion)
	}
	return fmt.Errorf("%w: format record of %d bytes", ErrCorrupt, len(value))
}

func (l *Log) writeFormat(key []byte) error {
	ids, err := l.Shards()
	if err != nil {
		return err
	}
	if len(ids) != 0 {
		return fmt.Errorf("%w: it has shards but no format record", ErrCorrupt)
	}
	if err := l.beginBatch(); err != nil {
		return err
	}
	if err := l.batch.Set(key, []byte{formatVersion}, nil); err != nil {
		return err
	}
	if err := l.apply(true); err != nil {
		return err
	}
	// Pebble makes the first WAL of a new database in its oldest format, in
	// which damage looks like the end. The flush makes it go on in a new one.
	return l.flush()
}

// flush flushes the memtable of a log that is being opened. On a disk that does
// not take it Pebble tries again for ever: see openPebble.
func (l *Log) flush() error {
	flushed, err := l.db.AsyncFlush()
	if err != nil {
		return err
	}
	select {
	case <-flushed:
		return nil
	case <-l.openStuck:
		return l.failed()
	}
}

// lockError is why the lock file could not be had: it could not be made, or
// somebody has it.
func lockError(err error) error {
	var path *iofs.PathError
	if errors.As(err, &path) || errors.Is(err, syscall.ENOSPC) {
		return openError(err)
	}
	return ErrInUse
}

// openError makes an error of opening one line that says what is the matter.
func openError(err error) error {
	err = oneLine(err)
	switch {
	case errors.Is(err, ErrCorrupt), errors.Is(err, ErrNewerFormat):
		return err
	case strings.Contains(err.Error(), "unknown format major version"):
		// Pebble has no error value for it.
		return fmt.Errorf("%w: %w", ErrNewerFormat, err)
	case errors.Is(err, iofs.ErrPermission), errors.Is(err, syscall.EROFS), errors.Is(err, syscall.ENOTDIR):
		return fmt.Errorf("%w: %w", ErrNotWritable, err)
	case pebble.IsCorruptionError(err), errors.Is(err, iofs.ErrNotExist), !fromSystem(err):
		// Also where files refer to one that is gone, or contradict us.
		return fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	return fmt.Errorf("cannot open: %w", err)
}

// fromSystem says whether the operating system has refused something.
func fromSystem(err error) bool {
	var path *iofs.PathError
	var link *os.LinkError
	var number syscall.Errno
	return errors.As(err, &path) || errors.As(err, &link) || errors.As(err, &number)
}

// oneLine is an error whose text ends at the first line break.
func oneLine(err error) error {
	if err == nil || !strings.Contains(err.Error(), "\n") {
		return err
	}
	return lineError{err}
}

type lineError struct{ err error }

// Error implements error.
func (e lineError) Error() string {
	text, _, _ := strings.Cut(e.err.Error(), "\n")
	return text
}

// Unwrap gives errors.Is and errors.As the whole error.
func (e lineError) Unwrap() error { return e.err }

// pebbleLogger passes on what Pebble says. Fatalf is Pebble's way to say that
// it cannot go on, for instance after a failed sync.
type pebbleLogger struct{ l *Log }

// Infof implements pebble.Logger.
func (p pebbleLogger) Infof(format string, args ...any) {
	if p.l.opts.Logger.Enabled(context.Background(), slog.LevelDebug) {
		p.l.opts.Logger.Debug("pebble: " + fmt.Sprintf(format, args...))
	}
}

// Errorf implements pebble.Logger.
func (p pebbleLogger) Errorf(format string, args ...any) {
	p.l.opts.Logger.Warn("pebble: " + fmt.Sprintf(format, args...))
}

// Fatalf implements pebble.Logger. Pebble expects it not to return, and
// Options.Fatal does not in production; where it does, failed says so.
func (p pebbleLogger) Fatalf(format string, args ...any) {
	_ = p.l.fail(oneLine(fmt.Errorf(format, args...)))
}
