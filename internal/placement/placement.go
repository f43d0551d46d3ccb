// Package placement decides which broker has which replica of which shard, and
// how a shard's Raft configuration comes nearer to that. It is pure: what it
// answers depends on nothing but what it is told: no clock, no order of a map.
package placement

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/felix-go/felix"
)

// Role is what a replica is in its shard.
type Role string

// The roles of a replica. None is one that its shard's configuration lacks yet,
// Gone one that it shall lack.
const (
	None    Role = ""
	Learner Role = "learner"
	Voter   Role = "voter"
	Gone    Role = "gone"
)

// Replica is a replica of a shard: what it shall be, and what the shard's owner
// last said that it is.
type Replica struct {
	Raft uint64 `json:"raft"`
	Node uint64 `json:"node"`
	Want Role   `json:"want"`           // Voter, Gone, or in the metadata's shard Learner
	Have Role   `json:"have,omitempty"` // Voter, Learner or None
}

// Shard is the placement of a shard. A node has at most one of its replicas.
type Shard struct {
	ID       uint64    `json:"id"`
	NextRaft uint64    `json:"next_raft"`         // Raft ids are minted here, and never used again
	Initial  []uint64  `json:"initial,omitempty"` // the Raft ids that it begins with, all voters
	Prefer   uint64    `json:"prefer"`            // the node that should own it
	Replicas []Replica `json:"replicas"`
	// Pinned says that an operator has placed it, or chosen its owner: it is not
	// changed only to make the shares of nodes even.
	Pinned bool `json:"pinned,omitempty"`
}

// Sole is the placement of a shard whose only replica is on a node.
func Sole(id, node uint64) Shard {
	return Shard{ID: id, NextRaft: 2, Initial: []uint64{1}, Prefer: node,
		Replicas: []Replica{{Raft: 1, Node: node, Want: Voter, Have: Voter}}}
}

// ReplicaOn is the Raft id of the shard's replica on a node that shall have one,
// or 0.
func (s *Shard) ReplicaOn(node uint64) uint64 {
	for _, r := range s.Replicas {
		if r.Node == node && r.Want != Gone {
			return r.Raft
		}
	}
	return 0
}

// Check says what cannot be in a placement.
func (s *Shard) Check() error {
	if s.ID == 0 || len(s.Replicas) == 0 || s.Prefer == 0 {
		return fmt.Errorf("shard %d is nowhere", s.ID)
	}
	seen, on := map[uint64]bool{}, map[uint64]bool{}
	for _, r := range s.Replicas {
		stays := r.Want != Gone
		if r.Raft == 0 || r.Raft >= s.NextRaft || r.Node == 0 || seen[r.Raft] || stays && on[r.Node] {
			return fmt.Errorf("shard %d has a replica %d on node %d that it cannot have", s.ID, r.Raft, r.Node)
		}
		if !slices.Contains([]Role{Voter, Learner, Gone}, r.Want) || !slices.Contains([]Role{None, Voter, Learner}, r.Have) {
			return fmt.Errorf("shard %d wants its replica %d to be %q, it is %q", s.ID, r.Raft, r.Want, r.Have)
		}
		seen[r.Raft] = true
		on[r.Node] = on[r.Node] || stays
	}
	for _, raft := range s.Initial {
		if raft == 0 || raft >= s.NextRaft {
			return fmt.Errorf("shard %d began with a replica %d that was never made", s.ID, raft)
		}
	}
	return nil
}

// Change is what Plan wants of a shard. It is meant for the placement that Plan
// has seen and for no later one, but needs no other change to be made with it.
type Change struct {
	Shard  uint64
	Wants  []Want
	Prefer uint64 // 0 leaves it as it is
}

// Want is what the replica on a node shall be, which is a new one if there is
// none.
type Want struct {
	Node uint64
	Role Role
}

// Apply makes a change. Other copies of the shard stay as they are.
func (s *Shard) Apply(c Change) {
	s.Replicas = slices.Clone(s.Replicas)
	for _, w := range c.Wants {
		if i := s.on(w.Node); i >= 0 {
			s.Replicas[i].Want = w.Role
			continue
		}
		s.Replicas = append(s.Replicas, Replica{Raft: s.NextRaft, Node: w.Node, Want: w.Role})
		s.NextRaft++
	}
	if c.Prefer != 0 {
		s.Prefer, s.Pinned = c.Prefer, false
	}
}

