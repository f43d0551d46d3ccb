package sim

import (
	"time"

	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"
)

// network is what is between the nodes. A direction that is cut loses all.
type network struct {
	cut     map[[2]uint64]bool
	formats map[raftpb.MessageType]string // of what arrives, for the trace
}

func newNetwork() network {
	n := network{cut: map[[2]uint64]bool{}, formats: map[raftpb.MessageType]string{}}
	for number, name := range raftpb.MessageType_name {
		n.formats[raftpb.MessageType(number)] = "shard %d: " + name + " from %d to %d, term %d, index %d, commit %d"
	}
	return n
}

// reaches says whether anything sent now arrives, as far as cuts are concerned.
func (w *world) reaches(from, to *node) bool {
	return to.up && !w.net.cut[[2]uint64{from.id, to.id}]
}

// delay is how long a message takes.
func (w *world) delay() time.Duration {
	d := w.between(50*time.Microsecond, w.profile.delay)
	if !w.healed && w.rng.IntN(1000) < w.profile.late {
		d += w.between(0, w.profile.lateBy)
	}
	return d
}

// send takes a message of Raft to the node that has the replica. It may get
// lost, come twice, and overtake others.
func (w *world) send(from *replica, m *raftpb.Message) {
	to := from.group.home(m.GetTo())
	var sent *state
	if m.GetType() == raftpb.MsgSnap {
		sent = from.db // the newest checkpoint, which may be newer than Raft knows
		m.Snapshot = &raftpb.Snapshot{Metadata: sent.metadata()}
		w.count("snapshots sent")
	}
	m = proto.Clone(m).(*raftpb.Message) // nothing is shared
	times := 1
	if !w.healed && w.rng.IntN(1000) < w.profile.drop || !w.reaches(from.node, to) {
		times = 0
	} else if !w.healed && sent == nil && w.rng.IntN(1000) < w.profile.duplicate {
		times = 2
	}
	if times == 0 {
		w.reportSnapshot(from, m, false)
	}
	for range times {
		deliver := func() { w.deliver(from, to, m, sent) }
		if from.node.hangsUp(m) {
			w.takeover(from, deliver)
			continue
		}
		w.after(w.delay()+to.lag.at(w.now), deliver)
	}
}

func (w *world) deliver(from *replica, to *node, m *raftpb.Message, sent *state) {
	r := to.replica(from.group)
	ok := w.reaches(from.node, to) && r != nil && r.raftID == m.GetTo()
	w.reportSnapshot(from, m, ok)
	if !ok {
		return
	}
	to.when(func() {
		if to.replica(from.group) != r || r.shard == nil {
			return
		}
		w.note(w.net.formats[m.GetType()], r.group.id, m.GetFrom(), m.GetTo(), m.GetTerm(), m.GetIndex(), m.GetCommit())
		if sent != nil {
			r.staged[sent.applied.Index] = sent
		}
		r.shard.StepPeer(m)
		r.advance()
	})
}

// reportSnapshot tells the sender of a snapshot what became of it.
func (w *world) reportSnapshot(from *replica, m *raftpb.Message, ok bool) {
	if m.GetType() != raftpb.MsgSnap {
		return
	}
	s := from.shard
	from.node.when(func() {
		if from.shard == s && s != nil {
			s.SnapshotSent(m.GetTo(), ok)
			from.advance()
		}
	})
}
