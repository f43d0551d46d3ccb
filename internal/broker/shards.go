package broker

import (
	"cmp"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/placement"
	"github.com/felix-go/felix/internal/record"
	"github.com/felix-go/felix/internal/shard"
	"github.com/felix-go/felix/internal/store"
)

// metaShard is the shard that holds the cluster's metadata.
const metaShard = 1

const (
	electionTicks  = 10
	heartbeatTicks = 4
	// maxStride is how many ticks an idle worker lets go by at a time.
	maxStride = 2
	// maxEntryBytes is about how large a log entry grows.
	maxEntryBytes = 1 << 20
	// maxApplyBytes is about how much of the log a shard applies in one step:
	// some ten milliseconds, after which its worker does other things too.
	maxApplyBytes = 4 << 20
)

// bootstrapIndex is the applied index that a new shard begins with. Only such a
// shard may be unknown to the log.
const bootstrapIndex = 1

// bootstrap gives new shards their first state, durably: an applied prefix of
// one entry that never was, with the placement's first replicas as voters, and
// which of them this broker has. A crash before the log agrees is mended when
// the shard is opened.
func (b *Broker) bootstrap(consistency felix.Consistency, shards ...placement.Shard) error {
	parts := make([]store.Checkpoint, 0, len(shards))
	for i := range shards {
		s := &shards[i]
		conf, err := proto.Marshal(firstConf(s))
		if err != nil {
			return err
		}
		parts = append(parts, store.Checkpoint{Shard: s.ID, Applied: record.Applied{Index: bootstrapIndex, Term: 1, ConfState: conf},
			Replica: &record.Replica{RaftID: s.ReplicaOn(b.node), Consistency: byte(consistency)}})
	}
	return b.db.WriteCheckpoint(parts...)
}

// firstConf is the configuration that a new shard begins with: the same wherever
// and whenever it is asked for, whatever has become of the replicas since. Only
// the metadata's begins with learners, and is asked for only when it begins.
func firstConf(s *placement.Shard) *raftpb.ConfState {
	conf := &raftpb.ConfState{Voters: s.Initial}
	if s.ID != metaShard {
		return conf
	}
	for _, r := range s.Replicas {
		if r.Want == placement.Learner {
			conf.Learners = append(conf.Learners, r.Raft)
		}
	}
	return conf
}

// metaPlacement is where the metadata of a new cluster begins: at all of its
// first brokers, some of which vote. Each of them knows this by itself.
func metaPlacement(founders []founder) placement.Shard {
	all := slices.SortedFunc(slices.Values(founders), func(a, b founder) int { return cmp.Compare(a.ID, b.ID) })
	s := placement.Shard{ID: metaShard, NextRaft: 1, Prefer: all[0].ID}
	for i, f := range all {
		role := placement.Learner
		if i < placement.MetaVoters(len(all)) {
			role = placement.Voter
			s.Initial = append(s.Initial, s.NextRaft)
		}
		s.Replicas = append(s.Replicas, placement.Replica{Raft: s.NextRaft, Node: f.ID, Want: role, Have: role})
		s.NextRaft++
	}
	return s
}

// openReplica makes the replica of a shard from what the disk holds of it, and
// gives it to its worker. One without a state, whose log is empty and which is in
// no configuration, waits for a snapshot. silent is for how many ticks it neither
// votes nor campaigns: electionTicks, since it may have promised a leader to, but
// 0 if this process has made the shard (bootstrap).
func (b *Broker) openReplica(rt *route, silent int) (*replica, error) {
	id := rt.id
	mine, known, err := b.db.Replica(id)
	if err != nil {
		return nil, err
	}
	applied, _, err := b.db.Applied(id)
	if err != nil {
		return nil, err
	}
	if !known {
		return nil, dirErrorf(b.opts.Dir, "shard %d has no replica on disk: the directory is damaged, restore it", id)
	}
	log, err := b.log.Shard(id)
	if err != nil {
		return nil, err
	}
	if hard, _, err := log.InitialState(); err != nil {
		return nil, err
	} else if hard == nil && applied.Index > bootstrapIndex {
		return nil, dirErrorf(b.opts.Dir, "shard %d has state but no log: the directory is damaged, restore it", id)
	}
	if err := log.PrepareRestart(applied.Index, applied.Term); err != nil {
		return nil, err
	}
	r := &replica{log: log, worker: b.workerOf(id), id: id, raftID: mine.RaftID, route: rt, flushed: applied, savedAt: b.mono()}
	r.nodes.Store(&map[uint64]uint64{mine.RaftID: b.node})
	if r.shard, err = b.newShard(r, mine, silent); err != nil {
		return nil, err
	}
	r.setPart()
	log.SetSnapshotSource(b.snapshotSource(r).snapshot)
	b.mu.Lock()
	b.replicas[id] = r
	b.mu.Unlock()
	r.worker.call(func() { r.worker.adopt(r) })
	rt.setLocal(r)
	return r, nil
}

