package broker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/felix-go/felix/internal/peer"
	"github.com/felix-go/felix/internal/peer/peerv1"
)

// links is the broker's side of the connections with others: it says who the
// broker is, decides with whom it speaks, and hands on what arrives. It
// implements peer.Handler.
type links struct {
	b        *Broker
	net      *peer.Network
	addr     string         // as others are told
	instance string         // of this process, random
	serving  sync.WaitGroup // goroutines that Shutdown of net does not wait for

	mu    sync.Mutex
	told  map[uint64]peer.Peer // as setPeers said
	peers map[uint64]*peerState
}

// peerState is what a broker knows of another one. It is forgotten when that is
// no peer any more.
type peerState struct {
	up    bool
	since time.Duration // when up changed
	pong  peer.Pong     // the last one; of no worth while the link is down

	refusal   *peer.Refusal // why the peer does not speak with this broker
	refusedAt time.Duration // last
	keptOut   time.Duration // since when it has refused for one of the reasons that last
}

const (
	// refusalMemory is for how long a refusal counts: a peer that can be reached
	// repeats it with every attempt to dial.
	refusalMemory = 3 * time.Second
	// refusalPatience is how long a broker that is kept out waits for what others
	// say, who are dialled at the same time.
	refusalPatience = 2 * time.Second
	// instancePatience is the same where another process acts as this node: after
	// a partition a peer takes the dead link of a process that was restarted for
	// a live one.
	instancePatience = 10 * time.Second
	// goodbyeTimeout bounds how long a broker that stops waits for the answers to
	// what others have asked.
	goodbyeTimeout = 2 * time.Second
)

// makeLinks prepares the connections with other brokers, where there is a
// listener for them. Nothing is said or heard before openLinks.
func (b *Broker) makeLinks() (err error) {
	o := &b.opts.Cluster
	if o.Listener == nil {
		return nil
	}
	l := &links{b: b, peers: map[uint64]*peerState{}}
	l.addr = cmp.Or(o.Advertise.Peer, o.Listener.Addr().String())
	if l.instance, err = randomID(); err != nil {
		return err
	}
	l.net, err = peer.New(o.Listener, peer.Options{Handler: l, Logger: b.opts.Logger, TLS: o.TLS, Dial: o.Dial, Mono: b.mono})
	if err != nil {
		return fmt.Errorf("the links to other brokers: %w", err)
	}
	b.links, b.net = l, l.net
	return nil
}

// openLinks starts to speak with other brokers.
func (b *Broker) openLinks() error {
	l := b.links
	if l == nil {
		return nil
	}
	l.serving.Go(func() {
		if err := l.net.Serve(); err != nil {
			b.opts.Fatal(fmt.Errorf("the listener for other brokers, %s: %w", l.addr, err))
		}
	})
	b.meetFounders()
	return nil
}

// meetFounders has the broker speak with those with which it forms its cluster,
// until there is metadata on its disk: that may know better.
func (b *Broker) meetFounders() {
	if id := b.dir.id(); !id.Bootstrapped && len(id.Founders) > 0 {
		b.setPeers(peersOf(id.Founders))
	}
}

func peersOf(founders []founder) (ps []peer.Peer) {
	for _, f := range founders {
		ps = append(ps, peer.Peer{Node: f.ID, StoreID: f.StoreID, Addr: f.PeerAddr})
	}
	return ps
}

// closeLinks answers what other brokers have asked, tells them that the rest was
// not looked at, and ends all connections. When that takes too long, or ctx ends
// first, what is left is lost to them.
func (b *Broker) closeLinks(ctx context.Context) error {
	l := b.links
	if l == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, goodbyeTimeout)
	defer cancel()
	err := l.net.Shutdown(ctx)
	l.serving.Wait()
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) || errors.Is(err, net.ErrClosed) {
		return nil // those who were not answered know that they do not know
	}
	return err
}

