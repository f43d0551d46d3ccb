package broker

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"go.etcd.io/raft/v3/raftpb"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/peer"
	"github.com/felix-go/felix/internal/placement"
	"github.com/felix-go/felix/internal/shard"
)

// TestYearAheadDoesNotLead: a broker whose clock is a year ahead of the others'
// owns nothing, says why, and its time gets into no operation.
func TestYearAheadDoesNotLead(t *testing.T) {
	t.Parallel()
	const year = int64(365 * 24 * time.Hour / time.Millisecond)
	brokers, caches := openLinked(t, 4, func(node uint64, o *Options) {
		if node == 1 {
			o.Wall = func() int64 { return time.Now().UnixMilli() + year }
		}
	})
	op := add("k", 1)
	op.TTL, op.ExpiryMillis = felix.TTLIn, 60_000
	for range 3 {
		for _, c := range caches {
			mustDo(t, c, op)
		}
	}
	eventually(t, "it says why", func() bool {
		err := brokers[0].Ready()
		return err != nil && strings.Contains(err.Error(), "its clock is more than")
	})
	for _, b := range brokers[1:] {
		eventually(t, "the others are ready", func() bool { return b.Ready() == nil })
	}
	if at := owner(brokers); at == 1 || at == 0 {
		t.Errorf("the owner is %d", at)
	}
	r := mustDo(t, caches[0], felix.Op{Kind: felix.Get, Key: []byte("k")})
	if soon := time.Now().UnixMilli() + 120_000; r[0].ExpiresAtMillis > soon {
		t.Errorf("the time of the broker that is ahead was used: %+v", r[0])
	}
}

// TestClockOfTheOwnerJumps: a step of the owner's clock changes nothing.
func TestClockOfTheOwnerJumps(t *testing.T) {
	t.Parallel()
	const year = int64(365 * 24 * time.Hour / time.Millisecond)
	var offsets [4]atomic.Int64
	brokers, caches := openLinked(t, 4, func(node uint64, o *Options) {
		o.Wall = func() int64 { return time.Now().UnixMilli() + offsets[node-1].Load() }
	})
	op := add("k", 1)
	op.TTL, op.ExpiryMillis = felix.TTLIn, 60_000
	mustDo(t, caches[3], op)
	offsets[owner(brokers)-1].Store(year)
	for range 100 {
		for _, c := range caches {
			if r := mustDo(t, c, op); r[0].ExpiresAtMillis > time.Now().UnixMilli()+120_000 {
				t.Fatalf("the time that jumped was used: %+v", r[0])
			}
		}
	}
}

// TestOwnerWithAnotherClockGivesUp: where the clocks of all others are set, the
// owner hands over to one of them.
func TestOwnerWithAnotherClockGivesUp(t *testing.T) {
	t.Parallel()
	var offsets [4]atomic.Int64
	brokers, caches := openLinked(t, 4, func(node uint64, o *Options) {
		o.Wall = func() int64 { return time.Now().UnixMilli() + offsets[node-1].Load() }
	})
	mustDo(t, caches[3], add("k", 1))
	first := owner(brokers)
	for i := range offsets {
		if uint64(i+1) != first {
			offsets[i].Store(-3_600_000)
		}
	}
	eventually(t, "another one owns the shard", func() bool { at := owner(brokers); return at != first && at != 0 })
	mustDo(t, caches[3], add("k", 1))
	if r := mustDo(t, caches[first-1], add("k", 1)); r[0].Int != 3 {
		t.Errorf("the sum is %d", r[0].Int)
	}
}

// TestReadsMode: how reads are confirmed is what was asked for, and otherwise
// rests on no clock, whatever the cluster has finalized: a suspension stops the
// clock of a broker that was not started for leases.
//
// Broken: anything else than the flag in readMode (modes.go).
func TestReadsMode(t *testing.T) {
	t.Parallel()
	for _, v := range []struct {
		flag      string
		want      shard.ReadMode
		finalized bool
		unread    bool // the metadata was not read yet
	}{
		{flag: "", want: shard.Fences, finalized: true},
		{flag: "", want: shard.Fences},
		{flag: "lease", want: shard.Leases, finalized: true},
		{flag: "fence", want: shard.Fences},
		{flag: "", unread: true, want: shard.Fences},
	} {
		b, _ := openOn(t, vfs.NewMem(), 1, func(o *Options) { o.Cluster.Reads = v.flag })
		pretend(b, func(w *view) {
			w.features[leaseFreeReads] = v.finalized
			if v.unread {
				w.cluster = nil
			}
		})
		if got := b.readMode(); got != v.want {
			t.Errorf("%+v: %v", v, got)
		}
		if _, ok := bootTime(); v.want == shard.Leases && ok && b.bootStart == 0 {
			t.Errorf("%+v: leases go by a clock that a suspension stops", v)
		}
		if err := closeBroker(b); err != nil {
			t.Error(err)
		}
	}
	if _, err := Open(context.Background(), Options{Dir: "data", FS: vfs.NewMem(), Cluster: ClusterOptions{Reads: "hope"}}); err == nil {
		t.Error("any word is a way to confirm reads")
	}
}

