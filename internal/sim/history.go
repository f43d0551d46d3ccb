package sim

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/shard"
)

const (
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
	live   map[string]*keyHistory
	told   map[*group]int64 // the newest shard time
	clears []clearing
	groups [][]adding
	times  map[*group][]timing
}

// keyHistory is what clients were told of one key.
type keyHistory struct {
	g        *group
	key      string
	sums     bool         // only adds of powers of two, and gets
	views    []felix.View // in which it is used
	asked    int
	unknown  int
	version  uint64 // some version that was told
	must     int64  // sums: acknowledged
	may      int64
	acks     []ack
	last     int64            // sums: in the end
	versions map[uint64]int64 // of acknowledged changes, with what they made of it
	ops      []porcupine.Operation
}

// ack is an acknowledged add, with when the owner said so.
type ack struct {
	bit  int64
	term uint64
	at   time.Duration
}

// clearing is a Clear of a shard.
type clearing struct {
	g     *group
	known bool
	op    porcupine.Operation
}

// timing is a shard time that was told to who asked at a moment.
type timing struct{ began, now int64 }

func (h *history) begin(w *world) {
	h.w, h.keys, h.live = w, map[string]*keyHistory{}, map[string]*keyHistory{}
	h.told, h.times = map[*group]int64{}, map[*group][]timing{}
}

// key is one of the keys in use.
func (h *history) key(g *group, sums bool) *keyHistory {
	kind := map[bool]string{true: "sum", false: "reg"}[sums]
	slot := fmt.Sprintf("%d/%s%d", g.id, kind, h.w.rng.IntN(h.w.profile.keys))
	k := h.live[slot]
	if k == nil || k.unknown >= maxUnknown && !h.w.profile.onlySums || k.asked >= maxRegisterOps && !sums || k.asked >= maxAdds {
		views := [][]felix.View{{felix.ViewCounter}, {felix.ViewValue}, {felix.ViewCounter, felix.ViewValue, felix.ViewRedis, felix.ViewRedis}}[h.w.rng.IntN(3)]
		if sums {
			views = []felix.View{felix.ViewCounter}
		}
		k = &keyHistory{g: g, key: fmt.Sprintf("%s/%d", slot, len(h.keys)), sums: sums, views: views, versions: map[uint64]int64{}}
		h.live[slot], h.keys[k.key] = k, k
	}
	return k
}

// wish is what a client wants next of a shard. One that reads asks for what
// changes nothing, most often: only that is answered by who owns nothing any more.
func (h *history) wish(g *group, reads bool) call {
	rng := h.w.rng
	switch n := rng.IntN(40); {
	case h.w.profile.onlySums && reads:
		return call{ops: []felix.Op{{Kind: felix.Get, Key: []byte(h.key(g, true).key)}}}
	case h.w.profile.onlySums:
		return call{ops: []felix.Op{h.sumOp(h.key(g, true))}}
	case n < 1, reads && n < 6:
		return call{kind: shard.Scan, scan: h.scan(g)}
	case n == 6, reads && n < 8:
		return call{kind: shard.Count}
	case n == 8 && !reads && g.clears > 0:
		g.clears--
		return call{kind: shard.Clear}
	}
	sums := func() bool { return !g.cleared && rng.IntN(2) == 0 }
	if reads {
		return call{ops: []felix.Op{h.readOp(h.key(g, sums()))}}
	}
	c := call{}
	for range 1 + rng.IntN(3) {
		if sums() {
			c.ops = append(c.ops, h.sumOp(h.key(g, true)))
		} else {
			c.ops = append(c.ops, h.registerOp(h.key(g, false)))
		}
	}
	h.group(g, &c)
	return c
}

// group makes of operations on different keys an atomic group, at times, which
// may depend on a key.
func (h *history) group(g *group, c *call) {
	if !h.w.one(3) {
		return
	}
	if h.w.one(3) {
		k := h.key(g, false)
		k.asked++
		check := felix.Op{Kind: felix.Check, Key: []byte(k.key), View: h.view(k), If: felix.If(1 + h.w.rng.IntN(2))}
		if k.version != 0 && h.w.one(2) {
			check.If, check.Version = felix.IfVersion, k.version
		}
		c.ops = slices.Insert(c.ops, h.w.rng.IntN(len(c.ops)+1), check)
	}
	seen := map[string]bool{}
	for i := range c.ops {
		if seen[string(c.ops[i].Key)] {
			return
		}
		seen[string(c.ops[i].Key)] = true
	}
	c.groups = []felix.Group{{To: int32(len(c.ops)), AllOrNothing: h.w.one(2)}}
}

