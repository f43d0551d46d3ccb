package shard

// Rule 2 bounds what is evaluated and not applied. What is applied and not yet
// in the state store, and the log that this keeps, have a bound of their own,
// which the runner watches: it concerns all shards of a broker together.

// Hold tells the shard how far the state store has fallen behind. While writes
// is set, requests that may write wait in the queue until their deadline;
// reads, sweeps, scans and clears go on. While replay is set, a replica that is
// not the owner applies nothing more of its log, so that a checkpoint can make
// room for it first.
func (s *Shard) Hold(writes, replay bool) { s.holdWrites, s.holdReplay = writes, replay }

// setAside takes the requests that must wait for Hold's end out of the queue,
// or puts them back. One that was begun is finished: its answer would otherwise
// be outcome_unknown.
func (s *Shard) setAside() {
	if !s.holdWrites {
		if len(s.held) > 0 {
			s.queue = append(s.held, s.queue...)
			s.held = nil
		}
		return
	}
	kept := s.queue[:0]
	for _, r := range s.queue {
		if r.next == 0 && r.mayWrite() {
			s.held = append(s.held, r)
		} else {
			kept = append(kept, r)
		}
	}
	clear(s.queue[len(kept):])
	s.queue = kept
}

// mayWrite says whether the request may add to what is dirty. Sweeps and clears
// make the state smaller.
func (r *Request) mayWrite() bool {
	if r.Kind != Ops {
		return false
	}
	for _, p := range r.Positions {
		if r.Batch.Ops[p].Mutates() {
			return true
		}
	}
	return false
}

// mayApply says whether there is something to apply, in this step.
func (s *Shard) mayApply() bool { return s.applyLeft > 0 && s.Unfinished() }

// Unfinished says that Advance has left something to apply because it was
// enough for one step: it is to be called again, soon.
func (s *Shard) Unfinished() bool {
	return len(s.unapplied) > 0 && (!s.holdReplay || s.Owns())
}
