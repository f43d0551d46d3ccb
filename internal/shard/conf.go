package shard

import (
	"errors"
	"fmt"
	"slices"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/confchange"
	"go.etcd.io/raft/v3/raftpb"
	"go.etcd.io/raft/v3/tracker"
	"google.golang.org/protobuf/proto"
)

// ChangeConf proposes a change of the shard's replicas. That it is made is seen
// in Output.Changed and Status, or it never is, as when leadership is lost. What
// takes votes away, or is more than one change, goes by a joint configuration,
// which owners leave by themselves.
func (s *Shard) ChangeConf(change *raftpb.ConfChangeV2) error {
	switch {
	case !s.Owns():
		return fmt.Errorf("shard %d: this replica is not its owner", s.cfg.ID)
	case s.confIndex > s.table.Applied().Index:
		return fmt.Errorf("shard %d: another change of its replicas is under way", s.cfg.ID)
	}
	change = proto.Clone(change).(*raftpb.ConfChangeV2)
	change.Transition = nil
	if len(change.GetChanges()) > 1 || s.takesVotes(change) {
		change.Transition = raftpb.ConfChangeTransitionJointExplicit.Enum()
	}
	// Raft would stop every replica when it applies one that makes no sense, and
	// ignores one in a joint configuration.
	if err := checkChange(s.conf, change); err != nil {
		return fmt.Errorf("shard %d: %w", s.cfg.ID, err)
	}
	return s.proposeConf(change)
}

func (s *Shard) proposeConf(change *raftpb.ConfChangeV2) error {
	if err := s.node.ProposeConfChange(change); err != nil {
		return fmt.Errorf("shard %d: %w", s.cfg.ID, err)
	}
	s.confIndex = s.lastIndex + 1
	return nil
}

func (s *Shard) takesVotes(change *raftpb.ConfChangeV2) bool {
	return slices.ContainsFunc(change.GetChanges(), func(c *raftpb.ConfChangeSingle) bool {
		return c.GetType() != raftpb.ConfChangeAddNode && slices.Contains(s.conf.GetVoters(), c.GetNodeId())
	})
}

// stepConf leaves a joint configuration, and says whether Raft has something to
// say about it. An owner that has no vote afterwards must not do it: it would
// step down, perhaps before anybody has heard that it is done, and with entries
// that the others lack; and they, who need its vote as long as they have not
// heard, would never get it. It hands over to one that has a vote.
func (s *Shard) stepConf() bool {
	if len(s.conf.GetVotersOutgoing()) == 0 || !s.mayEvaluate() || s.handover.to != 0 || s.confIndex > s.table.Applied().Index {
		return false
	}
	if slices.Contains(s.conf.GetVoters(), s.cfg.RaftID) {
		return s.proposeConf(&raftpb.ConfChangeV2{}) == nil
	}
	if to := s.successor(); to != 0 && s.retryTicks == 0 {
		// Should it not want to, the shard goes on for a while.
		s.retryTicks = 5 * s.cfg.ElectionTicks
		s.HandOver(to)
	}
	return false
}

// successor is the other voter that has most of the log, or 0.
func (s *Shard) successor() (to uint64) {
	best := uint64(0)
	s.node.WithProgress(func(id uint64, _ raft.ProgressType, p tracker.Progress) {
		if id != s.cfg.RaftID && p.RecentActive && p.Match > best && slices.Contains(s.conf.GetVoters(), id) {
			to, best = id, p.Match
		}
	})
	return to
}

// checkChange says why Raft could not apply a change to conf.
func checkChange(conf *raftpb.ConfState, change *raftpb.ConfChangeV2) error {
	if change.LeaveJoint() {
		return errors.New("a change that changes nothing")
	}
	progress := tracker.MakeProgressTracker(1, 0)
	config, replicas, err := confchange.Restore(confchange.Changer{Tracker: progress, LastIndex: 1}, conf)
	if err != nil {
		return err
	}
	progress.Config, progress.Progress = config, replicas
	changer := confchange.Changer{Tracker: progress, LastIndex: 1}
	if autoLeave, joint := change.EnterJoint(); joint {
		_, _, err = changer.EnterJoint(autoLeave, change.GetChanges()...)
	} else {
		_, _, err = changer.Simple(change.GetChanges()...)
	}
	return err
}

