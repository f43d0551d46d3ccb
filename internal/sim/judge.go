package sim

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"math/bits"
	"slices"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/felix-go/felix"
)

// judgeWithin bounds how long a history is looked at, in real time. What takes
// longer is counted, and proves nothing.
const judgeWithin = 5 * time.Second

// atRest says whether every shard has an owner and the replicas that it shall
// have, all of them with all of its log, and nobody waits.
func (w *world) atRest() bool { return w.unrest() == "" }

// unrest says what is not at rest.
func (w *world) unrest() string {
	for _, n := range w.nodes {
		if n.pausedUntil > w.now {
			return fmt.Sprintf("node %d is paused", n.id)
		}
	}
	for _, c := range w.clients {
		if c.asked != nil {
			return fmt.Sprintf("client %d waits for call %d", c.id, c.asked.number)
		}
	}
	if changes := w.changes(); len(changes) > 0 {
		return fmt.Sprintf("something shall still be changed: %+v", changes)
	}
	for _, g := range w.shards {
		r := g.owns()
		if r == nil {
			return fmt.Sprintf("shard %d has no owner", g.id)
		}
		for _, p := range g.place.Replicas {
			if p.Want != p.Have {
				return fmt.Sprintf("shard %d: replica %d on node %d is %q and shall be %q", g.id, p.Raft, p.Node, p.Have, p.Want)
			}
			if at := g.home(p.Raft).replica(g).shard.Status().Applied; at != r.shard.Status().LastIndex {
				return fmt.Sprintf("shard %d: replica %d has applied %d of %d", g.id, p.Raft, at, r.shard.Status().LastIndex)
			}
		}
	}
	return ""
}

// owns is the owner of the newest term, or nil.
func (g *group) owns() (owner *replica) {
	term := uint64(0)
	for _, n := range g.w.nodes {
		if r := n.replica(g); r != nil && r.shard != nil {
			if s := r.shard.Status(); s.Owns && s.Term > term {
				owner, term = r, s.Term
			}
		}
	}
	return owner
}

// judge reads everything, and compares all that is known.
func (w *world) judge() {
	for _, k := range w.history.sorted() {
		w.readLast(k)
	}
	w.runUntil(w.now + 2*w.profile.checkpoint + time.Second) // the last checkpoints
	for _, g := range w.shards {
		w.sameEverywhere(g)
	}
	for _, adds := range w.history.groups {
		for _, a := range adds {
			if first := adds[0]; (first.key.last&first.bit != 0) != (a.key.last&a.bit != 0) {
				w.complain("of an atomic group %#x was added to %s, and %#x not to %s, or the other way round", first.bit, first.key.key, a.bit, a.key.key)
			}
		}
	}
	w.history.sortTimes()
	for _, k := range w.history.sorted() {
		k.judge()
	}
	for _, n := range w.nodes {
		n.crash(false) // nothing holds memory
	}
}

// readLast asks the owner for a key.
func (w *world) readLast(k *keyHistory) {
	c := &client{w: w, id: 100}
	asked := call{}
	for _, view := range k.views {
		asked.ops = append(asked.ops, felix.Op{Kind: felix.Get, Key: []byte(k.key), View: view})
	}
	c.ask(k.g, &asked)
	for !asked.over {
		w.runUntil(w.now + time.Millisecond)
	}
	if reply := asked.got.replies[0]; reply.Err != nil {
		w.fail("%s cannot be read at the end: %v", k.key, reply.Err)
	} else if k.sums {
		k.last = reply.Int
		k.judgeSum(reply.Int)
	}
}

// judgeSum compares the last sum with what was acknowledged.
func (k *keyHistory) judgeSum(sum int64) {
	w := k.g.w
	if more := sum &^ (k.must | k.may); more != 0 {
		w.complain("%s is %#x: %#x was not asked for, or was said not to be applied", k.key, sum, more)
	}
	lost := k.must &^ sum
	if k.g.consistency == felix.Quorum {
		if lost != 0 {
			w.complain("%s is %#x: %#x was acknowledged", k.key, sum, lost)
		}
		return
	}
	first := map[uint64]time.Duration{}
	for _, a := range k.acks {
		if a.bit&lost == 0 {
			continue
		}
		w.count("lost of leader caches")
		if at, ok := first[a.term]; !ok {
			first[a.term] = a.at
		} else if a.at-at > maxTail {
			w.complain("%s is %#x: of the adds of term %d some were lost that were acknowledged %v apart", k.key, sum, a.term, a.at-at)
		}
	}
}

// maxTail is how far apart the answers are at most that a leader cache loses, on
// the slowest clock.
const maxTail = felix.LeaderTail * 1000 / (1000 - maxDrift)

// judge looks for an order of what clients were told that explains it all.
func (k *keyHistory) judge() {
	w := k.g.w
	if k.g.consistency != felix.Quorum {
		return
	}
	if k.sums {
		k.judgeVersions()
		k.judgeSums()
		return
	}
	model := keyModel()
	k.complete()
	switch porcupine.CheckOperationsTimeout(model, k.ops, judgeWithin) {
	case porcupine.Ok:
		w.count("histories in order")
	case porcupine.Unknown:
		w.count("histories too long to order")
	default:
		w.complain("%s: no order explains this:%s", k.key, k.text())
	}
}

