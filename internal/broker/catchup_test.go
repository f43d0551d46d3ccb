package broker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/peer"
	"github.com/felix-go/felix/internal/placement"
	"github.com/felix-go/felix/internal/record"
)

// TestEmptyReplicaCatchesUp: a replica that begins with nothing gets a snapshot
// while the shard is used, although nobody has checkpointed for hours, and then
// serves.
func TestEmptyReplicaCatchesUp(t *testing.T) {
	t.Parallel()
	g := newGroup(t)
	chunks, seen := atomic.Int64{}, atomic.Int64{}
	g.pipes.onChunk = func(from, to uint64) error {
		chunks.Add(1)
		g.add() // the shard goes on
		out, in := g.replica(from).transfers.sending(to), g.replica(to).transfers.receiving()
		if out != nil && in.GetEstimatedBytes() > 0 {
			seen.Add(in.GetBytes())
		}
		return nil
	}
	g.join()
	eventually(t, "a snapshot was sent", func() bool { return g.status(4).Applied > 1 })
	g.waitFor(4)
	g.pipes.onChunk = nil
	g.change(raftpb.ConfChangeAddNode, 104)
	eventually(t, "it votes", func() bool { return len(g.status(4).Conf.GetVoters()) == 4 })
	g.caughtUp(4)
	if chunks.Load() < 3 || seen.Load() == 0 {
		t.Errorf("%d chunks, %d bytes were seen on their way", chunks.Load(), seen.Load())
	}
}

// TestLaggingReplicaCatchesUpByLog: what a replica misses while it restarts is
// kept in the log, also when it is in the state store; and dropped when the
// replica has it.
func TestLaggingReplicaCatchesUpByLog(t *testing.T) {
	t.Parallel()
	g := newGroup(t)
	node := g.follower()
	g.pipes.setCut(node, true)
	for range 5 {
		g.add()
		g.checkpoint()
	}
	leads := g.owner()
	kept := int64(0)
	g.onWorker(leads, func(r *replica) { kept = r.keptBytes() })
	if kept == 0 {
		t.Error("no log is kept for a replica that was just there")
	}
	b := g.brokers[leads-1]
	eventually(t, "the broker knows how much it keeps", func() bool { return b.checkpoint.kept.Load() >= kept })
	g.heal(node)
	g.waitFor(node)
	eventually(t, "nothing is kept for nobody", func() (none bool) {
		g.onWorker(leads, func(r *replica) {
			r.worker.lookAfter(r)
			none = !r.shard.Leader() || r.keptBytes() == 0
		})
		return none
	})
	g.caughtUp(node)
	if g.pipes.snapshots != 0 {
		t.Errorf("%d snapshots were sent", g.pipes.snapshots)
	}
}

// TestLaggingReplicaCatchesUpBySnapshot: one that has fallen behind the log, with
// records that are dirty, and a checkpoint of them under way that must not come
// after the snapshot. The owner changes meanwhile.
func TestLaggingReplicaCatchesUpBySnapshot(t *testing.T) {
	t.Parallel()
	g := newGroup(t)
	node := g.lag()
	b, r, leads := g.brokers[node-1], g.replica(node), g.owner()
	checkpointed, inPlace := make(chan error, 1), make(chan struct{})
	var job *captureJob
	term := uint64(0) // of what is held back
	var once [4]sync.Once
	steps := map[string]func(){
		"install-staged": func() {
			once[0].Do(func() {
				b.checkpoint.writing.Lock()
				go func() { checkpointed <- b.checkpoint.all(context.Background()) }()
				eventually(t, "a checkpoint is to be written", func() (whole bool) {
					g.onWorker(node, func(r *replica) { job = r.capture; whole = job != nil && job.whole })
					return whole
				})
			})
		},
		"install-term": func() {
			once[1].Do(func() {
				if !job.dropped.Load() {
					t.Error("the checkpoint goes on")
				}
				b.checkpoint.writing.Unlock()
				g.handOver(leads, 6-leads-node)
				eventually(t, "there is more to write", func() (held bool) {
					g.onWorker(node, func(r *replica) {
						for _, a := range r.incoming.held {
							term = max(term, a.HardState.GetTerm())
						}
						held = term > 0
					})
					return held
				})
			})
		},
		"install-state": func() {
			once[2].Do(func() {
				if err := b.checkpoint.all(context.Background()); err != nil {
					t.Error(err)
				}
			})
		},
		"install-log": func() {
			once[3].Do(func() {
				defer close(inPlace)
				g.pipes.setCut(node, true)
				if on, _, err := b.db.Applied(sharedShard); err != nil || on.Index != r.incoming.applied.Index {
					t.Errorf("the state store has entry %d, %v; the snapshot is of entry %d", on.Index, err, r.incoming.applied.Index)
				}
			})
		},
	}
	g.setOnStep(func(at uint64, step string) {
		if at == node {
			steps[step]()
		}
	})
	g.heal(node)
	if err := <-checkpointed; err != nil {
		t.Error(err)
	}
	<-inPlace
	eventually(t, "what was held back is written", func() bool { have, _, _ := r.log.HardState(); return term > 0 && have >= term })
	g.heal(node)
	g.caughtUp(node)
	flushed := record.Applied{}
	g.onWorker(node, func(r *replica) { flushed = r.flushed })
	if on, _, err := b.db.Applied(sharedShard); err != nil || on.Index != flushed.Index {
		t.Errorf("the state store has entry %d, %v, and the replica believes %d", on.Index, err, flushed.Index)
	}
}

