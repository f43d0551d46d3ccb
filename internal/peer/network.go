package peer

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"connectrpc.com/connect"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/peer/peerv1/peerv1connect"
)

// Network is a broker's side of all its links.
type Network struct {
	o      Options
	log    *slog.Logger
	ln     net.Listener
	certs  *certs // nil: plain
	server *http.Server
	ctx    context.Context // ends with the Network
	cancel context.CancelFunc

	running sync.WaitGroup // goroutines of ours, streams that others opened included
	drained chan struct{}  // one token: something has become idle
	sending chan struct{}  // a token for each snapshot on its way out
	taking  chan struct{}  // the same, in

	mu       sync.Mutex
	peers    map[uint64]*link
	inbound  map[*inbound]struct{}
	draining bool // no new streams; calls are refused
	closed   bool
}

// inbound is a stream that another broker opened.
type inbound struct {
	id    Identity
	conn  net.Conn
	calls *Link // of a Forward stream
	kind  int
	heard time.Duration // under Network.mu
}

// New makes a Network that listens on ln once Serve is called.
func New(ln net.Listener, o Options) (*Network, error) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Dial == nil {
		o.Dial = func(ctx context.Context, _ uint64, addr string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", addr)
		}
	}
	if o.Mono == nil {
		start := time.Now()
		o.Mono = func() time.Duration { return time.Since(start) }
	}
	o.RaftQueueBytes, o.ForwardQueueBytes = queueBytes(o.RaftQueueBytes), queueBytes(o.ForwardQueueBytes)
	n := &Network{o: o, log: o.Logger, ln: ln, peers: map[uint64]*link{}, inbound: map[*inbound]struct{}{},
		drained: make(chan struct{}, 1), sending: make(chan struct{}, felix.MaxSnapshotStreams),
		taking: make(chan struct{}, felix.MaxSnapshotStreams)}
	n.ctx, n.cancel = context.WithCancel(context.Background())
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(o.TLS == nil)
	protocols.SetHTTP2(o.TLS != nil)
	path, handler := peerv1connect.NewPeerServiceHandler(&service{n: n},
		connect.WithCompression("gzip", nil, nil), connect.WithReadMaxBytes(maxFrameBytes), connect.WithConditionalHandlerOptions(boundQuestions))
	mux := http.NewServeMux()
	mux.Handle(path, hurryQuestions(handler))
	n.server = &http.Server{Handler: mux, Protocols: protocols, HTTP2: http2Config(), ReadHeaderTimeout: handshakeTimeout,
		ErrorLog:    slog.NewLogLogger(o.Logger.Handler(), slog.LevelDebug),
		ConnContext: func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, connKey{}, c) }}
	if o.TLS != nil {
		var err error
		if n.certs, err = loadCerts(*o.TLS, o.Logger); err != nil {
			n.cancel()
			return nil, err
		}
		n.server.TLSConfig = n.certs.server()
	}
	n.running.Go(n.expire)
	return n, nil
}

// boundQuestions bounds the size of unary requests.
func boundQuestions(spec connect.Spec) []connect.HandlerOption {
	if spec.StreamType != connect.StreamTypeUnary {
		return nil
	}
	return []connect.HandlerOption{connect.WithReadMaxBytes(maxQuestionBytes)}
}

// hurryQuestions bounds the time in which unary requests come. Streams have a
// bound for their handshake.
func hurryQuestions(handler http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case peerv1connect.PeerServiceRaftProcedure, peerv1connect.PeerServiceForwardProcedure, peerv1connect.PeerServiceSnapshotProcedure:
		default:
			if err := http.NewResponseController(w).SetReadDeadline(time.Now().Add(handshakeTimeout)); err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
				return
			}
		}
		handler.ServeHTTP(w, r)
	})
}

func queueBytes(asked int64) int64 {
	if asked <= 0 || asked > felix.MaxPeerQueueBytes {
		return felix.MaxPeerQueueBytes
	}
	return asked
}

// connKey is where a request's connection is in its context.
type connKey struct{}

