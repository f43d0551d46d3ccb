package broker

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/peer"
)

// machine is where a broker of a small cluster runs: its disk stays when it is
// stopped.
type machine struct {
	node uint64
	disk *vfs.MemFS
	addr string
	j    *joiner
}

// machines form a cluster of three.
func machines(t *testing.T) (all []*machine, peers map[uint64]string) {
	t.Helper()
	peers = addresses(t, 1, 2, 3)
	for node := uint64(1); node <= 3; node++ {
		m := &machine{node: node, disk: vfs.NewCrashableMem(), addr: peers[node]}
		m.start(t, peers, nil)
		all = append(all, m)
	}
	for _, m := range all {
		m.j.open(t)
	}
	return all, peers
}

// start starts the machine's broker, and does not wait for it.
func (m *machine) start(t *testing.T, peers map[uint64]string, change func(*Options)) {
	t.Helper()
	m.j = startBroker(t, m.disk, m.node, m.addr, func(o *Options) {
		o.Cluster.Peers = peers
		if change != nil {
			change(o)
		}
	})
}

// TestOldCopyStaysOutside: a directory that was copied while its broker was at
// rest, and is put back after that was started again, is refused, and the broker
// says so and stops: also if both were started as often, and however often the
// copy is. The directory itself stays a member.
func TestOldCopyStaysOutside(t *testing.T) {
	t.Parallel()
	all, peers := machines(t)
	m := all[1]
	m.j.stop(t)
	copied := m.disk.CrashClone(vfs.CrashCloneCfg{})
	m.start(t, peers, nil)
	introduced := func(b *Broker) func() bool {
		return func() bool { r := b.dir.id().Recorded; return len(r) == 1 && r[0].Instance == b.links.instance }
	}
	eventually(t, "its start is recorded", introduced(m.j.open(t)))
	m.j.stop(t)
	old := &machine{node: m.node, disk: copied, addr: m.addr}
	for range 3 {
		var once sync.Once
		stopped := make(chan error, 1)
		fatal := func(err error) { once.Do(func() { stopped <- err }) }
		old.start(t, peers, func(o *Options) { o.Fatal = fatal })
		select {
		case err := <-stopped:
			if !strings.Contains(err.Error(), "its directory is an old copy") {
				t.Errorf("it stops: %v", err)
			}
		case <-time.After(20 * time.Second):
			t.Fatal("an old copy is let in")
		}
		old.j.stop(t)
	}
	m.start(t, peers, nil)
	eventually(t, "the start of the right one is recorded", introduced(m.j.open(t)))
}

// TestStartIsNotedBeforeItIsRecorded: a broker that dies while its start is being
// recorded knows afterwards that it may have been.
func TestStartIsNotedBeforeItIsRecorded(t *testing.T) {
	t.Parallel()
	disk := vfs.NewCrashableMem()
	b, err := Open(context.Background(), Options{Dir: "data", FS: disk, byHand: true})
	if err != nil {
		t.Fatal(err)
	}
	b.rec.introduced = false
	if err := b.dir.change(func(id *identity) error { id.Starts = 2; return nil }); err != nil {
		t.Fatal(err)
	}
	ended, cancel := context.WithCancel(context.Background())
	cancel() // so that nothing is written
	if err := b.introduce(ended, viewOf(t, b)); err != nil {
		t.Fatal(err)
	}
	if r := readIdentity(t, disk.CrashClone(vfs.CrashCloneCfg{})).Recorded; len(r) != 2 || r[0].Starts != 1 || r[1].Starts != 2 {
		t.Errorf("it knows of %+v", r)
	}
	if err := b.introduce(context.Background(), viewOf(t, b)); err != nil {
		t.Fatal(err)
	}
	if r := readIdentity(t, disk.CrashClone(vfs.CrashCloneCfg{})).Recorded; len(r) != 1 || r[0].Starts != 2 {
		t.Errorf("it knows of %+v", r)
	}
	if err := closeBroker(b); err != nil {
		t.Error(err)
	}
}

