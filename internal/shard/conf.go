package shard

import (
	"errors"
	"fmt"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/confchange"
	"go.etcd.io/raft/v3/raftpb"
	"go.etcd.io/raft/v3/tracker"
)

// ChangeConf proposes a change of the shard's replicas. That it is made is seen
// in Output.Changed and Status, or it never is, as when leadership is lost. A
// joint configuration is left without being told to.
func (s *Shard) ChangeConf(change *raftpb.ConfChangeV2) error {
	switch {
	case !s.Owns():
		return fmt.Errorf("shard %d: this replica is not its owner", s.cfg.ID)
	case s.confIndex > s.table.Applied().Index:
		return fmt.Errorf("shard %d: another change of its replicas is under way", s.cfg.ID)
	}
	// Raft would stop every replica when it applies one that makes no sense, and
	// ignores one in a joint configuration.
	if err := checkChange(s.conf, change); err != nil {
		return fmt.Errorf("shard %d: %w", s.cfg.ID, err)
	}
	if err := s.node.ProposeConfChange(change); err != nil {
		return fmt.Errorf("shard %d: %w", s.cfg.ID, err)
	}
	s.confIndex = s.lastIndex + 1
	return nil
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
