package raftlog

import (
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"
)

// counters are the Log's own measurements. Only a holder of writeMu changes
// them; anyone may read.
type counters struct {
	commits, syncs, bytes atomic.Uint64
}

// Stats are a Log's measurements since Open.
type Stats struct {
	// Commits is the number of batches written, Syncs of those synced.
	Commits, Syncs uint64
	// WrittenBytes went to the WAL, as far as we know of it: without Pebble's
	// own framing.
	WrittenBytes uint64
	// PrefilledWALs and PlainWALs count the WAL files that were new (Pebble
	// also reuses old ones): filled with zeros beforehand, or not.
	PrefilledWALs, PlainWALs uint64
	// TailBytes is the memory that holds the newest entries of open shards.
	TailBytes int64
}

// Stats is a snapshot of the measurements.
func (l *Log) Stats() Stats {
	st := Stats{
		Commits:      l.counters.commits.Load(),
		Syncs:        l.counters.syncs.Load(),
		WrittenBytes: l.counters.bytes.Load(),
	}
	if l.prefill != nil {
		st.PrefilledWALs = l.prefill.handedOut.Load()
		st.PlainWALs = l.prefill.plain.Load()
	}
	l.shardsMu.Lock()
	defer l.shardsMu.Unlock()
	for _, s := range l.shards {
		s.mu.Lock()
		st.TailBytes += s.w.tailBytes
		s.mu.Unlock()
	}
	return st
}

// Metrics are Pebble's own; nil after Close or a failure.
func (l *Log) Metrics() *pebble.Metrics {
	l.lifeMu.RLock()
	defer l.lifeMu.RUnlock()
	if l.failed() != nil {
		return nil
	}
	return l.db.Metrics()
}

// synced notes one commit with a sync.
func (l *Log) synced(took time.Duration) {
	l.counters.syncs.Add(1)
	l.opts.OnSync(took)
}