// on is the index of the replica on a node, or -1.
func (s *Shard) on(node uint64) int {
	return slices.IndexFunc(s.Replicas, func(r Replica) bool { return r.Node == node })
}

// changing says whether the shard is not yet what it shall be.
func (s *Shard) changing() bool {
	return slices.ContainsFunc(s.Replicas, func(r Replica) bool { return r.Want != r.Have })
}

// State is what an operator wants of a node.
type State int

// The states of a node.
const (
	Active   State = iota
	Draining       // shall have no replicas but the metadata's
	Removing       // shall have none at all
)

// Node is a broker. One that was removed is none any more.
type Node struct {
	ID    uint64
	State State
	Up    bool // it can be reached
	Dead  bool // it could not be for so long that others take its place
}

// good says whether replicas are well placed on the node. One that is away for
// a moment is: it will be back.
func (n Node) good() bool { return n.State == Active && !n.Dead }

// reachable says whether the node can be given something now.
func (n Node) reachable() bool { return n.Up && !n.Dead }

// Load is what nodes have to do, by their ids.
type Load map[uint64]NodeLoad

// NodeLoad is what a node has to do.
type NodeLoad struct {
	Replicas  int // that it shall have
	Preferred int // that it should own
}

func (l Load) add(node uint64, replicas, preferred int) {
	n := l[node]
	l[node] = NodeLoad{n.Replicas + replicas, n.Preferred + preferred}
}

func (l Load) addShard(s *Shard) {
	for _, r := range s.Replicas {
		if r.Want != Gone {
			l.add(r.Node, 1, 0)
		}
	}
	l.add(s.Prefer, 0, 1)
}

// LoadOf is what nodes have to do for the shards. The metadata's is not meant to
// be among them: every node has it.
func LoadOf(shards []Shard) Load {
	l := Load{}
	for i := range shards {
		l.addShard(&shards[i])
	}
	return l
}

// Create places new shards evenly on the nodes. A shard gets as many replicas as
// there are nodes with room, should these be fewer than replication: whether
// that is enough is for the caller to say.
func Create(nodes []Node, load Load, shards []uint64, replication int) []Shard {
	load = maps.Clone(load)
	if load == nil {
		load = Load{}
	}
	all := make([]Shard, len(shards))
	p := planner{nodes: sorted(nodes), load: load, limits: Limits{Preferred: math.MaxInt}}
	for i, id := range shards {
		var fit []Node
		for _, n := range nodes {
			if n.good() && load[n.ID].Replicas < felix.MaxShards {
				fit = append(fit, n)
			}
		}
		// Its first replicas are voters at once, so better no node that is away.
		slices.SortFunc(fit, func(a, b Node) int {
			return cmp.Or(upFirst(a, b), cmp.Compare(load[a.ID].Replicas, load[b.ID].Replicas), cmp.Compare(a.ID, b.ID))
		})
		fit = fit[:min(len(fit), replication)]
		s := Shard{ID: id, NextRaft: 1}
		for _, n := range fit {
			s.Replicas = append(s.Replicas, Replica{Raft: s.NextRaft, Node: n.ID, Want: Voter, Have: Voter})
			s.Initial = append(s.Initial, s.NextRaft)
			s.NextRaft++
		}
		if len(fit) > 0 {
			s.Prefer = slices.MinFunc(fit, func(a, b Node) int {
				return cmp.Or(upFirst(a, b), cmp.Compare(load[a.ID].Preferred, load[b.ID].Preferred), cmp.Compare(a.ID, b.ID))
			}).ID
		}
		load.addShard(&s)
		all[i] = s
		p.entries = append(p.entries, &entry{shard: &all[i]})
	}
	for p.evenOwners() {
	}
	return all
}

func sorted(nodes []Node) []Node {
	return slices.SortedFunc(slices.Values(nodes), func(a, b Node) int { return cmp.Compare(a.ID, b.ID) })
}

func upFirst(a, b Node) int {
	switch {
	case a.Up == b.Up:
		return 0
	case a.Up:
		return -1
	}
	return 1
}
