package netloop

import (
	"context"
	"net"

	"github.com/felix-go/felix"
)

// conn is one connection. It belongs to the goroutine of its engine; nothing
// else touches it.
type conn struct {
	sess Session

	// buf[r:w] has been read and not been consumed. While busy, buf is neither
	// moved, written below w, nor given back: operations point into it. buf is
	// nil while there is nothing in it, so that an idle connection costs little.
	buf  []byte
	r, w int
	need int // Turn.Need of the last Parse that wanted more
	hint int // how large a buffer the last reads filled

	// out is what the socket has not taken yet. While there is any, nothing is
	// read or parsed, and the turn is not answered any further: left is how
	// much of its answers is not even in out, roughly, and rest the replies
	// that they are made from.
	out  []byte
	left int
	rest []felix.Reply

	used   int                // input consumed by the turn under way
	cancel context.CancelFunc // ends the Slow or Wait under way

	busy      bool // a turn is under way
	waits     bool // it is a Wait
	turnClose bool // the turn under way is the last
	closing   bool // parse no more: close when out is empty
	eof       bool // the client sends no more
	dead      bool // the socket is closed; the session ends when no longer busy

	// The rest is the event loop's.
	readable  bool // the socket may have input
	hup       bool // the client may have shut its side: read until told so
	queued    bool // stands in loop.ready
	armed     bool // EPOLLOUT is asked for
	stalled   bool // stands in loop.stalled: not read from
	favoured  bool // may hold more than there is memory for, until its next turn ends
	lingering bool // the session has ended; input is discarded until the client closes
	slot      int32
	fd        int
	owed      int   // the memory of out and rest, as it is counted in loop.unsent
	outq      int   // while owed: the bytes that were in the kernel's queue
	active    int64 // loop.now when a byte last moved; lingering: when it began

	nc net.Conn // the portable driver's
}

// room answers free space behind the unread input, making some if there is
// too little. It grows the buffer in steps, not beyond limit, even if need says
// more: what a client only announces must not cost memory. nil means that the
// buffer is full at its limit.
func (c *conn) room(p *pool, limit int) []byte {
	if c.buf == nil {
		c.buf = p.get(max(minBuffer, min(c.hint, limit)))
		c.r, c.w = 0, 0
	}
	if c.r == c.w {
		c.r, c.w = 0, 0
	}
	have := c.w - c.r
	want := max(c.need, have+have/4+1) // a read of a few bytes is not worth its call
	if want <= len(c.buf)-c.r {
		return c.buf[c.w:]
	}
	size := len(c.buf) * bufferStep
	if c.need > have {
		size = min(size, max(c.need, minBuffer))
	}
	size = min(size, limit)
	switch {
	case want <= len(c.buf) || size <= len(c.buf):
		copy(c.buf, c.buf[c.r:c.w])
	default:
		grown := p.get(size)
		copy(grown, c.buf[c.r:c.w])
		p.put(c.buf)
		c.buf = grown
	}
	c.r, c.w = 0, have
	if have == len(c.buf) {
		return nil
	}
	return c.buf[c.w:]
}

// release gives an empty buffer back. The next one is larger than what this one
// held, so that a read that fills it is rare, and shrinks by halves.
func (c *conn) release(p *pool) {
	if c.buf == nil || c.r < c.w {
		return
	}
	c.hint = max(c.w+1, c.hint/2)
	p.put(c.buf)
	c.buf, c.r, c.w, c.need = nil, 0, 0, 0
}

// limit is how much input the next reads may bring the buffer to. Input that
// is already there is the beginning of one request, which is read whole even
// beyond the pipeline's bound.
func (c *conn) limit(o *Options) int {
	have := c.w - c.r
	if have >= o.MaxPipelineBytes || c.need > o.MaxPipelineBytes {
		return o.MaxRequestBytes
	}
	return o.MaxPipelineBytes
}

// crowdedLimit is the limit where connections hold too much memory: what the
// buffer has room for, or a little.
func (c *conn) crowdedLimit(limit int) int { return min(limit, max(smallInput, len(c.buf))) }
