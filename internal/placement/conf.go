package placement

import "slices"

// Conf is a shard's Raft configuration, in Raft ids.
type Conf struct {
	Voters, Learners []uint64
	Joint            bool // it is on the way from one to another
}

// Owner is what a shard's owner knows of it.
type Owner struct {
	Conf     Conf
	CaughtUp []uint64 // learners that lack next to nothing of the log
	Active   []uint64 // replicas that were heard of lately, the owner's among them
}

// Step is a part of a change of a shard's configuration: what a replica becomes.
type Step struct {
	Raft uint64
	Role Role // Voter, Learner; Gone removes it
}

// NextConf is the one change that brings the configuration nearer to what is
// wanted, nil if there is none to be made now. It is the owner who asks; it may
// lose its own vote by the change, and then hands over before that is complete.
// A first Learner must be proposed only while a confirmed read of the placement
// says the same: a Raft id that was removed must not come back.
func NextConf(s *Shard, o Owner) []Step {
	if o.Conf.Joint {
		return nil
	}
	in := func(id uint64) bool {
		return slices.Contains(o.Conf.Voters, id) || slices.Contains(o.Conf.Learners, id)
	}
	for _, r := range s.Replicas {
		// One that was in the configuration and is no more was removed by an
		// owner that knows a newer placement.
		if r.Want != Gone && r.Have == None && !in(r.Raft) {
			return []Step{{r.Raft, Learner}}
		}
	}
	var steps []Step
	voters := slices.Clone(o.Conf.Voters)
	for _, id := range slices.Concat(o.Conf.Voters, o.Conf.Learners) {
		isVoter := slices.Contains(o.Conf.Voters, id)
		switch role := s.wanted(id); {
		case role == Voter && !isVoter:
			// All of it is made at once, so that there is no moment with too few
			// voters, or with an even number that would stand in the way.
			if !slices.Contains(o.CaughtUp, id) {
				return nil
			}
			steps, voters = append(steps, Step{id, Voter}), append(voters, id)
		case role == Gone, role == Learner && isVoter:
			steps = append(steps, Step{id, role})
			voters = slices.DeleteFunc(voters, func(v uint64) bool { return v == id })
		}
	}
	if len(steps) > 0 && !majority(voters, o.Active) {
		return nil // it would not come to an end, and the shard would stand still
	}
	return steps
}

// wanted is what the replica shall be that has a Raft id in the configuration.
func (s *Shard) wanted(id uint64) Role {
	for _, r := range s.Replicas {
		if r.Raft == id {
			return r.Want
		}
	}
	if id < s.NextRaft {
		return Gone // left over: an id that is not there any more never will be
	}
	return None // of a newer placement than this one
}

// majority says whether most voters are active.
func majority(voters, active []uint64) bool {
	n := 0
	for _, v := range voters {
		if slices.Contains(active, v) {
			n++
		}
	}
	return 2*n > len(voters)
}

// Report is the shard with what the configuration makes of its replicas, those
// that have gone left out, and whether that is news. The configuration must not
// be older than the placement.
func Report(s Shard, c Conf) (Shard, bool) {
	if c.Joint {
		return s, false // who leaves is still needed
	}
	var replicas []Replica
	for _, r := range s.Replicas {
		switch {
		case slices.Contains(c.Voters, r.Raft):
			r.Have = Voter
		case slices.Contains(c.Learners, r.Raft):
			r.Have = Learner
		case r.Want == Gone, r.Have != None:
			// What has been in the configuration and is no more has gone, also if it
			// is wanted again: its Raft id cannot come back.
			continue
		}
		replicas = append(replicas, r)
	}
	news := !slices.Equal(replicas, s.Replicas)
	s.Replicas = replicas
	return s, news
}
