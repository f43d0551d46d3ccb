package placement

import (
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
)

// world is brokers and shards whose owners do what plans want of them.
type world struct {
	t      *testing.T
	rand   *rand.Rand
	nodes  []Node
	meta   *simulated
	shards []*simulated
	limits Limits
}

type simulated struct {
	Target
	conf Conf
	used map[uint64]bool // Raft ids that the configuration has had
}

func newWorld(t *testing.T, seed uint64, nodes int) *world {
	w := &world{t: t, rand: rand.New(rand.NewPCG(seed, 1)), limits: Limits{Shards: 8, Receiving: 2, Preferred: 16}}
	for i := range nodes {
		w.nodes = append(w.nodes, Node{ID: uint64(i + 1), Up: true})
	}
	w.meta = simulate(Create(w.nodes, nil, []uint64{1}, MetaVoters(nodes))[0], 0)
	return w
}

func simulate(s Shard, replication int) *simulated {
	return &simulated{Target: Target{s, replication}, conf: Conf{Voters: slices.Clone(s.Initial)}, used: map[uint64]bool{}}
}

func (w *world) targets() (all []Target) {
	for _, s := range w.shards {
		all = append(all, s.Target)
	}
	return all
}

func (w *world) create(n, replication int) {
	var ids []uint64
	var placed []Shard
	for i := range n {
		ids = append(ids, uint64(len(w.shards)+i+2))
	}
	for _, s := range w.shards {
		placed = append(placed, s.Shard)
	}
	for _, s := range Create(w.nodes, LoadOf(placed), ids, replication) {
		w.shards = append(w.shards, simulate(s, replication))
	}
}

func (w *world) node(id uint64) *Node {
	for i := range w.nodes {
		if w.nodes[i].ID == id {
			return &w.nodes[i]
		}
	}
	return &Node{ID: id, State: Removing, Dead: true}
}

func (w *world) input() Input {
	nodes, targets := slices.Clone(w.nodes), w.targets()
	w.rand.Shuffle(len(nodes), func(i, j int) { nodes[i], nodes[j] = nodes[j], nodes[i] })
	w.rand.Shuffle(len(targets), func(i, j int) { targets[i], targets[j] = targets[j], targets[i] })
	return Input{Nodes: nodes, Meta: w.meta.Shard, Shards: targets, Limits: w.limits}
}

// step makes a part of a plan, and lets some owners act. It says whether there
// was anything to do.
func (w *world) step() bool {
	changes := Plan(w.input())
	if again := Plan(w.input()); !reflect.DeepEqual(again, changes) {
		w.t.Fatalf("two plans for the same: %+v and %+v", changes, again)
	}
	w.checkLimits(changes)
	busy := len(changes) > 0
	if len(changes) > 1 && w.rand.IntN(3) == 0 {
		changes = changes[w.rand.IntN(len(changes)):]
	}
	for _, c := range changes {
		w.make(c)
	}
	for _, s := range append([]*simulated{w.meta}, w.shards...) {
		if w.rand.IntN(3) > 0 && w.own(s) {
			busy = true
		} else if able(w, &s.Shard) && s.Shard.changing() {
			busy = true
		}
	}
	return busy
}

func (w *world) find(id uint64) *simulated {
	for _, s := range append([]*simulated{w.meta}, w.shards...) {
		if s.Shard.ID == id {
			return s
		}
	}
	w.t.Fatalf("a change of shard %d, which does not exist", id)
	return nil
}

// make makes a change and checks it.
func (w *world) make(c Change) {
	s := w.find(c.Shard)
	before := slices.Clone(s.Shard.Replicas)
	s.Shard.Apply(c)
	nodes := map[uint64]bool{}
	wished, good, up := 0, 0, 0
	for _, r := range s.Shard.Replicas {
		if nodes[r.Node] {
			w.t.Fatalf("shard %d has two replicas on node %d: %+v", c.Shard, r.Node, s.Shard.Replicas)
		}
		nodes[r.Node] = true
		if n := w.node(r.Node); r.Want == Voter {
			wished++
			if n.State == Active && !n.Dead {
				good++
			}
			if n.Up {
				up++
			}
		}
	}
	goal, usable, active := s.Replication, 0, 0
	for _, n := range w.nodes {
		if n.State == Active {
			active++
			if !n.Dead {
				usable++
			}
		}
	}
	if s == w.meta {
		goal = MetaVoters(active)
	}
	for _, r := range before {
		now := s.Shard.Replicas[s.Shard.on(r.Node)]
		if r.Want == Gone && now.Want != Gone && r.Have != Voter {
			w.t.Fatalf("shard %d: a replica comes back: %+v", c.Shard, now)
		}
		if r.Want != Voter || now.Want == Voter || r.Have != Voter {
			continue
		}
		if n := w.node(r.Node); good < min(goal, usable) || good == 0 || n.State == Active && good < goal || n.Up && 2*up <= wished {
			w.t.Fatalf("shard %d: %+v goes, and %d well placed of %d remain, %d up; %d are wanted: %+v", c.Shard, r, good, wished, up, goal, s.Shard.Replicas)
		}
	}
	if p := s.Shard.on(s.Shard.Prefer); c.Prefer != 0 && (p < 0 || s.Shard.Replicas[p].Have != Voter || s.Shard.Replicas[p].Want != Voter) {
		w.t.Fatalf("shard %d should be owned by node %d: %+v", c.Shard, c.Prefer, s.Shard.Replicas)
	}
}

