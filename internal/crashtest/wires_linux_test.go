package crashtest

import (
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// wires stand between the brokers: each connection that one makes to another's
// peer address goes through a proxy in the test, which can hold back what it
// carries, and end it. This kernel has no netem; and TCP in between means that
// bytes of one connection are neither overtaken nor lost. What is sent over two
// connections is: the Raft messages, the calls and the snapshots of two brokers,
// and what each of them dials, have connections of their own, with delays of
// their own.
//
// Node n is at 10.77.0.n, and behind its wire at 10.77.1.n. In the namespace of
// each node, connections to the peer address of another one are led to the wire;
// the wire goes on from the address that the dialling node has behind its own, so
// that a node can drop what comes from another one, whoever has dialled.
type wires struct {
	t   *testing.T
	led map[direction]bool // that go through a wire; lead's

	mu     sync.Mutex
	rng    *rand.Rand
	delays map[direction]delay
	conns  map[*wire]struct{}
}

// direction is one way between two nodes.
type direction struct{ from, to uint64 }

// delay is what a direction adds: atLeast to all, and a share of spread that is
// another one in every connection.
type delay struct{ atLeast, spread time.Duration }

// wire is a connection that is carried.
type wire struct {
	w          *wires
	dial, held direction // the way of who has dialled, and the way back
	near, far  net.Conn
	share      float64 // of delay.spread
	once       sync.Once
	closed     chan struct{}
}

func newWires(t *testing.T, seed uint64) *wires {
	return &wires{t: t, led: map[direction]bool{}, rng: rand.New(rand.NewPCG(seed, 77)), delays: map[direction]delay{}, conns: map[*wire]struct{}{}}
}

// lead has all connections between the member and the others go through wires.
func (w *wires) lead(m *member) {
	w.t.Helper()
	address := fmt.Sprint("10.77.1.", m.id)
	shell(w.t, "ip addr add "+address+"/16 dev bridge")
	for _, o := range m.others() {
		w.redirect(o, m)
		w.redirect(m, o)
	}
	ln, err := net.Listen("tcp", address+":7381")
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = ln.Close() }) // nobody dials any more
	go func() {
		for {
			near, err := ln.Accept()
			if err != nil {
				return // closed
			}
			go w.carry(near, m)
		}
	}()
}

// redirect leads what a member dials at another one's peer address to the wire.
func (w *wires) redirect(from, to *member) {
	if w.led[direction{from.id, to.id}] {
		return
	}
	w.led[direction{from.id, to.id}] = true
	shell(w.t, fmt.Sprintf("%s iptables -w -t nat -A OUTPUT -p tcp -d 10.77.0.%d --dport 7381 -j DNAT --to-destination 10.77.1.%d:7381",
		strings.Join(from.prefix, " "), to.id, to.id))
}

// carry connects who has dialled with the member.
func (w *wires) carry(near net.Conn, to *member) {
	host, _, _ := net.SplitHostPort(near.RemoteAddr().String()) // it is one
	node := host[strings.LastIndexByte(host, '.')+1:]
	from, err := strconv.ParseUint(node, 10, 64)
	if err != nil {
		w.t.Errorf("a connection from %s: %v", host, err)
		return
	}
	d := net.Dialer{Timeout: 5 * time.Second, LocalAddr: &net.TCPAddr{IP: net.IPv4(10, 77, 1, byte(from))}}
	far, err := d.Dial("tcp", to.peer)
	if err != nil {
		_ = near.Close() // as if it had been refused
		return
	}
	c := &wire{w: w, dial: direction{from, to.id}, held: direction{to.id, from}, near: near, far: far, closed: make(chan struct{})}
	w.mu.Lock()
	c.share = w.rng.Float64()
	w.conns[c] = struct{}{}
	w.mu.Unlock()
	go c.pass(c.dial, near, far)
	c.pass(c.held, far, near)
}

func (c *wire) close() {
	c.once.Do(func() {
		close(c.closed)
		_, _ = c.near.Close(), c.far.Close() // there is nobody to tell
		c.w.mu.Lock()
		delete(c.w.conns, c)
		c.w.mu.Unlock()
	})
}

// late is how long the connection holds back what goes one way now.
func (c *wire) late(d direction) time.Duration {
	c.w.mu.Lock()
	defer c.w.mu.Unlock()
	of := c.w.delays[d]
	return of.atLeast + time.Duration(c.share*float64(of.spread))
}

// chunk is bytes that are held back.
type chunk struct {
	bytes []byte
	due   time.Time
}

// pass moves bytes one way, in order, until the connection ends.
func (c *wire) pass(d direction, from, to net.Conn) {
	defer c.close()
	// So many chunks are held back at most; then the sender has to wait, as it
	// would for a long pipe that is full.
	held := make(chan chunk, 256)
	go func() {
		defer close(held)
		for {
			buf := make([]byte, 16<<10)
			n, err := from.Read(buf)
			if n > 0 {
				select {
				case held <- chunk{buf[:n], time.Now().Add(c.late(d))}:
				case <-c.closed:
					return
				}
			}
			if err != nil {
				return
			}
		}
	}()
	for b := range held {
		if wait := time.Until(b.due); wait > 0 {
			timer := time.NewTimer(wait)
			select {
			case <-timer.C:
			case <-c.closed:
				timer.Stop()
				return
			}
		}
		if _, err := to.Write(b.bytes); err != nil {
			return
		}
	}
}

// slow sets the delay of a direction.
func (w *wires) slow(from, to *member, d delay) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.delays[direction{from.id, to.id}] = d
}

// calm takes all delays away. What is held back is still held back.
func (w *wires) calm() {
	w.mu.Lock()
	defer w.mu.Unlock()
	clear(w.delays)
}

// cut ends all connections between two nodes, in the middle of whatever they
// carry, and says how many those were.
func (w *wires) cut(a, b *member) int {
	w.mu.Lock()
	var between []*wire
	for c := range w.conns {
		if c.dial == (direction{a.id, b.id}) || c.held == (direction{a.id, b.id}) {
			between = append(between, c)
		}
	}
	w.mu.Unlock()
	for _, c := range between {
		c.close()
	}
	return len(between)
}

// carried is how many connections there are.
func (w *wires) carried() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.conns)
}
