package broker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/felix-go/felix"
)

// state is what one key holds.
type state struct {
	kind    felix.RecordKind
	n       int64
	value   string
	expiry  int64
	version uint64 // 0 where no reply has told it
}

func (s state) String() string {
	switch s.kind {
	case felix.CounterRecord:
		return fmt.Sprintf("counter %d (version %#x, expires %d)", s.n, s.version, s.expiry)
	case felix.ValueRecord:
		return fmt.Sprintf("value of %d bytes %.12q (version %#x, expires %d)", len(s.value), s.value, s.version, s.expiry)
	}
	return "nothing"
}

// history is what became of one key, which only one client at a time changes.
// After a power cut the key holds one of the states from acked, read before the
// cut, to begun, read after it.
type history struct {
	key  []byte
	view felix.View
	ttl  bool // every record expires

	states       []state // changed by the client; read by others once it has ended
	acked, begun atomic.Int64
}

func newHistory(key string, view felix.View, ttl bool) *history {
	return &history{key: []byte(key), view: view, ttl: ttl, states: make([]state, 1)}
}

func (h *history) last() state { return h.states[h.acked.Load()] }

// begin notes that the key may become s from now on.
func (h *history) begin(s state) {
	h.states = append(h.states, s)
	h.begun.Store(int64(len(h.states) - 1))
}

// ack notes that it is what begin said, or, for a refusal, what it was.
func (h *history) ack(version uint64, applied bool) {
	n := h.begun.Load()
	if !applied {
		h.states[n] = h.last()
	} else if h.states[n].kind != felix.NoRecord {
		h.states[n].version = version
	}
	h.acked.Store(n)
}

// tally is a counter that many clients only add to.
type tally struct {
	key          []byte
	acked, begun atomic.Int64
}

// cacheHistory is what became of one cache.
type cacheHistory struct {
	scope     felix.Scope
	settings  felix.CacheSettings
	exists    *history // CounterRecord with the replication while it exists
	keys      []*history
	tallies   []*tally
	temporary bool
}

func newCacheHistory(name string, settings felix.CacheSettings) *cacheHistory {
	return &cacheHistory{scope: felix.Scope{Tenant: "t", Namespace: "n", Cache: name}, settings: settings,
		exists: newHistory(name, felix.ViewCounter, false)}
}

// world is a broker under load, and all that clients know of what it did.
type world struct {
	t      testing.TB
	wall   atomic.Int64
	caches []*cacheHistory
	ops    atomic.Int64
	// loose lets clients end quietly when an operation fails: the disk was
	// made to.
	loose bool
	stop  atomic.Bool // clients end before their next operation
}

const worldStart = 1_800_000_000_000

// newWorld makes the plan of a load: which caches and keys there will be.
func newWorld(t testing.TB, clients int) *world {
	w := &world{t: t}
	w.wall.Store(worldStart)
	main := newCacheHistory("main", felix.CacheSettings{Shards: 4, Replication: 1})
	expiring := newCacheHistory("expiring", felix.CacheSettings{Shards: 2, Replication: 1})
	leader := newCacheHistory("leader", felix.CacheSettings{Shards: 2, Replication: 1, Consistency: felix.Leader})
	cleared := newCacheHistory("cleared", felix.CacheSettings{Shards: 2, Replication: 1})
	temporary := newCacheHistory("temporary", felix.CacheSettings{Shards: 3, Replication: 1})
	temporary.temporary = true
	for c := range clients {
		for i := range 12 {
			main.keys = append(main.keys, newHistory(fmt.Sprintf("%d/%d", c, i), felix.View(i%3), false))
		}
		for i := range 4 {
			expiring.keys = append(expiring.keys, newHistory(fmt.Sprintf("%d/%d", c, i), felix.View(i%3), true))
		}
		leader.keys = append(leader.keys, newHistory(fmt.Sprintf("%d", c), felix.ViewCounter, false))
	}
	for i := range 12 {
		cleared.keys = append(cleared.keys, newHistory(fmt.Sprintf("clear/%d", i), felix.View(i%3), false))
		temporary.keys = append(temporary.keys, newHistory(fmt.Sprintf("tmp/%d", i), felix.View(i%3), false))
	}
	for i := range 3 {
		main.tallies = append(main.tallies, &tally{key: fmt.Appendf(nil, "tally/%d", i)})
	}
	w.caches = []*cacheHistory{main, expiring, leader, cleared, temporary}
	return w
}

func (w *world) cache(name string) *cacheHistory {
	for _, c := range w.caches {
		if c.scope.Cache == name {
			return c
		}
	}
	panic("no cache " + name)
}

