package broker

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/record"
	"github.com/felix-go/felix/internal/shard"
	"github.com/felix-go/felix/internal/slots"
)

// cache implements felix.Cache: it splits batches by shard.
type cache struct {
	b      *Broker
	scope  felix.Scope
	shards []*route // by shard number
	gone   atomic.Bool
	// meta is the newest record that this broker knows of the cache; nil of the
	// metadata itself. Broker.mu guards it.
	meta *cacheMeta
}

var (
	errCacheGone = felix.Errorf(felix.CacheNotFound, "the cache was deleted")
	errStopping  = &felix.Error{Code: felix.Unavailable, Message: "the broker is stopping; nothing was applied, try another one",
		RetryAfter: time.Second}
	errTooMuch = &felix.Error{Code: felix.ResourceExhausted,
		Message:    "the broker has as many operations in flight as it allows; nothing was applied, try again a little later",
		RetryAfter: 100 * time.Millisecond}
)

// Scope implements felix.Cache.
func (c *cache) Scope() felix.Scope { return c.scope }

// split is the scratch space of one Submit.
type split struct {
	byShard  []*shard.Request
	touched  []int
	here     []*replica // of touched: where the request goes, nil is elsewhere
	rejected []int32    // operations, told when the others have been sent
	part     []int32
}

var splits = sync.Pool{New: func() any { return new(split) }}

var requests = sync.Pool{New: func() any { return new(shard.Request) }}

// opOverheadBytes is what an operation costs in memory beyond its key and value.
const opOverheadBytes = 256

// Submit implements felix.Cache.
func (c *cache) Submit(batch *felix.Batch) {
	s := splits.Get().(*split)
	if len(s.byShard) < len(c.shards) {
		s.byShard = make([]*shard.Request, len(c.shards))
	}
	total, groups := int64(0), batch.Groups
	for i := 0; i < len(batch.Ops); i++ {
		if len(groups) > 0 && int(groups[0].From) == i {
			g := &groups[0]
			groups = groups[1:]
			if c.refuseGroup(batch, g) {
				for ; i < int(g.To); i++ {
					s.rejected = append(s.rejected, int32(i))
				}
				i-- // of the loop
				continue
			}
		}
		op := &batch.Ops[i]
		if err := c.b.validate(op); err != nil {
			batch.Replies[i] = felix.Reply{Err: err}
			s.rejected = append(s.rejected, int32(i))
			continue
		}
		n := slots.Shard(slots.Slot(op.Key), len(c.shards))
		r := s.byShard[n]
		if r == nil {
			r = requests.Get().(*shard.Request)
			*r = shard.Request{Kind: shard.Ops, Batch: batch, Positions: r.Positions[:0]}
			s.byShard[n] = r
			s.touched = append(s.touched, n)
		}
		r.Positions = append(r.Positions, int32(i))
		r.Bytes += opBytes(op)
		total += opBytes(op)
	}
	if held := c.holdsWrites(); held || c.admit(total, c.b.opts.InflightBytes) != nil {
		c.admitParts(s, batch, held)
	}
	c.send(s, batch)
	if len(s.rejected) > 0 {
		batch.Done.OpsDone(batch, s.rejected)
	}
	s.rejected, s.touched = s.rejected[:0], s.touched[:0]
	splits.Put(s)
}

func opBytes(op *felix.Op) int64 { return int64(len(op.Key) + len(op.Value) + opOverheadBytes) }

// holdsWrites says that operations that may write will have to wait. The
// metadata's never do: a cache can always be deleted.
func (c *cache) holdsWrites() bool {
	writes, _ := c.b.checkpoint.pressure.full()
	return writes && c != c.b.meta
}

// admit takes room in the broker's budget for operations in flight, up to bound.
func (c *cache) admit(bytes, bound int64) *felix.Error {
	if c.gone.Load() {
		return errCacheGone
	}
	return c.b.reserve(bytes, bound)
}

