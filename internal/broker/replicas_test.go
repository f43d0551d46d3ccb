package broker

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/peer"
	"github.com/felix-go/felix/internal/peer/peerv1"
	"github.com/felix-go/felix/internal/placement"
	"github.com/felix-go/felix/internal/shard"
)

// pipes connect brokers of one process. What goes over them is copied, as on a
// wire.
type pipes struct {
	mu      sync.Mutex
	brokers map[uint64]*Broker
	cut     map[uint64]bool // nodes that reach nobody, nor are reached
	// snapshots counts those that were begun; onChunk, if it is set, is called
	// before each of their chunks.
	snapshots int
	compared  atomic.Int64 // questions of replicas' hashes
	onChunk   func(from, to uint64) error
	alter     func(to uint64, m peer.Message) // changes what is on its way
}

// pipe is a node's end of them.
type pipe struct {
	*pipes
	node uint64
}

func (p pipe) to(node uint64) *Broker {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cut[node] || p.cut[p.node] {
		return nil
	}
	return p.brokers[node]
}

func (p *pipes) setCut(node uint64, cut bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut[node] = cut
}

func (p pipe) SendRaft(node uint64, ms []peer.Message) {
	b := p.to(node)
	if b == nil {
		p.drop(node, ms)
		return
	}
	var copies []peer.Message
	p.mu.Lock()
	alter := p.alter
	p.mu.Unlock()
	for _, m := range ms {
		copies = append(copies, peer.Message{Shard: m.Shard, M: proto.Clone(m.M).(*raftpb.Message)})
		if alter != nil {
			alter(node, copies[len(copies)-1])
		}
	}
	b.takeMessages(p.node, copies)
}

// Links tells of a link to every other broker, up for ever or down.
func (p pipe) Links() (links []peer.LinkInfo) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for node := range p.brokers {
		if node != p.node {
			links = append(links, peer.LinkInfo{Node: node, Up: !p.cut[node] && !p.cut[p.node], Since: -time.Hour})
		}
	}
	return links
}

// Status asks a broker.
func (p pipe) Status(ctx context.Context, node uint64) (*peerv1.StatusResponse, error) {
	b := p.to(node)
	if b == nil {
		return nil, felix.Errorf(felix.Unavailable, "there is no link")
	}
	return b.clusterStatus(ctx)
}