var installSteps = []string{"install-staged", "install-term", "install-state", "install-log"}

// TestInstallIsCutShort cuts the power at each step of an install. The replica
// comes back with the state of before or that of the snapshot, and catches up.
func TestInstallIsCutShort(t *testing.T) {
	t.Parallel()
	for i, step := range installSteps {
		for _, percent := range []int{0, 50} {
			t.Run(fmt.Sprint(step, " ", percent), func(t *testing.T) {
				t.Parallel()
				g := newGroup(t)
				node := g.lag()
				g.name(node)
				before := g.status(node).Applied
				var once sync.Once
				left := make(chan *vfs.MemFS, 1)
				g.setOnStep(func(at uint64, now string) {
					if at != node || now != step {
						return
					}
					once.Do(func() {
						g.pipes.setCut(node, true)
						disk := g.disks[node]
						disk.reuse.Lock()
						defer disk.reuse.Unlock()
						left <- g.mems[node].CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: rand.New(rand.NewPCG(uint64(i), 9))})
					})
				})
				g.heal(node)
				clone := <-left
				g.setOnStep(func(uint64, string) {})
				g.restart(node, clone)
				flushed := record.Applied{}
				g.onWorker(node, func(r *replica) { flushed = r.flushed })
				if isNew := flushed.Index > before; isNew != (i >= 2) {
					t.Errorf("after %s the state ends with entry %d, before it did with %d", step, flushed.Index, before)
				}
				g.add()
				g.caughtUp(node)
			})
		}
	}
}

// TestSnapshotToDeadPeer: when a stream breaks, Raft hears of it and tries again.
func TestSnapshotToDeadPeer(t *testing.T) {
	t.Parallel()
	g := newGroup(t)
	node := g.lag()
	var broken atomic.Int64
	g.pipes.onChunk = func(_, to uint64) error {
		if to == node && broken.Add(1)%2 == 0 && broken.Load() < 7 { // with the second chunk
			return errCut
		}
		return nil
	}
	g.heal(node)
	g.caughtUp(node)
	if broken.Load() < 7 {
		t.Errorf("%d chunks were sent", broken.Load())
	}
}

// TestSnapshotsWaitForAPlace: no more than so many are sent at a time; Raft asks
// again for the others.
func TestSnapshotsWaitForAPlace(t *testing.T) {
	t.Parallel()
	g := newGroup(t)
	node := g.lag()
	sending := g.brokers[g.owner()-1].sending
	for range cap(sending) {
		sending <- struct{}{}
	}
	g.heal(node)
	leads := g.owner()
	eventually(t, "the follower is heard of", func() bool {
		for _, p := range g.status(leads).Progress {
			if p.RaftID == 100+node && p.Active {
				return true
			}
		}
		return false
	})
	if g.pipes.snapshots != 0 {
		t.Errorf("%d snapshots were sent", g.pipes.snapshots)
	}
	for range cap(sending) {
		<-sending
	}
	g.caughtUp(node)
}

// offered is a snapshot of the shared shard for a replica, as its owner would
// send it now.
func (g *group) offered(node uint64) (peer.SnapshotHeader, func() ([]byte, error), func()) {
	g.t.Helper()
	leads := g.owner()
	reader, err := g.brokers[leads-1].db.OpenSnapshot(sharedShard)
	if err != nil {
		g.t.Fatal(err)
	}
	term := g.status(leads).Term
	m, err := snapshotMessage(&raftpb.Message{Type: raftpb.MsgSnap.Enum(), From: proto.Uint64(100 + leads), To: proto.Uint64(100 + node), Term: &term}, reader.Applied())
	if err != nil {
		g.t.Fatal(err)
	}
	chunks, buf := &snapshotChunks{from: reader}, make([]byte, 256)
	return peer.SnapshotHeader{Shard: sharedShard, Message: m, Applied: record.AppendApplied(nil, reader.Applied())},
		func() ([]byte, error) { return chunks.next(buf) }, reader.Close
}

