package broker

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/raft/v3/raftpb"

	"github.com/felix-go/felix/internal/peer"
	"github.com/felix-go/felix/internal/peer/peerv1"
)

// equality is the goroutine that compares the replicas on this broker with those
// on others, which have applied the same log and must have the same state. Their
// chains are compared (store.ChainPoint) whenever they have moved, and now and
// then the hashes of their states (statehashes).
//
// It is the owner of a shard that asks. Whoever finds something odd in a question
// asks the others itself: a broker stops for what it was told in answers to its own
// questions, never because somebody says so.
type equality struct {
	b      *Broker
	states stateHashes
	stats  equalityStats

	// The goroutine's own:
	watched map[uint64]*watched // by shard
	scan    scan

	mu       sync.Mutex
	suspects map[uint64]bool // shards of which a question has told something odd
	differ   map[mismatch]judgement
}

// watched is a replica that was compared.
type watched struct {
	replica *replica
	index   uint64 // as of which
	// others are the Raft ids that it is to be compared with; with are those that
	// had the same, and since when they were reached: one that comes back is
	// compared again.
	others   []uint64
	with     map[uint64]time.Duration
	last     uint64        // the end of its log, when it was looked at
	at       time.Duration // then
	hashNext time.Duration // when its state shall be hashed next
}

// mismatch is what is known to differ.
type mismatch struct {
	shard uint64
	what  hashKind
}

// hashKind is what was hashed.
type hashKind string

const (
	chainHash hashKind = "log" // what was applied of it
	stateHash hashKind = "state"
)

// equalityStats are counters for Stats.
type equalityStats struct{ compared, hashed, differing atomic.Uint64 }

const (
	// compareTicks is in how many parts CompareEvery is divided: suspicions are
	// looked at in each.
	compareTicks = 5
	// compareTimeout bounds a question.
	compareTimeout = 2 * time.Second
)

func newEquality(b *Broker) *equality {
	e := &equality{b: b, watched: map[uint64]*watched{}, suspects: map[uint64]bool{}, differ: map[mismatch]judgement{}}
	e.states.shards = map[uint64]*shardHashes{}
	return e
}

func (e *equality) run(ctx context.Context) {
	ticker := time.NewTicker(max(e.b.opts.CompareEvery/compareTicks, time.Millisecond))
	defer ticker.Stop()
	for ticks := 1; ; ticks++ {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		suspects := e.takeSuspects()
		if ticks%compareTicks != 0 && len(suspects) == 0 {
			continue
		}
		e.round(ctx, suspects, ticks%compareTicks == 0)
	}
}

// suspect has the broker ask others about a shard.
func (e *equality) suspect(shard uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.suspects[shard] = true
}

func (e *equality) takeSuspects() map[uint64]bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	taken := e.suspects
	e.suspects = map[uint64]bool{}
	return taken
}

// comparison is one replica and what others say of theirs.
type comparison struct {
	replica *replica
	conf    *raftpb.ConfState
	mine    *peerv1.ReplicaHashes
	answers map[uint64]*peerv1.ReplicaHashes // by Raft id
}

// round compares the replicas that are to be compared: those of suspects and,
// unless only suspicions are looked at, those that lead and have moved.
func (e *equality) round(ctx context.Context, suspects map[uint64]bool, all bool) {
	up := e.reached()
	var replicas []*replica
	if all {
		replicas = e.moved(up)
	}
	for id := range suspects {
		if r := e.b.replicaOf(id); r != nil && !slices.Contains(replicas, r) {
			replicas = append(replicas, r)
		}
	}
	if all {
		replicas = e.planScan(replicas)
	}
	if len(replicas) == 0 {
		return
	}
	comparisons := e.look(replicas)
	e.ask(ctx, comparisons, up)
	if ctx.Err() != nil {
		return // who is stopping is not answered
	}
	for _, c := range comparisons {
		e.judge(c, up)
	}
	if all {
		e.endScan(comparisons)
	}
}

