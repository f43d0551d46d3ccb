package shard

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"go.etcd.io/raft/v3/raftpb"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/record"
)

// storm drives a cluster with clients through random failures. Every add of a
// key is another power of two, so that a sum tells which adds are in it.
type storm struct {
	*cluster
	rng     *rand.Rand
	step    int64
	clears  bool
	members bool // replicas come and go
	leases  bool
	woken   *replica // its process was paused, and it has heard nothing yet
	open    []*pending
	history []porcupine.Operation
	used    map[string]int // adds by key
	must    map[string]int64
	may     map[string]int64
	// versions are those of acknowledged adds: key, version, sum.
	versions map[string]map[uint64]int64
	told     int64 // the newest shard time that a client was told
	terms    map[uint64]span
	states   map[uint64]string
	stats    map[string]int
}

// pending is a request that a client waits for.
type pending struct {
	*call
	client int
	began  int64
	told   int64
}

// span are the times that the owner of a term told.
type span struct{ first, last int64 }

type input struct {
	key  string
	bit  int64 // 0 is a get
	done bool  // false: the outcome is unknown
}

// sums is the sequential counter.
var sums = porcupine.Model{
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		byKey := map[string][]porcupine.Operation{}
		for _, o := range history {
			byKey[o.Input.(input).key] = append(byKey[o.Input.(input).key], o)
		}
		return slices.Collect(maps.Values(byKey))
	},
	Init: func() any { return int64(0) },
	Step: func(state, in, out any) (bool, any) {
		i, sum := in.(input), state.(int64)+in.(input).bit
		return !i.done || out.(int64) == sum, sum
	},
	DescribeOperation: func(in, out any) string { return fmt.Sprintf("%+v: %v", in, out) },
}

func newStorm(t *testing.T, n int, consistency felix.Consistency, seed uint64) *storm {
	s := &storm{cluster: newCluster(t, n, consistency, seed), rng: rand.New(rand.NewPCG(seed, 7)), used: map[string]int{},
		must: map[string]int64{}, may: map[string]int64{}, versions: map[string]map[uint64]int64{},
		terms: map[uint64]span{}, states: map[uint64]string{}, stats: map[string]int{}}
	for _, r := range s.nodes {
		r.budget.MaxBytes = []int64{0, 1000, 1 << 30}[s.rng.IntN(3)]
		r.skew = s.rng.Int64N(4000) - 2000
	}
	if s.rng.IntN(2) == 0 {
		s.cfg.MaxEntryBytes, s.cfg.MaxInflightBytes = 100, 200
	}
	if s.rng.IntN(2) == 0 {
		s.cfg.MaxApplyBytes = 1 // an entry a step
	}
	s.members = s.rng.IntN(2) == 0
	if s.leases = s.rng.IntN(2) == 0; s.leases {
		// No replica ticks more often than every stormTick.
		s.cfg.Reads, s.cfg.LeaseFor, s.cfg.SilentTicks = Leases, (testElectionTicks-1)*stormTick, testElectionTicks
		s.pause = s.sleep
	}
	s.power = func(*replica, int) bool { return s.rng.IntN(8) == 0 }
	s.forward = s.sendOn
	for _, r := range s.nodes {
		r.start()
	}
	return s
}

// stormTick is how much time goes by between two ticks of any replicas.
const stormTick = 15 * time.Millisecond

// maxReplicas is how many there are at most, ever.
const maxReplicas = 9

// sleep pauses a replica's process between evaluation and Confirm, sometimes,
// while the others go on.
func (s *storm) sleep(r *replica) {
	s.stats["leased"]++
	if s.rng.IntN(4) > 0 || slices.ContainsFunc(s.nodes, func(r *replica) bool { return r.paused != nil }) {
		return
	}
	r.Shard, r.paused = nil, r.Shard
	for range s.rng.IntN(1500) {
		s.act()
	}
	r.Shard, r.paused, s.woken = r.paused, nil, r
}

