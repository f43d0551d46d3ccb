package shard

// handover is ownership on its way to another replica, rule 8: first what was
// begun is finished and on its way to nobody, then Raft is asked to transfer the
// leadership, and what was not begun is Returned when it has. No client sees it.
type handover struct {
	to    uint64 // Raft id; 0 is nobody
	asked bool   // Raft was asked
	ticks int    // until it is given up, as long as Raft was not asked
}

// HandOver gives the ownership to another voter, which should have nearly all of
// the log. Nothing new is evaluated from now on. If it does not come about in
// some election timeouts, the shard goes on as before; either is seen in
// Output.Changed.
func (s *Shard) HandOver(raftID uint64) {
	if !s.leader || s.handover.to != 0 || raftID == s.cfg.RaftID {
		return
	}
	s.handover = handover{to: raftID, ticks: 2 * s.cfg.ElectionTicks}
	s.changed = true
}

// stepHandover does what is next, and says whether Raft has something to say
// about it.
func (s *Shard) stepHandover() bool {
	h := &s.handover
	if h.to == 0 || !h.asked && h.ticks > 0 && s.underWay() {
		return false
	}
	if !h.asked && h.ticks > 0 {
		h.asked = true
		s.lease.bar()
		s.node.TransferLeader(h.to)
	}
	// Raft gives up after an election timeout, and does not begin with a replica
	// that is no voter.
	if s.node.BasicStatus().LeadTransferee == 0 {
		*h, s.changed = handover{}, true
	}
	return true
}

// underWay says whether there is something that would not survive a change of
// the owner: replies that wait, requests that were evaluated in part. A change of the configuration is finished, too: the next
// owner could not be elected before it has made it.
func (s *Shard) underWay() bool {
	if len(s.waiting)+len(s.queue) > 0 || s.confIndex > s.table.Applied().Index {
		return true
	}
	for _, l := range s.loads {
		for _, r := range l.waiters {
			if r.next > 0 {
				return true
			}
		}
	}
	return false
}
