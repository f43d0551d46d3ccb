package netloop

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/invariant"
)

const (
	// maxScratch bounds the answer buffer an engine keeps between turns.
	maxScratch = 256 << 10
	// maxBurst is how much of a turn's answers a client gets before others have
	// theirs, however fast it takes them.
	maxBurst = 4 << 20
)

// wire is how an engine reaches the sockets of its connections.
type wire interface {
	// send writes p to the client; what the socket does not take is kept in
	// c.out. p is the engine's again afterwards, unless send answers false.
	send(c *conn, p []byte) (returned bool)
	// hold is send, but later if there are others to serve: it puts p into
	// c.out, which is empty.
	hold(c *conn, p []byte)
	// settle is called when a connection that is not busy has nothing more to
	// parse: to read more, or to close it if it is at its end.
	settle(c *conn)
	// end is called when a dead connection's turn is over.
	end(c *conn)
	// wakeLocked makes the engine's goroutine look at what has come in. It is
	// called with engine.mu held, must be cheap, and not block.
	wakeLocked()
}

// engine takes turns with the sessions of its connections: it is what the
// event loop and the portable driver share. All of it but OpsDone runs on one
// goroutine.
type engine struct {
	srv  *Server
	wire wire
	pool *pool

	// filling are the batches that are being gathered, one per cache; cur is
	// the one used last, to which the next session probably adds. A batch in
	// cur without a cache is not in filling.
	filling map[felix.Cache]*batch
	cur     *batch
	free    []*batch // recycled
	freeOps int      // the operations free has room for, at most maxKeptOps

	turn    Turn
	scratch []byte // answers are made here

	outstanding int // operations submitted and not handed out
	slow        int // Slow work and Waits that have not been handed back

	stats struct{ in, out, turns, ops, batches, paced uint64 } // not yet in srv.stats

	mu       sync.Mutex
	finished []*batch // batches with news; guarded by mu
	slowDone []*conn  // connections whose Slow or Wait is over; guarded by mu

	batchList []*batch // finished, taken off
	slowList  []*conn  // slowDone, taken off
}

func (e *engine) init(s *Server, w wire, p *pool) {
	e.srv, e.wire, e.pool = s, w, p
	e.filling = make(map[felix.Cache]*batch)
}

func (e *engine) wakeLocked() { e.wire.wakeLocked() }

// newsLocked says whether collect has something to do; mu is held.
func (e *engine) newsLocked() bool { return len(e.finished)+len(e.slowDone) > 0 }

// collect hands out the replies that have come in, and so writes answers and
// parses what their connections have sent besides.
func (e *engine) collect() {
	e.mu.Lock()
	e.batchList, e.finished = e.finished, e.batchList[:0]
	e.slowList, e.slowDone = e.slowDone, e.slowList[:0]
	for _, b := range e.batchList {
		b.queued = false
		b.upto = b.ndone
	}
	e.mu.Unlock()
	for i, b := range e.batchList {
		e.batchList[i] = nil
		b.handOut()
		if b.seen == len(b.Ops) {
			e.recycle(b)
		}
	}
	for i, c := range e.slowList {
		e.slowList[i] = nil
		e.slow--
		c.cancel()
		c.cancel, c.waits = nil, false
		e.turnDone(c, nil)
	}
}

// advance parses what c has sent until a turn is under way or nothing whole is
// left, and answers turns that need nobody at once. c is not busy.
func (e *engine) advance(c *conn) {
	out := e.scratch[:0]
	for !c.busy && !c.closing && !c.dead && len(c.out) == 0 && c.r < c.w {
		t, first := e.parse(c)
		if t.Slow == nil && t.Wait == 0 && len(t.Ops) == first { // nobody to wait for
			if c.used == 0 && !t.Close {
				break
			}
			out = e.answer(c, out, nil)
			if len(out) >= maxScratch {
				out = e.flush(c, out)
			}
			continue
		}
		c.busy = true
		if t.Slow != nil || t.Wait != 0 {
			invariant.Check(len(t.Ops) == first && (t.Slow == nil || t.Wait == 0),
				"a session's turn has slow work and something else")
			e.begin(c, t)
		}
	}
	e.flush(c, out)
	e.turn = Turn{}
}

