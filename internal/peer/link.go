package peer

import (
	"context"
	"errors"
	"math"
	"sync"
	"time"

	"connectrpc.com/connect"

	"github.com/felix-go/felix/internal/peer/peerv1"
)

// link is the dialling side of what one peer is sent: a stream of Raft messages
// and one of calls, each made anew for as long as the peer is wanted.
type link struct {
	n       *Network
	node    uint64
	storeID string
	ctx     context.Context
	cancel  context.CancelFunc
	raft    *raftQueue
	forward *forwarder
	answers sent             // to the peer's calls
	poke    [2]chan struct{} // dial now: for the two streams

	mu       sync.Mutex
	told     string // address, by SetPeers
	addr     string // address to dial
	also     string // another one to try, while the peer was not found yet
	up       bool
	since    time.Duration
	heard    time.Duration // of the last pong, or of the welcome before the first
	peer     Identity      // of the process that the Raft stream leads to, while up
	greeted  [2]greeted    // the two streams, while they are up
	lastWhy  string        // why there is no link, as logged last
	refused  string
	pingSeq  uint64
	pingSent time.Duration
}

// greeted is a stream that has passed its handshake.
type greeted struct {
	line *line
	id   Identity
}

// What a stream is for.
const (
	raftStream = iota
	forwardStream
	snapshotStream
)

func (n *Network) newLink(p Peer) *link {
	l := &link{n: n, node: p.Node, storeID: p.StoreID, told: p.Addr, addr: p.Addr, also: p.Also, since: n.o.Mono(),
		raft: newRaftQueue(n.o.RaftQueueBytes), forward: newForwarder(n.o.Mono, n.o.ForwardQueueBytes),
		poke: [2]chan struct{}{make(chan struct{}, 1), make(chan struct{}, 1)}}
	l.ctx, l.cancel = context.WithCancel(n.ctx)
	return l
}

// tell takes what SetPeers says of the peer; false means that it is another one.
func (l *link) tell(p Peer) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if p.StoreID != l.storeID {
		return false
	}
	if p.Addr != l.told {
		l.told, l.addr = p.Addr, p.Addr
	}
	return true
}

// moved takes the address that the peer gives. It has just come, so it is there.
func (l *link) moved(addr string) {
	l.mu.Lock()
	l.addr, l.also = addr, ""
	l.mu.Unlock()
	for _, c := range l.poke {
		signal(c)
	}
}

// found says whether the peer was at an address. Until it was, the next attempt
// is at the other one.
func (l *link) found(addr string, is bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case is:
		l.also = ""
	case l.also != "" && addr == l.addr:
		l.addr, l.also = l.also, l.addr
	}
}

func (l *link) target() Peer {
	l.mu.Lock()
	defer l.mu.Unlock()
	return Peer{Node: l.node, StoreID: l.storeID, Addr: l.addr}
}

func (l *link) info() LinkInfo {
	l.mu.Lock()
	i := LinkInfo{Node: l.node, Addr: l.addr, Up: l.up, Since: l.since, LastHeard: l.heard, Refused: l.refused}
	l.mu.Unlock()
	i.RaftBytes, i.ForwardBytes = l.raft.waiting(), l.forward.waiting()
	i.Raft, i.Calls, i.Answers = l.raft.sent.read(), l.forward.count.read(), l.answers.read()
	return i
}

// otherInstance is the address of another process than instance that the link
// leads to, if it was heard of lately.
func (l *link) otherInstance(instance string, now time.Duration) (addr string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.up && l.peer.Instance != instance && now-l.heard < liveFor {
		return l.peer.Addr
	}
	return ""
}

