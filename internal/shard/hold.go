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

// aside says which requests may not be begun.
type aside uint8

const (
	asideNone   aside = iota
	asideWrites       // Hold
	asideAll          // the replica hands over, or should not lead
)

// setAside takes the requests that must not be begun now out of the queue, or
// puts them back. One that was begun is finished: its answer would otherwise be
// outcome_unknown.
func (s *Shard) setAside() {
	which := asideNone
	switch {
	case !s.eligible || s.handover.to != 0:
		which = asideAll
	case s.holdWrites:
		which = asideWrites
	}
	if which != s.aside {
		s.aside = which
		if len(s.held) > 0 {
			s.queue = append(s.held, s.queue...)
			s.held = nil
		}
	}
	if which == asideNone {
		return
	}
	kept := s.queue[:0]
	for _, r := range s.queue {
		if r.next == 0 && (which == asideAll || r.mayWrite()) {
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
func (s *Shard) mayApply() bool { return s.applyLeft > 0 && s.toApply() }

func (s *Shard) toApply() bool { return len(s.unapplied) > 0 && (!s.holdReplay || s.mayEvaluate()) }

// Unfinished says that there is something to do for Advance at once: it has left
// something to apply because it was enough for one step, or a fence to begin.
func (s *Shard) Unfinished() bool {
	return s.toApply() || s.leader && s.fenceWanted && !s.fencePending
}
