package peer

import (
	"context"
	"net"
	"os"
	"sync"
	"time"
)

func timeout(d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), d)
}

// wire makes connections that a test can cut, hold and slow down.
type wire struct {
	mu    sync.Mutex
	conns map[*wireConn]bool
	held  chan struct{} // closed: nothing is held
	after int           // if positive: cut a connection after it has sent so many bytes more
}

func newWire() *wire {
	w := &wire{conns: map[*wireConn]bool{}, held: make(chan struct{})}
	close(w.held)
	return w
}

func (w *wire) dial(ctx context.Context, _ uint64, addr string) (net.Conn, error) {
	w.mu.Lock()
	held := w.held
	w.mu.Unlock()
	select {
	case <-held:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	c, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	conn := &wireConn{Conn: c, w: w, closed: make(chan struct{})}
	w.mu.Lock()
	w.conns[conn] = true
	w.mu.Unlock()
	return conn, nil
}

// cut breaks all connections.
func (w *wire) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for c := range w.conns {
		_ = c.Conn.Close() // it is broken on purpose
	}
	clear(w.conns)
}

// hold keeps what is sent, as a network that drops packets does.
func (w *wire) hold() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.held = make(chan struct{})
}

func (w *wire) release() {
	w.mu.Lock()
	defer w.mu.Unlock()
	close(w.held)
}

// cutAfter cuts the connection that sends the n-th byte from now, in the middle
// of its write.
func (w *wire) cutAfter(n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.after = n
}

type wireConn struct {
	net.Conn
	w      *wire
	once   sync.Once
	closed chan struct{}
}

func (c *wireConn) Write(b []byte) (int, error) {
	c.w.mu.Lock()
	held, cut := c.w.held, -1
	if c.w.after > 0 {
		if c.w.after <= len(b) {
			cut = c.w.after
			c.w.after = 0
		} else {
			c.w.after -= len(b)
		}
	}
	c.w.mu.Unlock()
	select {
	case <-held:
	case <-c.closed:
		return 0, os.ErrClosed
	}
	if cut >= 0 {
		n, _ := c.Conn.Write(b[:cut])
		_ = c.Close()
		return n, os.ErrClosed
	}
	return c.Conn.Write(b)
}

func (c *wireConn) Close() error {
	c.once.Do(func() {
		close(c.closed)
		c.w.mu.Lock()
		delete(c.w.conns, c)
		c.w.mu.Unlock()
	})
	return c.Conn.Close()
}

// slowListener accepts connections that read few bytes a second.
type slowListener struct {
	net.Listener
	bytes int
	every time.Duration
}

func (l slowListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	if tcp, ok := c.(*net.TCPConn); ok {
		if err := tcp.SetReadBuffer(4 << 10); err != nil {
			return nil, err
		}
	}
	return &slowConn{Conn: c, l: l}, nil
}

type slowConn struct {
	net.Conn
	l    slowListener
	read int
}

// Read lets the handshake through, and crawls then.
func (c *slowConn) Read(b []byte) (int, error) {
	if c.read > 4<<10 {
		time.Sleep(c.l.every)
		b = b[:min(len(b), c.l.bytes)]
	}
	n, err := c.Conn.Read(b)
	c.read += n
	return n, err
}
