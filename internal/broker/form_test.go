package broker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/felix-go/felix/internal/peer"
)

// entrant is a broker that has a data directory and an address, and no more: so
// much of it as becomes a member of a cluster. It answers what others ask who are
// no members yet.
type entrant struct {
	peer.Handler // nil: it has no members to speak with
	*Broker
	disk    *vfs.MemFS
	crashed atomic.Bool // nothing comes in or goes out any more
	stop    func()
	result  chan error // what enter has answered
	log     *lines
}

var errCrashed = errors.New("the broker has crashed")

// alive is the answer to a question that a broker has answered, if it still could.
func alive[T any](e *entrant, ask func() (T, error)) (reply T, err error) {
	if !e.crashed.Load() {
		reply, err = ask()
	}
	if e.crashed.Load() {
		err = errCrashed
	}
	return reply, err
}

func (e *entrant) Self() peer.Identity { return peer.Identity{Node: e.node} }

func (e *entrant) Probe(ctx context.Context) (peer.ProbeInfo, error) {
	return alive(e, func() (peer.ProbeInfo, error) { return e.probe(ctx) })
}

func (e *entrant) Adopt(ctx context.Context, a peer.Adoption) error {
	_, err := alive(e, func() (bool, error) { return true, e.adopt(ctx, a) })
	return err
}

func (e *entrant) Form(ctx context.Context, id string) error {
	_, err := alive(e, func() (bool, error) { return true, e.formed(ctx, id) })
	return err
}

func (e *entrant) dial(ctx context.Context, _ uint64, addr string) (net.Conn, error) {
	if e.crashed.Load() {
		return nil, errCrashed
	}
	return new(net.Dialer).DialContext(ctx, "tcp", addr)
}

// lines are what a broker has logged.
type lines struct {
	mu  sync.Mutex
	all strings.Builder
	new chan struct{} // holds a token
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all.Write(p)
	select {
	case l.new <- struct{}{}:
	default:
	}
	return len(p), nil
}

// await waits until the log has text.
func (l *lines) await(t testing.TB, text string) {
	t.Helper()
	timeout := time.After(time.Minute)
	for {
		l.mu.Lock()
		all := l.all.String()
		l.mu.Unlock()
		if strings.Contains(all, text) {
			return
		}
		select {
		case <-l.new:
		case <-timeout:
			t.Fatalf("the log never had %q:\n%s", text, all)
		}
	}
}

// addresses are free ones.
func addresses(t testing.TB, nodes ...uint64) map[uint64]string {
	t.Helper()
	all := map[uint64]string{}
	for _, id := range nodes {
		ln := listen(t, "127.0.0.1:0")
		defer func() { _ = ln.Close() }() // all are open at once, so that they differ
		all[id] = ln.Addr().String()
	}
	return all
}

func listen(t testing.TB, addr string) net.Listener {
	t.Helper()
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	return ln
}

// tryEntrant makes a broker that is about to enter a cluster.
func tryEntrant(t testing.TB, disk *vfs.MemFS, node uint64, addr string, peers map[uint64]string, onStep func(e *entrant, step string)) (*entrant, error) {
	t.Helper()
	e := &entrant{disk: disk, result: make(chan error, 1), log: &lines{new: make(chan struct{}, 1)}}
	o := Options{Dir: "data", FS: disk, NodeID: node, Logger: slog.New(slog.NewTextHandler(io.MultiWriter(e.log, t.Output()), nil))}
	o.Cluster.Listener, o.Cluster.Peers = listen(t, addr), peers
	if onStep != nil {
		o.Cluster.OnStep = func(step string) { onStep(e, step) }
	}
	o.setDefaults()
	b := &Broker{opts: o, start: time.Now(), entered: make(chan struct{}, 1)}
	e.Broker = b
	var err error
	if b.dir, err = openDataDir(disk, o.Dir); err == nil {
		b.node, err = b.begin()
	}
	if err != nil {
		return nil, errors.Join(err, b.dir.close(), o.Cluster.Listener.Close())
	}
	b.links = &links{b: b, addr: addr}
	if b.links.net, err = peer.New(o.Cluster.Listener, peer.Options{Handler: e, Mono: b.mono, Dial: e.dial}); err != nil {
		t.Fatal(err)
	}
	return e, nil
}