func (p pipe) SendSnapshot(ctx context.Context, node uint64, h peer.SnapshotHeader, next func([]byte) ([]byte, error)) error {
	b := p.to(node)
	if b == nil {
		return errCut
	}
	p.mu.Lock()
	p.snapshots++
	onChunk := p.onChunk
	p.mu.Unlock()
	h.Message = proto.Clone(h.Message).(*raftpb.Message)
	buf := make([]byte, 512)
	return b.takeSnapshot(p.node, h, func() ([]byte, error) {
		if onChunk != nil {
			if err := onChunk(p.node, node); err != nil {
				return nil, err
			}
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if p.to(node) != b {
			return nil, errCut
		}
		return next(buf)
	})
}

var errCut = errors.New("the link is cut")

// drop tells of entries that do not arrive, as a peer.Network does.
func (p pipe) drop(node uint64, ms []peer.Message) {
	var dropped []uint64
	for _, m := range ms {
		if m.M.GetType() == raftpb.MsgApp {
			dropped = append(dropped, m.Shard)
		}
	}
	p.mu.Lock()
	self := p.brokers[p.node]
	p.mu.Unlock()
	if len(dropped) > 0 && self != nil {
		self.droppedMessages(node, dropped)
	}
}

func (p pipe) AwaitMeta(ctx context.Context, node, index uint64) error {
	b := p.to(node)
	if b == nil {
		return errUnreached
	}
	return b.awaitMeta(ctx, index)
}

// Compare asks a broker. What it is asked, and answers, is copied.
func (p pipe) Compare(ctx context.Context, node uint64, replicas []*peerv1.ReplicaHashes) ([]*peerv1.ReplicaHashes, error) {
	b := p.to(node)
	if b == nil {
		return nil, errUnreached
	}
	p.compared.Add(1)
	question := proto.Clone(&peerv1.CompareRequest{Replicas: replicas}).(*peerv1.CompareRequest)
	answers, err := b.compare(ctx, question.Replicas)
	return proto.Clone(&peerv1.CompareResponse{Replicas: answers}).(*peerv1.CompareResponse).Replicas, err
}

// wire is a call on its way; the answer is lost if the link is cut meanwhile.
type wire struct {
	pipe
	node uint64
	call *peer.Call
}

func (p pipe) Forward(node uint64, c *peer.Call) {
	b, self := p.to(node), p.to(p.node)
	if b == nil || self == nil {
		c.Outcome, c.Owner = peer.NotSent, 0
		c.Done(c)
		return
	}
	remote := &peer.Call{Kind: c.Kind, Shard: c.Shard, Scan: c.Scan, Deadline: b.mono() + c.Deadline - self.mono()}
	if c.Kind == peer.CallOps {
		remote.Batch = &felix.Batch{Replies: make([]felix.Reply, len(c.Positions))}
		for i, position := range c.Positions {
			remote.Positions = append(remote.Positions, int32(i))
			remote.Batch.Ops = append(remote.Batch.Ops, c.Batch.Ops[position])
		}
	}
	b.takeCalls(wire{p, node, c}, []*peer.Call{remote})
}

func (w wire) Answer(calls ...*peer.Call) {
	c, remote := w.call, calls[0]
	if w.to(w.node) == nil {
		c.Outcome, c.Owner = peer.Lost, 0
		c.Done(c)
		return
	}
	for i, position := range c.Positions {
		c.Batch.Replies[position] = remote.Batch.Replies[i]
	}
	c.Outcome, c.Owner, c.Err, c.Page, c.Count, c.Index = remote.Outcome, remote.Owner, remote.Err, remote.Page, remote.Count, remote.Index
	c.NowMillis = remote.NowMillis
	c.Done(c)
}

const sharedShard = 77

// openReplicated opens brokers of one cluster over pipes, with a cache of one
// shard, of which all but the last have a replica.
func openReplicated(t *testing.T, brokers int) (*pipes, []*Broker, []*cache) {
	t.Helper()
	p, all := openPiped(t, brokers, nil)
	return p, all, shareCache(t, all)
}

// openPiped opens brokers that have formed a cluster over pipes.
func openPiped(t testing.TB, brokers int, change func(node uint64, o *Options)) (*pipes, []*Broker) {
	t.Helper()
	p := &pipes{brokers: map[uint64]*Broker{}, cut: map[uint64]bool{}}
	var founders []founder
	for node := uint64(1); node <= uint64(brokers); node++ {
		founders = append(founders, founder{ID: node, StoreID: fmt.Sprint("store", node)})
	}
	return p, openFounders(t, founders, func(node uint64, o *Options) {
		o.net = p.join(node)
		if change != nil {
			change(node, o)
		}
	})
}

// join makes a broker a node of the pipes.
func (p *pipes) join(node uint64) func(*Broker) network {
	return func(b *Broker) network {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.brokers[node] = b
		return pipe{p, node}
	}
}

// openByHand opens brokers whose metadata does nothing, with a cache of one shard,
// of which all but the last have a replica. What becomes of that is up to the
// test.
func openByHand(t *testing.T, brokers int, change func(*Options)) (*pipes, []*Broker, []*cache) {
	t.Helper()
	p := &pipes{brokers: map[uint64]*Broker{}, cut: map[uint64]bool{}}
	var all []*Broker
	var caches []*cache
	s := sharedPlacement(brokers)
	for node := uint64(1); node <= uint64(brokers); node++ {
		o := Options{Dir: "data", FS: vfs.NewMem(), NodeID: node, RequestTimeout: 20 * time.Second, Workers: 2}
		change(&o)
		b := p.open(t, o)
		openShared(t, b, s)
		all = append(all, b)
		caches = append(caches, &cache{b: b, shards: []*route{b.routeOf(sharedShard)}})
	}
	t.Cleanup(func() { closeAll(t, all) })
	return p, all, caches
}

// openShared makes and opens a broker's replica of a shard, if it has one, without
// its metadata.
func openShared(t testing.TB, b *Broker, s placement.Shard) *replica {
	t.Helper()
	rt := b.addRoute(s.ID, 1)
	if s.ReplicaOn(b.node) != 0 {
		err := b.bootstrap(felix.Quorum, s)
		if err == nil {
			_, err = b.openReplica(rt, 0)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	b.guide(&s)
	return b.replicaOf(s.ID)
}

// open opens a broker whose metadata does nothing, and joins it to the others.
func (p *pipes) open(t *testing.T, o Options) *Broker {
	t.Helper()
	o.net, o.byHand = p.join(o.NodeID), true
	b, err := Open(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// owner is the node that owns the shared shard, 0 if there is none.
func owner(brokers []*Broker) uint64 {
	for _, b := range brokers {
		if b == nil {
			continue
		}
		b.mu.RLock()
		r := b.replicas[sharedShard]
		b.mu.RUnlock()
		if r != nil && r.owns.Load() {
			return b.node
		}
	}
	return 0
}

// TestEveryBrokerServesTheShard: requests through any of the brokers, of which
// one has no replica, are evaluated by the owner; all kinds.
func TestEveryBrokerServesTheShard(t *testing.T) {
	t.Parallel()
	_, brokers, caches := openReplicated(t, 4)
	const each = 50
	var all sync.WaitGroup
	for i, c := range caches {
		all.Go(func() {
			for n := range each {
				mustDo(t, c, add("all", 1), add(fmt.Sprint(i, "/", n), 1))
			}
		})
	}
	all.Wait()
	for i, c := range caches {
		if r := mustDo(t, c, felix.Op{Kind: felix.Get, Key: []byte("all")}); r[0].Int != int64(len(caches)*each) {
			t.Errorf("broker %d: the sum is %d", i+1, r[0].Int)
		}
		n, err := c.Count(context.Background())
		if err != nil || n.Counters != int64(len(caches)*each+1) {
			t.Errorf("broker %d: %+v, %v", i+1, n, err)
		}
		page, err := c.Scan(context.Background(), felix.ScanRequest{View: felix.ViewCounter, Limit: 10})
		if err != nil || len(page.Items) != 10 || !page.More || page.NowMillis == 0 {
			t.Errorf("broker %d: %+v, %v", i+1, page, err)
		}
	}
	if err := caches[3].Clear(context.Background()); err != nil {
		t.Error(err)
	}
	for i, c := range caches {
		if n, err := c.Count(context.Background()); err != nil || n.Keys != 0 {
			t.Errorf("broker %d after the clear: %+v, %v", i+1, n, err)
		}
	}
	for _, b := range brokers {
		if err := b.Ready(); err != nil {
			t.Errorf("broker %d: %v", b.node, err)
		}
		eventually(t, "nothing is in flight", func() bool { return b.Stats().InflightBytes == 0 && b.pacer.queued.Load() == 0 })
		if b.pacer.syncing.Load() != 0 {
			t.Errorf("broker %d: %d appends still pace", b.node, b.pacer.syncing.Load())
		}
	}
}

// TestFollowersPaceNobody: only the owner's appends make doors wait.
func TestFollowersPaceNobody(t *testing.T) {
	t.Parallel()
	_, brokers, caches := openReplicated(t, 4)
	mustDo(t, caches[3], add("k", 1))
	leads := owner(brokers)
	wakes := make([]atomic.Int64, len(brokers))
	for i, b := range brokers {
		b.pacer.OnSynced(func() { wakes[i].Add(1) })
	}
	for range 50 {
		mustDo(t, caches[3], add("k", 1))
	}
	if now := owner(brokers); now != leads {
		t.Logf("the owner changed from %d to %d", leads, now)
		return
	}
	for i, b := range brokers {
		eventually(t, "all is written", func() bool { return b.pacer.syncing.Load() == 0 })
		if n := wakes[i].Load(); (n > 0) != (b.node == leads) {
			t.Errorf("broker %d, with the owner at %d, woke the doors %d times", b.node, leads, n)
		}
	}
}

// TestOwnerIsCutOff: the owner loses its links under load. The others go on, and
// so does it when they are back: no acknowledged operation is lost, none is
// applied twice.
func TestOwnerIsCutOff(t *testing.T) {
	t.Parallel()
	p, brokers, caches := openReplicated(t, 4)
	mustDo(t, caches[3], add("k", 1))
	var acked, unknown atomic.Int64
	acked.Store(1)
	stop := make(chan struct{})
	var all sync.WaitGroup
	for _, c := range caches {
		all.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				batch, d := submit(c, add("k", 1))
				<-d.done
				switch err := batch.Replies[0].Err; {
				case err == nil:
					acked.Add(1)
				case err.MayBeApplied():
					unknown.Add(1)
				}
			}
		})
	}
	for range 2 {
		before := owner(brokers)
		for before == 0 {
			before = owner(brokers)
		}
		p.setCut(before, true)
		rest := append(append([]*Broker(nil), brokers[:before-1]...), brokers[before:]...)
		eventually(t, "another one owns the shard", func() bool { return owner(rest) != 0 })
		n := acked.Load()
		eventually(t, "the others go on", func() bool { return acked.Load() > n+20 })
		p.setCut(before, false)
		eventually(t, "it follows", func() bool {
			b := brokers[before-1]
			lead := b.routeOf(sharedShard).local.lead.Load()
			return lead != 0 && (lead != before || owner(brokers) == before)
		})
	}
	close(stop)
	all.Wait()
	for i, c := range caches {
		r := mustDo(t, c, felix.Op{Kind: felix.Get, Key: []byte("k")})
		if sum := r[0].Int; sum < acked.Load() || sum > acked.Load()+unknown.Load() {
			t.Errorf("broker %d: the sum is %d, %d were acknowledged and %d perhaps applied", i+1, sum, acked.Load(), unknown.Load())
		}
	}
	t.Logf("%d acknowledged, %d unknown", acked.Load(), unknown.Load())
}

// TestIdleShardsSleep: a tick wakes only shards that have something to do, but all
// of them where memory is short, or room for writes was.
func TestIdleShardsSleep(t *testing.T) {
	t.Parallel()
	b, c := openOn(t, vfs.NewMem(), 16, func(o *Options) { o.TickInterval, o.Workers = time.Hour, 1 })
	mustDo(t, c, add("k", 1))
	w := b.workers[0]
	for _, v := range []struct {
		name  string
		set   func()
		awake int
	}{
		{"nothing to do", func() {}, 0},
		{"writes were held", func() { w.held = true }, 17},
		{"they are not any more", func() {}, 0},
		{"memory is short", func() { b.budget.MaxBytes = 1 }, 17},
	} {
		eventually(t, "the step before is over", func() bool { return b.Stats().Owned == 17 })
		awake := -1
		w.callWait(func() {
			w.advance() // what is still active
			v.set()
			w.tick(1)
			awake = len(w.active)
		})
		if awake != v.awake {
			t.Errorf("%s: %d shards are awake, want %d", v.name, awake, v.awake)
		}
	}
	if err := closeBroker(b); err != nil {
		t.Error(err)
	}
}

// TestAnswersForOthersAreNotStepped: what a follower's append answers to another
// replica is not taken for an answer to this one.
func TestAnswersForOthersAreNotStepped(t *testing.T) {
	t.Parallel()
	b, c := openOn(t, vfs.NewMem(), 1, nil) // Fatal panics
	r := c.(*cache).shards[0].here.Load()
	other := uint64(99)
	r.worker.callWait(func() {
		w := &worker{b: b, replicas: r.worker.replicas}
		// Raft would say that this is an error.
		w.taken.appended = []shard.Append{{Shard: r.shard, Responses: []*raftpb.Message{{Type: raftpb.MsgBeat.Enum(), To: &other, From: &r.raftID}}}}
		w.takeAppended()
		r.active = false // it is, for the worker that there is not
	})
	if err := closeBroker(b); err != nil {
		t.Error(err)
	}
}
