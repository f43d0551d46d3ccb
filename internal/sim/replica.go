package sim

import (
	"bytes"
	"maps"
	"slices"
	"time"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"github.com/felix-go/felix/internal/record"
	"github.com/felix-go/felix/internal/shard"
	"github.com/felix-go/felix/internal/store"
)

// state is what a state store has of a shard. It is never changed: a checkpoint
// makes a new one.
type state struct {
	cells   map[string]record.Cell
	ids     map[record.IDKey]record.Cell
	applied record.Applied
}

func (s *state) metadata() *raftpb.SnapshotMetadata {
	conf := &raftpb.ConfState{}
	if err := proto.Unmarshal(s.applied.ConfState, conf); err != nil {
		panic(err)
	}
	return &raftpb.SnapshotMetadata{Index: new(s.applied.Index), Term: new(s.applied.Term), ConfState: conf}
}

// replica is one replica of a shard, with what is on the disk of it.
type replica struct {
	node   *node
	group  *group
	raftID uint64

	shard *shard.Shard // nil while the process does not run
	log   *memLog
	db    *state

	staged     map[uint64]*state // snapshots that have come, by index
	capture    *store.Capture    // a checkpoint under way
	taken      int               // snapshots that Raft has taken and that are not installed
	installing bool              // a snapshot: later appends wait
	stalled    bool              // the process is paused between Advance and Confirm
	again      bool              // advance will be called soon
}

// memLog is a replica's log: what is written of it.
type memLog struct {
	*raft.MemoryStorage
	conf   *raftpb.ConfState
	synced *raftpb.HardState // what is left of the hard state when the power is cut
	source func() (*raftpb.Snapshot, error)
}

// Snapshot is what Raft asks a leader for.
func (l *memLog) Snapshot() (*raftpb.Snapshot, error) { return l.source() }

// SetConfState implements shard.Log.
func (l *memLog) SetConfState(conf *raftpb.ConfState) { l.conf = conf }

// InitialState implements raft.Storage.
func (l *memLog) InitialState() (*raftpb.HardState, *raftpb.ConfState, error) {
	hard, _, err := l.MemoryStorage.InitialState()
	return hard, l.conf, err
}

// newReplica makes a replica that has nothing, on disk.
func (n *node) newReplica(g *group, raftID uint64) *replica {
	r := &replica{node: n, group: g, raftID: raftID, db: &state{}, staged: map[uint64]*state{},
		log: &memLog{MemoryStorage: raft.NewMemoryStorage(), synced: &raftpb.HardState{}}}
	r.log.source = r.snapshot
	n.replicas = append(n.replicas, r)
	slices.SortFunc(n.replicas, func(a, b *replica) int { return int(a.group.id) - int(b.group.id) })
	return r
}

// begin makes the log begin after a state.
func (r *replica) begin(s *state) {
	hard, _, err := r.log.InitialState()
	r.node.w.must(err)
	hard = &raftpb.HardState{Term: new(max(s.applied.Term, hard.GetTerm())), Vote: new(hard.GetVote()), Commit: new(s.applied.Index)}
	r.node.w.must(r.log.ApplySnapshot(&raftpb.Snapshot{Metadata: s.metadata()}))
	r.setHard(hard, true)
}

func (r *replica) setHard(hard *raftpb.HardState, synced bool) {
	r.node.w.must(r.log.SetHardState(hard))
	if synced {
		r.log.synced = proto.Clone(hard).(*raftpb.HardState)
	}
}

// snapshot is the last checkpoint, unless the configuration has changed since.
func (r *replica) snapshot() (*raftpb.Snapshot, error) {
	if !bytes.Equal(r.db.applied.ConfState, r.shard.Table().Applied().ConfState) {
		return nil, raft.ErrSnapshotTemporarilyUnavailable
	}
	return &raftpb.Snapshot{Metadata: r.db.metadata()}, nil
}

// open makes the replica run from what is on its disk: design.md section 5,
// "Restart order".
func (r *replica) open(silent int) {
	n, w := r.node, r.node.w
	hard, _, err := r.log.InitialState()
	w.must(err)
	if term, err := r.log.Term(r.db.applied.Index); err != nil || term != r.db.applied.Term {
		r.begin(r.db)
	} else if hard.GetCommit() < r.db.applied.Index {
		hard.Commit = new(r.db.applied.Index)
		r.setHard(hard, true)
	}
	p := &w.profile
	r.shard, err = shard.New(shard.Config{ID: r.group.id, RaftID: r.raftID, Consistency: r.group.consistency, Log: r.log,
		Table: store.NewTable(r.db.applied, n.budget), Logger: logger{}, ElectionTicks: electionTicks, HeartbeatTicks: heartbeatTicks,
		MaxInflightBytes: p.inflight, MaxEntryBytes: p.entry, MaxApplyBytes: p.apply, Room: func(int64) bool { return true },
		Reads: p.reads, LeaseFor: leaseFor, SilentTicks: silent, Runner: r})
	w.must(err)
}

