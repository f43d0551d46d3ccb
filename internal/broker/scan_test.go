package broker

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/felix-go/felix"
)

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
