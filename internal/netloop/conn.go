package netloop

import (
	"context"
	"net"
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
	// read or parsed, so it is bounded by the answers of one turn.
	out []byte

	used   int                // input consumed by the turn under way
	cancel context.CancelFunc // of the Slow under way

	busy      bool // a turn is under way
	turnClose bool // the turn under way is the last
	closing   bool // parse no more: close when out is empty
	eof       bool // the client sends no more
	dead      bool // the socket is closed; the session ends when no longer busy

	// The rest is the event loop's.
	readable  bool // the socket may have input
	hup       bool // the client may have shut its side: read until told so
	queued    bool // stands in loop.ready
	armed     bool // EPOLLOUT is asked for
	lingering bool // the session has ended; input is discarded until the client closes
	slot      int32
	fd        int
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