// complete adds what is known only now: clears of the whole shard, and until when
// an operation was evaluated, which is before anything that began after its end.
func (k *keyHistory) complete() {
	h := &k.g.w.history
	for _, c := range h.clears {
		if c.g == k.g {
			k.ops = append(k.ops, c.op)
		}
	}
	times := h.times[k.g]
	for i := range k.ops {
		o := &k.ops[i]
		in, out := o.Input.(input), o.Output.(*felix.Reply)
		in.to = math.MaxInt64
		at, _ := slices.BinarySearchFunc(times, o.Return, func(t timing, end int64) int { return cmp.Compare(t.began, end) })
		if at < len(times) {
			in.to = times[at].now
		}
		if in.what == evaluated && out.NowMillis != 0 {
			in.from, in.to = out.NowMillis, out.NowMillis
		}
		if in.to < in.from {
			k.g.w.fail("%s: an operation of %d to %d", k.key, in.from-wallStart, in.to-wallStart)
		}
		o.Input = in
	}
}

// sortTimes makes of the times that were told the earliest ones that were told to
// anybody who asked then or later.
func (h *history) sortTimes() {
	for _, times := range h.times {
		slices.SortFunc(times, func(a, b timing) int { return cmp.Compare(a.began, b.began) })
		for i := len(times) - 2; i >= 0; i-- {
			times[i].now = min(times[i].now, times[i+1].now)
		}
	}
}

// judgeVersions checks that of two sums that with the higher version has all
// that is in the other.
func (k *keyHistory) judgeVersions() {
	before := int64(0)
	for _, v := range slices.Sorted(maps.Keys(k.versions)) {
		if k.versions[v]&before != before {
			k.g.w.complain("%s: version %x has %#x, an earlier one %#x", k.key, v, k.versions[v], before)
		}
		before = k.versions[v]
	}
}

// judgeSums looks for an order of adds and gets, which is easy, as every answer
// tells which adds were before it: by the sums, each in turn happens as early as
// it may, which must not be after its end.
func (k *keyHistory) judgeSums() {
	w := k.g.w
	asked := map[int64]int64{} // when each add was, by its bit
	var told []porcupine.Operation
	for _, o := range k.ops {
		in := o.Input.(input)
		if in.op.Kind == felix.Add {
			asked[in.op.Int] = o.Call
		}
		if in.op.View == felix.ViewValue { // a scan's
			if o.Output.(*felix.Reply).Found != felix.NoRecord {
				w.complain("%s: a scan shows a value where there is but a counter", k.key)
			}
		} else if in.known {
			told = append(told, o)
		}
	}
	sum := func(o *porcupine.Operation) int64 { return o.Output.(*felix.Reply).Int }
	// More adds are more bits; the add itself comes before who sees it.
	slices.SortStableFunc(told, func(a, b porcupine.Operation) int {
		return cmp.Or(bits.OnesCount64(uint64(sum(&a)))-bits.OnesCount64(uint64(sum(&b))), int(b.Input.(input).op.Kind)-int(a.Input.(input).op.Kind))
	})
	before, at, last := int64(0), int64(0), int64(0)
	for i := range told {
		o := &told[i]
		now := sum(o)
		if now != before {
			at = last // of all who saw the sum before
		}
		for more := now &^ before; more != 0; more &= more - 1 {
			at = max(at, asked[more&-more])
		}
		last = max(last, at, o.Call)
		if adds := o.Input.(input).op; now&before != before || max(at, o.Call) > o.Return || adds.Kind == felix.Add && (now&adds.Int == 0 || before&adds.Int != 0) {
			w.complain("%s: no order explains %#x of %d to %d after %#x at %d:%s", k.key, now, o.Call, o.Return, before, at, k.text())
			return
		}
		if o.Input.(input).op.Kind == felix.Add {
			at = max(at, o.Call)
		}
		before = now
	}
	w.count("histories in order")
}

// text is the key's history, to be read.
func (k *keyHistory) text() string {
	var text strings.Builder
	for _, o := range k.ops {
		fmt.Fprintf(&text, "\n  %d to %d: %s", o.Call, o.Return, keyModel().DescribeOperation(o.Input, o.Output))
	}
	return text.String()
}

// sameEverywhere checks that all replicas have come to the same state.
func (w *world) sameEverywhere(g *group) {
	owner := g.owns()
	if owner == nil {
		w.fail("shard %d has lost its owner while nothing went wrong", g.id)
	}
	last := owner.shard.Table().Applied().Index
	for _, p := range g.place.Replicas {
		r := g.home(p.Raft).replica(g)
		if at := r.shard.Table().Applied().Index; at != last {
			w.complain("shard %d: replica %d has applied %d, the owner %d", g.id, p.Raft, at, last)
		}
		if r.db.applied.Index != r.shard.Table().Applied().Index {
			w.complain("shard %d: replica %d has not written its last checkpoint: %d of %d", g.id, p.Raft, r.db.applied.Index, last)
		}
	}
}
