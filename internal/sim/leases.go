package sim

import (
	"math/rand/v2"
	"time"

	"go.etcd.io/raft/v3/raftpb"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/shard"
)

// leaseProfile is a run that is only about who may answer a read: one counter at
// a time, which many read, at whoever owned the shard before, too, while the
// faults are those that let two nodes take themselves for the owner for as long
// as they can.
func leaseProfile(rng *rand.Rand, p profile) profile {
	p.nodes, p.consistency, p.reads, p.clears = 3, []felix.Consistency{felix.Quorum}, shard.Leases, false
	if rng.IntN(4) == 0 {
		p.reads = shard.Fences
	}
	p.drop, p.duplicate, p.late, p.lost, p.sync = 0, 0, 0, 0, time.Millisecond
	p.entry, p.inflight, p.table = 64<<10, 1<<20, 1<<30
	p.keys, p.onlySums, p.clients, p.think = 1, true, 8, 4*time.Millisecond
	p.hasty, p.weights = true, [faults]int{}
	// One kind, and one at a time: they would get into each other's way.
	p.faultEvery, p.faultTakes = 250*time.Millisecond, 1200*time.Millisecond
	kind := []int{faultTrap, faultLag, faultTakeover, faultDrift, faultOldClock}[rng.IntN(5)]
	if p.weights[kind] = 1; kind == faultLag {
		p.faultTakes *= 2
	}
	return p
}

// usurp lets something go wrong that would give a shard two owners, were it not
// for leases and fences.
func (w *world) usurp(kind int) {
	g := w.shards[w.rng.IntN(len(w.shards))]
	owner := g.owns()
	if owner == nil || owner.stalled {
		return
	}
	if kind == faultDrift || w.one(2) { // as far apart as clocks may be
		for _, n := range w.nodes {
			n.setRate(1000 + maxDrift)
		}
		owner.node.setRate(1000 - maxDrift)
	}
	switch kind {
	case faultTrap:
		w.trap(owner.node)
	case faultLag:
		w.retard(owner.node)
	case faultTakeover:
		if to := owner.another(); to != 0 {
			w.note("shard %d: replica %d hands over to %d, who hears of it late", g.id, owner.raftID, to)
			owner.node.takeoverLate = true
			owner.shard.HandOver(to)
			owner.advance()
		}
	case faultDrift:
		w.note("node %d is cut off from all a little later", owner.node.id)
		w.lullUntil = w.now + 500*time.Millisecond // so that rounds are the last that others hear of it
		w.after(200*time.Millisecond, func() { w.part(owner.node, time.Second) })
	case faultOldClock:
		owner.node.oldClock()
	}
}

// part cuts a node off, in both directions.
func (w *world) part(n *node, mend time.Duration) {
	for _, other := range w.nodes {
		w.cutOff(n, other, mend)
		w.cutOff(other, n, mend)
	}
}

// trap parts an owner from another node, which tries to be elected, while little
// is written, so that it can be. Then a third one restarts, which knows nothing of
// an owner any more, and perhaps does not hear of it again.
func (w *world) trap(owner *node) {
	first := w.rng.IntN(len(w.nodes))
	if w.nodes[first] == owner {
		first = (first + 1) % len(w.nodes)
	}
	third := w.nodes[(first+1)%len(w.nodes)]
	if third == owner {
		third = w.nodes[(first+2)%len(w.nodes)]
	}
	w.note("node %d is parted from node %d, and node %d restarts", owner.id, w.nodes[first].id, third.id)
	restarts := w.between(600*time.Millisecond, 1200*time.Millisecond)
	w.lullUntil = w.now + restarts
	w.cutOff(owner, w.nodes[first], restarts+time.Second)
	w.cutOff(w.nodes[first], owner, restarts+time.Second)
	w.after(restarts, func() {
		if third.up && third != owner && !w.healed {
			w.crash(third, false, w.between(time.Millisecond, 50*time.Millisecond))
			if !w.one(4) {
				w.part(owner, time.Second)
			}
		}
	})
}

// lag is how late everything comes to a node: later and later, so that it never
// stops hearing of others.
type lag struct {
	since, most time.Duration // since when, and how late at most
}

func (l *lag) at(now time.Duration) time.Duration {
	if l.most == 0 {
		return 0
	}
	return min((now-l.since)/4*3, l.most)
}

// retard lets a node hear of everything later and later, and then not be heard of
// itself.
func (w *world) retard(n *node) {
	l := lag{w.now, w.between(400*time.Millisecond, 900*time.Millisecond)}
	n.lag = l
	w.note("node %d hears of everything up to %d later", n.id, uint64(l.most))
	w.after(w.between(l.most, l.most/2*3), func() {
		w.note("node %d is not heard of", n.id)
		for _, other := range w.nodes {
			w.cutOff(n, other, 1500*time.Millisecond)
		}
	})
	w.after(l.most/2*3+1500*time.Millisecond, func() {
		if n.lag == l {
			n.lag = lag{}
		}
	})
}

// takeover is when a message that tells a replica to take over comes so late that
// the owner goes on as such, which from then on hears of nothing.
func (w *world) takeover(from *replica, deliver func()) {
	from.node.takeoverLate = false
	w.after(w.between(550*time.Millisecond, 1100*time.Millisecond), func() {
		if w.healed {
			return
		}
		deliver()
		w.note("node %d is cut off, whose place another one takes", from.node.id)
		w.part(from.node, 600*time.Millisecond)
	})
}

// oldClock stops the process, which others do not hear, right after it has read
// its clock. It goes on with that time.
func (n *node) oldClock() {
	n.readAt = n.time()
	n.pausedUntil = n.w.now + n.w.between(500*time.Millisecond, 1200*time.Millisecond)
	n.w.note("node %d stops with an old time until %d", n.id, uint64(n.pausedUntil))
	n.w.part(n, n.pausedUntil-n.w.now+100*time.Millisecond)
}

// stepTime is what the process takes for the time of a step: what it has read
// just now, or right before it was stopped.
func (n *node) stepTime() shard.Now {
	if n.readAt.Mono != 0 && n.w.now == n.pausedUntil {
		return n.readAt
	}
	n.readAt = shard.Now{}
	return n.time()
}

// hangsUp says whether the message to take over is to come late.
func (n *node) hangsUp(m *raftpb.Message) bool {
	return n.takeoverLate && m.GetType() == raftpb.MsgTimeoutNow
}
