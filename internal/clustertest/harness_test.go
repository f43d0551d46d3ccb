package clustertest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/broker"
)

// patience is how long a test waits for what should take a moment.
const patience = 30 * time.Second

// tick is Raft's: elections take 10 to 20 of them. The race detector makes
// everything slower.
func tick() time.Duration {
	if raceDetector {
		return 50 * time.Millisecond
	}
	return 20 * time.Millisecond
}

// calm is for tests in which every request has to succeed: an election for want of
// processor time would make one fail, and rightly so. Nothing waits for one there.
func calm(_ uint64, o *broker.Options) { o.TickInterval = 5 * tick() }

// cluster is brokers in this process.
type cluster struct {
	t     *testing.T
	wire  *wire
	mu    sync.Mutex
	nodes []*node // in order of their ids, which begin with 1; guarded by mu
	// change adapts the options of every broker that starts; nil does not.
	change func(id uint64, o *broker.Options)
}

// node is a place for a broker: a disk, an address and a clock. Its broker comes
// and goes.
type node struct {
	c    *cluster
	id   uint64
	addr string       // for peers
	skew atomic.Int64 // of its wall clock, in milliseconds
	log  *journal
	// first are what the broker of an empty directory is told.
	peers map[uint64]string
	join  []string
	// step, if not nil, is told of each step that a broker takes.
	step atomic.Pointer[func(at *incarnation, step string)]
	// ended, if not nil, is told why the broker wants to end; otherwise that fails
	// the test.
	ended atomic.Pointer[func(why error)]

	mu   sync.Mutex
	disk *disk
	ln   net.Listener // while no broker has it
	now  *incarnation // nil while none runs
}

// incarnation is a broker from its start to its end.
type incarnation struct {
	node   *node
	opened atomic.Pointer[broker.Broker] // nil until it is open
	ln     *socket
	disk   *disk
	dead   atomic.Bool   // it has crashed, though it may not know
	gone   chan struct{} // closed when it is dead, or was stopped
	once   sync.Once
}

// socket is a broker's listener. When its address is taken away, because the
// broker has crashed, that does not notice.
type socket struct {
	net.Listener
	once   sync.Once
	closed chan struct{}
}

// Accept implements net.Listener.
func (s *socket) Accept() (net.Conn, error) {
	c, err := s.Listener.Accept()
	if err != nil {
		<-s.closed
	}
	return c, err
}

// Close implements net.Listener.
func (s *socket) Close() error {
	s.once.Do(func() { close(s.closed) })
	return s.Listener.Close()
}

func (i *incarnation) end() { i.once.Do(func() { close(i.gone) }) }

// current is the broker that runs, or starts; nil if none does.
func (n *node) current() *incarnation {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.now
}

// newCluster makes n nodes that are to form a cluster, and starts none.
func newCluster(t *testing.T, n int, change func(id uint64, o *broker.Options)) *cluster {
	c := &cluster{t: t, wire: newWire(), change: change}
	peers := map[uint64]string{}
	for range n {
		node := c.add()
		peers[node.id] = node.addr
	}
	for _, node := range c.all() {
		if n > 1 {
			node.peers = peers
		}
	}
	t.Cleanup(c.close)
	return c
}

// startCluster makes a cluster of n brokers, which serve.
func startCluster(t *testing.T, n int, change func(id uint64, o *broker.Options)) *cluster {
	t.Helper()
	c := newCluster(t, n, change)
	c.start(c.ids()...)
	c.ready(c.ids()...)
	return c
}

func (c *cluster) ids() (all []uint64) {
	for _, n := range c.all() {
		all = append(all, n.id)
	}
	return all
}

