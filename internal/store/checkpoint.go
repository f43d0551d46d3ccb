package store

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/felix-go/felix/internal/record"
)

// Checkpoint is what one shard's disk state is to become.
type Checkpoint struct {
	Shard uint64
	// Applied is the log prefix that the state is the result of once Records
	// are written.
	Applied record.Applied
	// Clear deletes everything that the shard had on disk first, except for
	// its Replica record.
	Clear bool
	// Replica is written if it is not nil: the shard is new.
	Replica *record.Replica
	// Records are the changed keys, each once, in any order.
	Records []CheckpointRecord
	// IDs are the same of idempotency ids: their keys are record.IDKeys, and
	// what a cell holds is a value.
	IDs []CheckpointRecord
}

// CheckpointRecord is one key as it is to be on disk.
type CheckpointRecord struct {
	Key  []byte
	Cell record.Cell
	// OnDisk says which records of the key may be on disk. Those of them that
	// the Cell does not have are deleted; a record that is not named here must
	// not be on disk unless the Cell has it.
	OnDisk record.Has
}

// CheckpointStats counts what WriteCheckpoint and the other changes of the
// disk have done since Open.
type CheckpointStats struct {
	Checkpoints  uint64 // calls of WriteCheckpoint that succeeded
	Records      uint64 // keys they were given
	Bytes        uint64 // of the files they wrote, after compression
	Files        uint64
	Duration     time.Duration // of all of them together
	LastDuration time.Duration
	MaxDuration  time.Duration
	StaleHints   uint64 // expiry index records that were removed as outdated
}

type checkpointStats struct {
	mu sync.Mutex
	CheckpointStats
}

// WriteCheckpoint writes the parts, of different shards, together: atomic, and
// durable when it returns. It reads the records and keeps nothing of them.
// Any error is fatal for the DB (Options.Fatal is told): what is on disk then
// is either all of the parts or nothing of them.
func (db *DB) WriteCheckpoint(parts ...Checkpoint) error {
	if len(parts) == 0 {
		return db.failure()
	}
	return db.change(parts, true)
}

// change writes the parts; those of a checkpoint get their Applied record.
func (db *DB) change(parts []Checkpoint, checkpoint bool) error {
	db.writing.Lock()
	defer db.writing.Unlock()
	if err := db.awaitLevel0(); err != nil {
		return err
	}
	start := db.now()
	order := make([]int, len(parts))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return cmpUint64(parts[a].Shard, parts[b].Shard) })
	w := db.newSSTWriter()
	for i, p := range order {
		if i > 0 && parts[order[i-1]].Shard == parts[p].Shard {
			return db.fail("checkpoint", fmt.Errorf("shard %d is given twice", parts[p].Shard))
		}
		if err := db.writePart(w, parts[p], checkpoint); err != nil {
			return db.fail("checkpoint", errors.Join(err, w.abandon()))
		}
	}
	if err := db.ingest(w); err != nil {
		return db.fail("checkpoint", err)
	}
	db.sweeps.changed(parts)
	if checkpoint {
		db.stats.add(parts, w, db.now().Sub(start))
	} else {
		db.stats.addStale(w.stale)
	}
	return nil
}

// writePart writes one part; writing is held.
func (db *DB) writePart(w *sstWriter, p Checkpoint, checkpoint bool) error {
	if checkpoint && p.Clear && p.Replica == nil {
		r, ok, err := db.Replica(p.Shard)
		if err != nil {
			return err
		}
		if ok {
			p.Replica = &r
		}
	}
	return w.part(&p, checkpoint, db.sweeps.staleOf(p.Shard))
}

// SetReplicas notes which replicas this broker has of these shards, and leaves
// everything else of them as it is. It is atomic, and durable when it returns;
// an error is fatal for the DB.
func (db *DB) SetReplicas(replicas map[uint64]record.Replica) error {
	if len(replicas) == 0 {
		return db.failure()
	}
	db.writing.Lock()
	defer db.writing.Unlock()
	if err := db.awaitLevel0(); err != nil {
		return err
	}
	w := db.newSSTWriter()
	for _, shard := range slices.Sorted(maps.Keys(replicas)) {
		if err := w.replica(shard, replicas[shard]); err != nil {
			return db.fail("noting replicas", errors.Join(err, w.abandon()))
		}
	}
	if err := db.ingest(w); err != nil {
		return db.fail("noting replicas", err)
	}
	return nil
}

// ingest makes the files part of the database. Pebble links them in, syncs
// the directory, and then writes and syncs one edit of the manifest that names
// them all: that edit is the moment at which the checkpoint happens.
func (db *DB) ingest(w *sstWriter) error {
	if err := w.finish(); err != nil {
		return errors.Join(err, w.abandon())
	}
	if len(w.paths) == 0 {
		return nil
	}
	if err := db.kv.Ingest(context.Background(), w.paths); err != nil {
		return err
	}
	return db.failure() // a manifest error is told to the logger first
}

func (s *checkpointStats) add(parts []Checkpoint, w *sstWriter, took time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range parts {
		s.Records += uint64(len(parts[i].Records) + len(parts[i].IDs))
	}
	s.Checkpoints++
	s.Files += uint64(len(w.paths))
	s.Bytes += w.bytes
	s.StaleHints += uint64(w.stale)
	s.Duration += took
	s.LastDuration = took
	s.MaxDuration = max(s.MaxDuration, took)
}

func (s *checkpointStats) addStale(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.StaleHints += uint64(n)
}

// CheckpointStats tells what was written since Open.
func (db *DB) CheckpointStats() CheckpointStats {
	db.stats.mu.Lock()
	defer db.stats.mu.Unlock()
	return db.stats.CheckpointStats
}