// newShard makes the step function of a replica.
func (b *Broker) newShard(r *replica, mine record.Replica, silent int) (*shard.Shard, error) {
	return shard.New(shard.Config{ID: r.id, RaftID: mine.RaftID, Consistency: felix.Consistency(mine.Consistency),
		Log: r.log, Table: store.NewTable(r.flushed, b.budget), Runner: r, Logger: raftLogger{b.opts.Logger.With("shard", r.id)},
		ElectionTicks: electionTicks, HeartbeatTicks: heartbeatTicks, SilentTicks: silent,
		MaxInflightBytes: felix.MaxInflightShardBytes, MaxEntryBytes: maxEntryBytes, MaxApplyBytes: maxApplyBytes,
		Room: func(bytes int64) bool { return b.room(r.id, bytes) }, LeaseFor: leaseFor(b.opts.TickInterval)})
}

// leaseFor is how long a leader may rely on what others have promised. They keep
// it for electionTicks less what is left of the stride in which they have heard of
// it; one more tick, and a tenth, are for clocks that go at different speeds.
func leaseFor(tick time.Duration) time.Duration {
	return (electionTicks - maxStride - 1) * tick / 10 * 9
}

// release takes a shard's local replica, if there is one, away from its worker.
// What it has under way fails with err, or, without one, goes elsewhere where it
// can. Nothing changes what the disk holds of it any more when release returns.
func (b *Broker) release(rt *route, err *felix.Error) {
	r := rt.setLocal(nil)
	if r == nil {
		return
	}
	var s *incoming
	r.worker.callWait(func() {
		if r.installing() {
			s = r.incoming
		}
		r.worker.drop(r, err)
	})
	if s != nil {
		<-s.finished
	}
	b.mu.Lock()
	delete(b.replicas, r.id)
	b.mu.Unlock()
	b.equality.states.forget(r.id)
}

func (b *Broker) workerOf(id uint64) *worker { return b.workers[id%uint64(len(b.workers))] }

// dropData removes what the disk holds of shards that are not open.
func (b *Broker) dropData(ids []uint64) error {
	if len(ids) == 0 {
		return nil
	}
	b.checkpoint.writing.Lock()
	defer b.checkpoint.writing.Unlock()
	if err := b.db.Drop(ids...); err != nil {
		return err
	}
	return b.log.Drop(ids...)
}

// raftLogger drops Raft's talk, which is on the hot path, and passes on what
// an operator should hear. A Raft panic is a broken invariant and stays one.
type raftLogger struct{ log *slog.Logger }

func (raftLogger) Debug(...any)                  {}
func (raftLogger) Debugf(string, ...any)         {}
func (raftLogger) Info(...any)                   {}
func (raftLogger) Infof(string, ...any)          {}
func (l raftLogger) Warning(v ...any)            { l.log.Warn("raft: " + fmt.Sprint(v...)) }
func (l raftLogger) Warningf(f string, v ...any) { l.log.Warn("raft: " + fmt.Sprintf(f, v...)) }
func (l raftLogger) Error(v ...any)              { l.log.Error("raft: " + fmt.Sprint(v...)) }
func (l raftLogger) Errorf(f string, v ...any)   { l.log.Error("raft: " + fmt.Sprintf(f, v...)) }
func (l raftLogger) Fatal(v ...any)              { panic("raft: " + fmt.Sprint(v...)) }
func (l raftLogger) Fatalf(f string, v ...any)   { panic("raft: " + fmt.Sprintf(f, v...)) }
func (l raftLogger) Panic(v ...any)              { panic("raft: " + fmt.Sprint(v...)) }
func (l raftLogger) Panicf(f string, v ...any)   { panic("raft: " + fmt.Sprintf(f, v...)) }
