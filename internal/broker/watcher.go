package broker

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/feed"
	"github.com/felix-go/felix/internal/shard"
	"github.com/felix-go/felix/internal/slots"
)

// watches is what all watches of a broker share.
type watches struct {
	count  *atomic.Int64
	budget *feed.Budget
	ended  context.Context // once the broker stops to serve them
	stop   context.CancelFunc
}

func newWatches() watches {
	w := watches{count: new(atomic.Int64), budget: &feed.Budget{Max: felix.MaxWatchBrokerBytes}}
	w.ended, w.stop = context.WithCancel(context.Background())
	return w
}

var (
	errWatchers = &felix.Error{Code: felix.ResourceExhausted, RetryAfter: time.Second,
		Message: "the broker has as many watches as it allows: watch at another one, or try again a little later"}
	errWatchClosed   = felix.Errorf(felix.Unavailable, "the watch was closed")
	errWatchStopping = &felix.Error{Code: felix.Unavailable, RetryAfter: 100 * time.Millisecond,
		Message: "the broker is stopping: resume the watch at another one"}
	errResume = felix.Errorf(felix.InvalidArgument, "the token to resume from is of another watch: begin without one")
)

// beginToken is of no cache, so that a resume begins again.
var beginToken = (&feed.Token{}).Append(nil)

// bookmarkEvery is after how long without an event the place that a watch is at is
// told again: the log that an older one names may be gone by the time of a resume.
const bookmarkEvery = 10 * time.Second

// watcher implements felix.Watcher. Its parts are the shards that it watches; it
// belongs to the goroutine that calls Next.
type watcher struct {
	c      *cache
	req    felix.WatchRequest
	notify chan struct{} // capacity 1: a part may have something
	closed chan struct{}
	once   sync.Once
	busy   sync.Mutex // held by Next; Close waits for it, to free the parts

	parts []*watchPart
	out   []felix.WatchEvent // to be told
	turn  int                // the part that is asked next
	state bool               // whether the current state is to be told
	// scanning is the part whose state is being told; len(parts): all have been.
	scanning int
	idle     *time.Timer // for bookmarks
}

// Watch implements felix.Cache.
func (c *cache) Watch(ctx context.Context, req felix.WatchRequest) (felix.Watcher, error) {
	if err := req.Validate(); err != nil {
		return nil, err
	}
	var resume *feed.Token
	if req.Resume != nil {
		t, err := feed.ReadToken(req.Resume)
		if err != nil {
			return nil, err
		}
		resume = &t
	}
	if c.b.watches.count.Add(1) > felix.MaxWatchers {
		c.b.watches.count.Add(-1)
		return nil, errWatchers
	}
	w := &watcher{c: c, req: req, state: req.Initial, notify: make(chan struct{}, 1), closed: make(chan struct{}),
		idle: time.NewTimer(bookmarkEvery)}
	if err := w.begin(ctx, resume); err != nil {
		w.Close()
		return nil, err
	}
	return w, nil
}

// begin finds the feeds of the shards, and where in them the watch begins.
func (w *watcher) begin(ctx context.Context, resume *feed.Token) error {
	if err := w.ended(); err != nil {
		return err
	}
	for n := range w.c.shards {
		if w.req.Key != nil && n != slots.Shard(slots.Slot(w.req.Key), len(w.c.shards)) {
			continue
		}
		f, err := w.c.b.feedOf(w.c.shards[n])
		if err != nil {
			return err
		}
		w.parts = append(w.parts, &watchPart{w: w, n: n, feed: f, queue: feed.NewQueue(w.c.b.watches.budget)})
	}
	if err := w.confirm(ctx); err != nil {
		return err
	}
	if resume == nil {
		w.start()
		return nil
	}
	known := resume.Cache == w.c.shards[0].id
	for _, p := range w.parts {
		pos, is := resume.Find(p.n)
		if !is && known {
			return errResume
		}
		known = known && p.holds(pos)
		p.pos = pos
	}
	if !known {
		w.reset()
		return nil
	}
	w.scanning = len(w.parts)
	w.synced()
	return nil
}

// confirm asks the shards' owners how far their logs are: what was acknowledged
// before is in there.
func (w *watcher) confirm(ctx context.Context) error {
	deadline := w.c.b.deadline(ctx)
	all := make([]*shard.Request, len(w.parts))
	for i, p := range w.parts {
		all[i] = &shard.Request{Kind: shard.Barrier, Deadline: deadline, Finished: newFinished()}
		w.c.b.submitTo(w.c.shards[p.n], all[i])
	}
	for i, p := range w.parts {
		if err := await(ctx, all[i]); err != nil {
			return err
		}
		p.confirmed = all[i].Index
	}
	return nil
}

// start begins at what is confirmed: with the state, or with the changes.
func (w *watcher) start() {
	w.scanning = 0
	for _, p := range w.parts {
		p.restart()
	}
	if !w.state {
		w.scanning = len(w.parts)
		w.synced()
	}
}

