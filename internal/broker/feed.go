package broker

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/feed"
)

// shardFeed tells those who watch a shard what this broker's replica of it has
// applied. It reads that from the replica's log, on a goroutine of its own: the
// worker only says how far it is, and nothing at all for a shard that nobody
// watches. Each entry is decoded once, however many watch.
type shardFeed struct {
	b       *Broker
	r       *replica
	applied watermark     // raised by the worker
	wake    chan struct{} // capacity 1
	closed  chan struct{}
	users   atomic.Int32 // parts of watches that hold it; only the worker makes it grow
	heard   atomic.Bool  // whether there are listeners

	life sync.Mutex // guards ended, and what begins only while it is not
	// ended is why the feed has ended, nil: it has not.
	ended *felix.Error

	mu        sync.Mutex
	next      uint64 // the first entry that listeners have not been told of
	listeners int
	exact     [2]map[string]map[*watchPart]struct{} // by view and key
	prefixes  [2]map[*watchPart]struct{}            // by view
}

var (
	errNoFeed = &felix.Error{Code: felix.Unavailable,
		Message:    "this broker has no replica of the shard, so it cannot tell what changes in it: watch at a broker that has one",
		RetryAfter: 200 * time.Millisecond}
	errFeedEnded = &felix.Error{Code: felix.Unavailable,
		Message: "this broker's replica of the shard has gone: resume the watch at another broker", RetryAfter: 100 * time.Millisecond}
	errFeedBehind = &felix.Error{Code: felix.Unavailable,
		Message:    "this broker's replica of the shard is behind its owner: watch at another broker, or try again",
		RetryAfter: 200 * time.Millisecond}
	errFeedStrays = &felix.Error{Code: felix.Unavailable,
		Message:    "this broker's replica of the shard does not hear from its owner: resume the watch at another broker",
		RetryAfter: 200 * time.Millisecond}
)

const (
	// feedPoll is how often a feed looks whether it is needed, and hears news.
	feedPoll = time.Second
	// feedReadBytes is about how much of the log is read at a time.
	feedReadBytes = 1 << 20
)

// feedOf is the feed of the broker's replica of a shard, one more user of which
// the caller then is. The error is unavailable.
func (b *Broker) feedOf(rt *route) (*shardFeed, *felix.Error) {
	rt.mu.Lock()
	r := rt.local
	rt.mu.Unlock()
	if r == nil {
		return nil, errNoFeed
	}
	var f *shardFeed
	done := r.worker.callWait(func() {
		if r.closed {
			return
		}
		if r.feed == nil {
			r.feed = b.newFeed(r)
		}
		f = r.feed
		f.users.Add(1)
	})
	if !done || f == nil {
		return nil, errNoFeed
	}
	return f, nil
}

// newFeed makes the feed of a replica, on its worker.
func (b *Broker) newFeed(r *replica) *shardFeed {
	f := &shardFeed{b: b, r: r, wake: make(chan struct{}, 1), closed: make(chan struct{})}
	for view := range f.exact {
		f.exact[view], f.prefixes[view] = map[string]map[*watchPart]struct{}{}, map[*watchPart]struct{}{}
	}
	f.applied.raise(r.shard.Table().Applied().Index)
	b.readers.Add(1)
	go f.run()
	return f
}

// feedApplied tells the feed of a replica how far it has come. It runs on the
// worker.
func (w *worker) feedApplied(r *replica) {
	f := r.feed
	if f == nil {
		return
	}
	f.applied.raise(r.shard.Table().Applied().Index)
	if f.heard.Load() {
		f.signal()
	}
}

func (f *shardFeed) signal() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// end ends the feed; those who listen are told why.
func (f *shardFeed) end(why *felix.Error) {
	f.life.Lock()
	defer f.life.Unlock()
	if f.ended == nil {
		f.ended = why
		close(f.closed)
	}
}

// why is why the feed has ended, or nil.
func (f *shardFeed) why() *felix.Error {
	f.life.Lock()
	defer f.life.Unlock()
	return f.ended
}

// run is the feed's goroutine.
func (f *shardFeed) run() {
	defer f.b.readers.Done()
	defer f.signalAll()
	ticker := time.NewTicker(feedPoll)
	defer ticker.Stop()
	quiet := time.Duration(0) // for so long nobody has used it
	for {
		select {
		case <-f.closed:
			return
		case <-f.wake:
			f.tell()
		case <-ticker.C:
			if quiet += feedPoll; f.users.Load() > 0 {
				quiet = 0
			}
			switch {
			case f.r.strays.Load():
				f.retire(errFeedStrays, true)
			case quiet > felix.WatchRetention:
				f.retire(errFeedEnded, false)
			}
		}
	}
}

// retire ends the feed; a new one is made for who comes next. If that is not for
// a reason that users have to hear of, one who has just come keeps it.
func (f *shardFeed) retire(why *felix.Error, always bool) {
	f.r.worker.call(func() {
		if f.r.feed == f && (always || f.users.Load() == 0) {
			f.r.feed = nil
			f.end(why)
		}
	})
}

// signalAll wakes all who listen.
func (f *shardFeed) signalAll() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for view := range f.exact {
		for p := range f.prefixes[view] {
			p.w.signal()
		}
		for _, parts := range f.exact[view] {
			for p := range parts {
				p.w.signal()
			}
		}
	}
}

// tell tells the listeners of what was applied since.
func (f *shardFeed) tell() {
	for {
		f.mu.Lock()
		again := f.tellSome()
		f.mu.Unlock()
		if !again {
			return
		}
	}
}