// newEntrant makes a broker and has it enter a cluster.
func newEntrant(t testing.TB, disk *vfs.MemFS, node uint64, peers map[uint64]string, onStep func(e *entrant, step string)) *entrant {
	t.Helper()
	e, err := tryEntrant(t, disk, node, peers[node], peers, onStep)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	served, entered := make(chan error, 1), make(chan struct{})
	go func() { served <- e.links.net.Serve() }()
	go func() { defer close(entered); e.result <- e.enter(ctx) }()
	e.stop = sync.OnceFunc(func() {
		e.crashed.Store(true)
		cancel(errCrashed)
		<-entered
		gone, cancel := context.WithCancel(context.Background())
		cancel()
		if err := e.links.net.Shutdown(gone); err != nil && !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		if err := errors.Join(<-served, e.dir.close()); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(e.stop)
	return e
}

// await waits until the broker has entered, or cannot.
func (e *entrant) await(t testing.TB) error {
	t.Helper()
	select {
	case err := <-e.result:
		return err
	case <-time.After(time.Minute):
		t.Fatalf("node %d has not entered", e.node)
		return nil
	}
}

// checkFormed: all are in one cluster, on disk.
func checkFormed(t testing.TB, peers map[uint64]string, all ...*entrant) string {
	t.Helper()
	var cluster string
	for _, e := range all {
		if err := e.await(t); err != nil {
			t.Fatalf("node %d: %v", e.node, err)
		}
		id := readIdentity(t, e.disk.CrashClone(vfs.CrashCloneCfg{}))
		if cluster == "" {
			cluster = id.ClusterID
		}
		if id.ClusterID != cluster || cluster == "" || id.NodeID != e.node || !id.Formed || id.Bootstrapped || len(id.Founders) == 0 {
			t.Errorf("node %d: felix.json is %+v", e.node, id)
		}
		for _, f := range id.Founders {
			if peers != nil && f.PeerAddr != peers[f.ID] {
				t.Errorf("node %d: founder %d is at %s", e.node, f.ID, f.PeerAddr)
			}
		}
	}
	return cluster
}

// TestFormation: brokers with the same --peers are in one cluster, whoever comes
// first, and not before all have come.
func TestFormation(t *testing.T) {
	t.Parallel()
	for _, order := range [][]uint64{{1}, {1, 2}, {1, 2, 3}, {3, 2, 1}, {2, 1 << 32, 7, 5, 4}} {
		t.Run(fmt.Sprint(order), func(t *testing.T) {
			t.Parallel()
			peers := addresses(t, order...)
			var all []*entrant
			for _, node := range order {
				for _, e := range all {
					e.log.await(t, fmt.Sprintf("node %d at %s", node, peers[node]))
					if id := e.dir.id(); id.ClusterID != "" {
						t.Fatalf("node %d is in a cluster without node %d", e.node, node)
					}
				}
				all = append(all, newEntrant(t, vfs.NewCrashableMem(), node, peers, nil))
			}
			checkFormed(t, peers, all...)
		})
	}
}

// TestFormationCrashes crashes each broker at each step of a formation. It goes
// on from what was synced, and there is one cluster. In every second run all
// brokers are started again, at other addresses.
func TestFormationCrashes(t *testing.T) {
	t.Parallel()
	steps := map[string][]uint64{"form-minted": {1}, "form-adopted": {2, 3}, "form-all-adopted": {1}, "form-started": {1, 2, 3}}
	for step, nodes := range steps {
		for _, node := range nodes {
			for _, move := range []bool{false, true} {
				t.Run(fmt.Sprint(step, node, move), func(t *testing.T) {
					t.Parallel()
					crashFormation(t, step, node, move)
				})
			}
		}
	}
}

func crashFormation(t *testing.T, step string, node uint64, move bool) {
	peers := addresses(t, 1, 2, 3)
	crashed := make(chan *vfs.MemFS, 1)
	all := map[uint64]*entrant{}
	for id := range peers {
		all[id] = newEntrant(t, vfs.NewCrashableMem(), id, peers, func(e *entrant, s string) {
			if s == step && e.node == node && !e.crashed.Swap(true) {
				crashed <- e.disk.CrashClone(vfs.CrashCloneCfg{})
			}
		})
	}
	var disk *vfs.MemFS
	select {
	case disk = <-crashed:
	case <-time.After(time.Minute):
		t.Fatal("the step never came")
	}
	known := readIdentity(t, disk).ClusterID
	if known == "" {
		t.Error("the crash lost the cluster id")
	}
	if !move {
		all[node].stop()
		all[node] = newEntrant(t, disk, node, peers, nil)
	} else {
		moved := addresses(t, 1, 2, 3)
		for id, e := range all {
			e.stop()
			left := disk
			if id != node {
				left = e.disk.CrashClone(vfs.CrashCloneCfg{})
			}
			all[id] = newEntrant(t, left, id, moved, nil)
		}
	}
	if cluster := checkFormed(t, nil, all[1], all[2], all[3]); cluster != known {
		t.Errorf("the cluster is %s, was %s", cluster, known)
	}
}

// TestWiped: a broker whose directory was lost does not form a second cluster
// with brokers of the first, nor do two.
func TestWiped(t *testing.T) {
	t.Parallel()
	for _, wiped := range [][]uint64{{1}, {2}, {3}, {1, 2}, {1, 3}, {2, 3}} {
		t.Run(fmt.Sprint(wiped), func(t *testing.T) {
			t.Parallel()
			wipe(t, wiped, true)
		})
		t.Run(fmt.Sprint(wiped, " and the others come later"), func(t *testing.T) {
			t.Parallel()
			wipe(t, wiped, false)
		})
	}
}

func wipe(t *testing.T, wiped []uint64, up bool) {
	peers := addresses(t, 1, 2, 3)
	all := map[uint64]*entrant{}
	for id := range peers {
		all[id] = newEntrant(t, vfs.NewCrashableMem(), id, peers, nil)
	}
	checkFormed(t, peers, all[1], all[2], all[3])
	for id, e := range all {
		if slices.Contains(wiped, id) || !up {
			e.stop()
		}
	}
	var empty []*entrant
	for _, id := range wiped {
		empty = append(empty, newEntrant(t, vfs.NewCrashableMem(), id, peers, nil))
	}
	if !up {
		for id, e := range all {
			if slices.Contains(wiped, id) {
				continue
			}
			for _, w := range empty {
				w.log.await(t, fmt.Sprintf("node %d at %s", id, peers[id]))
			}
			all[id] = newEntrant(t, e.disk, id, peers, nil)
		}
	}
	for _, w := range empty {
		err := w.await(t)
		want := fmt.Sprintf("node %d is known with another data directory, or not at all: if that directory was lost or copied, run `felixctl node rm %d`; then start with --join ", w.node, w.node)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("node %d: %v", w.node, err)
		}
		if id := w.dir.id(); id.ClusterID != "" {
			t.Errorf("node %d: felix.json is %+v", w.node, id)
		}
	}
}

// TestWipedWhileForming: the directory of a broker is lost before the cluster is
// formed. It cannot be any more, and who can know says so.
func TestWipedWhileForming(t *testing.T) {
	t.Parallel()
	for node, want := range map[uint64]string{1: "has begun to form the cluster", 2: "was begun by brokers with other ids or other data directories"} {
		t.Run(fmt.Sprint(node), func(t *testing.T) {
			t.Parallel()
			peers := addresses(t, 1, 2)
			adopted := make(chan bool, 1)
			first := newEntrant(t, vfs.NewCrashableMem(), 1, peers, func(e *entrant, step string) {
				if step == "form-all-adopted" && !e.crashed.Swap(true) {
					adopted <- true
				}
			})
			disk := vfs.NewCrashableMem()
			second := newEntrant(t, disk, 2, peers, nil)
			<-adopted
			firstDisk := vfs.NewCrashableMem()
			if node == 2 {
				// The first goes on from before it formed the cluster.
				firstDisk = unformed(t, first.disk)
				second.stop()
				second = newEntrant(t, vfs.NewCrashableMem(), 2, peers, nil)
			}
			first.stop()
			first = newEntrant(t, firstDisk, 1, peers, nil)
			if err := first.await(t); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "empty the directories of all") {
				t.Errorf("node 1: %v", err)
			}
			if second.dir.id().Formed {
				t.Error("node 2 thinks that there is a cluster")
			}
		})
	}
}