// fenceCounter counts the messages with which owners of the shared shard ask
// others whether they still are.
type fenceCounter struct {
	network
	fences *atomic.Int64
}

func (n fenceCounter) SendRaft(node uint64, ms []peer.Message) {
	for _, m := range ms {
		if m.Shard == sharedShard && m.M.GetType() == raftpb.MsgHeartbeat && len(m.M.GetContext()) > 0 {
			n.fences.Add(1)
		}
	}
	n.network.SendRaft(node, ms)
}

// TestReadsModeReachesShards: reads that follow each other take a fence each, and
// with leases hardly any.
func TestReadsModeReachesShards(t *testing.T) {
	t.Parallel()
	const reads = 200
	for mode, right := range map[string]func(fences int64) bool{
		readsFence: func(fences int64) bool { return fences >= reads },
		readsLease: func(fences int64) bool { return fences < reads/2 },
	} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			var fences atomic.Int64
			_, brokers := openPiped(t, 4, func(_ uint64, o *Options) {
				pipe := o.net
				o.net = func(b *Broker) network { return fenceCounter{pipe(b), &fences} }
				o.Cluster.Reads = mode
			})
			caches := shareCache(t, brokers)
			mustDo(t, caches[3], add("k", 1))
			before := fences.Load()
			for range reads {
				mustDo(t, caches[3], get)
			}
			if n := fences.Load() - before; !right(n) {
				t.Errorf("%d reads took %d fences", reads, n)
			}
		})
	}
}

// TestShardsGoBack: the owner hands a shard to the broker that should own it, once
// that has been there for a while.
func TestShardsGoBack(t *testing.T) {
	t.Parallel()
	brokers, caches := openLinked(t, 4, func(_ uint64, o *Options) { o.Cluster.GiveBackAfter = 2 * time.Second })
	mustDo(t, caches[3], add("k", 1))
	prefer := owner(brokers)%3 + 1
	err := brokers[0].updateShard(context.Background(), sharedShard, func(s *placement.Shard) bool { s.Prefer = prefer; return true })
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the preferred broker owns it", func() bool { return owner(brokers) == prefer })
	if f := brokers[prefer%3].fitNodes()[prefer]; brokers[prefer%3].mono()-f.since < 2*time.Second {
		t.Error("it did not wait")
	}
	if r := mustDo(t, caches[3], add("k", 1)); r[0].Int != 2 {
		t.Errorf("the sum is %d", r[0].Int)
	}
}

// TestModesReachReplicas: a broker whose clock is wrong owns nothing, also of the
// shards that it opens then, and tells others; when it is right again, it does.
func TestModesReachReplicas(t *testing.T) {
	t.Parallel()
	b, c := openOn(t, vfs.NewMem(), 1, nil)
	mustDo(t, c, add("k", 1))
	l := &links{b: b}
	if p := l.Pong(); !p.Eligible || p.Stopping {
		t.Errorf("it tells %+v", p)
	}
	b.setPeers([]peer.Peer{{Node: 9}})
	b.clock.Observe(9, time.Now().UnixMilli()+3_600_000, b.mono(), b.mono())
	b.look()
	eventually(t, "it owns nothing", func() bool { return b.Stats().Owned == 0 })
	if err := b.Ready(); err == nil || !strings.Contains(err.Error(), "clock") {
		t.Errorf("it says that it is ready: %v", err)
	}
	if err := b.bootstrap(felix.Quorum, placement.Sole(sharedShard, b.node)); err != nil {
		t.Fatal(err)
	}
	r, err := b.openReplica(b.addRoute(sharedShard, 1), 0)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the new replica leads", func() bool { return r.lead.Load() == b.node })
	r.worker.callWait(func() {
		if r.shard.Owns() {
			t.Error("a shard that was opened meanwhile is owned")
		}
	})
	b.stopping.Store(true)
	if p := l.Pong(); p.Eligible || !p.Stopping {
		t.Errorf("it tells %+v", p)
	}
	b.stopping.Store(false)
	b.setPeers(nil)
	// It may drop the shard that nobody has placed, now that it can read the metadata.
	eventually(t, "it owns all again", func() bool { return b.Stats().Owned >= 2 && b.Ready() == nil })
	if err := closeBroker(b); err != nil {
		t.Error(err)
	}
}

