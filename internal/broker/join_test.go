package broker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/peer"
)

// joiner opens whole brokers that join others.
type joiner struct {
	disk   *vfs.MemFS
	log    *lines
	cancel context.CancelFunc
	opened chan struct{} // closed when Open has returned
	b      *Broker
	err    error
}

// startBroker opens a broker that others can reach at addr.
func startBroker(t testing.TB, disk *vfs.MemFS, node uint64, addr string, change func(*Options)) *joiner {
	t.Helper()
	j := &joiner{disk: disk, log: &lines{new: make(chan struct{}, 1)}, opened: make(chan struct{})}
	o := Options{Dir: "data", FS: disk, NodeID: node, Workers: 1, TickInterval: 10 * time.Millisecond, RequestTimeout: 20 * time.Second,
		Logger: slog.New(slog.NewTextHandler(io.MultiWriter(j.log, t.Output()), nil))}
	o.Cluster.Listener = listen(t, addr)
	if change != nil {
		change(&o)
	}
	var ctx context.Context
	ctx, j.cancel = context.WithTimeout(context.Background(), time.Minute)
	go func() {
		defer close(j.opened)
		j.b, j.err = Open(ctx, o)
	}()
	t.Cleanup(func() { j.stop(t) })
	return j
}

func withJoin(seeds ...string) func(*Options) {
	return func(o *Options) { o.Cluster.Join = seeds }
}

// open waits until the broker is open.
func (j *joiner) open(t testing.TB) *Broker {
	t.Helper()
	if <-j.opened; j.err != nil {
		t.Fatal(j.err)
	}
	return j.b
}

// stop closes the broker, or ends its opening.
func (j *joiner) stop(t testing.TB) {
	t.Helper()
	j.cancel()
	<-j.opened
	if j.b == nil {
		return
	}
	if err := closeBroker(j.b); err != nil {
		t.Error(err)
	}
	j.b = nil
}

// checkJoined: the broker is a member, says so on disk, and has the replica of the
// metadata that the cluster says it has.
func checkJoined(t testing.TB, first *Broker, j *joiner, seed string) {
	t.Helper()
	b := j.open(t)
	id := readIdentity(t, j.disk.CrashClone(vfs.CrashCloneCfg{}))
	want := identity{Format: dataFormat, StoreID: id.StoreID, ClusterID: first.dir.id().ClusterID, NodeID: b.node, Formed: true, Bootstrapped: true,
		Starts: id.Starts, Seeds: []string{seed}, Recorded: id.Recorded}
	if !reflect.DeepEqual(id, want) {
		t.Errorf("felix.json is %+v, want %+v", id, want)
	}
	v, err := first.confirmedView(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	raft := v.cluster.Shard.ReplicaOn(b.node)
	if r, ok, err := b.db.Replica(metaShard); err != nil || !ok || r.RaftID != raft || raft == 0 {
		t.Errorf("the metadata's replica is %+v, %t, %v, and should be %d", r, ok, err, raft)
	}
	if n := v.nodes[b.node]; n == nil || n.StoreID != id.StoreID || n.State != nodeActive {
		t.Errorf("the node is recorded as %+v", n)
	}
	if own := b.view(); own.cluster == nil || own.cluster.ClusterID != id.ClusterID || own.nodes[b.node] == nil {
		t.Error("the broker does not have the metadata")
	}
}

// TestJoin: a broker joins, serves what the cluster has, and comes back with and
// without --join, also at another address.
func TestJoin(t *testing.T) {
	t.Parallel()
	addrs := addresses(t, 1, 4, 5)
	first := startBroker(t, vfs.NewCrashableMem(), 1, addrs[1], nil).open(t)
	c := makeCache(t, first, "c", 2)
	mustDo(t, c, add("k", 3))
	disk := vfs.NewCrashableMem()
	var before identity
	for start, change := range []func(*Options){withJoin(addrs[5], addrs[1]), withJoin(addrs[1]), nil} {
		at := addrs[4]
		if start == 2 {
			at = addrs[5]
		}
		j := startBroker(t, disk, 4, at, change)
		checkJoined(t, first, j, addrs[1])
		there, err := j.b.Cache(context.Background(), c.Scope())
		if err != nil {
			t.Fatal(err)
		}
		if got := mustDo(t, there, add("k", 1))[0].Int; got != int64(4+start) {
			t.Errorf("start %d: the counter is %d", start, got)
		}
		id := j.b.dir.id()
		if start > 0 && (id.StoreID != before.StoreID || id.Starts != before.Starts+1) {
			t.Errorf("start %d: felix.json is %+v, was %+v", start, id, before)
		}
		before = id
		j.stop(t)
	}
}

// TestJoinCrashes crashes a broker that joins at each step. It goes on, with the
// same replica.
func TestJoinCrashes(t *testing.T) {
	t.Parallel()
	for _, step := range []string{"join-identity", "join-replica"} {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			addrs := addresses(t, 1, 4, 5)
			first := startBroker(t, vfs.NewCrashableMem(), 1, addrs[1], nil).open(t)
			disk := vfs.NewCrashableMem()
			crashed, over := make(chan *vfs.MemFS, 1), make(chan struct{})
			dead := startBroker(t, disk, 4, addrs[4], func(o *Options) {
				o.Cluster.Join = []string{addrs[1]}
				o.Cluster.OnStep = func(s string) {
					if s == step {
						crashed <- disk.CrashClone(vfs.CrashCloneCfg{})
						<-over // it does nothing more, and answers nobody who is a member
					}
				}
			})
			left := <-crashed
			id := readIdentity(t, left)
			if id.ClusterID != first.dir.id().ClusterID || id.Bootstrapped {
				t.Errorf("the crash leaves %+v", id)
			}
			// Without --join: felix.json knows whom to ask.
			j := startBroker(t, left, 4, addrs[5], nil)
			checkJoined(t, first, j, addrs[1])
			dead.cancel()
			close(over)
			if <-dead.opened; dead.err == nil {
				t.Error("the crashed broker opened")
			}
		})
	}
}