// TestMetadataBeforeFounders: a broker that has metadata on its disk does not look
// for a founder that was removed since.
func TestMetadataBeforeFounders(t *testing.T) {
	t.Parallel()
	all, peers := machines(t)
	first := all[0]
	err := first.j.b.updateNode(context.Background(), 3, func(n *nodeMeta) bool { n.State = nodeRemoved; return true })
	if err != nil {
		t.Fatal(err)
	}
	all[2].j.stop(t)
	if _, err := first.j.b.confirmedView(context.Background()); err != nil {
		t.Fatal(err)
	}
	first.j.stop(t)
	first.start(t, peers, func(o *Options) {
		o.Cluster.Dial = func(ctx context.Context, node uint64, addr string) (net.Conn, error) {
			if node == 3 {
				t.Error("it looks for a broker that was removed")
			}
			return new(net.Dialer).DialContext(ctx, "tcp", addr)
		}
	})
	b := first.j.open(t)
	eventually(t, "the other one is found", func() bool { l := b.Links(); return len(l) == 1 && l[0].Up })
	b.meetFounders() // whom its identity still has
	b.links.mu.Lock()
	_, told := b.links.told[3]
	b.links.mu.Unlock()
	if told {
		t.Error("it goes by its founders, though there is metadata")
	}
}

// TestFinalizingCutsOff: a broker whose build lacks what is finalized is cut off,
// and not only when it comes again.
func TestFinalizingCutsOff(t *testing.T) {
	t.Parallel()
	brokers, _ := openLinked(t, 3, nil)
	b := brokers[0]
	eventually(t, "the others are linked", func() bool { l := b.Links(); return len(l) == 2 && l[0].Up && l[1].Up })
	pretend(b, func(v *view) { v.features["of a newer build"] = true })
	eventually(t, "they are cut off", func() bool {
		l := b.Links()
		return !l[0].Up && !l[1].Up && strings.Contains(l[0].Refused, "the cluster has finalized of a newer build")
	})
}

// TestAllMove: a cluster whose brokers all got other addresses while they were
// down comes together again where --peers says that they are.
func TestAllMove(t *testing.T) {
	t.Parallel()
	all, _ := machines(t)
	for _, m := range all {
		m.j.stop(t)
	}
	peers := addresses(t, 1, 2, 3)
	for _, m := range all {
		m.addr = peers[m.node]
		m.start(t, peers, nil)
	}
	for _, m := range all {
		b := m.j.open(t)
		eventually(t, "the metadata says where all are", func() bool {
			for node, n := range b.view().nodes {
				if n.PeerAddr != peers[node] {
					return false
				}
			}
			return true
		})
	}
}

// TestMisleadingAddress: an address that leads others to their own machine is
// refused, from one that joins and from one that comes back.
func TestMisleadingAddress(t *testing.T) {
	t.Parallel()
	const outside = "felix-1.example:7381"
	b := startBroker(t, vfs.NewCrashableMem(), 1, "127.0.0.1:0", func(o *Options) { o.Cluster.Advertise.Peer = outside }).open(t)
	_, err := b.admitNode(context.Background(), peer.JoinRequest{Node: 4, StoreID: "s4", PeerAddr: "127.0.0.1:7381", Features: supportedFeatures()})
	var e *felix.Error
	const want = "node 4 tells others to reach it at 127.0.0.1:7381, which for the one at " + outside + " is its own machine: give --peer-addr"
	if !errors.As(err, &e) || e.Code != felix.InvalidArgument || !strings.HasPrefix(e.Message, want) {
		t.Errorf("it may join: %v", err)
	}
	for _, v := range []struct {
		own, other string
		state      string
		ok         bool
	}{
		{"127.0.0.1:1", "127.0.0.1:2", nodeActive, true},
		{"localhost:1", "[::1]:2", nodeActive, true},
		{"h:1", "127.0.0.1:2", nodeActive, true},
		{"localhost:1", "h:1", nodeActive, false},
		{"127.0.0.1:1", "10.0.0.1:1", nodeDraining, false},
		{"127.0.0.1:1", "10.0.0.1:1", nodeRemoved, true},
		{"127.0.0.1:1", "", nodeActive, true},
	} {
		w := newView()
		w.nodes[1] = &nodeMeta{ID: 1, PeerAddr: outside, State: nodeActive}
		w.nodes[2] = &nodeMeta{ID: 2, PeerAddr: v.other, State: v.state}
		l := &links{addr: v.own}
		if err := (&Broker{node: 1, links: l}).misleadsNobody(w); (err == nil) != v.ok {
			t.Errorf("%s, and the other at %s, %s: %v", v.own, v.other, v.state, err)
		}
	}
}

