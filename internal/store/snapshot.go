package store

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"

	"github.com/felix-go/felix/internal/record"
)

// SnapshotReader tells all records of a shard as they were at one moment, for
// another broker to install. What changes meanwhile does not matter to it, but
// it keeps the files of that moment on disk, so it has to be closed. It belongs
// to one goroutine.
type SnapshotReader struct {
	db       *DB
	it       *pebble.Iterator
	applied  record.Applied
	estimate int64
	begun    bool
}

// OpenSnapshot pins the state of a shard as it is on disk at this moment. A
// shard without a state has no snapshot, which is an error; any other error is
// fatal for the DB.
func (db *DB) OpenSnapshot(shard uint64) (*SnapshotReader, error) {
	it, err := db.iterate(record.AppendShard(nil, shard), shardEnd(shard))
	if err != nil {
		return nil, err
	}
	s := &SnapshotReader{db: db, it: it}
	found, err := s.readApplied(shard)
	if err == nil {
		s.estimate, err = db.estimate(shard)
	}
	if err != nil {
		return nil, db.fail("reading a snapshot", errors.Join(err, it.Close()))
	}
	if !found {
		s.Close()
		return nil, fmt.Errorf("shard %d has no state to make a snapshot of", shard)
	}
	return s, nil
}

func (s *SnapshotReader) readApplied(shard uint64) (found bool, err error) {
	key := record.AppendStateKey(nil, shard, record.AppliedClass, nil)
	if !s.it.SeekGE(key) || !bytes.Equal(s.it.Key(), key) {
		return false, s.it.Error()
	}
	s.applied, err = record.ReadApplied(s.it.Value())
	return true, err
}

func (db *DB) estimate(shard uint64) (int64, error) {
	n, err := db.kv.EstimateDiskUsage(record.AppendShard(nil, shard), shardEnd(shard))
	return int64(n), err
}

// Applied is the log prefix that the records are the result of.
func (s *SnapshotReader) Applied() record.Applied { return s.applied }

// EstimatedBytes is roughly what the shard takes on disk, compressed: for
// progress only.
func (s *SnapshotReader) EstimatedBytes() int64 { return s.estimate }

// Next tells the next record as Install.Add takes it: what follows the shard id
// in its key, and its value, both valid until the next call. It leaves out what
// belongs to this broker's replica alone. ok is false after the last record. An
// error is fatal for the DB.
func (s *SnapshotReader) Next() (key, value []byte, ok bool, err error) {
	for s.advance() {
		key := s.it.Key()[record.StateKeyPrefixBytes-1:]
		switch class := record.Class(key[0]); class {
		case record.AppliedClass, record.InstallingClass, record.ReplicaClass:
		case record.CounterClass, record.ValueClass, record.ExpiryClass, record.IDClass:
			value, err := s.it.ValueAndErr()
			if err != nil {
				return nil, nil, false, s.db.fail("reading a snapshot", err)
			}
			return key, value, true, nil
		default:
			return nil, nil, false, s.db.fail("reading a snapshot", fmt.Errorf("%w: a record has class %q", record.ErrCorrupt, class))
		}
	}
	if err := s.it.Error(); err != nil {
		return nil, nil, false, s.db.fail("reading a snapshot", err)
	}
	return nil, nil, false, nil
}

func (s *SnapshotReader) advance() bool {
	if s.begun {
		return s.it.Next()
	}
	s.begun = true
	return s.it.First()
}

// Close gives the pinned state free. It may be called more than once.
func (s *SnapshotReader) Close() {
	if s.it == nil {
		return
	}
	it := s.it
	s.it = nil
	if err := it.Close(); err != nil {
		_ = s.db.fail("reading a snapshot", err) // Fatal hears of it; nobody here waits for it
	}
}
