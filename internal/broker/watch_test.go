package broker

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/feed"
)

// watchedCache is a broker with a cache of one shard, and a watch of all its counters.
func watchedCache(t *testing.T) (*testBroker, felix.Cache, felix.Watcher, felix.WatchEvent) {
	t.Helper()
	b := openTest(t, vfs.NewMem(), nil)
	scope := felix.Scope{Tenant: "default", Namespace: "default", Cache: "w"}
	ctx := context.Background()
	if _, _, _, err := b.CreateCache(ctx, scope, felix.CacheSettings{Shards: 1}); err != nil {
		t.Fatal(err)
	}
	c, err := b.Cache(ctx, scope)
	if err != nil {
		t.Fatal(err)
	}
	w, err := c.Watch(ctx, felix.WatchRequest{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	return b, c, w, event(t, w)
}

func event(t *testing.T, w felix.Watcher) felix.WatchEvent {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	e, err := w.Next(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func addTo(t *testing.T, c felix.Cache, key string) {
	t.Helper()
	replies, err := felix.Do(context.Background(), c, felix.Op{Kind: felix.Add, Key: []byte(key), Int: 1})
	if err != nil || replies[0].Err != nil {
		t.Fatal(err, replies)
	}
}

// TestWatchRetention: the log is kept for who has watched lately, so that a resume
// finds its place after a checkpoint, and not beyond its bound; below that a resume
// is a reset.
func TestWatchRetention(t *testing.T) {
	b, c, w, synced := watchedCache(t)
	addTo(t, c, "k")
	event(t, w)
	w.Close()
	addTo(t, c, "k")
	if err := b.checkpoint.all(context.Background()); err != nil {
		t.Fatal(err)
	}
	w, err := c.Watch(context.Background(), felix.WatchRequest{Resume: synced.Token})
	if err != nil {
		t.Fatal(err)
	}
	for _, kind := range []felix.WatchKind{felix.WatchSynced, felix.WatchPut, felix.WatchPut} {
		if e := event(t, w); e.Kind != kind {
			t.Errorf("after a checkpoint the resume tells %+v, want %s", e, kind)
		}
	}
	w.Close()

	r := b.replicaOf(c.(*cache).shards[0].id)
	r.worker.callWait(func() { // as after WatchRetention
		r.feed.end(errFeedEnded)
		r.feed = nil
		r.worker.truncate(r)
	})
	w, err = c.Watch(context.Background(), felix.WatchRequest{Resume: synced.Token})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	for _, kind := range []felix.WatchKind{felix.WatchReset, felix.WatchPut, felix.WatchSynced} {
		if e := event(t, w); e.Kind != kind {
			t.Errorf("without the log the resume tells %+v, want %s", e, kind)
		}
	}
}

// sizes is a log whose entries have ten bytes.
type sizes struct{ first, last uint64 }

func (s sizes) FirstIndex() (uint64, error)  { return s.first, nil }
func (s sizes) SizeAbove(index uint64) int64 { return 10 * int64(s.last-min(index, s.last)) }

func TestRetain(t *testing.T) {
	for _, c := range []struct {
		to    uint64
		bytes int64
		want  uint64
	}{{100, 0, 100}, {100, 9, 100}, {100, 10, 99}, {100, 205, 80}, {100, 1 << 40, 49}, {49, 100, 49}, {10, 100, 10}} {
		if got := retain(sizes{50, 120}, c.to, c.bytes); got != c.want {
			t.Errorf("of entries up to %d, keeping %d bytes, %d go, want %d", c.to, c.bytes, got, c.want)
		}
	}
}

// TestWatchManyKeysReadsOn: a slow watcher of more keys than its queue holds reads
// on in the log, and misses nothing.
func TestWatchManyKeysReadsOn(t *testing.T) {
	b, c, w, _ := watchedCache(t)
	addTo(t, c, "first")
	event(t, w)
	const keys = 3 * felix.MaxWatchQueueEvents
	for from := 0; from < keys; from += felix.MaxWatchQueueEvents / 4 {
		var ops []felix.Op
		for k := range felix.MaxWatchQueueEvents / 4 {
			ops = append(ops, felix.Op{Kind: felix.Add, Key: fmt.Appendf(nil, "%06d", from+k), Int: 1})
		}
		if _, err := felix.Do(context.Background(), c, ops...); err != nil {
			t.Fatal(err)
		}
	}
	for k := range keys {
		if e := event(t, w); e.Kind != felix.WatchPut || string(e.Key) != fmt.Sprintf("%06d", k) || e.Skipped {
			t.Fatalf("event %d is %+v", k, e)
		}
	}
	if used := b.watches.budget.UsedBytes(); used != 0 {
		t.Errorf("%d bytes are held in queues after all was told", used)
	}
}

// TestWatchEnds: what watches hold is freed, they end when the broker hands over,
// and there are not more than allowed.
func TestWatchEnds(t *testing.T) {
	b, c, w, _ := watchedCache(t)
	if n := b.Watchers(); n != 1 {
		t.Errorf("%d watchers, want 1", n)
	}
	b.watches.count.Add(felix.MaxWatchers - 1)
	if _, err := c.Watch(context.Background(), felix.WatchRequest{}); felix.AsError(err).Code != felix.ResourceExhausted {
		t.Errorf("one watcher too many: %v", err)
	}
	b.watches.count.Add(1 - felix.MaxWatchers)
	b.HandOver(context.Background())
	if _, err := w.Next(context.Background()); err != errWatchStopping {
		t.Errorf("a broker that stops tells watchers %v", err)
	}
	w.Close()
	w.Close()
	if n := b.Watchers(); n != 0 {
		t.Errorf("%d watchers are left", n)
	}
}

// TestWatchForgedTokens: a place that there is not yet is a reset, not a watch that
// is silent for ever.
func TestWatchForgedTokens(t *testing.T) {
	_, c, _, synced := watchedCache(t)
	token, err := feed.ReadToken(synced.Token)
	if err != nil {
		t.Fatal(err)
	}
	token.Shards[0].Index += 1000
	w, err := c.Watch(context.Background(), felix.WatchRequest{Resume: token.Append(nil)})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if e := event(t, w); e.Kind != felix.WatchReset {
		t.Errorf("the future is resumed with %+v", e)
	}
	token.Shards = nil
	if _, err := c.Watch(context.Background(), felix.WatchRequest{Resume: token.Append(nil)}); felix.AsError(err).Code != felix.InvalidArgument {
		t.Errorf("a token without the shard: %v", err)
	}
}
