package broker

import (
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/felix-go/felix/internal/peer/peerv1"
	"github.com/felix-go/felix/internal/store"
)

// The states of a shard's replicas are compared, too: what is made of what was
// applied, and is on disk. Its owner chooses an entry that is still to be applied,
// or of a shard that rests the last one, and asks all replicas to hash their state
// as of it. Each begins a checkpoint exactly there (store.CaptureAt), pins what the
// state store has after it, and reads that at leisure.

const (
	// hashBytesPerSecond is how fast a state is read to be hashed, one at a time.
	hashBytesPerSecond = 8 << 20
	// keptHashes is how many hashes of a shard are remembered.
	keptHashes      = 2
	maxScanPatience = time.Minute
)

// stateHashes are the hashes of states that this broker has made.
type stateHashes struct {
	mu      sync.Mutex
	shards  map[uint64]*shardHashes
	reading sync.Mutex // held by the one that reads
}

// shardHashes are those of a shard's replica. They are forgotten when a snapshot
// replaces its state.
type shardHashes struct {
	done []*peerv1.HashPoint // the newest last
	made time.Duration       // when that was made
	at   uint64              // as of which one is being made; 0 is none
}

// of are the hashes of a shard.
func (s *stateHashes) of(shard uint64) []*peerv1.HashPoint {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h := s.shards[shard]; h != nil {
		return slices.Clone(h.done)
	}
	return nil
}

// forget forgets what was hashed of a shard.
func (s *stateHashes) forget(shard uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.shards, shard)
}

// has says whether a hash as of index is being made, or was since a time.
func (s *stateHashes) has(shard, index uint64, since time.Duration) (underWay, made bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.shards[shard]
	if h == nil {
		return false, false
	}
	_, made = hashAt(h.done, index)
	return h.at == index, made && h.made >= since
}

// begin notes that a hash as of index is being made, in place of an earlier one.
func (s *stateHashes) begin(shard, index uint64) *shardHashes {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.shards[shard]
	if h == nil {
		h = &shardHashes{}
		s.shards[shard] = h
	}
	h.at = index
	h.done = slices.DeleteFunc(h.done, func(p *peerv1.HashPoint) bool { return p.GetIndex() == index })
	return h
}

// end notes what has come of it.
func (s *stateHashes) end(h *shardHashes, index, hash uint64, now time.Duration, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h.at == index {
		h.at = 0
	}
	if err == nil {
		h.done = append(h.done, &peerv1.HashPoint{Index: index, Hash: hash})
		h.done, h.made = h.done[max(0, len(h.done)-keptHashes):], now
	}
}

// hashStateAt has a replica hash its state as of index, unless it has begun or has
// done so lately, and says whether that is under way. It runs on the worker.
func (e *equality) hashStateAt(r *replica, index uint64) (underWay bool) {
	underWay, made := e.states.has(r.id, index, e.b.mono()-e.b.opts.HashStatesEvery/2)
	if underWay || r.shard.Table().CaptureIndex() == index {
		return true
	}
	if made || r.installing() || !r.shard.Table().CaptureAt(index) {
		return false
	}
	r.worker.takeCapture(r)
	return true
}

// takeCapture has the checkpointer write the checkpoint that a replica has begun
// at an agreed entry, if there is one.
func (w *worker) takeCapture(r *replica) {
	if r.capture != nil {
		return // that one was aborted, and is given up in a later step
	}
	capture := r.shard.Table().TakeCapture()
	if capture == nil {
		return
	}
	hashes := w.b.equality.states.begin(r.id, capture.Checkpoint.Applied.Index)
	r.capture = &captureJob{replica: r, capture: capture, hashes: hashes, captured: make(chan struct{}), finished: make(chan struct{})}
	w.b.chainStored(r)
	r.savedAt = w.b.mono()
	w.activate(r)
	w.b.checkpoint.soon()
}

// hashWritten hashes what the checkpoints of the jobs that have just been written
// make of their shards. Nothing else may have been written of these since.
func (b *Broker) hashWritten(jobs, written []*captureJob) error {
	for _, job := range jobs {
		if job.hashes == nil {
			continue
		}
		if !slices.Contains(written, job) {
			b.equality.states.end(job.hashes, job.capture.Checkpoint.Applied.Index, 0, 0, errOtherState)
			continue
		}
		pinned, err := b.db.OpenSnapshot(job.replica.id)
		if err != nil {
			return err
		}
		b.readers.Add(1)
		go b.hashState(job, pinned)
	}
	return nil
}

// errOtherState is what a state has that is not as of the agreed entry.
var errOtherState = errors.New("the state is not as of the entry that was agreed on")

