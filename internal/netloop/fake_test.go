package netloop

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/felix-go/felix"
)

// inlineCache answers from inside Submit, in one part.
type inlineCache struct {
	noScan
	table
}

func (c *inlineCache) Submit(b *felix.Batch) {
	part := make([]int32, len(b.Ops))
	for i := range part {
		part[i] = int32(i)
	}
	c.eval(b, part)
	b.Done.OpsDone(b, part)
}

// asyncCache answers from other goroutines, in parts cut at random, with one
// of them now and then from inside Submit. Operations on one key stay in order.
type asyncCache struct {
	noScan
	table
}

func (c *asyncCache) Submit(b *felix.Batch) {
	n := 1 + rand.IntN(4)
	parts := make([][]int32, n)
	for i := range b.Ops {
		k := int(b.Ops[i].Key[len(b.Ops[i].Key)-1]) % n
		parts[k] = append(parts[k], int32(i))
	}
	for k, p := range parts {
		if len(p) == 0 {
			continue
		}
		c.eval(b, p)
		if k == 0 && rand.IntN(4) == 0 {
			b.Done.OpsDone(b, p)
			continue
		}
		go func() {
			if rand.IntN(2) == 0 {
				runtime.Gosched()
			}
			b.Done.OpsDone(b, p)
			clear(p) // only valid during the call
		}()
	}
}

// heldPart is a part of a batch that waits.
type heldPart struct {
	b    *felix.Batch
	part []int32
}

// gateCache holds the operations whose key begins with 's' until open is
// called; the others are answered inline.
type gateCache struct {
	noScan
	table
	gate    sync.Mutex
	opened  bool
	held    []heldPart
	batches atomic.Int64
	keys    [][]byte // of the held operations, as they came: not copied
	sizes   []int
}

func (c *gateCache) Submit(b *felix.Batch) {
	var hold, pass []int32
	for i := range b.Ops {
		if b.Ops[i].Key[0] == 's' {
			hold = append(hold, int32(i))
		} else {
			pass = append(pass, int32(i))
		}
	}
	c.gate.Lock()
	c.sizes = append(c.sizes, len(b.Ops))
	if c.opened {
		pass = append(hold, pass...)
		hold = nil
	}
	if hold != nil {
		c.held = append(c.held, heldPart{b, hold})
		for _, i := range hold {
			c.keys = append(c.keys, b.Ops[i].Key)
		}
	}
	c.gate.Unlock()
	if pass != nil {
		c.eval(b, pass)
		b.Done.OpsDone(b, pass)
	}
	c.batches.Add(1)
}

func (c *gateCache) heldOps() int {
	c.gate.Lock()
	defer c.gate.Unlock()
	n := 0
	for _, h := range c.held {
		n += len(h.part)
	}
	return n
}

// open lets everything pass from now on.
func (c *gateCache) open() {
	c.gate.Lock()
	c.opened = true
	held := c.held
	c.held = nil
	c.gate.Unlock()
	for _, h := range held {
		c.eval(h.b, h.part)
		h.b.Done.OpsDone(h.b, h.part)
	}
}

// fakePacer is busy when it is told to be.
type fakePacer struct {
	busy   atomic.Bool
	recent time.Duration
	mu     sync.Mutex
	wakes  map[int]func()
	next   int
}

func (p *fakePacer) Busy() bool                { return p.busy.Load() }
func (p *fakePacer) RecentSync() time.Duration { return p.recent }
func (p *fakePacer) OnSynced(wake func()) func() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.wakes == nil {
		p.wakes = make(map[int]func())
	}
	p.next++
	id := p.next
	p.wakes[id] = wake
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.wakes, id)
	}
}

func (p *fakePacer) synced() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, w := range p.wakes {
		w()
	}
}

// onBoth runs a test on the event loops and on the portable driver.
func onBoth(t *testing.T, test func(t *testing.T, portable bool)) {
	t.Run("native", func(t *testing.T) { test(t, false) })
	t.Run("portable", func(t *testing.T) { test(t, true) })
}