// Serve answers peers until Shutdown; its error is nil then.
func (n *Network) Serve() error {
	var err error
	if n.certs != nil {
		err = n.server.ServeTLS(n.ln, "", "")
	} else {
		err = n.server.Serve(n.ln)
	}
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// expire looks at the deadlines of calls.
func (n *Network) expire() {
	ticks := time.NewTicker(expireEvery)
	defer ticks.Stop()
	for {
		select {
		case <-ticks.C:
		case <-n.ctx.Done():
			return
		}
		for _, l := range n.links() {
			l.forward.expire()
		}
	}
}

func (n *Network) links() []*link {
	n.mu.Lock()
	defer n.mu.Unlock()
	all := make([]*link, 0, len(n.peers))
	for _, l := range n.peers {
		all = append(all, l)
	}
	slices.SortFunc(all, func(a, b *link) int { return cmp.Compare(a.node, b.node) })
	return all
}

func (n *Network) link(node uint64) *link {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.peers[node]
}

// SetPeers says whom to keep links to; this broker itself is passed over. New
// ones are dialled, others dropped, and what they have opened is cut: if they
// come again, they are checked again. The address that a peer gives in a handshake
// goes before the one given here, until that changes.
func (n *Network) SetPeers(peers []Peer) {
	self := n.o.Handler.Self().Node
	var dropped []*link
	n.mu.Lock()
	kept := map[uint64]*link{}
	for _, p := range peers {
		if p.Node == self || n.closed {
			continue
		}
		l := n.peers[p.Node]
		if l == nil || !l.tell(p) {
			if l != nil {
				dropped = append(dropped, l)
			}
			l = n.newLink(p)
			n.running.Go(l.keepRaft)
			n.running.Go(l.keepForward)
		}
		kept[p.Node] = l
	}
	for node, l := range n.peers {
		if kept[node] == nil {
			dropped = append(dropped, l)
		}
	}
	for in := range n.inbound {
		if n.peers[in.id.Node] != nil && kept[in.id.Node] == nil {
			in.cut()
		}
	}
	n.peers = kept
	n.mu.Unlock()
	for _, l := range dropped {
		l.cancel()
	}
}

// Recheck checks those again whose streams are up, in either direction: whoever
// is refused by now is cut off. It is to be called whenever Handler.Check may say
// something else than before.
func (n *Network) Recheck() {
	n.mu.Lock()
	streams := make([]*inbound, 0, len(n.inbound))
	for in := range n.inbound {
		streams = append(streams, in)
	}
	n.mu.Unlock()
	for _, in := range streams {
		if n.again(in.id) != nil {
			in.cut()
		}
	}
	for _, l := range n.links() {
		l.recheck()
	}
}

// SendRaft queues messages for a node. It does not block: what cannot be queued
// is dropped, and Handler.DroppedRaft told of the MsgApps.
func (n *Network) SendRaft(node uint64, ms []Message) {
	var dropped []uint64
	if l := n.link(node); l != nil {
		dropped = l.raft.add(ms)
	} else {
		dropped = newRaftQueue(0).add(ms)
	}
	if len(dropped) > 0 {
		n.o.Handler.DroppedRaft(node, dropped)
	}
}

// Forward sends a call to a node. It does not block; c.Done is called once, for
// a call that cannot be queued from inside Forward.
func (n *Network) Forward(node uint64, c *Call) {
	c.Outcome, c.Owner, c.Err = Answered, 0, nil // of an attempt before
	if l := n.link(node); l != nil {
		l.forward.add(c)
		return
	}
	tell([]*Call{c}, NotSent)
}

// Links tells of all links, in order of their nodes.
func (n *Network) Links() []LinkInfo {
	var all []LinkInfo
	for _, l := range n.links() {
		all = append(all, l.info())
	}
	return all
}

// moved notes where a peer that has come is to be dialled.
func (n *Network) moved(id Identity) {
	if l := n.link(id.Node); l != nil && id.Addr != "" {
		l.moved(id.Addr)
	}
}

// enter registers a stream that a peer has opened, unless the Network is stopping
// or another process of the node came first. An older stream of the same kind and
// process is closed: the peer has given it up.
func (n *Network) enter(in *inbound) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.draining {
		return errStopping
	}
	if other := n.other(in.id); other != nil {
		return other
	}
	for old := range n.inbound {
		if in.kind != snapshotStream && old.kind == in.kind && old.id.Node == in.id.Node && old.id.Instance == in.id.Instance {
			old.cut()
		}
	}
	if in.kind == forwardStream {
		in.calls = newLink(in.id.Node, n.o.ForwardQueueBytes)
		in.calls.onDrained = func() { signal(n.drained) }
		in.calls.overflow = in.cut
		if l := n.peers[in.id.Node]; l != nil {
			in.calls.count = &l.answers
		}
	}
	in.heard = n.o.Mono()
	n.inbound[in] = struct{}{}
	n.running.Add(1)
	return nil
}

