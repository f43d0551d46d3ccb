package broker

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/felix-go/felix"
)

// crashPoints is how many power cuts of each class of disk operation a test
// takes at first; the later ones of the class are taken less and less often.
// FELIX_CRASH_POINTS sets it.
func crashPoints(t testing.TB) float64 {
	s := os.Getenv("FELIX_CRASH_POINTS")
	if s == "" {
		return 0.5
	}
	n, err := strconv.ParseFloat(s, 64)
	if err != nil {
		t.Fatalf("FELIX_CRASH_POINTS: %v", err)
	}
	return n
}

// testSeed is a new seed, or FELIX_TEST_SEED to see a failure again.
func testSeed(t testing.TB) uint64 {
	seed := rand.Uint64()
	if s := os.Getenv("FELIX_TEST_SEED"); s != "" {
		var err error
		if seed, err = strconv.ParseUint(s, 10, 64); err != nil {
			t.Fatalf("FELIX_TEST_SEED: %v", err)
		}
	}
	t.Logf("FELIX_TEST_SEED=%d", seed)
	return seed
}

// marks are the positions of all histories at one moment.
type marks map[*history]int64

func (w *world) marks(acked bool) (marks, map[*tally]int64) {
	m, tallies := marks{}, map[*tally]int64{}
	read := func(h *history) {
		if m[h] = h.begun.Load(); acked {
			m[h] = h.acked.Load()
		}
	}
	for _, c := range w.caches {
		read(c.exists)
		for _, h := range c.keys {
			read(h)
		}
		for _, t := range c.tallies {
			if tallies[t] = t.begun.Load(); acked {
				tallies[t] = t.acked.Load()
			}
		}
	}
	return m, tallies
}

// powerCut is the disk as a power cut at one moment leaves it, and what may
// stand on it.
type powerCut struct {
	fs             *vfs.MemFS
	where          string
	lo, hi         marks
	lowest, higher map[*tally]int64
	wall           int64
	exact          found // what must be there; nil is anything from lo to hi
}

// found is what a broker showed of each key, tally and cache.
type found map[any]state

// crasher takes power cuts at the operations of a disk.
type crasher struct {
	w    *world
	fs   *diskFS
	mem  *vfs.MemFS
	rate float64

	mu   sync.Mutex
	rng  *rand.Rand
	seen map[string]int
	cuts []*powerCut
}

func newCrasher(w *world, mem *vfs.MemFS, seed uint64, rate float64) *crasher {
	c := &crasher{w: w, mem: mem, rate: rate, rng: rand.New(rand.NewPCG(seed, 77)), seen: map[string]int{}}
	c.fs = &diskFS{FS: mem,
		before: func(op diskOp) error { c.point("before "+op.class(), op); return nil },
		after:  func(op diskOp) { c.point("after "+op.class(), op) }}
	return c
}

// point is a moment at which the power may fail: around everything that makes
// something durable or changes a directory. What only writes data cannot change
// what a power cut leaves, except by chance.
func (c *crasher) point(class string, op diskOp) {
	if op.kind == "write" || op.kind == "opendir" || op.kind == "close" {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seen[class]++
	if c.rng.Float64()*float64(c.seen[class]) > c.rate {
		return
	}
	cut := &powerCut{where: fmt.Sprintf("%s (%d)", class, c.seen[class])}
	cfg := vfs.CrashCloneCfg{}
	if c.rng.IntN(2) == 0 {
		cfg.UnsyncedDataPercent, cfg.RNG = c.rng.IntN(101), rand.New(rand.NewPCG(c.rng.Uint64(), 5))
	}
	cut.where += fmt.Sprintf(", %d%% of the unsynced kept", cfg.UnsyncedDataPercent)
	cut.lo, cut.lowest = c.w.marks(true)
	c.fs.reuse.Lock()
	cut.fs = c.mem.CrashClone(cfg)
	c.fs.reuse.Unlock()
	cut.hi, cut.higher = c.w.marks(false)
	cut.wall = c.w.wall.Load()
	c.cuts = append(c.cuts, cut)
}

// stop takes no more power cuts.
func (c *crasher) stop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.rate = 0
}

func (c *crasher) take() []*powerCut {
	c.mu.Lock()
	defer c.mu.Unlock()
	cuts := c.cuts
	c.cuts = nil
	return cuts
}

