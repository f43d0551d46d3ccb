package netloop

import (
	"time"

	"golang.org/x/sys/unix"

	"github.com/felix-go/felix/internal/invariant"
)

// staleAfter is when a client that has taken nothing of its answers is among
// the first to be closed when memory runs short.
const staleAfter = 2 * time.Second

// unsentLimit bounds the answers that clients have not taken, of all loops.
func (s *Server) unsentLimit() int64 { return int64(s.opts.MemoryBytes / 2) }

// timed says whether anything on this loop depends on the clock.
func (l *loop) timed() bool {
	return l.srv.opts.IdleTimeout > 0 || l.lingers > 0 || l.debtors > 0 || len(l.stalled) > 0
}

// soon makes the loop sweep within a short time.
func (l *loop) soon() {
	l.tick()
	l.nextSweep = min(l.nextSweep, l.now+int64(l.sweepEvery()))
}

// sweepEvery is the time between two sweeps.
func (l *loop) sweepEvery() time.Duration {
	every := min(lingerFor, max(l.srv.opts.StallTimeout/4, time.Millisecond))
	if idle := l.srv.opts.IdleTimeout; idle > 0 {
		every = min(every, max(idle/4, time.Millisecond))
	}
	return every
}

// crowded says whether the loop's connections hold as much input as they may.
// Nobody else uses the loop's pool, so its lock is not needed.
func (l *loop) crowded() bool { return l.bufs.lent > l.inputShare }

// stall keeps a connection from being read until there is memory.
func (l *loop) stall(c *conn) {
	c.stalled = true
	l.stalled = append(l.stalled, c)
	l.soon()
}

// relieve lets stalled connections go on, the longest waiting first, as many as
// there is room for if each takes a pipeline's worth. If there is none one goes
// on all the same, since all the memory may be that of requests which need a
// little more to be whole.
func (l *loop) relieve() {
	if len(l.stalled) == 0 {
		return
	}
	n := 1
	if !l.crowded() {
		n = min(len(l.stalled), 1+(l.inputShare-l.bufs.lent)/l.srv.opts.MaxPipelineBytes)
	} else if l.favoured != nil && l.favoured.favoured && !l.favoured.dead {
		return
	} else {
		l.favoured = l.stalled[0]
		l.favoured.favoured = true
		l.tick()
		l.favouredSince = l.now
	}
	for _, c := range l.stalled[:n] {
		c.stalled = false
		l.queue(c)
	}
	rest := copy(l.stalled, l.stalled[n:])
	clear(l.stalled[rest:])
	l.stalled = l.stalled[:rest]
}

// unblock closes a favoured connection that does not make use of it while
// others wait.
func (l *loop) unblock() {
	c := l.favoured
	if len(l.stalled) == 0 || c == nil || !c.favoured || c.dead || c.busy ||
		l.now-l.favouredSince < int64(l.srv.opts.StallTimeout) {
		return
	}
	l.srv.log.Warn("a connection was closed: the memory for input is used up, and its request does not become whole; "+
		"raise --connection-memory", "remote", addrText(peerOf(c.fd)), "held_bytes", len(c.buf))
	l.kill(c)
}

// owe counts what c's answers hold that its client has not taken, and closes
// connections if that is too much with those of all others.
func (l *loop) owe(c *conn) {
	if c.dead {
		return
	}
	invariant.Check(len(c.out) > 0, "a connection that owes nothing is counted among those that do")
	if c.owed == 0 {
		l.debtors++
		l.soon()
		c.active = l.now
	}
	owed := cap(c.out) + c.left
	l.addUnsent(owed - c.owed)
	c.owed = owed
	if l.srv.stats.unsent.Load() <= l.srv.unsentLimit() {
		return
	}
	if l.unsent <= l.unsentShare() {
		l.srv.drv.(*loops).overdrawn()
		return
	}
	l.closeDebtors()
}

// paid is called when the client has taken all of c.out, or never will.
func (l *loop) paid(c *conn) {
	if c.owed > 0 {
		l.debtors--
		l.addUnsent(-c.owed)
		c.owed = 0
	}
}

func (l *loop) addUnsent(n int) {
	l.unsent += n
	l.srv.stats.unsent.Add(int64(n))
}

func (l *loop) unsentShare() int { return int(l.srv.unsentLimit()) / l.srv.opts.Loops }

// closeDebtors closes connections while all together owe too much and this
// loop's more than its share. One alone may owe as much as one turn makes.
func (l *loop) closeDebtors() {
	for l.debtors > 1 && l.unsent > l.unsentShare() && l.srv.stats.unsent.Load() > l.srv.unsentLimit() {
		l.closeDebtor(false)
	}
}

// closeDebtor closes the connection that owes most, of those whose clients have
// taken nothing for a while if there are any, or must be.
func (l *loop) closeDebtor(stale bool) {
	l.tick()
	var most, mostStale *conn
	for _, c := range l.conns {
		if c == nil || c.owed == 0 {
			continue
		}
		if most == nil || c.owed > most.owed {
			most = c
		}
		if l.now-c.active >= int64(staleAfter) && (mostStale == nil || c.owed > mostStale.owed) {
			mostStale = c
		}
	}
	if mostStale != nil {
		most = mostStale
	} else if stale {
		return
	}
	l.srv.log.Warn("a connection was closed: it held most of the memory for answers, and its client does not take them; "+
		"raise --connection-memory if it should have more time", "remote", addrText(peerOf(most.fd)), "held_bytes", most.owed)
	l.kill(most)
}

// takesNothing says whether the client has taken nothing since it was last
// asked. The kernel takes more only when much of its queue is gone, which a
// slow client may need minutes for, so its queue is looked at.
func (l *loop) takesNothing(c *conn) bool {
	n, err := unix.IoctlGetInt(c.fd, unix.SIOCOUTQ)
	if err == nil && n != c.outq {
		c.outq, c.active = n, l.now
		return false
	}
	return true
}

// overdrawn tells all loops that answers hold too much memory.
func (d *loops) overdrawn() {
	for _, l := range d.all {
		l.order(func() { l.overdrawn = true })
	}
}
