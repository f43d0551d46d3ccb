package netloop

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// sinkBytes is read at a time from a connection whose input is discarded.
	sinkBytes = 16 << 10
	// maxSinkReads bounds what is discarded of one connection at a time.
	maxSinkReads = 16
)

// note takes down what epoll says about a socket.
func (l *loop) note(ev *unix.EpollEvent) {
	if ev.Fd == wakeSlot {
		return
	}
	c := l.conns[ev.Fd]
	if c == nil {
		return
	}
	if ev.Events&unix.EPOLLERR != 0 {
		l.kill(c)
		return
	}
	if ev.Events&(unix.EPOLLHUP|unix.EPOLLRDHUP) != 0 {
		c.hup = true
		if c.cancel != nil && (c.waits || ev.Events&unix.EPOLLHUP != 0) {
			c.cancel() // nobody waits any more, or can read what the slow work finds
		}
	}
	if ev.Events&(unix.EPOLLIN|unix.EPOLLHUP|unix.EPOLLRDHUP) != 0 {
		c.readable = true
	}
	if ev.Events&unix.EPOLLOUT != 0 && len(c.out) > 0 {
		l.sendRest(c)
	}
	l.queue(c)
}

// queue puts c among the connections to read from, if it is to be read.
func (l *loop) queue(c *conn) {
	if !c.queued && c.readable && !c.dead && !c.busy && !c.stalled && len(c.out) == 0 && (c.lingering || !l.quiet && !c.closing) {
		c.queued = true
		l.ready = append(l.ready, c)
	}
}

// readReady reads what has arrived and parses it. Connections that become
// ready meanwhile (their answers went out at once and more is there) wait for
// the next time, so that one that never pauses does not keep others waiting.
func (l *loop) readReady() {
	n := len(l.ready)
	for i := range n {
		c := l.ready[i]
		c.queued = false
		switch {
		case c.dead || c.busy:
		case c.lingering:
			l.sink(c)
		case l.quiet:
			l.settle(c)
		case l.read(c):
			l.resume(c)
		}
	}
	rest := copy(l.ready, l.ready[n:])
	clear(l.ready[rest:])
	l.ready = l.ready[:rest]
}

// read takes what the socket has, up to the connection's bound, and says
// whether there may be something to parse.
func (l *loop) read(c *conn) bool {
	limit := c.limit(&l.srv.opts)
	if l.crowded() && !c.favoured {
		if limit = c.crowdedLimit(limit); c.w-c.r >= limit {
			l.stall(c)
			return false
		}
	}
	for {
		room := c.room(l.pool, limit)
		if room == nil {
			if c.w-c.r < l.srv.opts.MaxRequestBytes {
				return true // at the pipeline's bound: parse first
			}
			l.srv.tooLarge(peerOf(c.fd))
			l.kill(c)
			return false
		}
		n, err := unix.Read(c.fd, room)
		switch {
		case n > 0:
			c.w += n
			c.active = l.now
			l.stats.in += uint64(n)
			if n < len(room) && !c.hup {
				c.readable = false // drained; more makes a new edge
				return true
			}
			if c.w-c.r >= limit {
				return true
			}
		case err == nil:
			c.eof, c.readable = true, false
			return true
		case errors.Is(err, unix.EAGAIN):
			c.readable = false
			return true
		case errors.Is(err, unix.EINTR):
		default:
			l.kill(c)
			return false
		}
	}
}

// send implements wire.
func (l *loop) send(c *conn, p []byte) bool {
	rest := p
	if len(c.out) == 0 {
		n, alive := l.write(c, p)
		if !alive || n == len(p) {
			return true
		}
		rest = p[n:]
	}
	if len(c.out) == 0 && len(rest) >= minBuffer {
		c.out = rest // the engine makes itself another buffer
		l.watch(c, true)
		l.owe(c)
		return false
	}
	c.out = append(c.out, rest...)
	l.watch(c, true)
	l.owe(c)
	return true
}

// hold implements wire: being told of room for p is a turn of its own.
func (l *loop) hold(c *conn, p []byte) {
	c.out = p
	l.watch(c, true)
	l.owe(c)
}

// write writes as much as the socket takes.
func (l *loop) write(c *conn, p []byte) (n int, alive bool) {
	for n < len(p) {
		m, err := unix.Write(c.fd, p[n:])
		switch {
		case m > 0:
			n += m
			c.active = l.now
			l.stats.out += uint64(m)
		case errors.Is(err, unix.EAGAIN):
			return n, true
		case errors.Is(err, unix.EINTR):
		default:
			l.kill(c)
			return n, false
		}
	}
	return n, true
}

// sendRest goes on with answers that the socket had no room for; when all are
// gone the connection's turns go on.
func (l *loop) sendRest(c *conn) {
	n, alive := l.write(c, c.out)
	if !alive {
		return
	}
	c.out = c.out[n:]
	if len(c.out) > 0 {
		return
	}
	c.out = nil
	l.paid(c)
	l.watch(c, false)
	if c.left > 0 {
		l.goOn(c)
	}
	if !c.busy {
		l.resume(c)
	}
}

