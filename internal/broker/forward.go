package broker

import (
	"context"
	"time"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/invariant"
	"github.com/felix-go/felix/internal/peer"
	"github.com/felix-go/felix/internal/peer/peerv1"
	"github.com/felix-go/felix/internal/record"
	"github.com/felix-go/felix/internal/shard"
)

// network is what the broker's data path needs of a peer.Network. Its clock is
// Broker.mono.
type network interface {
	// Forward sends a call; see peer.Network.
	Forward(node uint64, c *peer.Call)
	// SendRaft sends messages; see peer.Network. It keeps no reference to ms.
	SendRaft(node uint64, ms []peer.Message)
	// Links tells of the links to all other nodes.
	Links() []peer.LinkInfo
	// Status asks a node about its shards.
	Status(ctx context.Context, node uint64) (*peerv1.StatusResponse, error)
	// SendSnapshot sends a snapshot; see peer.Network.
	SendSnapshot(ctx context.Context, node uint64, h peer.SnapshotHeader, next func(buf []byte) (chunk []byte, err error)) error
	// AwaitMeta waits until a node has acted on the metadata up to index.
	AwaitMeta(ctx context.Context, node, index uint64) error
	// Compare asks a node by what its replicas of the same shards are compared.
	Compare(ctx context.Context, node uint64, replicas []*peerv1.ReplicaHashes) ([]*peerv1.ReplicaHashes, error)
}

// noPeers is the network of a broker that is alone.
type noPeers struct{}

func (noPeers) Forward(_ uint64, c *peer.Call) {
	c.Outcome = peer.NotSent
	c.Done(c)
}

func (noPeers) SendRaft(uint64, []peer.Message) {}

func (noPeers) Links() []peer.LinkInfo { return nil }

func (noPeers) Status(context.Context, uint64) (*peerv1.StatusResponse, error) {
	return nil, felix.Errorf(felix.Unavailable, "this broker is alone")
}

func (noPeers) SendSnapshot(_ context.Context, node uint64, _ peer.SnapshotHeader, _ func([]byte) ([]byte, error)) error {
	return felix.Errorf(felix.Unavailable, "node %d is no peer", node)
}

func (noPeers) AwaitMeta(context.Context, uint64, uint64) error { return errUnreached }

func (noPeers) Compare(context.Context, uint64, []*peerv1.ReplicaHashes) ([]*peerv1.ReplicaHashes, error) {
	return nil, errUnreached
}

var (
	errUnheard = &felix.Error{Code: felix.OutcomeUnknown,
		Message: "the broker that owns the key's shard did not answer: the operation may or may not be applied"}
	errUnread = &felix.Error{Code: felix.Unavailable,
		Message:    "the broker that owns the key's shard did not answer in time; nothing was applied, try again",
		RetryAfter: 200 * time.Millisecond}
)

// callKinds are the kinds of requests that go to other brokers.
var callKinds = map[shard.RequestKind]peer.CallKind{
	shard.Ops: peer.CallOps, shard.Scan: peer.CallScan, shard.Count: peer.CallCount,
	shard.Clear: peer.CallClear, shard.Barrier: peer.CallBarrier,
}

// forward sends a request to another broker.
func (b *Broker) forward(t *trip) {
	r := t.request
	kind, is := callKinds[r.Kind]
	invariant.Check(is, "a request of kind %d is for this broker's replica alone", r.Kind)
	t.call = peer.Call{Kind: kind, Shard: t.route.id, Batch: r.Batch, Positions: r.Positions, Scan: r.Scan,
		Deadline: r.Deadline, Done: callDone, User: t}
	b.traffic.forwarded.Add(1)
	b.net.Forward(t.to, &t.call)
}

// callDone takes a call back. What was provably not evaluated goes elsewhere, and
// what changes nothing is asked again. Nothing else is ever sent twice.
func callDone(c *peer.Call) {
	t := c.User.(*trip)
	b, r := t.route.b, t.request
	switch {
	case c.Outcome == peer.Answered:
		b.answered(t)
	case c.Outcome == peer.Lost && mutates(r):
		b.traffic.lost.Add(1)
		b.lost(r)
	case c.Outcome == peer.Lost && r.Deadline <= b.mono():
		b.refuse(r, errUnread)
	default:
		b.traffic.returned.Add(1)
		b.missed(t)
		b.again(t, c.Owner)
	}
}

// mutates says whether a request may change anything.
func mutates(r *shard.Request) bool {
	if r.Kind == shard.Ops {
		for _, p := range r.Positions {
			if r.Batch.Ops[p].Mutates() {
				return true
			}
		}
	}
	return r.Kind == shard.Clear
}

// lost finishes a request that changes something and was sent, but not answered.
func (b *Broker) lost(r *shard.Request) {
	r.Err = errUnheard
	for _, p := range r.Positions {
		err := errUnread
		if r.Batch.Ops[p].Mutates() {
			err = errUnheard
		}
		r.Batch.Replies[p] = felix.Reply{Err: err}
	}
	b.finish(r)
}

// answered finishes a request that another broker has answered.
func (b *Broker) answered(t *trip) {
	r, c := t.request, &t.call
	if c.Err != nil {
		b.refuse(r, c.Err)
		return
	}
	r.ShardID, r.NowMillis = t.route.id, c.NowMillis
	switch r.Kind {
	case shard.Ops:
		b.holdReplies(r)
	case shard.Scan:
		r.Scanned, r.NowMillis = c.Page, c.Page.NowMillis
		b.holdPage(r)
	case shard.Count:
		r.Counts = record.Counts{Counters: c.Count.Counters, Values: c.Count.Values, Keys: c.Count.Keys}
	case shard.Barrier:
		r.Index = c.Index
	}
	b.finish(r)
}

