package store

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/felix-go/felix/internal/record"
)

// Errors that Open wraps, for callers that want to tell them apart. Their text
// is one line and says what to do, but for ErrDamaged's: that depends on what
// else there is of the data.
var (
	// ErrInUse is a directory that another process (or another DB of this one)
	// has open.
	ErrInUse = errors.New("in use by another process: stop that broker, or choose another data directory")
	// ErrNotWritable is a directory that this process must not write to.
	ErrNotWritable = errors.New("not writable: check owner and permissions of the data directory")
	// ErrNewerFormat is a directory written by a newer Felix.
	ErrNewerFormat = errors.New("written in a newer format: run the Felix version that wrote it, or a later one")
	// ErrDamaged is a directory whose files contradict each other or their
	// checksums.
	ErrDamaged = errors.New("damaged")
)

// DefaultCacheBytes is the block cache that Options.CacheBytes 0 stands for:
// enough for the indexes and filters of some ten million records, so that a
// cold read costs one disk read.
const DefaultCacheBytes = 64 << 20

// Options says how to open a DB.
type Options struct {
	// FS is the file system; nil means the operating system's.
	FS vfs.FS
	// Logger hears of compactions (debug), errors and slow disks; nil means
	// slog.Default.
	Logger *slog.Logger
	// Fatal is called, once, when the disk failed or does not hold what was
	// written to it. From then on the DB changes nothing on disk any more and
	// refuses every call. It may be called with locks held: it must not call the
	// DB, and should end the process. Nil panics.
	Fatal func(error)
	// CacheBytes bounds the block cache, which is Go heap; 0 means
	// DefaultCacheBytes.
	CacheBytes int64
	// FileBytes is about how large (before compression) one file of a
	// checkpoint grows before the next is begun; 0 means 16 MiB.
	FileBytes int64
	// Now is the clock for the durations in CheckpointStats; nil means
	// time.Now. Nothing else in a DB reads a clock.
	Now func() time.Time
}

// DB is the state of all shards of a broker, on disk. It changes only by
// WriteCheckpoint, SetReplicas, Install.Commit, Drop and the removal of stale
// expiry hints, each of which is atomic and durable when it returns. It has no
// write-ahead log: the Raft log is that.
//
// All methods are safe for concurrent use, except that nothing may run during
// or after Close.
type DB struct {
	dir  string
	fs   *haltingFS // all file operations of pebble and ours
	log  *slog.Logger
	now  func() time.Time
	lock *pebble.Lock
	kv   *pebble.DB
	opts *pebble.Options // those of kv, with defaults filled in

	fatal  func(error)
	failed atomic.Pointer[error] // the first fatal error; never unset

	keys       sync.Pool     // of *keyBuffer, for Load
	levelMoved chan struct{} // holds a token after a compaction ended or the DB failed

	// writing serializes all changes of the disk. It is taken before sweeps.mu.
	writing   sync.Mutex
	fileBytes int64
	fileSeq   atomic.Uint64 // names the next file to ingest

	sweeps sweeps
	stats  checkpointStats
}

type keyBuffer struct{ b []byte }

// Open opens the state in dir, which it creates if need be, and discards what
// was not finished: files of checkpoints that were not ingested, and shards
// whose snapshot was still being installed. The error is one line; it wraps
// ErrInUse, ErrNotWritable, ErrNewerFormat or ErrDamaged where one of these is
// the reason.
func Open(dir string, o Options) (*DB, error) {
	db := newDB(dir, o)
	if err := db.open(o.CacheBytes); err != nil {
		return nil, fmt.Errorf("state store %s: %w", dir, explain(err))
	}
	if err := db.discardInstalling(); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return db, nil
}

