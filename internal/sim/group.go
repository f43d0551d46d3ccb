package sim

import (
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"time"

	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/placement"
	"github.com/felix-go/felix/internal/record"
	"github.com/felix-go/felix/internal/shard"
)

// group is a shard with all its replicas, and its record in the metadata, which
// is one place here: every node sees the newest one where a broker would confirm
// its view, and elsewhere one that may be old.
type group struct {
	w           *world
	id          uint64
	consistency felix.Consistency
	place       placement.Shard
	replication int
	homes       []*node  // by Raft id - 1: where it is, or was
	owner       *replica // who owned it last, as far as anybody saw
	former      *replica // who did before
	led         uint64   // the newest term in which anybody led it
	clears      int      // how often it is to be cleared yet
	cleared     bool     // it is, at times, so there are no counters of sums
	// states are the hashes of the shard's state by applied index, with whose it
	// was first.
	states map[uint64]seenState
}

type seenState struct {
	hash uint64
	of   *replica
	text string // with Options.Trace
}

// newGroup makes a shard, which begins with its first replicas.
func (w *world) newGroup(place placement.Shard, consistency felix.Consistency) {
	g := &group{w: w, id: place.ID, consistency: consistency, states: map[uint64]seenState{}, place: place, replication: replication}
	if w.profile.clears && consistency == felix.Quorum {
		g.clears, g.cleared = 6, true
	}
	conf := &raftpb.ConfState{}
	for _, p := range place.Replicas {
		g.homes = append(g.homes, w.nodes[p.Node-1])
		conf.Voters = append(conf.Voters, p.Raft)
	}
	encoded, err := proto.Marshal(conf)
	w.must(err)
	first := &state{cells: map[string]record.Cell{}, applied: record.Applied{Index: 1, Term: 1, ConfState: encoded}}
	for raftID, n := range g.homes {
		r := n.newReplica(g, uint64(raftID)+1)
		r.db = first
		r.begin(first)
		r.open(0)
	}
	w.shards = append(w.shards, g)
}

// home is the node that has a replica, or had.
func (g *group) home(raftID uint64) *node { return g.homes[raftID-1] }

// compare compares a replica's checkpoint with those of others at the index.
func (g *group) compare(r *replica) {
	h := fnv.New64a()
	text := ""
	var counts record.Counts
	for _, key := range slices.Sorted(maps.Keys(r.db.cells)) {
		c := r.db.cells[key]
		line := fmt.Sprintf("%q: %+v\n", key, c)
		h.Write([]byte(line))
		if g.w.opts.Trace {
			text += line
		}
		counts.Add(record.CountChange(0, c.Has))
	}
	a := r.db.applied
	if a.Counts != counts {
		g.w.fail("shard %d: replica %d counts %+v at index %d, has %+v", g.id, r.raftID, a.Counts, a.Index, counts)
	}
	line := fmt.Sprintf("%+v", a)
	h.Write([]byte(line))
	g.w.note("shard %d: replica %d is at index %d, state %x", g.id, r.raftID, a.Index, h.Sum64())
	other, ok := g.states[a.Index]
	if !ok {
		g.states[a.Index] = seenState{h.Sum64(), r, text + line}
	} else if other.hash != h.Sum64() {
		g.w.fail("shard %d: at index %d replica %d has another state than replica %d:\n%s\n%s", g.id, a.Index, r.raftID, other.of.raftID, text+line, other.text)
	}
	g.w.count("states compared")
}

const (
	reconcileEvery = 100 * time.Millisecond
	// nearlyCaughtUp is how many entries a learner may lack that is to vote.
	nearlyCaughtUp = 1000
)

// seenOwned is what a node remembers of a shard that it owns, from one round to
// the next.
type seenOwned struct {
	commit uint64
	wish   placement.Shard // not the newest
}

// reconcile is what a broker does again and again about the replicas that it has
// and the shards that it owns, as internal/broker does it.
func (n *node) reconcile() {
	for _, g := range n.w.shards {
		r := n.replica(g)
		if r != nil && !slices.ContainsFunc(g.place.Replicas, func(p placement.Replica) bool { return p.Raft == r.raftID }) {
			r.drop()
			r = nil
		}
		if id := g.place.ReplicaOn(n.id); r == nil && id != 0 {
			n.w.note("shard %d: replica %d is made on node %d", g.id, id, n.id)
			n.newReplica(g, id).open(electionTicks)
		} else if r != nil && !r.stalled {
			r.stepConf()
			r.giveBack()
		}
	}
	n.after(reconcileEvery, n.reconcile)
}