// TestObsoleteSnapshot: what the replica does not need is thrown away.
func TestObsoleteSnapshot(t *testing.T) {
	t.Parallel()
	g := newGroup(t)
	g.checkpoint()
	node := g.follower()
	g.add()
	g.waitFor(node)
	h, next, done := g.offered(node)
	defer done()
	before := g.status(node)
	if err := g.brokers[node-1].takeSnapshot(g.owner(), h, next); err != nil {
		t.Error(err)
	}
	if after := g.status(node); after.Applied < before.Applied || after.Installing {
		t.Errorf("%+v became %+v", before, after)
	}
	g.clean(node)
	g.add()
	g.caughtUp(node)
}

// TestBadSnapshots: what a peer gets wrong is refused, and changes nothing.
func TestBadSnapshots(t *testing.T) {
	t.Parallel()
	g := newGroup(t)
	node := g.lag() // it stays cut off, and so in need of one
	b := g.brokers[node-1]
	for name, spoil := range map[string]func(h *peer.SnapshotHeader, next func() ([]byte, error)) func() ([]byte, error){
		"another shard": func(h *peer.SnapshotHeader, next func() ([]byte, error)) func() ([]byte, error) {
			h.Shard = 999
			return next
		},
		"not a state": func(h *peer.SnapshotHeader, next func() ([]byte, error)) func() ([]byte, error) {
			h.Applied = []byte("x")
			return next
		},
		"cut off": func(_ *peer.SnapshotHeader, next func() ([]byte, error)) func() ([]byte, error) {
			return func() ([]byte, error) {
				if _, err := next(); err != nil {
					return nil, err
				}
				return nil, io.ErrUnexpectedEOF
			}
		},
		"too few": func(*peer.SnapshotHeader, func() ([]byte, error)) func() ([]byte, error) {
			return func() ([]byte, error) { return nil, io.EOF }
		},
		"nonsense": func(*peer.SnapshotHeader, func() ([]byte, error)) func() ([]byte, error) {
			return func() ([]byte, error) { return []byte("nonsense"), nil }
		},
	} {
		h, next, done := g.offered(node)
		next = spoil(&h, next)
		if err := b.takeSnapshot(g.owner(), h, next); err == nil {
			t.Errorf("%s: it was taken", name)
		}
		done()
		g.clean(node)
	}
	// One at a time; the sender of a higher term goes first when it asks again.
	h, next, done := g.offered(node)
	defer done()
	wanted := func() bool { // while one is received
		again, err := func() (peer.SnapshotHeader, error) {
			other, more, close := g.offered(node)
			defer close()
			*other.Message.Term++
			return other, b.takeSnapshot(g.owner(), other, more)
		}()
		return errors.Is(err, errReceiving) && again.Shard == sharedShard
	}
	first := true
	err := b.takeSnapshot(g.owner(), h, func() ([]byte, error) {
		if first && !wanted() {
			t.Error("two snapshots at a time")
		}
		first = false
		return next()
	})
	if !errors.Is(err, errVoid) {
		t.Errorf("the one of the older term: %v", err)
	}
	g.clean(node)
	g.heal(node)
	g.caughtUp(node)
}

// TestStopDuringInstall: a broker stops at whatever step an install is, and its
// directory can be opened again.
func TestStopDuringInstall(t *testing.T) {
	t.Parallel()
	for _, step := range append([]string{"chunk"}, installSteps...) {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			g := newGroup(t)
			node := g.lag()
			g.name(node)
			b := g.brokers[node-1]
			reached, stopped := make(chan struct{}), make(chan struct{})
			var once sync.Once
			halt := func(at uint64, now string) {
				if at == node && now == step {
					once.Do(func() { close(reached) })
					<-stopped
				}
			}
			g.setOnStep(halt)
			g.pipes.onChunk = func(_, to uint64) error { halt(to, "chunk"); return nil }
			g.heal(node)
			<-reached
			closed := make(chan error, 1)
			go func() { closed <- closeBroker(b) }()
			<-b.running.Done()
			close(stopped)
			if err := <-closed; err != nil {
				t.Error(err)
			}
			g.setOnStep(func(uint64, string) {})
			g.open(node, g.mems[node])
			g.caughtUp(node)
		})
	}
}

