package broker

import (
	"errors"
	"fmt"
	"sync/atomic"

	"go.etcd.io/raft/v3/raftpb"

	"github.com/felix-go/felix/internal/invariant"
	"github.com/felix-go/felix/internal/peer"
	"github.com/felix-go/felix/internal/raftlog"
	"github.com/felix-go/felix/internal/record"
	"github.com/felix-go/felix/internal/shard"
)

// incoming is a snapshot on its way into a replica, of which there is one at a
// time. The goroutine that receives it has it staged beside the state, has the
// worker hand it to Raft, waits until Raft has taken it and the log says so, and
// makes it log and state of the replica. Nothing else is written of the replica
// meanwhile.
type incoming struct {
	from    uint64 // node
	message *raftpb.Message
	applied record.Applied // as of which it is

	// verdict is told once, by the worker, what to do with what is staged:
	// install it, or why not.
	verdict  chan error
	finished chan struct{} // closed when the goroutine is done with log and state
	void     atomic.Bool   // it is not wanted any more

	// The worker's:
	handed bool           // Raft has the message
	taken  bool           // and an append carries the snapshot, which replaces the state
	append *shard.Append  // that one, once it was announced in the log
	held   []shard.Append // later ones
}

var (
	errNoReplica = errors.New("the broker has no replica of the shard")
	errReceiving = errors.New("the replica is being sent a snapshot already")
	errVoid      = errors.New("the snapshot is not wanted any more")
	// errObsolete is the verdict on a snapshot that Raft has no use for: the
	// replica has got further in another way, or there is a newer leader.
	errObsolete = errors.New("the replica needs no snapshot")
)

// takeSnapshot receives a snapshot from another broker and installs it, for
// peer.Handler.Snapshot. It returns once next fails, or the snapshot is in place.
func (b *Broker) takeSnapshot(from uint64, h peer.SnapshotHeader, next func() ([]byte, error)) error {
	b.mu.RLock()
	r := b.replicas[h.Shard]
	b.mu.RUnlock()
	if r == nil {
		return errNoReplica
	}
	mine := record.Replica{RaftID: r.raftID, Consistency: byte(r.shard.Consistency())}
	applied, err := offeredSnapshot(h.Message, h.Applied, mine)
	if err != nil {
		return err
	}
	s := &incoming{from: from, message: h.Message, applied: applied, verdict: make(chan error, 1), finished: make(chan struct{})}
	if err := r.expect(s); err != nil {
		return err
	}
	defer b.readers.Done()
	defer close(s.finished)
	progress, end := b.beginTransfer(r, from, true, h.EstimatedBytes)
	err = b.installSnapshot(r, s, mine, func() ([]byte, error) {
		if s.void.Load() || b.running.Err() != nil {
			return nil, errVoid
		}
		chunk, err := next()
		progress.add(len(chunk), b.mono())
		return chunk, err
	})
	end(err)
	return err
}

// expect makes s the snapshot that is on its way into the replica. Until its
// goroutine gives it back, the broker's storage stays open.
func (r *replica) expect(s *incoming) (err error) {
	ran := r.worker.callWait(func() {
		switch old := r.incoming; {
		case r.closed:
			err = errNoReplica
		case old == nil:
			r.incoming = s
			r.worker.b.readers.Add(1)
		default:
			err = errReceiving
			// Whoever sends that one may not know that it leads no more.
			if !old.handed && old.message.GetTerm() < s.message.GetTerm() {
				old.void.Store(true)
			}
		}
	})
	if !ran {
		return errNoReplica
	}
	return err
}

