package sim

import (
	"fmt"
	"slices"
	"time"

	"github.com/felix-go/felix/internal/placement"
	"github.com/felix-go/felix/internal/record"
	"github.com/felix-go/felix/internal/shard"
	"github.com/felix-go/felix/internal/store"
)

// node is a broker: a process with a clock and a disk, and the replicas on it.
type node struct {
	w    *world
	id   uint64
	up   bool
	life int // counts starts: what an earlier process meant to do is void

	state     placement.State // that an operator wants
	downSince time.Duration

	// pausedUntil is when a process goes on that does not run. It does not know.
	pausedUntil time.Duration
	readAt      shard.Now // before that; see stepTime
	lag         lag
	// takeoverLate says that the next message by which it tells another replica to
	// take over comes late.
	takeoverLate bool

	mono     time.Duration // at true time monoAt
	monoAt   time.Duration
	rate     int64 // of its clock, in thousandths
	skew     int64 // of its wall clock, in milliseconds
	replicas []*replica
	budget   *store.Budget
	disk     disk
	out      shard.Output
	owned    map[*group]seenOwned
}

func (w *world) newNode() *node {
	n := &node{w: w, id: uint64(len(w.nodes)) + 1, up: true, rate: 1000, budget: &store.Budget{MaxBytes: w.profile.table},
		skew: w.rng.Int64N(1000) - 500, mono: w.between(0, time.Hour), owned: map[*group]seenOwned{}}
	n.disk = disk{n: n, slow: 1}
	n.setRate(w.rate())
	w.nodes = append(w.nodes, n)
	return n
}

// run begins what the process does of itself.
func (n *node) run() {
	n.after(n.w.between(0, tickEvery), n.tick)
	n.after(n.w.between(0, n.w.profile.checkpoint), n.checkpoint)
	n.after(n.w.between(0, reconcileEvery), n.reconcile)
	n.after(n.w.between(0, sweepEvery), n.sweep)
}

// setRate lets the clock run at another rate from now on.
func (n *node) setRate(rate int64) {
	n.mono, n.monoAt = n.time().Mono, n.w.now
	n.rate = rate
}

func (w *world) rate() int64 { return 1000 - maxDrift + w.rng.Int64N(2*maxDrift+1) }

func (n *node) time() shard.Now {
	mono := n.mono + time.Duration(int64(n.w.now-n.monoAt)/1000*n.rate)
	return shard.Now{Mono: mono, WallMillis: wallStart + n.w.now.Milliseconds() + n.skew}
}

// when does something now, or when the process runs again; never, if by then it
// is another one.
func (n *node) when(do func()) {
	life := n.life
	switch {
	case !n.up:
	case n.w.now < n.pausedUntil:
		n.w.after(n.pausedUntil-n.w.now, func() {
			if n.life == life {
				n.when(do)
			}
		})
	default:
		do()
	}
}

// after does something some time from now, if the process still is there.
func (n *node) after(d time.Duration, do func()) {
	life := n.life
	n.w.after(d, func() {
		if n.life == life {
			n.when(do)
		}
	})
}

func (n *node) replica(g *group) *replica {
	for _, r := range n.replicas {
		if r.group == g {
			return r
		}
	}
	return nil
}

// tick is as often as the node's own clock says, or of two at once.
func (n *node) tick() {
	stride := 1 + n.w.rng.IntN(maxStride)
	n.after(time.Duration(stride)*tickEvery*1000/time.Duration(n.rate), func() {
		for range stride {
			for _, r := range slices.Clone(n.replicas) {
				if n.replica(r.group) == r && r.shard != nil {
					r.shard.Tick()
				}
			}
		}
		for _, r := range slices.Clone(n.replicas) {
			if n.replica(r.group) == r {
				r.advance()
			}
		}
		n.tick()
	})
}

// advance lets the shard work at the present time. The process may be paused
// right before it confirms what rests on its lease.
func (r *replica) advance() {
	n := r.node
	if r.shard == nil || r.stalled {
		return
	}
	n.w.must(r.shard.Advance(n.stepTime(), &n.out))
	if !r.shard.Leased() {
		r.take()
		return
	}
	n.w.count("leased")
	if n.w.profile.weights[faultPause] > 0 && !n.w.healed && n.w.one(200) {
		n.w.note("node %d pauses before it confirms a lease", n.id)
		n.pause()
		r.stalled = true
		held := n.out
		n.out = shard.Output{}
		life := n.life
		n.w.after(n.pausedUntil-n.w.now, func() {
			if n.life != life {
				return
			}
			r.stalled = false
			n.out = held
			r.confirm()
			r.advance()
		})
		return
	}
	r.confirm()
}