// answer lets the session answer its turn and sends what is too much for one
// buffer; the rest is in what it answers, as long as the client takes all. If
// it does not, or has had much, the turn goes on later (goOn).
func (e *engine) answer(c *conn, out []byte, replies []felix.Reply) []byte {
	for sent := 0; ; {
		out, c.left = c.sess.Reply(out, replies)
		if c.left == 0 {
			c.rest = nil
			e.endTurn(c)
			return out
		}
		invariant.Check(len(out) > 0, "a session has %d bytes of answers left and gives none", c.left)
		if sent += len(out); sent > maxBurst && len(c.out) == 0 {
			e.wire.hold(c, out)
			sent, out, e.scratch = 0, nil, nil
		} else {
			out = e.flush(c, out)
		}
		if c.dead || len(c.out) > 0 {
			return out
		}
	}
}

// goOn is called when a client has taken what there was of its turn's answers.
func (e *engine) goOn(c *conn) { e.flush(c, e.answer(c, e.scratch[:0], c.rest)) }

// flush sends answers made in scratch and gives the empty buffer back.
func (e *engine) flush(c *conn, out []byte) []byte {
	returned := true
	if len(out) > 0 && !c.dead {
		returned = e.wire.send(c, out)
	}
	if !returned || cap(out) > maxScratch {
		out = nil
	}
	e.scratch = out[:0]
	return e.scratch
}

// parse lets the session look at its input and puts its operations into the
// batch of their cache. first is where they begin in t.Ops: if that is
// len(t.Ops), there are none.
func (e *engine) parse(c *conn) (t *Turn, first int) {
	b := e.cur
	if b == nil {
		b = e.newBatch()
		e.cur = b
	}
	t = &e.turn
	*t = Turn{Ops: b.Ops, Groups: b.Groups}
	first = len(b.Ops)
	in := c.buf[c.r:c.w]
	c.used = c.sess.Parse(in, t)
	c.turnClose, c.need = t.Close, 0
	invariant.Check(c.used >= 0 && c.used <= len(in) && len(t.Ops) >= first,
		"a session used %d of %d bytes and left %d of %d operations", c.used, len(in), len(t.Ops), first)
	n := len(t.Ops) - first
	if n == 0 {
		if c.used == 0 {
			c.need = t.Need
		}
		return t, first
	}
	invariant.Check(t.Cache != nil && c.used > 0, "a session's turn has operations but no cache or no input")
	e.place(c, b, t, first, n)
	return t, first
}

// place notes that the last n operations in t.Ops are c's; they were appended
// to b on the guess that they belong to its cache, and are moved if not.
func (e *engine) place(c *conn, b *batch, t *Turn, first, n int) {
	if b.cache != t.Cache {
		own := e.filling[t.Cache]
		if own == nil {
			own = b
			if b.cache != nil {
				own = e.newBatch()
			}
			own.cache = t.Cache
			e.filling[t.Cache] = own
		}
		if own != b {
			moved := t.Ops[first:]
			for _, g := range t.Groups[len(b.Groups):] {
				g.From += int32(len(own.Ops) - first)
				g.To += int32(len(own.Ops) - first)
				own.Groups = append(own.Groups, g)
			}
			own.Ops = append(own.Ops, moved...)
			clear(moved)
			b.Ops = t.Ops[:first]
			own.runs = append(own.runs, run{c: c, first: len(own.Ops) - n, n: n, left: n})
			e.cur = own
			return
		}
	}
	b.Ops, b.Groups = t.Ops, t.Groups
	b.runs = append(b.runs, run{c: c, first: first, n: n, left: n})
}

