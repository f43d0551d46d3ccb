package redisapi_test

import (
	"context"
	"testing"
	"time"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/model"
	"github.com/felix-go/felix/internal/netloop"
)

// newService is the model with the caches that `felix dev` creates.
func newService(t testing.TB) felix.Service {
	t.Helper()
	service := model.New(func() int64 { return time.Now().UnixMilli() })
	for _, cache := range []string{felix.DefaultCache, felix.StatsCache} {
		scope := felix.Scope{Tenant: felix.DefaultTenant, Namespace: felix.DefaultNamespace, Cache: cache}
		if _, _, _, err := service.CreateCache(context.Background(), scope, felix.CacheSettings{}); err != nil {
			t.Fatal(err)
		}
	}
	return service
}

// turn is one turn of a session on the bytes.
func turn(ctx context.Context, s netloop.Session, in []byte) (used int, out []byte, stop bool) {
	var t netloop.Turn
	used = s.Parse(in, &t)
	var replies []felix.Reply
	if len(t.Ops) > 0 {
		var err error
		if replies, err = felix.DoGroups(ctx, t.Cache, t.Ops, t.Groups); err != nil {
			return used, nil, true
		}
	}
	if t.Slow != nil {
		t.Slow(ctx)
	}
	for left := 1; left > 0; { // in parts, if it is much
		var part []byte
		part, left = s.Reply(nil, replies)
		out = append(out, part...)
	}
	if used == 0 && t.Slow != nil { // which was only to prepare the next Parse
		return turn(ctx, s, in)
	}
	return used, out, t.Close
}