// add makes another node, which nothing runs on yet.
func (c *cluster) add() *node {
	c.t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		c.t.Fatal(err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	n := &node{c: c, id: uint64(len(c.nodes) + 1), addr: ln.Addr().String(), ln: ln,
		log: &journal{}, disk: newDisk(vfs.NewCrashableMem())}
	c.nodes = append(c.nodes, n)
	c.wire.mu.Lock()
	c.wire.nodes[n.addr] = n
	c.wire.mu.Unlock()
	return n
}

// joining makes another node, which is to join the cluster of the others.
func (c *cluster) joining() *node {
	var seeds []string
	for _, n := range c.all() {
		seeds = append(seeds, n.addr)
	}
	n := c.add()
	n.join = seeds
	return n
}

func (c *cluster) node(id uint64) *node { return c.all()[id-1] }

// all are the nodes that there are now.
func (c *cluster) all() []*node {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.nodes)
}

// broker is the one that runs on a node.
func (c *cluster) broker(id uint64) *broker.Broker {
	c.t.Helper()
	i := c.node(id).current()
	if i == nil || i.opened.Load() == nil {
		c.t.Fatalf("no broker runs on node %d", id)
	}
	return i.opened.Load()
}

// start starts brokers, at the same time, and waits until they are open.
func (c *cluster) start(ids ...uint64) {
	c.t.Helper()
	if err := c.tryStart(ids...); err != nil {
		c.t.Fatal(err)
	}
}

// tryStart is start, for any goroutine.
func (c *cluster) tryStart(ids ...uint64) error {
	errs := make([]error, len(ids))
	var all sync.WaitGroup
	for k, id := range ids {
		all.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			errs[k] = c.node(id).open(ctx)
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// ready waits until every shard of the brokers has an owner.
func (c *cluster) ready(ids ...uint64) {
	c.t.Helper()
	for _, id := range ids {
		eventually(c.t, fmt.Sprintf("node %d is ready", id), func() error { return c.broker(id).Ready() })
	}
}

// open starts the node's broker. If it crashes meanwhile the error is nil.
func (n *node) open(ctx context.Context) error {
	ln, err := n.listen()
	if err != nil {
		return err
	}
	i := &incarnation{node: n, ln: &socket{Listener: ln, closed: make(chan struct{})}, gone: make(chan struct{})}
	n.mu.Lock()
	i.disk = n.disk
	n.now = i
	n.mu.Unlock()
	opened := make(chan error, 1)
	ctx, cancel := context.WithCancel(ctx) // a crash ends also a broker that waits for others
	go func() {
		defer cancel()
		b, err := broker.Open(ctx, n.options(i))
		i.opened.Store(b)
		if i.dead.Load() && b != nil {
			_ = closeBroker(b) // it is worth nothing any more
		}
		opened <- err
	}()
	select {
	case err = <-opened:
	case <-i.gone: // it may never notice
		cancel()
	}
	if i.dead.Load() {
		return nil
	}
	if err != nil {
		n.mu.Lock()
		n.now = nil
		n.mu.Unlock()
		_ = ln.Close() // Open may have
		return fmt.Errorf("node %d: %w", n.id, err)
	}
	return nil
}

// listen takes the node's address, which a broker that has ended may still have.
func (n *node) listen() (net.Listener, error) {
	n.mu.Lock()
	ln := n.ln
	n.ln = nil
	n.mu.Unlock()
	if ln != nil {
		return ln, nil
	}
	for deadline := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		ln, err := net.Listen("tcp", n.addr)
		if err == nil || time.Now().After(deadline) {
			return ln, err
		}
	}
}

// options are those of a broker that is to start: small and fast.
func (n *node) options(i *incarnation) broker.Options {
	o := broker.Options{Dir: "data", FS: i.disk, NodeID: n.id,
		Logger: slog.New(slog.NewTextHandler(n.log, &slog.HandlerOptions{Level: slog.LevelInfo})),
		Wall:   func() int64 { return time.Now().UnixMilli() + n.skew.Load() },
		Fatal: func(err error) {
			if ended := n.ended.Load(); ended != nil && !i.dead.Load() {
				i.crash()
				(*ended)(err)
			} else if !i.dead.Load() {
				n.c.t.Errorf("node %d: fatal: %v", n.id, err)
			}
			select {} // the process ends
		},
		Workers: 2, RequestTimeout: 5 * time.Second, TickInterval: tick(), CheckpointEvery: 100 * time.Millisecond,
		CompareEvery: time.Second, HashStatesEvery: 2 * time.Second} // and so nothing that happens makes replicas differ
	o.Cluster = broker.ClusterOptions{Listener: i.ln, Peers: n.peers, Join: n.join, Version: "test",
		Dial: func(ctx context.Context, _ uint64, addr string) (net.Conn, error) { return n.c.wire.dial(ctx, i, addr) },
		OnStep: func(step string) {
			if f := n.step.Load(); f != nil && !i.dead.Load() {
				(*f)(i, step)
			}
		}}
	if n.c.change != nil {
		n.c.change(n.id, &o)
	}
	return o
}

// crash ends the node's broker as a power cut does. Nothing that it says from
// now on is heard, and its disk has what was synced.
func (c *cluster) crash(id uint64) {
	i := c.node(id).current()
	if i == nil {
		c.t.Fatalf("no broker runs on node %d", id)
	}
	i.crash()
}

// crash is safe to be called from inside the broker that crashes.
func (i *incarnation) crash() {
	n := i.node
	i.node.c.wire.cut(i)
	i.end()
	_ = i.ln.Listener.Close() // the broker may have
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.now == i {
		n.disk, n.now = i.disk.crashed(), nil
	}
	if b := i.opened.Load(); b != nil {
		go closeBroker(b)
	}
}

// stop ends the node's broker as a service manager does.
func (c *cluster) stop(id uint64) {
	c.t.Helper()
	n := c.node(id)
	i := n.current()
	if i == nil {
		c.t.Fatalf("no broker runs on node %d", id)
	}
	b := i.opened.Load()
	b.HandOver(context.Background())
	if err := closeBroker(b); err != nil {
		c.t.Errorf("closing node %d: %v", id, err)
	}
	i.end()
	_ = i.ln.Close() // the broker has
	n.mu.Lock()
	n.now = nil
	n.mu.Unlock()
}

// closeBroker is also for brokers that have crashed and do not know it.
func closeBroker(b *broker.Broker) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return b.Close(ctx)
}