// TestJoinRecordedCrash crashes both brokers when the member has recorded the one
// that joins, which does not know of it.
func TestJoinRecordedCrash(t *testing.T) {
	t.Parallel()
	addrs := addresses(t, 1, 4)
	memberDisk, disk := vfs.NewCrashableMem(), vfs.NewCrashableMem()
	crashed, gone := make(chan *vfs.MemFS, 1), make(chan struct{})
	member := startBroker(t, memberDisk, 1, addrs[1], func(o *Options) {
		o.Cluster.OnStep = func(s string) {
			if s == "join-recorded" {
				crashed <- memberDisk.CrashClone(vfs.CrashCloneCfg{})
				<-gone
			}
		}
	})
	member.open(t)
	j := startBroker(t, disk, 4, addrs[4], withJoin(addrs[1]))
	memberDisk = <-crashed
	j.stop(t)
	if id := readIdentity(t, disk); id.ClusterID != "" {
		t.Errorf("the broker that was not told is %+v", id)
	}
	close(gone)
	member.stop(t)
	member = startBroker(t, memberDisk, 1, addrs[1], nil)
	checkJoined(t, member.open(t), startBroker(t, disk, 4, addrs[4], withJoin(addrs[1])), addrs[1])
}

// TestJoinWaits: a broker that is to join a cluster that is not formed yet waits
// for it.
func TestJoinWaits(t *testing.T) {
	t.Parallel()
	addrs := addresses(t, 1, 2, 4)
	peers := map[uint64]string{1: addrs[1], 2: addrs[2]}
	founder := func(node uint64) *joiner {
		return startBroker(t, vfs.NewCrashableMem(), node, addrs[node], func(o *Options) { o.Cluster.Peers = peers })
	}
	j := startBroker(t, vfs.NewCrashableMem(), 4, addrs[4], withJoin(addrs[1]))
	j.log.await(t, "connection refused")
	first := founder(1)
	first.log.await(t, "waiting to form the cluster")
	select {
	case <-j.opened:
		t.Fatalf("it did not wait: %v", j.err)
	case <-first.opened:
		t.Fatalf("nor did the founder: %v", first.err)
	default:
	}
	second := founder(2)
	second.open(t)
	b := j.open(t)
	if v := b.view(); v.cluster.ClusterID != first.open(t).dir.id().ClusterID || len(v.nodes) != 3 {
		t.Errorf("the nodes are %v", v.nodes)
	}
}

