// Package raftlog keeps the Raft logs and hard states of all shards of a broker
// in one Pebble, so that one sync makes everything durable that all shards have
// ready (group commit). Each Shard is a raft.Storage.
//
// One goroutine, the committer, calls Commit, and for a shard whose state a
// snapshot replaces, whoever does that, in its place. Each shard's goroutine calls
// the raft.Storage methods of its Shard, and Compact. What was committed last is
// also kept in memory, bounded per shard and in total, because raft reads it
// back at once to apply it.
//
// # What is durable when
//
// Commit with Sync returns after everything committed so far is on disk.
// Without Sync, entries reach the operating system soon and the disk with the
// next sync. A hard state alone without Sync (raft sends one with every advance
// of the commit index), and compactions, are not written at all until the next
// batch is: they ride along. After a crash the log is a prefix, in commit order,
// of the batches that were committed, at least up to the last synced one.
//
// # Failure
//
// When the disk fails or data is corrupt, Options.Fatal is called once, and from
// then on every method that writes, and every one that has to read the disk,
// answers with the reason. Nothing is retried: after a failed fsync nobody knows
// what is on disk.
package raftlog

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// Errors that Open answers with, to be found with errors.Is.
var (
	// ErrInUse is a directory that another process (or Log) has open.
	ErrInUse = errors.New("in use by another process; stop it first")
	// ErrNotWritable is a directory that we may not write to.
	ErrNotWritable = errors.New("not writable; check the owner, the permissions and the mount of the directory")
	// ErrCorrupt is data that is damaged. Restore the broker from its peers or
	// from a backup; nothing here repairs it.
	ErrCorrupt = errors.New("corrupt")
	// ErrNewerFormat is a directory that a newer version of Felix has written.
	ErrNewerFormat = errors.New("written by a newer version of Felix; run that version or a later one")
	// ErrClosed is the use of a Log after Close.
	ErrClosed = errors.New("the log is closed")
)

// Options of a Log. The zero value of a field is its default.
type Options struct {
	// FS is the file system; nil is vfs.Default.
	FS vfs.FS
	// Logger receives what Pebble has to say (at debug level) and warnings; nil
	// discards it.
	Logger *slog.Logger
	// Fatal is called once, from any goroutine, when the disk has failed or
	// data is corrupt. It must end the process and not return; if it does
	// return, the Log refuses further work, but a call under way may wait for
	// ever, and Pebble may panic. It must not call the Log. nil panics.
	Fatal func(error)
	// OnSync is told how long each commit with a sync took, from the
	// committing goroutine; nil is nobody. It must be quick.
	OnSync func(time.Duration)
	// MemTableBytes is the size of Pebble's memtables, and with it of a WAL
	// file. Entries compacted away before their memtable is full are never
	// written but to the WAL, so it should be larger than what all shards
	// together keep. Default 16 MiB.
	MemTableBytes int
	// WALPrefillFiles is how many WAL files are kept ready, filled with zeros;
	// negative is none. Default 2, but none on vfs.MemFS, which gains nothing.
	WALPrefillFiles int
	// WALPrefillBytes is the size of each. Default MemTableBytes and a tenth.
	WALPrefillBytes int64
	// ShardTailBytes bounds what is kept in memory of one shard's newest
	// entries. Default 4 MiB.
	ShardTailBytes int64
	// TotalTailBytes bounds the same for all shards together; each gets an
	// equal part. Default 64 MiB.
	TotalTailBytes int64
}