// unformed is the disk of a broker before it heard that its cluster is formed.
func unformed(t testing.TB, disk *vfs.MemFS) *vfs.MemFS {
	t.Helper()
	disk = disk.CrashClone(vfs.CrashCloneCfg{})
	id := readIdentity(t, disk)
	id.Formed = false
	raw, err := id.encode()
	if err == nil {
		err = writeFile(disk, "data", "felix.json", raw)
	}
	if err != nil {
		t.Fatal(err)
	}
	return disk
}

// TestDifferentPeers: brokers that do not agree on who they are wait, and say who
// says what, until one of them is started again as it should be.
func TestDifferentPeers(t *testing.T) {
	t.Parallel()
	right := addresses(t, 1, 2)
	wrong := map[uint64]string{1: right[1], 2: right[2], 3: addresses(t, 3)[3]}
	first := newEntrant(t, vfs.NewCrashableMem(), 1, right, nil)
	second := newEntrant(t, vfs.NewCrashableMem(), 2, wrong, nil)
	first.log.await(t, fmt.Sprintf("node 2 at %s: it was started with --peers %s, node 1 with --peers %s", right[2], peersText(wrong), peersText(right)))
	second.log.await(t, fmt.Sprintf("node 1 at %s: it was started with --peers %s, node 2 with --peers %s", right[1], peersText(right), peersText(wrong)))
	second.stop()
	second = newEntrant(t, second.disk, 2, right, nil)
	checkFormed(t, right, first, second)
}