// sendOn sends a request that came back to the leader that its replica knows of.
func (s *storm) sendOn(r *replica, q *Request) bool {
	to := s.nodes[r.lead-1]
	if to.Shard == nil || s.cut[to.id] || s.cut[r.id] || s.rng.IntN(2) == 0 {
		return false
	}
	if k := s.calls[q]; k != nil {
		k.on = to
	}
	to.Submit(q)
	s.stats["sent on"]++
	return true
}

// reconfigure changes the replicas: any change that leaves a voter.
func (s *storm) reconfigure(owner *replica) {
	conf := owner.Status().Conf
	voters, learners := conf.GetVoters(), conf.GetLearners()
	var cc *raftpb.ConfChangeV2
	switch n := s.rng.IntN(4); {
	case n == 0 && len(s.nodes) < maxReplicas:
		r := s.add()
		r.budget.MaxBytes = []int64{0, 1000, 1 << 30}[s.rng.IntN(3)]
		r.start()
		cc = learner(r.id)
	case n < 3 && len(learners) > 0:
		cc = change(int(learners[s.rng.IntN(len(learners))]))
		if len(voters) > 1 && s.rng.IntN(2) == 0 { // in its place
			cc.Changes = append(cc.Changes, change(-int(voters[s.rng.IntN(len(voters))])).GetChanges()...)
		}
	case len(voters) > 2:
		cc = change(-int(voters[s.rng.IntN(len(voters))]))
	default:
		return
	}
	if owner.ChangeConf(cc) == nil {
		s.stats["change"]++
	}
	owner.advance()
}

// request sends what a client wants next to some replica.
func (s *storm) request(client int) {
	first := s.rng.IntN(len(s.nodes))
	r := s.nodes[first]
	for i := range s.nodes { // one that takes itself for the owner; there may be two
		owner := s.nodes[(first+i)%len(s.nodes)]
		if owner.Shard != nil && owner.Owns() && s.rng.IntN(8) > 0 {
			r = owner
			break
		}
	}
	if r.Shard == nil {
		return
	}
	var ops []felix.Op
	for range 1 + s.rng.IntN(3) {
		key := fmt.Sprintf("k%d", s.rng.IntN(5))
		key = fmt.Sprintf("%s/%d", key, s.used[key]/50) // at most 50 adds and what goes beside them
		switch s.rng.IntN(5) {
		case 0, 1, 2:
			base := key[:2]
			ops = append(ops, add(key, 1<<(s.used[base]%50)))
			s.used[base]++
		case 3:
			ops = append(ops, get(key))
		case 4:
			ops = append(ops, addTimed("timed"))
		}
	}
	q := opsRequest(ops...)
	if s.clears && s.rng.IntN(10) == 0 {
		q = &Request{Kind: Clear}
	}
	s.submit(r, q, client)
}

func (s *storm) submit(r *replica, q *Request, client int) {
	q.Deadline = s.mono + time.Duration(1+s.rng.IntN(4000))*time.Millisecond
	s.open = append(s.open, &pending{call: r.submit(q), client: client, began: s.step, told: s.told})
	r.advance()
}

// readAll asks a replica that has just woken up for everything.
func (s *storm) readAll() {
	r := s.woken
	if s.woken = nil; r == nil || r.Shard == nil {
		return
	}
	for i, base := range slices.Sorted(maps.Keys(s.used)) {
		s.submit(r, opsRequest(get(fmt.Sprintf("%s/%d", base, s.used[base]/50))), 10+i)
	}
}

// collect takes the answers that have come.
func (s *storm) collect() {
	s.open = slices.DeleteFunc(s.open, func(p *pending) bool {
		if !p.done && !p.lost {
			return false
		}
		delete(s.calls, p.Request)
		for i := range p.Positions {
			s.answered(p, i)
		}
		return true
	})
}

