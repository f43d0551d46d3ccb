package broker

import (
	"github.com/felix-go/felix/internal/raftlog"
	"github.com/felix-go/felix/internal/store"
)

// Stats are the broker's counters, for metrics.
type Stats struct {
	Caches, Shards, Owned int
	Operations            uint64 // evaluated since the start
	InflightBytes         int64
	RecordBytes           int64
	DirtyBytes            int64  // of these: not in the state store yet
	LogBytes              int64  // of all logs: what a restart would replay, at most a tick ago
	StateBytes            uint64 // on disk
	Log                   raftlog.Stats
	Checkpoints           store.CheckpointStats
}

// Stats reads the counters.
func (b *Broker) Stats() Stats {
	s := Stats{InflightBytes: b.inflight.Load(), RecordBytes: b.budget.UsedBytes(),
		DirtyBytes: b.budget.DirtyBytes(), LogBytes: b.checkpoint.pressure.logBytes.Load(), StateBytes: b.db.DiskBytes(),
		Log: b.log.Stats(), Checkpoints: b.db.CheckpointStats()}
	b.mu.RLock()
	defer b.mu.RUnlock()
	s.Caches, s.Shards = len(b.caches), len(b.replicas)
	for _, r := range b.replicas {
		if r.owns.Load() {
			s.Owned++
		}
		s.Operations += r.operation.Load()
	}
	return s
}
