package servicetest

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/felix-go/felix"
)

// Unwatched is a Service that has no Watch.
type Unwatched interface {
	felix.Service
	// Unwatched does nothing.
	Unwatched()
}

func testWatch(t *testing.T, e *env) {
	if _, is := e.service.(Unwatched); is {
		return
	}
	for _, test := range []struct {
		name string
		run  func(t *testing.T, e *env)
	}{
		{"changes in order", testWatchChanges},
		{"the state first", testWatchInitial},
		{"values", testWatchValues},
		{"resume", testWatchResume},
		{"a cache made again", testWatchMadeAgain},
		{"clear", testWatchClear},
		{"expiry", testWatchExpiry},
		{"slow reader", testWatchSlow},
		{"many watchers", testWatchMany},
		{"while it changes", testWatchBusy},
		{"illegal", testWatchIllegal},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(t, e) })
	}
}

// watch begins a watch, which the test's end closes.
func watch(t *testing.T, c felix.Cache, req felix.WatchRequest) felix.Watcher {
	t.Helper()
	w, err := c.Watch(within(t), req)
	if err != nil {
		t.Fatalf("watching %+v: %v", req, err)
	}
	t.Cleanup(w.Close)
	return w
}

func next(t *testing.T, w felix.Watcher) felix.WatchEvent {
	t.Helper()
	e, err := w.Next(within(t))
	if err != nil {
		t.Fatalf("the next event: %v", err)
	}
	return e
}

// change is the next event that is no bookmark.
func nextChange(t *testing.T, w felix.Watcher) felix.WatchEvent {
	t.Helper()
	for {
		if e := next(t, w); e.Kind != felix.WatchSynced {
			return e
		}
	}
}

func wantKind(t *testing.T, e felix.WatchEvent, kind felix.WatchKind) {
	t.Helper()
	if e.Kind != kind {
		t.Fatalf("the event is %s %+v, want %s", e.Kind, e, kind)
	}
	if len(e.Token) == 0 || len(e.Token) > felix.MaxWatchTokenBytes {
		t.Fatalf("a %s has the token %x", e.Kind, e.Token)
	}
}

// wantPut checks that e is a put of a counter.
func wantPut(t *testing.T, e felix.WatchEvent, key string, sum int64, version uint64) {
	t.Helper()
	if e.Kind != felix.WatchPut || string(e.Key) != key || e.Int != sum || e.Version != version || e.Skipped {
		t.Fatalf("the event is %s %q %d of version %d, skipped %v; want a put of %q %d of version %d",
			e.Kind, e.Key, e.Int, e.Version, e.Skipped, key, sum, version)
	}
}

func wantDelete(t *testing.T, e felix.WatchEvent, key string) {
	t.Helper()
	if e.Kind != felix.WatchDelete || string(e.Key) != key || e.Version != 0 {
		t.Fatalf("the event is %s %q of version %d, want a delete of %q", e.Kind, e.Key, e.Version, key)
	}
}

// testWatchChanges: every change of what is watched, in order, with the versions
// that the writers were told, and nothing else.
func testWatchChanges(t *testing.T, e *env) {
	cache := e.cache(t)
	one(t, cache, add("k", 1))
	key := watch(t, cache, felix.WatchRequest{Key: []byte("k")})
	prefix := watch(t, cache, felix.WatchRequest{Prefix: []byte("{g}k")})
	for _, w := range []felix.Watcher{key, prefix} {
		wantKind(t, next(t, w), felix.WatchSynced)
	}
	one(t, cache, add("k2", 1))
	one(t, cache, set("k", "v", inValues))
	one(t, cache, get("k"))
	one(t, cache, del("k2"))
	first := one(t, cache, add("k", 4))
	one(t, cache, del("k"))
	one(t, cache, del("k")) // nothing is deleted
	again := one(t, cache, setInt("k", 7, at(far)))
	wantPut(t, nextChange(t, key), "k", 5, first.Version)
	wantDelete(t, nextChange(t, key), "k")
	got := nextChange(t, key)
	if wantPut(t, got, "k", 7, again.Version); got.ExpiresAtMillis != far {
		t.Errorf("the event says that the counter expires at %d, want %d", got.ExpiresAtMillis, int64(far))
	}
	a := one(t, cache, add("{g}ka", 1))
	one(t, cache, add("{g}x", 1))
	b := one(t, cache, add("{g}kb", 2))
	one(t, cache, del("{g}ka"))
	wantPut(t, nextChange(t, prefix), "{g}ka", 1, a.Version)
	wantPut(t, nextChange(t, prefix), "{g}kb", 2, b.Version)
	wantDelete(t, nextChange(t, prefix), "{g}ka")

	short, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	if e, err := prefix.Next(short); err == nil {
		t.Errorf("there is an event %+v of nothing", e)
	}
	c := one(t, cache, add("{g}kb", 2)) // the watch goes on
	wantPut(t, nextChange(t, prefix), "{g}kb", 4, c.Version)
}

