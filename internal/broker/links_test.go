package broker

import (
	"context"
	"fmt"
	"maps"
	"math"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/peer"
)

// openLinked opens brokers that are linked by real networks and have formed a
// cluster, with a cache of one shard, of which all but the last have a replica.
// One that a test closes itself it replaces by nil.
func openLinked(t *testing.T, brokers int, change func(node uint64, o *Options)) ([]*Broker, []*cache) {
	t.Helper()
	var founders []founder
	var lns []net.Listener
	for node := uint64(1); node <= uint64(brokers); node++ {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		lns = append(lns, ln)
		founders = append(founders, founder{ID: node, StoreID: fmt.Sprint("store", node), PeerAddr: ln.Addr().String()})
	}
	all := openFounders(t, founders, func(node uint64, o *Options) {
		o.Cluster.Listener = lns[node-1]
		if change != nil {
			change(node, o)
		}
	})
	return all, shareCache(t, all)
}

// pretend makes a broker believe that the metadata says something else, from now
// on.
func pretend(b *Broker, change func(v *view)) {
	b.viewMu.Lock()
	v := *b.view()
	v.index, v.nodes, v.features = math.MaxUint64, maps.Clone(v.nodes), maps.Clone(v.features)
	change(&v)
	b.seen.Store(&v)
	b.viewMu.Unlock()
	b.poke()
}

// TestLinkedBrokersServe: messages, calls and clocks flow between brokers over
// real connections.
func TestLinkedBrokersServe(t *testing.T) {
	t.Parallel()
	brokers, caches := openLinked(t, 4, nil)
	const each = 50
	var all sync.WaitGroup
	for i, c := range caches {
		all.Go(func() {
			for n := range each {
				mustDo(t, c, add("all", 1), add(fmt.Sprint(i, "/", n), 1))
			}
		})
	}
	all.Wait()
	for i, c := range caches {
		if r := mustDo(t, c, felix.Op{Kind: felix.Get, Key: []byte("all")}); r[0].Int != int64(len(caches)*each) {
			t.Errorf("broker %d: the sum is %d", i+1, r[0].Int)
		}
	}
	for _, b := range brokers {
		eventually(t, "every broker is ready", func() bool { return b.Ready() == nil })
		eventually(t, "all others are fit", func() bool {
			fit := b.fitNodes()
			maps.DeleteFunc(fit, func(_ uint64, f fitness) bool { return !f.now })
			return len(fit) == len(brokers)-1
		})
		if index, err := b.barrier(context.Background()); err != nil || index == 0 {
			t.Errorf("broker %d: a barrier at %d, %v", b.node, index, err)
		}
	}
}

// TestHandOverUnderLoad: a broker gives its shards away before it stops. No
// request fails, neither through it before that nor through the others, and none
// is lost.
func TestHandOverUnderLoad(t *testing.T) {
	t.Parallel()
	brokers, caches := openLinked(t, 4, nil)
	var acked atomic.Int64
	stop := make([]chan struct{}, len(caches))
	ended := make([]chan struct{}, len(caches))
	for i, c := range caches {
		stop[i], ended[i] = make(chan struct{}), make(chan struct{})
		go func() {
			defer close(ended[i])
			addUntil(t, c, stop[i], &acked)
		}()
	}
	goOn := func() {
		n := acked.Load()
		eventually(t, "they go on", func() bool { return acked.Load() > n+100 })
	}
	goOn()
	first := owner(brokers)
	leaving := brokers[first-1]
	leaving.HandOver(context.Background())
	if leaving.Stats().Owned != 0 {
		t.Errorf("it still owns %d shards", leaving.Stats().Owned)
	}
	if err := leaving.Ready(); err == nil || !strings.Contains(err.Error(), "stopping") {
		t.Errorf("it says that it is ready: %v", err)
	}
	goOn()
	if second := owner(brokers); second == first || second == 0 {
		t.Errorf("the owner was %d, is %d", first, second)
	}
	close(stop[first-1]) // its doors
	<-ended[first-1]
	if err := closeBroker(leaving); err != nil {
		t.Error(err)
	}
	brokers[first-1] = nil
	if conn, err := net.Dial("tcp", leaving.links.addr); err == nil {
		_ = conn.Close()
		t.Error("it still listens")
	}
	goOn()
	for i, c := range caches {
		if c.b == leaving {
			continue
		}
		close(stop[i])
		<-ended[i]
	}
	for i, c := range caches {
		if c.b == leaving {
			continue
		}
		if r := mustDo(t, c, get); r[0].Int != acked.Load() {
			t.Errorf("broker %d: the sum is %d, %d were acknowledged", i+1, r[0].Int, acked.Load())
		}
	}
}

// addUntil adds to a counter until it is told to stop. Every request must succeed.
func addUntil(t *testing.T, c *cache, stop chan struct{}, acked *atomic.Int64) {
	for n := 0; ; n++ {
		select {
		case <-stop:
			return
		default:
		}
		replies, err := felix.Do(context.Background(), c, add("k", 1), get)
		for _, r := range replies {
			if r.Err != nil {
				err = r.Err
			}
		}
		if err != nil {
			t.Errorf("request %d through broker %d: %v", n, c.b.node, err)
			return
		}
		acked.Add(1)
	}
}

