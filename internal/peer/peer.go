// Package peer is how brokers speak with each other: Raft messages of all shards,
// calls to shards that another broker owns, snapshots, and what is asked before
// a broker is a member. It speaks gRPC (connectrpc.com/connect) over a TCP
// connection for each purpose and direction, with mutual TLS where configured.
//
// It knows no shard, no store and no broker: a Handler is told what arrives, and
// decides. What it promises by itself:
//
//   - A call is sent at most once, and its caller is told exactly once whether it
//     provably was not sent, was answered, or was lost.
//   - Nothing is sent to whom has not been checked, and nothing of theirs is taken.
//   - A peer that is slow or silent costs bounded memory and is noticed within two
//     seconds.
package peer

import (
	"context"
	"log/slog"
	"net"
	"sync/atomic"
	"time"

	"go.etcd.io/raft/v3/raftpb"

	"github.com/felix-go/felix/internal/peer/peerv1"
)

// Identity is who a broker is, as it says in each handshake.
type Identity struct {
	ClusterID string
	Node      uint64
	StoreID   string  // of its data directory
	Instance  string  // random for each process
	Starts    uint64  // of its data directory
	Recorded  []Start // of its data directory, in order: those of which the cluster may know, the first of which it has known
	Addr      string  // where to dial it
	Version   string  // of its build, for people
	Features  []string
	Formed    bool

	protocol uint32 // of somebody else: the newest version that both speak
}

// Start is one start of a broker on its data directory.
type Start struct {
	Starts   uint64 `json:"starts"` // of the directory, so far
	Instance string `json:"instance"`
}

// Message is a Raft message of a shard. It is not changed any more.
type Message struct {
	Shard uint64
	M     *raftpb.Message
}

// Pong is what a broker says of its clock and itself, once a second.
type Pong struct {
	WallMillis int64
	Eligible   bool // its clock lets it lead
	Stopping   bool
}

// SnapshotHeader comes before the data of a snapshot.
type SnapshotHeader struct {
	Shard          uint64
	Message        *raftpb.Message // a MsgSnap, without data
	Applied        []byte          // the broker's
	EstimatedBytes int64
}

// Handler is told what arrives. Its methods are called from many goroutines and
// must not block, except where it says so.
type Handler interface {
	// Self is asked for each handshake.
	Self() Identity
	// Check says whether to speak with h, who believes to speak with node to that
	// has the store toStore. A *Refusal is told to h with its reason; any other
	// error makes h try again.
	Check(h Identity, to uint64, toStore string) error
	// Refused says that a node refuses to speak with this broker.
	Refused(node uint64, r *Refusal)
	// LinkChanged says that Raft messages now reach the node, or do not. Those on
	// their way when a link ends are lost.
	LinkChanged(node uint64, up bool)
	// Raft takes messages; their memory is the Handler's own.
	Raft(from uint64, ms []Message)
	// DroppedRaft says that a MsgApp to each of the shards' replicas at the node
	// was dropped, because its queue is full or the link is gone. It may be called
	// from inside SendRaft.
	DroppedRaft(node uint64, shards []uint64)
	// Pong is this broker's answer to a peer that compares clocks.
	Pong() Pong
	// Clock is one comparison of clocks: the node's pong, asked for at sent.
	Clock(node uint64, p Pong, sent, received time.Duration)
	// Forward takes calls. Each is answered once, with from.Answer.
	Forward(from *Link, calls []*Call)
	// Snapshot takes a snapshot, and may block. next answers its chunks, each
	// valid until the next call, then io.EOF. The error is told to the sender.
	Snapshot(from uint64, h SnapshotHeader, next func() (chunk []byte, err error)) error

	// Probe and the rest are unary calls, and may block until ctx ends.
	Probe(ctx context.Context) (ProbeInfo, error)
	// Adopt makes a cluster's identity the broker's own.
	Adopt(ctx context.Context, a Adoption) error
	// Form says that all founders have adopted the cluster.
	Form(ctx context.Context, clusterID string) error
	// Join takes a broker into the cluster.
	Join(ctx context.Context, j JoinRequest) (JoinReply, error)
	// Status tells of the broker's shards.
	Status(ctx context.Context) (*peerv1.StatusResponse, error)
	// AwaitMeta answers when the broker has acted on the metadata up to index.
	AwaitMeta(ctx context.Context, index uint64) error
	// Compare answers by what the broker's replicas of the same shards are compared.
	Compare(ctx context.Context, replicas []*peerv1.ReplicaHashes) ([]*peerv1.ReplicaHashes, error)
}