// TestPowerLoss cuts the power around every kind of operation that makes
// something durable, while clients work, caches come and go, and checkpoints
// and evictions never stop. On every disk that is left the broker opens, and
// shows each key as it was acknowledged, or as an unanswered operation made it.
func TestPowerLoss(t *testing.T) {
	const clients, rounds = 4, 160
	seed := testSeed(t)
	w := newWorld(t, clients)
	c := newCrasher(w, vfs.NewCrashableMem(), seed, crashPoints(t))
	o := w.options()
	o.FS = c.fs
	b, err := Open(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	w.run(b, seed, clients, rounds)
	stats := b.Stats()
	if err := b.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	cuts := c.take()
	t.Logf("%d operations, %d log syncs, %d checkpoints, %d kinds of disk operation, %d power cuts",
		w.ops.Load(), stats.Log.Syncs, stats.Checkpoints.Checkpoints, len(c.seen), len(cuts))
	if stats.Checkpoints.Checkpoints < 5 || len(cuts) < 20 {
		t.Errorf("the load met %d checkpoints and %d power cuts: too few to prove anything", stats.Checkpoints.Checkpoints, len(cuts))
	}
	second := 0
	for i, cut := range cuts {
		again := w.survive(cut, seed+uint64(i), i%5 == 0)
		second += len(again)
		for j, cut := range again {
			w.survive(cut, seed+uint64(i+j), false)
		}
		if t.Failed() {
			break
		}
	}
	t.Logf("%d power cuts while a broker recovered", second)
}

// survive opens a broker on what a power cut has left, checks it, closes it,
// and opens it once more: what a recovered broker writes must be right too. It
// answers second power cuts, taken in its course.
func (w *world) survive(cut *powerCut, seed uint64, again bool) []*powerCut {
	w.t.Helper()
	o := w.options()
	var wall atomic.Int64
	wall.Store(cut.wall)
	o.Wall = wall.Load
	o.FS = cut.fs
	c := newCrasher(w, cut.fs, seed, crashPoints(w.t)/20)
	if again {
		o.FS = c.fs
	}
	var shown found
	for i := range 2 {
		b, err := Open(context.Background(), o)
		if err != nil {
			w.t.Fatalf("power cut %s: opening: %v", cut.where, err)
		}
		got := w.look(b, cut)
		if i > 0 {
			w.same(cut, shown, got)
		} else if shown = got; cut.exact != nil {
			w.same(cut, cut.exact, got)
		}
		if i > 0 && seed%8 == 0 {
			c.stop()
			wall.Add(100_000_000)
			w.sweepAll(b)
		}
		if err := b.Close(context.Background()); err != nil {
			w.t.Fatalf("power cut %s: closing: %v", cut.where, err)
		}
	}
	cuts := c.take()
	for _, second := range cuts {
		second.where = cut.where + ", then " + second.where
		second.lo, second.hi, second.lowest, second.higher, second.wall = cut.lo, cut.hi, cut.lowest, cut.higher, cut.wall
		second.exact = shown // what was shown stays, whenever the power fails again
	}
	return cuts
}

// same checks that a broker shows what one before it has shown.
func (w *world) same(cut *powerCut, before, now found) {
	w.t.Helper()
	for key, was := range before {
		is := now[key]
		if h, ok := key.(*history); ok && h.ttl && is.kind == felix.NoRecord && was.expiry < cut.wall+clockSlack {
			continue
		}
		if is != was {
			w.t.Errorf("power cut %s: a broker showed %v; the next one on the same disk shows %v", cut.where, was, is)
		}
	}
}

// clockSlack is how far, in milliseconds, shard time may be ahead of the wall
// clock after a restart, and then some.
const clockSlack = 5000

// look reads everything and checks it against the cut.
func (w *world) look(b *Broker, cut *powerCut) found {
	w.t.Helper()
	shown := found{}
	ctx := context.Background()
	for _, c := range w.caches {
		info, err := b.CacheInfo(ctx, c.scope)
		exists := state{}
		if err == nil {
			exists = state{kind: felix.CounterRecord, n: int64(info.Replication)}
			if info.Shards != c.settings.Shards || info.Consistency != c.settings.Consistency {
				w.t.Errorf("power cut %s: cache %s is %+v", cut.where, c.scope, info.CacheSettings)
			}
		} else if felix.AsError(err).Code != felix.CacheNotFound {
			w.t.Fatalf("power cut %s: cache %s: %v", cut.where, c.scope, err)
		}
		shown[c.exists] = exists
		w.allowed(cut, c, c.exists, exists)
		if err != nil {
			for _, h := range c.keys {
				w.allowed(cut, c, h, state{})
			}
			continue
		}
		w.lookInto(b, cut, c, shown)
	}
	return shown
}

func (w *world) lookInto(b *Broker, cut *powerCut, c *cacheHistory, shown found) {
	w.t.Helper()
	ctx := context.Background()
	cache, err := b.Cache(ctx, c.scope)
	if err != nil {
		w.t.Fatal(err)
	}
	var ops []felix.Op
	for _, h := range c.keys {
		ops = append(ops, felix.Op{Kind: felix.Get, View: h.view, Key: h.key})
	}
	for _, t := range c.tallies {
		ops = append(ops, felix.Op{Kind: felix.Get, Key: t.key})
	}
	replies, err := felix.Do(ctx, cache, ops...)
	if err != nil {
		w.t.Fatal(err)
	}
	records := 0
	for i, r := range replies {
		if r.Err != nil {
			w.t.Fatalf("power cut %s: Get of %q: %v", cut.where, ops[i].Key, r.Err)
		}
		got := stateOf(r)
		if got.kind != felix.NoRecord {
			records++
		}
		if i < len(c.keys) {
			shown[c.keys[i]] = got
			w.allowed(cut, c, c.keys[i], got)
			continue
		}
		t := c.tallies[i-len(c.keys)]
		shown[t] = got
		if got.n < cut.lowest[t] || got.n > cut.higher[t] {
			w.t.Errorf("power cut %s: the sum of %q is %d; %d were acknowledged, %d unanswered", cut.where, t.key,
				got.n, cut.lowest[t], cut.higher[t]-cut.lowest[t])
		}
	}
	page, err := cache.Scan(ctx, felix.ScanRequest{View: felix.ViewRedis, Limit: felix.MaxScanPage})
	if err != nil {
		w.t.Fatal(err)
	}
	for _, item := range page.Items {
		if !bytes.ContainsAny(item.Key, "/") && c.scope.Cache != "leader" {
			w.t.Errorf("power cut %s: a scan of %s shows %q", cut.where, c.scope, item.Key)
		}
	}
	count, err := cache.Count(ctx)
	if err != nil {
		w.t.Fatal(err)
	}
	expiring := c == w.cache("expiring") // what has expired counts until it is swept
	if len(page.Items) != records || !expiring && int(count.Keys) != records || !expiring && int(count.Counters+count.Values) != records {
		w.t.Errorf("power cut %s: %s has %d records by Get, %d by Scan, %+v by Count", cut.where, c.scope, records, len(page.Items), count)
	}
}

// allowed checks that what a key holds is one of the states from lo to hi. A
// leader cache may have lost the newest ones.
func (w *world) allowed(cut *powerCut, c *cacheHistory, h *history, got state) {
	w.t.Helper()
	lo, hi := cut.lo[h], cut.hi[h]
	if c.settings.Consistency == felix.Leader && h != c.exists {
		lo = 0
	}
	for _, s := range h.states[lo : hi+1] {
		if got.kind == felix.NoRecord && s.expiry != 0 && s.expiry < cut.wall+clockSlack {
			return
		}
		if s.version == 0 {
			s.version = got.version // nobody was told it
		}
		if got == s && (s.expiry == 0 || s.expiry > cut.wall) {
			return
		}
	}
	w.t.Errorf("power cut %s: %s: %q is %v; it may be %v", cut.where, c.scope, h.key, got, h.states[lo:hi+1])
}

// sweepAll waits for the records, which have all expired by now, to go by
// themselves.
func (w *world) sweepAll(b *Broker) {
	w.t.Helper()
	cache, err := b.Cache(context.Background(), w.cache("expiring").scope)
	if err != nil {
		return // the power failed before it was made
	}
	eventually(w.t, "expired records are gone", func() bool {
		count, err := cache.Count(context.Background())
		if err != nil {
			w.t.Fatal(err)
		}
		return count == felix.RecordCount{}
	})
}

// eventually waits until ok says yes.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("after a minute it is still not so that %s", what)
		}
		time.Sleep(time.Millisecond)
	}
}
