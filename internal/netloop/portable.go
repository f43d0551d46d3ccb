package netloop

import (
	"net"
	"sync"
	"time"
)

// drainLinger is how long a draining server waits for each client to close: it
// takes out input that is there already, and no more.
const drainLinger = 10 * time.Millisecond

const (
	// maxIdleScratch bounds the answer buffer that an idle connection keeps.
	maxIdleScratch = 1 << 10
	// writeStep is written at a time: each has Options.StallTimeout.
	writeStep = 64 << 10
)

// portable serves each connection from a goroutine of its own, with blocking
// reads and writes. It is for systems without epoll and for listeners that are
// no plain sockets. An idle connection holds its goroutine and one small
// buffer. It does not notice that a client has gone while a turn is under way,
// and bounds the answers that clients do not take for each connection only: to
// what a session answers at a time.
type portable struct {
	srv  *Server
	pool pool
	room chan struct{} // holds a token when a buffer was given back: see waitForRoom
	// favour holds a token while a connection reads although there is no memory.
	favour chan struct{}

	mu       sync.Mutex
	open     map[*pconn]struct{} // guarded by mu
	draining bool                // guarded by mu; once set no connection is added and none reads
	ended    chan struct{}       // closed when draining and open is empty
}

// pconn is a connection with an engine for it alone.
type pconn struct {
	engine
	conn
	drv        *portable
	wake       chan struct{} // holds a token when the engine has news
	favourEnds time.Time     // while it has the token of portable.favour
	hasFavour  bool
}

func newPortable(s *Server) *portable {
	return &portable{srv: s, room: make(chan struct{}, 1), favour: make(chan struct{}, 1), open: make(map[*pconn]struct{}), ended: make(chan struct{})}
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
		c.wakeLocked()                            // ends a Wait
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
			if c.waits && c.drv.isDraining() {
				c.cancel()
			}
			<-c.wake
			c.collect()
		}
		c.publish()
		c.giveBack()
		if c.dead || c.closing || c.eof || !c.read() {
			break
		}
	}
	c.r = c.w
	c.release(c.engine.pool)
	c.favoured = false
	c.giveBack()
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
	limit := c.limit(&c.srv.opts)
	if c.drv.crowded() && !c.favoured {
		if crowded := c.crowdedLimit(limit); c.w-c.r < crowded {
			limit = crowded
		} else if !c.waitForRoom() {
			return false
		}
	}
	room := c.room(c.engine.pool, limit)
	if room == nil {
		c.srv.tooLarge(c.nc.RemoteAddr())
		return false
	}
	if idle := c.srv.opts.IdleTimeout; idle > 0 {
		_ = c.nc.SetReadDeadline(time.Now().Add(idle))
	}
	if c.favoured {
		_ = c.nc.SetReadDeadline(c.favourEnds)
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

// waitForRoom waits until the connections hold less input than they may, or
// this one, which has part of a large request, may go on all the same: one at a
// time, for Options.StallTimeout. It says false if the server shuts down.
func (c *pconn) waitForRoom() bool {
	for c.drv.crowded() {
		select {
		case <-c.drv.room:
		case c.drv.favour <- struct{}{}:
			c.favoured, c.hasFavour = true, true
			c.favourEnds = time.Now().Add(c.srv.opts.StallTimeout)
			return true
		case <-c.srv.stopping:
			return false
		}
	}
	c.drv.freed() // there may be room for another one
	return true
}

// giveBack wakes those that wait for what this connection no longer needs.
func (c *pconn) giveBack() {
	c.drv.freed()
	if c.hasFavour && !c.favoured {
		c.hasFavour = false
		_ = c.nc.SetReadDeadline(time.Time{})
		<-c.drv.favour
	}
}

// crowded says whether the connections hold as much input as they may.
func (p *portable) crowded() bool { return p.pool.inUse() > p.srv.inputShare(1) }

// freed wakes one of the connections in waitForRoom.
func (p *portable) freed() {
	select {
	case p.room <- struct{}{}:
	default:
	}
}

// send implements wire with blocking writes.
func (c *pconn) send(_ *conn, p []byte) bool {
	for len(p) > 0 {
		patience := c.srv.stallTimeout()
		if idle := c.srv.opts.IdleTimeout; idle > 0 {
			patience = min(patience, idle)
		}
		_ = c.nc.SetWriteDeadline(time.Now().Add(patience))
		n, err := c.nc.Write(p[:min(len(p), writeStep)])
		c.stats.out += uint64(n)
		if err != nil {
			c.dead = true
			_ = c.nc.Close() // the write's error is the reason
			break
		}
		p = p[n:]
	}
	return true
}

// hold implements wire: there is nobody else to serve.
func (c *pconn) hold(_ *conn, p []byte) { c.send(nil, p) }

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