// keep runs a stream again and again.
func (l *link) keep(kind int, run func(line *line, p Peer) (greeted bool, err error)) {
	wait := minRedial
	for l.ctx.Err() == nil {
		p := l.target()
		line := l.n.line(l.ctx, p.Node, p.Addr)
		greeted, err := run(line, p)
		line.close(errLineClosed)
		l.noteGreeted(kind, nil, Identity{})
		if greeted {
			wait = minRedial
		}
		if kind == raftStream && l.ctx.Err() == nil {
			l.log(p, err)
			l.found(p.Addr, greeted)
		}
		redial := time.NewTimer(wait)
		select {
		case <-redial.C:
		case <-l.poke[kind]:
		case <-l.ctx.Done():
		}
		redial.Stop()
		wait = min(2*wait, maxRedial)
	}
}

// log says why there is no link, once for each reason.
func (l *link) log(p Peer, err error) {
	why := ""
	if err != nil {
		why = err.Error()
	}
	l.mu.Lock()
	again := why == l.lastWhy
	l.lastWhy = why
	l.mu.Unlock()
	if !again {
		l.n.log.Warn("no link to a peer", "node", p.Node, "addr", p.Addr, "why", why)
	}
}

// greet is the handshake of a stream that was dialled.
func (l *link) greet(kind int, line *line, p Peer, send func(*peerv1.Hello) error, receive func() (frame, error)) (Identity, error) {
	stop := line.within(handshakeTimeout, errHandshake)
	id, refused, err := l.n.greet(p, send, receive)
	if !stop() && err == nil {
		err = errHandshake
	}
	if err == nil && kind != snapshotStream { // which ends by itself
		l.noteGreeted(kind, line, id)
		err = l.n.again(id) // before Recheck could see it, something may have changed
	}
	err = line.why(err)
	var r *Refusal
	isRefusal := errors.As(err, &r)
	l.mu.Lock()
	l.refused = ""
	if isRefusal {
		l.refused = r.Message
	}
	l.mu.Unlock()
	if isRefusal && refused {
		l.n.o.Handler.Refused(l.node, r)
	}
	return id, err
}

// noteGreeted notes whom a stream leads to; a nil line is none.
func (l *link) noteGreeted(kind int, line *line, id Identity) {
	l.mu.Lock()
	l.greeted[kind] = greeted{line, id}
	l.mu.Unlock()
}

// recheck cuts the streams that lead to somebody who is refused by now.
func (l *link) recheck() {
	l.mu.Lock()
	streams := l.greeted
	l.mu.Unlock()
	for _, s := range streams {
		if s.line == nil {
			continue
		}
		if err := l.n.again(s.id); err != nil {
			s.line.close(err)
		}
	}
}

func (l *link) keepRaft() { l.keep(raftStream, l.runRaft) }

func (l *link) runRaft(line *line, p Peer) (greeted bool, err error) {
	stream := line.client.Raft(line.ctx)
	id, err := l.greet(raftStream, line, p,
		func(h *peerv1.Hello) error {
			return stream.Send(&peerv1.RaftFrame{Kind: &peerv1.RaftFrame_Hello{Hello: h}})
		},
		func() (frame, error) { return stream.Receive() })
	if err != nil {
		return false, err
	}
	l.setUp(true, id)
	var sender sync.WaitGroup
	sender.Go(func() {
		line.close(l.sendRaft(line.ctx, stream.Send))
	})
	for err == nil {
		var f *peerv1.RaftFrame
		if f, err = stream.Receive(); err == nil {
			l.pong(f.GetPong())
		}
	}
	err = line.why(localError(err))
	line.close(err)
	sender.Wait()
	l.setUp(false, Identity{})
	return true, err
}

// setUp says whether Raft messages reach the peer.
func (l *link) setUp(up bool, id Identity) {
	l.mu.Lock()
	l.up, l.since, l.peer = up, l.n.o.Mono(), id
	if up {
		l.heard, l.lastWhy = l.since, ""
	}
	l.mu.Unlock()
	dropped := l.raft.setUp(up)
	if len(dropped) > 0 {
		l.n.o.Handler.DroppedRaft(l.node, dropped)
	}
	l.n.o.Handler.LinkChanged(l.node, up)
}