// rig is a server under test.
type rig struct {
	t      *testing.T
	s      *Server
	h      *miniHandler
	served chan error
	down   bool // stop has been called
	cutOff bool // the test has called Shutdown, and let its context end
}

// start serves until the test ends, then checks that everything ends: Serve,
// the sessions, the goroutines.
func start(t *testing.T, o Options, pace time.Duration, caches ...felix.Cache) *rig {
	t.Helper()
	return startWith(t, &miniHandler{caches: caches, verify: true}, o, pace)
}

func startWith(t *testing.T, h *miniHandler, o Options, pace time.Duration) *rig {
	t.Helper()
	o.Handler = h
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s, err := newServer(ln, o, pace)
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, s: s, h: h, served: make(chan error, 1)}
	go func() { r.served <- s.Serve() }()
	t.Cleanup(r.stop)
	return r
}

func (r *rig) stop() {
	if r.down {
		return
	}
	r.down = true
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := r.s.Shutdown(ctx); err != nil && !r.cutOff {
		r.t.Errorf("Shutdown: %v", err)
	}
	if err := <-r.served; err != nil {
		r.t.Errorf("Serve: %v", err)
	}
	eventually(r.t, "every session to be closed", func() bool { return r.h.opened.Load() == r.h.closed.Load() })
	eventually(r.t, "no connection to be counted", func() bool { return r.s.Stats().Connections == 0 })
	eventually(r.t, "the goroutines to end", func() bool { return netloopGoroutines() == 0 })
}

// netloopGoroutines counts goroutines that run this package's code, except tests.
func netloopGoroutines() int {
	buf := make([]byte, 4<<20)
	n := 0
	for _, g := range strings.Split(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
		for _, own := range []string{"netloop.(*loop).", "netloop.(*pconn).", "netloop.(*engine).", "netloop.(*loops).", "netloop.(*portable)."} {
			if strings.Contains(g, own) && !strings.Contains(g, "testing.tRunner") {
				n++
				break
			}
		}
	}
	return n
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

// client is a test's side of a connection.
type client struct {
	t *testing.T
	*net.TCPConn
	r *bufio.Reader
}

func (r *rig) dial() *client {
	r.t.Helper()
	nc, err := net.Dial("tcp", r.s.Addr().String())
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = nc.Close() })
	_ = nc.SetDeadline(time.Now().Add(60 * time.Second))
	return &client{t: r.t, TCPConn: nc.(*net.TCPConn), r: bufio.NewReaderSize(nc, 64<<10)}
}

func (c *client) send(p ...[]byte) {
	c.t.Helper()
	if _, err := c.Write(bytes.Join(p, nil)); err != nil {
		c.t.Errorf("sending: %v", err)
	}
}

// want reads exactly these bytes.
func (c *client) want(text string) {
	c.t.Helper()
	got := make([]byte, len(text))
	if n, err := io.ReadFull(c.r, got); err != nil || string(got) != text {
		c.t.Errorf("got %.80q (%d bytes, %v), want %.80q (%d bytes)", got[:n], n, err, text, len(text))
	}
}

// wantEnd reads the end of the connection.
func (c *client) wantEnd() {
	c.t.Helper()
	if rest, err := io.ReadAll(c.r); err != nil || len(rest) > 0 {
		c.t.Errorf("got %.80q and %v, want the end of the connection", rest, err)
	}
}

// reset ends the connection as a crash does.
func (c *client) reset() {
	_ = c.SetLinger(0)
	_ = c.Close()
}

func num(n int) string { return ":" + strconv.Itoa(n) + "\r\n" }

func bulk(s string) string { return "$" + strconv.Itoa(len(s)) + "\r\n" + s + "\r\n" }

var errTest = errors.New("the test's own error")

func newReader(r io.Reader) *bufio.Reader { return bufio.NewReader(r) }