// TestUnfitPeers: what else keeps brokers from forming a cluster is told, and
// waited for.
func TestUnfitPeers(t *testing.T) {
	t.Parallel()
	peers := addresses(t, 1, 2)
	first := newEntrant(t, vfs.NewCrashableMem(), 1, peers, nil)
	for disk, want := range map[*vfs.MemFS]string{
		first.disk.CrashClone(vfs.CrashCloneCfg{}): "its data directory is a copy of that of node 1",
	} {
		copied := newEntrant(t, disk, 2, peers, nil)
		first.log.await(t, want)
		copied.stop()
	}
	swapped, err := tryEntrant(t, vfs.NewCrashableMem(), 3, peers[2], map[uint64]string{3: peers[2]}, nil)
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = swapped.links.net.Serve() }()
	first.log.await(t, "that is the address of node 3")
	if err := errors.Join(swapped.links.net.Shutdown(context.Background()), swapped.dir.close()); err != nil {
		t.Error(err)
	}
	checkFormed(t, peers, first, newEntrant(t, vfs.NewCrashableMem(), 2, peers, nil))
}

// TestCannotEnter: settings that no cluster can come of are refused, unless the
// directory is in one.
func TestCannotEnter(t *testing.T) {
	t.Parallel()
	ln := listen(t, "127.0.0.1:0")
	defer func() { _ = ln.Close() }()
	peers := map[uint64]string{1: "h1:1", 2: "h2:1"}
	member := identity{Format: dataFormat, StoreID: "a", ClusterID: "c", NodeID: 1, Formed: true}
	begun := identity{Format: dataFormat, StoreID: "a", ClusterID: "c", NodeID: 1}
	empty := identity{Format: dataFormat, StoreID: "a"}
	for _, c := range []struct {
		id   identity
		node uint64
		o    ClusterOptions
		want string
	}{
		{empty, 0, ClusterOptions{}, ""},
		{empty, 1, ClusterOptions{Peers: peers, Listener: ln}, ""},
		{empty, 4, ClusterOptions{Join: []string{"h1:1"}, Listener: ln}, ""},
		{begun, 1, ClusterOptions{Peers: peers, Listener: ln}, ""},
		{member, 0, ClusterOptions{Peers: peers, Join: []string{"nonsense"}}, ""},
		{identity{Format: 1, StoreID: "a", NodeID: 1}, 0, ClusterOptions{Join: []string{"h1:1"}}, ""},
		{empty, 1, ClusterOptions{Peers: peers, Join: []string{"h1:1"}, Listener: ln}, "not both"},
		{begun, 1, ClusterOptions{}, "was never formed"},
		{begun, 1, ClusterOptions{Join: []string{"h1:1"}, Listener: ln}, "was never formed"},
		{empty, 0, ClusterOptions{Peers: peers, Listener: ln}, "--peers needs a --node-id"},
		{empty, 0, ClusterOptions{Join: []string{"h1:1"}, Listener: ln}, "--join needs a --node-id"},
		{empty, 3, ClusterOptions{Peers: peers, Listener: ln}, "--peers 1=h1:1,2=h2:1 does not have node 3"},
		{empty, 1, ClusterOptions{Peers: peers}, "needs a listener"},
		{empty, 1, ClusterOptions{Peers: map[uint64]string{1: "h1:1", 0: "h2:1"}, Listener: ln}, "node id 0"},
		{empty, 1, ClusterOptions{Peers: map[uint64]string{1: "h1:1", maxNodeID + 1: "h2:1"}, Listener: ln}, "node id 4294967297"},
		{empty, 1, ClusterOptions{Peers: map[uint64]string{1: "h1:1", 2: "h1:1"}, Listener: ln}, "a host:port of its own"},
		{empty, 1, ClusterOptions{Peers: map[uint64]string{1: "[::]:1", 2: "h1:1"}, Listener: ln}, "a host:port of its own"},
		{empty, 1, ClusterOptions{Join: []string{"h1"}, Listener: ln}, "--join needs a host:port"},
	} {
		o := Options{Dir: "data", NodeID: c.node, Cluster: c.o}
		if why := o.cannotEnter(c.id); (c.want == "") != (why == "") || !strings.Contains(why, c.want) {
			t.Errorf("node %d, %+v, %+v: %q", c.node, c.o, c.id, why)
		}
	}
}

