package clustertest

import (
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// direction is one way of the network between two nodes.
type direction struct{ from, to uint64 }

// state is what a direction does with what is sent.
type state struct {
	// shut keeps everything back, as a network that drops packets does: what is
	// being sent stalls, and new connections are not made.
	shut  bool
	delay time.Duration
	// cutAfter ends the connection that carries so many bytes more, in the middle
	// of what it is sending; 0 does not.
	cutAfter int
}

// wire is the network between the brokers. It stands at the dialling side: a
// broker gets one end of a pipe, and the wire carries bytes between the other
// end and a real connection.
type wire struct {
	mu      sync.Mutex
	changed chan struct{} // closed, and replaced, when anything below changes
	states  map[direction]state
	nodes   map[string]*node // by peer address
	conns   map[*cable]struct{}
	cuts    atomic.Int64 // connections that cutAfter has ended
}

func newWire() *wire {
	return &wire{changed: make(chan struct{}), states: map[direction]state{}, nodes: map[string]*node{}, conns: map[*cable]struct{}{}}
}

// set says what a direction does from now on.
func (w *wire) set(d direction, s state) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.states[d] = s
	close(w.changed)
	w.changed = make(chan struct{})
}

// part shuts, both ways, every direction between the two groups of nodes.
func (w *wire) part(a, b []uint64) {
	for _, x := range a {
		for _, y := range b {
			w.set(direction{x, y}, state{shut: true})
			w.set(direction{y, x}, state{shut: true})
		}
	}
}

// heal opens every direction.
func (w *wire) heal() {
	w.mu.Lock()
	defer w.mu.Unlock()
	clear(w.states)
	close(w.changed)
	w.changed = make(chan struct{})
}

// cable is a connection between two running brokers.
type cable struct {
	wire     *wire
	from, to *incarnation
	near     net.Conn // the pipe's end that the dialling broker does not have
	far      net.Conn // the real connection
	closed   chan struct{}
	once     sync.Once
}

func (c *cable) close() {
	c.once.Do(func() {
		close(c.closed)
		_, _ = c.near.Close(), c.far.Close() // there is nobody to tell
		c.wire.mu.Lock()
		delete(c.wire.conns, c)
		c.wire.mu.Unlock()
	})
}

// dial connects a broker with the address of another.
func (w *wire) dial(ctx context.Context, from *incarnation, addr string) (net.Conn, error) {
	w.mu.Lock()
	peer := w.nodes[addr]
	w.mu.Unlock()
	if peer == nil {
		return nil, fmt.Errorf("no broker has the address %s", addr)
	}
	there, here := direction{from.node.id, peer.id}, direction{peer.id, from.node.id}
	if err := w.open(ctx, there, here); err != nil {
		return nil, err
	}
	to := peer.current()
	var d net.Dialer
	far, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	mine, near := net.Pipe()
	c := &cable{wire: w, from: from, to: to, near: near, far: far, closed: make(chan struct{})}
	w.mu.Lock()
	w.conns[c] = struct{}{}
	dead := to == nil || from.dead.Load() || to.dead.Load()
	w.mu.Unlock()
	if dead {
		c.close()
		return nil, fmt.Errorf("one of the nodes %d and %d has crashed", there.from, there.to)
	}
	go c.carry(there, near, far)
	go c.carry(here, far, near)
	return mine, nil
}

// open waits until both directions are.
func (w *wire) open(ctx context.Context, there, here direction) error {
	for {
		w.mu.Lock()
		shut, changed := w.states[there].shut || w.states[here].shut, w.changed
		w.mu.Unlock()
		if !shut {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// packet is bytes on their way.
type packet struct {
	bytes []byte
	due   time.Time
}

// carry moves bytes one way until the connection ends.
func (c *cable) carry(d direction, src, dst net.Conn) {
	defer c.close()
	packets := make(chan packet, 16)
	go func() {
		defer close(packets)
		buf := make([]byte, 64<<10)
		for {
			n, err := src.Read(buf)
			if n > 0 {
				select {
				case packets <- packet{append([]byte(nil), buf[:n]...), time.Now()}:
				case <-c.closed:
					return
				}
			}
			if err != nil {
				return
			}
		}
	}()
	for p := range packets {
		send, last := c.pass(d, p)
		if len(send) > 0 {
			if _, err := dst.Write(send); err != nil {
				return
			}
		}
		if last {
			return
		}
	}
}

// pass waits until a packet may go on. It answers how much of it does, and
// whether the connection ends with that.
func (c *cable) pass(d direction, p packet) (send []byte, last bool) {
	for {
		c.wire.mu.Lock()
		s, changed := c.wire.states[d], c.wire.changed
		wait := time.Until(p.due.Add(s.delay))
		if !s.shut && wait <= 0 {
			send = p.bytes
			if s.cutAfter > 0 {
				if last = s.cutAfter <= len(send); last {
					send, s.cutAfter = send[:s.cutAfter], 0
					c.wire.cuts.Add(1)
				} else {
					s.cutAfter -= len(send)
				}
				c.wire.states[d] = s
			}
			c.wire.mu.Unlock()
			return send, last
		}
		c.wire.mu.Unlock()
		if s.shut {
			wait = time.Hour
		}
		timer := time.NewTimer(wait)
		select {
		case <-changed:
		case <-timer.C:
		case <-c.closed:
			timer.Stop()
			return nil, true
		}
		timer.Stop()
	}
}

// cut ends all connections of an incarnation, for good: what it says after
// that, nobody hears.
func (w *wire) cut(i *incarnation) {
	w.mu.Lock()
	i.dead.Store(true)
	var own []*cable
	for c := range w.conns {
		if c.from == i || c.to == i {
			own = append(own, c)
		}
	}
	w.mu.Unlock()
	for _, c := range own {
		c.close()
	}
}