func newDB(dir string, o Options) *DB {
	if o.FS == nil {
		o.FS = vfs.Default
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.FileBytes <= 0 {
		o.FileBytes = 16 << 20
	}
	db := &DB{
		dir:        dir,
		fs:         &haltingFS{FS: o.FS},
		log:        o.Logger,
		now:        o.Now,
		fatal:      o.Fatal,
		levelMoved: make(chan struct{}, 1),
		fileBytes:  o.FileBytes,
	}
	db.keys.New = func() any { return &keyBuffer{b: make([]byte, 0, 256)} }
	db.sweeps.shards = make(map[uint64]*sweep)
	return db
}

// open locks the directory before it looks at, let alone cleans, anything in
// it.
func (db *DB) open(cacheBytes int64) (err error) {
	if err := makeDir(db.fs, db.dir); err != nil {
		return err
	}
	db.lock, err = pebble.LockDirectory(db.dir, db.fs)
	if err != nil {
		return lockError(err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, db.lock.Close())
		}
	}()
	created, err := checkFormat(db.fs, db.dir)
	if err == nil && !created {
		err = uncreate(db.fs, db.dir)
	}
	if err != nil {
		return err
	}
	if err := db.removeLeftovers(); err != nil {
		return err
	}
	db.opts = db.pebbleOptions(cacheBytes)
	if db.kv, err = pebble.Open(db.dir, db.opts); err != nil {
		return openError(err)
	}
	return nil
}

// discardInstalling drops the shards whose snapshot is not whole: their log
// was not reset yet, so the leader will send the snapshot again.
func (db *DB) discardInstalling() error {
	shards, err := db.Shards()
	if err != nil {
		return err
	}
	var drop []uint64
	for _, shard := range shards {
		found, err := db.read(record.AppendStateKey(nil, shard, record.InstallingClass, nil), func([]byte) error { return nil })
		if err != nil {
			return err
		}
		if found {
			drop = append(drop, shard)
		}
	}
	if len(drop) > 0 {
		db.log.Warn("discarding shards whose snapshot was not completely installed", "shards", drop)
	}
	return db.Drop(drop...)
}

// Close waits for compactions to stop and releases the directory. All cursors
// must have been closed. After a fatal error it releases what it can and
// answers that error.
func (db *DB) Close() error {
	err := db.failure()
	closeErr := db.kv.Close()
	lockErr := db.lock.Close()
	if err != nil { // what closing says after that is a consequence
		return err
	}
	if closeErr != nil || lockErr != nil {
		return fmt.Errorf("state store %s: closing: %w", db.dir, errors.Join(closeErr, lockErr))
	}
	return nil
}

// Shards lists the shards that have any record, in ascending order. It costs
// one seek a shard.
func (db *DB) Shards() ([]uint64, error) {
	if err := db.failure(); err != nil {
		return nil, err
	}
	it, err := db.kv.NewIter(nil)
	if err != nil {
		return nil, db.fail("listing shards", err)
	}
	var shards []uint64
	for ok := it.First(); ok; {
		if len(it.Key()) < record.StateKeyPrefixBytes {
			err = fmt.Errorf("%w: key of %d bytes", record.ErrCorrupt, len(it.Key()))
			break
		}
		shard := binary.BigEndian.Uint64(it.Key())
		shards = append(shards, shard)
		ok = it.SeekGE(shardEnd(shard))
	}
	if err = errors.Join(err, it.Close()); err != nil {
		return nil, db.fail("listing shards", err)
	}
	return shards, nil
}

// Applied tells which log prefix the shard's records are the result of; ok is
// false for a shard that was never checkpointed.
func (db *DB) Applied(shard uint64) (a record.Applied, ok bool, err error) {
	key := record.AppendStateKey(nil, shard, record.AppliedClass, nil)
	ok, err = db.read(key, func(b []byte) (err error) {
		a, err = record.ReadApplied(b)
		return err
	})
	return a, ok, err
}

// Replica tells which replica of the shard this broker has; ok is false where
// it has none.
func (db *DB) Replica(shard uint64) (r record.Replica, ok bool, err error) {
	key := record.AppendStateKey(nil, shard, record.ReplicaClass, nil)
	ok, err = db.read(key, func(b []byte) (err error) {
		r, err = record.ReadReplica(b)
		return err
	})
	return r, ok, err
}

// loadOptions make a lookup ask the filters of the lowest level too: most keys
// that memory does not hold are new, and do not exist.
var loadOptions = pebble.IterOptions{UseL6Filters: true}

