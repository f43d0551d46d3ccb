package sim

import (
	"cmp"
	"fmt"
	"strconv"
	"time"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/record"
	"github.com/felix-go/felix/internal/shard"
)

// client asks for one thing after the other.
type client struct {
	w  *world
	id int
	// asked is what it waits for, nil is nothing.
	asked *call
}

// call is what a client asks for at once.
type call struct {
	kind    shard.RequestKind // Ops, Scan, Count or Clear
	ops     []felix.Op
	groups  []felix.Group
	scan    felix.ScanRequest
	c       *client
	g       *group
	number  uint64
	got     answer
	began   int64
	ended   int64
	at      time.Duration // when that was
	decided time.Duration // when the owner answered
	told    int64         // the newest shard time that anybody was told when it began
	owned   bool          // somebody had owned the shard when it began
	over    bool          // the client waits no longer
}

// answer is what comes back of a call.
type answer struct {
	replies []felix.Reply
	err     *felix.Error // of all of it
	page    felix.ScanPage
	counts  record.Counts
}

const (
	// callTimeout is when an operation stops waiting.
	callTimeout = 1200 * time.Millisecond
	// callPatience is when the client stops waiting for an answer.
	callPatience = 1500 * time.Millisecond
)

func (w *world) newClient(id int) {
	c := &client{w: w, id: id}
	w.clients = append(w.clients, c)
	w.after(w.between(0, 300*time.Millisecond), c.next)
}

// next asks for something, until the faults are over.
func (c *client) next() {
	if c.w.healed {
		return
	}
	if c.w.now < c.w.lullUntil && !c.reads() {
		c.w.after(c.w.lullUntil-c.w.now, c.next)
		return
	}
	g := c.w.shards[c.w.rng.IntN(len(c.w.shards))]
	k := c.w.history.wish(g, c.reads())
	c.ask(g, &k)
}

// reads says whether the client asks for what changes nothing, most often.
func (c *client) reads() bool { return c.id%2 == 1 || c.w.profile.onlySums && c.id > 3 }

func (c *client) ask(g *group, k *call) {
	w := c.w
	k.c, k.g, k.number, k.at, k.told, k.owned = c, g, uint64(w.stamp()), w.now, w.history.told[g], g.owner != nil
	k.began = w.stamp()
	c.asked = k
	to := w.nodes[w.rng.IntN(len(w.nodes))]
	switch n := w.rng.IntN(8); {
	case n < 4 && g.former != nil && c.reads(): // which may not know yet
		to = g.former.node
	case n < 7 && g.owner != nil:
		to = g.owner.node
	}
	w.note("client %d asks node %d, call %d, of shard %d, kind %d", uint64(c.id), to.id, k.number, g.id, uint64(k.kind))
	for i := range k.ops {
		w.tell(&k.ops[i])
	}
	switch {
	case !to.up:
		w.after(w.delay(), func() { k.answered(answer{err: &felix.Error{Code: felix.Unavailable, Message: "nobody answers"}}) })
	case !w.healed && w.rng.IntN(1000) < w.profile.lost: // it never comes, and nobody says so
	default:
		h := &hop{call: k, node: to}
		w.after(w.delay(), h.arrive)
	}
	patience := callPatience
	switch {
	case w.healed || w.profile.gentle:
	case w.profile.hasty && !(c.reads() && w.one(4)):
		patience = w.between(20*time.Millisecond, 60*time.Millisecond)
	case w.one(2): // so that not all wait for an owner that is gone
		patience = w.between(50*time.Millisecond, 300*time.Millisecond)
	}
	w.after(patience, func() {
		k.answered(answer{err: &felix.Error{Code: felix.OutcomeUnknown, Message: "no answer"}})
	})
}

// answered takes an answer, if the client still waits for one.
func (k *call) answered(a answer) {
	if k.over {
		return
	}
	k.got = a
	if a.err != nil && k.kind == shard.Ops {
		k.got.replies = make([]felix.Reply, len(k.ops))
		for i := range k.ops {
			k.got.replies[i].Err = a.err
		}
	}
	k.end()
}

// end tells the history what has come of the call, and asks for the next thing.
func (k *call) end() {
	w := k.c.w
	k.over, k.ended = true, w.stamp()
	w.history.answered(k)
	for _, r := range append(k.got.replies, felix.Reply{Err: k.got.err}) {
		if r.Err != nil && k.owned && w.profile.gentle && r.Err != felix.ErrNotInteger && r.Err != felix.ErrOverflow {
			w.fail("call %d is answered %v, though ownership was but handed over", k.number, r.Err)
		}
	}
	k.c.asked = nil
	w.after(w.between(0, 2*w.profile.think), k.c.next)
}

