package placement

import (
	"reflect"
	"slices"
	"testing"
)

// on is a shard whose replicas, voters all, are on nodes; the first is its
// preferred owner.
func on(id uint64, nodes ...uint64) Shard {
	s := Shard{ID: id, NextRaft: 1, Prefer: nodes[0]}
	for _, n := range nodes {
		s.Replicas = append(s.Replicas, Replica{Raft: s.NextRaft, Node: n, Want: Voter, Have: Voter})
		s.NextRaft++
	}
	return s
}

// planned is the plan of shards, without the metadata's.
func planned(nodes []Node, limits Limits, targets ...Target) []Change {
	nobody := Shard{ID: 1, Replicas: []Replica{{Raft: 1, Node: 99, Want: Voter, Have: Voter}}, Prefer: 99}
	return Plan(Input{Nodes: nodes, Meta: nobody, Shards: targets, Limits: limits})
}

func expect(t *testing.T, got []Change, want ...Change) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		t.Errorf("the plan is %+v, want %+v", got, want)
	}
}

// A replica that died before it had a vote only stands in the way of others.
func TestPlanGivesUpWhatNeverVoted(t *testing.T) {
	nodes := []Node{{ID: 1, Up: true}, {ID: 2, Up: true}, {ID: 3, Up: true, State: Draining}, {ID: 4, Dead: true}}
	s := on(2, 1, 2, 3, 4)
	s.Replicas[2].Want, s.Replicas[3].Have = Gone, Learner
	expect(t, planned(nodes, Limits{Shards: 8, Receiving: 2}, Target{s, 3}), Change{Shard: 2, Wants: []Want{{4, Gone}}})
}

// TestNewcomerDiesDuringItsMove: when a broker that was to get a replica dies, or
// is to have none after all, the one that it was to replace stays, since it has
// everything; and what is to be given up is.
func TestNewcomerDiesDuringItsMove(t *testing.T) {
	for _, newcomer := range []Node{{ID: 4, Dead: true}, {ID: 4, State: Removing}, {ID: 4, State: Draining}, {ID: 4, State: Draining, Up: true}} {
		for _, n := range []int{1, 3} { // replicas
			w := newWorld(t, 1, 4)
			w.settle()
			nodes := []uint64{3, 2, 1}[:n]
			s := simulate(on(2, nodes...), n)
			s.Shard.Replicas = append(s.Shard.Replicas, Replica{Raft: s.Shard.NextRaft, Node: 4, Want: Voter, Have: Learner})
			s.Shard.Replicas[0].Want = Gone
			for _, r := range s.Shard.Replicas[:n] {
				s.conf.Voters = append(s.conf.Voters, r.Raft)
			}
			voters := slices.Clone(s.conf.Voters)
			s.conf.Learners = []uint64{s.Shard.NextRaft}
			s.Shard.NextRaft++
			w.shards = append(w.shards, s)
			*w.node(4) = newcomer
			w.settle()
			if slices.Sort(s.conf.Voters); !slices.Equal(s.conf.Voters, voters) || len(s.conf.Learners) > 0 || len(s.Shard.Replicas) != n {
				t.Errorf("%+v: the shard is %+v, %+v", newcomer, s.conf, s.Shard.Replicas)
			}
		}
	}
}

// TestPlanWhatWasGone: a replica that was to go and comes back may have been
// removed by an owner that was faster. Then it is made anew.
func TestPlanWhatWasGone(t *testing.T) {
	s := on(2, 1, 2, 3) // 3 is wanted again
	got, _ := Report(s, Conf{Voters: []uint64{1, 2}})
	nodes := []Node{{ID: 1, Up: true}, {ID: 2, Up: true}, {ID: 3, Up: true}}
	expect(t, planned(nodes, Limits{Shards: 1, Receiving: 1}, Target{got, 3}), Change{Shard: 2, Wants: []Want{{3, Voter}}})
	got.Apply(Change{Wants: []Want{{3, Voter}}})
	if r := got.Replicas[2]; r != (Replica{Raft: 4, Node: 3, Want: Voter}) {
		t.Errorf("it comes back as %+v", r)
	}
}