func (o Options) withDefaults() Options {
	if o.FS == nil {
		o.FS = vfs.Default
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Fatal == nil {
		o.Fatal = func(err error) { panic(err) }
	}
	if o.OnSync == nil {
		o.OnSync = func(time.Duration) {}
	}
	if o.MemTableBytes == 0 {
		o.MemTableBytes = 16 << 20
	}
	if _, inMemory := vfs.Root(o.FS).(*vfs.MemFS); o.WALPrefillFiles == 0 && !inMemory {
		o.WALPrefillFiles = 2
	}
	if o.WALPrefillBytes == 0 {
		o.WALPrefillBytes = int64(o.MemTableBytes) + int64(o.MemTableBytes)/10
	}
	if o.ShardTailBytes == 0 {
		o.ShardTailBytes = 4 << 20
	}
	if o.TotalTailBytes == 0 {
		o.TotalTailBytes = 64 << 20
	}
	return o
}

// Log is the Raft logs of all shards of a broker.
//
// Locks, in the order they may be taken: writeMu, shardsMu, lifeMu, Shard.mu,
// dirtyMu. Only writeMu is held during disk writes and syncs, and only writers
// take it.
type Log struct {
	dir     string
	opts    Options
	lock    *pebble.Lock
	prefill *prefillFS // nil without prefilling
	db      *pebble.DB

	// writeMu orders everything that writes: Commit, Drop, PrepareRestart,
	// Close.
	writeMu sync.Mutex
	batch   *pebble.Batch // guarded by writeMu; reused
	// unsynced says that something was written since the last sync; guarded by
	// writeMu.
	unsynced bool
	// batches counts those written since Open; those up to syncedBatches are
	// synced. Guarded by writeMu.
	batches, syncedBatches uint64
	// covered says that the newest batch is a mark alone; guarded by writeMu.
	covered bool
	// rewritten are the shards whose entries the batch at hand replaces; guarded
	// by writeMu. A shard may be in it more than once.
	rewritten []*Shard
	// one is for commits of our own; guarded by writeMu.
	one [1]Append

	// lifeMu is held shared while db is read, and alone to close it.
	lifeMu sync.RWMutex

	shardsMu sync.Mutex
	// shards are the open ones; guarded by shardsMu. Dropped ones are not in it.
	shards map[uint64]*Shard
	// tailLimit is what each open shard may keep in memory, in bytes.
	tailLimit atomic.Int64

	dirtyMu sync.Mutex
	// dirty are the shards that have something to be written with the next
	// batch; guarded by dirtyMu. Each is in it at most once (Shard.queued).
	dirty []*Shard
	// spare is the other of the two slices that dirty alternates between;
	// guarded by writeMu.
	spare []*Shard

	// opened says that Open has succeeded: until then failures are its errors
	// and not told to Fatal.
	opened    atomic.Bool
	openStuck chan struct{} // closed if Pebble will not come back from opening
	stuckOnce sync.Once     // closes openStuck
	failure   atomic.Pointer[error]
	told      sync.Once // Options.Fatal is told of the failure

	counters counters
}

// Shards lists the ids of the shards that have anything in the log, ascending.
func (l *Log) Shards() ([]uint64, error) {
	ids, err := l.shardsOnDisk()
	if err != nil {
		return nil, err
	}
	// A shard may so far have nothing but what rides with the next batch.
	l.shardsMu.Lock()
	for id, s := range l.shards {
		if s.hardState() != (hardState{}) {
			ids = append(ids, id)
		}
	}
	l.shardsMu.Unlock()
	slices.Sort(ids)
	return slices.Compact(ids), nil
}

func (l *Log) shardsOnDisk() ([]uint64, error) {
	l.lifeMu.RLock()
	defer l.lifeMu.RUnlock()
	if err := l.failed(); err != nil {
		return nil, err
	}
	iter, err := l.db.NewIter(nil)
	if err != nil {
		return nil, l.readError(err)
	}
	defer func() { _ = iter.Close() }() // Error tells its error
	var ids []uint64
	ok := iter.SeekGE(appendRecordKey(nil, 0, classEnd))
	for ok {
		id, err := shardOfKey(iter.Key())
		if err != nil {
			return nil, l.fail(l.corrupt(err))
		}
		ids = append(ids, id)
		ok = iter.SeekGE(appendRecordKey(nil, id, classEnd))
	}
	if err := iter.Error(); err != nil {
		return nil, l.readError(err)
	}
	return ids, nil
}

// Shard opens a shard's log, which may be empty. There is one *Shard per id:
// opening it again gives the same one. The id must not be 0. An error that
// wraps ErrCorrupt means that the shard's records are damaged.
func (l *Log) Shard(id uint64) (*Shard, error) {
	if id == 0 {
		return nil, errors.New("shard id 0 is not allowed: it holds the log's own records")
	}
	if err := l.failed(); err != nil {
		return nil, err
	}
	l.shardsMu.Lock()
	defer l.shardsMu.Unlock()
	if s := l.shards[id]; s != nil {
		return s, nil
	}
	s, err := l.openShard(id)
	if err != nil {
		return nil, err
	}
	l.shards[id] = s
	l.limitTails()
	return s, nil
}

// limitTails gives every open shard an equal part of the memory. shardsMu is
// held.
func (l *Log) limitTails() {
	limit := min(l.opts.ShardTailBytes, l.opts.TotalTailBytes/int64(max(len(l.shards), 1)))
	before := l.tailLimit.Swap(limit)
	if limit >= before {
		return
	}
	for _, s := range l.shards {
		s.mu.Lock()
		s.w.shrink(limit)
		s.mu.Unlock()
	}
}

// Drop removes everything of these shards and returns when that is on disk.
// Their *Shard must not be used any more; what is still committed for it is
// ignored, so a dropped shard cannot come back. Unknown ids are fine.
func (l *Log) Drop(ids ...uint64) error {
	l.writeMu.Lock()
	defer l.writeMu.Unlock()
	if err := l.failed(); err != nil {
		return err
	}
	if len(ids) == 0 {
		return nil
	}
	if err := l.beginBatch(); err != nil {
		return err
	}
	l.shardsMu.Lock()
	for _, id := range ids {
		if s := l.shards[id]; s != nil {
			s.disk.dropped = true
		}
		if id != 0 {
			stageClear(l.batch, id)
		}
	}
	l.shardsMu.Unlock()
	l.stageDirty()
	if err := l.apply(true); err != nil {
		return err
	}
	l.shardsMu.Lock()
	defer l.shardsMu.Unlock()
	for _, id := range ids {
		delete(l.shards, id)
	}
	l.limitTails()
	return nil
}

// Close writes what waits to ride along, closes Pebble and releases the
// directory. After a failure it only releases the directory (what is in memory
// is in doubt, and Pebble may be stuck) and answers with the failure.
func (l *Log) Close() error {
	l.writeMu.Lock()
	defer l.writeMu.Unlock()
	err := l.failed()
	if errors.Is(err, ErrClosed) {
		return nil
	}
	if err == nil {
		err = l.writeLast()
	}
	if err == nil {
		closed := ErrClosed
		l.lifeMu.Lock()
		l.failure.Store(&closed)
		err = errors.Join(l.batch.Close(), l.db.Close())
		l.lifeMu.Unlock()
	}
	if l.prefill != nil {
		l.prefill.close()
	}
	return errors.Join(err, l.lock.Close())
}

// writeLast writes what waits to ride along, and a mark behind it all. Closing
// Pebble syncs that one.
func (l *Log) writeLast() error {
	if err := l.beginBatch(); err != nil {
		return err
	}
	l.stageDirty()
	if err := l.apply(true); err != nil {
		return err
	}
	return l.cover(false)
}

// failed is why the log refuses to work, or nil.
func (l *Log) failed() error {
	if err := l.failure.Load(); err != nil {
		return *err
	}
	return nil
}

// fail stops the log for good. It returns the first failure, and not before
// Fatal is done with it: Raft panics where it gets an error, so whoever comes
// second must not be faster than the process's orderly end.
func (l *Log) fail(err error) error {
	if l.opened.Load() { // otherwise Open says where
		err = fmt.Errorf("raft log in %s: %w", l.dir, err)
	}
	l.failure.CompareAndSwap(nil, &err)
	failed := l.failed()
	if l.opened.Load() && !errors.Is(failed, ErrClosed) {
		l.told.Do(func() { l.opts.Fatal(failed) })
	}
	return failed
}

// readError is a failed read: corrupt data or a disk that does not read. Either
// is the end.
func (l *Log) readError(err error) error {
	if pebble.IsCorruptionError(err) {
		return l.fail(l.corrupt(err))
	}
	return l.fail(fmt.Errorf("reading failed: %w", oneLine(err)))
}

func (l *Log) corrupt(err error) error { return fmt.Errorf("%w: %w", ErrCorrupt, oneLine(err)) }
