package servicetest

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/felix-go/felix"
)

func testNames(t *testing.T, e *env) {
	ctx := within(t)
	bad := []string{"", "A", "-a", ".a", "_a", "a b", "a/b", "ä", "a\x00", "a\n", strings.Repeat("a", felix.MaxNameBytes+1), "aB", "a:"}
	for _, name := range bad {
		for _, scope := range []felix.Scope{
			{Tenant: name, Namespace: "n", Cache: "c"}, {Tenant: "t", Namespace: name, Cache: "c"}, {Tenant: "t", Namespace: "n", Cache: name},
		} {
			what := fmt.Sprintf("scope %q", scope)
			_, _, _, err := e.service.CreateCache(ctx, scope, felix.CacheSettings{})
			wantCode(t, "create of "+what, err, felix.InvalidArgument)
			_, err = e.service.CacheInfo(ctx, scope)
			wantCode(t, "info of "+what, err, felix.InvalidArgument)
			_, err = e.service.Cache(ctx, scope)
			wantCode(t, "open of "+what, err, felix.InvalidArgument)
			_, _, err = e.service.SetReplication(ctx, scope, 1)
			wantCode(t, "replication of "+what, err, felix.InvalidArgument)
			wantCode(t, "delete of "+what, e.service.DeleteCache(ctx, scope), felix.InvalidArgument)
		}
	}
	good := []string{"a", "0", "a-b", "a.b", "a_b", "0-", "a..", strings.Repeat("z", felix.MaxNameBytes)}
	for i, name := range good {
		scope := felix.Scope{Tenant: name, Namespace: good[(i+1)%len(good)], Cache: good[(i+2)%len(good)]}
		if _, created, _, err := e.service.CreateCache(ctx, scope, felix.CacheSettings{Shards: 1}); err != nil || !created {
			t.Errorf("create of %s: created %v, error %v", scope, created, err)
			continue
		}
		one(t, e.open(t, scope), add("k", int64(i)))
	}
	for i, name := range good { // addresses are apart
		scope := felix.Scope{Tenant: name, Namespace: good[(i+1)%len(good)], Cache: good[(i+2)%len(good)]}
		checkReply(t, scope.String(), one(t, e.open(t, scope), get("k")), counter(int64(i)))
	}
}

func testCaches(t *testing.T, e *env) {
	t.Run("create", func(t *testing.T) { testCreate(t, e) })
	t.Run("settings", func(t *testing.T) { testSettings(t, e) })
	t.Run("list", func(t *testing.T) { testList(t, e) })
	t.Run("delete", func(t *testing.T) { testDeleteCache(t, e) })
	t.Run("not found", func(t *testing.T) { testNotFound(t, e) })
	t.Run("replication", func(t *testing.T) { testReplication(t, e) })
	t.Run("consistency", func(t *testing.T) {
		cache := e.cacheWith(t, felix.CacheSettings{Consistency: felix.Leader, Shards: 2})
		checkReply(t, "an add on a leader cache", one(t, cache, add("k", 1)), sum(1))
		checkReply(t, "a get on a leader cache", one(t, cache, get("k")), counter(1))
	})
}

func testCreate(t *testing.T, e *env) {
	ctx, scope := within(t), e.scope()
	settings := felix.CacheSettings{Shards: 3, Replication: 1, Consistency: felix.Leader, MaxIDs: 5}
	info, created, warning, err := e.service.CreateCache(ctx, scope, settings)
	if err != nil || !created || info.Scope != scope || info.CacheSettings != settings || info.CreatedAtMillis <= 0 {
		t.Fatalf("create: %+v, created %v, error %v", info, created, err)
	}
	if warning != "" || info.Replicas != 1 {
		t.Errorf("a cache of replication 1 has %d replicas and the warning %q", info.Replicas, warning)
	}
	one(t, e.open(t, scope), add("k", 4))
	again, created, _, err := e.service.CreateCache(ctx, scope, settings)
	if err != nil || created || again.CacheSettings != settings || again.CreatedAtMillis != info.CreatedAtMillis {
		t.Errorf("the same again: %+v, created %v, error %v", again, created, err)
	}
	for _, other := range []felix.CacheSettings{
		{Shards: 4, Replication: 1, Consistency: felix.Leader},
		{Shards: 3, Replication: 1, Consistency: felix.Quorum},
		{Shards: 3, Replication: 2, Consistency: felix.Leader},
		{},
	} {
		_, created, _, err = e.service.CreateCache(ctx, scope, other)
		wantCode(t, fmt.Sprintf("the same name with %+v", other), err, felix.AlreadyExists)
		if created {
			t.Error("it says created all the same")
		}
	}
	got, err := e.service.CacheInfo(ctx, scope)
	if err != nil || got.CacheSettings != settings || got.CreatedAtMillis != info.CreatedAtMillis {
		t.Errorf("info afterwards: %+v, error %v", got, err)
	}
	checkReply(t, "its counter afterwards", one(t, e.open(t, scope), get("k")), counter(4))
}