// watch asks to be told, or no longer to be told, when the socket has room.
func (l *loop) watch(c *conn, room bool) {
	if c.armed == room {
		return
	}
	c.armed = room
	ev := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLRDHUP | unix.EPOLLET, Fd: c.slot}
	if room {
		ev.Events |= unix.EPOLLOUT
	}
	if err := unix.EpollCtl(l.epfd, unix.EPOLL_CTL_MOD, c.fd, &ev); err != nil {
		l.kill(c)
	}
}

// settle implements wire.
func (l *loop) settle(c *conn) {
	switch {
	case c.dead:
		l.end(c)
	case len(c.out) > 0:
	case c.eof || l.quiet:
		l.hangUp(c)
	case c.closing && !c.lingering:
		l.linger(c)
	default:
		l.queue(c)
	}
}

// hangUp closes a connection that has had all its answers. Input that came
// after them is taken out of the socket first, or the kernel would reset the
// connection and could destroy answers on their way.
func (l *loop) hangUp(c *conn) {
	if !c.eof {
		_ = unix.Shutdown(c.fd, unix.SHUT_WR) // an error shows below
		l.discardInput(c)
	}
	l.kill(c)
}

// linger tells the client that nothing more comes and keeps the socket until
// the client closes it too, at most lingerFor.
func (l *loop) linger(c *conn) {
	c.sess.Closed()
	c.sess = nil
	c.lingering, c.stalled = true, false
	c.r = c.w
	c.release(l.pool)
	l.lingers++
	l.tick()
	c.active = l.now
	l.nextSweep = min(l.nextSweep, l.now+int64(lingerFor))
	if unix.Shutdown(c.fd, unix.SHUT_WR) != nil {
		l.kill(c)
		return
	}
	c.readable = true
	l.queue(c)
}

// sink discards what a lingering connection still sends.
func (l *loop) sink(c *conn) {
	if l.discardInput(c) {
		l.kill(c)
		return
	}
	l.queue(c)
}

// discardInput reads and forgets, and says whether the client has closed.
func (l *loop) discardInput(c *conn) (closed bool) {
	b := l.pool.get(sinkBytes)
	defer l.pool.put(b)
	for range maxSinkReads {
		n, err := unix.Read(c.fd, b)
		switch {
		case n > 0:
			l.stats.in += uint64(n)
		case errors.Is(err, unix.EAGAIN):
			c.readable = false
			return false
		case errors.Is(err, unix.EINTR):
		default:
			return true
		}
	}
	return false
}

// kill closes the socket at once. If a turn is under way, the session and its
// input stay until its operations are done: they may point into it.
func (l *loop) kill(c *conn) {
	if c.dead {
		return
	}
	c.dead = true
	_ = unix.Close(c.fd) // also takes it out of the epoll set
	l.conns[c.slot] = nil
	l.freeSlots = append(l.freeSlots, c.slot)
	l.socks--
	l.srv.stats.conns.Add(-1)
	if c.lingering {
		l.lingers--
	}
	l.paid(c)
	c.out, c.left, c.rest = nil, 0, nil
	if c.cancel != nil {
		c.cancel()
	}
	if !c.busy {
		l.end(c)
	}
}

// end implements wire: it lets go of a dead connection that is not busy.
func (l *loop) end(c *conn) {
	if c.sess != nil {
		c.sess.Closed()
		c.sess = nil
	}
	c.r = c.w
	c.release(l.pool)
}

// untilSweep is how long the loop may sleep; negative is for ever.
func (l *loop) untilSweep() time.Duration {
	if !l.timed() {
		return -1
	}
	l.tick()
	return time.Duration(max(0, l.nextSweep-l.now))
}

// sweep closes connections that have been idle, or lingering, or not reading,
// for too long.
func (l *loop) sweep() {
	if !l.timed() || l.now < l.nextSweep {
		return
	}
	l.nextSweep = l.now + int64(l.sweepEvery())
	idle, stall := int64(l.srv.opts.IdleTimeout), int64(l.srv.stallTimeout())
	for _, c := range l.conns {
		switch {
		case c == nil:
		case c.owed > 0 && l.takesNothing(c) && l.now-c.active >= stall:
			l.srv.log.Warn("a connection was closed: its client takes no answers", "remote", addrText(peerOf(c.fd)), "held_bytes", c.owed)
			l.kill(c)
		case c.busy:
		case c.lingering:
			if l.now-c.active >= int64(lingerFor) {
				l.kill(c)
			}
		case idle > 0 && l.now-c.active >= idle:
			l.kill(c)
		}
	}
	l.unblock()
	if l.debtors > 0 && l.srv.stats.unsent.Load() > l.srv.unsentLimit()/2 {
		l.closeDebtor(true)
	}
}
