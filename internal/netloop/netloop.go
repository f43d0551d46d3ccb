package netloop

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/felix-go/felix"
)

const (
	// maxPace bounds one pacing wait whatever the pacer says, so that a disk
	// that hangs delays reads by this and no more.
	maxPace = 5 * time.Millisecond
	// lingerFor is how long a connection that Felix closes is kept open for
	// its client to read the last answer: closing at once would make the
	// kernel send a reset when input is still coming, and a reset destroys
	// answers that are on their way.
	lingerFor = time.Second
	// defaultMaxSlow bounds the Slow work of all connections: each walks whole
	// shards, and more of it at the same time makes none of it faster.
	defaultMaxSlow = 64
	// smallInput is what every connection may hold however little memory there
	// is: requests on counters always get through.
	smallInput = minBuffer * bufferStep
	// drainStall is Options.StallTimeout once the server shuts down, at most:
	// a client that does not read must not make the stop fail.
	drainStall = 5 * time.Second
	// acceptBackoffMin and acceptBackoffMax bound the pause after an accept
	// that failed because the machine has run out of something.
	acceptBackoffMin = 5 * time.Millisecond
	acceptBackoffMax = time.Second
)

// Options says how a server behaves. Only Handler must be set.
type Options struct {
	// Handler makes the sessions. It is called from several goroutines.
	Handler Handler
	// Pacer tells when the disk is the bottleneck; nil never paces.
	Pacer Pacer
	// Logger is told what an operator can act on; nil is slog.Default.
	Logger *slog.Logger
	// Loops is the number of event loops; 0 chooses one for every two of
	// GOMAXPROCS, since the broker needs the others.
	Loops int
	// MaxConnections bounds the open connections; one more is told
	// Handler.TooMany and closed. 0 means felix.MaxConnections.
	MaxConnections int
	// MaxPipelineBytes bounds what is read from a connection and not yet
	// answered. 0 means felix.MaxPipelineBytes.
	MaxPipelineBytes int
	// MaxRequestBytes bounds one request, protocol included: a connection
	// whose session has not found a whole request in so many bytes is closed.
	// A session should refuse earlier, in its protocol's words. 0 means twice
	// felix.MaxValueBytes: the largest value, its key, and what is around them.
	MaxRequestBytes int
	// MaxSlow bounds how many Turn.Slow run at the same time; more wait for
	// their turn. 0 means 64.
	MaxSlow int
	// MemoryBytes bounds the memory of all connections' buffers together; each
	// event loop has an equal share. Half of it is for input: when it is used
	// up, connections that hold more than a little are not read from, but for
	// one at a time. The other half is for answers that clients do not take: when it is used up,
	// the connections that owe most are closed. 0 means
	// felix.MaxConnectionBytes.
	MemoryBytes int
	// StallTimeout closes a connection that takes nothing of the answers that
	// wait for it for so long; and, when there is no memory for input, one that
	// was let go on all the same and whose request is not whole after so long.
	// 0 means felix.StallTimeout.
	StallTimeout time.Duration
	// IdleTimeout closes a connection on which no byte has moved for so long
	// while no turn of it was under way; it is checked about four times in
	// that time. 0 means never.
	IdleTimeout time.Duration
	// Portable uses a goroutine per connection, as on systems without epoll.
	// It never paces. A listener that is not a socket of the operating
	// system's (TLS, a test's pipe) implies it.
	Portable bool
}

func (o Options) withDefaults() Options {
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.Loops <= 0 {
		o.Loops = max(1, runtime.GOMAXPROCS(0)/2)
	}
	if o.MaxConnections <= 0 {
		o.MaxConnections = felix.MaxConnections
	}
	if o.MaxPipelineBytes <= 0 {
		o.MaxPipelineBytes = felix.MaxPipelineBytes
	}
	if o.MaxRequestBytes <= 0 {
		o.MaxRequestBytes = 2 * felix.MaxValueBytes
	}
	o.MaxRequestBytes = max(o.MaxRequestBytes, o.MaxPipelineBytes)
	if o.MaxSlow <= 0 {
		o.MaxSlow = defaultMaxSlow
	}
	if o.MemoryBytes <= 0 {
		o.MemoryBytes = felix.MaxConnectionBytes
	}
	if o.StallTimeout <= 0 {
		o.StallTimeout = felix.StallTimeout
	}
	return o
}

