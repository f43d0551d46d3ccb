package peer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/peer/peerv1"
)

const patience = 20 * time.Second

// eventually waits until what is true.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("it does not come to be that %s", what)
		}
		time.Sleep(time.Millisecond)
	}
}

// broker is a Network with a Handler that a test decides for.
type broker struct {
	t    testing.TB
	net  *Network
	addr string

	mu       sync.Mutex
	id       Identity
	roster   Roster
	refusals []*Refusal
	ups      map[uint64][]bool
	messages []Message
	dropped  []uint64
	clocks   map[uint64]Pong
	chunks   [][]byte
	header   SnapshotHeader
	snapErr  error
	stall    chan struct{} // a snapshot waits for it to be closed
	forward  func(from *Link, calls []*Call)
	probe    func(ctx context.Context) (ProbeInfo, error)
	joined   JoinRequest
	adopted  Adoption
}

// newBroker makes one that is not connected to anybody.
func newBroker(t testing.TB, node uint64, change func(*Options)) *broker {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return serve(t, node, ln, change)
}

func serve(t testing.TB, node uint64, ln net.Listener, change func(*Options)) *broker {
	t.Helper()
	b := &broker{t: t, addr: ln.Addr().String(), ups: map[uint64][]bool{}, clocks: map[uint64]Pong{}}
	b.id = Identity{ClusterID: "cluster", Node: node, StoreID: storeOf(node), Instance: fmt.Sprint("instance", node), Starts: 1,
		Addr: b.addr, Version: "test", Features: []string{"fence"}, Formed: true}
	b.roster.Members = map[uint64]Member{}
	for other := uint64(1); other <= 5; other++ {
		b.roster.Members[other] = Member{StoreID: storeOf(other)}
	}
	o := Options{Handler: b}
	if change != nil {
		change(&o)
	}
	var err error
	if b.net, err = New(ln, o); err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- b.net.Serve() }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
		defer cancel()
		_ = b.net.Shutdown(ctx) // a test that wants to know asks itself
		if err := <-served; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	return b
}

func storeOf(node uint64) string { return fmt.Sprint("store", node) }

func (b *broker) peer() Peer { return Peer{Node: b.id.Node, StoreID: b.id.StoreID, Addr: b.addr} }

// meet makes a and b each other's peers and waits for the links.
func meet(t *testing.T, a, b *broker) {
	t.Helper()
	a.net.SetPeers([]Peer{a.peer(), b.peer()})
	b.net.SetPeers([]Peer{a.peer(), b.peer()})
	a.awaitLink(b.id.Node)
	b.awaitLink(a.id.Node)
}

// awaitLink waits until both streams to a node are up.
func (b *broker) awaitLink(node uint64) {
	b.t.Helper()
	eventually(b.t, fmt.Sprintf("node %d is linked to node %d", b.id.Node, node), func() bool {
		l := b.net.link(node)
		if l == nil || !l.info().Up {
			return false
		}
		l.forward.mu.Lock()
		defer l.forward.mu.Unlock()
		return l.forward.up
	})
}

// locked runs f under b's lock.
func (b *broker) locked(f func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f()
}

func (b *broker) Self() Identity {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.id
}

func (b *broker) Check(h Identity, to uint64, toStore string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.roster.Check(b.id, h, to, toStore)
}

func (b *broker) Refused(_ uint64, r *Refusal) {
	b.locked(func() { b.refusals = append(b.refusals, r) })
}

func (b *broker) LinkChanged(node uint64, up bool) {
	b.locked(func() { b.ups[node] = append(b.ups[node], up) })
}

func (b *broker) Raft(_ uint64, ms []Message) {
	b.locked(func() { b.messages = append(b.messages, ms...) })
}

func (b *broker) DroppedRaft(_ uint64, shards []uint64) {
	b.locked(func() { b.dropped = append(b.dropped, shards...) })
}

func (b *broker) Pong() Pong { return Pong{WallMillis: 4711, Eligible: true, Stopping: true} }