// drop removes the replica, whose process runs, from its disk.
func (r *replica) drop() {
	r.node.w.note("shard %d: replica %d on node %d is dropped", r.group.id, r.raftID, r.node.id)
	var out shard.Output
	r.shard.Close(nil, &out)
	r.shard, r.capture = nil, nil
	r.node.replicas = slices.DeleteFunc(r.node.replicas, func(x *replica) bool { return x == r })
	for _, q := range out.Returned {
		q.Tag.(owner).returned(q)
	}
	for _, q := range out.Done {
		q.Tag.(owner).done(q)
	}
}

// checkpoint begins checkpoints of the node's shards, again and again.
func (n *node) checkpoint() {
	for _, r := range n.replicas {
		if r.capture == nil && r.taken == 0 && r.shard.Table().Applied().Index > r.db.applied.Index {
			r.capture = r.shard.Table().BeginCheckpoint()
			r.gather(r.capture)
		}
	}
	n.after(n.w.between(n.w.profile.checkpoint/2, n.w.profile.checkpoint), n.checkpoint)
}

// captureSlice is how many records a step captures, or cleans.
const captureSlice = 3

// gather captures what the checkpoint is to write, a slice at a time.
func (r *replica) gather(c *store.Capture) {
	if r.capture != c {
		return
	}
	if !r.shard.Table().CaptureSlice(c, captureSlice) {
		r.node.after(100*time.Microsecond, func() { r.gather(c) })
		return
	}
	if c.Aborted() {
		r.capture = nil
		return
	}
	r.node.after(r.node.disk.syncTime(), func() { r.write(c) })
}

// write makes the checkpoint durable.
func (r *replica) write(c *store.Capture) {
	if r.capture != c || r.node.disk.fails(diskCheckpoint) {
		return
	}
	r.db = r.db.with(&c.Checkpoint)
	r.group.compare(r)
	r.truncate()
	r.clean(c)
}

func (r *replica) clean(c *store.Capture) {
	switch {
	case r.capture != c:
	case r.shard.Table().FinishSlice(c, captureSlice):
		r.capture = nil
	default:
		r.node.after(100*time.Microsecond, func() { r.clean(c) })
	}
}

// abandonCapture gives a checkpoint up whose state a snapshot replaces.
func (r *replica) abandonCapture() {
	if r.capture != nil {
		r.shard.Table().Abandon(r.capture)
		r.capture = nil
	}
}

// truncate drops the log that the checkpoint has made superfluous, or some.
func (r *replica) truncate() {
	first, err := r.log.FirstIndex()
	r.node.w.must(err)
	to := r.db.applied.Index
	if !r.node.w.profile.truncate {
		to -= min(to, 100)
	}
	if to >= first && r.node.w.one(2) {
		r.node.w.must(r.shard.Compact(to))
	}
}

// with is the state after a checkpoint.
func (s *state) with(p *store.Checkpoint) *state {
	next := &state{cells: maps.Clone(s.cells), ids: maps.Clone(s.ids), applied: p.Applied}
	if p.Clear || next.cells == nil {
		next.cells = map[string]record.Cell{}
	}
	if p.Clear || next.ids == nil {
		next.ids = map[record.IDKey]record.Cell{}
	}
	for i := range p.IDs {
		if id := record.IDKey(p.IDs[i].Key); p.IDs[i].Cell.Exists() {
			next.ids[id] = p.IDs[i].Cell
		} else {
			delete(next.ids, id)
		}
	}
	for i := range p.Records {
		rec := &p.Records[i]
		cell := next.cells[string(rec.Key)]
		touched := rec.OnDisk | rec.Cell.Has
		if touched&record.HasCounter != 0 {
			cell.DropCounter()
		}
		if touched&record.HasValue != 0 {
			cell.DropValue()
		}
		if rec.Cell.Has&record.HasCounter != 0 {
			cell.Has |= record.HasCounter
			cell.Sum, cell.CounterExpiry, cell.CounterVer = rec.Cell.Sum, rec.Cell.CounterExpiry, rec.Cell.CounterVer
		}
		if rec.Cell.Has&record.HasValue != 0 {
			cell.Has |= record.HasValue
			cell.Value, cell.ValueExpiry, cell.ValueVer = bytes.Clone(rec.Cell.Value), rec.Cell.ValueExpiry, rec.Cell.ValueVer
		}
		delete(next.cells, string(rec.Key))
		if cell.Exists() {
			next.cells[string(rec.Key)] = cell
		}
	}
	return next
}