func (s *storm) answered(p *pending, i int) {
	op, reply := &p.Batch.Ops[i], p.reply(i)
	if p.lost {
		reply = felix.Reply{Err: errUnknown}
	}
	in := input{key: string(op.Key), bit: op.Int, done: reply.Err == nil}
	switch {
	case reply.Err == nil:
		s.stats["ok"]++
		s.acknowledged(p, in, reply)
	case op.Kind == felix.Get || !reply.Err.MayBeApplied():
		s.stats[reply.Err.Code.String()]++
		return
	default:
		s.stats["unknown"]++
		s.may[in.key] |= in.bit
	}
	if in.key == "timed" {
		return
	}
	o := porcupine.Operation{ClientId: p.client*4 + i, Input: in, Call: p.began, Output: reply.Int, Return: s.step}
	if !in.done {
		o.Return = math.MaxInt64
	}
	s.history = append(s.history, o)
}

func (s *storm) acknowledged(p *pending, in input, reply felix.Reply) {
	if reply.NowMillis != 0 {
		s.timeTold(p, reply.NowMillis, reply.Version>>40)
	}
	if in.bit == 0 {
		return
	}
	s.must[in.key] |= in.bit
	seen := s.versions[in.key]
	if seen == nil {
		seen = map[uint64]int64{}
		s.versions[in.key] = seen
	}
	if sum, twice := seen[reply.Version]; twice {
		s.t.Fatalf("version %d of %s is of the sums %#x and %#x", reply.Version, in.key, sum, reply.Int)
	}
	seen[reply.Version] = reply.Int
}

// timeTold checks that time never goes back. An owner of a leader cache that
// does not know yet of its successor may tell a time that is over, but none that
// its successor has told or will tell.
func (s *storm) timeTold(p *pending, now int64, term uint64) {
	if s.cfg.Consistency == felix.Quorum && now < p.told {
		s.t.Fatalf("time went back from %d to %d", p.told-wallStart, now-wallStart)
	}
	s.told = max(s.told, now)
	this, ok := s.terms[term]
	if !ok {
		this = span{now, now}
	}
	this.first, this.last = min(this.first, now), max(this.last, now)
	s.terms[term] = this
	for other, span := range s.terms {
		if other < term && span.last > this.first || other > term && span.first < this.last {
			s.t.Fatalf("the owner of term %d tells %+v, that of %d %+v", term, this, other, span)
		}
	}
}

// checkpointed compares a replica's state with those of others at the index.
func (s *storm) checkpointed(r *replica) {
	r.checkpoint()
	state := ""
	for _, key := range slices.Sorted(maps.Keys(r.db)) {
		c := r.db[key]
		state += fmt.Sprintf("%s: %d, version %d, until %d\n", key, c.Sum, c.CounterVer, c.CounterExpiry)
	}
	a := r.dbApplied
	n := record.Counts{Counters: int64(len(r.db)), Keys: int64(len(r.db))}
	if a.Counts != n {
		s.t.Fatalf("replica %d counts %+v, has %d", r.id, a.Counts, len(r.db))
	}
	state += fmt.Sprintf("term %d, ceiling %d, version %d, configuration %x", a.Term, a.Ceiling, a.Version, a.ConfState)
	if other, ok := s.states[a.Index]; ok && other != state {
		s.t.Fatalf("at index %d replica %d has\n%s\nanother\n%s", a.Index, r.id, state, other)
	}
	s.states[a.Index] = state
}