// reached are the other nodes, by when the link to them came up.
func (e *equality) reached() map[uint64]time.Duration {
	up := map[uint64]time.Duration{}
	for _, l := range e.b.net.Links() {
		if l.Up {
			up[l.Node] = l.Since
		}
	}
	return up
}

// moved are the replicas that lead their shards and were not compared with all
// others as they are.
func (e *equality) moved(up map[uint64]time.Duration) (moved []*replica) {
	b := e.b
	led := map[uint64]*watched{}
	b.mu.RLock()
	defer b.mu.RUnlock()
	for id, r := range b.replicas {
		if r.lead.Load() != b.node || len(*r.nodes.Load()) < 2 {
			continue
		}
		w := e.watched[id]
		if w == nil || w.replica != r {
			w = &watched{replica: r, at: b.mono(), hashNext: b.mono() + firstHash(id, b.opts.HashStatesEvery)}
		}
		led[id] = w
		if w.index != r.applied.Load() || !w.compared(up) {
			moved = append(moved, r)
		}
	}
	e.watched = led
	return moved
}

// compared says whether the replica was compared with all others that are reached.
func (w *watched) compared(up map[uint64]time.Duration) bool {
	for _, raftID := range w.others {
		since, is := up[w.replica.nodeOf(raftID)]
		if before, was := w.with[raftID]; is && (!was || before != since) {
			return false
		}
	}
	return true
}

// look sees by what the replicas are to be compared.
func (e *equality) look(replicas []*replica) []*comparison {
	var all []*comparison
	e.b.onWorkers(replicas, func(r *replica) {
		c := &comparison{replica: r, conf: r.shard.Status().Conf, mine: r.hashes(), answers: map[uint64]*peerv1.ReplicaHashes{}}
		for _, p := range r.shard.Table().ChainPoints() {
			c.mine.Chain = append(c.mine.Chain, &peerv1.HashPoint{Index: p.Index, Hash: p.Sum})
		}
		if at := e.scan.of(r.id); at != 0 {
			c.mine.HashStateAt = at
		}
		all = append(all, c)
	})
	for _, c := range all {
		c.mine.States = e.states.of(c.replica.id)
	}
	return all
}

// hashes is what is told of a replica, without the hashes. It runs on the worker.
func (r *replica) hashes() *peerv1.ReplicaHashes {
	return &peerv1.ReplicaHashes{Shard: r.id, RaftId: r.raftID, ChainBase: r.shard.Table().Applied().Chain.Base}
}

// ask gathers what the other brokers that are reached say of their replicas.
func (e *equality) ask(ctx context.Context, comparisons []*comparison, up map[uint64]time.Duration) {
	byNode := map[uint64][]*comparison{}
	for _, c := range comparisons {
		for _, raftID := range c.others() {
			node := c.replica.nodeOf(raftID)
			if _, is := up[node]; is {
				byNode[node] = append(byNode[node], c)
			}
		}
	}
	ctx, cancel := context.WithTimeout(ctx, compareTimeout)
	defer cancel()
	var asking sync.WaitGroup
	var mu sync.Mutex
	for node, all := range byNode {
		asking.Go(func() {
			for some := range slices.Chunk(all, peer.MaxCompared) {
				answers, err := e.askNode(ctx, node, some)
				if err != nil {
					e.b.opts.Logger.Debug("a broker does not compare replicas", "node", node, "err", err)
					return
				}
				mu.Lock()
				for _, c := range some {
					c.take(node, answers)
				}
				mu.Unlock()
			}
		})
	}
	asking.Wait()
}

func (e *equality) askNode(ctx context.Context, node uint64, some []*comparison) (map[uint64]*peerv1.ReplicaHashes, error) {
	var questions []*peerv1.ReplicaHashes
	for _, c := range some {
		questions = append(questions, c.mine)
	}
	answers, err := e.b.net.Compare(ctx, node, questions)
	byShard := map[uint64]*peerv1.ReplicaHashes{}
	for _, a := range answers {
		byShard[a.GetShard()] = a
	}
	return byShard, err
}