func able(w *world, s *Shard) bool {
	up, all := 0, 0
	for _, r := range s.Replicas {
		if r.Have == Voter {
			all++
			if w.node(r.Node).Up {
				up++
			}
		}
	}
	return 2*up > all
}

// inFlight counts the shards that change, and the replicas that nodes receive.
func (w *world) inFlight(changes []Change) (shards int, receiving map[uint64]int) {
	receiving = map[uint64]int{}
	for _, t := range w.targets() {
		s := t.Shard
		isAble := able(w, &s)
		s.Replicas = slices.Clone(s.Replicas)
		for _, c := range changes {
			if c.Shard == s.ID {
				s.Apply(c)
			}
		}
		if isAble && s.changing() {
			shards++
		}
		for _, r := range s.Replicas {
			if isAble && r.Want == Voter && r.Have != Voter {
				receiving[r.Node]++
			}
		}
	}
	return shards, receiving
}

func (w *world) checkLimits(changes []Change) {
	w.t.Helper()
	before, was := w.inFlight(nil)
	after, is := w.inFlight(changes)
	if after > max(before, w.limits.Shards) {
		w.t.Fatalf("%d shards are changed at once", after)
	}
	for node, n := range is {
		if n > max(was[node], w.limits.Receiving) {
			w.t.Fatalf("node %d is to receive %d replicas at once", node, n)
		}
	}
	preferred := 0
	for _, c := range changes {
		if c.Prefer != 0 && c.Shard != 1 {
			preferred++
		}
	}
	if preferred > w.limits.Preferred {
		w.t.Fatalf("%d preferred owners change at once", preferred)
	}
}

// own does what a shard's owner does, if there can be one.
func (w *world) own(s *simulated) bool {
	var active, caughtUp []uint64
	for _, r := range s.Shard.Replicas {
		if w.node(r.Node).Up {
			active = append(active, r.Raft)
			if slices.Contains(s.conf.Learners, r.Raft) && w.rand.IntN(2) == 0 {
				caughtUp = append(caughtUp, r.Raft)
			}
		}
	}
	if !majority(s.conf.Voters, active) {
		return false
	}
	steps := NextConf(&s.Shard, Owner{Conf: s.conf, CaughtUp: caughtUp, Active: active})
	for _, step := range steps {
		out := func(id uint64) bool { return id == step.Raft }
		in := slices.ContainsFunc(s.conf.Voters, out) || slices.ContainsFunc(s.conf.Learners, out)
		if s.used[step.Raft] && !in {
			w.t.Fatalf("shard %d: Raft id %d comes back", s.Shard.ID, step.Raft)
		}
		if step.Role == Voter && !slices.Contains(caughtUp, step.Raft) {
			w.t.Fatalf("shard %d: %d votes, and has not caught up", s.Shard.ID, step.Raft)
		}
		s.used[step.Raft] = true
		s.conf.Voters = slices.DeleteFunc(slices.Clone(s.conf.Voters), out)
		s.conf.Learners = slices.DeleteFunc(slices.Clone(s.conf.Learners), out)
		switch step.Role {
		case Voter:
			s.conf.Voters = append(s.conf.Voters, step.Raft)
		case Learner:
			s.conf.Learners = append(s.conf.Learners, step.Raft)
		}
	}
	if !majority(s.conf.Voters, active) {
		w.t.Fatalf("shard %d cannot go on: %+v", s.Shard.ID, s.conf)
	}
	now, news := Report(s.Shard, s.conf)
	s.Shard = now
	return news || len(steps) > 0
}

// settle runs until there is nothing left to do.
func (w *world) settle() {
	w.t.Helper()
	quiet := 0
	for range 3000 {
		if w.step() {
			quiet = 0
		} else if quiet++; quiet == 10 {
			return
		}
	}
	w.t.Fatalf("it does not come to an end: %+v", Plan(w.input()))
}