// TestDropDuringInstall: a replica is closed, and its data dropped, at whatever
// step an install is. Nothing of it comes back.
func TestDropDuringInstall(t *testing.T) {
	t.Parallel()
	for _, step := range append([]string{"chunk"}, installSteps...) {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			g := newGroup(t)
			node := g.lag()
			b := g.brokers[node-1]
			reached, dropping := make(chan struct{}), make(chan struct{})
			var once sync.Once
			halt := func(at uint64, now string) {
				if at == node && now == step {
					once.Do(func() { close(reached); <-dropping })
				}
			}
			g.setOnStep(halt)
			g.pipes.onChunk = func(_, to uint64) error { halt(to, "chunk"); return nil }
			g.heal(node)
			<-reached
			r := g.replica(node)
			dropped := make(chan error, 1)
			go func() {
				b.release(b.routeOf(sharedShard), nil)
				dropped <- b.dropData([]uint64{sharedShard})
			}()
			eventually(t, "the replica is closed", func() (closed bool) {
				r.worker.callWait(func() { closed = r.closed })
				return closed
			})
			close(dropping)
			if err := <-dropped; err != nil {
				t.Error(err)
			}
			eventually(t, "nothing is under way", func() bool { return r.transfers.idle() && len(g.leftovers(node)) == 0 })
			if _, ok, err := b.db.Replica(sharedShard); ok || err != nil {
				t.Errorf("the replica is still there: %v", err)
			}
			if _, ok, err := b.db.Applied(sharedShard); ok || err != nil {
				t.Errorf("its state is still there: %v", err)
			}
		})
	}
}

// TestInstallIsNotAnnounced: a replica is closed, or its broker stops, before the
// log tells of the snapshot that Raft has taken.
func TestInstallIsNotAnnounced(t *testing.T) {
	t.Parallel()
	for _, stop := range []bool{false, true} {
		t.Run(fmt.Sprint("stop ", stop), func(t *testing.T) {
			t.Parallel()
			g := newGroup(t)
			node := g.lag()
			if stop {
				g.name(node) // or, where it is closed, the reconciler would make it again
			}
			b, r := g.brokers[node-1], g.replica(node)
			done := make(chan struct{})
			g.setOnStep(func(at uint64, step string) {
				if at == node && step != "install-staged" {
					t.Errorf("the install goes on: %s", step)
				}
			})
			g.mu.Lock()
			g.onDisk = func(at uint64, op diskOp) {
				if at == node && op.isWAL() && op.kind == "sync" {
					<-done
				}
			}
			g.mu.Unlock()
			g.heal(node)
			eventually(t, "Raft has taken a snapshot", func() (taken bool) {
				r.worker.callWait(func() { taken = r.installing() })
				return taken
			})
			if !stop {
				b.release(b.routeOf(sharedShard), nil)
				eventually(t, "the snapshot is given up", func() bool { return r.transfers.idle() && len(g.leftovers(node)) == 0 })
				close(done)
				return
			}
			closed := make(chan error, 1)
			go func() { closed <- closeBroker(b) }()
			eventually(t, "the snapshot is given up", func() bool { return r.transfers.idle() })
			close(done)
			if err := <-closed; err != nil {
				t.Error(err)
			}
			g.setOnStep(func(uint64, string) {})
			g.open(node, g.mems[node])
			g.caughtUp(node)
		})
	}
}

// TestOpenReplica: what the disk alone says is enough, and what contradicts the
// metadata is refused.
func TestOpenReplica(t *testing.T) {
	t.Parallel()
	b, err := Open(context.Background(), Options{Dir: "data", FS: vfs.NewMem(), byHand: true})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.openReplica(b.addRoute(70, 1), 0); err == nil || !strings.Contains(err.Error(), "damaged") {
		t.Errorf("a replica that the disk does not have: %v", err)
	}
	if err := b.db.SetReplicas(map[uint64]record.Replica{71: {RaftID: 9, Consistency: byte(felix.Leader)}}); err != nil {
		t.Fatal(err)
	}
	r, err := b.openReplica(b.addRoute(71, 1), electionTicks)
	if err != nil {
		t.Fatal(err)
	}
	named := &cacheMeta{Consistency: "quorum", Shards: []placement.Shard{placement.Sole(71, 1)}}
	if err := b.sameLevel(named); err == nil || !strings.Contains(err.Error(), "another consistency") {
		t.Errorf("another consistency: %v", err)
	}
	if r.raftID != 9 || r.shard.Consistency() != felix.Leader || r.flushed.Index != 0 {
		t.Errorf("%+v", r)
	}
	if err := b.checkpoint.all(context.Background()); err != nil {
		t.Error(err)
	}
	if _, ok, err := b.db.Applied(71); ok || err != nil {
		t.Errorf("a replica that waits for its state has one: %v", err)
	}
	if got, want := leaseFor(50*time.Millisecond), 315*time.Millisecond; got != want {
		t.Errorf("a lease is for %v, want %v", got, want)
	}
	if err := closeBroker(b); err != nil {
		t.Error(err)
	}
}

func (t *transfers) idle() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.all) == 0
}