// state reads the state of a watch up to its synced.
func state(t *testing.T, w felix.Watcher) map[string]felix.WatchEvent {
	t.Helper()
	all := map[string]felix.WatchEvent{}
	for {
		e := next(t, w)
		if e.Kind == felix.WatchSynced {
			wantKind(t, e, felix.WatchSynced)
			return all
		}
		if wantKind(t, e, felix.WatchPut); e.Skipped {
			t.Fatalf("a record of the state is told as skipped")
		}
		if _, twice := all[string(e.Key)]; twice {
			t.Fatalf("%q is told twice before anything has changed", e.Key)
		}
		all[string(e.Key)] = e
	}
}

func testWatchInitial(t *testing.T, e *env) {
	cache := e.cache(t)
	var ops []felix.Op
	const keys = 1500 // more than a page
	for n := range keys {
		ops = append(ops, add(fmt.Sprintf("p%04d", n), int64(n)))
	}
	ops = append(ops, add("other", 1), set("p0001", "v", inValues), add("gone", 1), del("gone"), del("p0007"))
	replies := do(t, cache, ops...)
	for i := range replies {
		if replies[i].Err != nil {
			t.Fatalf("%s: %v", describe(&ops[i]), replies[i].Err)
		}
	}
	w := watch(t, cache, felix.WatchRequest{Prefix: []byte("p"), Initial: true})
	got := state(t, w)
	for n := range keys {
		key := fmt.Sprintf("p%04d", n)
		e, is := got[key]
		if is == (n == 7) || is && (e.Int != int64(n) || e.Version != replies[n].Version) {
			t.Fatalf("the state has %q %v: %+v", key, is, e)
		}
	}
	if len(got) != keys-1 {
		t.Errorf("the state has %d keys, want %d", len(got), keys-1)
	}
	r := one(t, cache, add("p0001", 1))
	wantPut(t, nextChange(t, w), "p0001", 2, r.Version)
	// A part of the state is of no use.
	for _, e := range got {
		w := watch(t, cache, felix.WatchRequest{Prefix: []byte("p"), Resume: e.Token})
		wantKind(t, next(t, w), felix.WatchReset)
		if again := state(t, w); len(again) != len(got) {
			t.Errorf("after the reset the state has %d keys, want %d", len(again), len(got))
		}
		break
	}

	single := watch(t, cache, felix.WatchRequest{Key: []byte("p0001"), Initial: true})
	if got := state(t, single); len(got) != 1 || got["p0001"].Int != 2 {
		t.Errorf("the state of one key is %+v", got)
	}
	for _, absent := range []string{"p000", "p0007"} { // one of them begins other keys
		if got := state(t, watch(t, cache, felix.WatchRequest{Key: []byte(absent), Initial: true})); len(got) != 0 {
			t.Errorf("the state of %q, which does not exist, is %+v", absent, got)
		}
	}
}

func testWatchValues(t *testing.T, e *env) {
	cache := e.cache(t)
	do(t, cache, set("k", "old", inValues), add("k", 1))
	w := watch(t, cache, felix.WatchRequest{View: felix.ViewValue, Initial: true})
	if got := state(t, w); len(got) != 1 || string(got["k"].Value) != "old" {
		t.Fatalf("the state is %+v", got)
	}
	one(t, cache, add("k", 1))
	r := one(t, cache, set("k", "new", inValues))
	one(t, cache, del("k", inValues))
	got := nextChange(t, w)
	if got.Kind != felix.WatchPut || string(got.Value) != "new" || got.Version != r.Version {
		t.Errorf("the event is %+v, want a put of the new value with version %d", got, r.Version)
	}
	wantDelete(t, nextChange(t, w), "k")
}