// TestWhoIsKeptOutStops: a broker whose data directory the others do not know, or
// whose node was removed, stops and says why; not because of one of two.
func TestWhoIsKeptOutStops(t *testing.T) {
	t.Parallel()
	for _, v := range []struct {
		name    string
		change  func(n *nodeMeta)
		confuse int // how many of the two others
		want    string
	}{
		{"another directory", func(n *nodeMeta) { n.StoreID = "of old" }, 2, "known with another data directory"},
		{"removed", func(n *nodeMeta) { n.State = nodeRemoved }, 2, "was removed from this cluster"},
		{"one is confused", func(n *nodeMeta) { n.StoreID = "of old" }, 1, ""},
	} {
		t.Run(v.name, func(t *testing.T) {
			t.Parallel()
			var fatal atomic.Pointer[error]
			brokers, _ := openLinked(t, 3, func(node uint64, o *Options) {
				o.Fatal = func(err error) {
					if node == 1 {
						fatal.Store(&err)
					} else {
						t.Errorf("broker %d stops: %v", node, err)
					}
				}
			})
			for _, b := range brokers[1 : 1+v.confuse] {
				pretend(b, func(w *view) {
					n := *w.nodes[1]
					v.change(&n)
					w.nodes[1] = &n
				})
				ps := slices.Collect(maps.Values(b.links.told))
				b.setPeers(nil) // what was linked is cut and comes again
				b.setPeers(ps)
			}
			if v.want == "" {
				// The other one is linked, and the confused one repeats what it says.
				l := brokers[0].links
				eventually(t, "it was refused for long enough", func() bool {
					l.mu.Lock()
					defer l.mu.Unlock()
					p := l.peers[2]
					return p.refusal != nil && p.refusedAt-p.keptOut > refusalPatience
				})
				if err := fatal.Load(); err != nil {
					t.Errorf("it stops: %v", *err)
				}
				return
			}
			eventually(t, "it stops", func() bool { return fatal.Load() != nil })
			if err := *fatal.Load(); !strings.Contains(err.Error(), v.want) {
				t.Errorf("it says %v", err)
			}
		})
	}
}

// TestKeptOutPatience: what counts against a broker, and when.
func TestKeptOutPatience(t *testing.T) {
	t.Parallel()
	b, _ := openOn(t, vfs.NewMem(), 1, nil)
	defer func() {
		if err := closeBroker(b); err != nil {
			t.Error(err)
		}
	}()
	refused := func(reason peer.Reason, ago, since time.Duration) *peerState {
		now := b.mono()
		return &peerState{refusal: &peer.Refusal{Reason: reason}, refusedAt: now - ago, keptOut: now - since}
	}
	up := &peerState{up: true}
	for _, v := range []struct {
		name   string
		peers  []*peerState // the last one refuses again
		reason peer.Reason
		stops  bool
	}{
		{"too soon", []*peerState{refused(peer.ReasonStore, 0, time.Second)}, peer.ReasonStore, false},
		{"long enough", []*peerState{refused(peer.ReasonStore, 0, 3*time.Second)}, peer.ReasonStore, true},
		{"half of them", []*peerState{up, refused(peer.ReasonStore, 0, 3*time.Second)}, peer.ReasonStore, false},
		{"most", []*peerState{up, refused(peer.ReasonStore, time.Second, 3*time.Second), refused(peer.ReasonStore, 0, 3*time.Second)}, peer.ReasonStore, true},
		{"one cannot be reached any more", []*peerState{up, refused(peer.ReasonStore, time.Minute, time.Hour), refused(peer.ReasonStore, 0, time.Hour)}, peer.ReasonStore, false},
		{"one cannot be reached at all", []*peerState{{}, refused(peer.ReasonStore, 0, time.Hour)}, peer.ReasonStore, true},
		{"another process, too soon", []*peerState{refused(peer.ReasonInstance, 0, 3*time.Second)}, peer.ReasonInstance, false},
		{"another process", []*peerState{refused(peer.ReasonInstance, 0, 11*time.Second)}, peer.ReasonInstance, true},
		{"another reason than before", []*peerState{refused(peer.ReasonInstance, 0, 11*time.Second)}, peer.ReasonStore, false},
		{"what may pass", []*peerState{refused(peer.ReasonFeature, 0, time.Hour)}, peer.ReasonFeature, false},
	} {
		l := &links{b: b, peers: map[uint64]*peerState{}}
		node := uint64(1)
		for _, p := range v.peers {
			node++
			l.peers[node] = p
		}
		if err := l.keptOut(node, &peer.Refusal{Reason: v.reason}); (err != nil) != v.stops {
			t.Errorf("%s: %v", v.name, err)
		}
	}
}

// TestLostNodeIsProbed: when a link ends, Raft is told that what was on its way may
// be lost.
func TestLostNodeIsProbed(t *testing.T) {
	t.Parallel()
	brokers, caches := openLinked(t, 4, nil)
	mustDo(t, caches[3], add("k", 1))
	at := owner(brokers)
	b, other := brokers[at-1], at%3+1
	r := b.replicaOf(sharedShard)
	replicates := func() (is bool) {
		r.worker.callWait(func() {
			for _, p := range r.shard.Status().Progress {
				is = is || p.RaftID == 100+other && p.Replicates
			}
		})
		return is
	}
	eventually(t, "it replicates", replicates)
	b.setPeers(slices.DeleteFunc(slices.Collect(maps.Values(b.links.told)), func(p peer.Peer) bool { return p.Node == other }))
	eventually(t, "it is looked for", func() bool { return !replicates() })
}
