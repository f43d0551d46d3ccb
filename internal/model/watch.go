package model

import (
	"context"
	"encoding/binary"
	"slices"
	"time"

	"github.com/felix-go/felix"
)

// A cache keeps every change there ever was, so a watch is a place in that list.

// change is one change of a record, or of all of them.
type change struct {
	event   felix.WatchEvent
	view    felix.View
	cleared bool
}

// note adds a change to the list and wakes who waits. The mutex is held.
func (c *cache) note(ch change) {
	c.changes = append(c.changes, ch)
	c.wake()
}

// wake wakes all watchers. The mutex is held.
func (c *cache) wake() {
	close(c.changed)
	c.changed = make(chan struct{})
}

// noting notes what do changes in the records of the keys of ops.
func (c *cache) noting(ops []felix.Op, do func()) {
	type both struct{ counter, value rec }
	before := map[string]both{}
	var keys []string // in order
	for i := range ops {
		key := string(ops[i].Key)
		c.dropExpired(key, c.s.now())
		if _, is := before[key]; !is {
			before[key] = both{c.counters[key], c.values[key]}
			keys = append(keys, key)
		}
	}
	do()
	for _, key := range keys {
		c.noteIf(felix.ViewCounter, key, before[key].counter, c.counters[key])
		c.noteIf(felix.ViewValue, key, before[key].value, c.values[key])
	}
}

// noteIf notes what a record has become, if that is something else than it was.
func (c *cache) noteIf(view felix.View, key string, before, now rec) {
	if now.kind == before.kind && now.version == before.version {
		return
	}
	e := felix.WatchEvent{Kind: felix.WatchDelete, Key: []byte(key)}
	if now.kind != felix.NoRecord {
		e = put(key, now)
	}
	c.note(change{event: e, view: view})
}

func put(key string, r rec) felix.WatchEvent {
	return felix.WatchEvent{Kind: felix.WatchPut, Key: []byte(key), Int: r.sum, Value: slices.Clone(r.bytes),
		ExpiresAtMillis: r.expiry, Version: r.version}
}

// sweep drops what has expired. The mutex is held.
func (c *cache) sweep() {
	now := c.s.now()
	var gone []string
	for _, records := range []map[string]rec{c.counters, c.values} {
		for key, r := range records {
			if r.expiry != 0 && r.expiry <= now {
				gone = append(gone, key)
			}
		}
	}
	slices.Sort(gone)
	for _, key := range gone {
		c.dropExpired(key, now)
	}
}

// lookEvery is how often who waits looks whether something has expired.
const lookEvery = 10 * time.Millisecond

// watcher implements felix.Watcher.
type watcher struct {
	c      *cache
	req    felix.WatchRequest
	out    []felix.WatchEvent
	at     int // of c.changes: the next one to look at
	closed bool
}

// Watch implements felix.Cache. A token is the number of changes, after the cache's
// creation in this service.
func (c *cache) Watch(_ context.Context, req felix.WatchRequest) (felix.Watcher, error) {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	if c.deleted {
		return nil, notFound(c.scope)
	}
	if err := req.Validate(); err != nil {
		return nil, err
	}
	w := &watcher{c: c, req: req, at: len(c.changes)}
	if req.Resume == nil {
		w.begin(req.Initial)
		return w, nil
	}
	if len(req.Resume) != 16 {
		return nil, felix.Errorf(felix.InvalidArgument, "the token to resume from is none")
	}
	made, at := binary.BigEndian.Uint64(req.Resume), binary.BigEndian.Uint64(req.Resume[8:])
	if made != c.number || at > uint64(len(c.changes)) || slices.ContainsFunc(c.changes[at:], func(ch change) bool { return ch.cleared }) {
		w.reset()
		return w, nil
	}
	w.at = int(at)
	w.begin(false)
	return w, nil
}

// beginToken is of no cache: those are counted from 1.
var beginToken = make([]byte, 16)

// begin tells the state, if it is to, and that changes follow.
func (w *watcher) begin(state bool) {
	if state {
		w.c.sweep()
		for _, key := range w.c.keys() {
			if r := w.c.see(w.req.View, key); r.kind != felix.NoRecord && w.req.Wants([]byte(key)) {
				e := put(key, r)
				e.Token = beginToken
				w.out = append(w.out, e)
			}
		}
		w.at = len(w.c.changes)
	}
	w.out = append(w.out, felix.WatchEvent{Kind: felix.WatchSynced, Token: w.token()})
}

func (w *watcher) reset() {
	w.out = []felix.WatchEvent{{Kind: felix.WatchReset, Token: beginToken}}
	w.begin(true)
}

func (w *watcher) token() []byte {
	return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, w.c.number), uint64(w.at))
}

// Next implements felix.Watcher.
func (w *watcher) Next(ctx context.Context) (felix.WatchEvent, error) {
	for {
		w.c.s.mu.Lock()
		e, err := w.look()
		changed := w.c.changed
		w.c.s.mu.Unlock()
		if err != nil || e.Kind != 0 {
			return e, err
		}
		select {
		case <-changed:
		case <-time.After(lookEvery):
		case <-ctx.Done():
			return felix.WatchEvent{}, felix.Errorf(felix.Unavailable, "nothing has changed: %v", context.Cause(ctx))
		}
	}
}

// look is the next event, of kind 0 if there is none yet. The mutex is held.
func (w *watcher) look() (felix.WatchEvent, error) {
	if w.closed {
		return felix.WatchEvent{}, felix.Errorf(felix.Unavailable, "the watch was closed")
	}
	if w.c.deleted {
		return felix.WatchEvent{}, notFound(w.c.scope)
	}
	w.c.sweep()
	for len(w.out) == 0 && w.at < len(w.c.changes) {
		ch := w.c.changes[w.at]
		w.at++
		switch {
		case ch.cleared:
			w.reset()
		case ch.view == w.req.View && w.req.Wants(ch.event.Key):
			ch.event.Token = w.token()
			w.out = append(w.out, ch.event)
		}
	}
	if len(w.out) == 0 {
		return felix.WatchEvent{}, nil
	}
	e := w.out[0]
	w.out = w.out[1:]
	return e, nil
}

// Close implements felix.Watcher.
func (w *watcher) Close() {
	w.c.s.mu.Lock()
	defer w.c.s.mu.Unlock()
	w.closed = true
	w.c.wake()
}
