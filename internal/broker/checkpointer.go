package broker

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/felix-go/felix/internal/record"
	"github.com/felix-go/felix/internal/store"
)

// checkpointer is the goroutine that decides when shards write their dirty
// records to the state store, writes them, and has the log truncated. The
// shards' workers gather the records, a slice a step.
type checkpointer struct {
	b        *Broker
	pressure pressure
	wake     chan struct{} // capacity 1
	// dirty says that since the last look there was something that a checkpoint
	// could write, as workers saw it when they ticked.
	dirty atomic.Bool
	// writing is held while a checkpoint is written, so that the data of a
	// deleted cache is not written again after it was dropped.
	writing sync.Mutex
	kept    atomic.Int64 // bytes of all logs that are there for other replicas, as of the workers' last ticks
}

const (
	// checkpointPoll is how often the checkpointer looks for shards that need it.
	checkpointPoll = 100 * time.Millisecond
	// idlePolls is at which of these it looks although nothing seems to: each
	// look wakes all workers, which is a tenth of what a broker costs that idles.
	idlePolls = 10
)

// captureSlice is how many entries a worker captures or cleans per step: about
// a tenth of a millisecond.
const captureSlice = 1024

// captureJob is a checkpoint of one shard. It belongs to the worker until
// captured is closed, then to the checkpointer until written is set, then to
// the worker again until finished is closed.
type captureJob struct {
	replica  *replica
	capture  *store.Capture
	captured chan struct{}
	written  bool
	finished chan struct{}
	whole    bool
	aborted  bool        // the shard was cleared before captured was closed
	dropped  atomic.Bool // it was abandoned
	// hashes is where the hash of what is written goes, if that is at an agreed
	// entry: then the worker has begun it, and gathered says that a round has it.
	hashes   *shardHashes
	gathered bool
}

// abandon ends the job of a shard that is being closed, or whose state a snapshot
// replaces. It runs on its worker.
func (job *captureJob) abandon(t *store.Table) {
	job.dropped.Store(true)
	t.Abandon(job.capture)
	if !job.whole {
		close(job.captured)
	}
	close(job.finished)
}

func newCheckpointer(b *Broker) *checkpointer {
	return &checkpointer{b: b, pressure: pressure{b: b}, wake: make(chan struct{}, 1)}
}

// soon has the checkpointer look at once, not at its next poll.
func (c *checkpointer) soon() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

func (c *checkpointer) run(ctx context.Context) {
	ticker := time.NewTicker(checkpointPoll)
	defer ticker.Stop()
	for polls := 1; ; polls++ {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			if !c.dirty.Swap(false) && polls%idlePolls != 0 {
				continue
			}
		case <-c.wake:
		}
		due := c.due
		if c.pressure.behind() {
			due = worthwhile
		}
		// A round that has begun is finished also when the broker stops: it is
		// short, and the last checkpoint then finds nothing half done.
		if err := c.round(context.WithoutCancel(ctx), due); err != nil {
			c.b.opts.Fatal(err)
			return
		}
	}
}

// all checkpoints everything that is dirty.
func (c *checkpointer) all(ctx context.Context) error {
	return c.round(ctx, worthwhile)
}

// due says whether a shard needs a checkpoint. It runs on its worker.
func (c *checkpointer) due(r *replica, now time.Duration) bool {
	if r.wantCheckpoint {
		return worthwhile(r, now)
	}
	o := &c.b.opts
	dirty, logged := r.shard.Table().DirtyEntries(), r.unflushedBytes()
	if dirty == 0 && logged < o.CheckpointBytes {
		return false
	}
	return dirty >= o.CheckpointDirty || logged >= o.CheckpointBytes || now-r.savedAt >= o.CheckpointEvery
}

// mayNeed says whether a shard may need a checkpoint soon, with so many bytes of
// its log to replay. It runs on its worker.
func (c *checkpointer) mayNeed(r *replica, unflushed int64) bool {
	return r.wantCheckpoint || r.shard.Table().DirtyEntries() > 0 || unflushed >= c.b.opts.CheckpointBytes
}

// worthwhile says whether a checkpoint of a shard would write anything. It runs
// on its worker.
func worthwhile(r *replica, _ time.Duration) bool {
	return r.shard.Table().Applied().Index > r.flushed.Index
}

