package sim

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/felix-go/felix"
)

const (
	keysOfAKind = 6
	// maxAdds is how often a counter of sums is added to: each add is another
	// power of two, so that a sum tells which adds are in it.
	maxAdds = 50
	// maxRegisterOps and maxUnknown bound what has to be ordered of one key.
	maxRegisterOps = 40
	maxUnknown     = 5
)

// history is what clients were told.
type history struct {
	w    *world
	keys map[string]*keyHistory
	// live are the keys that are in use now, by shard, kind and number.
	live map[string]*keyHistory
	told map[*group]int64 // the newest shard time
}

// keyHistory is what clients were told of one key in one view.
type keyHistory struct {
	g        *group
	key      string
	sums     bool // only adds of powers of two, and gets
	view     felix.View
	asked    int
	unknown  int
	version  uint64 // some version that was told
	must     int64  // sums: acknowledged
	may      int64
	acks     []ack
	versions map[uint64]int64 // of acknowledged changes, with what they made of it
	ops      []porcupine.Operation
}

// ack is an acknowledged add, with when the owner said so.
type ack struct {
	bit  int64
	term uint64
	at   time.Duration
}

func (h *history) begin(w *world) {
	h.w, h.keys, h.live, h.told = w, map[string]*keyHistory{}, map[string]*keyHistory{}, map[*group]int64{}
}

// key is one of the keys in use.
func (h *history) key(g *group, sums bool, view felix.View) *keyHistory {
	kind := map[bool]string{true: "sum", false: "reg"}[sums]
	slot := fmt.Sprintf("%d/%s%d/%d", g.id, kind, h.w.rng.IntN(keysOfAKind), view)
	k := h.live[slot]
	if k == nil || k.unknown >= maxUnknown || k.asked >= maxRegisterOps && !sums || k.asked >= maxAdds {
		k = &keyHistory{g: g, key: fmt.Sprintf("%s/%d", slot, len(h.keys)), sums: sums, view: view, versions: map[uint64]int64{}}
		h.live[slot], h.keys[k.key] = k, k
	}
	return k
}

// wish is what a client wants next of a shard. One that reads asks for what
// changes nothing, most often: only that is answered by who owns nothing any more.
func (h *history) wish(g *group, reads bool) (ops []felix.Op) {
	rng := h.w.rng
	if reads {
		k := h.key(g, rng.IntN(2) == 0, felix.ViewCounter)
		op := felix.Op{Kind: felix.Get, Key: []byte(k.key), View: k.view}
		if k.asked++; !k.sums && rng.IntN(2) == 0 {
			op.Kind, op.Int, op.If = felix.Set, rng.Int64N(1<<40), felix.IfAbsent
		}
		return append(ops, op)
	}
	for range 1 + rng.IntN(3) {
		if rng.IntN(2) == 0 {
			ops = append(ops, h.sumOp(h.key(g, true, felix.ViewCounter)))
		} else {
			ops = append(ops, h.registerOp(h.key(g, false, felix.View(rng.IntN(2)))))
		}
	}
	return ops
}

func (h *history) sumOp(k *keyHistory) felix.Op {
	op := felix.Op{Kind: felix.Get, Key: []byte(k.key)}
	if h.w.rng.IntN(4) > 0 {
		op.Kind, op.Int = felix.Add, 1<<k.asked
		k.asked++
	}
	return op
}

