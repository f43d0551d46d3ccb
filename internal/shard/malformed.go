package shard

import (
	"encoding/binary"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
)

// malformed says what is wrong with a message that no replica sends, and of which
// Raft would panic, or believe what nobody has said; or nothing. What may well be
// sent, but contradicts what is committed here, is another matter: then one of the
// two logs has lost what was synced, and the process ends (design.md, fail-stop).
func (s *Shard) malformed(m *raftpb.Message) string {
	switch from := m.GetFrom(); {
	case from == raft.None || from == s.cfg.RaftID || raft.IsLocalMsgTarget(from):
		return "it is from no other replica"
	case m.GetTerm() == 0: // Raft takes it for one of its own
		return "it has no term"
	}
	switch m.GetType() {
	case raftpb.MsgApp:
		return badEntries(m)
	case raftpb.MsgAppResp:
		if s.ofTerm(m) && !m.GetReject() && m.GetIndex() > s.lastIndex {
			return "it is of entries that were not sent"
		}
	case raftpb.MsgHeartbeatResp:
		if s.ofTerm(m) && !s.asked(m.GetContext()) {
			return "it is of a round that was not begun"
		}
	}
	return ""
}

// ofTerm says whether a response is to this leader.
func (s *Shard) ofTerm(m *raftpb.Message) bool { return s.leader && m.GetTerm() == s.term }

// asked says whether a heartbeat's context is of a round that this leader has
// begun. Raft numbers those that it could not confirm at once, from 1.
func (s *Shard) asked(context []byte) bool {
	return len(context) == 0 || len(context) == 8 && binary.LittleEndian.Uint64(context) <= s.rounds
}

// badEntries says what is wrong with the entries of a MsgApp: they follow on its
// index, their terms do not decrease up to its own, and this build knows them.
func badEntries(m *raftpb.Message) string {
	index, term := m.GetIndex(), m.GetLogTerm()
	for _, e := range m.GetEntries() {
		switch {
		case e.GetIndex() == 0 || e.GetIndex() != index+1:
			return "its entries do not follow each other"
		case e.GetTerm() < term || e.GetTerm() > m.GetTerm():
			return "its entries have terms that cannot be"
		case e.GetType() < raftpb.EntryNormal || e.GetType() > raftpb.EntryConfChangeV2:
			return "its entries are of a type that this build does not know"
		}
		index, term = e.GetIndex(), e.GetTerm()
	}
	return ""
}