// unflushedBytes is what a restart would replay of the log; more of it may be
// there for other replicas. It runs on the worker.
func (r *replica) unflushedBytes() int64 { return r.log.SizeAbove(r.flushed.Index) }

// round takes a checkpoint of every shard for which due says yes, as one
// atomic write.
func (c *checkpointer) round(ctx context.Context, due func(*replica, time.Duration) bool) error {
	var jobs []*captureJob
	now := c.b.mono()
	for _, w := range c.b.workers {
		w.callWait(func() {
			for _, r := range w.replicas {
				if w.takeCapture(r); r.capture != nil && r.capture.hashes != nil && !r.capture.gathered {
					r.capture.gathered = true
					jobs = append(jobs, r.capture)
				}
				if r.capture != nil || r.installing() || !due(r, now) {
					continue
				}
				r.wantCheckpoint = false
				r.capture = &captureJob{replica: r, capture: r.shard.Table().BeginCheckpoint(),
					captured: make(chan struct{}), finished: make(chan struct{})}
				c.b.chainStored(r)
				r.savedAt = now
				jobs = append(jobs, r.capture)
				w.activate(r)
			}
		})
	}
	if len(jobs) == 0 {
		return nil
	}
	for _, job := range jobs {
		select {
		case <-job.captured:
		case <-ctx.Done():
			return nil // the broker stops: what was not written is in the log
		}
	}
	written, err := c.write(jobs)
	if err != nil {
		return fmt.Errorf("a checkpoint cannot be written: %w", err)
	}
	for _, job := range written {
		w := job.replica.worker
		w.call(func() { job.written = true; w.activate(job.replica) })
	}
	for _, job := range written {
		select {
		case <-job.finished:
		case <-ctx.Done():
			return nil
		}
	}
	c.goOn()
	return nil
}

// chainStored leaves the chain out of the replica's checkpoint that has begun if
// there may be builds in the cluster that could not read it.
func (b *Broker) chainStored(r *replica) {
	if !b.view().features[replicaHashes] && r.flushed.Chain.Base == 0 {
		r.capture.capture.Checkpoint.Applied.Chain = record.Chain{}
	}
}

// goOn has all shards look whether they still must wait for room.
func (c *checkpointer) goOn() {
	for _, w := range c.b.workers {
		w.call(func() {
			for _, r := range w.replicas {
				w.activate(r)
			}
		})
	}
}

// write writes what was captured and answers the jobs that it belongs to.
func (c *checkpointer) write(jobs []*captureJob) (written []*captureJob, err error) {
	c.writing.Lock()
	defer c.writing.Unlock()
	parts := make([]store.Checkpoint, 0, len(jobs))
	for _, job := range jobs {
		if job.dropped.Load() || job.aborted {
			continue
		}
		part := job.capture.Checkpoint
		part.Shard = job.replica.id
		parts = append(parts, part)
		written = append(written, job)
	}
	if err := c.b.db.WriteCheckpoint(parts...); err != nil {
		return written, err
	}
	return written, c.b.hashWritten(jobs, written)
}

// checkpointStep does a slice of the replica's checkpoint, if there is one to
// take, and asks to be called again. It runs on the worker.
func (w *worker) checkpointStep(r *replica) {
	job := r.capture
	if job == nil {
		return
	}
	began := time.Now()
	table := r.shard.Table()
	switch {
	case !job.whole:
		if job.whole = table.CaptureSlice(job.capture, captureSlice); job.whole {
			// From here on a clear aborts nothing: what was captured was the
			// state, and the next checkpoint clears it.
			if job.aborted = job.capture.Aborted(); job.aborted {
				r.capture = nil
			}
			close(job.captured)
			return
		}
	case !job.written:
		return // the checkpointer calls when it has written
	case table.FinishSlice(job.capture, captureSlice):
		r.capture = nil
		r.flushed = job.capture.Checkpoint.Applied
		job.capture.Checkpoint.Records = nil
		w.truncate(r)
		close(job.finished)
		return
	}
	w.b.opts.OnCheckpointStep(time.Since(began))
	w.activate(r)
	w.signal()
}
