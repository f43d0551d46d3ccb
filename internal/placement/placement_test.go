package placement

import (
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
)

// even fails unless everything is where it should be when all nodes are up.
func (w *world) even() {
	w.t.Helper()
	replicas, owners := map[uint64]int{}, map[uint64]int{}
	var good []uint64
	for _, n := range w.nodes {
		if n.State == Active && !n.Dead {
			good = append(good, n.ID)
		}
	}
	for _, s := range w.shards {
		if want := min(s.Replication, len(good)); len(s.Shard.Replicas) != want || len(s.conf.Voters) != want || len(s.conf.Learners) != 0 {
			w.t.Errorf("shard %d has replicas %+v, configuration %+v, want %d", s.Shard.ID, s.Shard.Replicas, s.conf, want)
		}
		for _, r := range s.Shard.Replicas {
			replicas[r.Node]++
			if !slices.Contains(good, r.Node) {
				w.t.Errorf("shard %d is on node %d", s.Shard.ID, r.Node)
			}
		}
		owners[s.Shard.Prefer]++
	}
	for what, counts := range map[string]map[uint64]int{"replicas": replicas, "owners": owners} {
		low, high := len(w.shards), 0
		for _, id := range good {
			low, high = min(low, counts[id]), max(high, counts[id])
		}
		if high > low+1 {
			w.t.Errorf("the %s of nodes are uneven: %v", what, counts)
		}
	}
}

func TestCreateIsEven(t *testing.T) {
	for nodes := 1; nodes <= 9; nodes++ {
		for replication := 1; replication <= 7; replication++ {
			w := newWorld(t, 1, nodes)
			for range 5 {
				w.create(7, replication)
			}
			for _, s := range w.shards {
				if s.Shard.NextRaft != uint64(len(s.Shard.Replicas)+1) || len(s.Shard.Initial) != len(s.Shard.Replicas) {
					t.Fatalf("a new shard is %+v", s.Shard)
				}
			}
			w.even()
		}
	}
}

// A new shard begins on nodes that are there; those of which nothing is to be
// expected get none.
func TestCreateOnWhatIsThere(t *testing.T) {
	nodes := []Node{{ID: 1}, {ID: 2, Up: true, State: Draining}, {ID: 3, Up: true}, {ID: 4, Dead: true}, {ID: 5, Up: true}}
	on := func(s Shard) (ids []uint64) {
		for _, r := range s.Replicas {
			ids = append(ids, r.Node)
		}
		return ids
	}
	if got := on(Create(nodes, nil, []uint64{7}, 2)[0]); !slices.Equal(got, []uint64{3, 5}) {
		t.Errorf("two replicas on %v", got)
	}
	s := Create(nodes, nil, []uint64{7}, 5)[0]
	if got := on(s); !slices.Equal(got, []uint64{3, 5, 1}) || s.Prefer == 1 {
		t.Errorf("five replicas on %v, owned by %d", got, s.Prefer)
	}
}

func TestPlanOfWhatIsWellIsNothing(t *testing.T) {
	for nodes := 1; nodes <= 7; nodes++ {
		w := newWorld(t, 1, nodes)
		w.create(24, 3)
		for len(w.meta.Shard.Replicas) < nodes {
			w.step()
		}
		w.settle()
		placed := w.targets()
		if w.settle(); !reflect.DeepEqual(placed, w.targets()) || len(Plan(w.input())) != 0 {
			t.Errorf("%d nodes: something changes for nothing", nodes)
		}
		// Nor does it when a node is away for a moment.
		w.nodes[0].Up = false
		if c := Plan(w.input()); len(c) != 0 {
			t.Errorf("%d nodes, one away: %+v", nodes, c)
		}
	}
}

