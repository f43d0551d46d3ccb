package broker

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/felix-go/felix"
)

// TestScanOfLargeValues: each shard has more than its part of a page may hold.
// Pages are bounded and whole together, their memory is given back, and a list
// of keys costs no values.
func TestScanOfLargeValues(t *testing.T) {
	const shards, keys = 16, 40
	b := openTest(t, vfs.NewMem(), func(o *Options) { o.RecordBytes, o.InflightBytes = 4<<20, 32<<20 })
	c := makeCache(t, b.Broker, "c", shards)
	for i := range keys {
		mustDo(t, c, felix.Op{Kind: felix.Set, View: felix.ViewValue, Key: fmt.Appendf(nil, "key%03d", i), Value: make([]byte, felix.MaxValueBytes)})
	}
	for _, keysOnly := range []bool{false, true} {
		req := felix.ScanRequest{View: felix.ViewRedis, Limit: felix.MaxScanPage, KeysOnly: keysOnly}
		listed, pages := 0, 0
		for more := true; more; pages++ {
			page, err := c.Scan(t.Context(), req)
			if err != nil {
				t.Fatal(err)
			}
			size := 0
			for _, item := range page.Items {
				if want := fmt.Sprintf("key%03d", listed); string(item.Key) != want || item.Kind != felix.ValueRecord {
					t.Fatalf("%s comes after %d others", item.Key, listed)
				}
				if len(item.Value) != felix.MaxValueBytes && !keysOnly {
					t.Fatalf("%s has %d bytes", item.Key, len(item.Value))
				}
				size += len(item.Value)
				listed++
			}
			if size > felix.MaxScanPageBytes+felix.MaxValueBytes || keysOnly && size > 0 {
				t.Errorf("a page of %d bytes, keys only: %v", size, keysOnly)
			}
			more, req.After = page.More, page.Next
		}
		if listed != keys || keysOnly && pages != 1 {
			t.Errorf("%d keys in %d pages, keys only: %v", listed, pages, keysOnly)
		}
		eventually(t, "its memory is given back", func() bool { return b.Stats().InflightBytes == 0 })
	}
}

// TestAScanTakesRoom: what its parts have read counts among the operations in
// flight; without room for it the scan is refused, and what it had is free.
func TestAScanTakesRoom(t *testing.T) {
	b := openTest(t, vfs.NewMem(), func(o *Options) { o.InflightBytes = 3 << 20 })
	c := makeCache(t, b.Broker, "c", 16)
	for i := range 40 {
		mustDo(t, c, felix.Op{Kind: felix.Set, View: felix.ViewValue, Key: fmt.Append(nil, i), Value: make([]byte, felix.MaxValueBytes)})
	}
	_, err := c.Scan(t.Context(), felix.ScanRequest{View: felix.ViewValue, Limit: 40})
	if e := felix.AsError(err); err == nil || e.Code != felix.ResourceExhausted || e.RetryAfter <= 0 {
		t.Errorf("a scan of more than the budget: %v", err)
	}
	eventually(t, "its memory is given back", func() bool { return b.Stats().InflightBytes == 0 })
}

// TestPageOfManyShardsIsBounded: each shard's part is within the bound, and all
// of them together are not; the page ends all the same, and the next goes on.
func TestPageOfManyShardsIsBounded(t *testing.T) {
	b := openTest(t, vfs.NewMem(), func(*Options) {})
	scope := felix.Scope{Tenant: "t", Namespace: "n", Cache: "c"}
	if _, _, _, err := b.CreateCache(t.Context(), scope, felix.CacheSettings{Shards: 8}); err != nil {
		t.Fatal(err)
	}
	c, err := b.Cache(t.Context(), scope)
	if err != nil {
		t.Fatal(err)
	}
	const keys, keyBytes = 200, 60_000 // 12 MB, 1.5 MB a shard
	var ops []felix.Op
	for i := range keys {
		key := fmt.Appendf(nil, "%04d%s", i, strings.Repeat("x", keyBytes-4))
		ops = append(ops, felix.Op{Kind: felix.Add, View: felix.ViewCounter, Key: key, Int: 1})
	}
	replies, err := felix.Do(t.Context(), c, ops...)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range replies {
		if r.Err != nil {
			t.Fatal(r.Err)
		}
	}
	listed, pages := 0, 0
	req := felix.ScanRequest{View: felix.ViewCounter, Limit: felix.MaxScanPage}
	for more := true; more; pages++ {
		page, err := c.Scan(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		if bytes := len(page.Items) * keyBytes; bytes > felix.MaxScanPageBytes+keyBytes {
			t.Errorf("a page of %d bytes", bytes)
		}
		for _, item := range page.Items {
			if want := fmt.Sprintf("%04d", listed); string(item.Key[:4]) != want {
				t.Fatalf("%s comes after %d others", item.Key[:4], listed)
			}
			listed++
		}
		more, req.After = page.More, page.Next
	}
	if listed != keys || pages < 3 {
		t.Errorf("%d keys in %d pages", listed, pages)
	}
}
