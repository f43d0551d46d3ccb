package raftlog

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"
	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
)

// shardOfKey is the shard id that a key begins with.
func shardOfKey(key []byte) (uint64, error) {
	if len(key) < recordKeyBytes {
		return 0, fmt.Errorf("%w: key of %d bytes", errRecord, len(key))
	}
	return binary.BigEndian.Uint64(key), nil
}

// collector gathers entries up to a size, as raft counts it.
type collector struct {
	out  []*raftpb.Entry
	size uint64
	max  uint64
	full bool
}

// add takes the entry and says whether it fitted; the first one always does.
func (c *collector) add(e *raftpb.Entry) bool {
	c.size += protoBytes(e)
	if c.size > c.max && len(c.out) > 0 {
		c.full = true
		return false
	}
	c.out = append(c.out, e)
	return true
}

// Entries implements raft.Storage: the entries of indexes [lo, hi), as many as
// fit maxSize bytes (in raft's protobuf encoding), but at least one. The newest
// are in memory, older ones are read from Pebble.
func (s *Shard) Entries(lo, hi, maxSize uint64) ([]*raftpb.Entry, error) {
	for {
		entries, again, err := s.entries(lo, hi, maxSize)
		if !again {
			return entries, err
		}
	}
}

// entries is one attempt; again says that the log changed under it.
func (s *Shard) entries(lo, hi, maxSize uint64) (entries []*raftpb.Entry, again bool, err error) {
	c := collector{max: maxSize}
	s.mu.Lock()
	defer s.mu.Unlock()
	epoch := s.epoch
	if lo <= s.w.start.index {
		return nil, false, raft.ErrCompacted
	}
	if lo > hi || hi > s.w.last+1 {
		return nil, false, raft.ErrUnavailable
	}
	for next := lo; !c.full && next < hi; next = lo + uint64(len(c.out)) {
		first := s.w.tailFirst()
		if next >= first {
			c.addTail(s.w.tail[next-first : hi-first])
			break
		}
		to := min(hi, first)
		s.mu.Unlock()
		err := s.readDisk(&c, next, to)
		s.mu.Lock()
		if s.epoch != epoch {
			return nil, true, nil
		}
		if hi > s.rewriteFrom {
			// Raft never asks for entries that are being replaced. It does ask for
			// those before, which stay as they are, and panics without them.
			return nil, false, raft.ErrUnavailable
		}
		if err == nil {
			err = s.checkTerms(c.out[next-lo:])
		}
		if err != nil {
			return nil, false, s.readFailed(err)
		}
	}
	return c.out, false, nil
}

// addTail takes entries from memory. Their slice is copied: the tail moves.
func (c *collector) addTail(tail []*raftpb.Entry) {
	if cap(c.out) == 0 {
		c.out = make([]*raftpb.Entry, 0, len(tail))
	}
	for _, e := range tail {
		if !c.add(e) {
			return
		}
	}
}

// checkTerms compares what was read with what was written. mu is held.
func (s *Shard) checkTerms(entries []*raftpb.Entry) error {
	for _, e := range entries {
		if term, err := s.w.term(e.GetIndex()); err != nil || term != e.GetTerm() {
			return fmt.Errorf("%w: entry %d was written with term %d and is read with term %d",
				errRecord, e.GetIndex(), term, e.GetTerm())
		}
	}
	return nil
}

// readFailed ends it all. mu is held, and let go while Fatal runs.
func (s *Shard) readFailed(err error) error {
	s.mu.Unlock()
	defer s.mu.Lock()
	l := s.log
	if failed := l.failed(); failed != nil {
		return l.fail(failed)
	}
	if errors.Is(err, errRecord) {
		err = l.corrupt(err)
		return l.fail(fmt.Errorf("shard %d: %w", s.id, err))
	}
	return l.readError(err)
}

// stored is an entry read from disk, with the numbers that it points to.
type stored struct {
	entry       raftpb.Entry
	index, term uint64
	typ         raftpb.EntryType
}

// readDisk adds the entries of indexes [from, to), all of which must be there.
func (s *Shard) readDisk(c *collector, from, to uint64) error {
	l := s.log
	l.lifeMu.RLock()
	defer l.lifeMu.RUnlock()
	if err := l.failed(); err != nil {
		return err
	}
	iter, err := l.db.NewIter(&pebble.IterOptions{
		LowerBound: appendEntryKey(nil, s.id, from), UpperBound: appendEntryKey(nil, s.id, to),
	})
	if err != nil {
		return err
	}
	next := from
	for ok := iter.First(); ok && !c.full && err == nil; ok = iter.Next() {
		var e *raftpb.Entry
		if e, err = readEntry(iter.Key(), iter.Value(), next); err == nil && c.add(e) {
			next++
		}
	}
	if err == nil {
		err = iter.Error()
	}
	if err == nil && !c.full && next != to {
		err = fmt.Errorf("%w: entry %d is missing", errRecord, next)
	}
	return errors.Join(err, iter.Close())
}

// readEntry decodes an entry, which must have this index, into memory of its
// own.
func readEntry(key, value []byte, want uint64) (*raftpb.Entry, error) {
	index, err := parseEntryKey(key)
	if err != nil {
		return nil, err
	}
	if index != want {
		return nil, fmt.Errorf("%w: entry %d is missing", errRecord, want)
	}
	m := &stored{index: index}
	var data []byte
	if m.typ, m.term, data, err = parseEntryValue(value); err != nil {
		return nil, fmt.Errorf("entry %d: %w", index, err)
	}
	m.entry.Index, m.entry.Term = &m.index, &m.term
	if m.typ != raftpb.EntryNormal {
		m.entry.Type = &m.typ
	}
	if data != nil {
		m.entry.Data = append(make([]byte, 0, len(data)), data...)
	}
	return &m.entry, nil
}