// TestAdoptRefusals: a broker becomes a founder of the cluster that it was started
// to form, with its own directory, and of no other.
func TestAdoptRefusals(t *testing.T) {
	t.Parallel()
	peers := addresses(t, 1, 2)
	e, err := tryEntrant(t, vfs.NewMem(), 2, peers[2], peers, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := errors.Join(e.links.net.Shutdown(context.Background()), e.dir.close()); err != nil {
			t.Error(err)
		}
	}()
	store := e.dir.id().StoreID
	good := peer.Adoption{ClusterID: "c", Founders: []peer.Peer{{Node: 1, StoreID: "a", Addr: peers[1]}, {Node: 2, StoreID: store, Addr: peers[2]}}}
	change := func(f func(a *peer.Adoption)) peer.Adoption {
		a := peer.Adoption{ClusterID: "c", Founders: slices.Clone(good.Founders)}
		f(&a)
		return a
	}
	refuse := func(a peer.Adoption, want string) {
		t.Helper()
		before := e.dir.id()
		if err := e.adopt(context.Background(), a); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v", a, err)
		}
		if !reflect.DeepEqual(e.dir.id(), before) {
			t.Errorf("%+v was adopted", a)
		}
	}
	otherStore := change(func(a *peer.Adoption) { a.Founders[1].StoreID = "b" })
	refuse(otherStore, "another data directory")
	refuse(change(func(a *peer.Adoption) { a.Founders = a.Founders[:1] }), "not among the founders")
	refuse(change(func(a *peer.Adoption) { a.ClusterID = "" }), "not among the founders")
	refuse(change(func(a *peer.Adoption) { a.Founders[0].Addr = "h:1" }), "give all the same")
	if err := e.formed(context.Background(), "c"); err == nil {
		t.Error("a cluster was formed that was not adopted")
	}
	for range 2 {
		if err := e.adopt(context.Background(), good); err != nil {
			t.Fatal(err)
		}
	}
	refuse(otherStore, "another data directory")
	refuse(change(func(a *peer.Adoption) { a.ClusterID = "d" }), "belongs to the cluster c already")
	refuse(change(func(a *peer.Adoption) { a.Founders[0].StoreID = "b" }), "begun by brokers with other ids or other data directories")
	if err := e.formed(context.Background(), "d"); err == nil || e.dir.id().Formed {
		t.Errorf("another cluster was formed: %v", err)
	}
}