// options make everything small, so that a short load meets eviction, loads
// and a checkpoint at every poll.
func (w *world) options() Options {
	return Options{Dir: "data", Wall: w.wall.Load, ReplicationIsTarget: true, Workers: 2, RecordBytes: 1,
		RequestTimeout: time.Minute, CheckpointDirty: 1, CheckpointEvery: time.Millisecond,
		SweepEvery: 20 * time.Millisecond, TickInterval: 20 * time.Millisecond,
		Fatal: func(err error) { w.t.Errorf("fatal: %v", err) }}
}

// fail reports a failed operation and says whether to go on.
func (w *world) fail(format string, args ...any) {
	if !w.loose {
		w.t.Errorf(format, args...)
	}
}

// answered waits for f, in a loose world not for ever: a broker that has called
// Fatal, which does not return, may never answer.
func (w *world) answered(f func() error) error {
	if w.stop.Load() {
		return errors.New("stopped")
	}
	if !w.loose {
		return f()
	}
	done := make(chan error, 1)
	go func() { done <- f() }()
	select {
	case err := <-done:
		return err
	case <-time.After(time.Second):
		return errors.New("no answer")
	}
}

// create makes a cache and waits for it.
func (w *world) create(b *Broker, c *cacheHistory) bool {
	c.exists.begin(state{kind: felix.CounterRecord, n: int64(c.settings.Replication)})
	err := w.answered(func() error {
		_, created, _, err := b.CreateCache(context.Background(), c.scope, c.settings)
		if err == nil && !created {
			err = errors.New("it was there before")
		}
		return err
	})
	if err != nil {
		w.fail("creating %s: %v", c.scope, err)
		return false
	}
	c.exists.ack(0, true)
	return true
}

// run puts the load on the broker until every client has done its rounds. It
// answers when all clients have ended.
func (w *world) run(b *Broker, seed uint64, clients, rounds int) {
	for _, c := range w.caches {
		if !c.temporary && !w.create(b, c) {
			return
		}
	}
	var all sync.WaitGroup
	for c := range clients {
		rng := rand.New(rand.NewPCG(seed, uint64(c)))
		all.Go(func() { w.client(b, rng, c, rounds) })
	}
	all.Go(func() { w.clearer(b, rand.New(rand.NewPCG(seed, 1000)), rounds/4) })
	all.Go(func() { w.maker(b, rand.New(rand.NewPCG(seed, 1001)), rounds/8) })
	all.Wait()
}

// client changes its own keys, several in one batch, and adds to the tallies.
func (w *world) client(b *Broker, rng *rand.Rand, c, rounds int) {
	type part struct {
		cache *cacheHistory
		keys  []*history
	}
	var parts []part
	for _, p := range []struct {
		name string
		keys int
	}{{"main", 12}, {"expiring", 4}, {"leader", 1}} {
		cache := w.cache(p.name)
		parts = append(parts, part{cache, cache.keys[c*p.keys : (c+1)*p.keys]})
	}
	for range rounds {
		p := parts[max(0, rng.IntN(6)-3)]
		if !w.batch(b, rng, p.cache, pick(rng, p.keys)) {
			return
		}
		w.wall.Add(int64(rng.IntN(40)))
	}
}

// pick is some of the keys, each once.
func pick(rng *rand.Rand, keys []*history) []*history {
	var some []*history
	for _, i := range rng.Perm(len(keys))[:1+rng.IntN(len(keys))] {
		some = append(some, keys[i])
	}
	return some
}

// batch changes or reads each of the keys once, adds to the cache's tallies,
// and checks every reply.
func (w *world) batch(b *Broker, rng *rand.Rand, c *cacheHistory, keys []*history) bool {
	cache, err := b.Cache(context.Background(), c.scope)
	if err != nil {
		w.fail("%s: %v", c.scope, err)
		return false
	}
	var ops []felix.Op
	for _, h := range keys {
		op, next := w.plan(rng, h)
		if op.Kind != felix.Get {
			h.begin(next)
		}
		ops = append(ops, op)
	}
	delta := int64(1 + rng.IntN(5))
	for _, t := range c.tallies {
		t.begun.Add(delta)
		ops = append(ops, felix.Op{Kind: felix.Add, Key: t.key, Int: delta})
	}
	var replies []felix.Reply
	err = w.answered(func() (err error) {
		replies, err = felix.Do(context.Background(), cache, ops...)
		return err
	})
	if err != nil {
		w.fail("%s: %v", c.scope, err)
		return false
	}
	ok := true
	for i, h := range keys {
		ok = w.reply(h, ops[i], replies[i]) && ok
	}
	for i, t := range c.tallies {
		if r := replies[len(keys)+i]; r.Err != nil {
			w.fail("adding to %s: %v", t.key, r.Err)
			ok = false
		} else {
			t.acked.Add(delta)
		}
	}
	w.ops.Add(int64(len(ops)))
	return ok
}