// stepConf brings the configuration nearer to the placement, if this is the
// owner.
func (r *replica) stepConf() {
	n, g := r.node, r.group
	status := r.shard.Status()
	before := n.owned[g]
	if !status.Owns {
		delete(n.owned, g)
		return
	}
	wish := before.wish
	if wish.ID == 0 || n.w.one(2) {
		wish = g.place
	}
	n.owned[g] = seenOwned{status.Commit, g.place}
	if _, is := placement.Report(wish, confOf(status.Conf)); is {
		r.report(wish, status)
		return
	}
	knows := knowledge(r, &status, before.commit)
	steps := placement.NextConf(&wish, knows)
	if addsReplica(&wish, steps) {
		steps = placement.NextConf(&g.place, knows) // a confirmed view
	}
	if len(steps) == 0 {
		return
	}
	if r.shard.ChangeConf(confChange(steps)) == nil {
		n.w.note("shard %d: replica %d changes the configuration, %d steps, first of replica %d", g.id, r.raftID, uint64(len(steps)), steps[0].Raft)
		n.w.count("conf changes")
	}
	r.advance()
}

// knowledge is what an owner knows of its replicas.
func knowledge(r *replica, s *shard.Status, before uint64) placement.Owner {
	k := placement.Owner{Conf: confOf(s.Conf), Active: []uint64{r.raftID}}
	for _, p := range s.Progress {
		if !p.Active || p.RaftID == r.raftID {
			continue
		}
		k.Active = append(k.Active, p.RaftID)
		if p.Learner && p.Replicates && before > 0 && p.Match >= before && p.Match+nearlyCaughtUp > s.LastIndex {
			k.CaughtUp = append(k.CaughtUp, p.RaftID)
		}
	}
	return k
}

func confOf(c *raftpb.ConfState) placement.Conf {
	return placement.Conf{Voters: c.GetVoters(), Learners: c.GetLearners(), Joint: len(c.GetVotersOutgoing()) > 0}
}

func addsReplica(s *placement.Shard, steps []placement.Step) bool {
	return slices.ContainsFunc(steps, func(step placement.Step) bool {
		return slices.ContainsFunc(s.Replicas, func(r placement.Replica) bool { return r.Raft == step.Raft && r.Have == placement.None })
	})
}

func confChange(steps []placement.Step) *raftpb.ConfChangeV2 {
	types := map[placement.Role]raftpb.ConfChangeType{placement.Voter: raftpb.ConfChangeAddNode,
		placement.Learner: raftpb.ConfChangeAddLearnerNode, placement.Gone: raftpb.ConfChangeRemoveNode}
	change := &raftpb.ConfChangeV2{}
	for _, step := range steps {
		change.Changes = append(change.Changes, &raftpb.ConfChangeSingle{Type: types[step.Role].Enum(), NodeId: new(step.Raft)})
	}
	return change
}

// report writes what has been reached into the metadata, once a majority has
// confirmed that this still is the owner.
func (r *replica) report(wish placement.Shard, status shard.Status) {
	f := &fence{r: r, wish: wish, status: status}
	r.shard.Submit(&shard.Request{Kind: shard.Barrier, Deadline: r.node.time().Mono + time.Second, Tag: f})
	r.advance()
}

// fence is a Barrier of a report.
type fence struct {
	r      *replica
	wish   placement.Shard
	status shard.Status
}

func (f *fence) returned(*shard.Request) {}

func (f *fence) done(q *shard.Request) {
	r, g := f.r, f.r.group
	if q.Err != nil || r.shard == nil {
		return
	}
	now := r.shard.Status()
	if !now.Owns || now.Term != f.status.Term || !slices.Equal(f.wish.Replicas, g.place.Replicas) {
		return
	}
	if after, is := placement.Report(g.place, confOf(f.status.Conf)); is {
		g.place = after
		g.w.note("shard %d: replica %d reports %d replicas", g.id, r.raftID, uint64(len(after.Replicas)))
		g.w.count("conf reports")
	}
}
