package broker

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"github.com/felix-go/felix/internal/placement"
	"github.com/felix-go/felix/internal/shard"
)

const (
	// lookAtOnce bounds the replicas that a worker is asked about at once: some
	// ten microseconds.
	lookAtOnce = 32
	// confsPerRound bounds the reports and changes of one round; the rest comes
	// with the next one.
	confsPerRound = 16
	// confsTimeout bounds a round, which others wait for.
	confsTimeout = 2 * time.Second
	// ownerFence bounds what a shard's majority may take to confirm its owner.
	ownerFence = time.Second
	// nearlyCaughtUp is how many entries a learner may lack that is to vote, and any
	// replica that is not behind: they take some milliseconds.
	nearlyCaughtUp = 1000
)

// confs is what the reconciler remembers of the shards that this broker owns.
type confs struct {
	seen map[uint64]uint64 // shard → commit index when it last looked
	// lagging is how many replicas of these shards were behind then, for anybody.
	lagging atomic.Int64
}

// owned is a shard that this broker owns, as it was when it was looked at.
type owned struct {
	replica *replica
	status  shard.Status
	before  uint64 // the commit index when it was looked at before; 0 is never
	wish    *placement.Shard
}

// stepConfs brings the configurations of the shards that this broker owns nearer
// to their placements in v, and reports in the metadata what has been reached.
// The next step follows from these two alone: whoever owns the shard then, goes
// on.
func (b *Broker) stepConfs(ctx context.Context, v *view) {
	ctx, cancel := context.WithTimeout(ctx, confsTimeout)
	defer cancel()
	all := b.ownedShards(v)
	seen := make(map[uint64]uint64, len(all))
	var news, steps []owned
	lagging, up := 0, b.reached()
	for _, o := range all {
		lagging += o.lagging(up)
		o.before = b.confs.seen[o.replica.id]
		seen[o.replica.id] = o.status.Commit
		if _, is := placement.Report(*o.wish, confOf(o.status.Conf)); is {
			news = append(news, o)
		} else if len(placement.NextConf(o.wish, o.knows())) > 0 {
			steps = append(steps, o)
		}
	}
	b.confs.lagging.Store(int64(lagging))
	b.report(ctx, news[:min(len(news), confsPerRound)])
	b.changeConfs(ctx, steps[:min(len(steps), confsPerRound)])
	b.confs.seen = seen
}

// ownedShards looks at the shards that this broker owns and v has a placement of,
// in the order of their ids.
func (b *Broker) ownedShards(v *view) []owned {
	placements := v.placements()
	var replicas []*replica
	b.mu.RLock()
	for id, r := range b.replicas {
		if r.owns.Load() && placements[id] != nil {
			replicas = append(replicas, r)
		}
	}
	b.mu.RUnlock()
	var all []owned
	b.onWorkers(replicas, func(r *replica) {
		if status := r.shard.Status(); status.Owns {
			all = append(all, owned{replica: r, status: status, wish: placements[r.id]})
		}
	})
	slices.SortFunc(all, func(x, y owned) int { return cmp.Compare(x.replica.id, y.replica.id) })
	return all
}

func confOf(c *raftpb.ConfState) placement.Conf {
	return placement.Conf{Voters: c.GetVoters(), Learners: c.GetLearners(), Joint: len(c.GetVotersOutgoing()) > 0}
}

// knows is what the owner knows, for NextConf. A learner has caught up that lacks
// little and has all that was committed when the shard was looked at before: it
// keeps up.
func (o *owned) knows() placement.Owner {
	k := placement.Owner{Conf: confOf(o.status.Conf), Active: []uint64{o.replica.raftID}}
	for _, p := range o.status.Progress {
		if !p.Active || p.RaftID == o.replica.raftID {
			continue
		}
		k.Active = append(k.Active, p.RaftID)
		if p.Learner && p.Replicates && o.before > 0 && p.Match >= o.before && p.Match+nearlyCaughtUp > o.status.LastIndex {
			k.CaughtUp = append(k.CaughtUp, p.RaftID)
		}
	}
	return k
}

// lagging counts the replicas that are behind: they lack more than a moment's
// entries, get a snapshot, or are on nodes that are not up. (Progress.Active is
// false for a moment again and again.)
func (o *owned) lagging(up map[uint64]bool) (n int) {
	for _, p := range o.status.Progress {
		if p.RaftID != o.replica.raftID && (!up[o.replica.nodeOf(p.RaftID)] || p.PendingSnapshot != 0 || p.Match+nearlyCaughtUp < o.status.Commit) {
			n++
		}
	}
	return n
}

// report writes into the metadata what the configurations make of the replicas.
// Who has been deposed without knowing it might report a configuration of the
// past, upon which replicas would be dropped whose votes are needed: so the
// shards' majorities are asked first.
func (b *Broker) report(ctx context.Context, news []owned) {
	for _, o := range b.confirmOwners(ctx, news) {
		b.opts.Cluster.OnStep(o.reached())
		before := *o.wish
		err := b.updateShard(ctx, o.replica.id, func(s *placement.Shard) bool {
			if !samePlacement(s, &before) {
				return false // looked at again in the next round
			}
			after, is := placement.Report(*s, confOf(o.status.Conf))
			*s = after
			return is
		})
		if err != nil {
			b.opts.Logger.Warn("the replicas of a shard cannot be reported", "shard", o.replica.id, "error", err)
			return // nor can the others
		}
		b.opts.Logger.Info("the replicas of a shard have changed", "shard", o.replica.id,
			"voters", o.status.Conf.GetVoters(), "learners", o.status.Conf.GetLearners())
		b.opts.Cluster.OnStep("conf-reported")
	}
}