// What operators do, one after another, each time until it is done.
func TestPlanMembership(t *testing.T) {
	for seed := range uint64(20) {
		w := newWorld(t, seed, 1)
		w.create(12, 3)
		w.even()
		for id := uint64(2); id <= 6; id++ { // join
			w.nodes = append(w.nodes, Node{ID: id, Up: true})
			w.settle()
			w.even()
		}
		votes := func(want int) {
			t.Helper()
			if len(w.meta.conf.Voters) != want {
				t.Errorf("seed %d: the metadata has %+v, want %d voters", seed, w.meta.conf, want)
			}
		}
		votes(5)
		for _, replication := range []int{5, 1, 3} {
			for _, s := range w.shards {
				s.Replication = replication
			}
			w.settle()
			w.even()
		}
		w.nodes[1].State = Draining
		w.settle()
		w.even()
		if votes(5); w.meta.Shard.on(2) < 0 {
			t.Error("a node that was drained has lost the metadata")
		}
		w.nodes[1].State = Active
		w.settle()
		w.even()
		w.nodes[2].Up, w.nodes[2].Dead = false, true
		w.settle()
		w.even()
		votes(5)
		w.nodes[2].Up, w.nodes[2].Dead = true, false
		w.settle()
		w.even()
		for _, id := range []uint64{3, 1, 5} { // rm
			w.node(id).State = Removing
			w.settle()
			if Holds(append(w.targets(), w.meta.Target), id) {
				t.Fatalf("seed %d: something remains on node %d", seed, id)
			}
			w.nodes = slices.DeleteFunc(w.nodes, func(n Node) bool { return n.ID == id })
			w.settle()
			w.even()
		}
		votes(3)
	}
}

// A node that is removed keeps the metadata as long as it holds anything else.
func TestPlanRemovesTheMetadataLast(t *testing.T) {
	w := newWorld(t, 3, 4)
	w.create(12, 3)
	w.settle()
	w.nodes[3].State = Removing
	for range 200 {
		w.step()
		if Holds(w.targets(), 4) && w.meta.Shard.Replicas[w.meta.Shard.on(4)].Want == Gone {
			t.Fatal("the metadata goes first")
		}
	}
	if Holds([]Target{w.meta.Target}, 4) {
		t.Error("the metadata stays")
	}
}

// Where nobody can take the place of a dead node, it may come back.
func TestPlanKeepsADeadReplicaWithoutAnother(t *testing.T) {
	w := newWorld(t, 1, 3)
	w.create(6, 3)
	w.settle()
	w.nodes[1].Up, w.nodes[1].Dead = false, true
	w.settle()
	for _, s := range w.shards {
		if len(s.conf.Voters) != 3 || s.Shard.Prefer == 2 {
			t.Errorf("shard %d is %+v", s.Shard.ID, s.Shard)
		}
	}
	if len(w.meta.conf.Voters) != 3 {
		t.Errorf("the metadata is %+v", w.meta.Shard)
	}
	w.nodes = append(w.nodes, Node{ID: 4, Up: true})
	w.settle()
	w.even()
}

// Nothing is done to, nor waits for, shards that cannot change.
func TestPlanPassesByWhatStandsStill(t *testing.T) {
	w := newWorld(t, 1, 3)
	w.create(60, 1)
	w.settle()
	for id := range uint64(2) {
		w.node(id + 2).State = Draining
	}
	w.step()
	w.nodes[2].Up, w.nodes[2].Dead = false, true
	w.settle()
	for _, s := range w.shards {
		if s.Shard.on(2) >= 0 {
			t.Errorf("shard %d is still on node 2", s.Shard.ID)
		}
	}
}

