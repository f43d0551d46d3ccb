package shard

import (
	"encoding/binary"
	"fmt"
	"slices"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"github.com/felix-go/felix/internal/record"
	"github.com/felix-go/felix/internal/store"
)

// handleReady takes all that Raft has decided, and applies what is committed,
// as much as this step may.
func (s *Shard) handleReady(out *Output) error {
	for {
		for s.node.HasReady() {
			if err := s.take(s.node.Ready(), out); err != nil {
				return err
			}
		}
		if !s.mayApply() {
			return nil
		}
		m := s.unapplied[0]
		s.unapplied = slices.Delete(s.unapplied, 0, 1)
		if err := s.apply(m, out); err != nil {
			return err
		}
	}
}

func (s *Shard) take(rd raft.Ready, out *Output) error {
	// The order is rule 3: role and term before the commit index.
	s.handleRole(&rd, out)
	if !raft.IsEmptySnap(rd.Snapshot) {
		if err := s.beginInstall(rd.Snapshot.GetMetadata()); err != nil {
			return err
		}
	}
	s.handleEntries(&rd)
	if commit := rd.HardState.GetCommit(); commit > s.commit {
		s.commit = commit
	}
	s.handleReadStates(rd.ReadStates)
	for _, m := range rd.Messages {
		switch m.GetTo() {
		case raft.LocalAppendThread:
			out.Appends = append(out.Appends, s.append(m, rd.MustSync))
		case raft.LocalApplyThread:
			s.unapplied = append(s.unapplied, m)
		default:
			if s.maySend(m) {
				out.Messages = append(out.Messages, m)
			}
		}
	}
	return nil
}

func (s *Shard) handleRole(rd *raft.Ready, out *Output) {
	term := s.term
	if !raft.IsEmptyHardState(rd.HardState) {
		term = rd.HardState.GetTerm()
	}
	leads, lead := s.leader, s.lead
	if rd.SoftState != nil {
		leads, lead = rd.SoftState.RaftState == raft.StateLeader, rd.SoftState.Lead
	}
	if s.leader && (!leads || term != s.term) {
		s.loseLeadership(out)
	}
	if leads && !s.leader {
		s.leader = true
		s.firstOwn, s.nextVersion, s.confIndex, s.rounds = 0, 0, 0, 0
	}
	if leads || lead != raft.None {
		s.leaderless = 0
	}
	s.changed = s.changed || term != s.term || lead != s.lead
	s.term, s.lead = term, lead
}

// loseLeadership answers everything that was evaluated: written is unknown,
// read is unconfirmed. What was not evaluated keeps waiting for an owner.
func (s *Shard) loseLeadership(out *Output) {
	s.leader = false
	s.firstOwn = 0
	for _, r := range s.waiting {
		s.fail(r, errLostOwner, out)
	}
	clear(s.waiting)
	s.waiting = s.waiting[:0]
	for _, r := range s.takeStarted() {
		s.fail(r, errLostOwner, out)
	}
	s.entry = entry{}
	s.discard()
	s.proposals, s.inflight, s.ids.inflight = nil, 0, 0
	s.firstOwn = 0
	s.fencePending, s.fenceWanted = false, false
	s.handover, s.lease, s.leased = handover{}, lease{}, false
	kept := s.queue[:0]
	for _, r := range s.queue {
		if r.next > 0 { // evaluated in part
			s.fail(r, errLostOwner, out)
			continue
		}
		kept = append(kept, r)
	}
	clear(s.queue[len(kept):])
	s.queue = kept
}

func (s *Shard) handleEntries(rd *raft.Ready) {
	for _, e := range rd.Entries {
		s.lastIndex = e.GetIndex()
		if s.leader && e.GetTerm() == s.term {
			if s.firstOwn == 0 {
				s.firstOwn = e.GetIndex()
			}
			s.checkProposed(e.GetIndex(), e.GetTerm(), e.GetData())
		}
	}
}

// append turns Raft's storage message into an Append.
func (s *Shard) append(m *raftpb.Message, sync bool) Append {
	a := Append{Shard: s, Entries: m.GetEntries(), Sync: sync, Own: s.leader, Responses: m.GetResponses()}
	if m.Term != nil {
		a.HardState = &raftpb.HardState{Term: m.Term, Vote: m.Vote, Commit: m.Commit}
	}
	if !raft.IsEmptySnap(m.GetSnapshot()) {
		a.Snapshot, a.Sync = m.GetSnapshot().GetMetadata(), true
	}
	return a
}