// reserve takes room in the budget for operations in flight, up to bound.
func (b *Broker) reserve(bytes, bound int64) *felix.Error {
	for {
		used := b.inflight.Load()
		if bytes > 0 && used+bytes > bound {
			return errTooMuch
		}
		if b.inflight.CompareAndSwap(used, used+bytes) {
			return nil
		}
	}
}

// admitParts admits those parts of a batch for which there is room, where there
// is none for the whole, and rejects the others. While writes are held, those
// that wait get half of the room, so that reads go on.
func (c *cache) admitParts(s *split, batch *felix.Batch, held bool) {
	illegal := s.rejected
	ends := batch.Ends
	if len(ends) == 0 {
		ends = []int32{int32(len(batch.Ops))}
	}
	from := int32(0)
	for _, to := range ends {
		s.part = s.part[:0]
		bytes, bound := int64(0), c.b.opts.InflightBytes
		for i := from; i < to; i++ {
			if _, is := slices.BinarySearch(illegal, i); !is {
				s.part = append(s.part, i)
				bytes += opBytes(&batch.Ops[i])
				if held && batch.Ops[i].Mutates() {
					bound = c.b.opts.InflightBytes / 2
				}
			}
		}
		if err := c.admit(bytes, bound); err != nil {
			for _, i := range s.part {
				batch.Replies[i] = felix.Reply{Err: err}
			}
			s.rejected = append(s.rejected, s.part...)
		}
		from = to
	}
	s.remove(batch, s.rejected[len(illegal):])
}

// remove takes operations, given in order, out of the requests.
func (s *split) remove(batch *felix.Batch, ops []int32) {
	touched := s.touched[:0]
	for _, n := range s.touched {
		r := s.byShard[n]
		kept := r.Positions[:0]
		for _, p := range r.Positions {
			if _, is := slices.BinarySearch(ops, p); is {
				r.Bytes -= opBytes(&batch.Ops[p])
			} else {
				kept = append(kept, p)
			}
		}
		if r.Positions = kept; len(kept) > 0 {
			touched = append(touched, n)
			continue
		}
		s.byShard[n] = nil
		r.Batch = nil
		requests.Put(r)
	}
	s.touched = touched
}

// send hands the requests to the workers, one wake-up each, and those that
// another broker owns to the router.
func (c *cache) send(s *split, batch *felix.Batch) {
	if len(s.touched) == 0 {
		return
	}
	deadline := c.b.mono() + c.b.opts.RequestTimeout
	if !batch.Deadline.IsZero() {
		deadline = c.b.monoAt(batch.Deadline)
	}
	if len(s.touched) > 1 {
		p := batchParts.Get().(*parts)
		p.left.Store(int32(len(s.touched)))
		for _, n := range s.touched {
			s.byShard[n].Parts = p
		}
	}
	local := 0
	for _, n := range s.touched {
		s.byShard[n].Deadline = deadline
		here := c.shards[n].here.Load()
		s.here = append(s.here, here)
		if here != nil {
			local++
		}
	}
	c.b.pacer.queued.Add(int64(local))
	for _, w := range c.b.workers {
		sent := false
		w.mu.Lock()
		for i, n := range s.touched {
			if here := s.here[i]; here != nil && here.worker == w && !w.stopping {
				w.inbox.requests = append(w.inbox.requests, submission{here, s.byShard[n]})
				s.byShard[n] = nil
				sent = true
			}
		}
		w.mu.Unlock()
		if sent {
			w.signal()
		}
	}
	for i, n := range s.touched {
		r := s.byShard[n]
		s.byShard[n] = nil
		switch {
		case r == nil:
		case s.here[i] != nil: // its worker is stopping
			c.b.pacer.queued.Add(-1)
			c.b.refuse(r, errStopping)
		default:
			c.b.dispatch(&trip{route: c.shards[n], request: r})
		}
	}
	clear(s.here)
	s.here = s.here[:0]
}

