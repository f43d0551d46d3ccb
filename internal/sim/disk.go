package sim

import (
	"slices"
	"time"

	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"github.com/felix-go/felix/internal/shard"
)

// disk is the log of a node: one sync at a time, for all that waits.
type disk struct {
	n       *node
	slow    int64 // times as slow as usual
	failing diskOp
	queue   []write
	writing []write
}

// diskOp is a kind of what is done with a disk; 0 is none.
type diskOp uint8

const (
	diskLog diskOp = iota + 1
	diskCheckpoint
	diskLoad
	diskInstall
	diskOps = 4
)

// fails says whether this fails, and the process with it: it never goes on with
// doubtful data (fail-stop).
func (d *disk) fails(op diskOp) bool {
	if d.failing != op {
		return false
	}
	d.failing = 0
	w := d.n.w
	w.count("disk errors")
	w.note("node %d: its disk fails, operation %d", d.n.id, uint64(op))
	w.crash(d.n, w.one(2), w.between(20*time.Millisecond, 1500*time.Millisecond))
	return true
}

// write is an append on its way to the disk.
type write struct {
	r *replica
	a shard.Append
}

// syncTime is how long a sync takes.
func (d *disk) syncTime() time.Duration {
	w := d.n.w
	return w.between(w.profile.sync/10, w.profile.sync) * time.Duration(d.slow)
}

// kick begins to write what waits, unless something is being written.
func (d *disk) kick() {
	if len(d.writing) > 0 || len(d.queue) == 0 {
		return
	}
	var wait []write
	held := map[*replica]bool{} // behind a snapshot
	sync := false
	for _, q := range d.queue {
		if held[q.r] || q.r.installing {
			wait = append(wait, q)
			continue
		}
		d.writing = append(d.writing, q)
		sync = sync || q.a.Sync
		held[q.r] = q.a.Snapshot != nil
	}
	d.queue = wait
	if len(d.writing) == 0 {
		return
	}
	took := 20 * time.Microsecond
	if sync {
		took = d.syncTime()
	}
	d.n.after(took, func() { d.written(sync) })
}

// written is called when a sync is done, or a write without one.
func (d *disk) written(sync bool) {
	if sync && d.fails(diskLog) {
		return
	}
	done := d.writing
	d.writing = nil
	for _, q := range done {
		if q.r.shard == q.a.Shard {
			d.put(q, sync)
			q.r.installing = q.a.Snapshot != nil
		}
	}
	for _, q := range done {
		if q.r.shard != q.a.Shard {
			continue // dropped meanwhile
		}
		if q.a.Snapshot != nil {
			q.r.install(q.a)
			continue
		}
		q.r.respond(&q.a)
	}
	d.kick()
}

// put writes an append; of a snapshot what comes first, term and vote.
func (d *disk) put(q write, sync bool) {
	w := d.n.w
	hard := q.a.HardState
	if q.a.Snapshot != nil {
		if hard != nil {
			old, _, err := q.r.log.InitialState()
			w.must(err)
			q.r.setHard(&raftpb.HardState{Term: hard.Term, Vote: hard.Vote, Commit: new(old.GetCommit())}, true)
		}
		return
	}
	if len(q.a.Entries) > 0 {
		entries := make([]*raftpb.Entry, len(q.a.Entries))
		for i, e := range q.a.Entries {
			entries[i] = proto.Clone(e).(*raftpb.Entry)
		}
		w.must(q.r.log.Append(entries))
		last := entries[len(entries)-1]
		w.note("shard %d: replica %d has written up to %d, term %d", q.r.group.id, q.r.raftID, last.GetIndex(), last.GetTerm())
	}
	if hard != nil {
		q.r.setHard(hard, sync)
	} else if sync {
		now, _, err := q.r.log.InitialState()
		w.must(err)
		q.r.log.synced = proto.Clone(now).(*raftpb.HardState)
	}
}

// respond says that an append is durable.
func (r *replica) respond(a *shard.Append) {
	for _, m := range a.Responses {
		if m.GetTo() == r.raftID {
			r.node.w.must(r.shard.Step(m))
		} else {
			r.node.w.send(r, m)
		}
	}
	r.advance()
}

// install makes a snapshot durable. Term and vote are. A crash may come between
// any two steps.
func (r *replica) install(a shard.Append) {
	n := r.node
	s := r.staged[a.Snapshot.GetIndex()]
	if s == nil {
		n.w.fail("shard %d: replica %d installs a snapshot that has not come", r.group.id, r.raftID)
	}
	here := func(do func()) func() {
		return func() {
			if r.shard == a.Shard {
				do()
			}
		}
	}
	n.after(n.disk.syncTime(), here(func() {
		if n.disk.fails(diskInstall) {
			return
		}
		n.w.note("shard %d: replica %d installs the state of %d", r.group.id, r.raftID, s.applied.Index)
		n.w.count("installs")
		r.db = s
		n.after(n.disk.syncTime(), here(func() {
			if n.disk.fails(diskInstall) {
				return
			}
			r.begin(s)
			r.installing = false
			r.taken--
			n.w.must(r.shard.Installed(s.applied))
			r.respond(&a)
			n.disk.kick()
		}))
	}))
}

// crash loses what is not written. What is being written may be there up to any
// point; a power cut takes, too, what was written and not synced.
func (d *disk) crash(power bool) {
	writing := d.writing
	d.queue, d.writing = nil, nil
	for _, q := range writing[:d.n.w.rng.IntN(len(writing)+1)] {
		if q.r.shard == q.a.Shard && q.a.Snapshot == nil {
			d.put(q, true)
		}
	}
	if !power {
		return
	}
	for _, r := range slices.Clone(d.n.replicas) {
		d.n.w.must(r.log.SetHardState(r.log.synced))
	}
}