// Stats are counters for metrics. All but Connections and Unsent only grow.
type Stats struct {
	Connections int64  // open now
	Accepted    uint64 // connections that were served
	Refused     uint64 // connections closed at once: there were too many
	BytesIn     uint64 // read from sockets
	BytesOut    uint64 // written to sockets
	Turns       uint64 // turns answered
	Ops         uint64 // operations submitted
	Batches     uint64 // batches submitted; Ops/Batches is what gathering achieves
	Paced       uint64 // times a loop let requests gather while the disk was busy
	Unsent      int64  // now: memory of answers that clients have not taken
}

// counters is Stats in the making, shared by all loops, each of which adds
// once per iteration.
type counters struct {
	conns, unsent                                          atomic.Int64
	accepted, refused, in, out, turns, ops, batches, paced atomic.Uint64
}

// Server accepts connections and drives their sessions.
type Server struct {
	opts  Options
	ln    net.Listener
	log   *slog.Logger
	stats counters
	drv   driver

	maxPace time.Duration // the constant, but for tests

	slots  chan struct{}   // one token per running Slow
	ctx    context.Context // ends when Shutdown gives up or is complete
	cancel context.CancelFunc

	stopping chan struct{} // closed when Shutdown begins
	stopped  chan struct{} // closed when the first Shutdown returns
	once     sync.Once
}

// driver is a way to move bytes: event loops, or a goroutine per connection.
type driver interface {
	// accept waits for the next connection. After close of the listener it
	// answers net.ErrClosed.
	accept() (socket, error)
	// start serves a connection; after drain it closes it.
	start(s socket)
	// refuse sends msg, if the socket takes it at once, and closes.
	refuse(s socket, msg []byte)
	// drain answers what was read, reads no more, and closes each connection.
	drain()
	// force closes all sockets at once. Operations under way still finish.
	force()
	// done is closed when, after drain, no connection is left and every
	// goroutine of the driver has ended.
	done() <-chan struct{}
}

// socket is an accepted connection before it has a session: a raw descriptor
// for the event loops, a net.Conn for the portable driver.
type socket struct {
	fd     int
	nc     net.Conn
	remote net.Addr
}

// Listen makes a listener and a Server on it. network is "tcp", "tcp4", "tcp6"
// or "unix". Errors are those of net.Listen and New.
func Listen(network, addr string, o Options) (*Server, error) {
	ln, err := net.Listen(network, addr)
	if err != nil {
		return nil, err
	}
	s, err := New(ln, o)
	if err != nil {
		_ = ln.Close() // the reason is err
		return nil, err
	}
	return s, nil
}

// New makes a Server on ln and takes it over; call Serve to accept, and
// Shutdown in the end even if Serve was never called. It fails if Handler is
// missing or the system has no descriptors left.
func New(ln net.Listener, o Options) (*Server, error) {
	return newServer(ln, o, maxPace)
}

