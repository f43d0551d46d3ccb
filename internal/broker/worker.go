package broker

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/record"
	"github.com/felix-go/felix/internal/shard"
)

// worker is the goroutine that owns a part of the broker's shards.
type worker struct {
	b    *Broker
	wake chan struct{} // capacity 1
	done chan struct{} // closed when the goroutine has ended

	mu       sync.Mutex
	inbox    inbox
	stopping bool

	// The goroutine's own:
	taken     inbox
	replicas  map[uint64]*replica
	active    []*replica
	out       shard.Output
	outbox    outbox
	held      bool          // since the last tick, something had to wait for room in the state store
	logBytes  int64         // of its replicas' logs, at the last tick
	keptBytes int64         // of these logs, the same, what is there for other replicas
	looked    time.Duration // when it last looked after them
	metaIndex uint64        // how far the metadata is applied, if it is the worker's
	ticks     int           // so far
	restless  bool          // at the last tick a shard had something to do or had no owner
}

// inbox is what waits for a worker.
type inbox struct {
	requests []submission
	messages []delivery
	appended []shard.Append
	loaded   []loaded
	calls    []func()

	messageBytes int64 // of the entries in messages
}

type submission struct {
	replica *replica
	request *shard.Request
}

type loaded struct {
	load shard.Load
	cell record.Cell
}

func newWorker(b *Broker) *worker {
	return &worker{b: b, wake: make(chan struct{}, 1), done: make(chan struct{}), replicas: map[uint64]*replica{}}
}

func (w *worker) signal() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// call runs f on the worker's goroutine, some time soon. It says false, and
// drops f, if the worker is stopping.
func (w *worker) call(f func()) bool {
	w.mu.Lock()
	if w.stopping {
		w.mu.Unlock()
		return false
	}
	w.inbox.calls = append(w.inbox.calls, f)
	w.mu.Unlock()
	w.signal()
	return true
}

// callWait is call, and waits until f has returned.
func (w *worker) callWait(f func()) bool {
	done := make(chan struct{})
	if !w.call(func() { f(); close(done) }) {
		return false
	}
	<-done
	return true
}

// onWorker runs f on the replica's worker, after which the shard goes on, and
// waits until it has returned. It says false, and drops f, if the replica is
// closed or the worker is stopping.
func (b *Broker) onWorker(r *replica, f func(s *shard.Shard)) (ran bool) {
	r.worker.callWait(func() {
		if !r.closed {
			f(r.shard)
			r.worker.activate(r)
			ran = true
		}
	})
	return ran
}

// onWorkers runs f for those of the replicas that are not closed, each on its
// worker, not many at a time.
func (b *Broker) onWorkers(replicas []*replica, f func(r *replica)) {
	byWorker := map[*worker][]*replica{}
	for _, r := range replicas {
		byWorker[r.worker] = append(byWorker[r.worker], r)
	}
	for w, replicas := range byWorker {
		for some := range slices.Chunk(replicas, lookAtOnce) {
			w.callWait(func() {
				for _, r := range some {
					if !r.closed {
						f(r)
					}
				}
			})
		}
	}
}

// take queues requests for shards of the worker. It says false, and takes none,
// if the worker is stopping.
func (w *worker) take(requests ...submission) bool {
	w.mu.Lock()
	if w.stopping {
		w.mu.Unlock()
		return false
	}
	w.b.pacer.queued.Add(int64(len(requests)))
	w.inbox.requests = append(w.inbox.requests, requests...)
	w.mu.Unlock()
	w.signal()
	return true
}

func (w *worker) run() {
	defer close(w.done)
	stride := 1
	timer := time.NewTimer(w.b.opts.TickInterval)
	defer timer.Stop()
	for {
		ticked := false
		select {
		case <-w.wake:
		case <-timer.C:
			ticked = true
			w.tick(stride)
		}
		if !w.step() {
			return
		}
		if ticked {
			stride = w.stride()
			timer.Reset(time.Duration(stride) * w.b.opts.TickInterval)
		}
	}
}

