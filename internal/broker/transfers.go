package broker

import (
	"errors"
	"slices"
	"sync"
	"time"

	"go.etcd.io/raft/v3/raftpb"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/peer"
	"github.com/felix-go/felix/internal/peer/peerv1"
	"github.com/felix-go/felix/internal/record"
)

// transfer is a snapshot on its way to or from another broker.
type transfer struct {
	node     uint64 // the other one
	incoming bool
	progress *snapshotProgress
}

// transfers are those of a replica that are under way. It is safe for concurrent
// use.
type transfers struct {
	mu  sync.Mutex
	all []*transfer
}

// sending tells how far the snapshot for a node is, nil if there is none.
func (t *transfers) sending(node uint64) *peerv1.SnapshotStatus {
	return t.status(func(x *transfer) bool { return !x.incoming && x.node == node })
}

// receiving tells how far the one is that comes.
func (t *transfers) receiving() *peerv1.SnapshotStatus {
	return t.status(func(x *transfer) bool { return x.incoming })
}

func (t *transfers) status(of func(*transfer) bool) *peerv1.SnapshotStatus {
	t.mu.Lock()
	defer t.mu.Unlock()
	i := slices.IndexFunc(t.all, of)
	if i < 0 {
		return nil
	}
	p := t.all[i].progress
	return &peerv1.SnapshotStatus{Bytes: p.bytes.Load(), EstimatedBytes: p.stored}
}

func (t *transfers) add(x *transfer) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.all = append(t.all, x)
}

func (t *transfers) remove(x *transfer) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.all = slices.DeleteFunc(t.all, func(other *transfer) bool { return other == x })
}

// beginTransfer notes a transfer of the replica's shard, until end is called.
func (b *Broker) beginTransfer(r *replica, node uint64, incoming bool, stored int64) (p *snapshotProgress, end func(error)) {
	what := "sending"
	if incoming {
		what = "receiving"
	}
	p = newSnapshotProgress(b.opts.Logger.With("shard", r.id, "node", node), what, stored, b.mono())
	x := &transfer{node, incoming, p}
	r.transfers.add(x)
	return p, func(err error) {
		r.transfers.remove(x)
		if err == nil {
			b.traffic.snapshot(incoming)
		}
		if err == nil || felix.AsError(err).Code != felix.ResourceExhausted { // that one is only put off
			p.end(err, b.mono())
		}
	}
}

// snapshotSource is where Raft asks for a snapshot of a replica's shard.
func (b *Broker) snapshotSource(r *replica) snapshotSource {
	return snapshotSource{
		flushed: func() record.Applied { return r.flushed },
		applied: func() record.Applied { return r.shard.Table().Applied() },
		checkpoint: func() {
			r.wantCheckpoint = true
			b.checkpoint.soon()
		},
	}
}

// snapshotRetryTicks is for how many ticks Raft is not told that a snapshot has
// failed: it would try again with its next heartbeat.
const snapshotRetryTicks = 2 * electionTicks

var errLeadsNoMore = errors.New("another replica leads the shard now")

// sendSnapshots sends what of the messages are snapshots. Raft sends the replica
// nothing else until it hears whether that has succeeded, so it does in every case.
func (w *worker) sendSnapshots(r *replica, ms []*raftpb.Message) {
	for _, m := range ms {
		if m.GetType() != raftpb.MsgSnap {
			continue
		}
		node := r.nodeOf(m.GetTo())
		if node == 0 || !w.b.maySend() {
			r.shard.SnapshotSent(m.GetTo(), false)
			continue
		}
		w.b.readers.Add(1)
		go w.sendSnapshot(r, node, m)
	}
}

// maySend takes one of the places for snapshots that are sent, if there is one.
func (b *Broker) maySend() bool {
	select {
	case b.sending <- struct{}{}:
		return true
	default:
		return false
	}
}

func (w *worker) sendSnapshot(r *replica, node uint64, m *raftpb.Message) {
	defer w.b.readers.Done()
	err := w.b.streamSnapshot(r, node, m)
	<-w.b.sending
	if err != nil {
		w.b.pause(snapshotRetryTicks * w.b.opts.TickInterval)
	}
	// A worker that is stopping drops this, and its replicas.
	w.call(func() {
		if !r.closed {
			r.shard.SnapshotSent(m.GetTo(), err == nil)
			w.activate(r)
		}
	})
}

// pause returns after d, or as soon as the broker stops.
func (b *Broker) pause(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-b.running.Done():
	}
}

// streamSnapshot sends what the state store has of a shard in answer to Raft's
// message.
func (b *Broker) streamSnapshot(r *replica, node uint64, m *raftpb.Message) error {
	reader, err := b.db.OpenSnapshot(r.id)
	if err != nil {
		return err
	}
	defer reader.Close()
	applied := reader.Applied()
	if m, err = snapshotMessage(m, applied); err != nil {
		return err
	}
	progress, end := b.beginTransfer(r, node, false, reader.EstimatedBytes())
	chunks := &snapshotChunks{from: reader}
	header := peer.SnapshotHeader{Shard: r.id, Message: m, Applied: record.AppendApplied(nil, applied), EstimatedBytes: reader.EstimatedBytes()}
	err = b.net.SendSnapshot(b.running, node, header, func(buf []byte) ([]byte, error) {
		if r.lead.Load() != b.node {
			return nil, errLeadsNoMore
		}
		chunk, err := chunks.next(buf)
		progress.add(len(chunk), b.mono())
		return chunk, err
	})
	end(err)
	return err
}
