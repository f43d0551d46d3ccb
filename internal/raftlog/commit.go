package raftlog

import (
	"fmt"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"go.etcd.io/raft/v3/raftpb"
)

// Append is what one shard has to write.
type Append struct {
	// Shard is the shard that it is for.
	Shard *Shard
	// Install, if not nil, announces that a snapshot that ends with this entry
	// is about to become the state of the shard, after which the log is Reset
	// to it. A crash between the two leaves a log that ends before the state
	// does; only where it was announced does PrepareRestart take that for
	// anything but damage. The append has Sync and neither Reset nor Entries.
	// Its hard state counts, but for the commit index, which stays: the state
	// is still the one before.
	Install *Reset
	// Reset, if not nil, first empties the log and makes it start anew, as when
	// a snapshot was installed.
	Reset *Reset
	// Entries continue the log, or replace its end: entries that it has from
	// the first of their indexes on are removed. They must be contiguous and
	// begin at most one above the last index. They are kept in memory, so they
	// must not change afterwards.
	Entries []*raftpb.Entry
	// HardState is the new hard state; nil or empty leaves it.
	HardState *raftpb.HardState
	// Sync asks that all this is on disk when Commit returns. raft.MustSync
	// and the cache's consistency decide.
	Sync bool
	// settled says that no snapshot is being installed any more.
	settled bool
}

// after is the hard state after the append.
func (a *Append) after(before hardState) hardState {
	hs := hardStateOf(a.HardState)
	if hs == (hardState{}) {
		return before
	}
	if a.Install != nil {
		hs.commit = before.commit
	}
	return hs
}

// Reset is where a log starts anew: after the entry of this index and term.
type Reset struct{ Index, Term uint64 }

// Commit writes the appends in their order, as one batch, with one sync if any
// of them asks for it. When it returns without an error, everything is visible
// through the Shards. An error means that the log has failed (Options.Fatal
// knows), and that nothing may be acknowledged: it is not known what is on
// disk.
//
// What belongs to one shard comes one after the other; otherwise it is safe for
// concurrent use. It keeps nothing of the slice, but the entries.
func (l *Log) Commit(appends []Append) error {
	l.writeMu.Lock()
	defer l.writeMu.Unlock()
	return l.commit(appends)
}

// commit is Commit under writeMu.
func (l *Log) commit(appends []Append) error {
	if err := l.failed(); err != nil {
		return err
	}
	if err := l.beginBatch(); err != nil {
		return err
	}
	sync := false
	for i := range appends {
		if err := l.stage(&appends[i]); err != nil {
			return l.fail(err)
		}
		sync = sync || appends[i].Sync
	}
	if sync || l.batch.Count() > 0 {
		l.stageDirty()
		if err := l.apply(sync); err != nil {
			return err
		}
	}
	for i := range appends {
		appends[i].Shard.publish(&appends[i])
	}
	l.endRewrites()
	return nil
}

// stage puts an append into the batch, except for its hard state, which
// stageDirty adds: so the last one of a batch is written, and one that comes
// alone without a sync waits for company.
func (l *Log) stage(a *Append) error {
	s := a.Shard
	if s.disk.dropped {
		return nil
	}
	if err := l.stageInstall(a); err != nil {
		return err
	}
	if a.Reset != nil {
		l.beginRewrite(s, 0)
		start := position{index: a.Reset.Index, term: a.Reset.Term}
		if s.disk.last > s.disk.start {
			stageDeleteEntries(l.batch, s.id, s.disk.start+1, s.disk.last+1)
		}
		stagePosition(l.batch, s.id, classStart, start)
		s.disk.start, s.disk.last, s.disk.reset = start.index, start.index, true
	}
	if err := l.stageEntries(s, a.Entries); err != nil {
		return err
	}
	if hs := a.after(s.disk.hard); hs != s.disk.hard {
		s.disk.hard, s.disk.hardDirty = hs, true
		l.markDirty(s)
	}
	return nil
}

// stageInstall writes or removes the install record.
func (l *Log) stageInstall(a *Append) error {
	s := a.Shard
	switch {
	case a.Install != nil:
		if a.Reset != nil || len(a.Entries) > 0 || !a.Sync {
			return fmt.Errorf("shard %d: a snapshot up to %d is announced together with other things, or not synced", s.id, a.Install.Index)
		}
		s.disk.install = position{index: a.Install.Index, term: a.Install.Term}
		stagePosition(l.batch, s.id, classInstall, s.disk.install)
	case (a.Reset != nil || a.settled) && s.disk.install != position{}:
		s.disk.install = position{}
		stageDelete(l.batch, s.id, classInstall)
	}
	return nil
}

