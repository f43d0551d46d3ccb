package sim

import (
	"slices"
	"time"

	"go.etcd.io/raft/v3/raftpb"

	"github.com/felix-go/felix/internal/placement"
	"github.com/felix-go/felix/internal/shard"
)

// The kinds of faults, by how often they happen: profile.weights.
const (
	faultKill = iota
	faultPower
	faultPause
	faultIsolate
	faultCut
	faultSlow
	faultClock
	faultRate
	faultHandOver
	faultMove
	faultEligible
	faultHold
	faultBlackout
	faultTrap
	faultCoup
	faultDisk
	faultLag
	faultTakeover
	faultDrift
	faultOldClock
	faults
)

// begin makes the cluster and all that will happen to it of itself.
func (w *world) begin() {
	for range w.profile.nodes {
		w.newNode()
	}
	w.net = newNetwork()
	w.meta = w.metaOf()
	var ids []uint64
	for i := range w.profile.consistency {
		ids = append(ids, uint64(i)+2)
	}
	for i, place := range placement.Create(w.placementNodes(), nil, ids, replication) {
		w.newGroup(place, w.profile.consistency[i])
	}
	w.after(planEvery, w.plan)
	w.history.begin(w)
	for _, n := range w.nodes {
		n.run()
	}
	for i := range w.profile.clients {
		w.newClient(i)
	}
	w.faultsEnd = runFor
	w.after(w.profile.faultTakes/2+w.between(0, time.Second), w.fault)
}

// fault lets something go wrong, and something else a while later.
func (w *world) fault() {
	if w.healed {
		return
	}
	sum := 0
	for _, weight := range w.profile.weights {
		sum += weight
	}
	if sum == 0 {
		return
	}
	at, kind := w.rng.IntN(sum), 0
	for ; at >= w.profile.weights[kind]; kind++ {
		at -= w.profile.weights[kind]
	}
	w.inject(kind, w.nodes[w.rng.IntN(len(w.nodes))])
	w.after(w.profile.faultTakes+w.between(0, 2*w.profile.faultEvery), w.fault)
}

// target is a node that is up, and most often one that owns something: what
// happens to others is seldom of interest.
func (w *world) target(n *node) *node {
	g := w.shards[w.rng.IntN(len(w.shards))]
	if g.owner != nil && g.owner.shard != nil && !w.one(3) {
		return g.owner.node
	}
	return n
}

func (w *world) inject(kind int, n *node) {
	n = w.target(n)
	mend := w.between(20*time.Millisecond, 1500*time.Millisecond)
	if !n.up {
		return
	}
	switch kind {
	case faultKill, faultPower:
		w.crash(n, kind == faultPower, mend)
	case faultBlackout:
		for _, n := range w.nodes {
			if n.up {
				w.crash(n, true, w.between(0, 300*time.Millisecond))
			}
		}
	case faultTrap, faultLag, faultTakeover, faultDrift, faultOldClock:
		w.usurp(kind)
	case faultDisk:
		n.disk.failing = 1 + diskOp(w.rng.IntN(diskOps))
		w.note("node %d: the disk fails at its next operation of kind %d", n.id, uint64(n.disk.failing))
	case faultCoup:
		w.coup()
	case faultPause:
		n.pause()
		w.note("node %d is paused until %d", n.id, uint64(n.pausedUntil))
	case faultIsolate:
		w.isolate(n, mend)
	case faultCut:
		w.cut(n, w.nodes[w.rng.IntN(len(w.nodes))], mend)
	case faultSlow:
		n.disk.slow = 1 + w.rng.Int64N(100)
		w.note("node %d: the disk is %d times as slow", n.id, uint64(n.disk.slow))
		w.after(mend, func() { n.disk.slow = 1 })
	case faultClock:
		step := w.rng.Int64N(3000) - 1500
		if w.one(3) { // what it gives of that time, perhaps nobody else hears of
			step += 3000
			w.part(n, time.Second)
		}
		n.skew += step
		w.note("node %d: the clock steps by %d ms", n.id, uint64(step))
	case faultMove:
		w.command(n)
	case faultRate:
		n.setRate(w.rate())
		w.note("node %d: the clock runs at %d thousandths", n.id, uint64(n.rate))
	default:
		n.when(func() { w.disturb(kind, n) })
	}
	w.count([...]string{"kills", "power cuts", "pauses of processes", "isolations", "cuts", "slow disks", "clock steps", "clock rates",
		"hand-overs", "orders", "eligibility", "holds", "blackouts", "traps", "coups", "disk errors wanted", "lags", "late take-overs", "drifts", "old clocks"}[kind])
}

func (w *world) crash(n *node, power bool, mend time.Duration) {
	lost := uint64(0)
	if power {
		lost = 1
	}
	w.note("node %d crashes, power cut %d", n.id, lost)
	n.crash(power)
	life := n.life
	w.after(mend, func() {
		if n.life == life && !n.up {
			w.note("node %d starts", n.id)
			n.start()
		}
	})
}