// Whatever happens, every change keeps its promises, and when nothing happens
// any more all is well in the end.
func TestPlanInAnyWeather(t *testing.T) {
	for seed := range uint64(150) {
		r := rand.New(rand.NewPCG(seed, 2))
		w := newWorld(t, seed, 1+r.IntN(6))
		w.create(1+r.IntN(30), 1+r.IntN(5))
		next := uint64(len(w.nodes) + 1)
		for range 60 {
			n := &w.nodes[r.IntN(len(w.nodes))]
			switch r.IntN(8) {
			case 0:
				n.Up = false
			case 1:
				n.Dead = !n.Up
			case 2, 3:
				n.Up, n.Dead = true, false
			case 4:
				n.State = State(r.IntN(3))
			case 5:
				n.State = Active
			case 6:
				if len(w.nodes) < 8 {
					w.nodes = append(w.nodes, Node{ID: next, Up: true})
					next++
				}
			case 7:
				replication := 1 + r.IntN(5)
				for _, s := range w.shards {
					s.Replication = replication
				}
			}
			for range r.IntN(6) {
				w.step()
			}
		}
		for i := range w.nodes {
			w.nodes[i] = Node{ID: w.nodes[i].ID, Up: true}
		}
		w.settle()
		w.even()
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

func TestNextConf(t *testing.T) {
	voter := func(raft uint64, have Role) Replica { return Replica{Raft: raft, Node: raft, Want: Voter, Have: have} }
	gone := Replica{Raft: 1, Node: 1, Want: Gone, Have: Voter}
	all := []uint64{1, 2, 3, 4, 5}
	for name, c := range map[string]struct {
		replicas []Replica
		owner    Owner
		want     []Step
	}{
		"nothing to do":             {[]Replica{voter(1, Voter)}, Owner{Conf: Conf{Voters: []uint64{1}}, Active: all}, nil},
		"first a learner":           {[]Replica{gone, voter(2, None)}, Owner{Conf: Conf{Voters: []uint64{1}}, Active: all}, []Step{{2, Learner}}},
		"which catches up":          {[]Replica{gone, voter(2, Learner)}, Owner{Conf: Conf{[]uint64{1}, []uint64{2}, false}, Active: all}, nil},
		"and then all at once":      {[]Replica{gone, voter(2, Learner)}, Owner{Conf{[]uint64{1}, []uint64{2}, false}, []uint64{2}, all}, []Step{{1, Gone}, {2, Voter}}},
		"nothing in between":        {[]Replica{gone, voter(2, Learner)}, Owner{Conf{[]uint64{1}, []uint64{2}, true}, []uint64{2}, all}, nil},
		"one id does not come back": {[]Replica{voter(1, Voter), voter(2, Learner)}, Owner{Conf: Conf{Voters: []uint64{1}}, Active: all}, nil},
		"the others must be there":  {[]Replica{gone, voter(2, Voter), voter(3, Voter)}, Owner{Conf: Conf{Voters: []uint64{1, 2, 3}}, Active: []uint64{1, 2}}, nil},
		"left over goes, newer not": {[]Replica{voter(1, Voter)}, Owner{Conf: Conf{[]uint64{1}, []uint64{4, 9}, false}, Active: all}, []Step{{4, Gone}}},
		"a voter becomes a learner": {[]Replica{{1, 1, Learner, Voter}, voter(2, Voter)}, Owner{Conf: Conf{Voters: []uint64{1, 2}}, Active: all}, []Step{{1, Learner}}},
	} {
		if got := NextConf(&Shard{NextRaft: 6, Replicas: c.replicas}, c.owner); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

func TestReport(t *testing.T) {
	s := Shard{NextRaft: 4, Replicas: []Replica{{1, 1, Gone, Voter}, {2, 2, Voter, Learner}, {3, 3, Voter, None}}}
	if _, news := Report(s, Conf{Voters: []uint64{2}, Joint: true}); news {
		t.Error("news of a change that is not complete")
	}
	got, news := Report(s, Conf{Voters: []uint64{2}, Learners: []uint64{3}})
	if want := []Replica{{2, 2, Voter, Voter}, {3, 3, Voter, Learner}}; !news || !slices.Equal(got.Replicas, want) {
		t.Errorf("%v, want %v", got.Replicas, want)
	}
	// One that was in the configuration is not to be added again.
	got, news = Report(got, Conf{Voters: []uint64{2}})
	if want := []Replica{{2, 2, Voter, Voter}}; !news || !slices.Equal(got.Replicas, want) {
		t.Errorf("%v, want %v", got.Replicas, want)
	}
}