// reset begins again, with the state.
func (w *watcher) reset() {
	w.state = true
	w.out = append(w.out[:0], felix.WatchEvent{Kind: felix.WatchReset, Token: beginToken})
	w.start()
}

// synced tells that changes follow, or, as a bookmark, how far they have been told.
func (w *watcher) synced() {
	w.out = append(w.out, felix.WatchEvent{Kind: felix.WatchSynced, Token: w.token()})
	w.idle.Reset(bookmarkEvery)
}

func (w *watcher) token() []byte {
	t := feed.Token{Cache: w.c.shards[0].id, Shards: make([]feed.ShardPosition, len(w.parts))}
	for i, p := range w.parts {
		t.Shards[i] = feed.ShardPosition{Shard: p.n, Position: p.pos}
	}
	return t.Append(nil)
}

// signal wakes Next.
func (w *watcher) signal() {
	select {
	case w.notify <- struct{}{}:
	default:
	}
}

// Next implements felix.Watcher.
func (w *watcher) Next(ctx context.Context) (felix.WatchEvent, error) {
	w.busy.Lock()
	defer w.busy.Unlock()
	for {
		if err := w.ended(); err != nil {
			return felix.WatchEvent{}, err
		}
		if len(w.out) > 0 {
			e := w.out[0]
			w.out = w.out[1:]
			return e, nil
		}
		if err := ctx.Err(); err != nil {
			return felix.WatchEvent{}, felix.Errorf(felix.Unavailable, "nothing has changed: %v", context.Cause(ctx))
		}
		progress, err := w.advance(ctx)
		if err != nil {
			return felix.WatchEvent{}, err
		}
		if progress {
			continue
		}
		select {
		case <-w.notify:
		case <-w.idle.C:
			w.bookmark()
		case <-ctx.Done():
		case <-w.closed:
		case <-w.c.b.watches.ended.Done():
		}
	}
}

// ended is why the watch cannot go on, or nil.
func (w *watcher) ended() error {
	select {
	case <-w.closed:
		return errWatchClosed
	case <-w.c.b.watches.ended.Done():
		return errWatchStopping
	default:
	}
	if w.c.gone.Load() {
		return errCacheGone
	}
	return nil
}

// advance gets the next events, and says whether it got on.
func (w *watcher) advance(ctx context.Context) (progress bool, err error) {
	if w.scanning < len(w.parts) {
		return true, w.scan(ctx)
	}
	for range w.parts {
		p := w.parts[w.turn]
		w.turn = (w.turn + 1) % len(w.parts)
		found, err := p.take()
		switch {
		case err == errLostLog:
			return true, w.again(ctx)
		case err != nil:
			return false, w.orGone(err)
		case found:
			return true, nil
		}
	}
	return false, nil
}

// scan tells more of the state.
func (w *watcher) scan(ctx context.Context) error {
	p := w.parts[w.scanning]
	done, err := p.scan(ctx)
	switch {
	case err == errLostLog:
		return w.again(ctx)
	case err != nil:
		return w.orGone(err)
	case !done:
		return nil
	}
	if w.scanning++; w.scanning == len(w.parts) {
		w.synced()
	}
	return nil
}

// again begins again where changes cannot be told.
func (w *watcher) again(ctx context.Context) error {
	if err := w.confirm(ctx); err != nil {
		return w.orGone(err)
	}
	w.reset()
	return nil
}

// orGone is err, or that the cache was deleted if that is why.
func (w *watcher) orGone(err error) error {
	if w.c.gone.Load() {
		return errCacheGone
	}
	return err
}

// put tells a change or a record of the state.
func (w *watcher) put(e felix.WatchEvent) {
	w.out = append(w.out, e)
	w.idle.Reset(bookmarkEvery)
}

// bookmark tells how far the watch is, if that has changed.
func (w *watcher) bookmark() {
	moved := false
	for _, p := range w.parts {
		if next, ok := p.feed.progress(p); ok && len(p.pending) == 0 && next > p.pos.Index {
			p.pos, moved = feed.Position{Index: next}, true
		}
	}
	w.idle.Reset(bookmarkEvery)
	if moved && w.scanning == len(w.parts) {
		w.synced()
	}
}

// Close implements felix.Watcher.
func (w *watcher) Close() {
	w.once.Do(func() {
		close(w.closed)
		w.busy.Lock()
		defer w.busy.Unlock()
		w.idle.Stop()
		for _, p := range w.parts {
			p.free()
		}
		w.c.b.watches.count.Add(-1)
	})
}

// Watchers is how many watches the broker has, and SkippedChanges how many changes
// it has left out of them since they were not taken in time.
func (b *Broker) Watchers() int64 { return b.watches.count.Load() }

// SkippedChanges counts since the broker was started.
func (b *Broker) SkippedChanges() uint64 { return b.watches.budget.Skipped() }