// smallValue is what the overhead of an operation covers of the value of its
// reply.
const smallValue = 256

// holdReplies counts the values that have come as in flight, whether there is
// room or not: they are here, and what was applied cannot be refused any more.
func (b *Broker) holdReplies(r *shard.Request) {
	bytes := int64(0)
	for _, p := range r.Positions {
		if n := len(r.Batch.Replies[p].Value); n > smallValue {
			bytes += int64(n)
		}
	}
	if bytes > 0 {
		b.inflight.Add(bytes)
		r.Bytes += bytes
	}
}

// inbound is a request that came from another broker.
type inbound struct {
	from    answerer
	call    *peer.Call
	request shard.Request
}

// answerer is a peer.Link.
type answerer interface {
	Answer(calls ...*peer.Call)
}

// takeCalls gives calls of another broker to the shards. The broker that sent
// them has looked at them, but is trusted with no invariant.
func (b *Broker) takeCalls(from answerer, calls []*peer.Call) {
	byWorker := make([][]submission, len(b.workers))
	for _, c := range calls {
		rt, local := b.routeOf(c.Shard), (*replica)(nil)
		if rt != nil {
			rt.mu.Lock()
			local, c.Owner = rt.local, rt.owner
			rt.mu.Unlock()
		}
		if local == nil {
			c.Outcome = peer.NotOwner
			from.Answer(c)
			continue
		}
		in := &inbound{from: from, call: c}
		in.fill(rt)
		if err := b.admitCall(in); err != nil {
			c.Outcome, c.Err = peer.Answered, err
			from.Answer(c)
			continue
		}
		i := c.Shard % uint64(len(b.workers))
		byWorker[i] = append(byWorker[i], submission{local, &in.request})
	}
	for i, w := range b.workers {
		if len(byWorker[i]) > 0 && !w.take(byWorker[i]...) {
			for _, s := range byWorker[i] {
				s.request.Tag.(*inbound).disown(b, 0)
			}
		}
	}
}

// fill makes the request of a call.
func (in *inbound) fill(rt *route) {
	c, r := in.call, &in.request
	r.Tag, r.Deadline, r.Bytes = in, c.Deadline, opOverheadBytes
	switch c.Kind {
	case peer.CallOps:
		r.Kind, r.Batch, r.Positions, r.Bytes = shard.Ops, c.Batch, c.Positions, 0
		for _, p := range c.Positions {
			r.Bytes += opBytes(&c.Batch.Ops[p])
		}
	case peer.CallScan:
		r.Kind, r.Scan, r.MaxPageBytes = shard.Scan, c.Scan, felix.MaxScanPageBytes/int(rt.shards.Load())
	case peer.CallCount:
		r.Kind = shard.Count
	case peer.CallClear:
		r.Kind = shard.Clear
	case peer.CallBarrier:
		r.Kind = shard.Barrier
	}
}

// admitCall checks a call and takes room for it. As at the doors, writes that
// would be held get half of it.
func (b *Broker) admitCall(in *inbound) *felix.Error {
	r, bound := &in.request, b.opts.InflightBytes
	if r.Kind == shard.Ops {
		for _, p := range r.Positions {
			if err := b.validate(&r.Batch.Ops[p]); err != nil {
				return err
			}
		}
	}
	if in.call.Shard == metaShard {
		b.inflight.Add(r.Bytes)
		return nil
	}
	if writes, _ := b.checkpoint.pressure.full(); writes && mutates(r) {
		bound /= 2
	}
	return b.reserve(r.Bytes, bound)
}

// finishAll tells of requests that a step has finished. Answers to one broker go
// together: they share a frame and a wake-up.
func (b *Broker) finishAll(done []*shard.Request) {
	var answers map[answerer][]*peer.Call
	bytes := int64(0)
	for _, r := range done {
		in, is := r.Tag.(*inbound)
		if !is {
			b.finish(r)
			continue
		}
		in.settle()
		if answers == nil {
			answers = map[answerer][]*peer.Call{}
		}
		answers[in.from] = append(answers[in.from], in.call)
		bytes += r.Bytes
	}
	if answers == nil {
		return
	}
	for from, calls := range answers {
		from.Answer(calls...)
	}
	b.inflight.Add(-bytes)
}

// settle fills in the answer.
func (in *inbound) settle() {
	c, r := in.call, &in.request
	c.Outcome, c.Err, c.NowMillis = peer.Answered, r.Err, r.NowMillis
	switch r.Kind {
	case shard.Scan:
		c.Page = r.Scanned
		c.Page.NowMillis = r.NowMillis
	case shard.Count:
		c.Count = felix.RecordCount{Counters: r.Counts.Counters, Values: r.Counts.Values, Keys: r.Counts.Keys}
	case shard.Barrier:
		c.Index = r.Index
	}
}

// disown answers that nothing was evaluated, since another broker owns the
// shard: hint, if it is not 0.
func (in *inbound) disown(b *Broker, hint uint64) {
	in.call.Outcome, in.call.Owner = peer.NotOwner, hint
	in.answer(b)
}

// answer gives the call and its room back.
func (in *inbound) answer(b *Broker) {
	in.from.Answer(in.call)
	b.inflight.Add(-in.request.Bytes)
}
