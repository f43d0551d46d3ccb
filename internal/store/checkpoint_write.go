package store

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cockroachdb/pebble/v2/objstorage/objstorageprovider"
	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/felix-go/felix/internal/record"
)

// Names of files that are being written, beside pebble's own. They are linked
// to their place when they are ingested; what is left under this name belongs
// to nothing.
const (
	leftoverPrefix = "checkpoint-"
	leftoverSuffix = ".sst.tmp"
)

// diskWrites names the checkpoints' writes in the disk statistics of vfs.
const diskWrites = vfs.DiskWriteCategory("felix-checkpoint")

// sstWriter writes sorted changes into as many sstables as needed, none
// overlapping another. Range deletions and records may cover each other: all
// in one sstable have the same sequence number, and a range deletion only
// hides lower ones.
type sstWriter struct {
	db       *DB
	options  sstable.WriterOptions
	w        *sstable.Writer // the file being written, or nil
	paths    []string
	fileRaw  int64 // bytes given to w, before compression
	bytes    uint64
	stale    int // hints deleted
	key, val []byte
	// The range deletion that is open: its part in this file begins at
	// clearFrom. Both nil when none is.
	clearFrom, clearEnd []byte
}

func (db *DB) newSSTWriter() *sstWriter {
	return &sstWriter{db: db, options: db.opts.MakeWriterOptions(0, db.kv.TableFormat())}
}

// part writes one shard in the order of its classes. Parts come in the order
// of their shards. stale are the shard's hints known to be outdated, sorted.
func (s *sstWriter) part(p *Checkpoint, checkpoint bool, stale [][]byte) error {
	sorted, kinds, err := sortRecords(p.Records)
	if err != nil {
		return fmt.Errorf("shard %d: %w", p.Shard, err)
	}
	ids, err := sortIDs(p.IDs)
	if err != nil {
		return fmt.Errorf("shard %d: %w", p.Shard, err)
	}
	list := keyOrder{p.Records, sorted}
	if p.Clear {
		if err := s.clear(p.Shard); err != nil {
			return err
		}
		stale = nil
	}
	if checkpoint {
		if err := s.applied(p.Shard, p.Applied); err != nil {
			return err
		}
	}
	var hints []hint
	for _, kind := range recordKinds {
		if kind.class == record.ValueClass { // the place of what comes before it
			if hints, err = s.records(p, ids, idKind, hints); err != nil {
				return fmt.Errorf("shard %d: %w", p.Shard, err)
			}
			if p.Replica != nil {
				if err := s.replica(p.Shard, *p.Replica); err != nil {
					return err
				}
			}
		}
		if kinds&kind.has == 0 {
			continue // a walk over all records costs a cache miss each
		}
		if hints, err = s.records(p, list, kind, hints); err != nil {
			return fmt.Errorf("shard %d: %w", p.Shard, err)
		}
	}
	sortHints(hints)
	if err := s.hints(p.Shard, list, ids, hints, stale); err != nil {
		return err
	}
	return s.endClear(s.clearEnd)
}

// clear opens a range deletion over the whole shard.
func (s *sstWriter) clear(shard uint64) error {
	s.key = record.AppendShard(s.key[:0], shard)
	if err := s.room(); err != nil {
		return err
	}
	s.clearFrom, s.clearEnd = bytes.Clone(s.key), shardEnd(shard)
	return nil
}

func (s *sstWriter) applied(shard uint64, a record.Applied) error {
	s.key = record.AppendStateKey(s.key[:0], shard, record.AppliedClass, nil)
	s.val = record.AppendApplied(s.val[:0], a)
	return s.set()
}

func (s *sstWriter) replica(shard uint64, r record.Replica) error {
	if r.RaftID == 0 {
		return fmt.Errorf("shard %d: a replica has no raft id", shard)
	}
	s.key = record.AppendStateKey(s.key[:0], shard, record.ReplicaClass, nil)
	s.val = record.AppendReplica(s.val[:0], r)
	return s.set()
}

// recordKind says how one kind of record is written.
type recordKind struct {
	has    record.Has
	class  record.Class
	expiry func(*record.Cell) int64
	encode func([]byte, *record.Cell) []byte
}

// recordKinds is in the order of the classes.
var recordKinds = [...]recordKind{
	{record.HasCounter, record.CounterClass, func(c *record.Cell) int64 { return c.CounterExpiry }, record.AppendCounter},
	{record.HasValue, record.ValueClass, func(c *record.Cell) int64 { return c.ValueExpiry }, record.AppendValue},
}

// idKind is how the records of ids are written.
var idKind = recordKind{record.HasValue, record.IDClass, recordKinds[1].expiry, record.AppendValue}