// stride is how many ticks go by before the next look at the clock. Where nothing
// waits and every shard has an owner nobody needs to look often, and looking is
// most of what an idle broker costs: each wakes the scheduler up.
func (w *worker) stride() int {
	if w.restless {
		return 1
	}
	return maxStride
}

// tick moves the shards' clocks by so many ticks, wakes those that have something
// to do, and tells how much of their logs the state store does not have.
func (w *worker) tick(ticks int) {
	logBytes, keptBytes := int64(0), int64(0)
	look := w.looksNow()
	// Idle ones have records to evict, too, and must hear when there is room again.
	all := w.held || w.b.budget.UsedBytes() > w.b.budget.MaxBytes
	w.held = false
	beat := w.ticks%heartbeatTicks+ticks >= heartbeatTicks
	w.ticks += ticks
	w.restless = false
	dirty := false
	for _, r := range w.replicas {
		busy := w.tickShard(r, ticks, beat)
		if busy || all {
			w.activate(r)
		}
		w.restless = w.restless || busy && !beat || !r.shard.Owned()
		unflushed := r.unflushedBytes()
		dirty = dirty || w.b.checkpoint.mayNeed(r, unflushed)
		logBytes += unflushed
		keptBytes += r.keptBytes()
		if look {
			w.lookAfter(r)
		}
	}
	if dirty {
		w.b.checkpoint.dirty.Store(true)
	}
	w.b.checkpoint.pressure.logBytes.Add(logBytes - w.logBytes)
	w.b.checkpoint.kept.Add(keptBytes - w.keptBytes)
	w.logBytes, w.keptBytes = logBytes, keptBytes
}

// tickShard moves a shard's clock, and says whether it has something to do. The
// clocks of those that this broker leads stand still until the beat at which all
// of them send heartbeats, and catch up then: so these share frames, whenever
// their leaders were elected.
func (w *worker) tickShard(r *replica, ticks int, beat bool) (busy bool) {
	r.owed += ticks
	if r.shard.Leader() && !beat {
		return r.shard.Busy()
	}
	for ; r.owed > 0; r.owed-- {
		busy = r.shard.Tick() || busy
	}
	return busy
}

// close ends the goroutine; what is under way is failed as unavailable or
// outcome_unknown.
func (w *worker) close() {
	w.mu.Lock()
	w.stopping = true
	w.mu.Unlock()
	w.signal()
	<-w.done
}

func (w *worker) activate(r *replica) {
	if !r.active && !r.closed {
		r.active = true
		w.active = append(w.active, r)
	}
}

// step takes everything that waits, lets the shards work on it, and hands on
// what they want done.
func (w *worker) step() (goOn bool) {
	w.mu.Lock()
	w.taken, w.inbox = w.inbox, w.taken
	stopping := w.stopping
	w.mu.Unlock()

	for _, f := range w.taken.calls {
		f()
	}
	for _, s := range w.taken.requests {
		if s.replica.closed {
			w.b.closedTo(s)
			continue
		}
		s.replica.shard.Submit(s.request)
		w.activate(s.replica)
	}
	for i := range w.taken.messages {
		w.deliver(&w.taken.messages[i])
	}
	paced := w.takeAppended()
	for i := range w.taken.loaded {
		l := &w.taken.loaded[i]
		if r := w.replicas[l.load.Shard.ID()]; r != nil && r.shard == l.load.Shard {
			l.load.Shard.Loaded(l.load, &l.cell)
			w.activate(r)
		}
	}
	w.advance()
	w.b.pacer.taken(len(w.taken.requests))
	if paced > 0 {
		w.b.pacer.synced(paced)
	}
	w.taken.reset()
	if stopping {
		w.stop()
	}
	return !stopping
}

