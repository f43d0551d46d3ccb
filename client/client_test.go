package client_test

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/client"
)

const patience = 10 * time.Second

func TestCounters(t *testing.T) {
	b := startBroker(t)
	c := newClient(t, patience, b.address)
	ctx := t.Context()
	for _, key := range []string{"user:42", "\xff\x00\xfe", "zählung", "new\nline", strings.Repeat("k", felix.MaxKeyBytes)} {
		if _, found, err := c.CounterGet(ctx, "", "", "c", key); found || err != nil {
			t.Errorf("%.9q: found %v before it was written, %v", key, found, err)
		}
		if sum, err := c.CounterAdd(ctx, "", "", "c", key, 0); sum != 0 || err != nil {
			t.Errorf("%.9q: %d, %v", key, sum, err)
		}
		if got, found, err := c.CounterGet(ctx, "default", "default", "c", key); !found || got.Value != 0 || got.Key != key || err != nil {
			t.Errorf("%.9q: %+v, %v, %v", key, got, found, err)
		}
		if sum, err := c.CounterAdd(ctx, "", "", "c", key, -7); sum != -7 || err != nil {
			t.Errorf("%.9q: %d, %v", key, sum, err)
		}
		if err := c.CounterSet(ctx, "", "", "c", key, math.MaxInt64); err != nil {
			t.Errorf("%.9q: %v", key, err)
		}
		if _, err := c.CounterAdd(ctx, "", "", "c", key, 1); codeOf(t, err) != felix.OutOfRange {
			t.Errorf("%.9q: %v", key, err)
		}
		if deleted, err := c.CounterDelete(ctx, "", "", "c", key); !deleted || err != nil {
			t.Errorf("%.9q: %v, %v", key, deleted, err)
		}
		if deleted, err := c.CounterDelete(ctx, "", "", "c", key); deleted || err != nil {
			t.Errorf("%.9q: %v, %v", key, deleted, err)
		}
	}
	before := b.requests.Load()
	for _, key := range []string{"", strings.Repeat("k", felix.MaxKeyBytes+1)} {
		if _, err := c.CounterAdd(ctx, "", "", "c", key, 1); codeOf(t, err) != felix.InvalidArgument {
			t.Errorf("%.9q: %v", key, err)
		}
	}
	if b.requests.Load() != before {
		t.Error("a request with a key that cannot be was sent")
	}
	if _, err := c.CounterAdd(ctx, "", "", "none", "k", 1); codeOf(t, err) != felix.CacheNotFound {
		t.Errorf("no such cache: %v", err)
	}
}