// TestNoShardBeforeClocksAreCompared: a broker that comes back knows of the others
// before it opens a shard, so that it owns none by a clock that only it believes
// in.
//
// Broken: meetOthers in openShards (open.go).
func TestNoShardBeforeClocksAreCompared(t *testing.T) {
	t.Parallel()
	fs := vfs.NewMem()
	b, c := openOn(t, fs, 1, nil)
	id := c.(*cache).shards[0].id
	op, err := metaSet(nodeKey(2), &nodeMeta{Format: nodeMetaFormat, ID: 2, StoreID: "other", State: nodeActive}, felix.IfAbsent, 0)
	if err == nil {
		_, err = b.metaDo(context.Background(), op)
	}
	if err = errors.Join(err, closeBroker(b)); err != nil {
		t.Fatal(err)
	}
	var opening atomic.Pointer[Broker]
	var looked, alone atomic.Int64
	b, err = Open(context.Background(), Options{Dir: "data", FS: fs, Workers: 1, byHand: true,
		net: func(b *Broker) network { opening.Store(b); return noPeers{} },
		Wall: func() int64 { // asked in each step of a shard
			if b := opening.Load(); b != nil && b.replicaOf(id) != nil {
				looked.Add(1)
				b.clock.mu.Lock() // not held where the time is read
				defer b.clock.mu.Unlock()
				if b.clock.peers == nil {
					alone.Add(1)
				}
			}
			return time.Now().UnixMilli()
		}})
	if err != nil {
		t.Fatal(err)
	}
	if looked.Load() == 0 || alone.Load() > 0 {
		t.Errorf("in %d of %d steps its clock was compared with nobody's", alone.Load(), looked.Load())
	}
	if err := closeBroker(b); err != nil {
		t.Error(err)
	}
}

// TestReadyByPart: what a replica waits for depends on its part in its shard.
func TestReadyByPart(t *testing.T) {
	t.Parallel()
	b, c := openOn(t, vfs.NewMem(), 1, nil)
	mustDo(t, c, add("k", 1))
	r := c.(*cache).shards[0].here.Load()
	if replicaPart(r.part.Load()) != voterPart {
		t.Errorf("its part is %d", r.part.Load())
	}
	for _, v := range []struct {
		part replicaPart
		lead uint64
		owns bool
		want string
	}{
		{voterPart, 1, true, ""}, {voterPart, 2, false, ""}, {voterPart, 1, false, "no owner"}, {voterPart, 0, false, "no owner"},
		{learnerPart, 2, false, ""}, {learnerPart, 0, false, "not heard"}, {emptyPart, 0, false, "snapshot"}, {emptyPart, 2, false, "snapshot"},
	} {
		test := &replica{id: 5, route: r.route}
		test.part.Store(uint32(v.part))
		test.lead.Store(v.lead)
		test.owns.Store(v.owns)
		if err := test.ready(); (err == nil) != (v.want == "") || err != nil && !strings.Contains(err.Error(), v.want) {
			t.Errorf("%+v: %v", v, err)
		}
	}
	if err := closeBroker(b); err != nil {
		t.Error(err)
	}
}

// TestClockOfLeases: the clock that leases go by begins with the broker, goes on
// as others do, and deadlines are on it.
func TestClockOfLeases(t *testing.T) {
	t.Parallel()
	b, c := openOn(t, vfs.NewMem(), 1, func(o *Options) { o.Cluster.Reads = "lease" })
	if _, ok := bootTime(); ok != (b.bootStart != 0) {
		t.Errorf("the clock is there: %v, it began at %v", ok, b.bootStart)
	}
	if off := (b.mono() - time.Since(b.start)).Abs(); off > 10*time.Second {
		t.Errorf("it is %v away from the other clock", off)
	}
	if off := (b.monoAt(time.Now().Add(time.Hour)) - time.Hour - b.mono()).Abs(); off > 10*time.Second {
		t.Errorf("a moment is %v off", off)
	}
	mustDo(t, c, add("k", 1), get)
	if err := closeBroker(b); err != nil {
		t.Error(err)
	}
}
