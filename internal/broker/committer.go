package broker

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/raftlog"
	"github.com/felix-go/felix/internal/shard"
)

// committer is the goroutine that writes the log: all that every shard has
// ready becomes one batch with one sync.
type committer struct {
	b    *Broker
	wake chan struct{} // capacity 1
	done chan struct{}

	mu       sync.Mutex
	pending  []shard.Append
	stopping bool

	// The goroutine's own:
	taken  []shard.Append
	batch  []raftlog.Append
	outbox outbox
}

// coverAfter is how long the committer waits for more to do before it covers
// what it has synced last (raftlog.Log.Cover): long enough that a trickle of
// writes does not sync twice as often, and hardly ever meets that sync.
const coverAfter = time.Second

func newCommitter(b *Broker) *committer {
	return &committer{b: b, wake: make(chan struct{}, 1), done: make(chan struct{})}
}

// add queues appends. One that nobody waits for (a commit index) rides along
// with the next that somebody does.
func (c *committer) add(appends []shard.Append) {
	if len(appends) == 0 {
		return
	}
	paced, urgent := 0, false
	for i := range appends {
		a := &appends[i]
		if paces(a) {
			paced++
		}
		urgent = urgent || a.Sync || len(a.Responses) > 0
	}
	if paced > 0 {
		c.b.pacer.syncing.Add(int64(paced))
	}
	c.mu.Lock()
	c.pending = append(c.pending, appends...)
	c.mu.Unlock()
	if urgent {
		c.signal()
	}
}

// paces says whether doors should wait for an append: it is one of clients of
// this broker, or of those of others that this one works for.
func paces(a *shard.Append) bool {
	return a.Sync && a.Own && a.Shard.Consistency() == felix.Quorum
}

func (c *committer) signal() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

func (c *committer) run() {
	defer close(c.done)
	idle := time.NewTimer(c.b.opts.coverAfter)
	defer idle.Stop()
	for stopping := false; !stopping; {
		var err error
		select {
		case <-c.wake:
			stopping, err = c.commitPending()
			idle.Reset(c.b.opts.coverAfter)
		case <-idle.C:
			err = c.b.log.Cover()
		}
		if err != nil {
			c.b.opts.Fatal(fmt.Errorf("the log cannot be written: %w", err))
			return // nothing that came with this batch, or comes, is ever acknowledged
		}
	}
}

// commitPending commits what waits, and says whether the committer is to stop.
func (c *committer) commitPending() (stopping bool, err error) {
	c.mu.Lock()
	c.taken, c.pending = c.pending, c.taken[:0]
	stopping = c.stopping
	c.mu.Unlock()
	if len(c.taken) > 0 {
		err = c.commit()
	}
	return stopping, err
}

func (c *committer) commit() error {
	c.batch = c.batch[:0]
	sync := false
	for i := range c.taken {
		a := &c.taken[i]
		sync = sync || a.Sync
		c.batch = append(c.batch, logAppend(a))
	}
	began := time.Now()
	if err := c.b.log.Commit(c.batch); err != nil {
		return err
	}
	if sync {
		took := time.Since(began)
		c.b.pacer.observe(took)
		c.b.opts.OnSync(took)
	}
	// To other brokers straight away: the owner's clients wait for them.
	for i := range c.taken {
		a := &c.taken[i]
		if a.Snapshot == nil { // that one is not done yet
			c.outbox.add(a.Shard.Runner().(*replica), a.Responses)
		}
	}
	c.outbox.send(c.b.net)
	for _, w := range c.b.workers {
		w.takeCommitted(c.taken)
	}
	clear(c.taken)
	clear(c.batch)
	return nil
}

// logAppend is what to write of an append: of one with a snapshot, what comes
// before it is installed.
func logAppend(a *shard.Append) raftlog.Append {
	if a.Snapshot != nil {
		i := installationOf(a)
		return i.announce()
	}
	return raftlog.Append{Shard: a.Shard.Log().(*raftlog.Shard), Entries: a.Entries, HardState: a.HardState, Sync: a.Sync}
}

// takeCommitted queues the appends that belong to the worker's shards.
func (w *worker) takeCommitted(appends []shard.Append) {
	any := false
	w.mu.Lock()
	for i := range appends {
		a := &appends[i]
		if (a.Sync || len(a.Responses) > 0) && w.b.workerOf(a.Shard.ID()) == w {
			w.inbox.appended = append(w.inbox.appended, *a)
			any = true
		}
	}
	w.mu.Unlock()
	if any {
		w.signal()
	}
}

func (c *committer) close() {
	c.mu.Lock()
	c.stopping = true
	c.mu.Unlock()
	c.signal()
	<-c.done
}

// pacer implements netloop.Pacer: while the broker's own disk works, doors let
// requests gather.
type pacer struct {
	queued  atomic.Int64 // requests submitted that no worker has taken up
	syncing atomic.Int64 // appends of quorum shards being made durable
	recent  atomic.Int64 // nanoseconds: what nearly all of the last syncs took at most

	// Of the last syncs, in nanoseconds, smoothed; the committer's own.
	mean, deviation int64

	mu    sync.Mutex
	wakes map[int]func()
	next  int
}

// Busy implements netloop.Pacer.
func (p *pacer) Busy() bool { return p.syncing.Load() > 0 || p.queued.Load() > 0 }

// RecentSync implements netloop.Pacer.
func (p *pacer) RecentSync() time.Duration { return time.Duration(p.recent.Load()) }

// OnSynced implements netloop.Pacer.
func (p *pacer) OnSynced(wake func()) (cancel func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.wakes == nil {
		p.wakes = map[int]func(){}
	}
	id := p.next
	p.next++
	p.wakes[id] = wake
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.wakes, id)
	}
}

func (p *pacer) taken(requests int) {
	if requests > 0 {
		p.queued.Add(-int64(requests))
	}
}

// observe keeps a bound on what nearly all syncs take: the mean and four mean
// deviations, smoothed as RFC 6298 does for round trips. The mean alone would
// end half of all waits just before the sync does, with a small batch.
func (p *pacer) observe(sync time.Duration) {
	off := int64(sync) - p.mean
	p.mean += off / 8
	p.deviation += (max(off, -off) - p.deviation) / 4
	p.recent.Store(p.mean + 4*p.deviation)
}

// synced is called when appends are durable and the replies they released have
// been told.
func (p *pacer) synced(appends int) {
	p.syncing.Add(-int64(appends))
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, wake := range p.wakes {
		wake()
	}
}

// Pacer tells doors when to let requests gather.
func (b *Broker) Pacer() *pacer { return &b.pacer }