func TestCounterList(t *testing.T) {
	b := startBroker(t)
	c := newClient(t, patience, b.address)
	ctx := t.Context()
	var want []string
	for i := range 25 {
		key := fmt.Sprintf("a\xff%02d", i)
		want = append(want, key)
		if _, err := c.CounterAdd(ctx, "", "", "c", key, int64(i)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.CounterAdd(ctx, "", "", "c", "b", 1); err != nil {
		t.Fatal(err)
	}
	for _, pageSize := range []int{0, 1, 7, 25, felix.MaxScanPage} {
		var got []string
		before := b.requests.Load()
		for counter, err := range c.CounterList(ctx, "", "", "c", "a\xff", pageSize) {
			if err != nil {
				t.Fatal(err)
			}
			if counter.Value != int64(len(got)) {
				t.Errorf("%q is %d", counter.Key, counter.Value)
			}
			got = append(got, counter.Key)
		}
		if !slices.Equal(got, want) {
			t.Errorf("page size %d: %q", pageSize, got)
		}
		// Pages may be short; the model's are, but not more than half of them.
		if pages := b.requests.Load() - before; pageSize == 7 && (pages < 4 || pages > 8) {
			t.Errorf("25 counters took %d pages of 7", pages)
		}
	}
	for counter, err := range c.CounterList(ctx, "", "", "c", "", 1) {
		if err != nil || counter.Key != want[0] {
			t.Errorf("%v, %v", counter, err)
		}
		break // a reader may stop
	}
	for _, bad := range []struct {
		cache string
		size  int
		code  felix.Code
	}{{"none", 0, felix.CacheNotFound}, {"c", -1, felix.InvalidArgument}, {"c", felix.MaxScanPage + 1, felix.InvalidArgument}} {
		rounds := 0
		for _, err := range c.CounterList(ctx, "", "", bad.cache, "", bad.size) {
			rounds++
			if codeOf(t, err) != bad.code {
				t.Errorf("%+v: %v", bad, err)
			}
		}
		if rounds != 1 {
			t.Errorf("%+v: %d rounds", bad, rounds)
		}
	}
}

func TestExpiryIsShown(t *testing.T) {
	b := startBroker(t)
	scope := felix.Scope{Tenant: "default", Namespace: "default", Cache: "c"}
	cache, err := b.service.Cache(t.Context(), scope)
	if err != nil {
		t.Fatal(err)
	}
	op := felix.Op{Kind: felix.Set, Key: []byte("k"), Int: 3, TTL: felix.TTLIn, ExpiryMillis: 500}
	if _, err := felix.Do(t.Context(), cache, op); err != nil {
		t.Fatal(err)
	}
	got, found, err := newClient(t, patience, b.address).CounterGet(t.Context(), "", "", "c", "k")
	if !found || err != nil || !got.ExpiresAt.Equal(time.UnixMilli(1_000_500)) || got.Version == 0 {
		t.Errorf("%+v, %v, %v", got, found, err)
	}
}

func TestCaches(t *testing.T) {
	c := newClient(t, patience, startBroker(t).address)
	ctx := t.Context()
	settings := felix.CacheSettings{Shards: 2, Replication: 3, Consistency: felix.Leader}
	info, created, warning, err := c.CacheCreate(ctx, "acme", "", "d", settings)
	want := felix.CacheInfo{
		Scope: felix.Scope{Tenant: "acme", Namespace: "default", Cache: "d"}, CacheSettings: settings,
		Replicas: 1, CreatedAtMillis: 1_000_000,
	}
	if info != want || !created || warning == "" || err != nil {
		t.Errorf("%+v, %v, %q, %v", info, created, warning, err)
	}
	if _, created, _, err := c.CacheCreate(ctx, "acme", "", "d", settings); created || err != nil {
		t.Errorf("again: %v, %v", created, err)
	}
	settings.Shards = 3
	if _, _, _, err := c.CacheCreate(ctx, "acme", "", "d", settings); codeOf(t, err) != felix.AlreadyExists {
		t.Errorf("other settings: %v", err)
	}
	settings.Shards = 1<<32 + 2 // is 2 when cut to 32 bits
	if _, _, _, err := c.CacheCreate(ctx, "acme", "", "d", settings); codeOf(t, err) != felix.InvalidArgument {
		t.Errorf("2^32+2 shards: %v", err)
	}
	if _, err := c.CounterAdd(ctx, "acme", "", "d", "k", 1); err != nil {
		t.Error(err)
	}
	want.Counts = felix.RecordCount{Counters: 1, Keys: 1}
	if info, err := c.CacheGet(ctx, "acme", "", "d"); info != want || err != nil {
		t.Errorf("%+v, %v", info, err)
	}
	want.Replication = 1
	if info, _, err := c.CacheSetReplication(ctx, "acme", "", "d", 1); info != want || err != nil {
		t.Errorf("%+v, %v", info, err)
	}
	if list, err := c.CacheList(ctx, "acme", ""); len(list) != 1 || list[0] != want || err != nil {
		t.Errorf("%+v, %v", list, err)
	}
	if list, err := c.CacheList(ctx, client.All, client.All); len(list) != 2 || err != nil {
		t.Errorf("%+v, %v", list, err)
	}
	if err := c.CacheDelete(ctx, "acme", "", "d"); err != nil {
		t.Error(err)
	}
	if err := c.CacheDelete(ctx, "acme", "", "d"); codeOf(t, err) != felix.CacheNotFound {
		t.Errorf("again: %v", err)
	}
	if _, err := c.CacheGet(ctx, "acme", "", "d"); codeOf(t, err) != felix.CacheNotFound {
		t.Errorf("gone: %v", err)
	}
}

func TestAddresses(t *testing.T) {
	for _, bad := range []string{"", "ftp://h:1", "h:1/path", "http://u@h:1", "h:port", "http://", ":7380", "h:", "h:1?q=1", "::1:7380"} {
		if _, err := client.New(client.Options{Brokers: []string{bad}}); codeOf(t, err) != felix.InvalidArgument {
			t.Errorf("%q: %v", bad, err)
		}
	}
	for _, good := range []string{"h", "h:1", "http://h:1", "http://h:1/", "https://h", "[::1]:7380", "[::1]", "10.0.0.1"} {
		if _, err := client.New(client.Options{Brokers: []string{good}}); err != nil {
			t.Errorf("%q: %v", good, err)
		}
	}
	if _, err := client.New(client.Options{Timeout: -1}); codeOf(t, err) != felix.InvalidArgument {
		t.Errorf("a negative timeout: %v", err)
	}
	// The default port, seen in the words of an error.
	c := newClient(t, patience, "127.0.0.9")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.CounterAdd(ctx, "", "", "c", "k", 1); codeOf(t, err) != felix.Unavailable {
		t.Errorf("a context that was over before: %v", err)
	}
}