// act does one thing at random.
func (s *storm) act() {
	r := s.nodes[s.rng.IntN(len(s.nodes))]
	up := r.Shard != nil
	s.step++
	switch n := s.rng.IntN(1000); {
	case n < 600:
		for range 1 + s.rng.IntN(3) {
			if len(s.net) == 0 {
				break
			}
			i := s.rng.IntN(min(len(s.net), 4)) // reordered, a little
			if s.rng.IntN(40) == 0 {
				s.lose(i)
			} else {
				if s.rng.IntN(40) == 0 {
					s.send(s.net[i]) // twice
				}
				s.deliver(i)
			}
		}
	case n < 800:
		if up && len(r.appends) > 0 {
			r.sync()
		}
	case n < 860:
		if up && len(r.loads) > 0 {
			r.load()
		}
	case n < 930:
		if len(s.open) < 6 {
			s.request(s.rng.IntN(6))
		}
	case n < 978:
		s.mono += stormTick
		if up {
			r.Tick()
			r.advance()
		}
	case n < 990:
		if up {
			s.checkpointed(r)
			if first, err := r.log.FirstIndex(); err == nil && r.dbApplied.Index >= first && s.rng.IntN(2) == 0 {
				s.cluster.must(r.log.Compact(r.dbApplied.Index))
			}
		}
	default:
		s.fail(r, up)
	}
	s.readAll()
	s.collect()
}

// fail breaks something, or mends it, or changes who does what.
func (s *storm) fail(r *replica, up bool) {
	switch n := s.rng.IntN(20); {
	case n < 2 && up:
		r.crash()
		s.stats["crash"]++
	case n < 6 && !up && r.paused == nil:
		r.start()
	case n == 6:
		s.cut[r.id] = true
		s.stats["cut"]++
	case n < 11:
		clear(s.cut)
	case n == 11:
		r.skew += s.rng.Int64N(3000) - 1500
	case n == 12 && up && !r.leader && r.lead != 0 && !s.leases: // as of a transfer that took long
		for _, old := range s.nodes {
			if old.Shard != nil && old.leader {
				s.cut[old.id] = true // it does not hear of it
			}
		}
		s.cluster.must(r.Step(&raftpb.Message{Type: raftpb.MsgTimeoutNow.Enum(), From: new(r.lead), To: new(r.id), Term: new(r.term)}))
		r.advance()
		s.stats["coup"]++
	case n < 15 && up && r.leader:
		r.HandOver(1 + s.rng.Uint64N(uint64(len(s.nodes))))
		r.advance()
		s.stats["handover"]++
	case n == 15 && up:
		r.Hold(s.rng.IntN(2) == 0, s.rng.IntN(2) == 0)
		s.stats["hold"]++
	case n == 16 && up:
		r.SetEligible(s.rng.IntN(2) == 0)
		r.SetCampaigns(s.rng.IntN(2) == 0)
	case s.members:
		for _, owner := range s.nodes {
			if owner.Shard != nil && owner.Owns() {
				s.reconfigure(owner)
				return
			}
		}
	}
}

// heal mends everything and waits for an owner.
func (s *storm) heal() *replica {
	clear(s.cut)
	s.power, s.pause = nil, nil
	for _, r := range s.nodes {
		if r.Shard == nil {
			r.start()
		}
		r.Hold(false, false)
		r.SetEligible(true)
		r.SetCampaigns(true)
	}
	for range 200 {
		s.tick(1)
		s.step++
		s.collect()
		var owner *replica
		for _, r := range s.nodes {
			if r.Owns() && len(s.open) == 0 && (owner == nil || r.term > owner.term) {
				owner = r
			}
		}
		if owner != nil && len(owner.conf.GetVotersOutgoing()) == 0 {
			return owner
		}
	}
	s.t.Fatalf("no owner comes about, or no answers to %d requests", len(s.open))
	return nil
}