// hashState hashes a state that is pinned.
func (b *Broker) hashState(job *captureJob, pinned *store.SnapshotReader) {
	defer b.readers.Done()
	defer pinned.Close()
	index := job.capture.Checkpoint.Applied.Index
	states := &b.equality.states
	states.reading.Lock()
	hash, err := pinned.Hash(func(bytes int) error {
		b.pause(time.Duration(bytes) * time.Second / hashBytesPerSecond)
		return b.running.Err()
	})
	states.reading.Unlock()
	if err == nil && pinned.Applied().Index != index {
		err = errOtherState
	}
	states.end(job.hashes, index, hash, b.mono(), err)
	if err != nil && b.running.Err() == nil {
		b.opts.Logger.Warn("the state of a shard was not hashed", "shard", job.replica.id, "entry", index, "err", err)
		return
	}
	b.equality.stats.hashed.Add(1)
}

// scan is the shard whose states this broker, its owner, has asked for.
type scan struct {
	shard uint64 // 0: none
	index uint64
	began time.Duration
}

// of is the entry as of which the state of a shard is to be hashed, or 0.
func (s *scan) of(shard uint64) uint64 {
	if s.shard == shard {
		return s.index
	}
	return 0
}

// firstHash is how long after a broker has become the owner of a shard its state is
// hashed for the first time: not all at the same time.
func firstHash(shard uint64, every time.Duration) time.Duration {
	const parts = 64
	return every / parts * time.Duration(1+shard*37%parts)
}

// planScan chooses the next shard whose state is to be hashed, unless one is, and
// answers the replicas with its replica among them.
func (e *equality) planScan(replicas []*replica) []*replica {
	now := e.b.mono()
	if w := e.watched[e.scan.shard]; e.scan.shard != 0 && w == nil {
		e.scan = scan{} // it is owned no more
	}
	if e.scan.shard == 0 {
		var next *watched
		for _, w := range e.watched {
			if w.hashNext <= now && (next == nil || w.hashNext < next.hashNext) {
				next = w
			}
		}
		if next == nil {
			return replicas
		}
		e.beginScan(next)
	}
	if w := e.watched[e.scan.shard]; w != nil && !slices.Contains(replicas, w.replica) {
		replicas = append(replicas, w.replica)
	}
	return replicas
}

// beginScan chooses as of which entry: the last one if the shard rests, otherwise
// one that comes after the others will have heard of it.
func (e *equality) beginScan(w *watched) {
	e.b.onWorkers([]*replica{w.replica}, func(r *replica) {
		s := r.shard.Status()
		now := e.b.mono()
		index := s.Applied
		if s.LastIndex != s.Applied || s.LastIndex != w.last {
			elapsed := max(now-w.at, time.Millisecond)
			index = s.LastIndex + 1 + uint64(time.Duration(s.LastIndex-min(w.last, s.LastIndex))*time.Second/elapsed)
		}
		w.last, w.at = s.LastIndex, now
		if s.Leader && e.hashStateAt(r, index) {
			e.scan = scan{shard: r.id, index: index, began: now}
		}
	})
	if e.scan.shard == 0 {
		w.hashNext = e.b.mono() + e.scanPatience()
	}
}

// scanPatience is for how long an entry is waited for as of which states are to be
// hashed, and after how long another one is tried.
func (e *equality) scanPatience() time.Duration {
	return min(maxScanPatience, e.b.opts.HashStatesEvery)
}

// endScan ends the scan when nobody is at it any more; what has come of it was
// judged.
func (e *equality) endScan(comparisons []*comparison) {
	at := slices.IndexFunc(comparisons, func(c *comparison) bool { return c.replica.id == e.scan.shard })
	w := e.watched[e.scan.shard]
	if at < 0 || w == nil {
		return
	}
	c, index, now := comparisons[at], e.scan.index, e.b.mono()
	_, done := hashAt(c.mine.States, index)
	underWay, _ := e.states.has(w.replica.id, index, 0)
	waits := underWay || !done && now-e.scan.began < e.scanPatience()
	for _, a := range c.answers {
		_, is := hashAt(a.GetStates(), index)
		waits = waits || !is && a.GetHashStateAt() == index
		done = done && is
	}
	switch {
	case waits && now-e.scan.began < e.b.opts.HashStatesEvery:
		return
	case done && len(c.answers) == len(c.others()):
		e.b.opts.Logger.Debug("the states of a shard's replicas were compared", "shard", w.replica.id, "entry", index)
		w.hashNext = now + e.b.opts.HashStatesEvery
	default:
		w.hashNext = now + e.scanPatience()
	}
	e.scan = scan{}
}
