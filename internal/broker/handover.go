package broker

import (
	"context"
	"slices"
	"time"

	"go.etcd.io/raft/v3/raftpb"

	"github.com/felix-go/felix/internal/shard"
)

const (
	// handOverTimeout is how long a broker that stops tries to give its shards away.
	handOverTimeout = 5 * time.Second
	// handOverPoll is how often it looks what has become of it.
	handOverPoll = 10 * time.Millisecond
	// nearlyAll is how many entries an heir may lack: it gets them before it takes
	// over, while nobody is served.
	nearlyAll = 64
	// giveBackEvery is the least time between two shards that go back to their
	// preferred owners.
	giveBackEvery = 500 * time.Millisecond
)

// fitness is what a broker knows of a node that may be given shards.
type fitness struct {
	now   bool          // it may; otherwise it perhaps may soon
	since time.Duration // when the link to it came up
}

// fitNodes are the nodes that may be given the ownership of shards, as far as it
// can be told from here.
func (b *Broker) fitNodes() map[uint64]fitness {
	fit := map[uint64]fitness{}
	if b.links == nil {
		return fit
	}
	v := b.view()
	b.links.mu.Lock()
	defer b.links.mu.Unlock()
	for node, p := range b.links.peers {
		state := nodeActive // while the metadata does not say
		if n := v.nodes[node]; n != nil {
			state = n.State
		}
		if p.up && !p.pong.Stopping && state == nodeActive {
			fit[node] = fitness{now: p.pong.Eligible, since: p.since}
		}
	}
	return fit
}

// handOver begins to give the ownership of a shard to one of the fit nodes, best
// the preferred one. It says whether it has, or does already, or may later. It
// runs on the worker.
func (w *worker) handOver(r *replica, fit map[uint64]fitness, prefer uint64) (begun, hopeful bool) {
	if r.closed || !r.shard.Leader() {
		return false, false
	}
	heirs, hopeful := r.heirs(fit)
	if len(heirs) == 0 {
		return false, hopeful
	}
	// Many shards that are handed over together are spread over the heirs.
	to := heirs[r.id%uint64(len(heirs))]
	for _, heir := range heirs {
		if r.nodeOf(heir) == prefer {
			to = heir
		}
	}
	r.shard.HandOver(to)
	w.activate(r)
	return true, true
}

// heirs are the voters at fit nodes that can take over at once, and whether there
// are any that may be able to later. It runs on the worker.
func (r *replica) heirs(fit map[uint64]fitness) (heirs []uint64, hopeful bool) {
	st := r.shard.Status()
	for _, p := range st.Progress {
		f, is := fit[r.nodeOf(p.RaftID)]
		if !is || p.RaftID == r.raftID || !votes(st.Conf, p.RaftID) {
			continue
		}
		hopeful = true
		if f.now && caughtUp(&st, &p) {
			heirs = append(heirs, p.RaftID)
		}
	}
	return heirs, hopeful
}

// votes says whether a replica is a voter, in both halves of a joint
// configuration.
func votes(conf *raftpb.ConfState, raftID uint64) bool {
	out := conf.GetVotersOutgoing()
	return slices.Contains(conf.GetVoters(), raftID) && (len(out) == 0 || slices.Contains(out, raftID))
}

// caughtUp says whether a replica has nearly all of the log.
func caughtUp(st *shard.Status, p *shard.Progress) bool {
	return p.Active && p.Replicates && p.Match+nearlyAll >= st.Commit
}

// handOverAll begins to hand over every shard that this broker leads, and answers
// how many there are that somebody may take.
func (b *Broker) handOverAll(fit map[uint64]fitness) (left int) {
	for _, w := range b.workers {
		w.callWait(func() {
			for _, r := range w.replicas {
				if _, hopeful := w.handOver(r, fit, 0); hopeful {
					left++
				}
			}
		})
	}
	return left
}

// HandOver gives the ownership of all shards to other brokers, before this one
// stops, and returns when that is done as far as it can be, or ctx ends. The
// doors should still be open: no client sees it. Shards that nobody else can take
// are served on until Close.
func (b *Broker) HandOver(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, handOverTimeout)
	defer cancel()
	b.stopping.Store(true)
	b.watches.stop() // they go on at another broker
	b.spreadModes()
	ticks := time.NewTicker(handOverPoll)
	defer ticks.Stop()
	for b.handOverAll(b.fitNodes()) > 0 {
		select {
		case <-ticks.C:
		case <-ctx.Done():
			return
		}
	}
}

// giveBack hands shards over to the brokers that should own them, once these have
// been there for a while, a few at a time.
func (b *Broker) giveBack() {
	now := b.mono()
	if b.links == nil || b.stopping.Load() || now < b.nextGiveBack {
		return
	}
	fit := b.fitNodes()
	for _, p := range b.view().placements() {
		if p.Prefer == b.node {
			continue
		}
		f, r := fit[p.Prefer], b.replicaOf(p.ID)
		if !f.now || now-f.since < b.opts.Cluster.GiveBackAfter || r == nil || !r.owns.Load() {
			continue
		}
		begun := false
		r.worker.callWait(func() {
			begun, _ = r.worker.handOver(r, map[uint64]fitness{p.Prefer: f}, p.Prefer)
		})
		if begun {
			b.opts.Logger.Info("a shard goes back to its preferred owner", "shard", p.ID, "node", p.Prefer)
			b.nextGiveBack = now + giveBackEvery
			return
		}
	}
}