// Load reads the counter and the value of a key, as they are at one moment,
// into c, which it resets first; one that is not there stays absent.
func (db *DB) Load(shard uint64, key []byte, c *record.Cell) error {
	*c = record.Cell{}
	if err := db.failure(); err != nil {
		return err
	}
	it, err := db.kv.NewIter(&loadOptions) // cheaper than two Gets, measured
	if err != nil {
		return db.fail("reading", err)
	}
	buf := db.keys.Get().(*keyBuffer)
	buf.b = record.AppendStateKey(buf.b[:0], shard, record.CounterClass, key)
	if it.SeekPrefixGE(buf.b) {
		err = record.ReadCounter(it.Value(), c)
	}
	buf.b[record.StateKeyPrefixBytes-1] = byte(record.ValueClass)
	if err == nil && it.SeekPrefixGE(buf.b) {
		err = record.ReadValue(it.Value(), c)
	}
	db.keys.Put(buf)
	if closeErr := it.Close(); err != nil || closeErr != nil {
		return db.fail("reading", errors.Join(err, closeErr))
	}
	return nil
}

// LoadID is Load of the record of an id, which c has as its value.
func (db *DB) LoadID(shard uint64, id record.IDKey, c *record.Cell) error {
	*c = record.Cell{}
	if err := db.failure(); err != nil {
		return err
	}
	it, err := db.kv.NewIter(&loadOptions)
	if err != nil {
		return db.fail("reading", err)
	}
	if it.SeekPrefixGE(record.AppendStateKey(make([]byte, 0, record.StateKeyPrefixBytes+record.IDKeyBytes), shard, record.IDClass, id[:])) {
		if err = record.ReadValue(it.Value(), c); err == nil {
			err = record.CheckOutcome(c.Value)
		}
	}
	if closeErr := it.Close(); err != nil || closeErr != nil {
		return db.fail("reading", errors.Join(err, closeErr))
	}
	return nil
}

// read finds a record and decodes it. An unreadable one is fatal.
func (db *DB) read(key []byte, decode func([]byte) error) (found bool, err error) {
	if err := db.failure(); err != nil {
		return false, err
	}
	b, closer, err := db.kv.Get(key)
	if errors.Is(err, pebble.ErrNotFound) {
		return false, nil
	}
	if err == nil {
		err = errors.Join(decode(b), closer.Close())
	}
	if err != nil {
		return false, db.fail("reading", err)
	}
	return true, nil
}

// Drop removes every record of these shards. It is atomic, and durable when it
// returns. Dropping a shard that has no records costs a seek.
func (db *DB) Drop(shards ...uint64) error {
	var spans []Checkpoint
	for _, shard := range shards {
		empty, err := db.empty(shard)
		if err != nil {
			return err
		}
		if !empty {
			spans = append(spans, Checkpoint{Shard: shard, Clear: true})
		}
	}
	if len(spans) == 0 {
		return nil
	}
	return db.change(spans, false)
}

func (db *DB) empty(shard uint64) (bool, error) {
	it, err := db.iterate(record.AppendShard(nil, shard), shardEnd(shard))
	if err != nil {
		return false, err
	}
	empty := !it.First()
	if err := it.Close(); err != nil {
		return false, db.fail("reading", err)
	}
	return empty, nil
}

// iterate reads [lower, upper) as it is at this moment. The caller closes it
// and gives the error to fail.
func (db *DB) iterate(lower, upper []byte) (*pebble.Iterator, error) {
	if err := db.failure(); err != nil {
		return nil, err
	}
	it, err := db.kv.NewIterWithContext(context.Background(), &pebble.IterOptions{LowerBound: lower, UpperBound: upper})
	if err != nil {
		return nil, db.fail("reading", err)
	}
	return it, nil
}

// failure is the fatal error that stopped the DB, or nil.
func (db *DB) failure() error {
	if err := db.failed.Load(); err != nil {
		return *err
	}
	return nil
}

// fail stops the DB for good: no file is changed after it, whoever still runs.
// It answers the error that all later calls get, which is that of the first
// failure.
func (db *DB) fail(doing string, err error) error {
	if errors.Is(err, errHalted) { // an echo of the first failure
		return db.failure()
	}
	err = fmt.Errorf("state store %s: %s: %w", db.dir, doing, err)
	if !db.failed.CompareAndSwap(nil, &err) {
		return db.failure()
	}
	db.fs.halt()
	db.wakeWriter()
	if db.fatal == nil {
		panic(err)
	}
	db.fatal(err)
	return err
}

// shardEnd is above every key of the shard and not above any of the next.
func shardEnd(shard uint64) []byte {
	return append(record.AppendShard(nil, shard), 0xff)
}