func (i *inbox) reset() {
	clear(i.requests)
	clear(i.messages)
	clear(i.appended)
	clear(i.loaded)
	clear(i.calls)
	i.requests, i.messages, i.messageBytes = i.requests[:0], i.messages[:0], 0
	i.appended, i.loaded, i.calls = i.appended[:0], i.loaded[:0], i.calls[:0]
}

// takeAppended tells the shards what is durable, and answers how many of the
// appends pace the doors. Other replicas have been told by the committer.
func (w *worker) takeAppended() (paced int) {
	for i := range w.taken.appended {
		a := &w.taken.appended[i]
		r := w.replicas[a.Shard.ID()]
		if paces(a) {
			paced++
		}
		if r == nil || r.shard != a.Shard {
			continue
		}
		if a.Snapshot != nil {
			r.incoming.announced(a)
			continue
		}
		if !w.stepResponses(r, a) {
			return paced
		}
	}
	return paced
}

// stepResponses tells a replica that its append is durable.
func (w *worker) stepResponses(r *replica, a *shard.Append) (ok bool) {
	for _, m := range a.Responses {
		if m.GetTo() != r.raftID {
			continue
		}
		if err := r.shard.Step(m); err != nil {
			w.b.opts.Fatal(err)
			return false
		}
	}
	w.activate(r)
	return true
}

// advance lets the active shards work. Their messages go first, so that the
// disks of other brokers work beside this one's, then their appends, to the
// committer, so that the disk works while replies are told.
func (w *worker) advance() {
	now := w.b.now()
	again := w.active
	w.active = nil
	writes, replay := w.b.checkpoint.pressure.full()
	w.held = w.held || writes
	for _, r := range again {
		r.active = false
		if r.closed {
			continue // dropped after it was activated: it must not do anything more
		}
		if r.id != metaShard { // caches can always be deleted
			r.shard.Hold(writes, replay)
		}
		before := len(w.out.Appends)
		if err := r.shard.Advance(now, &w.out); err != nil {
			w.b.opts.Fatal(fmt.Errorf("shard %d stopped: %w", r.id, err))
			return
		}
		if r.shard.Leased() {
			r.shard.Confirm(w.b.now(), &w.out)
		}
		w.takeChanges(r)
		w.feedApplied(r)
		if r.incoming != nil {
			w.holdBack(r, before)
		}
		if owns := r.shard.Owns(); r.owns.Swap(owns) != owns && owns {
			w.b.traffic.ownerships.Add(1)
		}
		r.operation.Store(r.shard.Stats().Operations)
		r.applied.Store(r.shard.Table().Applied().Index)
		w.openCursors()
		if r.shard.Unfinished() {
			w.activate(r)
			w.signal()
		}
	}
	if w.b.checkpoint.pressure.dirtySoon() {
		w.b.checkpoint.soon()
	}
	w.outbox.send(w.b.net)
	w.b.committer.add(w.out.Appends)
	w.startLoads()
	w.b.finishAll(w.out.Done)
	w.resetOut()
	for _, r := range again {
		w.checkpointStep(r)
	}
	if w.active == nil {
		w.active = again[:0]
	}
}

// takeChanges takes what the shard that just stepped has for the rest of the
// cluster.
func (w *worker) takeChanges(r *replica) {
	if len(w.out.Changed) > 0 {
		clear(w.out.Changed)
		w.out.Changed = w.out.Changed[:0]
		w.ledBy(r)
		w.b.tellJoint(r.shard)
		w.b.poke()
	}
	w.takeCapture(r)
	if r.id == metaShard {
		w.metaApplied(r.shard.Table().Applied().Index)
	}
	if len(w.out.Messages) > 0 {
		w.outbox.add(r, w.out.Messages)
		w.sendSnapshots(r, w.out.Messages)
		clear(w.out.Messages)
		w.out.Messages = w.out.Messages[:0]
	}
	w.sendBack(r)
}