// hop is a call at a node, which another one may have handed on.
type hop struct {
	call  *call
	node  *node
	from  *hop // who handed it on; nil is the client
	tries int  // to hand it on
}

// arrive hands the call to the shard's replica here.
func (h *hop) arrive() {
	h.node.when(func() {
		r := h.node.replica(h.call.g)
		switch {
		case r == nil || r.stalled:
			h.elsewhere(0)
		default:
			h.submit(r)
		}
	})
}

func (h *hop) submit(r *replica) {
	k := h.call
	q := &shard.Request{Kind: k.kind, Scan: k.scan, Tag: h, Deadline: h.node.time().Mono + callTimeout}
	if k.kind == shard.Ops {
		q.Batch = &felix.Batch{Ops: k.ops, Replies: make([]felix.Reply, len(k.ops)), Groups: k.groups}
		for i := range k.ops {
			q.Positions = append(q.Positions, int32(i))
		}
	}
	r.shard.Submit(q)
	r.advance()
}

// returned is told that nothing of the call was evaluated here.
func (h *hop) returned(*shard.Request) {
	to := uint64(0)
	if r := h.node.replica(h.call.g); r != nil && r.shard != nil {
		to = r.shard.Lead()
	}
	h.elsewhere(to)
}

// elsewhere hands the call on to the node of a replica, or of any. One that was
// handed on goes back to who did, as nothing of it was evaluated.
func (h *hop) elsewhere(raftID uint64) {
	w, g := h.node.w, h.call.g
	if h.from != nil {
		w.after(w.delay(), func() {
			if w.reaches(h.node, h.from.node) {
				h.from.node.when(func() { h.from.elsewhere(raftID) })
			}
		})
		return
	}
	if w.now > h.call.at+callTimeout {
		h.answer(answer{err: &felix.Error{Code: felix.Unavailable, Message: "nobody owns the shard"}})
		return
	}
	if raftID == 0 {
		raftID = g.place.Replicas[w.rng.IntN(len(g.place.Replicas))].Raft
	}
	wait := min(time.Duration(h.tries)*5*time.Millisecond, 50*time.Millisecond)
	h.tries++
	h.node.after(wait, func() { h.handOn(g.home(raftID)) })
}

// handOn sends the call to another node, or submits it here after all. One that
// cannot be sent certainly has not come.
func (h *hop) handOn(to *node) {
	w := h.node.w
	w.count("forwarded")
	w.after(w.delay(), func() {
		switch {
		case to == h.node:
			h.arrive()
		case w.reaches(h.node, to):
			(&hop{call: h.call, node: to, from: h}).arrive()
		default:
			h.node.when(func() { h.elsewhere(0) })
		}
	})
}

// done is told of the answers.
func (h *hop) done(q *shard.Request) {
	h.call.decided = h.node.w.now
	a := answer{err: q.Err, page: q.Scanned, counts: q.Counts}
	a.page.NowMillis = q.NowMillis
	if q.Batch != nil {
		a.replies = q.Batch.Replies
	}
	h.answer(a)
}

// answer takes an answer back, the way that the call came, unless it is lost.
func (h *hop) answer(a answer) {
	w := h.node.w
	if w.rng.IntN(1000) < w.profile.lost && !w.healed {
		w.count("answers lost")
		return
	}
	w.after(w.delay(), func() {
		switch {
		case h.from == nil:
			h.call.answered(a)
		case w.reaches(h.node, h.from.node):
			h.from.node.when(func() { h.from.answer(a) })
		}
	})
}

// describe is an operation, for the trace.
func describe(op *felix.Op) string {
	what := [...]string{"?", "get", "add", "set", "delete", "expire", "check"}[op.Kind]
	text := fmt.Sprintf("%s %s of view %d", what, op.Key, op.View)
	switch op.Kind {
	case felix.Add, felix.Set:
		text += " " + cmp.Or(string(op.Value), strconv.FormatInt(op.Int, 10))
	}
	if op.Bounds != nil {
		text += fmt.Sprintf(", within %+v", *op.Bounds)
	}
	if op.ExpireIf != 0 {
		text += fmt.Sprintf(", if its expiry is %d", op.ExpireIf)
	}
	if op.ReturnOld {
		text += ", and the old one"
	}
	if op.If != felix.Always {
		text += fmt.Sprintf(", if %d of version %d", op.If, op.Version)
	}
	if op.TTL != felix.TTLDefault {
		text += fmt.Sprintf(", expiry %d of %d ms", op.TTL, op.ExpiryMillis)
	}
	return text
}