// sendRaft sends what is queued, and a ping now and then, until something fails.
func (l *link) sendRaft(ctx context.Context, send func(*peerv1.RaftFrame) error) error {
	pings := time.NewTicker(pingEvery)
	defer pings.Stop()
	if err := send(l.ping()); err != nil {
		return err
	}
	var buf []byte
	for {
		b, err := l.raft.take(reuse(buf))
		if err != nil {
			return err
		}
		if buf = b; len(b) > 0 {
			if err := send(&peerv1.RaftFrame{Kind: &peerv1.RaftFrame_Batch{Batch: b}}); err != nil {
				return err
			}
			select {
			case <-pings.C: // there is always something to send
			default:
				continue
			}
		} else {
			select {
			case <-l.raft.wake:
				continue
			case <-ctx.Done():
				return context.Cause(ctx)
			case <-pings.C:
			}
		}
		if err := send(l.ping()); err != nil {
			return err
		}
	}
}

func (l *link) ping() *peerv1.RaftFrame {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pingSeq++
	l.pingSent = l.n.o.Mono()
	return &peerv1.RaftFrame{Kind: &peerv1.RaftFrame_Ping{Ping: &peerv1.ClockPing{Seq: l.pingSeq}}}
}

// pong takes the answer to a ping. Only the last one's tells a time: an older one
// was on its way for a second or more.
func (l *link) pong(p *peerv1.ClockPong) {
	if p == nil {
		return
	}
	received := l.n.o.Mono()
	l.mu.Lock()
	l.heard = received
	latest, sent := p.GetSeq() == l.pingSeq, l.pingSent
	l.mu.Unlock()
	if latest {
		l.n.o.Handler.Clock(l.node, Pong{WallMillis: p.GetWallMillis(), Eligible: p.GetClockEligible(), Stopping: p.GetStopping()},
			sent, received)
	}
}

func (l *link) keepForward() { l.keep(forwardStream, l.runForward) }

func (l *link) runForward(line *line, p Peer) (greeted bool, err error) {
	stream := line.client.Forward(line.ctx)
	id, err := l.greet(forwardStream, line, p,
		func(h *peerv1.Hello) error {
			return stream.Send(&peerv1.ForwardFrame{Kind: &peerv1.ForwardFrame_Hello{Hello: h}})
		},
		func() (frame, error) { return stream.Receive() })
	if err != nil {
		return false, err
	}
	l.forward.open(id.protocol)
	var sender sync.WaitGroup
	sender.Go(func() { line.close(l.sendCalls(line.ctx, stream.Send)) })
	looked, err := l.receiveAnswers(stream)
	// The sender has ended before another stream begins: it must not take calls
	// that are numbered for that one.
	err = line.why(localError(err))
	line.close(err)
	sender.Wait()
	l.forward.close(looked)
	return true, err
}

// sendCalls sends what is queued until something fails.
func (l *link) sendCalls(ctx context.Context, send func(*peerv1.ForwardFrame) error) error {
	var buf []byte
	for {
		b := l.forward.take(reuse(buf))
		if buf = b; len(b) == 0 {
			select {
			case <-l.forward.wake:
				continue
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		if err := send(&peerv1.ForwardFrame{Kind: &peerv1.ForwardFrame_Calls{Calls: b}}); err != nil {
			return err
		}
	}
}

// errGoodbye is how a stream ends when the peer stops.
var errGoodbye = errors.New("the peer is stopping")

// receiveAnswers takes answers until the stream ends. looked is the last call
// that the peer may have looked at.
func (l *link) receiveAnswers(stream *connect.BidiStreamForClient[peerv1.ForwardFrame, peerv1.ForwardFrame]) (looked uint64, err error) {
	for {
		f, err := stream.Receive()
		if err != nil {
			return math.MaxUint64, err
		}
		switch k := f.GetKind().(type) {
		case *peerv1.ForwardFrame_Answers:
			if err := l.forward.answers(k.Answers); err != nil {
				return math.MaxUint64, err
			}
		case *peerv1.ForwardFrame_Goodbye:
			return k.Goodbye.GetLastCall(), errGoodbye
		}
	}
}