func testSettings(t *testing.T, e *env) {
	ctx, scope := within(t), e.scope()
	info, _, _, err := e.service.CreateCache(ctx, scope, felix.CacheSettings{})
	if err != nil || info.Shards != felix.DefaultShards || info.Replication < 1 || info.Replication > 3 || info.Consistency != felix.Quorum {
		t.Errorf("defaults: %+v, error %v", info, err)
	}
	if _, created, _, err := e.service.CreateCache(ctx, scope, felix.CacheSettings{Shards: felix.DefaultShards}); created || err != nil {
		t.Errorf("a default, spelled out: created %v, error %v; want that it exists", created, err)
	}
	for _, settings := range []felix.CacheSettings{
		{Shards: -1}, {Shards: felix.MaxShardsPerCache + 1}, {Replication: -1}, {Replication: felix.MaxReplication + 1}, {Consistency: felix.Leader + 1},
	} {
		scope := e.scope()
		_, created, _, err := e.service.CreateCache(ctx, scope, settings)
		wantCode(t, fmt.Sprintf("settings %+v", settings), err, felix.InvalidArgument)
		if created {
			t.Error("it says created all the same")
		}
		_, err = e.service.CacheInfo(ctx, scope)
		wantCode(t, "the cache that was refused", err, felix.CacheNotFound)
	}
	many := e.cacheWith(t, felix.CacheSettings{Shards: felix.MaxShardsPerCache})
	ops := make([]felix.Op, 0, 2000)
	for n := range 2000 {
		ops = append(ops, add(fmt.Sprint(n), 1))
	}
	for _, r := range submit(many, felix.MaxShardsPerCache, ops, time.Now().Add(patience)).wait(t) {
		checkReply(t, "an add on 256 shards", r, sum(1))
	}
	if err := e.service.DeleteCache(ctx, many.Scope()); err != nil {
		t.Errorf("delete of 256 shards: %v", err)
	}
}

func testList(t *testing.T, e *env) {
	ctx := within(t)
	var want []string
	for _, s := range []string{"lb/n1/c2", "la/n2/c1", "la/n1/c2", "la/n1/c10", "la/n1/c1", "la-/n1/c1"} {
		p := strings.Split(s, "/")
		if _, _, _, err := e.service.CreateCache(ctx, felix.Scope{Tenant: p[0], Namespace: p[1], Cache: p[2]}, felix.CacheSettings{Shards: 1}); err != nil {
			t.Fatal(err)
		}
		want = append(want, s)
	}
	slices.SortFunc(want, func(a, b string) int { return slices.Compare(strings.Split(a, "/"), strings.Split(b, "/")) })
	for _, filter := range [][2]string{{"la", "n1"}, {"la", ""}, {"", "n1"}, {"", ""}, {"la", "none"}, {"none", ""}} {
		infos, err := e.service.Caches(ctx, filter[0], filter[1])
		if err != nil {
			t.Errorf("list of %q: %v", filter, err)
		}
		var got, expected []string
		for _, info := range infos {
			if strings.HasPrefix(info.Tenant, "l") { // other tests make caches too
				got = append(got, info.Scope.String())
			}
			if info.Shards == 0 || info.Replication == 0 || info.Replicas == 0 || info.CreatedAtMillis == 0 {
				t.Errorf("list of %q: an item is not filled: %+v", filter, info)
			}
		}
		for _, s := range want {
			p := strings.Split(s, "/")
			if (filter[0] == "" || filter[0] == p[0]) && (filter[1] == "" || filter[1] == p[1]) {
				expected = append(expected, s)
			}
		}
		if !slices.Equal(got, expected) {
			t.Errorf("list of tenant %q, namespace %q: %v, want %v", filter[0], filter[1], got, expected)
		}
	}
	_, err := e.service.Caches(ctx, "Bad Name", "")
	wantCode(t, "list of a bad tenant name", err, felix.InvalidArgument)
	_, err = e.service.Caches(ctx, "", "Bad Name")
	wantCode(t, "list of a bad namespace name", err, felix.InvalidArgument)
}