// judgeGroup checks that a group was stopped by one operation for all others, or
// by none.
func (h *history) judgeGroup(k *call) {
	stopped, aborted := 0, 0
	for i := range k.ops {
		r := &k.got.replies[i]
		if k.got.err != nil || r.Err != nil && r.Err != felix.ErrNotInteger && r.Err != felix.ErrOverflow {
			return // it was not evaluated, or nobody knows
		}
		if r.Aborted {
			aborted++
		} else if k.groups[0].Stops(&k.ops[i], r) {
			stopped++
		}
	}
	if stopped > 1 || aborted != stopped*(len(k.ops)-1) {
		h.w.fail("call %d, a group of %d: %d operations stop it, %d are aborted", k.number, len(k.ops), stopped, aborted)
	}
}

// together notes which adds of a group go together, all or none.
func (h *history) together(k *call) {
	var adds []adding
	for i := range k.ops {
		if key := h.keys[string(k.ops[i].Key)]; key.sums && k.ops[i].Kind == felix.Add {
			adds = append(adds, adding{key, k.ops[i].Int})
		}
	}
	if len(adds) > 1 && k.g.consistency == felix.Quorum {
		h.groups = append(h.groups, adds)
	}
}

// adding is an add of a group to a counter of sums.
type adding struct {
	key *keyHistory
	bit int64
}

// scan is a page of the shard's keys.
func (h *history) scan(g *group) felix.ScanRequest {
	rng := h.w.rng
	q := felix.ScanRequest{View: felix.View(rng.IntN(3)), Prefix: fmt.Appendf(nil, "%d/", g.id), Limit: 1 + rng.IntN(20), KeysOnly: rng.IntN(4) == 0}
	if rng.IntN(2) == 0 {
		q.Prefix = append(q.Prefix, []string{"sum", "reg", "reg1", "sum2/"}[rng.IntN(4)]...)
	}
	if rng.IntN(2) == 0 {
		q.After = []byte(h.key(g, false).key)
	}
	return q
}

// readOp changes nothing, and asks perhaps as a change that does not come about.
func (h *history) readOp(k *keyHistory) felix.Op {
	rng := h.w.rng
	op := felix.Op{Kind: felix.Get, Key: []byte(k.key), View: h.view(k), NoValue: rng.IntN(6) == 0}
	if k.asked++; !k.sums && rng.IntN(2) == 0 {
		op.Kind, op.If = felix.Set, felix.IfAbsent
		h.fill(&op)
	}
	return op
}

func (h *history) view(k *keyHistory) felix.View { return k.views[h.w.rng.IntN(len(k.views))] }

// fill is what a Set stores.
func (h *history) fill(op *felix.Op) {
	n := h.w.rng.Int64N(1 << 40)
	switch {
	case op.View == felix.ViewCounter && h.w.one(10):
		op.Int = math.MaxInt64 - h.w.rng.Int64N(1000)
	case op.View == felix.ViewCounter:
		op.Int = n
	case h.w.one(2):
		op.Value = strconv.AppendInt(nil, n, 10)
	default:
		op.Value = strconv.AppendInt([]byte("v"), n, 10)
	}
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
	op := felix.Op{Kind: felix.Get, Key: []byte(k.key), View: h.view(k)}
	k.asked++
	switch n := rng.IntN(12); {
	case n < 3:
		op.NoValue = rng.IntN(4) == 0
		return op
	case n < 6 && op.View != felix.ViewValue:
		op.Kind, op.Int = felix.Add, rng.Int64N(2000)-1000
		if rng.IntN(3) == 0 {
			op.Bounds = &felix.Bounds{Min: -rng.Int64N(500), Max: rng.Int64N(1000), Saturate: rng.IntN(2) == 0}
		}
	case n < 9:
		op.Kind, op.If = felix.Set, felix.If(rng.IntN(4))
		h.fill(&op)
	case n < 11:
		op.Kind = felix.Expire
		h.expireIf(&op)
	default:
		op.Kind, op.If = felix.Delete, []felix.If{felix.Always, felix.IfPresent, felix.IfVersion}[rng.IntN(3)]
	}
	if op.Kind != felix.Add {
		op.ReturnOld = rng.IntN(3) == 0
	}
	if op.If == felix.IfVersion {
		if k.version == 0 {
			op.If = felix.Always
		}
		op.Version = k.version
	}
	if op.Kind == felix.Add || op.Kind == felix.Set {
		h.ttl(&op, k.g)
	}
	return op
}