// testWatchResume: whatever event a watch ends behind, the next one goes on there.
func testWatchResume(t *testing.T, e *env) {
	cache := e.cache(t)
	w := watch(t, cache, felix.WatchRequest{Prefix: []byte("k")})
	token := next(t, w).Token
	w.Close()
	for n := range 10 {
		key := fmt.Sprintf("k%d", n%3)
		r := one(t, cache, add(key, 1))
		r2 := one(t, cache, add(key, 1))
		w := watch(t, cache, felix.WatchRequest{Prefix: []byte("k"), Resume: token})
		wantKind(t, next(t, w), felix.WatchSynced)
		first := nextChange(t, w)
		wantPut(t, first, key, r.Int, r.Version)
		again := watch(t, cache, felix.WatchRequest{Prefix: []byte("k"), Resume: first.Token})
		wantPut(t, nextChange(t, again), key, r2.Int, r2.Version)
		second := nextChange(t, w)
		wantPut(t, second, key, r2.Int, r2.Version)
		token = second.Token
		w.Close()
		again.Close()
	}
	// What was changed by one batch is resumed in the middle, too.
	do(t, cache, add("k{g}1", 1), add("k{g}2", 1), add("k{g}3", 1))
	w = watch(t, cache, felix.WatchRequest{Prefix: []byte("k"), Resume: token})
	wantKind(t, next(t, w), felix.WatchSynced)
	seen := []string{string(nextChange(t, w).Key)}
	middle := nextChange(t, w)
	seen = append(seen, string(middle.Key))
	w.Close()
	w = watch(t, cache, felix.WatchRequest{Prefix: []byte("k"), Resume: middle.Token})
	seen = append(seen, string(nextChange(t, w).Key))
	if got := strings.Join(seen, " "); got != "k{g}1 k{g}2 k{g}3" {
		t.Errorf("a batch was told as %s", got)
	}
	if _, err := w.Next(expired()); err == nil {
		t.Error("there is another event")
	}
}

// expired is a context that ends at once.
func expired() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

func testWatchMadeAgain(t *testing.T, e *env) {
	cache := e.cache(t)
	w := watch(t, cache, felix.WatchRequest{})
	token := next(t, w).Token
	if err := e.service.DeleteCache(within(t), cache.Scope()); err != nil {
		t.Fatal(err)
	}
	_, err := w.Next(within(t))
	wantCode(t, "the event after the cache was deleted", err, felix.CacheNotFound)
	_, err = cache.Watch(within(t), felix.WatchRequest{})
	wantCode(t, "watching a deleted cache", err, felix.CacheNotFound)
	if _, _, _, err := e.service.CreateCache(within(t), cache.Scope(), felix.CacheSettings{}); err != nil {
		t.Fatal(err)
	}
	made := e.open(t, cache.Scope())
	one(t, made, add("new", 3))
	w = watch(t, made, felix.WatchRequest{Resume: token})
	wantKind(t, next(t, w), felix.WatchReset)
	if got := state(t, w); len(got) != 1 || got["new"].Int != 3 {
		t.Errorf("after the reset the state is %+v", got)
	}
}

func testWatchClear(t *testing.T, e *env) {
	cache := e.cacheWith(t, felix.CacheSettings{Shards: 1})
	do(t, cache, add("a", 1), add("b", 1))
	all := watch(t, cache, felix.WatchRequest{Initial: true})
	key := watch(t, cache, felix.WatchRequest{Key: []byte("a")})
	if got := state(t, all); len(got) != 2 {
		t.Fatalf("the state is %+v", got)
	}
	token := next(t, key).Token
	if err := cache.Clear(within(t)); err != nil {
		t.Fatal(err)
	}
	for _, w := range []felix.Watcher{all, key, watch(t, cache, felix.WatchRequest{Key: []byte("a"), Resume: token})} {
		wantKind(t, nextChange(t, w), felix.WatchReset)
		if got := state(t, w); len(got) != 0 {
			t.Errorf("after the clear the state is %+v", got)
		}
	}
	r := one(t, cache, add("a", 5))
	for _, w := range []felix.Watcher{all, key} {
		wantPut(t, nextChange(t, w), "a", 5, r.Version)
	}
}

func testWatchExpiry(t *testing.T, e *env) {
	cache := e.cache(t)
	w := watch(t, cache, felix.WatchRequest{Prefix: []byte("k")})
	r := one(t, cache, add("k", 1, in(50)))
	if clocked, is := e.service.(Clocked); is {
		clocked.SetNow(r.ExpiresAtMillis)
	}
	wantPut(t, nextChange(t, w), "k", 1, r.Version)
	wantDelete(t, nextChange(t, w), "k")
	if got := state(t, watch(t, cache, felix.WatchRequest{Initial: true})); len(got) != 0 {
		t.Errorf("after it has expired the state is %+v", got)
	}
}