// reached names the step whose outcome is about to be reported.
func (o *owned) reached() string {
	for _, r := range o.wish.Replicas {
		if r.Have == placement.None && slices.Contains(o.status.Conf.GetLearners(), r.Raft) {
			return "conf-learner-applied"
		}
	}
	return "conf-left"
}

func samePlacement(a, b *placement.Shard) bool {
	return a.ID == b.ID && a.NextRaft == b.NextRaft && a.Prefer == b.Prefer && a.Pinned == b.Pinned && slices.Equal(a.Replicas, b.Replicas)
}

// confirmOwners are those of the shards that this broker has owned ever since it
// looked at them, as their majorities confirm.
func (b *Broker) confirmOwners(ctx context.Context, all []owned) []owned {
	deadline := b.mono() + ownerFence
	fences := make([]*shard.Request, len(all))
	for i, o := range all {
		fences[i] = &shard.Request{Kind: shard.Barrier, Deadline: deadline, Finished: newFinished()}
		b.submit(o.replica, fences[i])
	}
	var confirmed []owned
	for i, o := range all {
		// Another owner may have answered: then the term is a later one.
		if await(ctx, fences[i]) == nil && b.ownsSince(o) {
			confirmed = append(confirmed, o)
		}
	}
	return confirmed
}

// ownsSince says whether the replica has owned the shard ever since it was looked
// at, as far as it knows.
func (b *Broker) ownsSince(o owned) (owns bool) {
	b.onWorker(o.replica, func(s *shard.Shard) {
		now := s.Status()
		owns = now.Owns && now.Term == o.status.Term
	})
	return owns
}

// changeConfs proposes the next change of each shard. What adds a replica or takes
// one away is looked up in a confirmed view first: that a Raft id is in no
// configuration could also mean that it was removed, and one that was to go may be
// needed again.
func (b *Broker) changeConfs(ctx context.Context, steps []owned) {
	var confirmed map[uint64]*placement.Shard
	for _, o := range steps {
		next := placement.NextConf(o.wish, o.knows())
		if addsReplica(o.wish, next) || removesReplica(next) {
			if confirmed == nil {
				v, err := b.confirmedView(ctx)
				if err != nil {
					return // nothing else can be changed now
				}
				confirmed = v.placements()
			}
			if o.wish = confirmed[o.replica.id]; o.wish == nil {
				continue
			}
			next = placement.NextConf(o.wish, o.knows())
		}
		if len(next) > 0 {
			b.changeConf(o, next)
		}
	}
}

// addsReplica says whether the steps add a replica that the shard never had.
func addsReplica(s *placement.Shard, steps []placement.Step) bool {
	return slices.ContainsFunc(steps, func(step placement.Step) bool {
		return slices.ContainsFunc(s.Replicas, func(r placement.Replica) bool { return r.Raft == step.Raft && r.Have == placement.None })
	})
}

// removesReplica says whether one of the steps takes a replica away.
func removesReplica(steps []placement.Step) bool {
	return slices.ContainsFunc(steps, func(step placement.Step) bool { return step.Role == placement.Gone })
}

// changeConf proposes a change, unless the shard is not what it was when the
// change was thought of. That it is made is seen in a later round.
func (b *Broker) changeConf(o owned, steps []placement.Step) {
	var err error
	proposed := b.onWorker(o.replica, func(s *shard.Shard) {
		now := s.Status()
		if !now.Owns || now.Term != o.status.Term || !proto.Equal(now.Conf, o.status.Conf) {
			err = fmt.Errorf("it is not what it was")
			return
		}
		o.replica.learnNodes(o.wish)
		err = s.ChangeConf(confChange(steps))
	})
	if !proposed || err != nil {
		b.opts.Logger.Debug("a change of replicas has to wait", "shard", o.replica.id, "why", err)
		return
	}
	b.opts.Logger.Info("the replicas of a shard are being changed", "shard", o.replica.id, "steps", fmt.Sprint(steps))
	if addsReplica(o.wish, steps) {
		b.opts.Cluster.OnStep("conf-learner-proposed")
	} else {
		b.opts.Cluster.OnStep("conf-joint-proposed")
	}
}

// tellJoint tells of a shard whose owner has entered a joint configuration, which
// it leaves by itself. It runs on the shard's worker.
func (b *Broker) tellJoint(s *shard.Shard) {
	if now := s.Status(); now.Leader && confOf(now.Conf).Joint {
		b.opts.Cluster.OnStep("conf-joint-applied")
	}
}

// learnNodes notes where the shard's replicas are, by its placement. It runs on
// the worker.
func (r *replica) learnNodes(s *placement.Shard) {
	for _, p := range s.Replicas {
		r.learn(p.Raft, p.Node)
	}
}

func confChange(steps []placement.Step) *raftpb.ConfChangeV2 {
	types := map[placement.Role]raftpb.ConfChangeType{placement.Voter: raftpb.ConfChangeAddNode,
		placement.Learner: raftpb.ConfChangeAddLearnerNode, placement.Gone: raftpb.ConfChangeRemoveNode}
	change := &raftpb.ConfChangeV2{}
	for _, step := range steps {
		change.Changes = append(change.Changes, &raftpb.ConfChangeSingle{Type: types[step.Role].Enum(), NodeId: proto.Uint64(step.Raft)})
	}
	return change
}
