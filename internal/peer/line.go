package peer

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"connectrpc.com/connect"

	"github.com/felix-go/felix/internal/peer/peerv1/peerv1connect"
)

// line is the connection that one stream, or the unary calls to one address, is
// sent over: nothing else shares it, and closing it ends whatever uses it.
type line struct {
	ctx    context.Context
	cancel context.CancelCauseFunc
	client peerv1connect.PeerServiceClient

	mu     sync.Mutex
	conns  []net.Conn
	closed bool
}

var (
	errLineClosed = errors.New("the connection was closed")
	errHandshake  = errors.New("the handshake took too long")
	errStalled    = errors.New("the snapshot made no progress")
)

// line prepares a connection; it is made when it is first used.
func (n *Network) line(ctx context.Context, node uint64, addr string) *line {
	l := &line{}
	l.ctx, l.cancel = context.WithCancelCause(ctx)
	protocols, scheme := new(http.Protocols), "http"
	t := &http.Transport{Protocols: protocols, DisableCompression: true, HTTP2: http2Config()}
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) { return l.dial(ctx, n, node, addr) }
	if n.o.TLS == nil {
		protocols.SetUnencryptedHTTP2(true)
		t.DialContext = dial
	} else {
		scheme = "https"
		protocols.SetHTTP2(true)
		t.DialTLSContext = func(ctx context.Context, network, _ string) (net.Conn, error) {
			conn, err := dial(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			return n.secure(ctx, conn, addr)
		}
	}
	l.client = peerv1connect.NewPeerServiceClient(&http.Client{Transport: wholeMessages{t}}, scheme+"://"+addr,
		connect.WithGRPC(), connect.WithAcceptCompression("gzip", nil, nil), connect.WithReadMaxBytes(maxFrameBytes))
	return l
}

// http2Config makes a dead peer be noticed within two seconds, on both sides.
func http2Config() *http.HTTP2Config {
	return &http.HTTP2Config{SendPingTimeout: time.Second, PingTimeout: time.Second, WriteByteTimeout: 2 * time.Second,
		MaxReceiveBufferPerStream: 1 << 20}
}

func (l *line) dial(ctx context.Context, n *Network, node uint64, addr string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	conn, err := n.o.Dial(ctx, node, addr)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		_ = conn.Close() // nobody waits for it any more
		return nil, errLineClosed
	}
	l.conns = append(l.conns, conn)
	return conn, nil
}

// secure does the TLS handshake of a connection that was dialled.
func (n *Network) secure(ctx context.Context, conn net.Conn, addr string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	config, err := n.certs.client(addr)
	if err != nil {
		_ = conn.Close() // it was not used
		return nil, err
	}
	secured := tls.Client(conn, config)
	if err := secured.HandshakeContext(ctx); err != nil {
		_ = conn.Close() // the handshake's error says why
		return nil, err
	}
	return secured, nil
}

// close ends the line; why is what its users hear.
func (l *line) close(why error) {
	l.cancel(why)
	l.mu.Lock()
	conns := l.conns
	l.conns, l.closed = nil, true
	l.mu.Unlock()
	for _, c := range conns {
		_ = c.Close() // it is done with, whatever it says
	}
}

// within closes the line if what follows takes longer than d; stop says that it
// did not.
func (l *line) within(d time.Duration, why error) (stop func() bool) {
	return time.AfterFunc(d, func() { l.close(why) }).Stop
}

// why explains an error of the line: closed on purpose, it was for a reason.
func (l *line) why(err error) error {
	if l.ctx.Err() != nil {
		return context.Cause(l.ctx)
	}
	return err
}

func isEOF(err error) bool { return errors.Is(err, io.EOF) }

// wholeMessages makes a request's body answer with a message's prefix and what
// follows it together: connect writes the two one after the other, and net/http
// would send each on its own, which costs a third more processor time a call.
type wholeMessages struct{ next http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (w wholeMessages) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Body != nil && r.ContentLength < 0 { // a stream
		r = r.Clone(r.Context())
		r.Body = &wholeBody{ReadCloser: r.Body}
	}
	return w.next.RoundTrip(r)
}

// wholeBody reads a pipe into which prefixes are written on their own. If that
// should ever change, it only passes on what it reads.
type wholeBody struct {
	io.ReadCloser
	left  uint32 // of the message whose prefix was read
	plain bool   // it is not as expected
}

// messagePrefix is gRPC's: a byte of flags and four of length.
const messagePrefix = 5

// Read implements io.Reader.
func (b *wholeBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	switch {
	case b.plain || n == 0:
		return n, err
	case b.left > 0:
		b.passed(n)
		return n, err
	case n != messagePrefix:
		b.plain = true
		return n, err
	}
	b.left = binary.BigEndian.Uint32(p[1:])
	if b.left == 0 || len(p) == n || err != nil {
		return n, err
	}
	more, err := b.ReadCloser.Read(p[n:])
	b.passed(more)
	return n + more, err
}

func (b *wholeBody) passed(n int) {
	if uint64(n) > uint64(b.left) {
		b.plain = true
		return
	}
	b.left -= uint32(n)
}
