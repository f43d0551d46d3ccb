package broker

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"testing"

	"github.com/felix-go/felix"
)

func TestSmoke(t *testing.T) {
	dir := t.TempDir()
	open := func() *Broker {
		b, err := Open(Options{Dir: dir, Logger: slog.New(slog.NewTextHandler(os.Stderr, nil))})
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	ctx := context.Background()
	b := open()
	scope := felix.Scope{Tenant: "default", Namespace: "default", Cache: "default"}
	if _, _, _, err := b.CreateCache(ctx, scope, felix.CacheSettings{}); err != nil {
		t.Fatal(err)
	}
	c, err := b.Cache(ctx, scope)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 1000 {
		r, err := felix.Do(ctx, c, felix.Op{Kind: felix.Add, Key: fmt.Appendf(nil, "k%d", i%100), Int: 1})
		if err != nil || r[0].Err != nil {
			t.Fatal(err, r[0].Err)
		}
	}
	n, err := c.Count(ctx)
	t.Log(n, err)
	p, err := c.Scan(ctx, felix.ScanRequest{Limit: 3})
	t.Log(p, err)
	if err := b.Close(ctx); err != nil {
		t.Fatal(err)
	}
	b = open()
	c, _ = b.Cache(ctx, scope)
	for i := range 100 {
		r, err := felix.Do(ctx, c, felix.Op{Kind: felix.Get, Key: fmt.Appendf(nil, "k%d", i)})
		if err != nil || r[0].Int != 10 {
			t.Fatal(err, r[0])
		}
	}
	if err := c.Clear(ctx); err != nil {
		t.Fatal(err)
	}
	n, err = c.Count(ctx)
	t.Log(n, err)
	if err := b.DeleteCache(ctx, scope); err != nil {
		t.Fatal(err)
	}
	if err := b.Close(ctx); err != nil {
		t.Fatal(err)
	}
}