// close ends everything, and tells what the brokers said if the test failed.
func (c *cluster) close() {
	c.wire.heal()
	var all sync.WaitGroup
	for _, n := range c.all() {
		if i := n.current(); i != nil && i.opened.Load() != nil {
			all.Go(func() { c.stop(n.id) })
		}
		if n.ln != nil {
			_ = n.ln.Close() // no broker ever had it
		}
	}
	all.Wait()
	if c.t.Failed() {
		for _, n := range c.all() {
			c.t.Logf("node %d said:\n%s", n.id, n.log)
		}
	}
}

// cache opens a cache at a node, for which it waits.
func (c *cluster) cache(id uint64, name string) felix.Cache {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cache, err := c.broker(id).Cache(ctx, scopeOf(name))
	if err != nil {
		c.t.Fatalf("node %d: cache %s: %v", id, name, err)
	}
	return cache
}

// create makes a cache at a node.
func (c *cluster) create(id uint64, name string, settings felix.CacheSettings) felix.CacheInfo {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	info, created, _, err := c.broker(id).CreateCache(ctx, scopeOf(name), settings)
	if err != nil || !created {
		c.t.Fatalf("node %d: creating cache %s: created %v, error %v", id, name, created, err)
	}
	return info
}

func scopeOf(name string) felix.Scope {
	return felix.Scope{Tenant: felix.DefaultTenant, Namespace: felix.DefaultNamespace, Cache: name}
}

// eventually asks until the error is nil.
func eventually(t *testing.T, what string, ask func() error) {
	t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(2 * time.Millisecond) {
		err := ask()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("still not so after %v: %s: %v", patience, what, err)
		}
	}
}

// journal keeps what a node's brokers log, the end of it where it is much.
type journal struct {
	mu   sync.Mutex
	text bytes.Buffer
}

const journalBytes = 64 << 10

// Write implements io.Writer.
func (j *journal) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.text.Len() > 2*journalBytes {
		j.text.Next(j.text.Len() - journalBytes)
	}
	return j.text.Write(p)
}

// String is what is kept.
func (j *journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.String()
}