// cut ends the stream: whoever reads from it hears of it. Closing a connection
// with TLS may wait for a dead peer, so that nobody waits here.
func (in *inbound) cut() {
	go func() { _ = in.conn.Close() }()
}

// begin registers a question; the caller has to call n.running.Done. It says no
// when the Network is stopping.
func (n *Network) begin() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.draining {
		n.running.Add(1)
	}
	return !n.draining
}

// left undoes enter.
func (n *Network) left(in *inbound) {
	n.mu.Lock()
	delete(n.inbound, in)
	n.mu.Unlock()
	signal(n.drained)
	n.running.Done()
}

// hear notes that a stream's peer is alive.
func (n *Network) hear(in *inbound) {
	n.mu.Lock()
	in.heard = n.o.Mono()
	n.mu.Unlock()
}

// otherInstance refuses id if another process acts as its node, and was heard of
// lately.
func (n *Network) otherInstance(id Identity) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.other(id)
}

// other is otherInstance; n.mu is held.
func (n *Network) other(id Identity) error {
	addr, now := "", n.o.Mono()
	for in := range n.inbound {
		if in.kind == raftStream && in.id.Node == id.Node && in.id.Instance != id.Instance && now-in.heard < liveFor {
			addr = in.id.Addr
		}
	}
	if l := n.peers[id.Node]; l != nil && addr == "" {
		addr = l.otherInstance(id.Instance, now)
	}
	if addr == "" {
		return nil
	}
	return refusal(ReasonInstance, "another process already acts as node %d, at %s: is this a copied directory?", id.Node, addr)
}

// Shutdown refuses new calls, answers what is in flight, says goodbye and closes
// everything. When ctx ends first, what is left is lost to its callers. When it
// returns, the Handler is told nothing any more.
func (n *Network) Shutdown(ctx context.Context) error {
	n.mu.Lock()
	n.draining = true
	for in := range n.inbound {
		if in.calls != nil {
			in.calls.drain()
		}
	}
	n.mu.Unlock()
	for _, l := range n.links() {
		l.forward.whenDrained(func() { signal(n.drained) })
	}
	err := n.await(ctx, n.idle)
	n.mu.Lock()
	for in := range n.inbound {
		if in.calls != nil {
			in.calls.leave()
		}
	}
	n.mu.Unlock()
	err = errors.Join(err, n.await(ctx, func() bool {
		n.mu.Lock()
		defer n.mu.Unlock()
		for in := range n.inbound {
			if in.calls != nil {
				return false
			}
		}
		return true
	}))
	n.mu.Lock()
	n.closed = true
	n.mu.Unlock()
	n.SetPeers(nil)
	n.cancel()
	err = errors.Join(err, n.server.Close())
	_ = n.ln.Close() // the server has closed it, if it ever served
	n.running.Wait()
	return err
}

// idle says whether no call is in flight, in or out.
func (n *Network) idle() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	for in := range n.inbound {
		if in.calls != nil && !in.calls.idle() {
			return false
		}
	}
	for _, l := range n.peers {
		if !l.forward.idle() {
			return false
		}
	}
	return true
}

// await waits until done is true, looking whenever something has become idle.
func (n *Network) await(ctx context.Context, done func() bool) error {
	for !done() {
		select {
		case <-n.drained:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}