// plan chooses an operation and says what the key holds after it. On a key
// whose records expire, it never depends on what was there.
func (w *world) plan(rng *rand.Rand, h *history) (felix.Op, state) {
	last := h.last()
	op := felix.Op{View: h.view, Key: h.key}
	dice := rng.IntN(10)
	switch {
	case dice < 2:
		op.Kind = felix.Get
		return op, last
	case dice < 4:
		op.Kind = felix.Delete
		return op, state{}
	case dice < 8 && !h.ttl && h.view != felix.ViewValue && last.kind != felix.ValueRecord:
		op.Kind, op.Int = felix.Add, int64(rng.IntN(2000)-1000)
		return op, state{kind: felix.CounterRecord, n: last.n + op.Int}
	}
	op.Kind = felix.Set
	next := state{kind: felix.ValueRecord, value: fmt.Sprintf("v%d%s", rng.Uint32(), bytes.Repeat([]byte("x"), rng.IntN(300)))}
	if h.view == felix.ViewCounter || h.view == felix.ViewRedis && dice == 9 {
		next = state{kind: felix.CounterRecord, n: rng.Int64() - rng.Int64()}
	}
	op.Int, op.Value = next.n, []byte(next.value)
	if h.view == felix.ViewRedis && next.kind == felix.CounterRecord {
		op.Value = fmt.Append(nil, next.n)
	}
	if h.ttl {
		// Far enough ahead not to expire before it is evaluated.
		next.expiry = w.wall.Load() + 20_000 + int64(rng.IntN(30_000))
		op.TTL, op.ExpiryMillis = felix.TTLAt, next.expiry
	} else if dice == 8 {
		op.If = felix.IfAbsent
		if last.kind != felix.NoRecord {
			next = last // refused
		}
	}
	return op, next
}

// reply checks the answer to an operation against what the key held.
func (w *world) reply(h *history, op felix.Op, r felix.Reply) bool {
	if r.Err != nil {
		w.fail("%v of %q: %v", op.Kind, h.key, r.Err)
		return false
	}
	last := h.last()
	switch op.Kind {
	case felix.Get:
		if got := stateOf(r); !h.ttl && got != last {
			w.t.Errorf("Get of %q: %v, want %v", h.key, got, last)
			return false
		}
		return true
	case felix.Add:
		if want := h.states[h.begun.Load()].n; r.Int != want {
			w.t.Errorf("Add to %q: %d, want %d", h.key, r.Int, want)
			return false
		}
	case felix.Set:
		if want := op.If == felix.Always || last.kind == felix.NoRecord; r.Applied != want {
			w.t.Errorf("Set of %q: applied %v, want %v", h.key, r.Applied, want)
			return false
		}
	case felix.Delete:
		h.ack(0, true) // also where there was nothing
		return true
	}
	if r.Applied && r.Version <= last.version {
		w.t.Errorf("%q got version %#x after %#x", h.key, r.Version, last.version)
		return false
	}
	h.ack(r.Version, r.Applied)
	return true
}

func stateOf(r felix.Reply) state {
	if r.Found == felix.NoRecord {
		return state{}
	}
	return state{kind: r.Found, n: r.Int, value: string(r.Value), expiry: r.ExpiresAtMillis, version: r.Version}
}

// clearer fills a cache and clears it, again and again.
func (w *world) clearer(b *Broker, rng *rand.Rand, rounds int) {
	c := w.cache("cleared")
	for range rounds {
		for range 3 {
			if !w.batch(b, rng, c, pick(rng, c.keys)) {
				return
			}
		}
		for _, h := range c.keys {
			h.begin(state{})
		}
		cache, err := b.Cache(context.Background(), c.scope)
		if err == nil {
			err = w.answered(func() error { return cache.Clear(context.Background()) })
		}
		if err != nil {
			w.fail("clearing: %v", err)
			return
		}
		for _, h := range c.keys {
			h.ack(0, true)
		}
	}
}

// maker makes a cache, changes it, and deletes it, again and again under the
// same name.
func (w *world) maker(b *Broker, rng *rand.Rand, rounds int) {
	c := w.cache("temporary")
	for range rounds {
		if !w.create(b, c) {
			return
		}
		for range 1 + rng.IntN(4) {
			if !w.batch(b, rng, c, pick(rng, c.keys)) {
				return
			}
		}
		replication := int64(1 + rng.IntN(3))
		c.exists.begin(state{kind: felix.CounterRecord, n: replication})
		if err := w.answered(func() error {
			_, _, err := b.SetReplication(context.Background(), c.scope, int(replication))
			return err
		}); err != nil {
			w.fail("changing a cache: %v", err)
			return
		}
		c.exists.ack(0, true)
		for _, h := range append(c.keys, c.exists) {
			h.begin(state{})
		}
		if err := w.answered(func() error { return b.DeleteCache(context.Background(), c.scope) }); err != nil {
			w.fail("deleting a cache: %v", err)
			return
		}
		for _, h := range append(c.keys, c.exists) {
			h.ack(0, true)
		}
	}
}
