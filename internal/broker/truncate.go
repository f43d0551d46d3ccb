package broker

import (
	"fmt"
	"time"

	"github.com/felix-go/felix"
)

// A log is dropped up to what the state store has flushed, but on a leader some
// of it is kept for those replicas that will need it soon: sending them a
// snapshot would cost more. And some is kept, on any replica, for who watches.
// How much is bounded, whatever they do.
const (
	// keepSilent is how long a replica may not be heard of and still have log
	// kept for it: a restart takes less, and what is away for longer may stay
	// away.
	keepSilent = time.Minute
	// keepBytes is how much of a shard's log is kept for a replica: about what
	// is quicker to send than a snapshot of a small shard.
	keepBytes = 16 << 20
	// keepSnapshotBytes is the same for a replica that is being sent a snapshot,
	// which would be for nothing if the log after it were gone.
	keepSnapshotBytes = 256 << 20
	// keepAllBytes is how much of all logs together is kept for replicas.
	keepAllBytes = 512 << 20
)

// follower is what a leader knows of a replica.
type follower struct {
	match    uint64        // the last entry that is durable there
	snapshot uint64        // the last entry of the snapshot that is being sent to it; 0 is none
	silent   time.Duration // since it was last heard of
}

// need is the entry after which the follower will be sent log, and how much of
// it may be kept.
func (f *follower) need() (index uint64, limit int64) {
	if f.snapshot != 0 {
		return f.snapshot, keepSnapshotBytes
	}
	return f.match, keepBytes
}

// logSizes is what a raftlog.Shard tells of itself.
type logSizes interface {
	FirstIndex() (uint64, error)
	SizeAbove(index uint64) int64
}

// truncateTo is the index up to which a shard's log may go: all that is flushed,
// except for what its followers (of a leader) need and may have. kept is what
// all logs together have kept for followers.
func truncateTo(log logSizes, flushed uint64, followers []follower, kept int64) uint64 {
	first, err := log.FirstIndex()
	if err != nil || kept > keepAllBytes {
		return flushed
	}
	to, above := flushed, log.SizeAbove(flushed)
	for i := range followers {
		f := &followers[i]
		need, limit := f.need()
		if f.silent > keepSilent || need >= to || need+1 < first { // in the last case it needs a snapshot all the same
			continue
		}
		if log.SizeAbove(need)-above <= limit {
			to = need
		}
	}
	return to
}

// lookEvery is how often a worker looks which followers of its shards are there,
// and whether log that was kept for them can go.
const lookEvery = 5 * time.Second

// looksNow says whether it is time to look after the replicas.
func (w *worker) looksNow() bool {
	now := w.b.mono()
	if now-w.looked < lookEvery {
		return false
	}
	w.looked = now
	return true
}

func (w *worker) lookAfter(r *replica) {
	if r.keptBytes() > 0 && !r.installing() {
		w.truncate(r)
	} else if r.shard.Leader() {
		r.followers(w.b.mono())
	}
}

// truncate drops the log that the state store covers and no follower needs.
func (w *worker) truncate(r *replica) {
	kept := w.b.checkpoint.kept.Load()
	to := truncateTo(r.log, r.flushed.Index, r.followers(w.b.mono()), kept)
	if r.feed != nil && kept <= keepAllBytes {
		to = retain(r.log, to, felix.WatchRetentionBytes)
	}
	if err := r.shard.Compact(to); err != nil {
		w.b.opts.Fatal(fmt.Errorf("shard %d: its log cannot be truncated: %w", r.id, err))
	}
}

// keptBytes is how much of the log is there for other replicas alone.
func (r *replica) keptBytes() int64 { return max(0, r.log.Size()-r.unflushedBytes()) }

// followers are the replicas that this one leads. It runs on the worker.
func (r *replica) followers(now time.Duration) (all []follower) {
	heard := map[uint64]time.Duration{}
	for _, p := range r.shard.Status().Progress {
		if p.RaftID == r.raftID {
			continue
		}
		last, known := r.heard[p.RaftID]
		if p.Active || !known { // a new one, or of a new leader, gets its time to be heard of
			last = now
		}
		heard[p.RaftID] = last
		all = append(all, follower{match: p.Match, snapshot: p.PendingSnapshot, silent: now - last})
	}
	r.heard = heard
	return all
}
