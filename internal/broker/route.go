package broker

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/peer"
	"github.com/felix-go/felix/internal/shard"
)

// route is where the requests to a shard go. There is one for each shard of
// every cache that this broker knows, whether it has a replica or not.
//
// It holds beliefs only: who is asked in vain says so, and only the shard itself
// decides whether it may evaluate.
type route struct {
	b      *Broker
	id     uint64
	shards atomic.Int32 // of the cache: as many share a page of a scan
	maxIDs atomic.Int64 // that the shard may have: see boundIDs
	// here is the local replica while requests go to it: it owns the shard, or
	// nobody is known to, and it is likely to hear who does. It is all that the hot
	// path looks at.
	here atomic.Pointer[replica]

	mu     sync.Mutex   // guards what follows, and changes of here
	local  *replica     // nil: none
	owner  uint64       // node that is believed to own the shard; 0 is unknown
	asks   []uint64     // other nodes to ask in turn where requests do not go to the local replica, and no owner is known
	why    *felix.Error // why requests are refused; nil: they are not
	parked []*trip
}

// trip is a request on its way to a shard's owner, where that is another broker
// or was not found at once. Whoever has it, the route of a parked one included,
// is the only one who may touch it.
type trip struct {
	route    *route
	request  *shard.Request
	call     peer.Call
	attempts int           // how often it has come back
	unknown  int           // how often in a row because nobody knew an owner
	to       uint64        // the node that had it last
	due      time.Duration // not to be sent before
}

var (
	errNoOwner = &felix.Error{Code: felix.Unavailable,
		Message:    "no owner of the key's shard was found in time; nothing was applied, try again",
		RetryAfter: 200 * time.Millisecond}
	errUnreached = &felix.Error{Code: felix.Unavailable,
		Message:    "the broker that owns the key's shard could not be reached in time; nothing was applied, try again",
		RetryAfter: 200 * time.Millisecond}
)

const (
	// firstPause is before the third attempt, and maxPause between late ones: an
	// election takes some hundred milliseconds, and is mostly heard of first.
	firstPause = 5 * time.Millisecond
	maxPause   = 50 * time.Millisecond
	// ownerPause is how long a request waits that nobody can be asked about.
	ownerPause = 20 * time.Millisecond
	// parkedPoll is how often parked requests are looked at.
	parkedPoll = 5 * time.Millisecond
)

// pause is how long a request waits that has come back attempts times.
func pause(attempts int) time.Duration {
	if attempts < 2 {
		return 0
	}
	return min(firstPause<<min(attempts-2, 8), maxPause)
}

// addRoute makes the route of a shard known, and answers it.
func (b *Broker) addRoute(id uint64, shards int) *route {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.addRouteLocked(id, shards)
}

// addRouteLocked is addRoute with mu held.
func (b *Broker) addRouteLocked(id uint64, shards int) *route {
	rt := b.routes[id]
	if rt == nil {
		rt = &route{b: b, id: id}
		b.routes[id] = rt
	}
	rt.shards.Store(int32(shards))
	return rt
}

// routeOf is the route of a shard, or nil if it is not known.
func (b *Broker) routeOf(id uint64) *route {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return b.routes[id]
}

// dropRoute refuses what goes to a shard, and forgets it.
func (b *Broker) dropRoute(rt *route, why *felix.Error) {
	b.mu.Lock()
	delete(b.routes, rt.id)
	b.mu.Unlock()
	rt.refuseAll(why)
}

// turn sets here; mu is held.
func (rt *route) turn() {
	here := rt.local
	switch {
	case rt.owner == rt.b.node && here == nil:
		rt.owner = 0 // it was, when it had a replica
	case rt.owner != 0 && rt.owner != rt.b.node:
		here = nil
	case rt.owner == 0 && here != nil && here.strays.Load():
		here = nil // others may know
	}
	rt.here.Store(here)
}

// setLocal says which replica of the shard is on this broker, nil is none, and
// answers the one before.
func (rt *route) setLocal(r *replica) (before *replica) {
	rt.mu.Lock()
	before, rt.local = rt.local, r
	rt.turn()
	rt.unlockAndGo()
	return before
}

// setAsks says which nodes have replicas, the likeliest owner first.
func (rt *route) setAsks(nodes []uint64) {
	rt.mu.Lock()
	rt.asks = slices.DeleteFunc(slices.Clone(nodes), func(node uint64) bool { return node == rt.b.node })
	rt.unlockAndGo()
}

// setOwner says who owns the shard, as Raft tells: 0 is nobody that is known.
func (rt *route) setOwner(node uint64) {
	rt.mu.Lock()
	changed := rt.owner != node
	rt.owner = node
	rt.turn()
	if !changed || node == 0 {
		rt.mu.Unlock()
		return
	}
	rt.unlockAndGo()
}

// unlockAndGo sends what is parked, for there is news.
func (rt *route) unlockAndGo() {
	trips := rt.parked
	rt.parked = nil
	rt.mu.Unlock()
	for _, t := range trips {
		t.due = 0
		rt.b.dispatch(t)
	}
}

// refuseAll refuses what is parked, and what comes.
func (rt *route) refuseAll(why *felix.Error) {
	rt.mu.Lock()
	rt.why = why
	rt.unlockAndGo()
}