// installSnapshot receives a snapshot, and sees it through.
func (b *Broker) installSnapshot(r *replica, s *incoming, mine record.Replica, next func() ([]byte, error)) (err error) {
	staged, err := b.db.BeginInstall(r.id, s.applied, mine)
	if err == nil {
		defer func() { err = errors.Join(err, staged.Abort()) }() // which does nothing once it is installed
		err = receiveSnapshot(staged, next)
	}
	if err != nil {
		r.worker.call(func() { r.forget(s) })
		return err
	}
	b.opts.Cluster.OnStep("install-staged")
	if !r.worker.call(func() { r.worker.handSnapshot(r, s) }) {
		return errNoReplica
	}
	switch err := <-s.verdict; {
	case errors.Is(err, errObsolete):
		return nil
	case err != nil:
		return err
	}
	b.opts.Cluster.OnStep("install-term")
	steps := installationOf(s.append)
	err = steps.run(staged, &b.checkpoint.writing, func(a raftlog.Append) error {
		b.opts.Cluster.OnStep("install-state")
		return b.log.Commit([]raftlog.Append{a})
	})
	if err != nil {
		b.opts.Fatal(fmt.Errorf("shard %d: a snapshot cannot be installed: %w", r.id, err))
		return err
	}
	b.opts.Cluster.OnStep("install-log")
	r.worker.callWait(func() { r.worker.installed(r, s) })
	return nil
}

// installationOf are the steps that are left of an append that has a snapshot.
func installationOf(a *shard.Append) installation {
	return installation{log: a.Shard.Log().(*raftlog.Shard), hard: a.HardState, entries: a.Entries,
		snapshot: raftlog.Reset{Index: a.Snapshot.GetIndex(), Term: a.Snapshot.GetTerm()}}
}

// installing says whether a snapshot is replacing log and state. It runs on the
// worker, as all that follows.
func (r *replica) installing() bool { return r.incoming != nil && r.incoming.taken }

// forget ends the wait for a snapshot.
func (r *replica) forget(s *incoming) {
	if r.incoming == s {
		r.incoming = nil
	}
}

// handSnapshot gives Raft the message of a snapshot that is staged.
func (w *worker) handSnapshot(r *replica, s *incoming) {
	if r.closed {
		s.verdict <- errNoReplica
		return
	}
	s.handed = true
	r.learn(s.message.GetFrom(), s.from)
	r.shard.StepPeer(s.message)
	w.activate(r)
}

// holdBack looks at what a replica that is being sent a snapshot wants written
// after a step, which is in out.Appends from first on. If there is the snapshot,
// it goes to the committer, and all later ones wait until it is installed.
func (w *worker) holdBack(r *replica, first int) {
	s := r.incoming
	if !s.handed {
		return
	}
	kept := w.out.Appends[:first]
	for _, a := range w.out.Appends[first:] {
		if s.taken {
			s.held = append(s.held, a)
			continue
		}
		kept = append(kept, a)
		if a.Snapshot != nil {
			w.takeOver(r, &a)
		}
	}
	clear(w.out.Appends[len(kept):])
	w.out.Appends = kept
	if !s.taken {
		r.forget(s)
		s.verdict <- errObsolete
	}
}

// takeOver notes that an append replaces the replica's state: a checkpoint of
// what was before must not come after it.
func (w *worker) takeOver(r *replica, a *shard.Append) {
	s := r.incoming
	invariant.Check(a.Snapshot.GetIndex() == s.applied.Index && a.Snapshot.GetTerm() == s.applied.Term,
		"shard %d: Raft has taken a snapshot up to %d, one up to %d was received", r.id, a.Snapshot.GetIndex(), s.applied.Index)
	s.taken = true
	if job := r.capture; job != nil {
		r.capture = nil
		job.abandon(r.shard.Table())
	}
}

// announced says that the log tells of the snapshot, which can be installed now.
func (s *incoming) announced(a *shard.Append) {
	s.append = new(shard.Append)
	*s.append = *a
	s.verdict <- nil
}

// drop ends the wait for a snapshot of a replica that is closed. One that is being
// installed is not stopped.
func (s *incoming) drop() {
	s.void.Store(true)
	if s.handed && s.append == nil {
		s.verdict <- errNoReplica
	}
}

// installed lets a replica go on from a snapshot that is in place.
func (w *worker) installed(r *replica, s *incoming) {
	if r.closed {
		return
	}
	r.incoming = nil
	r.flushed, r.savedAt = s.applied, w.b.mono()
	w.b.equality.states.forget(r.id)
	if err := r.shard.Installed(s.applied); err != nil {
		w.b.opts.Fatal(err)
		return
	}
	w.outbox.add(r, s.append.Responses)
	w.stepResponses(r, s.append)
	w.b.committer.add(s.held)
}