// Options say how a Network works. Only the Handler must be given.
type Options struct {
	Handler Handler
	Logger  *slog.Logger // nil: none
	TLS     *TLS         // nil: plain
	// Dial makes connections; nil is a net.Dialer. Tests break networks here.
	Dial func(ctx context.Context, node uint64, addr string) (net.Conn, error)
	// Mono is a clock that only goes forward, for deadlines; nil is one that
	// begins with the Network.
	Mono func() time.Duration
	// RaftQueueBytes and ForwardQueueBytes bound what waits for one peer; 0 is
	// felix.MaxPeerQueueBytes, and more is not possible.
	RaftQueueBytes, ForwardQueueBytes int64
}

// Peer is a broker to keep links to.
type Peer struct {
	Node    uint64
	StoreID string
	Addr    string
	// Also is another address where it may be: the two are tried in turn until the
	// peer has been found.
	Also string
}

// LinkInfo is a link as it is.
type LinkInfo struct {
	Node         uint64
	Addr         string // dialled
	Up           bool   // Raft messages reach the node
	Since        time.Duration
	LastHeard    time.Duration // Options.Mono of the last welcome or pong; 0 is never
	Refused      string        // why there is no link, if one side refuses; empty otherwise
	RaftBytes    int64         // waiting to be sent
	ForwardBytes int64         // the same
	// What was sent to the node since the link was made: Raft messages, calls, and
	// answers to its calls.
	Raft, Calls, Answers Sent
}

// Sent counts what was sent in frames: whatever waits at the same time shares one,
// for a frame costs far more than what is in it.
type Sent struct {
	Frames, Items uint64
}

// sent is where Sent is counted.
type sent struct{ frames, items atomic.Uint64 }

// frame counts a frame, unless there is nothing in it.
func (s *sent) frame(items int) {
	if items > 0 {
		s.frames.Add(1)
		s.items.Add(uint64(items))
	}
}

func (s *sent) read() Sent { return Sent{Frames: s.frames.Load(), Items: s.items.Load()} }

// ProbeInfo is what a broker says to whoever asks.
type ProbeInfo struct {
	Node      uint64
	StoreID   string
	ClusterID string // empty: none yet
	Formed    bool
	Digest    string // of the addresses that it was started with
}

// Adoption asks a broker to become a founder of a cluster.
type Adoption struct {
	ClusterID string
	Founders  []Peer
}

// JoinRequest asks a cluster to take a broker.
type JoinRequest struct {
	Node                         uint64
	StoreID                      string
	PeerAddr, HTTPAddr, RESPAddr string
	Version                      string
	Features                     []string
}

// JoinReply is what a broker that was taken has to know.
type JoinReply struct {
	ClusterID  string
	MetaRaftID uint64 // of its replica of the metadata
	Nodes      []Peer
}

// Times and sizes that bound what a peer can do to a broker.
const (
	dialTimeout      = time.Second
	handshakeTimeout = 2 * time.Second
	pingEvery        = time.Second
	// liveFor is how long somebody who was heard of counts as alive.
	liveFor   = 2 * time.Second
	minRedial = 50 * time.Millisecond
	maxRedial = 500 * time.Millisecond
	// lostGrace is how long after its deadline an answer is still waited for: the
	// other side answers at the deadline, so only a dead link needs it.
	lostGrace = 250 * time.Millisecond
	// expireEvery is how often deadlines are looked at.
	expireEvery = 25 * time.Millisecond
	// snapshotStall ends a snapshot that makes no progress.
	snapshotStall = 30 * time.Second
	// frameBytes is where a frame is cut, so that a lock is held, and a stream is
	// taken, for well below a millisecond.
	frameBytes = 256 << 10
	// maxFrameBytes is the largest frame that is read: one call or answer may fill
	// a queue.
	maxFrameBytes = 96 << 20
	// maxQuestionBytes is the largest unary request that is read, and
	// handshakeTimeout what it may take to come: anybody may send one.
	maxQuestionBytes = 64 << 10
)
