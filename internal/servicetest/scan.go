package servicetest

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/felix-go/felix"
)

func testScan(t *testing.T, e *env) {
	for _, shards := range []int{1, 4, 32} {
		t.Run(fmt.Sprintf("%d shards", shards), func(t *testing.T) {
			cache := e.cacheWith(t, felix.CacheSettings{Shards: shards})
			if page := scan(t, cache, felix.ScanRequest{Limit: 10}); len(page.Items) != 0 || page.More {
				t.Errorf("a scan of an empty cache shows %d items, more %v", len(page.Items), page.More)
			}
			data := fill(t, cache)
			for view, items := range data.byView() {
				testScanPages(t, cache, felix.View(view), items)
				testScanPrefixes(t, cache, felix.View(view), items)
			}
		})
	}
	t.Run("pages", func(t *testing.T) { testScanBounds(t, e.cache(t)) })
	t.Run("while it changes", func(t *testing.T) { testScanChanging(t, e.cache(t)) })
}

func scan(t *testing.T, cache felix.Cache, req felix.ScanRequest) felix.ScanPage {
	t.Helper()
	page, err := cache.Scan(within(t), req)
	if err != nil {
		t.Fatalf("scan %+v: %v", req, err)
	}
	if page.NowMillis <= 0 {
		t.Errorf("a page without shard time: %d", page.NowMillis)
	}
	if len(page.Items) > req.Limit {
		t.Fatalf("a page of %d items, the limit is %d", len(page.Items), req.Limit)
	}
	if page.More != (page.Next != nil) {
		t.Fatalf("a page says more %v, and that the next begins after %q", page.More, page.Next)
	}
	if page.More && string(page.Next) <= string(req.After) {
		t.Fatalf("the page after %q says to go on after %q: nobody would come to an end", req.After, page.Next)
	}
	if n := len(page.Items); page.More && n > 0 && string(page.Next) < string(page.Items[n-1].Key) {
		t.Fatalf("the page ends with %q, the next begins after %q: items would come twice", page.Items[n-1].Key, page.Next)
	}
	return page
}

// scanned is what the cache of a scan test holds.
type scanned struct{ counters, values []felix.ScanItem }

// byView is what each view shows, in byte order; the index is the view.
func (s scanned) byView() [3][]felix.ScanItem {
	both := slices.Clone(s.counters)
	for _, v := range s.values {
		if !slices.ContainsFunc(both, func(c felix.ScanItem) bool { return bytes.Equal(c.Key, v.Key) }) {
			both = append(both, v)
		}
	}
	all := [3][]felix.ScanItem{s.counters, s.values, both}
	for _, items := range all {
		slices.SortFunc(items, func(a, b felix.ScanItem) int { return bytes.Compare(a.Key, b.Key) })
	}
	return all
}

// fill writes counters and values under keys of all sorts.
func fill(t *testing.T, cache felix.Cache) scanned {
	t.Helper()
	var keys []string
	for n := range 120 {
		keys = append(keys, fmt.Sprintf("user:%03d", n))
	}
	for b := range 256 {
		keys = append(keys, string([]byte{byte(b)}))
	}
	keys = append(keys, "\xff\xff", "\xff\xff\xff", "\x00\x00", "\xfe\xff", "a\x00", "a\x00b", "a\xff", "{t}1", "{t}2", "{t}", "user:", "user")
	var data scanned
	var ops []felix.Op
	for n, key := range keys {
		expires := int64(0)
		ttl := func(*felix.Op) {}
		if n%7 == 0 {
			expires = far + int64(n)
			ttl = at(expires)
		}
		if n%3 != 0 {
			ops = append(ops, setInt(key, int64(n), ttl))
			data.counters = append(data.counters, felix.ScanItem{Key: []byte(key), Kind: felix.CounterRecord, Int: int64(n), ExpiresAtMillis: expires})
		}
		if n%3 != 1 {
			val := fmt.Sprintf("value %d", n)
			ops = append(ops, set(key, val, inValues, ttl))
			data.values = append(data.values, felix.ScanItem{Key: []byte(key), Kind: felix.ValueRecord, Value: []byte(val), ExpiresAtMillis: expires})
		}
		ops = append(ops, add("gone"+key, 1), del("gone"+key))
	}
	for i, r := range do(t, cache, ops...) {
		if !r.Applied {
			t.Fatalf("%s: %s", describe(&ops[i]), show(r))
		}
	}
	return data
}