// ttl lets what is written expire, or not.
func (h *history) ttl(op *felix.Op, g *group) {
	rng := h.w.rng
	switch rng.IntN(9) {
	case 8:
		if op.Kind == felix.Add {
			op.TTL, op.ExpiryMillis = felix.TTLInIfNone, 1+rng.Int64N(1000)
		}
	case 0, 1:
		op.TTL, op.ExpiryMillis = felix.TTLIn, 1+rng.Int64N(1000)
	case 2:
		op.TTL, op.ExpiryMillis = felix.TTLAt, max(h.told[g], wallStart)-100+rng.Int64N(1000)
	case 3:
		op.TTL = felix.TTLKeep
	case 4:
		op.TTL = felix.TTLClear
	}
}

// expireIf is when an Expire lets the record expire, and on which condition.
func (h *history) expireIf(op *felix.Op) {
	rng := h.w.rng
	h.ttl(op, h.keys[string(op.Key)].g)
	if op.TTL != felix.TTLIn && op.TTL != felix.TTLAt {
		return
	}
	if op.TTL == felix.TTLIn && rng.IntN(10) == 0 {
		op.ExpiryMillis = 0 // at once
	}
	op.ExpireIf = []felix.ExpireIf{0, 0, felix.ExpireIfNone, felix.ExpireIfSome, felix.ExpireIfLater, felix.ExpireIfSooner,
		felix.ExpireIfSome | felix.ExpireIfLater}[rng.IntN(7)]
}

// answered takes down what came of a call.
func (h *history) answered(k *call) {
	switch k.kind {
	case shard.Scan:
		h.scanned(k)
	case shard.Count:
		h.counted(k)
	case shard.Clear:
		h.cleared(k)
	default:
		if len(k.groups) > 0 {
			h.judgeGroup(k)
			h.together(k)
		}
		for i := range k.ops {
			h.answeredOp(k, i)
		}
	}
}

func code(err *felix.Error) uint64 {
	if err == nil {
		return 0
	}
	return uint64(err.Code)
}

// scanned takes down for every key in the page's range whether it was shown.
func (h *history) scanned(k *call) {
	page := &k.got.page
	h.w.note("call %d, a scan: error %d, %d items, more %d", k.number, code(k.got.err), uint64(len(page.Items)), uint64(len(page.Next)))
	if k.got.err != nil || k.g.consistency != felix.Quorum {
		return
	}
	h.w.count("scans")
	h.learnTime(k, page.NowMillis)
	shown := map[string]*felix.ScanItem{}
	for i := range page.Items {
		item := &page.Items[i]
		if key := string(item.Key); i > 0 && key <= string(page.Items[i-1].Key) || h.keys[key] == nil || h.keys[key].g != k.g {
			h.w.fail("a scan of shard %d shows %q, which is not in its order, or was never written there", k.g.id, key)
		}
		shown[string(item.Key)] = item
	}
	for name, key := range h.keys {
		if key.g != k.g || !strings.HasPrefix(name, string(k.scan.Prefix)) || name <= string(k.scan.After) || page.More && name > string(page.Next) {
			continue
		}
		in := input{op: felix.Op{Kind: felix.Get, Key: []byte(name), View: k.scan.View}, what: listed, known: true, from: page.NowMillis}
		out := &felix.Reply{}
		if item := shown[name]; item != nil {
			*out = felix.Reply{Found: item.Kind, Int: item.Int, Value: item.Value, ExpiresAtMillis: item.ExpiresAtMillis, Version: item.Version}
			if item.Kind == felix.ValueRecord && k.scan.KeysOnly {
				in.what = named
			}
			delete(shown, name)
		}
		key.ops = append(key.ops, porcupine.Operation{ClientId: k.c.id * 8, Input: in, Call: k.began, Output: out, Return: k.ended})
	}
	if len(shown) > 0 {
		h.w.fail("a scan of shard %d shows what is not in its range: %v", k.g.id, shown)
	}
}