// submit hands the gathered batches to their caches and says whether there
// were any.
func (e *engine) submit() bool {
	if len(e.filling) == 0 {
		return false
	}
	for _, b := range e.filling {
		b.seal()
		e.outstanding += len(b.Ops)
		e.stats.ops += uint64(len(b.Ops))
		e.stats.batches++
		b.cache.Submit(&b.Batch)
	}
	clear(e.filling)
	e.cur = nil
	return true
}

// turnDone answers a turn, then goes on with what the connection has sent
// besides. replies are those of the turn's operations.
func (e *engine) turnDone(c *conn, replies []felix.Reply) {
	c.busy = false
	if c.dead {
		e.wire.end(c)
		return
	}
	e.flush(c, e.answer(c, e.scratch[:0], replies))
	if c.left > 0 {
		c.rest = slices.Clone(replies) // theirs is the batch's, which is used again
	}
	e.resume(c)
}

func (e *engine) endTurn(c *conn) {
	c.r += c.used
	c.used = 0
	c.closing = c.turnClose
	c.favoured = false
	e.stats.turns++
}

// resume goes on with a connection that is not busy: first with what it has
// sent already.
func (e *engine) resume(c *conn) {
	e.advance(c)
	if c.busy {
		return
	}
	c.release(e.pool)
	e.wire.settle(c)
}

// begin starts what a turn without operations waits for.
func (e *engine) begin(c *conn, t *Turn) {
	if t.Slow != nil {
		e.launch(c, t.Slow)
	} else {
		e.wait(c, t.Wait)
	}
}

// wait keeps the turn open for d. It takes no slot of the Slow work: a wait
// costs nothing, so there may be one on every connection.
func (e *engine) wait(c *conn, d time.Duration) {
	c.waits = true
	e.slow++
	timer := time.AfterFunc(d, func() { e.slowReturned(c) })
	c.cancel = func() {
		if timer.Stop() {
			e.slowReturned(c)
		}
	}
	if c.hup || c.eof || e.srv.isStopping() {
		c.cancel()
	}
}

// launch runs slow work on its own goroutine, when there is a slot for it.
func (e *engine) launch(c *conn, work func(context.Context)) {
	ctx, cancel := context.WithCancel(e.srv.ctx)
	c.cancel = cancel
	e.slow++
	go func() {
		select {
		case e.srv.slots <- struct{}{}:
			work(ctx)
			<-e.srv.slots
		case <-ctx.Done():
			work(ctx) // to be told so; it ends at once
		}
		e.slowReturned(c)
	}()
}

// slowReturned tells the engine that a connection's Slow or Wait is over.
func (e *engine) slowReturned(c *conn) {
	e.mu.Lock()
	e.slowDone = append(e.slowDone, c)
	e.wakeLocked()
	e.mu.Unlock()
}

func (e *engine) newBatch() *batch {
	if last := len(e.free) - 1; last >= 0 {
		b := e.free[last]
		e.freeOps -= cap(b.Ops)
		e.free[last] = nil
		e.free = e.free[:last]
		return b
	}
	return &batch{eng: e}
}

// recycle keeps a batch for later. None of its operations is under way.
func (e *engine) recycle(b *batch) {
	b.reset()
	if e.freeOps+cap(b.Ops) <= maxKeptOps {
		e.freeOps += cap(b.Ops)
		e.free = append(e.free, b)
	}
}

// publish adds what was counted to the server's counters.
func (e *engine) publish() {
	s, t := &e.stats, &e.srv.stats
	if s.in|s.out|s.turns|s.ops|s.batches|s.paced == 0 {
		return
	}
	t.in.Add(s.in)
	t.out.Add(s.out)
	t.turns.Add(s.turns)
	t.ops.Add(s.ops)
	t.batches.Add(s.batches)
	t.paced.Add(s.paced)
	*s = struct{ in, out, turns, ops, batches, paced uint64 }{}
}