// testDeleteCache: old handles find nothing, also not the cache that is made
// under the same name afterwards; that one is empty.
func testDeleteCache(t *testing.T, e *env) {
	ctx := within(t)
	old := e.cacheWith(t, felix.CacheSettings{Shards: 2})
	scope := old.Scope()
	do(t, old, add("k", 7), set("v", "x", inValues))
	if err := e.service.DeleteCache(ctx, scope); err != nil {
		t.Fatalf("delete: %v", err)
	}
	gone := func(when string) {
		t.Helper()
		for i, r := range do(t, old, get("k"), add("k", 1), setInt("k", 1), del("k"), expire("k", at(far))) {
			checkReply(t, fmt.Sprintf("%s, operation %d through the old handle", when, i), r, fails(felix.Errorf(felix.CacheNotFound, "any words")))
		}
		_, err := old.Scan(ctx, felix.ScanRequest{Limit: 1})
		wantCode(t, when+", scan through the old handle", err, felix.CacheNotFound)
		_, err = old.Count(ctx)
		wantCode(t, when+", count through the old handle", err, felix.CacheNotFound)
		wantCode(t, when+", clear through the old handle", old.Clear(ctx), felix.CacheNotFound)
	}
	gone("deleted")
	_, err := e.service.Cache(ctx, scope)
	wantCode(t, "open of a deleted cache", err, felix.CacheNotFound)
	wantCode(t, "a second delete", e.service.DeleteCache(ctx, scope), felix.CacheNotFound)

	if _, created, _, err := e.service.CreateCache(ctx, scope, felix.CacheSettings{Shards: 5}); err != nil || !created {
		t.Fatalf("the same name again, with other settings: created %v, error %v", created, err)
	}
	cache := e.open(t, scope)
	for _, r := range do(t, cache, get("k"), get("v", inValues)) {
		checkReply(t, "a get in the new cache", r, none)
	}
	if counts, err := cache.Count(ctx); err != nil || counts != (felix.RecordCount{}) {
		t.Errorf("the new cache counts %+v, error %v", counts, err)
	}
	one(t, cache, add("k", 1))
	gone("made again")
	checkReply(t, "the new cache's counter", one(t, cache, get("k")), counter(1))
}

func testNotFound(t *testing.T, e *env) {
	ctx, scope := within(t), e.scope()
	_, err := e.service.CacheInfo(ctx, scope)
	wantCode(t, "info", err, felix.CacheNotFound)
	cache, err := e.service.Cache(ctx, scope)
	wantCode(t, "open", err, felix.CacheNotFound)
	if cache != nil {
		t.Error("a cache that does not exist was opened")
	}
	_, _, err = e.service.SetReplication(ctx, scope, 1)
	wantCode(t, "replication", err, felix.CacheNotFound)
	wantCode(t, "delete", e.service.DeleteCache(ctx, scope), felix.CacheNotFound)
}

func testReplication(t *testing.T, e *env) {
	ctx := within(t)
	cache := e.cacheWith(t, felix.CacheSettings{Replication: 1})
	one(t, cache, add("k", 1))
	for _, n := range []int{0, -1, felix.MaxReplication + 1} {
		_, _, err := e.service.SetReplication(ctx, cache.Scope(), n)
		wantCode(t, fmt.Sprintf("replication %d", n), err, felix.InvalidArgument)
	}
	for _, n := range []int{3, 1} {
		info, warning, err := e.service.SetReplication(ctx, cache.Scope(), n)
		if err != nil || info.Replication != n || info.Replicas < 1 {
			t.Errorf("replication %d: %+v, error %v", n, info, err)
		}
		if (warning != "") != (info.Replicas < n) {
			t.Errorf("replication %d, %d replicas: the warning is %q", n, info.Replicas, warning)
		}
		got, err := e.service.CacheInfo(ctx, cache.Scope())
		if err != nil || got.Replication != n {
			t.Errorf("info after replication %d: %+v, error %v", n, got, err)
		}
		checkReply(t, "its counter", one(t, cache, get("k")), counter(1))
	}
}