// TestJoinRefused: who the cluster takes in, once and again, and whom it does not.
func TestJoinRefused(t *testing.T) {
	t.Parallel()
	addrs := addresses(t, 1, 2)
	b := startBroker(t, vfs.NewCrashableMem(), 1, addrs[1], nil).open(t)
	ask := func(change func(*peer.JoinRequest)) (peer.JoinReply, error) {
		j := peer.JoinRequest{Node: 4, StoreID: "a", PeerAddr: "127.0.0.1:1", Features: supportedFeatures()}
		change(&j)
		return b.admitNode(context.Background(), j)
	}
	same := func(*peer.JoinRequest) {}
	var replies [3]peer.JoinReply
	var asking sync.WaitGroup
	for i := range replies {
		asking.Go(func() {
			var err error
			if replies[i], err = ask(same); err != nil {
				t.Error(err)
			}
		})
	}
	asking.Wait()
	if r := replies[0]; r.MetaRaftID != 2 || r.ClusterID != b.dir.id().ClusterID || len(r.Nodes) != 2 || !reflect.DeepEqual(r, replies[1]) || !reflect.DeepEqual(r, replies[2]) {
		t.Errorf("the replies are %+v", replies)
	}
	if r, err := ask(func(j *peer.JoinRequest) { j.PeerAddr = "127.0.0.1:2" }); err != nil || r.MetaRaftID != 2 || r.Nodes[1].Addr != "127.0.0.1:2" {
		t.Errorf("from another address: %+v, %v", r, err)
	}
	refused := func(change func(*peer.JoinRequest), reason peer.Reason, text string) {
		t.Helper()
		_, err := ask(change)
		var r *peer.Refusal
		if !errors.As(err, &r) || r.Reason != reason || !strings.Contains(r.Message, text) {
			t.Errorf("want %s, %q: %v", reason, text, err)
		}
	}
	refused(func(j *peer.JoinRequest) { j.StoreID = "b" }, peer.ReasonStore, "run `felixctl node rm 4` and join under a new id")
	refused(func(j *peer.JoinRequest) { j.Node = 5 }, peer.ReasonStore, "the data directory of node 5 is that of node 4")
	refused(func(j *peer.JoinRequest) { j.Features = nil }, peer.ReasonFeature, "the cluster has finalized idempotency_ids")
	for _, change := range []func(*peer.JoinRequest){
		func(j *peer.JoinRequest) { j.Node = 0 }, func(j *peer.JoinRequest) { j.Node = maxNodeID + 1 },
		func(j *peer.JoinRequest) { j.StoreID = "" }, func(j *peer.JoinRequest) { j.PeerAddr = "[::]:7381" }} {
		if _, err := ask(change); felix.AsError(err).Code != felix.InvalidArgument {
			t.Errorf("what makes no sense: %v", err)
		}
	}
	for _, state := range []string{nodeRemoving, nodeRemoved} {
		if err := b.updateNode(context.Background(), 4, func(n *nodeMeta) bool { n.State = state; return true }); err != nil {
			t.Fatal(err)
		}
		refused(same, peer.ReasonRemoved, "a new --node-id")
	}
	// And a whole broker that is refused says why and ends.
	wiped := startBroker(t, vfs.NewCrashableMem(), 1, addrs[2], withJoin(addrs[1]))
	if <-wiped.opened; wiped.err == nil || !strings.Contains(wiped.err.Error(), "node 1 is known with another data directory") {
		t.Errorf("Open = %v", wiped.err)
	}
}

// TestMaxNodes: a cluster has a largest size.
func TestMaxNodes(t *testing.T) {
	t.Parallel()
	v := newView()
	for id := range uint64(felix.MaxNodes) {
		v.nodes[id+1] = &nodeMeta{ID: id + 1, StoreID: fmt.Sprint(id + 1), State: nodeActive}
	}
	if err := v.admits(&peer.JoinRequest{Node: 100, StoreID: "a"}); felix.AsError(err).Code != felix.ResourceExhausted {
		t.Errorf("one more: %v", err)
	}
	if err := v.admits(&peer.JoinRequest{Node: felix.MaxNodes, StoreID: fmt.Sprint(felix.MaxNodes)}); err != nil {
		t.Errorf("one that is there: %v", err)
	}
	v.nodes[1].State = nodeRemoved
	if err := v.admits(&peer.JoinRequest{Node: 100, StoreID: "a"}); err != nil {
		t.Errorf("one for another: %v", err)
	}
	if members := v.peers(); len(members) != felix.MaxNodes-1 || !slices.IsSortedFunc(members, func(x, y peer.Peer) int { return int(x.Node) - int(y.Node) }) {
		t.Errorf("the members are %v", members)
	}
}

// TestLostMetadataOfAJoiner: a broker that has joined and lost its metadata has
// lost votes. It does not ask for them again.
func TestLostMetadataOfAJoiner(t *testing.T) {
	t.Parallel()
	addrs := addresses(t, 1, 4)
	startBroker(t, vfs.NewCrashableMem(), 1, addrs[1], nil).open(t)
	disk := vfs.NewCrashableMem()
	j := startBroker(t, disk, 4, addrs[4], withJoin(addrs[1]))
	j.open(t)
	j.stop(t)
	for _, name := range []string{"data/log", "data/state"} {
		if err := disk.RemoveAll(name); err != nil {
			t.Fatal(err)
		}
	}
	j = startBroker(t, disk, 4, addrs[4], withJoin(addrs[1]))
	if <-j.opened; j.err == nil || !strings.Contains(j.err.Error(), "the metadata is missing") {
		t.Errorf("Open = %v", j.err)
	}
}