// pages scans to the end and answers all items.
func pages(t *testing.T, cache felix.Cache, req felix.ScanRequest) []felix.ScanItem {
	t.Helper()
	var all []felix.ScanItem
	for {
		page := scan(t, cache, req)
		all = append(all, page.Items...)
		if !page.More {
			return all
		}
		req.After = page.Next
	}
}

// sameItems compares but for versions, which must be there.
func sameItems(t *testing.T, what string, got, want []felix.ScanItem) {
	t.Helper()
	for i := range min(len(got), len(want)) {
		g, w := got[i], want[i]
		if !bytes.Equal(g.Key, w.Key) || g.Kind != w.Kind || g.Int != w.Int || !bytes.Equal(g.Value, w.Value) || g.ExpiresAtMillis != w.ExpiresAtMillis {
			t.Errorf("%s: item %d is %+v, want %+v", what, i, g, w)
			return
		}
		if g.Version == 0 {
			t.Errorf("%s: item %q has no version", what, g.Key)
		}
	}
	if len(got) != len(want) {
		t.Errorf("%s: %d items, want %d", what, len(got), len(want))
	}
}

func testScanPages(t *testing.T, cache felix.Cache, view felix.View, want []felix.ScanItem) {
	for _, limit := range []int{1, 2, 7, len(want) - 1, len(want), len(want) + 1, felix.MaxScanPage} {
		req := felix.ScanRequest{View: view, Limit: limit}
		sameItems(t, fmt.Sprintf("view %d in pages of %d", view, limit), pages(t, cache, req), want)
	}
	if page := scan(t, cache, felix.ScanRequest{View: view, Limit: len(want) - 1}); !page.More {
		t.Errorf("view %d: a page says there are no more, but there is one", view)
	}
	items := pages(t, cache, felix.ScanRequest{View: view, Limit: felix.MaxScanPage, After: []byte{}})
	sameItems(t, "after the empty key", items, want)
	for i := range items { // the reader's own memory
		clear(items[i].Key)
		clear(items[i].Value)
	}
	sameItems(t, "after the reader wrote over its items", pages(t, cache, felix.ScanRequest{View: view, Limit: felix.MaxScanPage}), want)
	sameItems(t, "after every key", pages(t, cache, felix.ScanRequest{View: view, Limit: 5, After: bytes.Repeat([]byte{0xff}, 10)}), nil)
}

func testScanPrefixes(t *testing.T, cache felix.Cache, view felix.View, all []felix.ScanItem) {
	prefixes := []string{"", "u", "user", "user:", "user:0", "user:01", "user:019", "user:0199", "a", "a\x00", "\xff", "\xff\xff", "\x00", "{t}", "zzz", "gone"}
	afters := []string{"", "a", "a\x00", "user:010", "user:0105", "user;", "v", "\xff", "\xff\xff\xff\xff", "\x00"}
	for _, prefix := range prefixes {
		for _, after := range afters {
			var want []felix.ScanItem
			for _, item := range all {
				if bytes.HasPrefix(item.Key, []byte(prefix)) && string(item.Key) > after {
					want = append(want, item)
				}
			}
			req := felix.ScanRequest{View: view, Prefix: []byte(prefix), After: []byte(after), Limit: 11}
			sameItems(t, fmt.Sprintf("view %d, prefix %q after %q", view, prefix, after), pages(t, cache, req), want)
		}
	}
}

// testScanBounds: limits, views, and scans of what is gone.
func testScanBounds(t *testing.T, cache felix.Cache) {
	do(t, cache, add("a", 1), add("b", 1), set("b", "v", inValues))
	for _, limit := range []int{0, -1, felix.MaxScanPage + 1} {
		_, err := cache.Scan(within(t), felix.ScanRequest{Limit: limit})
		wantCode(t, fmt.Sprintf("a limit of %d", limit), err, felix.InvalidArgument)
	}
	_, err := cache.Scan(within(t), felix.ScanRequest{Limit: 1, View: felix.ViewRedis + 1})
	wantCode(t, "an unknown view", err, felix.InvalidArgument)

	v := one(t, cache, get("b")).Version
	items := pages(t, cache, felix.ScanRequest{View: felix.ViewRedis, Limit: 5})
	if len(items) != 2 || items[1].Version != v || items[1].Kind != felix.CounterRecord {
		t.Errorf("the Redis view of a key with both shows %+v, want the counter of version %d", items, v)
	}
	do(t, cache, del("a"), del("b"))
	sameItems(t, "after deletes, counters", pages(t, cache, felix.ScanRequest{Limit: 5}), nil)
	sameItems(t, "after deletes, redis", pages(t, cache, felix.ScanRequest{View: felix.ViewRedis, Limit: 5}),
		[]felix.ScanItem{{Key: []byte("b"), Kind: felix.ValueRecord, Value: []byte("v")}})
}