// judge reads everything at the end and compares.
func (s *storm) judge(exact bool) {
	owner := s.heal()
	for _, key := range slices.Sorted(maps.Keys(s.must)) {
		p := &pending{call: owner.ops(get(key)), client: 100, began: s.step, told: s.told}
		s.run()
		s.step++
		if !p.done || p.reply(0).Err != nil {
			s.t.Fatalf("get at the end: done %v, %+v", p.done, p.reply(0))
		}
		s.answered(p, 0)
		sum := p.reply(0).Int
		if exact && key != "timed" && (sum&s.must[key] != s.must[key] || sum&^(s.must[key]|s.may[key]) != 0) {
			s.t.Errorf("%s is %#x: acknowledged are %#x, perhaps %#x", key, sum, s.must[key], s.may[key])
		}
		if exact && key != "timed" {
			s.checkOrder(key)
		}
	}
	s.tick(3)
	for _, r := range s.nodes {
		s.checkpointed(r)
		conf := owner.Status().Conf
		in := slices.Contains(conf.GetVoters(), r.id) || slices.Contains(conf.GetLearners(), r.id)
		if in && r.dbApplied.Index != owner.table.Applied().Index {
			s.t.Errorf("replica %d has applied %d, the owner %d", r.id, r.dbApplied.Index, owner.table.Applied().Index)
		}
		r.table.Release()
		if r.Shard.inflight != 0 || len(r.waiting) != 0 || len(r.returned) != 0 || len(r.Shard.loads) != 0 || len(r.queue)+len(r.held)+len(r.unapplied) != 0 {
			s.t.Errorf("replica %d is not at rest: %d bytes, %d waiting", r.id, r.inflight, len(r.waiting))
		}
	}
	if !exact {
		return
	}
	if result := porcupine.CheckOperationsTimeout(sums, s.seen(), 20*time.Second); result != porcupine.Ok {
		s.t.Errorf("linearizable: %v", result)
	}
}

// seen is the history without the adds of unknown outcome that nobody ever saw:
// those that were applied at all, were applied after everything else.
func (s *storm) seen() (history []porcupine.Operation) {
	told := map[string]int64{}
	for _, o := range s.history {
		if in := o.Input.(input); in.done {
			told[in.key] |= o.Output.(int64)
		}
	}
	for _, o := range s.history {
		if in := o.Input.(input); in.done || in.bit&told[in.key] != 0 {
			history = append(history, o)
		}
	}
	return history
}

// checkOrder checks that of two sums of a key that with the higher version
// has all that is in the other.
func (s *storm) checkOrder(key string) {
	seen, before := s.versions[key], int64(0)
	for _, version := range slices.Sorted(maps.Keys(seen)) {
		if seen[version]&before != before {
			s.t.Errorf("%s: version %d has %#x, but an earlier one %#x", key, version, seen[version], before)
		}
		before = seen[version]
	}
}

// runStorm answers how many operations went well.
func runStorm(t *testing.T, n int, consistency felix.Consistency, clears bool, seed uint64, steps int) int {
	t.Logf("seed %d", seed)
	s := newStorm(t, n, consistency, seed)
	s.clears = clears
	power, pause := s.power, s.pause
	s.heal()
	s.power, s.pause = power, pause
	for range steps {
		s.act()
	}
	s.judge(consistency == felix.Quorum && !clears)
	t.Logf("leases %v, members %v: %v, %d states, %d replicas, %d snapshots, term %d", s.leases, s.members, s.stats,
		len(s.states), len(s.nodes), len(s.snapshots), s.nodes[0].term)
	return s.stats["ok"]
}

// TestStorm is all rules together.
func TestStorm(t *testing.T) {
	well := 0
	for i := range 8 {
		seed := rand.Uint64()
		t.Run(fmt.Sprint("quorum", i), func(t *testing.T) { well += runStorm(t, 1+2*(i%3), felix.Quorum, false, seed, 8000) })
	}
	for i := range 2 {
		seed := rand.Uint64()
		t.Run(fmt.Sprint("leader", i), func(t *testing.T) { well += runStorm(t, 3, felix.Leader, false, seed, 8000) })
		t.Run(fmt.Sprint("clears", i), func(t *testing.T) { well += runStorm(t, 3, felix.Quorum, true, seed, 8000) })
	}
	if well < 200 {
		t.Errorf("only %d operations went well", well)
	}
}