func (b *broker) Clock(node uint64, p Pong, sent, received time.Duration) {
	if received < sent {
		b.t.Errorf("a pong came at %v for a ping of %v", received, sent)
	}
	b.locked(func() { b.clocks[node] = p })
}

func (b *broker) Forward(from *Link, calls []*Call) {
	b.mu.Lock()
	f := b.forward
	b.mu.Unlock()
	if f == nil {
		f = func(from *Link, calls []*Call) { from.Answer(calls...) }
	}
	f(from, calls)
}

func (b *broker) Snapshot(_ uint64, h SnapshotHeader, next func() ([]byte, error)) error {
	b.mu.Lock()
	b.header = h
	stall, err := b.stall, b.snapErr
	b.mu.Unlock()
	if stall != nil {
		<-stall
	}
	if err != nil {
		return err
	}
	for {
		chunk, err := next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		b.locked(func() { b.chunks = append(b.chunks, append([]byte(nil), chunk...)) })
	}
}

func (b *broker) Probe(ctx context.Context) (ProbeInfo, error) {
	b.mu.Lock()
	f := b.probe
	b.mu.Unlock()
	if f != nil {
		return f(ctx)
	}
	return ProbeInfo{Node: b.id.Node, StoreID: b.id.StoreID, ClusterID: "cluster", Formed: true, Digest: "digest"}, nil
}

func (b *broker) Adopt(_ context.Context, a Adoption) error {
	b.locked(func() { b.adopted = a })
	return nil
}

func (b *broker) Form(_ context.Context, clusterID string) error {
	if clusterID != "cluster" {
		return refusal(ReasonCluster, "another cluster")
	}
	return nil
}

func (b *broker) Join(_ context.Context, j JoinRequest) (JoinReply, error) {
	b.locked(func() { b.joined = j })
	if j.Node == 1 {
		return JoinReply{}, felix.Errorf(felix.AlreadyExists, "node 1 exists")
	}
	return JoinReply{ClusterID: "cluster", MetaRaftID: 8, Nodes: []Peer{{Node: 1, StoreID: "store1", Addr: "h1:1"}, {Node: 2, StoreID: "store2", Addr: "h2:2"}}}, nil
}

func (b *broker) Status(context.Context) (*peerv1.StatusResponse, error) {
	return &peerv1.StatusResponse{Shards: []*peerv1.ShardStatus{{Shard: 5, Owns: true}}}, nil
}

func (b *broker) AwaitMeta(ctx context.Context, index uint64) error {
	if index == 0 {
		<-ctx.Done()
		return ctx.Err()
	}
	return nil
}

// Compare tells of the same replicas with other sums.
func (b *broker) Compare(_ context.Context, replicas []*peerv1.ReplicaHashes) ([]*peerv1.ReplicaHashes, error) {
	for _, r := range replicas {
		for _, p := range append(r.Chain, r.States...) {
			p.Hash++
		}
	}
	return replicas, nil
}

// appOf is a MsgApp with an entry.
func appOf(from, to uint64, data []byte) *raftpb.Message {
	return &raftpb.Message{Type: raftpb.MsgApp.Enum(), From: proto.Uint64(from), To: proto.Uint64(to), Term: proto.Uint64(2),
		Entries: []*raftpb.Entry{{Index: proto.Uint64(5), Term: proto.Uint64(2), Data: data}}}
}

func heartbeatOf(from, to uint64) *raftpb.Message {
	return &raftpb.Message{Type: raftpb.MsgHeartbeat.Enum(), From: proto.Uint64(from), To: proto.Uint64(to), Term: proto.Uint64(2)}
}

// addCall is a call with one add, whose key is its number.
func addCall(n int, deadline time.Duration, done func(*Call)) *Call {
	return &Call{Shard: 1, Batch: &felix.Batch{Ops: []felix.Op{{Kind: felix.Add, Key: fmt.Appendf(nil, "%d", n), Int: int64(n)}},
		Replies: make([]felix.Reply, 1)}, Positions: []int32{0}, Deadline: deadline, Done: done}
}
