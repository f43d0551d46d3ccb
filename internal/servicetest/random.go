package servicetest

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/model"
)

// testRandom runs the same random operations against the service and the model.
// A failure prints its seed; put it in seeds to run it again.
func testRandom(t *testing.T, e *env) {
	seeds := []uint64{1, 2, 3, rand.Uint64()}
	for _, seed := range seeds {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			w := &walk{t: t, cache: e.cacheWith(t, felix.CacheSettings{Shards: 1 + int(seed%5)}), gen: NewGenerator(seed), pairs: NewVersions()}
			w.start(e)
			for range 150 {
				if !w.batch() {
					t.Fatalf("seed %d: see above", seed)
				}
			}
		})
	}
}

// walk is one random run.
type walk struct {
	t     *testing.T
	cache felix.Cache // under test
	ref   felix.Cache // of the model
	model *model.Service
	gen   *Generator
	pairs *Versions
	clock Clocked // nil if time cannot be set

	ungrouped bool
}

func (w *walk) start(e *env) {
	w.gen.Now = one(w.t, w.cache, add("base", 1, at(far))).NowMillis + 1000
	one(w.t, w.cache, del("base"))
	w.model = model.New(func() int64 { return 0 })
	w.model.SetNow(w.gen.Now)
	_, w.ungrouped = e.service.(Ungrouped)
	if clock, ok := e.service.(Clocked); ok {
		w.clock, w.gen.Timed = clock, true
		clock.SetNow(w.gen.Now)
	}
	scope := w.cache.Scope()
	info, err := e.service.CacheInfo(within(w.t), scope)
	if err != nil {
		w.t.Fatal(err)
	}
	if _, _, _, err := w.model.CreateCache(within(w.t), scope, info.CacheSettings); err != nil {
		w.t.Fatal(err)
	}
	ref, err := w.model.Cache(within(w.t), scope)
	if err != nil {
		w.t.Fatal(err)
	}
	w.ref = ref
}

// batch runs one batch, and sometimes more, and says whether all was the same.
func (w *walk) batch() bool {
	w.t.Helper()
	rng := w.gen.rng
	ops := make([]felix.Op, 1+rng.IntN(12))
	theirs := make([]felix.Op, len(ops))
	for i := range ops {
		ops[i] = w.gen.Op(w.pairs.Known)
		theirs[i] = w.pairs.Translate(ops[i])
	}
	var groups []felix.Group
	if !w.ungrouped {
		groups = w.groups(len(ops))
	}
	want, got := doGroups(w.t, w.ref, ops, groups), doGroups(w.t, w.cache, theirs, groups)
	for i := range ops {
		if err := w.pairs.Compare(&ops[i], got[i], want[i], w.clock != nil); err != nil {
			w.t.Errorf("op %d of %d, %s: %v", i+1, len(ops), describe(&ops[i]), err)
			return false
		}
	}
	switch rng.IntN(15) {
	case 0:
		w.compareScans()
	case 1:
		if w.clock == nil {
			w.compareCounts()
		}
	case 2, 3, 4:
		if w.clock != nil {
			w.gen.Now += int64(rng.IntN(1000))
			w.clock.SetNow(w.gen.Now)
			w.model.SetNow(w.gen.Now)
		}
	case 5:
		if rng.IntN(4) == 0 {
			if err := errors.Join(w.cache.Clear(within(w.t)), w.ref.Clear(within(w.t))); err != nil {
				w.t.Fatalf("clear: %v", err)
			}
		}
	}
	return !w.t.Failed()
}

// groups makes groups of some of n operations.
func (w *walk) groups(n int) (groups []felix.Group) {
	rng := w.gen.rng
	for at := int32(0); rng.IntN(2) == 0 && at < int32(n); {
		from := at + rng.Int32N(int32(n)-at)
		at = from + 1 + rng.Int32N(int32(n)-from)
		groups = append(groups, felix.Group{From: from, To: at, AllOrNothing: rng.IntN(2) == 0})
	}
	return groups
}

func (w *walk) compareScans() {
	w.t.Helper()
	for view := felix.ViewCounter; view <= felix.ViewRedis; view++ {
		req := felix.ScanRequest{View: view, Limit: 1 + w.gen.rng.IntN(4), KeysOnly: w.gen.rng.IntN(4) == 0}
		if w.gen.rng.IntN(2) == 0 {
			req.Prefix = w.gen.key()[:1]
		}
		sameItems(w.t, fmt.Sprintf("scan of view %d, prefix %q", view, req.Prefix), pages(w.t, w.cache, req), pages(w.t, w.ref, req))
	}
}

