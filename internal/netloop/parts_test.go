package netloop

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/invariant"
)

// However input comes and is consumed, the buffer holds it in order, stays
// within its limit, and is given back empty.
func TestRoom(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	o := Options{MaxPipelineBytes: 32 << 10, MaxRequestBytes: 100 << 10}
	var p pool
	for range 20 {
		var c conn
		var model []byte
		for range 60 {
			room := c.room(&p, c.limit(&o))
			if room == nil {
				if len(model) < o.MaxRequestBytes {
					t.Fatalf("no room with %d bytes", len(model))
				}
				break
			}
			n := 1 + rnd.IntN(len(room))
			for i := 0; i < n; i += 1 + n/16 {
				room[i] = byte(rnd.Uint32())
			}
			c.w += n
			model = append(model, room[:n]...)
			if !bytes.Equal(c.buf[c.r:c.w], model) {
				t.Fatal("the input is not what came")
			}
			c.need = 0
			if rnd.IntN(3) > 0 {
				used := rnd.IntN(len(model) + 1)
				c.r += used
				model = model[used:]
			} else if rnd.IntN(2) == 0 {
				c.need = len(model) + rnd.IntN(80<<10)
			}
			if len(c.buf) > max(o.MaxRequestBytes, 256<<10) {
				t.Fatalf("the buffer grew to %d bytes", len(c.buf))
			}
			c.release(&p)
			if (c.buf == nil) != (len(model) == 0) {
				t.Fatalf("%d bytes are left and the buffer has %d", len(model), len(c.buf))
			}
		}
	}
	if p.held > maxPooledBytes {
		t.Errorf("the pool holds %d bytes", p.held)
	}
}

// An announcement alone costs no memory.
func TestRoomDoesNotTrustNeed(t *testing.T) {
	var p pool
	c := conn{}
	c.w += copy(c.room(&p, 1<<20), "*2\r\n$3\r\nSET\r\n$1000000\r\n")
	c.need = 1 << 20
	c.room(&p, 1<<20)
	if len(c.buf) > minBuffer*bufferStep {
		t.Errorf("the buffer has %d bytes for a request of which 24 have come", len(c.buf))
	}
}

// The pool keeps what it gave, by size, and not too much of it.
func TestPool(t *testing.T) {
	var p pool
	for _, n := range []int{1, minBuffer, minBuffer + 1, 1 << 20, 3 << 20} {
		b := p.get(n)
		if len(b) < n {
			t.Errorf("asked for %d, got %d", n, len(b))
		}
		p.put(b)
		again := p.get(n)
		if n <= 1<<20 && &again[0] != &b[0] {
			t.Errorf("a buffer of %d bytes was not kept", n)
		}
	}
	for range 3 * maxPooledBytes >> 20 {
		p.put(make([]byte, 1<<20))
	}
	if p.held > maxPooledBytes || len(p.free[bufferSizes-1]) != p.held>>20 {
		t.Errorf("the pool holds %d bytes in %d buffers", p.held, len(p.free[bufferSizes-1]))
	}
}

// nowhere is a wire without sockets.
type nowhere struct{ ended int }

func (*nowhere) send(*conn, []byte) bool { return true }
func (*nowhere) hold(c *conn, p []byte)  { c.out = p }
func (*nowhere) settle(*conn)            {}
func (w *nowhere) end(*conn)             { w.ended++ }
func (*nowhere) wakeLocked()             {}

// A cache that tells of an operation twice, or of too many, stops the process
// before a reply reaches the wrong client.
func TestToldTwice(t *testing.T) {
	for name, parts := range map[string][][]int32{
		"twice": {{0}, {0}}, "in one part": {{1, 1}}, "too many": {{0, 1, 2, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			w := &nowhere{}
			e := &engine{}
			e.init(&Server{}, w, &pool{})
			b := e.newBatch()
			b.Ops = make([]felix.Op, 3)
			for i := range 3 {
				b.runs = append(b.runs, run{c: &conn{dead: true, busy: true}, first: i, n: 1, left: 1})
			}
			b.seal()
			defer func() {
				if _, ok := recover().(invariant.Violation); !ok {
					t.Error("nobody noticed")
				}
			}()
			for _, part := range parts {
				b.OpsDone(&b.Batch, part)
				e.collect()
			}
		})
	}
}