// apply makes committed entries the applied state, and tells Raft.
func (s *Shard) apply(m *raftpb.Message, out *Output) error {
	for _, e := range m.GetEntries() {
		s.applyLeft -= len(e.GetData()) + entryOverheadBytes
		if err := s.applyEntry(e); err != nil {
			return fmt.Errorf("shard %d: entry %d of term %d: %w", s.cfg.ID, e.GetIndex(), e.GetTerm(), err)
		}
	}
	s.stats.Applied += uint64(len(m.GetEntries()))
	for _, response := range m.GetResponses() {
		if err := s.Step(response); err != nil {
			return err
		}
	}
	if s.leader && s.firstOwn != 0 && s.table.Applied().Index >= s.firstOwn {
		s.startOwning()
	}
	return nil
}

// startOwning is called whenever a leader has applied entries, and at first
// when it may begin to evaluate: no time is given that an owner before gave,
// and no version.
func (s *Shard) startOwning() {
	if s.nextVersion != 0 {
		return
	}
	applied := s.table.Applied()
	s.clock.start(applied.Ceiling, s.now)
	s.nextVersion = record.FirstVersion(s.term, applied.Version)
	s.changed = true
}

func (s *Shard) applyEntry(e *raftpb.Entry) error {
	index, term := e.GetIndex(), e.GetTerm()
	touched := s.applied(index, term)
	if e.GetType() != raftpb.EntryNormal {
		return s.applyConfChange(e)
	}
	generation := s.table.Generation()
	if err := s.table.Apply(index, term, e.GetData(), touched); err != nil {
		return err
	}
	s.giveTouches(touched)
	if s.table.Generation() != generation {
		s.forgetLoads()
	}
	return nil
}

// applied removes the proposal at index and answers what it touched, or nil if
// the entry is not one that this owner proposed in this term.
func (s *Shard) applied(index, term uint64) []store.Touch {
	if len(s.proposals) == 0 || s.proposals[0].index != index || term != s.term {
		return nil
	}
	p := s.proposals[0]
	s.proposals[0] = proposal{}
	s.proposals = s.proposals[1:]
	s.inflight -= p.bytes
	s.ids.inflight -= p.ids
	return p.touched
}

func (s *Shard) applyConfChange(e *raftpb.Entry) error {
	var change raftpb.ConfChangeI
	if e.GetType() == raftpb.EntryConfChange {
		v1 := &raftpb.ConfChange{}
		if err := proto.Unmarshal(e.GetData(), v1); err != nil {
			return err
		}
		change = v1
	} else {
		v2 := &raftpb.ConfChangeV2{}
		if err := proto.Unmarshal(e.GetData(), v2); err != nil {
			return err
		}
		change = v2
	}
	conf := s.node.ApplyConfChange(change)
	encoded, err := proto.Marshal(conf)
	if err != nil {
		return err
	}
	s.setConf(conf)
	s.lease.until = 0 // others count now
	if s.fencePending {
		// Whoever was asked may have no say any more, or there is nobody left
		// to ask: begin again.
		s.fencePending, s.fenceWanted = false, true
	}
	s.cfg.Log.SetConfState(conf)
	s.table.SkipTo(e.GetIndex(), e.GetTerm(), byte(e.GetType()), e.GetData(), encoded)
	return nil
}

// setConf notes the configuration that holds from now on.
func (s *Shard) setConf(conf *raftpb.ConfState) {
	s.conf, s.changed = conf, true
	s.alone = len(conf.GetVotersOutgoing()) == 0 && len(conf.GetVoters()) == 1 && conf.GetVoters()[0] == s.cfg.RaftID
}

// startFence begins a round if reads wait for one, or a lease, and none is under
// way. The context is unique: an answer to an earlier round must not pass for
// this one.
func (s *Shard) startFence() {
	if s.fencePending || !s.leader || !s.fenceWanted && !s.renew() {
		return
	}
	s.fenceBegan = s.now.Mono // nothing of it has been sent
	s.fenceSeq++
	s.fencePending, s.fenceWanted = true, false
	if len(s.conf.GetVoters()) > 1 || len(s.conf.GetVotersOutgoing()) > 0 {
		s.rounds++ // Raft asks nobody for a sole voter
	}
	context := binary.BigEndian.AppendUint64(nil, s.term)
	s.node.ReadIndex(binary.BigEndian.AppendUint64(context, s.fenceSeq))
}

func (s *Shard) handleReadStates(states []raft.ReadState) {
	for _, state := range states {
		if len(state.RequestCtx) != 16 || binary.BigEndian.Uint64(state.RequestCtx) != s.term {
			continue
		}
		if seq := binary.BigEndian.Uint64(state.RequestCtx[8:]); seq == s.fenceSeq {
			s.fenceDone, s.fencePending = seq, false
			s.renewed()
		}
	}
}