// registerOp is any operation.
func (h *history) registerOp(k *keyHistory) felix.Op {
	rng := h.w.rng
	op := felix.Op{Kind: felix.Get, Key: []byte(k.key), View: k.view}
	k.asked++
	switch n := rng.IntN(10); {
	case n < 4:
		return op
	case n < 6 && k.view == felix.ViewCounter:
		op.Kind, op.Int = felix.Add, 1+rng.Int64N(1000)
		if n := op.Int % 3; n > 0 { // about half of what is set is above
			op.Bounds = &felix.Bounds{Min: math.MinInt64, Max: 1 << 39, Saturate: n == 1}
		}
	case n < 9:
		op.Kind, op.If = felix.Set, felix.If(rng.IntN(4))
		if op.Int = rng.Int64N(1 << 40); k.view == felix.ViewValue {
			op.Value, op.Int = strconv.AppendInt(nil, op.Int, 10), 0
		}
	default:
		op.Kind, op.If = felix.Delete, []felix.If{felix.Always, felix.IfVersion}[rng.IntN(2)]
	}
	if op.If == felix.IfVersion {
		if k.version == 0 {
			op.If = felix.Always
		}
		op.Version = k.version
	}
	if op.Kind != felix.Delete {
		switch rng.IntN(4) {
		case 0:
			op.TTL, op.ExpiryMillis = felix.TTLIn, 1+rng.Int64N(1000)
			if op.Kind == felix.Add && op.Int%2 == 0 {
				op.TTL = felix.TTLInIfNone
			}
		case 1:
			op.TTL = felix.TTLKeep
		}
	}
	return op
}

// answered takes down what came of an operation.
func (h *history) answered(k *call, i int) {
	w, op, reply := h.w, &k.ops[i], k.replies[i]
	key := h.keys[string(op.Key)]
	known := reply.Err == nil
	code := uint64(0)
	if !known {
		code = uint64(reply.Err.Code)
	}
	w.note("call %d, operation %d: error %d, applied or found %d, %d, version %x", k.number, uint64(i), code, answerBits(&reply), uint64(reply.Int), reply.Version)
	switch {
	case known:
		w.count("answers")
		h.learn(k, key, op, &reply)
	case op.Mutates() && reply.Err.MayBeApplied():
		w.count("unknown")
		key.unknown++
		key.may |= op.Int
	default: // not applied: what it would have done must never be seen
		w.count("not applied")
		return
	}
	o := porcupine.Operation{ClientId: k.c.id*8 + i, Input: inputOf(op, known), Call: k.began, Output: outputOf(&reply, key.view), Return: w.stamp()}
	if !known {
		o.Return = math.MaxInt64
	}
	key.ops = append(key.ops, o)
}

func answerBits(r *felix.Reply) (bits uint64) {
	if r.Applied {
		bits = 1
	}
	return bits + 2*uint64(r.Found)
}

// learn checks an answer against all others, as far as that can be said at once.
func (h *history) learn(k *call, key *keyHistory, op *felix.Op, reply *felix.Reply) {
	g := key.g
	if now := reply.NowMillis; now != 0 {
		if g.consistency == felix.Quorum && now < k.told {
			h.w.fail("shard %d: time goes back from %d to %d", g.id, k.told-wallStart, now-wallStart)
		}
		h.told[g] = max(h.told[g], now)
	}
	if reply.Version == 0 {
		return
	}
	key.version = reply.Version
	if op.Kind == felix.Get || !reply.Applied || op.Bounds != nil && reply.Delta == 0 {
		return // nothing was written
	}
	made := reply.Int
	if op.Kind == felix.Set {
		made = setTo(op)
	}
	if other, twice := key.versions[reply.Version]; twice {
		h.w.fail("%s: version %x is of %d and of %d", key.key, reply.Version, other, made)
	}
	key.versions[reply.Version] = made
	if key.sums {
		key.must |= op.Int
		key.acks = append(key.acks, ack{op.Int, reply.Version >> 40, k.decided})
	}
}

func setTo(op *felix.Op) int64 {
	if op.View == felix.ViewCounter {
		return op.Int
	}
	n, err := strconv.ParseInt(string(op.Value), 10, 64)
	if err != nil {
		panic(err)
	}
	return n
}

// sorted are the keys in an order that is always the same.
func (h *history) sorted() (keys []*keyHistory) {
	for _, key := range slices.Sorted(maps.Keys(h.keys)) {
		keys = append(keys, h.keys[key])
	}
	return keys
}