// setPeers says which brokers there are to speak with; this one may be among
// them.
func (b *Broker) setPeers(ps []peer.Peer) {
	ps = slices.DeleteFunc(slices.Clone(ps), func(p peer.Peer) bool { return p.Node == b.node })
	for i := range ps { // all may have moved, and then no record can say where to
		ps[i].Also = b.opts.Cluster.Peers[ps[i].Node]
	}
	nodes := make([]uint64, 0, len(ps))
	for _, p := range ps {
		nodes = append(nodes, p.Node)
	}
	b.clock.SetPeers(nodes, b.mono())
	b.look()
	l := b.links
	if l == nil {
		return
	}
	l.mu.Lock()
	known := make(map[uint64]*peerState, len(ps))
	l.told = make(map[uint64]peer.Peer, len(ps))
	for _, p := range ps {
		l.told[p.Node] = p
		if known[p.Node] = l.peers[p.Node]; known[p.Node] == nil {
			known[p.Node] = &peerState{since: b.mono()}
		}
	}
	l.peers = known
	l.mu.Unlock()
	l.net.SetPeers(ps)
}

// caller asks the broker at an address, whoever it is.
func (b *Broker) caller(addr string) *peer.Caller { return b.links.net.Caller(addr) }

// Links tells of the links to other brokers.
func (b *Broker) Links() []peer.LinkInfo {
	if b.links == nil {
		return nil
	}
	return b.links.net.Links()
}

// Self implements peer.Handler.
func (l *links) Self() peer.Identity {
	id := l.b.dir.id()
	return peer.Identity{ClusterID: id.ClusterID, Node: l.b.node, StoreID: id.StoreID, Instance: l.instance, Starts: id.Starts, Recorded: id.Recorded,
		Addr: l.addr, Version: l.b.opts.Cluster.Version, Features: supportedFeatures(), Formed: id.Formed}
}

// errNoMember keeps others waiting until this broker belongs to their cluster.
var errNoMember = errors.New("this broker belongs to no cluster yet")

// Check implements peer.Handler.
func (l *links) Check(h peer.Identity, to uint64, toStore string) error {
	self := l.Self()
	if self.ClusterID == "" {
		return errNoMember
	}
	if err := l.roster().Check(self, h, to, toStore); err != nil {
		return err
	}
	if h.Formed && !self.Formed {
		// It has heard what this broker has not.
		l.serving.Go(func() {
			if err := l.b.formed(context.Background(), h.ClusterID); err != nil {
				l.b.opts.Logger.Warn("forming the cluster", "err", err)
			}
		})
	}
	return nil
}

// roster is what the metadata says of the cluster's members. A broker that has
// none yet knows those that have taken it in, or with which it forms the cluster.
func (l *links) roster() *peer.Roster {
	r := &peer.Roster{Members: map[uint64]peer.Member{}}
	v := l.b.view()
	for name := range v.features {
		r.Finalized = append(r.Finalized, name)
	}
	slices.Sort(r.Finalized)
	if v.cluster == nil {
		l.mu.Lock()
		defer l.mu.Unlock()
		for node, p := range l.told {
			r.Members[node] = peer.Member{StoreID: p.StoreID}
		}
		return r
	}
	for id, n := range v.nodes {
		r.Members[id] = n.member()
	}
	return r
}

// Refused implements peer.Handler. A broker that the others will never let in
// again stops: nothing that it could still do is right.
func (l *links) Refused(node uint64, r *peer.Refusal) {
	if why := l.keptOut(node, r); why != nil {
		l.b.opts.Fatal(why)
	}
}