func newServer(ln net.Listener, o Options, maxPace time.Duration) (*Server, error) {
	if o.Handler == nil {
		return nil, errors.New("netloop: Options.Handler is missing")
	}
	o = o.withDefaults()
	s := &Server{
		opts: o, ln: ln, log: o.Logger, maxPace: maxPace,
		slots:    make(chan struct{}, o.MaxSlow),
		stopping: make(chan struct{}),
		stopped:  make(chan struct{}),
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	drv, err := newDriver(s)
	if err != nil {
		s.cancel()
		return nil, err
	}
	s.drv = drv
	return s, nil
}

// Addr is the listener's address, with the port that was chosen.
func (s *Server) Addr() net.Addr { return s.ln.Addr() }

// Stats reads the counters.
func (s *Server) Stats() Stats {
	c := &s.stats
	return Stats{
		Connections: c.conns.Load(), Accepted: c.accepted.Load(), Refused: c.refused.Load(),
		BytesIn: c.in.Load(), BytesOut: c.out.Load(),
		Turns: c.turns.Load(), Ops: c.ops.Load(), Batches: c.batches.Load(), Paced: c.paced.Load(),
		Unsent: c.unsent.Load(),
	}
}

// inputShare is what the input buffers of one of so many pools may take before
// connections are held back: enough for the largest request in any case.
func (s *Server) inputShare(pools int) int {
	return max(s.opts.MemoryBytes/2/pools, s.opts.MaxRequestBytes)
}

// stallTimeout is how long a client may take nothing of its answers.
func (s *Server) stallTimeout() time.Duration {
	if s.isStopping() {
		return min(s.opts.StallTimeout, drainStall)
	}
	return s.opts.StallTimeout
}

// isStopping says whether Shutdown has begun.
func (s *Server) isStopping() bool {
	select {
	case <-s.stopping:
		return true
	default:
		return false
	}
}

// Serve accepts connections until Shutdown, then waits for it and answers nil.
// Any other error means that the listener is broken; connections that are open
// are served until Shutdown.
func (s *Server) Serve() error {
	var pause time.Duration
	for {
		sock, err := s.drv.accept()
		if err == nil {
			pause = 0
			s.admit(sock)
			continue
		}
		if s.isStopping() {
			<-s.stopped
			return nil
		}
		if !exhausted(err) {
			return fmt.Errorf("netloop: accepting on %s: %w", s.ln.Addr(), err)
		}
		pause = min(max(2*pause, acceptBackoffMin), acceptBackoffMax)
		s.log.Warn("cannot accept a connection: the machine or this process has run out of descriptors or memory; "+
			"raise the limit of open files (ulimit -n) or lower the number of connections",
			"addr", s.ln.Addr().String(), "error", err, "retry_in", pause)
		select {
		case <-s.stopping:
		case <-time.After(pause):
		}
	}
}

// exhausted says whether an accept failed for want of something that may come
// back.
func exhausted(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) ||
		errors.Is(err, syscall.ENOBUFS) || errors.Is(err, syscall.ENOMEM)
}

// admit counts the connection in, or turns it away. Only Serve's goroutine
// adds, so that the bound holds exactly.
func (s *Server) admit(sock socket) {
	if s.stats.conns.Load() >= int64(s.opts.MaxConnections) {
		s.stats.refused.Add(1)
		s.drv.refuse(sock, s.opts.Handler.TooMany())
		return
	}
	s.stats.conns.Add(1)
	s.stats.accepted.Add(1)
	s.drv.start(sock)
}

// Shutdown stops accepting, ends Waits, answers every whole request that had
// been read, and closes the connections between replies. A client that takes
// none of its answers holds it up for a few seconds only. When ctx ends first it ends the
// contexts of Slow work, closes the remaining sockets and answers an error; the
// operations under way then finish in the background. Further calls wait for
// the first.
func (s *Server) Shutdown(ctx context.Context) error {
	first := false
	s.once.Do(func() { first = true })
	if !first {
		select {
		case <-s.stopped:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	defer close(s.stopped)
	defer s.cancel()
	close(s.stopping)
	err := s.ln.Close()
	s.drv.drain()
	select {
	case <-s.drv.done():
		return err
	case <-ctx.Done():
	}
	left := s.stats.conns.Load()
	s.cancel()
	s.drv.force()
	return fmt.Errorf("netloop: %d connections were closed before everything read from them was answered: %w", left, ctx.Err())
}

// tooLarge logs that a connection is closed for a request beyond
// Options.MaxRequestBytes, which its session should have refused.
func (s *Server) tooLarge(remote net.Addr) {
	s.log.Warn("a connection was closed: it sent a request larger than any legal one",
		"remote", addrText(remote), "limit_bytes", s.opts.MaxRequestBytes)
}

func addrText(a net.Addr) string {
	if a == nil {
		return "unknown"
	}
	return a.String()
}