func (l *Log) stageEntries(s *Shard, entries []*raftpb.Entry) error {
	start := s.disk.start
	if !s.disk.reset {
		start = max(start, s.start().index) // a compaction may wait
	}
	entries = clip(entries, start)
	if len(entries) == 0 {
		return nil
	}
	first := entries[0].GetIndex()
	if first > s.disk.last+1 {
		return fmt.Errorf("shard %d: an append at index %d leaves a gap after %d", s.id, first, s.disk.last)
	}
	for i, e := range entries {
		if e.GetIndex() != first+uint64(i) {
			return fmt.Errorf("shard %d: entry %d of an append at index %d has index %d", s.id, i, first, e.GetIndex())
		}
		if e.GetType() > raftpb.EntryConfChangeV2 || e.GetType() < 0 {
			return fmt.Errorf("shard %d: entry %d has type %d, which this build does not know", s.id, e.GetIndex(), e.GetType())
		}
		stageEntry(l.batch, s.id, e)
	}
	last := first + uint64(len(entries)) - 1
	if first <= s.disk.last {
		l.beginRewrite(s, first)
	}
	if last < s.disk.last {
		stageDeleteEntries(l.batch, s.id, last+1, s.disk.last+1)
	}
	s.disk.last = last
	return nil
}

// markDirty makes the next batch take what waits at the shard.
func (l *Log) markDirty(s *Shard) {
	l.dirtyMu.Lock()
	defer l.dirtyMu.Unlock()
	if !s.queued {
		s.queued = true
		l.dirty = append(l.dirty, s)
	}
}

// stageDirty puts what waits to ride along into the batch: hard states and
// compactions.
func (l *Log) stageDirty() {
	l.dirtyMu.Lock()
	shards := l.dirty
	l.dirty, l.spare = l.spare[:0], shards
	for _, s := range shards {
		s.queued = false
	}
	l.dirtyMu.Unlock()
	for _, s := range shards {
		if s.disk.dropped {
			continue
		}
		if s.disk.hardDirty {
			stageHardState(l.batch, s.id, s.disk.hard)
			s.disk.hardDirty = false
		}
		// A reset in this batch has overtaken the compaction, and memory, which
		// does not know of it yet.
		if start := s.start(); start.index > s.disk.start && !s.disk.reset {
			stageDeleteEntries(l.batch, s.id, s.disk.start+1, start.index+1)
			stagePosition(l.batch, s.id, classStart, start)
			s.disk.start = start.index
		}
	}
	clear(shards)
}

// beginBatch empties the batch and gives it its mark, which is not counted as a
// record of it.
func (l *Log) beginBatch() error {
	l.batch.Reset()
	var b [markBytes]byte
	if err := l.batch.LogData(appendMark(b[:0], mark{number: l.batches + 1, synced: l.syncedBatches}), nil); err != nil {
		return l.fail(err)
	}
	return nil
}

// apply writes the batch, unless it holds nothing that a sync would be for.
func (l *Log) apply(sync bool) error {
	if l.batch.Count() == 0 && !(sync && l.unsynced) {
		return nil
	}
	l.covered = false
	return l.write(sync)
}

// Cover writes a mark behind what was synced last, and syncs it. Until then
// nothing in the log tells damage there from a write that a power cut tore; so
// the committer calls it when it has nothing else to do. It does nothing where
// it has been done, or where something is not synced yet.
func (l *Log) Cover() error {
	l.writeMu.Lock()
	defer l.writeMu.Unlock()
	if err := l.failed(); err != nil {
		return err
	}
	return l.cover(true)
}

// cover is Cover under writeMu; without sync, closing the log has to.
func (l *Log) cover(sync bool) error {
	if l.covered || l.unsynced || l.batches == 0 {
		return nil
	}
	if err := l.beginBatch(); err != nil {
		return err
	}
	l.covered = true
	return l.write(sync)
}