// keptOut notes a refusal, and says why this broker has to stop, if it has to:
// most of the peers that it can reach keep it out, for good. One that is confused
// is not enough.
func (l *links) keptOut(node uint64, r *peer.Refusal) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.b.mono()
	p := l.peers[node]
	if p == nil {
		return nil
	}
	if p.refusal == nil || p.refusal.Reason != r.Reason || now-p.refusedAt > refusalMemory {
		p.keptOut = now
	}
	p.refusal, p.refusedAt = r, now
	reached, against := 0, 0
	for _, other := range l.peers {
		switch {
		case other.up:
			reached++
		case other.refusal != nil && now-other.refusedAt <= refusalMemory:
			reached++
			if patience := patienceWith(other.refusal.Reason); patience > 0 && now-other.keptOut >= patience {
				against++
			}
		}
	}
	if patienceWith(r.Reason) == 0 || 2*against <= reached {
		return nil
	}
	return r
}

// patienceWith is how long a broker goes on that is refused for a reason; 0 is
// for ever, since the reason may pass.
func patienceWith(r peer.Reason) time.Duration {
	switch r {
	case peer.ReasonStore, peer.ReasonRemoved, peer.ReasonStarts:
		return refusalPatience
	case peer.ReasonInstance:
		return instancePatience
	}
	return 0
}

// LinkChanged implements peer.Handler.
func (l *links) LinkChanged(node uint64, up bool) {
	l.mu.Lock()
	if p := l.peers[node]; p != nil {
		p.up, p.since, p.pong = up, l.b.mono(), peer.Pong{}
		if up {
			p.refusal = nil
		}
	}
	l.mu.Unlock()
	if !up {
		l.b.lostNode(node)
	}
	l.b.poke()
}

// Raft implements peer.Handler.
func (l *links) Raft(from uint64, ms []peer.Message) { l.b.takeMessages(from, ms) }

// DroppedRaft implements peer.Handler.
func (l *links) DroppedRaft(node uint64, shards []uint64) { l.b.droppedMessages(node, shards) }

// Pong implements peer.Handler. It tells the system's clock, not what this broker
// believes: if the clocks of all were set, all have to see it.
func (l *links) Pong() peer.Pong {
	return peer.Pong{WallMillis: l.b.opts.Wall(), Eligible: l.b.eligible.Load(), Stopping: l.b.stopping.Load()}
}

// Clock implements peer.Handler.
func (l *links) Clock(node uint64, p peer.Pong, sent, received time.Duration) {
	l.mu.Lock()
	if s := l.peers[node]; s != nil && s.up {
		s.pong = p
	}
	l.mu.Unlock()
	l.b.clock.Observe(node, p.WallMillis, sent, received)
	l.b.watchSoon()
}

// Forward implements peer.Handler.
func (l *links) Forward(from *peer.Link, calls []*peer.Call) { l.b.takeCalls(from, calls) }

// Snapshot implements peer.Handler.
func (l *links) Snapshot(from uint64, h peer.SnapshotHeader, next func() ([]byte, error)) error {
	return l.b.takeSnapshot(from, h, next)
}

// Probe implements peer.Handler.
func (l *links) Probe(ctx context.Context) (peer.ProbeInfo, error) { return l.b.probe(ctx) }

// Adopt implements peer.Handler.
func (l *links) Adopt(ctx context.Context, a peer.Adoption) error { return l.b.adopt(ctx, a) }

// Form implements peer.Handler.
func (l *links) Form(ctx context.Context, clusterID string) error { return l.b.formed(ctx, clusterID) }

// Join implements peer.Handler.
func (l *links) Join(ctx context.Context, j peer.JoinRequest) (peer.JoinReply, error) {
	return l.b.admitNode(ctx, j)
}

// Status implements peer.Handler.
func (l *links) Status(ctx context.Context) (*peerv1.StatusResponse, error) {
	return l.b.clusterStatus(ctx)
}

// AwaitMeta implements peer.Handler.
func (l *links) AwaitMeta(ctx context.Context, index uint64) error { return l.b.awaitMeta(ctx, index) }

// Compare implements peer.Handler.
func (l *links) Compare(ctx context.Context, replicas []*peerv1.ReplicaHashes) ([]*peerv1.ReplicaHashes, error) {
	return l.b.compare(ctx, replicas)
}
