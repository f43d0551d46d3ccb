package netloop

import (
	"net"
	"sync"
	"time"
)

// drainLinger is how long a draining server waits for each client to close: it
// takes out input that is there already, and no more.
const drainLinger = 10 * time.Millisecond

// maxIdleScratch bounds the answer buffer that an idle connection keeps.
const maxIdleScratch = 1 << 10

// portable serves each connection from a goroutine of its own, with blocking
// reads and writes. It is for systems without epoll and for listeners that are
// no plain sockets. An idle connection holds its goroutine and one small
// buffer. It does not notice that a client has gone while a turn is under way.
type portable struct {
	srv  *Server
	pool pool

	mu       sync.Mutex
	open     map[*pconn]struct{} // guarded by mu
	draining bool                // guarded by mu; once set no connection is added and none reads
	ended    chan struct{}       // closed when draining and open is empty
}

// pconn is a connection with an engine for it alone.
type pconn struct {
	engine
	conn
	drv  *portable
	wake chan struct{} // holds a token when the engine has news
}

func newPortable(s *Server) *portable {
	return &portable{srv: s, open: make(map[*pconn]struct{}), ended: make(chan struct{})}
}

func (p *portable) accept() (socket, error) {
	nc, err := p.srv.ln.Accept()
	if err != nil {
		return socket{}, err
	}
	return socket{nc: nc, remote: nc.RemoteAddr()}, nil
}

func (p *portable) start(s socket) {
	c := &pconn{drv: p, wake: make(chan struct{}, 1)}
	c.nc = s.nc
	c.init(p.srv, c, &p.pool)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.draining {
		_ = s.nc.Close() // nothing was read from it
		p.srv.stats.conns.Add(-1)
		return
	}
	p.open[c] = struct{}{}
	go c.run(s.remote)
}

func (p *portable) refuse(s socket, msg []byte) {
	go func() {
		_ = s.nc.SetDeadline(time.Now().Add(lingerFor))
		_, _ = s.nc.Write(msg) // best effort: the client is turned away either way
		hangUp(s.nc, lingerFor)
	}()
}

func (p *portable) drain() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.draining = true
	for c := range p.open {
		_ = c.nc.SetReadDeadline(time.Unix(1, 0)) // ends the read that waits
	}
	if len(p.open) == 0 {
		close(p.ended)
	}
}

func (p *portable) force() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.open {
		_ = c.nc.Close() // its goroutine sees the error
	}
}

func (p *portable) done() <-chan struct{} { return p.ended }

func (p *portable) leave(c *pconn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.open, c)
	p.srv.stats.conns.Add(-1)
	if p.draining && len(p.open) == 0 {
		close(p.ended)
	}
}

func (p *portable) isDraining() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.draining
}

// run is the life of a connection.
func (c *pconn) run(remote net.Addr) {
	c.sess = c.srv.opts.Handler.NewSession(remote)
	for {
		c.resume(&c.conn)
		for c.busy {
			c.submit()
			c.publish()
			<-c.wake
			c.collect()
		}
		c.publish()
		if c.dead || c.closing || c.eof || !c.read() {
			break
		}
	}
	c.sess.Closed()
	switch {
	case c.dead:
	case c.eof:
		_ = c.nc.Close() // everything was answered
	case c.drv.isDraining():
		hangUp(c.nc, drainLinger)
	default:
		hangUp(c.nc, lingerFor)
	}
	c.publish()
	c.drv.leave(c)
}

// read waits for input. It says false if there will be none: the client has
// gone or was idle too long, or the server drains.
func (c *pconn) read() bool {
	c.hint = 0 // what is held while nothing comes is to be small
	if cap(c.scratch) > maxIdleScratch {
		c.scratch = nil
	}
	room := c.room(c.engine.pool, c.limit(&c.srv.opts))
	if room == nil {
		c.srv.tooLarge(c.nc.RemoteAddr())
		return false
	}
	if idle := c.srv.opts.IdleTimeout; idle > 0 {
		_ = c.nc.SetReadDeadline(time.Now().Add(idle))
	}
	if c.drv.isDraining() { // looked at after the deadline was set: drain sets its own after it
		return false
	}
	n, err := c.nc.Read(room)
	c.w += n
	c.stats.in += uint64(n)
	if err != nil {
		c.eof = true // what came before is still answered
	}
	return n > 0
}

// send implements wire with a blocking write.
func (c *pconn) send(_ *conn, p []byte) bool {
	if idle := c.srv.opts.IdleTimeout; idle > 0 {
		_ = c.nc.SetWriteDeadline(time.Now().Add(idle))
	}
	n, err := c.nc.Write(p)
	c.stats.out += uint64(n)
	if err != nil {
		c.dead = true
		_ = c.nc.Close() // the write's error is the reason
	}
	return true
}

// settle implements wire: run sees what is to be done.
func (c *pconn) settle(*conn) {}

// end implements wire: run sees that the connection is dead.
func (c *pconn) end(*conn) {}

// wakeLocked implements wire.
func (c *pconn) wakeLocked() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// hangUp closes a connection whose client may still be sending: it tells the
// client that nothing more comes, and discards input until the client closes
// too or d is over, so that no reset destroys the last answer.
func hangUp(nc net.Conn, d time.Duration) {
	_ = nc.SetReadDeadline(time.Now().Add(d))
	if half, ok := nc.(interface{ CloseWrite() error }); ok && half.CloseWrite() == nil {
		var sink [512]byte
		for {
			if _, err := nc.Read(sink[:]); err != nil {
				break
			}
		}
	}
	_ = nc.Close() // all that could be said was said
}
