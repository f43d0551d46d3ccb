package raftlog

import (
	"errors"
	"fmt"
	"math"
	"sync"

	"github.com/cockroachdb/pebble/v2"
	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"
)

// Shard is one shard's log: a raft.Storage, to be used by the shard's
// goroutine while the committer commits.
type Shard struct {
	log *Log
	id  uint64

	// queued says that the shard is in Log.dirty; guarded by Log.dirtyMu.
	queued bool

	// disk is what Pebble holds once the batch at hand is written; guarded by
	// Log.writeMu.
	disk struct {
		start     uint64   // the index in the start record
		last      uint64   // the index of the last entry; start if there is none
		install   position // the install record; zero if there is none
		hard      hardState
		hardDirty bool // hard is not in Pebble yet
		reset     bool // the batch at hand has a Reset that is not published
		dropped   bool // Drop has removed the shard
	}

	// mu guards what follows. It is never held across disk work.
	mu   sync.Mutex
	w    window
	hard hardState
	conf *raftpb.ConfState
	// snapshots is the owner's; nil if there is none.
	snapshots func() (*raftpb.Snapshot, error)
	// rewriteFrom is the first index whose entry a batch under way replaces or
	// removes, so that Pebble may be ahead of w from there on; noRewrite if there
	// is none. epoch counts every change but appending at the end. A read of
	// Pebble counts only below the one, and if the other is as before.
	rewriteFrom uint64
	epoch       uint64
}

// noRewrite is a Shard's rewriteFrom while no entry is replaced.
const noRewrite = math.MaxUint64

var _ raft.Storage = (*Shard)(nil)

// openShard reads a shard's bounds, terms and hard state. It reads the whole
// log, which is bounded by truncation, and so finds holes now and not when raft
// asks for them. shardsMu is held.
func (l *Log) openShard(id uint64) (*Shard, error) {
	l.lifeMu.RLock()
	defer l.lifeMu.RUnlock()
	if err := l.failed(); err != nil {
		return nil, err
	}
	s := &Shard{log: l, id: id, conf: raftpb.EnsureConfState(nil), rewriteFrom: noRewrite}
	iter, err := l.db.NewIter(&pebble.IterOptions{
		LowerBound: appendRecordKey(nil, id, 0), UpperBound: appendRecordKey(nil, id, classEnd),
	})
	if err != nil {
		return nil, l.readError(err)
	}
	err = s.load(iter)
	if ierr := errors.Join(iter.Error(), iter.Close()); ierr != nil {
		return nil, l.readError(ierr)
	}
	if err != nil {
		return nil, fmt.Errorf("raft log in %s: shard %d: %w", l.dir, id, l.corrupt(err))
	}
	s.disk.start, s.disk.last, s.disk.hard = s.w.start.index, s.w.last, s.hard
	return s, nil
}

// load reads the records of the shard. The start record has the highest class,
// so it is looked for first.
func (s *Shard) load(iter *pebble.Iterator) error {
	var start position
	var err error
	if key := appendRecordKey(nil, s.id, classStart); iter.SeekGE(key) && string(iter.Key()) == string(key) {
		if start, err = parsePosition("start of the log", iter.Value()); err != nil {
			return err
		}
	}
	s.w = newWindow(start)
	for ok := iter.First(); ok; ok = iter.Next() {
		key := iter.Key()
		switch class := key[recordKeyBytes-1]; {
		case class == classEntry:
			err = s.loadEntry(key, iter.Value())
		case class == classHardState && len(key) == recordKeyBytes:
			s.hard, err = parseHardState(iter.Value())
		case class == classInstall && len(key) == recordKeyBytes:
			s.disk.install, err = parsePosition("install of a snapshot", iter.Value())
		case class == classStart && len(key) == recordKeyBytes:
		default:
			err = fmt.Errorf("%w: key %x", errRecord, key)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *Shard) loadEntry(key, value []byte) error {
	index, err := parseEntryKey(key)
	if err != nil {
		return err
	}
	if index != s.w.last+1 {
		return fmt.Errorf("after entry %d comes %d", s.w.last, index)
	}
	_, term, _, err := parseEntryValue(value)
	if err != nil {
		return fmt.Errorf("entry %d: %w", index, err)
	}
	s.w.note(term, len(key)+len(value))
	return nil
}

// ID is the shard's id.
func (s *Shard) ID() uint64 { return s.id }

// InitialState implements raft.Storage: the last committed hard state, nil if
// there never was one, and what SetConfState has set.
func (s *Shard) InitialState() (*raftpb.HardState, *raftpb.ConfState, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	conf := proto.Clone(s.conf).(*raftpb.ConfState)
	if s.hard == (hardState{}) {
		return nil, conf, nil
	}
	return s.hard.proto(), conf, nil
}

func (h hardState) proto() *raftpb.HardState {
	return &raftpb.HardState{Term: &h.term, Vote: &h.vote, Commit: &h.commit}
}

// SetConfState sets the membership that InitialState answers with. The log does
// not store it: it belongs to the state that was applied.
func (s *Shard) SetConfState(conf *raftpb.ConfState) {
	conf = raftpb.EnsureConfState(proto.Clone(conf).(*raftpb.ConfState))
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conf = conf
}

// SetSnapshotSource sets what Snapshot answers with.
func (s *Shard) SetSnapshotSource(source func() (*raftpb.Snapshot, error)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.snapshots = source
}

// Snapshot implements raft.Storage: what the owner's source gives, or
// raft.ErrSnapshotTemporarilyUnavailable without one.
func (s *Shard) Snapshot() (*raftpb.Snapshot, error) {
	s.mu.Lock()
	source := s.snapshots
	s.mu.Unlock()
	if source == nil {
		return nil, raft.ErrSnapshotTemporarilyUnavailable
	}
	return source()
}

// FirstIndex implements raft.Storage.
func (s *Shard) FirstIndex() (uint64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.w.first(), nil
}

// LastIndex implements raft.Storage.
func (s *Shard) LastIndex() (uint64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.w.last, nil
}

// Term implements raft.Storage. All terms are in memory.
func (s *Shard) Term(index uint64) (uint64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.w.term(index)
}

// Size is the number of bytes that the entries of the log take in Pebble, keys
// included and framing and compression not.
func (s *Shard) Size() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.w.bytes
}

// SizeAbove is Size of the entries above index alone.
func (s *Shard) SizeAbove(index uint64) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.w.bytesAbove(index)
}