// records writes the records of one kind and adds their hints.
func (s *sstWriter) records(p *Checkpoint, list keyOrder, kind recordKind, hints []hint) ([]hint, error) {
	for rank, item := range list.order {
		r := &list.records[item.index]
		present := r.Cell.Has&kind.has != 0
		if !present && (p.Clear || r.OnDisk&kind.has == 0) {
			continue
		}
		s.key = record.AppendStateKey(s.key[:0], p.Shard, kind.class, r.Key)
		if !present {
			if err := s.delete(); err != nil {
				return nil, err
			}
			continue
		}
		expiry := kind.expiry(&r.Cell)
		if expiry < 0 {
			return nil, fmt.Errorf("key %q expires at %d, before all time", r.Key, expiry)
		}
		if expiry > 0 {
			hints = append(hints, hint{expiry: expiry, class: kind.class, rank: uint32(rank)})
		}
		s.val = kind.encode(s.val[:0], &r.Cell)
		if err := s.set(); err != nil {
			return nil, err
		}
	}
	return hints, nil
}

// hints merges the hints to write with those to remove. One that is in both is
// written: its record has just come to have that expiry again.
func (s *sstWriter) hints(shard uint64, list, ids keyOrder, hints []hint, stale [][]byte) error {
	var next []byte
	s.val = s.val[:0]
	for len(hints) > 0 || len(stale) > 0 {
		order := 1 // of next against stale[0]; above it when there is no next
		if len(hints) > 0 {
			h := hints[0]
			of := list
			if h.class == record.IDClass {
				of = ids
			}
			next = record.AppendExpiryKey(next[:0], shard, h.expiry, h.class, of.key(h.rank))
			if order = -1; len(stale) > 0 {
				order = bytes.Compare(next, stale[0])
			}
		}
		if order <= 0 {
			s.key = append(s.key[:0], next...)
			hints = hints[1:]
			if err := s.set(); err != nil {
				return err
			}
		}
		if order >= 0 {
			s.key = append(s.key[:0], stale[0]...)
			stale = stale[1:]
			if order == 0 {
				continue
			}
			s.stale++
			if err := s.delete(); err != nil {
				return err
			}
		}
	}
	return nil
}

// set writes s.key with s.val.
func (s *sstWriter) set() error {
	if err := s.room(); err != nil {
		return err
	}
	s.fileRaw += int64(len(s.key) + len(s.val) + 8)
	return s.w.Set(s.key, s.val)
}

// delete writes a tombstone for s.key.
func (s *sstWriter) delete() error {
	if err := s.room(); err != nil {
		return err
	}
	s.fileRaw += int64(len(s.key) + 8)
	return s.w.Delete(s.key)
}

// room sees to it that there is a file with room for s.key, which is above
// all that was written. An open range deletion is cut in two there.
func (s *sstWriter) room() error {
	if s.w != nil && s.fileRaw < s.db.fileBytes {
		return nil
	}
	if s.w != nil {
		rest := s.clearEnd
		if err := s.endClear(s.key); err != nil {
			return err
		}
		if rest != nil {
			s.clearFrom, s.clearEnd = bytes.Clone(s.key), rest
		}
		if err := s.endFile(); err != nil {
			return err
		}
	}
	path := s.db.fs.PathJoin(s.db.dir, fmt.Sprintf("%s%06d%s", leftoverPrefix, s.db.fileSeq.Add(1), leftoverSuffix))
	f, err := s.db.fs.Create(path, diskWrites)
	if err != nil {
		return err
	}
	s.paths = append(s.paths, path)
	s.w, s.fileRaw = sstable.NewWriter(objstorageprovider.NewFileWritable(f), s.options), 0
	return nil
}

// endClear ends the open range deletion, if there is one, before end.
func (s *sstWriter) endClear(end []byte) error {
	if s.clearFrom == nil {
		return nil
	}
	from := s.clearFrom
	s.clearFrom, s.clearEnd = nil, nil
	return s.w.DeleteRange(from, end)
}

// endFile completes and syncs the current file.
func (s *sstWriter) endFile() error {
	w := s.w
	s.w = nil
	if err := w.Close(); err != nil {
		return err
	}
	meta, err := w.Raw().Metadata()
	if err != nil {
		return err
	}
	s.bytes += meta.Size
	return nil
}

// finish completes the last file.
func (s *sstWriter) finish() error {
	if s.w == nil {
		return nil
	}
	return s.endFile()
}

// abandon gives up the current file, which Open will remove.
func (s *sstWriter) abandon() error {
	if s.w == nil {
		return nil
	}
	w := s.w
	s.w = nil
	return w.Close()
}

// removeLeftovers removes files that were never ingested.
func (db *DB) removeLeftovers() error {
	names, err := db.fs.List(db.dir)
	if err != nil {
		return err
	}
	slices.Sort(names)
	for _, name := range names {
		if strings.HasPrefix(name, leftoverPrefix) && strings.HasSuffix(name, leftoverSuffix) {
			err = errors.Join(err, db.fs.Remove(db.fs.PathJoin(db.dir, name)))
		}
	}
	return err
}