// counted checks a count. Counters of sums only become more.
func (h *history) counted(k *call) {
	counts := k.got.counts
	h.w.note("call %d, a count: error %d, %d counters, %d values, %d keys", k.number, code(k.got.err), uint64(counts.Counters), uint64(counts.Values), uint64(counts.Keys))
	if k.got.err != nil || k.g.consistency != felix.Quorum {
		return
	}
	h.w.count("counts")
	least, most := int64(0), int64(0)
	for _, key := range h.keys {
		if key.g != k.g {
			continue
		}
		most++
		if key.sums && key.ackedBefore(k.began) {
			least++
		}
	}
	if counts.Keys > most || counts.Counters < least || counts.Keys > counts.Counters+counts.Values || counts.Keys < max(counts.Counters, counts.Values) {
		h.w.fail("shard %d counts %+v; there were %d counters, and at most %d keys", k.g.id, counts, least, most)
	}
}

func (key *keyHistory) ackedBefore(began int64) bool {
	return slices.ContainsFunc(key.ops, func(o porcupine.Operation) bool {
		in := o.Input.(input)
		return in.known && in.op.Kind == felix.Add && o.Return < began
	})
}

func (h *history) cleared(k *call) {
	h.w.note("call %d, a clear: error %d", k.number, code(k.got.err))
	o := porcupine.Operation{ClientId: k.c.id * 8, Input: input{op: felix.Op{Kind: felix.Get}, what: cleared, known: k.got.err == nil}, Call: k.began,
		Output: &felix.Reply{}, Return: k.ended}
	switch {
	case k.got.err == nil:
		h.w.count("clears")
	case k.got.err.MayBeApplied():
		o.Return = math.MaxInt64
	default:
		return
	}
	h.clears = append(h.clears, clearing{k.g, k.got.err == nil, o})
}

// answeredOp takes down what came of an operation.
func (h *history) answeredOp(k *call, i int) {
	w, op, reply := h.w, &k.ops[i], k.got.replies[i]
	key := h.keys[string(op.Key)]
	// What the state is at fault for is an answer about it, as good as any other.
	known := reply.Err == nil || reply.Err == felix.ErrNotInteger || reply.Err == felix.ErrOverflow
	w.note("call %d, operation %d: error %d, applied or found %d, %d, version %x", k.number, uint64(i), code(reply.Err), answerBits(&reply), uint64(reply.Int), reply.Version)
	switch {
	case reply.Aborted: // as if it had not been asked
		w.count("aborted")
		if len(k.groups) == 0 || reply.Applied {
			w.fail("%s: call %d is told that it was aborted", key.key, k.number)
		}
		return
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
	o := porcupine.Operation{ClientId: k.c.id*8 + i, Input: input{op: *op, known: known, from: k.told}, Call: k.began, Output: &reply, Return: k.ended}
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

// learnTime checks a shard time that was told.
func (h *history) learnTime(k *call, now int64) {
	if now == 0 || k.g.consistency != felix.Quorum {
		return
	}
	if now < k.told {
		h.w.fail("shard %d: time goes back from %d to %d", k.g.id, k.told-wallStart, now-wallStart)
	}
	h.told[k.g] = max(h.told[k.g], now)
	h.times[k.g] = append(h.times[k.g], timing{k.began, now})
}

// learn checks an answer against all others, as far as that can be said at once.
func (h *history) learn(k *call, key *keyHistory, op *felix.Op, reply *felix.Reply) {
	h.learnTime(k, reply.NowMillis)
	if reply.ExpiresAtMillis != 0 && reply.NowMillis == 0 {
		h.w.fail("%s: an expiry is told without the time", key.key)
	}
	if reply.Version == 0 {
		return
	}
	key.version = reply.Version
	if op.Kind == felix.Get || op.Kind == felix.Delete || op.Kind == felix.Expire || op.Kind == felix.Check || !reply.Applied ||
		op.TTL == felix.TTLAt || op.Bounds != nil {
		return
	}
	made := reply.Int
	if op.Kind == felix.Set {
		made = content(op).data
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

// sorted are the keys in an order that is always the same.
func (h *history) sorted() (keys []*keyHistory) {
	for _, key := range slices.Sorted(maps.Keys(h.keys)) {
		keys = append(keys, h.keys[key])
	}
	return keys
}