// TestLeavingWaitsForThoseAway: a node that can wait keeps its replica while there
// is a broker that is away and could take it when it is back.
func TestLeavingWaitsForThoseAway(t *testing.T) {
	nodes := []Node{{ID: 1, Up: true}, {ID: 2, Up: true}, {ID: 3, Up: true, State: Removing}, {ID: 4, Dead: true}}
	limits := Limits{Shards: 8, Receiving: 2}
	expect(t, planned(nodes, limits, Target{on(2, 1, 2, 3), 3}))
	nodes[3].State = Removing // nobody waits for it any more
	expect(t, planned(nodes, limits, Target{on(2, 1, 2, 3), 3}), Change{Shard: 2, Wants: []Want{{3, Gone}}})
	nodes[2].Up, nodes[3].State = false, Active
	expect(t, planned(nodes, limits, Target{on(2, 1, 2, 3), 3}), Change{Shard: 2, Wants: []Want{{3, Gone}}})
}

// TestThirdVote: a node that is drained keeps its vote for the metadata where only
// two would be left; of two, the one that is drained gives it up.
func TestThirdVote(t *testing.T) {
	for active, want := range map[int][]uint64{1: {1}, 2: {1, 2, 3}, 3: {1, 2, 3}} {
		w := newWorld(t, 1, active+1)
		w.settle()
		w.node(uint64(active + 1)).State = Draining
		w.settle()
		var voters []uint64
		for _, r := range w.meta.Shard.Replicas {
			if r.Have == Voter {
				voters = append(voters, r.Node)
			}
		}
		if slices.Sort(voters); !slices.Equal(voters, want) {
			t.Errorf("%d are active: nodes %v vote for the metadata", active, voters)
		}
	}
}

// Shards without a majority are left alone, and do not keep others from changing.
func TestPlanWithoutAMajority(t *testing.T) {
	nodes := []Node{{ID: 1, Up: true}, {ID: 2, Up: true, State: Draining}, {ID: 3, Dead: true}}
	limits := Limits{Shards: 1, Receiving: 1}
	expect(t, planned(nodes, limits, Target{on(2, 3), 1}))
	stuck := on(3, 3, 1)
	stuck.Replicas[0].Want, stuck.Replicas[1].Have = Gone, None
	expect(t, planned(nodes, limits, Target{stuck, 1}, Target{on(4, 2), 1}), Change{Shard: 4, Wants: []Want{{1, Voter}, {2, Gone}}})
}

func TestPlanTakesTheNodeWithLeast(t *testing.T) {
	nodes := []Node{{ID: 1, Up: true}, {ID: 2, Up: true}, {ID: 3, Up: true}}
	expect(t, planned(nodes, Limits{Shards: 1, Receiving: 1}, Target{on(2, 2), 1}, Target{on(3, 1), 2}),
		Change{Shard: 3, Wants: []Want{{3, Voter}}})
}

// Where the first node owns nothing that the last one has, others pass it on;
// or nothing happens, when that is more than may change at once.
func TestPlanPassesOwnersOn(t *testing.T) {
	nodes := []Node{{ID: 1, Up: true}, {ID: 2, Up: true}, {ID: 3, Up: true}}
	shards := []Target{{on(2, 1, 2), 2}, {on(3, 1, 2), 2}, {on(4, 2, 3), 2}}
	expect(t, planned(nodes, Limits{Preferred: 1}, shards...))
	expect(t, planned(nodes, Limits{Preferred: 2}, shards...), Change{Shard: 2, Prefer: 2}, Change{Shard: 4, Prefer: 3})
}

// TestPinnedIsNotMovedForEvenness: what an operator has placed stays there, while
// its node is well; other shards make up for it.
func TestPinnedIsNotMovedForEvenness(t *testing.T) {
	w := newWorld(t, 1, 3)
	w.create(9, 1)
	w.settle()
	moved := map[uint64]bool{}
	for _, s := range w.shards {
		if s.Shard.Prefer != 1 {
			s.Shard.Apply(Change{Wants: []Want{{1, Voter}, {s.Shard.Prefer, Gone}}, Prefer: 1})
			s.Shard.Pinned, moved[s.Shard.ID] = true, true
			if len(moved) == 2 {
				break
			}
		}
	}
	w.settle()
	w.even()
	for _, s := range w.shards {
		if moved[s.Shard.ID] && (s.Shard.Prefer != 1 || !s.Shard.Pinned) {
			t.Errorf("shard %d was placed on node 1, and is %+v", s.Shard.ID, s.Shard)
		}
	}
	w.node(1).State = Draining
	w.settle()
	for _, s := range w.shards {
		if s.Shard.on(1) >= 0 || s.Shard.Pinned {
			t.Errorf("shard %d is still on the node that drains: %+v", s.Shard.ID, s.Shard)
		}
	}
}