// confirm answers what rests on the lease. As long as it holds nobody else leads,
// whether anything was written there yet or not: a history shows it only if so.
func (r *replica) confirm() {
	n, before := r.node, len(r.node.out.Done)
	r.shard.Confirm(n.time(), &n.out)
	if term := r.shard.Status().Term; len(n.out.Done) > before && term < r.group.led {
		n.w.fail("shard %d: replica %d answers a read by its lease of term %d, while there is a leader of term %d", r.group.id, r.raftID, term, r.group.led)
	}
	r.take()
}

// take does with the output what a runner does.
func (r *replica) take() {
	n, o := r.node, r.node.out
	n.out = shard.Output{}
	for _, a := range o.Appends {
		if a.Snapshot != nil {
			r.abandonCapture()
			r.taken++
		}
		n.disk.queue = append(n.disk.queue, write{r, a})
	}
	for _, m := range o.Messages {
		n.w.send(r, m)
	}
	for _, l := range o.Loads {
		n.after(n.w.between(0, 2*time.Millisecond), func() { r.load(l) })
	}
	if len(o.Changed) > 0 {
		r.noteRole()
	}
	for _, q := range o.Scans {
		q.Scanned = r.db.page(q) // as it is now
		n.after(n.w.between(0, time.Millisecond), func() { q.Tag.(owner).done(q) })
	}
	for _, q := range o.Done {
		q.Tag.(owner).done(q)
	}
	for _, q := range o.Returned {
		q.Tag.(owner).returned(q)
	}
	n.disk.kick()
	if r.shard != nil && r.shard.Unfinished() && !r.again {
		r.again = true
		n.after(10*time.Microsecond, func() {
			r.again = false
			r.advance()
		})
	}
}

// owner is who waits for a request.
type owner interface {
	done(*shard.Request)
	returned(*shard.Request)
}

func (r *replica) noteRole() {
	s := r.shard.Status()
	owns := uint64(0)
	if s.Owns {
		owns = 1
	}
	r.node.w.note("shard %d: replica %d on node %d: term %d, leader %d, owns %d, applied %d", r.group.id, r.raftID, r.node.id, s.Term, s.Lead, owns, s.Applied)
	if s.Leader {
		r.group.led = max(r.group.led, s.Term)
	}
	if s.Owns && r.group.owner != r {
		r.group.former, r.group.owner = r.group.owner, r
		r.node.w.count("owners")
	}
}

// load reads a record, and hands it in somewhat later.
func (r *replica) load(l shard.Load) {
	if r.node.disk.fails(diskLoad) {
		return
	}
	cell := r.db.cells[string(l.Key)]
	if l.ID {
		cell = r.db.ids[record.IDKey(l.Key)]
	}
	r.node.after(r.node.w.between(0, time.Millisecond), func() {
		if r.shard == l.Shard {
			r.shard.Loaded(l, &cell)
			r.advance()
		}
	})
}

// pause stops the process for a while.
func (n *node) pause() {
	n.w.count("pauses")
	n.pausedUntil = n.w.now + n.w.between(10*time.Millisecond, 1200*time.Millisecond)
}

// crash ends the process, or cuts the power. What is being written may be written
// up to any point.
func (n *node) crash(power bool) {
	n.disk.crash(power)
	n.up, n.pausedUntil, n.downSince, n.readAt, n.takeoverLate = false, 0, n.w.now, shard.Now{}, false
	n.life++
	for _, r := range n.replicas {
		if r.shard != nil {
			r.shard.Table().Release()
		}
		r.shard, r.capture, r.taken, r.installing, r.stalled, r.again = nil, nil, 0, false, false, false
		clear(r.staged)
	}
	n.out = shard.Output{}
	clear(n.owned)
	if used := n.budget.UsedBytes(); used != 0 {
		n.w.fail("node %d: tables that were released hold %d bytes", n.id, used)
	}
}

// start makes the process again from its disk.
func (n *node) start() {
	n.up = true
	for _, r := range n.replicas {
		r.open(electionTicks)
	}
	n.run()
	for _, r := range slices.Clone(n.replicas) {
		r.advance()
	}
}

// logger ends the run where Raft would end the process, and hears nothing else.
type logger struct{}

func (logger) Debug(...any)              {}
func (logger) Debugf(string, ...any)     {}
func (logger) Info(...any)               {}
func (logger) Infof(string, ...any)      {}
func (logger) Warning(...any)            {}
func (logger) Warningf(string, ...any)   {}
func (logger) Error(v ...any)            { panic(fmt.Sprint(v...)) }
func (logger) Errorf(f string, v ...any) { panic(fmt.Sprintf(f, v...)) }
func (logger) Fatal(v ...any)            { panic(fmt.Sprint(v...)) }
func (logger) Fatalf(f string, v ...any) { panic(fmt.Sprintf(f, v...)) }
func (logger) Panic(v ...any)            { panic(fmt.Sprint(v...)) }
func (logger) Panicf(f string, v ...any) { panic(fmt.Sprintf(f, v...)) }