// Campaign asks for the leadership where nobody has it, as in a new shard,
// instead of waiting for the election timeout.
func (s *Shard) Campaign() error {
	// Raft forgets its leader when it campaigns, and would vote for another one
	// while that one has a lease.
	if s.node.BasicStatus().Lead != raft.None {
		return nil
	}
	if err := s.node.Campaign(); err != nil {
		return fmt.Errorf("shard %d: %w", s.cfg.ID, err)
	}
	return nil
}

// SetEligible says whether this replica may be the owner. One that may not, as
// its broker's clock is not to be trusted, does not campaign, and evaluates
// nothing that it has not begun, but it votes for others.
func (s *Shard) SetEligible(eligible bool) {
	if s.eligible != eligible {
		s.eligible, s.changed = eligible, true
	}
}

// SetCampaigns says whether this replica tries to become the leader where it is
// not, which it should not when its broker is about to stop.
func (s *Shard) SetCampaigns(campaigns bool) { s.campaigns = campaigns }

// maySend drops what asks for votes that this replica should not have. It is
// then a candidate that hears nothing, and votes for others; were its clock
// stopped instead, it would for ever take the last leader for alive.
func (s *Shard) maySend(m *raftpb.Message) bool {
	if t := m.GetType(); t != raftpb.MsgVote && t != raftpb.MsgPreVote {
		return true
	}
	return s.eligible && s.campaigns && (s.silent == 0 || transfers(m))
}

// transfers says whether a request for a vote is of a replica that the leader
// told to take over: the leader relies on no promise any more.
func transfers(m *raftpb.Message) bool { return string(m.GetContext()) == "CampaignTransfer" }

// Unreachable says that messages to a replica were lost.
func (s *Shard) Unreachable(raftID uint64) { s.node.ReportUnreachable(raftID) }

// SnapshotSent says whether the snapshot of a MsgSnap in Output.Messages reached
// its replica, which then may not have installed it yet.
func (s *Shard) SnapshotSent(raftID uint64, ok bool) {
	status := raft.SnapshotFailure
	if ok {
		status = raft.SnapshotFinish
	}
	s.node.ReportSnapshot(raftID, status)
}

// Status is a replica at a moment.
type Status struct {
	Term, Lead                 uint64 // Lead is a Raft id, 0 is unknown
	Commit, Applied, LastIndex uint64
	Leader, Owns, Installing   bool
	Conf                       *raftpb.ConfState // as applied; not to be changed
	Progress                   []Progress        // in order of Raft ids; of a leader, else nil
}

// Progress is what a leader knows of a replica, itself included.
type Progress struct {
	RaftID          uint64
	Match           uint64 // the last index that is durable there
	PendingSnapshot uint64 // the index of the snapshot that is being sent; 0 is none
	Learner         bool
	Active          bool // was heard of within about an election timeout
	Replicates      bool // takes entries as they come: not searched for its end, not in need of a snapshot
}

// Status tells how the replica is doing.
func (s *Shard) Status() Status {
	status := Status{Term: s.term, Lead: s.lead, Commit: s.commit, Applied: s.table.Applied().Index, LastIndex: s.lastIndex,
		Leader: s.leader, Owns: s.Owns(), Installing: s.installing != 0, Conf: s.conf}
	if !s.leader {
		return status
	}
	s.node.WithProgress(func(id uint64, kind raft.ProgressType, p tracker.Progress) {
		status.Progress = append(status.Progress, Progress{RaftID: id, Match: p.Match, PendingSnapshot: p.PendingSnapshot,
			Learner: kind == raft.ProgressTypeLearner, Active: p.RecentActive, Replicates: p.State == tracker.StateReplicate})
	})
	return status
}
