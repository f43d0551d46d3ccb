package placement

import (
	"cmp"
	"slices"

	"github.com/felix-go/felix"
)

// Input is all that Plan looks at.
type Input struct {
	Nodes  []Node // that are not removed
	Meta   Shard  // the metadata's: every node has a replica, some of them vote
	Shards []Target
	Limits Limits
}

// Target is a shard and how many voters it is meant to have.
type Target struct {
	Shard       Shard
	Replication int
}

// Limits bound what happens at the same time, since it costs what serves
// requests too. The metadata's shard is exempt: nothing may keep a node from
// joining, which may be what the others wait for.
type Limits struct {
	Shards    int // whose replicas change
	Receiving int // replicas of a node that are being filled
	Preferred int // preferred owners that change, in one plan
}

// MetaVoters is how many replicas of the metadata's shard vote, with that many
// nodes that are to stay.
func MetaVoters(nodes int) int {
	switch {
	case nodes <= 3:
		return nodes
	case nodes == 4:
		return 3 // a fourth vote helps against nothing that three do not
	}
	return 5
}

// Holds says whether anything of the shards is on the node, on its way from it
// included.
func Holds(shards []Target, node uint64) bool {
	return slices.ContainsFunc(shards, func(t Target) bool { return t.Shard.on(node) >= 0 })
}

// Plan is what should be changed now, in the order of shards, the metadata's
// first. Made one after another, or only some of them, while the owners follow,
// its plans come to an end: in the last there is nothing.
func Plan(in Input) []Change {
	p := newPlanner(in)
	meta := in.Meta
	m := &entry{shard: &meta, was: in.Meta.Prefer, meta: true, target: MetaVoters(p.active)}
	p.learners(m)
	p.repair(m)
	p.prefer(m)
	// Those first that lack most.
	for _, e := range slices.SortedStableFunc(slices.Values(p.entries), func(a, b *entry) int {
		return cmp.Compare(p.reachable(a.shard)-a.target, p.reachable(b.shard)-b.target)
	}) {
		p.repair(e)
	}
	for p.evenReplicas() {
	}
	for _, e := range p.entries {
		p.prefer(e)
	}
	for p.evenOwners() {
	}
	var changes []Change
	for _, e := range append([]*entry{m}, p.entries...) {
		c := Change{Shard: e.shard.ID, Wants: e.wants}
		if e.shard.Prefer != e.was {
			c.Prefer = e.shard.Prefer
		}
		if c.Prefer != 0 || len(c.Wants) > 0 {
			changes = append(changes, c)
		}
	}
	return changes
}

// planner is a plan in the making.
type planner struct {
	nodes          []Node // by id
	active, usable int    // how many are to stay; and are there
	entries        []*entry
	load           Load
	receiving      map[uint64]int // by node
	limits         Limits         // what is left of them
	holds          map[uint64]bool
}

// entry is a shard as it will be after the plan so far.
type entry struct {
	shard  *Shard
	was    uint64 // preferred
	target int
	meta   bool
	wants  []Want
}

func newPlanner(in Input) *planner {
	p := &planner{nodes: sorted(in.Nodes), load: Load{}, receiving: map[uint64]int{}, limits: in.Limits, holds: map[uint64]bool{}}
	for _, n := range p.nodes {
		if n.State == Active {
			p.active++
		}
		if n.good() {
			p.usable++
		}
	}
	for _, t := range in.Shards {
		s := t.Shard
		p.entries = append(p.entries, &entry{shard: &s, was: s.Prefer, target: t.Replication})
		p.load.addShard(&s)
		// A shard that stands still would keep its place for ever.
		if p.able(&s) && s.changing() {
			p.limits.Shards--
		}
		for _, r := range s.Replicas {
			p.holds[r.Node] = true
			if r.Want == Voter && r.Have != Voter && p.able(&s) {
				p.receiving[r.Node]++
			}
		}
	}
	slices.SortStableFunc(p.entries, func(a, b *entry) int { return cmp.Compare(a.shard.ID, b.shard.ID) })
	return p
}

// node is the node with an id. One that is unknown has been removed.
func (p *planner) node(id uint64) Node {
	i, ok := slices.BinarySearchFunc(p.nodes, id, func(n Node, id uint64) int { return cmp.Compare(n.ID, id) })
	if !ok {
		return Node{ID: id, State: Removing, Dead: true}
	}
	return p.nodes[i]
}

// able says whether the shard can change its configuration at all: most of its
// voters can be reached.
func (p *planner) able(s *Shard) bool {
	up, all := 0, 0
	for _, r := range s.Replicas {
		if r.Have == Voter {
			all++
			if p.node(r.Node).reachable() {
				up++
			}
		}
	}
	return 2*up > all
}

// reachable is how many voters that the shard shall have can be reached.
func (p *planner) reachable(s *Shard) (n int) {
	for _, r := range s.Replicas {
		if r.Want == Voter && p.node(r.Node).reachable() {
			n++
		}
	}
	return n
}

// mayChange says whether replicas of the shard may be changed now.
func (p *planner) mayChange(e *entry) bool {
	return p.able(e.shard) && (e.meta || e.shard.changing() || p.limits.Shards > 0)
}