// A batch keeps nothing of operations whose replies were handed out, even
// while it waits for others.
func TestBatchForgets(t *testing.T) {
	w := &nowhere{}
	e := &engine{}
	e.init(&Server{}, w, &pool{})
	b := e.newBatch()
	b.Ops = []felix.Op{{Key: []byte("a")}, {Key: []byte("b")}}
	for i := range 2 {
		b.runs = append(b.runs, run{c: &conn{dead: true, busy: true}, first: i, n: 1, left: 1})
	}
	b.seal()
	b.Replies[1].Value = []byte("v")
	b.OpsDone(&b.Batch, []int32{1})
	e.collect()
	if w.ended != 1 || b.Ops[1].Key != nil || b.Replies[1].Value != nil || b.Ops[0].Key == nil {
		t.Errorf("after the second operation's reply the batch has %+v, %+v", b.Ops, b.Replies)
	}
	if len(e.free) != 0 {
		t.Error("a batch was recycled while an operation of it was under way")
	}
	b.OpsDone(&b.Batch, []int32{0})
	e.collect()
	if len(e.free) != 1 || w.ended != 2 {
		t.Error("a finished batch was not recycled")
	}
}

// endless is a session that has always more to say.
type endless struct{ Session }

func (endless) Reply(out []byte, _ []felix.Reply) ([]byte, int) {
	return append(out, make([]byte, AnswerBytes)...), 1
}

// However fast a client takes its answers, others have their turn.
func TestAnswersGiveWay(t *testing.T) {
	e := &engine{}
	e.init(&Server{}, &nowhere{}, &pool{})
	c := &conn{sess: endless{}}
	out := e.answer(c, nil, nil)
	if len(out) > 0 || len(c.out) == 0 || len(c.out) > 2*AnswerBytes || c.left == 0 {
		t.Errorf("%d bytes are in hand and %d held, %d left", len(out), len(c.out), c.left)
	}
}

// Groups go where their operations go, also where those were appended to the batch
// of another cache. Broken: `g.From += …` in place (engine.go).
func TestGroupsArePlaced(t *testing.T) {
	e := &engine{filling: map[felix.Cache]*batch{}}
	caches := []felix.Cache{&inlineCache{}, &inlineCache{}}
	turn := func(cache felix.Cache, ops int, groups ...felix.Group) {
		b := e.cur
		if b == nil {
			b = e.newBatch()
			e.cur = b
		}
		first := len(b.Ops)
		tn := &Turn{Cache: cache, Ops: b.Ops, Groups: b.Groups}
		for range ops {
			tn.Ops = append(tn.Ops, felix.Op{Kind: felix.Get})
		}
		for _, g := range groups {
			tn.Groups = append(tn.Groups, felix.Group{From: int32(first) + g.From, To: int32(first) + g.To})
		}
		e.place(&conn{}, b, tn, first, ops)
	}
	turn(caches[0], 3, felix.Group{From: 1, To: 3})
	turn(caches[1], 2)
	turn(caches[1], 4, felix.Group{From: 0, To: 2}, felix.Group{From: 2, To: 4})
	turn(caches[0], 2, felix.Group{From: 0, To: 2})
	turn(caches[1], 1)
	for i, want := range [][]felix.Group{{{From: 1, To: 3}, {From: 3, To: 5}}, {{From: 2, To: 4}, {From: 4, To: 6}}} {
		b := e.filling[caches[i]]
		if !slices.Equal(b.Groups, want) || len(b.Ops) != []int{5, 7}[i] {
			t.Errorf("cache %d: groups %+v of %d operations, want %+v", i, b.Groups, len(b.Ops), want)
		}
		b.reset()
		if len(b.Groups) != 0 {
			t.Error("a batch that is used again has groups")
		}
	}
}