func (w *walk) compareCounts() {
	w.t.Helper()
	got, err := w.cache.Count(within(w.t))
	want, errRef := w.ref.Count(within(w.t))
	if err != nil || errRef != nil || got != want {
		w.t.Errorf("counts %+v, error %v, want %+v, error %v", got, err, want, errRef)
	}
}

// Generator makes random operations on few keys, with many edge cases.
type Generator struct {
	// Now is the shard time that expiries are made around.
	Now int64
	// Timed says that the shard time of both sides is always Now; if not,
	// only expiries that are far away or long past are made.
	Timed bool

	rng *rand.Rand
}

// NewGenerator makes a generator that always makes the same for a seed.
func NewGenerator(seed uint64) *Generator { return &Generator{rng: rand.New(rand.NewPCG(seed, 0))} }

func pick[T any](rng *rand.Rand, from ...T) T { return from[rng.IntN(len(from))] }

func (g *Generator) key() []byte {
	return []byte(pick(g.rng, "a", "b", "c", "ab", "{a}1", "{a}2", "\x00", "\xff\xff", "a{b}\r\n"))
}

// Op makes an operation. known chooses a version for a key to make conditions
// on. A few operations are illegal on purpose.
func (g *Generator) Op(known func(key string, rng *rand.Rand) uint64) felix.Op {
	rng := g.rng
	op := felix.Op{
		Kind: pick(rng, felix.Get, felix.Add, felix.Add, felix.Set, felix.Set, felix.Delete, felix.Expire, felix.Expire,
			felix.Check),
		View: pick(rng, felix.ViewCounter, felix.ViewValue, felix.ViewRedis, felix.ViewRedis, felix.ViewRedis),
		Key:  g.key(),
	}
	switch op.Kind {
	case felix.Add:
		op.Int = pick[int64](rng, 0, 1, 1, -1, 5, rng.Int64N(1000), -rng.Int64N(1000), math.MaxInt64, math.MinInt64, int64(rng.Uint64()))
		if op.View == felix.ViewValue && rng.IntN(10) != 0 {
			op.View = felix.ViewRedis
		}
		if rng.IntN(3) == 0 {
			op.Bounds = g.bounds()
		}
	case felix.Set:
		if op.View == felix.ViewCounter {
			op.Int = pick[int64](rng, 0, 7, -7, math.MaxInt64, math.MinInt64, int64(rng.Uint64()))
		} else {
			op.Value = g.value()
		}
		op.If = pick(rng, felix.Always, felix.Always, felix.IfAbsent, felix.IfPresent, felix.IfVersion)
	case felix.Delete:
		op.If = pick(rng, felix.Always, felix.Always, felix.IfPresent, felix.IfVersion)
	case felix.Check:
		op.If = pick(rng, felix.IfAbsent, felix.IfPresent, felix.IfPresent, felix.IfVersion)
	case felix.Expire:
		op.ExpireIf = pick(rng, 0, 0, felix.ExpireIfNone, felix.ExpireIfSome, felix.ExpireIfLater, felix.ExpireIfSooner,
			felix.ExpireIfSome|felix.ExpireIfLater, felix.ExpireIfSome|felix.ExpireIfSooner)
	}
	if op.If == felix.IfVersion {
		op.Version = known(string(op.Key), rng)
	}
	op.ReturnOld = op.Kind >= felix.Set && op.Kind != felix.Check && rng.IntN(2) == 0
	op.NoValue = rng.IntN(4) == 0
	if op.Kind == felix.Expire || op.Kind != felix.Get && op.Kind != felix.Delete && op.Kind != felix.Check && rng.IntN(2) == 0 {
		g.expiry(&op)
	}
	if rng.IntN(100) == 0 { // probably illegal
		op.ExpireIf = felix.ExpireIf(rng.IntN(20))
		op.If = felix.If(rng.IntN(5))
		op.TTL = pick(rng, felix.TTLDefault, felix.TTLKeep, felix.TTLClear, felix.TTLInIfNone, felix.TTLAtIfNone+1)
		op.Kind = felix.Kind(rng.IntN(8))
		op.Bounds = pick(rng, nil, nil, g.bounds(), &felix.Bounds{Min: 1})
	}
	return op
}

func (g *Generator) value() []byte {
	rng := g.rng
	if rng.IntN(2) == 0 {
		return fmt.Append(nil, rng.IntN(2000)-1000)
	}
	return []byte(pick(rng, "", "abc", "-0", "+5", "01", " 1", "1 ", "9223372036854775807", "9223372036854775808",
		"-9223372036854775808", "-9223372036854775809", "1.5", "\x00\xff", "0", "-"))
}