// want changes what the replica on a node shall be.
func (p *planner) want(e *entry, node uint64, role Role) {
	if !e.meta && !e.shard.changing() {
		p.limits.Shards--
	}
	w := Want{node, role}
	e.wants = append(e.wants, w)
	e.shard.Apply(Change{Wants: []Want{w}})
	switch {
	case e.meta:
	case role == Voter:
		p.load.add(node, 1, 0)
		if e.shard.Replicas[e.shard.on(node)].Have != Voter {
			p.receiving[node]++
		}
	case role == Gone:
		p.load.add(node, -1, 0)
	}
}

// learners gives every node the metadata, and takes it from those that are to be
// removed when they need it no more to find out what else they have to drop.
func (p *planner) learners(e *entry) {
	if !p.able(e.shard) {
		return
	}
	for _, n := range p.nodes {
		if n.State != Removing && e.shard.on(n.ID) < 0 {
			p.want(e, n.ID, Learner)
		}
	}
	for _, r := range slices.Clone(e.shard.Replicas) {
		if r.Want == Learner && p.without(e, r.Node) == Gone {
			p.want(e, r.Node, Gone)
		}
	}
}

// without is what a replica becomes that shall not vote any more.
func (p *planner) without(e *entry, node uint64) Role {
	if e.meta && (p.node(node).State != Removing || p.holds[node]) {
		return Learner
	}
	return Gone
}

// repair gives a shard the voters that it lacks, and then takes away those that
// are too many or not well placed.
func (p *planner) repair(e *entry) {
	if p.usable == 0 || !p.mayChange(e) {
		return
	}
	goal := min(e.target, p.usable)
	for p.good(e.shard) < goal {
		to, ok := p.candidate(e)
		if !ok {
			break
		}
		p.want(e, to.ID, Voter)
	}
	for _, r := range p.worstFirst(e.shard) {
		if p.mayGo(e, r, goal) {
			p.want(e, r.Node, p.without(e, r.Node))
		}
	}
}

// good is how many voters the shard shall have that are well placed.
func (p *planner) good(s *Shard) (n int) {
	for _, r := range s.Replicas {
		if r.Want == Voter && p.node(r.Node).good() {
			n++
		}
	}
	return n
}

// candidate is the node that gets the next voter of a shard: of the metadata,
// one that has it already; of another, rather than a new one, one that has
// everything and was to go when somebody else was to come.
func (p *planner) candidate(e *entry) (best Node, found bool) {
	for _, n := range p.nodes {
		i := e.shard.on(n.ID)
		switch {
		case !n.good() || !n.reachable():
			continue
		case e.meta && (i < 0 || e.shard.Replicas[i].Want != Learner || e.shard.Replicas[i].Have == None):
			continue
		case !e.meta && i >= 0 && e.shard.Replicas[i].Want == Gone && e.shard.Replicas[i].Have == Voter:
			return n, true
		case !e.meta && (i >= 0 || p.load[n.ID].Replicas >= felix.MaxShards || p.receiving[n.ID] >= p.limits.Receiving):
			continue
		}
		if !found || p.load[n.ID].Replicas < p.load[best.ID].Replicas {
			best, found = n, true
		}
	}
	return best, found
}

// worstFirst are the voters that the shard shall have, those first that it can
// do best without.
func (p *planner) worstFirst(s *Shard) []Replica {
	voters := slices.DeleteFunc(slices.Clone(s.Replicas), func(r Replica) bool { return r.Want != Voter })
	rank := func(r Replica) int {
		n := p.node(r.Node)
		rank := 0
		for i, yes := range []bool{r.Node == s.Prefer, r.Have == Voter, n.reachable(), !n.Dead, n.State == Active} {
			if yes {
				rank += 1 << i
			}
		}
		return rank
	}
	slices.SortFunc(voters, func(a, b Replica) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(p.load[b.Node].Replicas, p.load[a.Node].Replicas), cmp.Compare(b.Node, a.Node))
	})
	return voters
}

// thirdVote says whether the metadata would have only two votes without a node
// that stays a member. Then it keeps its own: two help no more than one.
func (p *planner) thirdVote(e *entry, n Node) bool {
	votes := 0
	for _, r := range e.shard.Replicas {
		if r.Want == Voter {
			votes++
		}
	}
	return e.meta && n.State == Draining && n.reachable() && p.good(e.shard) == 2 && votes == 3
}

// mayGo says whether the shard needs a voter no more, goal being how many well
// placed ones it can have now.
func (p *planner) mayGo(e *entry, r Replica, goal int) bool {
	n, good := p.node(r.Node), p.good(e.shard)
	switch {
	case n.State != Active:
		if n.reachable() { // it can wait for those that are away
			goal = min(e.target, p.active)
		}
		if good < goal || p.thirdVote(e, n) {
			return false
		}
	case n.Dead:
		// Where nobody can take its place it may as well come back. One that
		// never voted only stands in the way.
		if good < e.target && r.Have == Voter {
			return false
		}
	case good <= e.target:
		return false
	}
	rest, up := -1, p.reachable(e.shard)
	for _, other := range e.shard.Replicas {
		if other.Want == Voter {
			rest++
		}
	}
	if n.reachable() {
		up--
		return 2*up > rest // those that remain must be able to go on
	}
	return rest > 0
}
