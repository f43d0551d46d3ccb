package broker

import (
	"sync/atomic"
	"time"

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
	Traffic               Traffic
	Eligible              bool // whether the clock lets this broker own shards
	// ClockOffset is how far the clock is ahead of the median of the other brokers'; 0
	// where there is none.
	ClockOffset time.Duration
	// Lagging are the other brokers' replicas of shards that this one owns which lack
	// more than 1000 entries, get a snapshot, or are not reached; a round of the
	// reconciler ago.
	Lagging      int64
	Compared     uint64 // answers of other brokers about replicas, since the start
	StatesHashed uint64 // since the start
	Differing    uint64 // logs and states of shards whose replicas are known to differ now
}

// Traffic counts what brokers have to do with each other, since the start.
type Traffic struct {
	Forwarded  uint64 // requests sent to other brokers, which own their shards
	Returned   uint64 // of these: not evaluated there, and sent on
	Lost       uint64 // of these: changes that were not answered
	Ownerships uint64 // times that this broker became the owner of a shard
	// Snapshots that were sent and received whole.
	SnapshotsSent, SnapshotsReceived uint64
}

// traffic is where Traffic is counted.
type traffic struct {
	forwarded, returned, lost, ownerships, snapshotsSent, snapshotsReceived atomic.Uint64
}

func (t *traffic) snapshot(received bool) {
	if received {
		t.snapshotsReceived.Add(1)
	} else {
		t.snapshotsSent.Add(1)
	}
}

func (t *traffic) read() Traffic {
	return Traffic{Forwarded: t.forwarded.Load(), Returned: t.returned.Load(), Lost: t.lost.Load(), Ownerships: t.ownerships.Load(),
		SnapshotsSent: t.snapshotsSent.Load(), SnapshotsReceived: t.snapshotsReceived.Load()}
}

// Stats reads the counters.
func (b *Broker) Stats() Stats {
	s := Stats{InflightBytes: b.inflight.Load(), RecordBytes: b.budget.UsedBytes(),
		DirtyBytes: b.budget.DirtyBytes(), LogBytes: b.checkpoint.pressure.logBytes.Load(), StateBytes: b.db.DiskBytes(),
		Log: b.log.Stats(), Checkpoints: b.db.CheckpointStats(),
		Traffic: b.traffic.read(), Eligible: b.eligible.Load(), ClockOffset: b.clockOffset(), Lagging: b.confs.lagging.Load(),
		Compared: b.equality.stats.compared.Load(), StatesHashed: b.equality.stats.hashed.Load(), Differing: b.equality.stats.differing.Load()}
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