// coup lets a replica take over at once, as of a hand-over whose message was on
// its way for long after it was given up, while the owner hears of nothing. It is
// what leases are given up for before a hand-over, so there must be none.
func (w *world) coup() {
	g := w.shards[w.rng.IntN(len(w.shards))]
	owner := g.owns()
	if owner == nil || w.profile.reads == shard.Leases {
		return
	}
	to := owner.another()
	if to == 0 {
		return
	}
	next := g.home(to).replica(g)
	if next == nil || next.shard == nil || next.stalled || next.shard.Lead() != owner.raftID {
		return
	}
	for _, other := range w.nodes {
		w.cutOff(owner.node, other, time.Second)
		w.cutOff(other, owner.node, time.Second)
	}
	w.note("shard %d: replica %d takes over from %d, who does not hear of it", g.id, next.raftID, owner.raftID)
	next.node.when(func() {
		if next.shard != nil {
			next.shard.StepPeer(&raftpb.Message{Type: raftpb.MsgTimeoutNow.Enum(), From: new(owner.raftID), To: new(next.raftID),
				Term: new(next.shard.Status().Term)})
			next.advance()
		}
	})
}

// isolate cuts a node off, in both directions or in one.
func (w *world) isolate(n *node, mend time.Duration) {
	which := w.rng.IntN(3)
	if which == 2 {
		mend += time.Second // long enough for somebody else to be elected
	}
	w.note("node %d is cut off, direction %d", n.id, uint64(which))
	for _, other := range w.nodes {
		if which != 0 {
			w.cutOff(n, other, mend)
		}
		if which != 1 {
			w.cutOff(other, n, mend)
		}
	}
}

func (w *world) cut(from, to *node, mend time.Duration) {
	w.note("what node %d sends to node %d is lost", from.id, to.id)
	w.cutOff(from, to, mend)
	if w.one(2) {
		w.cutOff(to, from, mend)
	}
}

func (w *world) cutOff(from, to *node, mend time.Duration) {
	if from == to || w.healed {
		return
	}
	pair := [2]uint64{from.id, to.id}
	w.net.cut[pair] = true
	w.after(mend, func() { delete(w.net.cut, pair) })
}

// disturb lets a node do something that a broker may do at any time.
func (w *world) disturb(kind int, n *node) {
	for _, r := range slices.Clone(n.replicas) {
		if r.stalled {
			continue
		}
		switch kind {
		case faultHandOver:
			if to := r.another(); r.shard.Leader() && to != 0 {
				w.note("shard %d: replica %d hands over to %d", r.group.id, r.raftID, to)
				r.shard.HandOver(to)
			}
		case faultEligible:
			eligible, campaigns := w.one(2), w.one(2)
			w.note("shard %d: replica %d may own, or campaign, or not", r.group.id, r.raftID)
			r.shard.SetEligible(eligible)
			r.shard.SetCampaigns(campaigns)
			n.after(w.between(0, time.Second), func() { r.mend() })
		case faultHold:
			r.shard.Hold(w.one(2), w.one(2))
			w.note("shard %d: replica %d holds writes, or replay, or nothing", r.group.id, r.raftID)
			lasts := w.between(0, 500*time.Millisecond)
			if !r.shard.Leader() && w.one(2) { // and needs a snapshot, perhaps, before it has applied its log
				w.after(w.between(0, 300*time.Millisecond), func() { w.part(n, 600*time.Millisecond) })
				lasts += time.Second
			}
			n.after(lasts, func() { r.mend() })
		}
		r.advance()
	}
}

// another is another voter, or 0.
func (r *replica) another() uint64 {
	var others []uint64
	for _, id := range r.shard.Status().Conf.GetVoters() {
		if id != r.raftID {
			others = append(others, id)
		}
	}
	if len(others) == 0 {
		return 0
	}
	return others[r.node.w.rng.IntN(len(others))]
}

// mend takes back what disturb did.
func (r *replica) mend() {
	if r.shard == nil {
		return
	}
	r.shard.SetEligible(true)
	r.shard.SetCampaigns(true)
	r.shard.Hold(false, false)
	r.advance()
}

// heal mends everything, and waits until every shard answers and nobody waits
// any more.
func (w *world) heal() {
	w.note("everything is mended")
	w.healed = true
	clear(w.net.cut)
	for _, n := range w.nodes {
		n.disk.slow, n.disk.failing, n.state, n.lag = 1, 0, placement.Active, lag{}
		if !n.up {
			n.start()
		}
		n.when(func() {
			for _, r := range slices.Clone(n.replicas) {
				r.mend()
			}
		})
	}
	for _, g := range w.shards {
		g.replication = replication
	}
	deadline := w.now + healWithin
	w.runUntil(w.now + latest)
	for !w.atRest() {
		if w.now >= deadline {
			w.fail("%v after everything was mended: %s", healWithin, w.unrest())
		}
		w.runUntil(w.now + 50*time.Millisecond)
	}
}