// others are the shard's other replicas, by Raft id.
func (c *comparison) others() []uint64 {
	all := slices.Concat(c.conf.GetVoters(), c.conf.GetVotersOutgoing(), c.conf.GetLearners())
	slices.Sort(all)
	return slices.DeleteFunc(slices.Compact(all), func(id uint64) bool { return id == c.replica.raftID })
}

// take takes in the answer of a node, if it is of the replica that is there.
func (c *comparison) take(node uint64, answers map[uint64]*peerv1.ReplicaHashes) {
	if a := answers[c.replica.id]; a != nil && a.GetRaftId() != c.replica.raftID && c.replica.nodeOf(a.GetRaftId()) == node {
		c.answers[a.GetRaftId()] = a
	}
}

// judge compares a replica with the others, and does what follows.
func (e *equality) judge(c *comparison, up map[uint64]time.Duration) {
	if e.adopt(c) {
		return // compared the next time
	}
	e.stats.compared.Add(uint64(len(c.answers)))
	for what, points := range map[hashKind][]*peerv1.HashPoint{chainHash: c.mine.Chain, stateHash: c.mine.States} {
		worst := judgement{}
		whole := false
		for _, p := range points {
			values := c.values(what, p)
			if j := judged(c.conf, c.replica.raftID, values); j.verdict > worst.verdict {
				worst = j
				worst.index = p.GetIndex()
			}
			whole = whole || len(values) == 1+len(c.others())
		}
		e.conclude(c, what, worst, whole)
	}
	if w := e.watched[c.replica.id]; w != nil && w.replica == c.replica {
		w.took(c, up)
	}
}

// values are what is known of a hash, by Raft id.
func (c *comparison) values(what hashKind, p *peerv1.HashPoint) map[uint64]uint64 {
	values := map[uint64]uint64{c.replica.raftID: p.GetHash()}
	for raftID, a := range c.answers {
		points := a.GetStates()
		if what == chainHash {
			if points = a.GetChain(); a.GetChainBase() != c.mine.GetChainBase() {
				continue
			}
		}
		if hash, is := hashAt(points, p.GetIndex()); is {
			values[raftID] = hash
		}
	}
	return values
}

func hashAt(points []*peerv1.HashPoint, index uint64) (hash uint64, is bool) {
	i := slices.IndexFunc(points, func(p *peerv1.HashPoint) bool { return p.GetIndex() == index })
	if i < 0 {
		return 0, false
	}
	return points[i].GetHash(), true
}

// took notes who has the same as the replica as of its last entry.
func (w *watched) took(c *comparison, up map[uint64]time.Duration) {
	p := c.mine.Chain[0]
	if w.index != p.GetIndex() || w.with == nil {
		w.index, w.with = p.GetIndex(), map[uint64]time.Duration{}
	}
	w.others = c.others()
	for raftID, hash := range c.values(chainHash, p) {
		if hash == p.GetHash() {
			w.with[raftID] = up[c.replica.nodeOf(raftID)]
		}
	}
}

// verdict is what the hashes of a shard's replicas say, the worst last.
type verdict uint8

const (
	verdictSame      verdict = iota
	verdictOther             // most have what this replica has, and some do not
	verdictUndecided         // there are several, and none that most voters have
	verdictOwn               // this replica has another one than most
)

// judgement is a verdict on hashes that have to be the same.
type judgement struct {
	verdict verdict
	index   uint64
	others  []uint64 // Raft ids of those that do not have what this replica has
}