func (g *Generator) expiry(op *felix.Op) {
	rng := g.rng
	timed := func(ttl felix.TTL, millis int64) { op.TTL, op.ExpiryMillis = ttl, millis }
	switch n := rng.IntN(12); {
	case n == 0:
		op.TTL = felix.TTLKeep
	case n <= 2:
		op.TTL = felix.TTLClear
	case n == 3:
		timed(pick(rng, felix.TTLIn, felix.TTLAt), pick[int64](rng, 0, -1, math.MinInt64, math.MaxInt64, felix.MaxExpiryMillis+1))
	case n == 4:
		timed(felix.TTLAt, pick[int64](rng, 1, 2, felix.MaxExpiryMillis, felix.MaxExpiryMillis-1))
	case !g.Timed:
		timed(felix.TTLAt, far+rng.Int64N(5))
	case n <= 8:
		timed(felix.TTLIn, rng.Int64N(3000)-100)
	default:
		timed(felix.TTLAt, g.Now+rng.Int64N(3000)-100)
	}
	if op.TTL != felix.TTLIn && op.TTL != felix.TTLAt && rng.IntN(10) != 0 {
		op.ExpireIf = 0
	}
	if op.Kind == felix.Add && op.TTL >= felix.TTLIn && rng.IntN(2) == 0 {
		op.TTL += felix.TTLInIfNone - felix.TTLIn
	}
}

func (g *Generator) bounds() *felix.Bounds {
	rng := g.rng
	n := rng.Int64N(1200) - 600
	return &felix.Bounds{
		Min:      pick(rng, math.MinInt64, 0, n, math.MaxInt64-7),
		Max:      pick(rng, math.MaxInt64, n+rng.Int64N(100), n+500, math.MinInt64+7),
		Saturate: rng.IntN(2) == 0,
	}
}

// Versions pairs the versions that two implementations gave to the same writes,
// per key: they differ, but must stand for the same writes in the same order.
type Versions struct {
	theirs map[versionOf]uint64 // by ours
	newest map[string]uint64    // theirs, per key
	known  map[string][]uint64  // ours, per key
}

type versionOf struct {
	key     string
	version uint64
}

// NewVersions makes an empty Versions.
func NewVersions() *Versions {
	return &Versions{theirs: map[versionOf]uint64{}, newest: map[string]uint64{}, known: map[string][]uint64{}}
}

// Known chooses one of our versions of the key: mostly the newest, sometimes an
// old one or one that never was.
func (v *Versions) Known(key string, rng *rand.Rand) uint64 {
	all := v.known[key]
	switch {
	case len(all) == 0 || rng.IntN(10) == 0:
		return 1<<62 + rng.Uint64N(5)
	case rng.IntN(3) == 0:
		return all[rng.IntN(len(all))]
	}
	return all[len(all)-1]
}

// Translate makes an operation with our version one with theirs.
func (v *Versions) Translate(op felix.Op) felix.Op {
	if their, ok := v.theirs[versionOf{string(op.Key), op.Version}]; ok {
		op.Version = their
	}
	return op
}

// Compare says how their reply to the operation differs from ours. exactTime
// says that both had the same time.
func (v *Versions) Compare(op *felix.Op, their, our felix.Reply, exactTime bool) error {
	if why := replyDiffers(their, our); why != "" {
		return fmt.Errorf("%s\n got %s\nwant %s", why, show(their), show(our))
	}
	if (their.NowMillis == 0) != (our.NowMillis == 0) || exactTime && their.NowMillis != our.NowMillis {
		return fmt.Errorf("now is %d, want %d", their.NowMillis, our.NowMillis)
	}
	if (their.Version == 0) != (our.Version == 0) {
		return fmt.Errorf("version %d, want %d", their.Version, our.Version)
	}
	if our.Version == 0 {
		return nil
	}
	key := string(op.Key)
	expected, seen := v.theirs[versionOf{key, our.Version}]
	if seen {
		if their.Version != expected {
			return fmt.Errorf("version %d, but the record has version %d", their.Version, expected)
		}
		return nil
	}
	if their.Version <= v.newest[key] {
		return fmt.Errorf("a new write has version %d after version %d", their.Version, v.newest[key])
	}
	v.newest[key] = their.Version
	v.theirs[versionOf{key, our.Version}] = their.Version
	v.known[key] = append(v.known[key], our.Version)
	return nil
}