// testScanChanging pages over a cache while other keys come and go: keys that
// stay are all seen, once and in order.
func testScanChanging(t *testing.T, cache felix.Cache) {
	var ops []felix.Op
	for n := range 300 {
		ops = append(ops, setInt(fmt.Sprintf("stays%03d", n), int64(n)))
	}
	do(t, cache, ops...)
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		rng := rand.New(rand.NewPCG(1, 2))
		for n := 0; ; n++ {
			select {
			case <-stop:
				return
			default:
			}
			key := fmt.Sprintf("stays%03d/comes%d", rng.IntN(300), n)
			if _, err := felix.Do(within(t), cache, add(key, 1), del(key)); err != nil {
				t.Errorf("a write during scans: %v", err)
				return
			}
		}
	}()
	for range 5 {
		seen := 0
		last := []byte(nil)
		for _, item := range pages(t, cache, felix.ScanRequest{Prefix: []byte("stays"), Limit: 20}) {
			if bytes.Compare(item.Key, last) <= 0 {
				t.Errorf("key %q comes after %q", item.Key, last)
			}
			last = item.Key
			if !bytes.Contains(item.Key, []byte("/")) {
				if want := fmt.Sprintf("stays%03d", seen); string(item.Key) != want {
					t.Fatalf("a key that was there all the time is missing: %q instead of %q", item.Key, want)
				}
				seen++
			}
		}
		if seen != 300 {
			t.Errorf("%d of 300 keys seen", seen)
		}
	}
	close(stop)
	<-stopped
}

func testCountAndClear(t *testing.T, e *env) {
	cache, other := e.cache(t), e.cache(t)
	want := func(what string, c felix.Cache, counters, values, keys int64) {
		t.Helper()
		counts := felix.RecordCount{Counters: counters, Values: values, Keys: keys}
		got, err := c.Count(within(t))
		if err != nil || got != counts {
			t.Errorf("%s: counts %+v, error %v, want %+v", what, got, err, counts)
		}
		info, err := e.service.CacheInfo(within(t), c.Scope())
		if err != nil || info.Counts != counts {
			t.Errorf("%s: the cache's info says %+v, error %v, want %+v", what, info.Counts, err, counts)
		}
	}
	want("an empty cache", cache, 0, 0, 0)
	var ops []felix.Op
	for n := range 50 {
		ops = append(ops, add(fmt.Sprintf("c%d", n), 1), set(fmt.Sprintf("v%d", n), "x", inValues))
	}
	ops = append(ops, set("c1", "both", inValues), add("c1", 1), get("nothing"), del("nothing"), add("gone", 1), del("gone"))
	do(t, cache, ops...)
	do(t, other, add("c1", 5), set("x", "y"))
	want("full", cache, 50, 51, 100)
	do(t, cache, set("c1", "one"), set("v1", "7"), del("c2"), del("v2", inValues), add("c3", 1), add("", 1), expire("c4", at(1)))
	want("changed", cache, 48, 49, 97)
	want("the other", other, 1, 1, 2)
	if err := cache.Clear(within(t)); err != nil {
		t.Fatalf("clear: %v", err)
	}
	want("cleared", cache, 0, 0, 0)
	want("the other after the clear", other, 1, 1, 2)
	for i, r := range do(t, cache, get("c1"), get("c1", inValues), get("v1", redis), get("c5")) {
		checkReply(t, fmt.Sprintf("get %d after the clear", i), r, none)
	}
	sameItems(t, "a scan after the clear", pages(t, cache, felix.ScanRequest{View: felix.ViewRedis, Limit: 100}), nil)
	checkReply(t, "an add after the clear", one(t, cache, add("c1", 1)), sum(1))
	want("used again", cache, 1, 0, 1)
	if err := cache.Clear(within(t)); err != nil {
		t.Fatalf("a second clear: %v", err)
	}
	if err := cache.Clear(within(t)); err != nil {
		t.Fatalf("a clear of nothing: %v", err)
	}
	want("cleared again", cache, 0, 0, 0)
}
