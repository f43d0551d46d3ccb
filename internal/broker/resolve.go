package broker

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/felix-go/felix/internal/peer"
	"github.com/felix-go/felix/internal/placement"
	"github.com/felix-go/felix/internal/shard"
)

// resolver finds out what has become of shards that nobody seems to know: their
// cache may be gone, or their replicas elsewhere than this broker believes. It
// reads the metadata once for all that are asked about at the time.
type resolver struct {
	wake chan struct{} // capacity 1

	mu     sync.Mutex
	routes map[*route]struct{}
}

const (
	// resolveAfter is how often in a row nobody knows an owner before the metadata
	// is asked. Once may be an election.
	resolveAfter = 2
	// resolvePause is between two readings of the metadata, resolveTimeout how long
	// one may take.
	resolvePause   = 100 * time.Millisecond
	resolveTimeout = 2 * time.Second
)

func newResolver() *resolver {
	return &resolver{wake: make(chan struct{}, 1), routes: map[*route]struct{}{}}
}

// missed notes that a call of the trip has come back unanswered.
func (b *Broker) missed(t *trip) {
	if t.call.Outcome != peer.NotOwner || t.call.Owner != 0 {
		t.unknown = 0
		return
	}
	if t.unknown++; t.unknown < resolveAfter || t.route.id == metaShard {
		return
	}
	t.unknown = 0
	s := b.resolver
	s.mu.Lock()
	s.routes[t.route] = struct{}{}
	s.mu.Unlock()
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// resolve is the resolver's goroutine.
func (b *Broker) resolve(ctx context.Context) {
	s := b.resolver
	pause := time.NewTimer(0)
	defer pause.Stop()
	for {
		select {
		case <-s.wake:
		case <-ctx.Done():
			return
		}
		select {
		case <-pause.C:
		case <-ctx.Done():
			return
		}
		s.mu.Lock()
		routes := s.routes
		s.routes = map[*route]struct{}{}
		s.mu.Unlock()
		b.resolveNow(ctx, routes)
		pause.Reset(resolvePause)
	}
}

// resolveNow refuses what goes to shards that are no more, and says where the
// others are. If the metadata cannot be read, requests go on looking for an owner
// until their time is up.
func (b *Broker) resolveNow(ctx context.Context, routes map[*route]struct{}) {
	reading, cancel := context.WithTimeout(ctx, resolveTimeout)
	defer cancel()
	v, err := b.confirmedView(reading)
	if err != nil {
		b.opts.Logger.Debug("the metadata cannot be read", "err", err)
		return
	}
	where := v.placements()
	for rt := range routes {
		if p := where[rt.id]; p != nil {
			rt.setAsks(asksOf(p))
		} else {
			rt.refuseAll(errCacheGone)
		}
	}
	b.poke()
}

// asksOf are the nodes that may own a shard, the likeliest one first.
func asksOf(p *placement.Shard) []uint64 {
	var nodes []uint64
	for i := range p.Replicas {
		if r := &p.Replicas[i]; r.Want != placement.Gone || r.Have != placement.None {
			nodes = append(nodes, r.Node)
		}
	}
	if i := slices.Index(nodes, p.Prefer); i > 0 {
		nodes[0], nodes[i] = nodes[i], nodes[0]
	}
	return nodes
}

// barrier answers an index of the metadata's log: all that was acknowledged before
// the call is at or below it. It works on every broker.
func (b *Broker) barrier(ctx context.Context) (index uint64, err error) {
	rt := b.routeOf(metaShard)
	if rt == nil {
		return 0, errNoOwner
	}
	r := &shard.Request{Kind: shard.Barrier, Deadline: b.deadline(ctx), Finished: newFinished()}
	b.submitTo(rt, r)
	if err := await(ctx, r); err != nil {
		return 0, err
	}
	return r.Index, nil
}

// deadline is when a request of ctx stops to wait.
func (b *Broker) deadline(ctx context.Context) time.Duration {
	if t, ok := ctx.Deadline(); ok {
		return b.monoAt(t)
	}
	return b.mono() + b.opts.RequestTimeout
}

// replicaOf is this broker's replica of a shard, or nil.
func (b *Broker) replicaOf(id uint64) *replica {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return b.replicas[id]
}