// finish tells of a request that its shard has finished.
func (b *Broker) finish(r *shard.Request) {
	if in, is := r.Tag.(*inbound); is {
		in.settle()
		in.answer(b)
		return
	}
	switch r.Kind {
	case shard.Ops:
		b.freeRoom(r)
		r.Batch.Done.OpsDone(r.Batch, r.Positions)
		r.Batch = nil
		requests.Put(r)
	case shard.Scan, shard.LocalScan:
		close(r.Finished)
		b.letGo(r)
	default:
		close(r.Finished)
	}
}

// broadcast submits a request of one kind to every shard.
func (c *cache) broadcast(ctx context.Context, make func() *shard.Request) ([]*shard.Request, error) {
	if c.gone.Load() {
		return nil, errCacheGone
	}
	deadline := c.b.deadline(ctx)
	all := []*shard.Request{}
	for _, rt := range c.shards {
		r := make()
		r.Deadline, r.Finished = deadline, newFinished()
		all = append(all, r)
		c.b.submitTo(rt, r)
	}
	return all, nil
}

// await waits for a request of broadcast. What becomes of one whose caller is
// gone is not known.
func await(ctx context.Context, r *shard.Request) error {
	select {
	case <-r.Finished:
		if r.Err != nil {
			return r.Err
		}
		return nil
	case <-ctx.Done():
		code := felix.Unavailable
		if r.Kind == shard.Clear {
			code = felix.OutcomeUnknown
		}
		return felix.Errorf(code, "the request ended before its answer came: %v", context.Cause(ctx))
	}
}

func newFinished() chan struct{} { return make(chan struct{}) }

// submit queues one request of any kind.
func (b *Broker) submit(replica *replica, r *shard.Request) {
	if !replica.worker.take(submission{replica, r}) {
		b.refuse(r, errStopping)
	}
}

// refuse finishes a request of which nothing was evaluated.
func (b *Broker) refuse(r *shard.Request, err *felix.Error) {
	r.Err = err
	if r.Kind == shard.Ops || r.Kind == shard.Sweep {
		for _, p := range r.Positions {
			r.Batch.Replies[p] = felix.Reply{Err: err}
		}
	}
	b.finish(r)
}

// Count implements felix.Cache.
func (c *cache) Count(ctx context.Context) (felix.RecordCount, error) {
	all, err := c.broadcast(ctx, countRequest)
	if err != nil {
		return felix.RecordCount{}, err
	}
	return sumOf(ctx, all)
}

func countRequest() *shard.Request { return &shard.Request{Kind: shard.Count} }

// sumOf waits for the counts that all shards of a cache were asked for.
func sumOf(ctx context.Context, all []*shard.Request) (felix.RecordCount, error) {
	var sum record.Counts
	for _, r := range all {
		if err := await(ctx, r); err != nil {
			return felix.RecordCount{}, err
		}
		sum.Add(r.Counts)
	}
	return felix.RecordCount{Counters: sum.Counters, Values: sum.Values, Keys: sum.Keys}, nil
}

// Clear implements felix.Cache.
func (c *cache) Clear(ctx context.Context) error {
	all, err := c.broadcast(ctx, func() *shard.Request { return &shard.Request{Kind: shard.Clear} })
	if err != nil {
		return err
	}
	outcomes := make([]error, len(all))
	for i, r := range all {
		outcomes[i] = await(ctx, r)
	}
	return clearOutcome(outcomes)
}

// clearOutcome is what came of clearing a cache whose shards answered so. It was
// not applied only if none of them has, or perhaps has, been cleared.
func clearOutcome(shards []error) error {
	var refused, unknown error
	cleared := false
	for _, err := range shards {
		switch {
		case err == nil:
			cleared = true
		case felix.AsError(err).MayBeApplied():
			unknown = err
		case refused == nil:
			refused = err
		}
	}
	switch {
	case unknown != nil:
		return unknown
	case cleared && refused != nil:
		return felix.Errorf(felix.OutcomeUnknown, "a part of the cache was cleared, another was not: %v", refused)
	}
	return refused
}