// write writes the batch. Pebble panics where it cannot make a new WAL, and
// calls Fatalf, then answers nil, where it cannot write or sync one: both have
// failed the log when write returns.
func (l *Log) write(sync bool) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = l.fail(oneLine(fmt.Errorf("writing failed: %v", r)))
		}
	}()
	options := pebble.NoSync
	if sync {
		options = pebble.Sync
	}
	size := l.batch.Len()
	begin := time.Now()
	if err := l.batch.Commit(options); err != nil {
		return l.fail(fmt.Errorf("writing failed: %w", oneLine(err)))
	}
	if err := l.failed(); err != nil {
		return err
	}
	l.batches++
	if sync {
		l.syncedBatches = l.batches
	}
	l.unsynced = !sync
	l.counters.commits.Add(1)
	l.counters.bytes.Add(uint64(size))
	if sync {
		l.synced(time.Since(begin))
	}
	return nil
}

// hardStateOf unpacks raft's hard state; nil is empty.
func hardStateOf(hs *raftpb.HardState) hardState {
	return hardState{term: hs.GetTerm(), vote: hs.GetVote(), commit: hs.GetCommit()}
}

// The functions below encode straight into the batch: no buffer, no copy. A
// deferred operation of a batch without an index cannot fail.

func stageEntry(b *pebble.Batch, shard uint64, e *raftpb.Entry) {
	op := b.SetDeferred(entryKeyBytes, entryValueBytes(e))
	appendEntryKey(op.Key[:0], shard, e.GetIndex())
	appendEntryValue(op.Value[:0], e)
	_ = op.Finish()
}

func stageHardState(b *pebble.Batch, shard uint64, hs hardState) {
	op := b.SetDeferred(recordKeyBytes, hardStateBytes(hs))
	appendRecordKey(op.Key[:0], shard, classHardState)
	appendHardState(op.Value[:0], hs)
	_ = op.Finish()
}

func stagePosition(b *pebble.Batch, shard uint64, class byte, p position) {
	op := b.SetDeferred(recordKeyBytes, positionBytes(p))
	appendRecordKey(op.Key[:0], shard, class)
	appendPosition(op.Value[:0], p)
	_ = op.Finish()
}

// stageDelete removes the shard's record of this class.
func stageDelete(b *pebble.Batch, shard uint64, class byte) {
	op := b.DeleteDeferred(recordKeyBytes)
	appendRecordKey(op.Key[:0], shard, class)
	_ = op.Finish()
}

// stageDeleteEntries removes the entries of indexes [from, to).
func stageDeleteEntries(b *pebble.Batch, shard, from, to uint64) {
	op := b.DeleteRangeDeferred(entryKeyBytes, entryKeyBytes)
	appendEntryKey(op.Key[:0], shard, from)
	appendEntryKey(op.Value[:0], shard, to)
	_ = op.Finish()
}

// stageClear removes everything of the shard.
func stageClear(b *pebble.Batch, shard uint64) {
	op := b.DeleteRangeDeferred(recordKeyBytes, recordKeyBytes)
	appendRecordKey(op.Key[:0], shard, 0)
	appendRecordKey(op.Value[:0], shard, classEnd)
	_ = op.Finish()
}

// publish makes what was written visible to the shard's goroutine.
func (s *Shard) publish(a *Append) {
	if s.disk.dropped {
		return
	}
	s.disk.reset = false
	s.mu.Lock()
	defer s.mu.Unlock()
	if a.Reset != nil {
		s.w.reset(position{index: a.Reset.Index, term: a.Reset.Term})
	}
	if len(a.Entries) > 0 {
		s.w.appendEntries(a.Entries)
		s.w.shrink(s.log.tailLimit.Load())
	}
	s.hard = a.after(s.hard)
}

// beginRewrite tells readers of s that entries on disk may be ahead of memory
// from this index on.
func (l *Log) beginRewrite(s *Shard, from uint64) {
	l.rewritten = append(l.rewritten, s)
	s.mu.Lock()
	s.rewriteFrom = min(s.rewriteFrom, from)
	s.mu.Unlock()
}

// endRewrites tells them that memory knows it all.
func (l *Log) endRewrites() {
	for _, s := range l.rewritten {
		s.mu.Lock()
		s.rewriteFrom = noRewrite
		s.epoch++
		s.mu.Unlock()
	}
	clear(l.rewritten)
	l.rewritten = l.rewritten[:0]
}