// metaApplied notes how far the metadata is applied.
func (w *worker) metaApplied(index uint64) {
	if index != w.metaIndex {
		w.metaIndex = index
		w.b.metaApplied.raise(index)
		w.b.poke()
	}
}

// sendBack sends what another replica has to evaluate on its way.
func (w *worker) sendBack(r *replica) {
	for _, request := range w.out.Returned {
		w.b.returned(r.route, request, r.lead.Load())
	}
	clear(w.out.Returned)
	w.out.Returned = w.out.Returned[:0]
}

func (w *worker) resetOut() {
	clear(w.out.Appends)
	clear(w.out.Done)
	clear(w.out.Loads)
	w.out.Appends, w.out.Done, w.out.Loads = w.out.Appends[:0], w.out.Done[:0], w.out.Loads[:0]
}

// openCursors pins the state store for the scans of the shard that just
// stepped, while the overlay and the store still belong to one applied index.
func (w *worker) openCursors() {
	for _, r := range w.out.Scans {
		w.b.startScan(r)
	}
	clear(w.out.Scans)
	w.out.Scans = w.out.Scans[:0]
}

const (
	// loadsPerLoader is how many records one loader goroutine reads before it
	// reports: enough to be worth the wake-up, few enough to share the work.
	loadsPerLoader = 128
	// loadBytes is how many bytes of values it reads before it reports, too,
	// and maxLoaders how many of them read at once: what they have read is in
	// no budget until the shard has it.
	loadBytes  = 1 << 20
	maxLoaders = 64
)

func (w *worker) startLoads() {
	for loads := w.out.Loads; len(loads) > 0; {
		n := min(loadsPerLoader, len(loads))
		part := append([]shard.Load(nil), loads[:n]...)
		loads = loads[n:]
		w.b.readers.Add(1)
		go w.load(part)
	}
}

func (w *worker) load(loads []shard.Load) {
	defer w.b.readers.Done()
	w.b.loaders <- struct{}{}
	defer func() { <-w.b.loaders }()
	results := make([]loaded, len(loads))
	first, bytes := 0, 0
	for i, l := range loads {
		results[i].load = l
		if err := w.b.read(l, &results[i].cell); err != nil {
			w.b.opts.Fatal(fmt.Errorf("shard %d: a record cannot be read: %w", l.Shard.ID(), err))
			return
		}
		if bytes += len(results[i].cell.Value); bytes >= loadBytes || i == len(loads)-1 {
			w.takeLoaded(results[first : i+1])
			first, bytes = i+1, 0
		}
	}
}

// takeLoaded queues records that were read.
func (w *worker) takeLoaded(results []loaded) {
	w.mu.Lock()
	w.inbox.loaded = append(w.inbox.loaded, results...)
	w.mu.Unlock()
	clear(results)
	w.signal()
}

// adopt makes the worker run a replica. Call it on the worker's goroutine.
func (w *worker) adopt(r *replica) {
	w.replicas[r.id] = r
	w.applyModes(r)
}

// drop fails what a replica has under way and forgets it. Without an error, what
// others may evaluate goes to them. Call it on the worker's goroutine.
func (w *worker) drop(r *replica, err *felix.Error) {
	delete(w.replicas, r.id)
	r.closed, r.why = true, err
	r.owns.Store(false)
	r.lead.Store(0)
	if r.feed != nil {
		r.feed.end(errFeedEnded)
		r.feed = nil
	}
	if job := r.capture; job != nil {
		r.capture = nil
		job.abandon(r.shard.Table())
	}
	if r.incoming != nil {
		r.incoming.drop()
	}
	r.shard.Close(err, &w.out)
	w.sendBack(r)
	w.b.finishAll(w.out.Done)
	w.resetOut()
}

// stop fails what the shards have under way. Nothing can wait in the inbox: it
// was emptied when stopping was seen, and takes no more from then on.
func (w *worker) stop() {
	for _, r := range w.replicas {
		w.drop(r, errStopping)
	}
}