// judged judges hashes by Raft id, that of self among them. Only a majority of
// the voters of the configuration decides, of a joint one of both.
func judged(conf *raftpb.ConfState, self uint64, values map[uint64]uint64) judgement {
	j := judgement{}
	for raftID, value := range values {
		if value != values[self] {
			j.others = append(j.others, raftID)
		}
	}
	if len(j.others) == 0 {
		return j
	}
	slices.Sort(j.others)
	j.verdict = verdictUndecided
	for _, raftID := range slices.Sorted(maps.Keys(values)) {
		value := values[raftID]
		has := func(id uint64) bool { v, is := values[id]; return is && v == value }
		if !most(conf.GetVoters(), has) || len(conf.GetVotersOutgoing()) > 0 && !most(conf.GetVotersOutgoing(), has) {
			continue
		}
		if j.verdict = verdictOwn; value == values[self] {
			j.verdict = verdictOther
		}
		break
	}
	return j
}

// advice is what is to be known of a judgement that this replica is not wrong.
func (j *judgement) advice() string {
	if j.verdict == verdictOther {
		return "most have what this one has, and those that do not have to end"
	}
	return "no majority is known to be right"
}

func most(voters []uint64, has func(uint64) bool) bool {
	n := 0
	for _, id := range voters {
		if has(id) {
			n++
		}
	}
	return 2*n > len(voters)
}

// conclude acts upon a judgement. whole says that all replicas were compared.
func (e *equality) conclude(c *comparison, what hashKind, j judgement, whole bool) {
	r := c.replica
	if j.verdict == verdictOwn {
		e.distrust(fmt.Sprintf("shard %d: the replica here is not what most others are: its %s differs at entry %d; "+
			"what it has cannot be trusted: run `felixctl node rm %d`, empty the directory and join under a new id",
			r.id, what, j.index, e.b.node))
		return
	}
	key := mismatch{r.id, what}
	e.mu.Lock()
	defer e.mu.Unlock()
	before, known := e.differ[key]
	switch {
	case j.verdict != verdictSame:
		e.differ[key] = j
		if j.verdict != before.verdict || !slices.Equal(j.others, before.others) {
			e.b.opts.Logger.Error("the replicas of a shard differ: "+j.advice(), "shard", r.id, "what", string(what), "entry", j.index, "replicas", j.others)
		}
	case known && whole:
		delete(e.differ, key)
		e.b.opts.Logger.Warn("the replicas of a shard are the same again", "shard", r.id, "what", string(what))
	}
	e.stats.differing.Store(uint64(len(e.differ)))
}

// differing are the replicas of a shard, by Raft id, that are known to differ from
// this broker's.
func (e *equality) differing(shard uint64) (others []uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for key, j := range e.differ {
		if key.shard == shard {
			others = append(others, j.others...)
		}
	}
	slices.Sort(others)
	return slices.Compact(others)
}

// distrust ends the process, and sees to it that it is not started again on what
// it has: it could be elected before it is found out once more.
func (e *equality) distrust(why string) {
	err := e.b.dir.change(func(id *identity) error { id.Distrusted = why; return nil })
	if err != nil {
		e.b.opts.Logger.Error("that the directory cannot be trusted could not be noted", "err", err)
	}
	e.b.opts.Fatal(errors.New(why))
}

// adopt makes up for a chain of which others know an earlier begin, and says
// whether it has. Where these contradict each other it does nothing.
func (e *equality) adopt(c *comparison) (adopted bool) {
	base := c.mine.GetChainBase()
	for _, a := range c.answers {
		if b := a.GetChainBase(); b != 0 && b < base && len(a.GetChain()) > 0 {
			base = b
		}
	}
	if base == c.mine.GetChainBase() {
		return false
	}
	for _, mine := range c.mine.Chain {
		point, known, doubtful := mine.GetIndex(), false, false
		sum := uint64(0)
		for _, a := range c.answers {
			if hash, is := hashAt(a.GetChain(), point); is && a.GetChainBase() == base {
				doubtful = doubtful || known && hash != sum
				known, sum = true, hash
			}
		}
		if known && !doubtful && e.adoptAt(c.replica, base, point, sum) {
			return true
		}
	}
	return false
}