// tellSome tells of about feedReadBytes, and says whether there is more. mu is
// held.
func (f *shardFeed) tellSome() (again bool) {
	applied := f.applied.load()
	if f.listeners == 0 || f.next > applied {
		return false
	}
	entries, err := f.entries(f.next, applied)
	if err != nil {
		// They read on by themselves, and find out what they have lost.
		f.dismiss()
		return false
	}
	for _, e := range entries {
		if e.GetType() == raftpb.EntryNormal {
			err := feed.Read(e.GetIndex(), e.GetData(), f.wanted, f.push)
			f.b.checkEntry(f.r.id, e, err)
		}
		f.next = e.GetIndex() + 1
	}
	return true
}

// checkEntry ends the process if an entry that was applied cannot be read.
func (b *Broker) checkEntry(shard uint64, e *raftpb.Entry, err error) {
	if err != nil {
		b.opts.Fatal(fmt.Errorf("shard %d: entry %d cannot be told to watchers: %w", shard, e.GetIndex(), err))
	}
}

// errLostLog is that entries are not in the log any more.
var errLostLog = errors.New("the entries are not in the log any more")

// entries reads from the log, from an index to one that is applied, as many as
// are read at a time. The error is errLostLog, or why the feed has ended.
func (f *shardFeed) entries(from, to uint64) ([]*raftpb.Entry, error) {
	f.life.Lock()
	if f.ended != nil {
		f.life.Unlock()
		return nil, f.ended
	}
	f.b.readers.Add(1) // the log stays open until it is done
	f.life.Unlock()
	defer f.b.readers.Done()
	entries, err := f.r.log.Entries(from, to+1, feedReadBytes)
	switch {
	case errors.Is(err, raft.ErrCompacted), errors.Is(err, raft.ErrUnavailable):
		return nil, errLostLog // truncated, or a snapshot takes its place
	case err != nil:
		return nil, errFeedEnded // Fatal has been told
	}
	return entries, nil
}

// wanted says whether anybody listens for a key. mu is held.
func (f *shardFeed) wanted(view felix.View, key []byte) bool {
	if len(f.exact[view][string(key)]) > 0 {
		return true
	}
	for p := range f.prefixes[view] {
		if bytes.HasPrefix(key, p.w.req.Prefix) {
			return true
		}
	}
	return false
}

// push gives a change to all who listen for it. mu is held.
func (f *shardFeed) push(c *feed.Change) {
	if c.Clear {
		for view := range f.exact {
			f.pushTo(f.prefixes[view], c)
			for _, parts := range f.exact[view] {
				f.pushTo(parts, c)
			}
		}
		return
	}
	f.pushTo(f.exact[c.View][string(c.Event.Key)], c)
	f.pushTo(f.prefixes[c.View], c)
}

func (f *shardFeed) pushTo(parts map[*watchPart]struct{}, c *feed.Change) {
	for p := range parts {
		if c.Index < p.from || !c.Clear && !p.w.req.Wants(c.Event.Key) {
			continue
		}
		if !p.queue.Push(c) {
			f.forget(p)
		}
		p.w.signal()
	}
}

// join makes a part listen that was told everything before the entry at from, if
// the listeners have been told no more.
func (f *shardFeed) join(p *watchPart, from uint64) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.listeners == 0:
		f.next = from
	case from < f.next:
		return false
	}
	if p.w.req.Key == nil {
		f.prefixes[p.w.req.View][p] = struct{}{}
	} else {
		exact, key := f.exact[p.w.req.View], string(p.w.req.Key)
		if exact[key] == nil {
			exact[key] = map[*watchPart]struct{}{}
		}
		exact[key][p] = struct{}{}
	}
	p.from, p.joined = from, true
	f.listeners++
	f.heard.Store(true)
	f.signal() // more may have been applied meanwhile
	return true
}

// leave undoes join.
func (f *shardFeed) leave(p *watchPart) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.forget(p)
}

// forget is leave with mu held.
func (f *shardFeed) forget(p *watchPart) {
	if !p.joined {
		return
	}
	p.joined = false
	f.listeners--
	f.heard.Store(f.listeners > 0)
	if p.w.req.Key == nil {
		delete(f.prefixes[p.w.req.View], p)
		return
	}
	exact, key := f.exact[p.w.req.View], string(p.w.req.Key)
	if delete(exact[key], p); len(exact[key]) == 0 {
		delete(exact, key)
	}
}

// dismiss makes nobody listen. mu is held.
func (f *shardFeed) dismiss() {
	for view := range f.exact {
		all := maps.Clone(f.prefixes[view])
		for _, parts := range f.exact[view] {
			maps.Copy(all, parts)
		}
		for p := range all {
			p.queue.Drop()
			f.forget(p)
			p.w.signal()
		}
	}
}

// progress is how far a part has been told that listens and whose queue is empty:
// all of the entries before next. It says false otherwise.
func (f *shardFeed) progress(p *watchPart) (next uint64, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !p.joined || p.queue.Len() > 0 {
		return 0, false
	}
	return max(f.next, p.from), true
}

// listening says whether the part still listens.
func (f *shardFeed) listening(p *watchPart) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return p.joined
}

// retain is the index up to which a log may go, of which otherwise all up to to
// would: the rest is kept for who watches.
func retain(log logSizes, to uint64, bytes int64) uint64 {
	first, err := log.FirstIndex()
	if err != nil || first > to {
		return to
	}
	above := log.SizeAbove(to)
	low, high := first-1, to // all above high is little enough
	for low < high {
		middle := low + (high-low)/2
		if log.SizeAbove(middle)-above <= bytes {
			high = middle
		} else {
			low = middle + 1
		}
	}
	return high
}