// HardState is the hard state; all zeros if there is none.
func (s *Shard) HardState() (term, vote, commit uint64) {
	hs := s.hardState()
	return hs.term, hs.vote, hs.commit
}

// start is where the log begins.
func (s *Shard) start() position {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.w.start
}

func (s *Shard) hardState() hardState {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.hard
}

// Compact drops the entries up to index, which must not be above the last one
// (raft.ErrUnavailable). It is not written at once, let alone synced: it rides
// with the next batch, and after a crash before that the entries are back. The
// caller has made sure that the state that they led to is on disk. It is called
// from the shard's goroutine.
func (s *Shard) Compact(index uint64) error {
	if err := s.log.failed(); err != nil {
		return err
	}
	s.mu.Lock()
	if index <= s.w.start.index {
		s.mu.Unlock()
		return nil
	}
	if index > s.w.last {
		s.mu.Unlock()
		return fmt.Errorf("compact shard %d up to %d: %w", s.id, index, raft.ErrUnavailable)
	}
	s.w.compact(index)
	s.epoch++
	s.mu.Unlock()
	s.log.markDirty(s)
	return nil
}

// PrepareRestart makes the log fit the applied state that a Raft node is about
// to be created with, which ends with the entry of this index and term: the
// hard state's commit index is raised to it, and a log that does not know of it
// because the shard is new (it has no hard state), or because the state came as
// the snapshot that Append.Install has announced, is made to start after it,
// synced. Index 0 is no state.
//
// An error that wraps ErrCorrupt means that the two contradict each other: the
// log begins after the state ends, or ends before it does, or has another entry
// there, or synced votes are missing. Only synced entries are ever applied.
func (s *Shard) PrepareRestart(index, term uint64) error {
	l := s.log
	l.writeMu.Lock()
	defer l.writeMu.Unlock()
	if err := l.failed(); err != nil {
		return err
	}
	a, err := s.restart(index, term)
	if err != nil {
		return fmt.Errorf("raft log in %s: shard %d: %w: %w", l.dir, s.id, ErrCorrupt, err)
	}
	l.one[0] = a
	err = l.commit(l.one[:])
	l.one[0] = Append{}
	return err
}

// restart is the append that PrepareRestart commits, under writeMu. A commit index that is
// only raised needs no sync: the next start would raise it again.
func (s *Shard) restart(index, term uint64) (Append, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a, hs := Append{Shard: s, settled: true}, s.hard
	if index < s.w.start.index {
		return a, fmt.Errorf("the log begins after entry %d, but the applied state ends with entry %d", s.w.start.index, index)
	}
	if hs != (hardState{}) && hs.term < term {
		return a, fmt.Errorf("entry %d of term %d is applied, but the hard state is of term %d: synced data is missing", index, term, hs.term)
	}
	switch have, err := s.w.term(index); {
	case err == nil && have == term:
		hs.commit = max(hs.commit, index)
		if hs.commit > s.w.last {
			return a, fmt.Errorf("entry %d is committed, but the log ends with entry %d: synced data is missing", hs.commit, s.w.last)
		}
	case hs != (hardState{}) && s.disk.install != position{index: index, term: term}:
		if err != nil {
			return a, fmt.Errorf("entry %d is applied, but the log ends with entry %d: synced data is missing", index, s.w.last)
		}
		return a, fmt.Errorf("entry %d of term %d is applied, but the log has one of term %d there", index, term, have)
	default:
		a.Reset = &Reset{Index: index, Term: term}
		a.Sync = true
		hs.commit = index // nothing above it is in the log any more
	}
	hs.term = max(hs.term, term) // a shard that never voted
	if hs != s.hard {
		a.HardState = hs.proto()
	}
	return a, nil
}