// TestClusterOfItsOwn: a broker that was started alone once does not serve beside
// others that it is told to be one of.
func TestClusterOfItsOwn(t *testing.T) {
	t.Parallel()
	disk := vfs.NewCrashableMem()
	addrs := addresses(t, 1, 2)
	startBroker(t, disk, 1, addrs[1], nil).open(t)
	for name, change := range map[string]func(*Options){
		"--peers has node 2, of which this directory's cluster knows nothing": func(o *Options) { o.Cluster.Peers = addrs },
		"--join: it was started without them once":                            withJoin(addrs[2]),
	} {
		j := startBroker(t, disk.CrashClone(vfs.CrashCloneCfg{}), 1, "127.0.0.1:0", change)
		if <-j.opened; j.err == nil || !strings.Contains(j.err.Error(), name) {
			t.Errorf("it starts: %v, want %q", j.err, name)
		}
	}
	alone := map[uint64]string{1: addrs[1]}
	startBroker(t, disk.CrashClone(vfs.CrashCloneCfg{}), 1, "127.0.0.1:0", func(o *Options) { o.Cluster.Peers = alone }).open(t)
}

// TestDeletedIsGoneEverywhere: a cache is not said to be deleted while a broker that
// has it, and can be reached, has not heard of that.
func TestDeletedIsGoneEverywhere(t *testing.T) {
	t.Parallel()
	brokers, caches := openLinked(t, 4, nil)
	m := viewOf(t, brokers[0]).caches[caches[0].scope]
	brokers[1].rec.acted.mu.Lock() // so that it cannot say that it has acted
	ctx, cancel := context.WithTimeout(context.Background(), othersTimeout+time.Second)
	defer cancel()
	err := brokers[0].awaitGone(ctx, m)
	brokers[1].rec.acted.mu.Unlock()
	var e *felix.Error
	if !errors.As(err, &e) || e.Code != felix.OutcomeUnknown || !strings.Contains(e.Message, "node 2 has not heard of that yet") {
		t.Errorf("it is deleted: %v", err)
	}
	if err := brokers[0].awaitGone(context.Background(), m); err != nil {
		t.Error(err)
	}
}

// TestFirstRecordsOnlyOnce: who owns the metadata writes the cluster's first records
// only if there is none, whatever it had read before: a directory that was
// migrated must not get what new clusters have.
func TestFirstRecordsOnlyOnce(t *testing.T) {
	t.Parallel()
	b, err := Open(context.Background(), Options{Dir: "data", FS: vfs.NewMem()})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := closeBroker(b); err != nil {
			t.Error(err)
		}
	}()
	ctx := context.Background()
	key := []byte(featurePrefix + leaseFreeReads)
	if _, err := b.metaDo(ctx, felix.Op{Kind: felix.Delete, View: felix.ViewValue, Key: key}); err != nil {
		t.Fatal(err) // as one that was migrated is
	}
	if err := b.beginCluster(ctx); err != nil {
		t.Fatal(err)
	}
	if r, err := b.metaDo(ctx, felix.Op{Kind: felix.Get, View: felix.ViewValue, Key: key}); err != nil || r.Found != felix.NoRecord {
		t.Errorf("the feature is finalized: %+v, %v", r, err)
	}
}