// testWatchSlow: who does not read misses nothing without being told, and is told
// the latest state of every key.
func testWatchSlow(t *testing.T, e *env) {
	cache := e.cache(t)
	w := watch(t, cache, felix.WatchRequest{View: felix.ViewValue})
	wantKind(t, next(t, w), felix.WatchSynced)
	keys := []string{"{g}a", "{g}b"}
	// The first one is taken, so that the watch listens.
	one(t, cache, set(keys[0], "0", inValues))
	nextChange(t, w)
	const changes = felix.MaxWatchQueueBytes * 5 / 4 / (100 << 10)
	for n := range changes {
		number := fmt.Sprintf("%d ", n)
		one(t, cache, set(keys[n%2], number+strings.Repeat("x", 100<<10), inValues))
	}
	told := map[string]int{keys[0]: -2, keys[1]: -1}
	versions := map[string]uint64{}
	for told[keys[0]] < changes-2 || told[keys[1]] < changes-2 {
		e := nextChange(t, w)
		wantKind(t, e, felix.WatchPut)
		n := 0
		fmt.Sscanf(string(e.Value[:10]), "%d ", &n)
		if key := string(e.Key); e.Version <= versions[key] || n != told[key]+2 && !e.Skipped {
			t.Fatalf("%q: change %d with version %d is told after change %d with version %d, skipped %v",
				key, n, e.Version, told[key], versions[key], e.Skipped)
		} else {
			told[key], versions[key] = n, e.Version
		}
	}
}

func testWatchMany(t *testing.T, e *env) {
	cache := e.cache(t)
	const watchers, changes = 40, 20
	var all [watchers]felix.Watcher
	for i := range all {
		all[i] = watch(t, cache, felix.WatchRequest{Key: []byte("hot")})
	}
	var versions [changes]uint64
	for n := range changes {
		versions[n] = one(t, cache, add("hot", 1)).Version
	}
	for _, w := range all {
		for n := range changes {
			wantPut(t, nextChange(t, w), "hot", int64(n+1), versions[n])
		}
	}
}

// testWatchBusy begins watches while keys change: what they tell, put together,
// is the state in the end, and no key's version goes back.
func testWatchBusy(t *testing.T, e *env) {
	cache := e.cache(t)
	const keys, rounds = 50, 30
	var writers sync.WaitGroup
	begun := make(chan struct{})
	writers.Go(func() {
		for round := range rounds {
			var ops []felix.Op
			for k := range keys {
				key := fmt.Sprintf("%02d", k)
				if (k+round)%7 == 0 {
					ops = append(ops, del(key))
				}
				ops = append(ops, add(key, 1))
			}
			if _, err := felix.Do(within(t), cache, ops...); err != nil {
				t.Errorf("a write: %v", err)
			}
			if round == 1 {
				close(begun)
			}
		}
		if _, err := felix.Do(within(t), cache, add("end", 1)); err != nil {
			t.Errorf("a write: %v", err)
		}
	})
	<-begun
	for range 5 {
		w := watch(t, cache, felix.WatchRequest{Initial: true})
		told, versions := map[string]felix.WatchEvent{}, map[string]uint64{}
		synced := false
		for told["end"].Kind != felix.WatchPut || !synced {
			e := next(t, w)
			switch e.Kind {
			case felix.WatchReset: // the log went faster than this test
				clear(told)
				synced = false
			case felix.WatchSynced:
				synced = true
			case felix.WatchDelete:
				told[string(e.Key)] = e
			default:
				key := string(e.Key)
				if e.Version <= versions[key] {
					t.Fatalf("%q is told with version %d after %d", key, e.Version, versions[key])
				}
				told[key], versions[key] = e, e.Version
			}
		}
		writers.Wait()
		// The end is of one shard; the others may be on their way.
		for _, item := range pages(t, cache, felix.ScanRequest{Limit: 1000}) {
			key := string(item.Key)
			for told[key].Version != item.Version {
				if told[key] = nextChange(t, w); !bytes.Equal(told[key].Key, item.Key) {
					e := told[key]
					delete(told, key)
					told[string(e.Key)] = e
				}
			}
			if e := told[key]; e.Int != item.Int {
				t.Fatalf("%q is told as %+v, and is %+v", key, e, item)
			}
		}
		w.Close()
	}
}

func testWatchIllegal(t *testing.T, e *env) {
	cache := e.cache(t)
	for name, req := range map[string]felix.WatchRequest{
		"the Redis view":       {View: felix.ViewRedis},
		"an empty key":         {Key: []byte{}},
		"a key and a prefix":   {Key: []byte("k"), Prefix: []byte("k")},
		"a long key":           {Key: make([]byte, felix.MaxKeyBytes+1)},
		"a long prefix":        {Prefix: make([]byte, felix.MaxKeyBytes+1)},
		"a token that is none": {Resume: []byte("x")},
	} {
		_, err := cache.Watch(within(t), req)
		wantCode(t, name, err, felix.InvalidArgument)
	}
	w := watch(t, cache, felix.WatchRequest{})
	next(t, w)
	go w.Close()
	if e, err := w.Next(within(t)); err == nil {
		t.Errorf("a closed watch tells %+v", e)
	}
	w.Close()
}