// refuted notes that node, which had a request, does not own the shard; hint is
// who may, by what it says, or 0. Parked requests do not follow a hint at once:
// two brokers that point at each other must not keep them on the move.
func (rt *route) refuted(node, hint uint64) {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	if rt.owner != node && rt.owner != 0 {
		return // there was news meanwhile
	}
	if hint == 0 || hint == node || hint == rt.b.node {
		hint = 0 // whether this broker owns the shard, its own replica knows best
		if rt.local != nil {
			hint = rt.local.lead.Load()
		}
	}
	rt.owner = hint
	rt.turn()
}

// next is the node that a request goes to, and the local replica if it is this
// one; 0 is nobody. mu is held.
func (rt *route) next(attempts int) (node uint64, local *replica) {
	switch here := rt.here.Load(); {
	case here != nil:
		return rt.b.node, here
	case rt.owner != 0:
		return rt.owner, nil
	case len(rt.asks) > 0:
		return rt.asks[attempts%len(rt.asks)], nil
	}
	return 0, nil
}

// submitTo sends one request of any kind to the shard's owner.
func (b *Broker) submitTo(rt *route, r *shard.Request) {
	if replica := rt.here.Load(); replica != nil {
		b.submit(replica, r)
		return
	}
	b.dispatch(&trip{route: rt, request: r})
}

// dispatch sends a request on, or parks it, or fails it because its time is up.
func (b *Broker) dispatch(t *trip) {
	rt, now := t.route, b.mono()
	rt.mu.Lock()
	node, local := rt.next(t.attempts)
	why := rt.why
	switch {
	case why != nil:
	case t.request.Deadline <= now && node == 0:
		why = errNoOwner
	case t.request.Deadline <= now:
		why = errUnreached
	case node == 0 || t.due > now:
		if node == 0 {
			t.due = max(t.due, now+ownerPause)
		}
		rt.parked = append(rt.parked, t)
		rt.mu.Unlock()
		if !b.router.look(rt) {
			rt.refuseAll(errStopping)
		}
		return
	}
	rt.mu.Unlock()
	t.to = node
	switch {
	case why != nil:
		b.refuse(t.request, why)
	case local != nil:
		t.request.Tag = t // it may come back
		b.submit(local, t.request)
	default:
		b.forward(t)
	}
}

// again sends on a request that has come back without anything of it having been
// evaluated. hint is who may own the shard, or 0.
func (b *Broker) again(t *trip, hint uint64) {
	t.route.refuted(t.to, hint)
	t.attempts++
	t.due = b.mono() + pause(t.attempts)
	b.dispatch(t)
}

// returned takes a request that the local replica did not evaluate, since
// another one leads, at the node hint if that is known.
func (b *Broker) returned(rt *route, r *shard.Request, hint uint64) {
	if r.Kind == shard.Sweep || r.Kind == shard.LocalScan { // they are for this replica alone
		b.refuse(r, errNoOwner)
		return
	}
	switch tag := r.Tag.(type) {
	case *inbound:
		tag.disown(b, hint)
	case *trip:
		b.again(tag, hint)
	default:
		b.again(&trip{route: rt, request: r, to: b.node}, hint)
	}
}

// closedTo takes a request that came to its replica after that was closed.
func (b *Broker) closedTo(s submission) {
	if why := s.replica.why; why != nil {
		b.refuse(s.request, why)
		return
	}
	b.returned(s.replica.route, s.request, 0)
}

// router looks at parked requests from time to time.
type router struct {
	wake chan struct{} // capacity 1

	mu       sync.Mutex
	routes   map[*route]struct{} // that may have some
	stopping bool
}

func newRouter() *router {
	return &router{wake: make(chan struct{}, 1), routes: map[*route]struct{}{}}
}

// look has the router look at a route with parked requests soon, or says that it
// does not any more.
func (r *router) look(rt *route) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stopping {
		return false
	}
	r.routes[rt] = struct{}{}
	select {
	case r.wake <- struct{}{}:
	default:
	}
	return true
}

// take answers the routes to look at.
func (r *router) take(stopping bool) []*route {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stopping = stopping
	routes := make([]*route, 0, len(r.routes))
	for rt := range r.routes {
		routes = append(routes, rt)
	}
	clear(r.routes)
	return routes
}

// run is the router's goroutine. It has nothing to do where nothing is parked.
func (r *router) run(done <-chan struct{}, mono func() time.Duration) {
	timer := time.NewTimer(parkedPoll)
	defer timer.Stop()
	for {
		select {
		case <-r.wake:
		case <-done:
			for _, rt := range r.take(true) {
				rt.refuseAll(errStopping)
			}
			return
		}
		timer.Reset(parkedPoll)
		select {
		case <-timer.C:
		case <-done:
			continue
		}
		for _, rt := range r.take(false) {
			rt.goOn(mono())
		}
	}
}

// goOn sends on what has been parked for long enough.
func (rt *route) goOn(now time.Duration) {
	var due []*trip
	rt.mu.Lock()
	kept := rt.parked[:0]
	for _, t := range rt.parked {
		if t.due <= now || t.request.Deadline <= now {
			due = append(due, t)
		} else {
			kept = append(kept, t)
		}
	}
	clear(rt.parked[len(kept):])
	rt.parked = kept
	rt.mu.Unlock()
	if len(kept) > 0 {
		rt.b.router.look(rt)
	}
	for _, t := range due {
		rt.b.dispatch(t)
	}
}
