// Package servicetest is the one conformance suite of felix.Service: every
// promise of the vocabulary that can be seen through that interface. It runs
// against the model, against the broker, and against whatever else implements
// the interface.
package servicetest

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/felix-go/felix"
)

// Clocked is a Service whose shard time the suite may set. Without it the rules
// of expiry are tested only as far as real time allows.
type Clocked interface {
	felix.Service
	// SetNow stops shard time at this time, in Unix milliseconds. The suite
	// only moves it forward.
	SetNow(unixMillis int64)
}

// Ungrouped is a Service that knows no Batch.Groups.
type Ungrouped interface {
	felix.Service
	// Ungrouped does nothing.
	Ungrouped()
}

// Run runs the suite. newService makes an empty service for the test that is
// passed and closes it with that test's Cleanup. If the service is Clocked, the
// suite sets its time.
func Run(t *testing.T, newService func(t *testing.T) felix.Service) {
	for _, group := range []struct {
		name string
		run  func(t *testing.T, e *env)
	}{
		{"Names", testNames},
		{"Keys", testKeys},
		{"Counters", testCounters},
		{"Bounds", testBounds},
		{"Records", testRecords},
		{"IDs", testIDs},
		{"Redis", testRedis},
		{"Illegal", testIllegal},
		{"Versions", testVersions},
		{"Expiry", testExpiry},
		{"Batches", testBatches},
		{"Groups", testGroups},
		{"Scan", testScan},
		{"CountAndClear", testCountAndClear},
		{"Caches", testCaches},
		{"Concurrency", testConcurrency},
		{"Watch", testWatch},
		{"Random", testRandom},
	} {
		t.Run(group.name, func(t *testing.T) {
			group.run(t, &env{service: newService(t), newService: newService})
		})
	}
}

// env is one service under test and a source of fresh caches in it.
type env struct {
	service    felix.Service
	newService func(t *testing.T) felix.Service
	made       atomic.Int32
}

// patience is how long the suite waits for anything at all: long, because it is
// only ever used up by a bug.
const patience = 30 * time.Second

func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// scope is an address that no other test of this service uses.
func (e *env) scope() felix.Scope {
	return felix.Scope{Tenant: "default", Namespace: "suite", Cache: fmt.Sprintf("c%d", e.made.Add(1))}
}

// cache makes a fresh cache with the default settings.
func (e *env) cache(t *testing.T) felix.Cache {
	t.Helper()
	return e.cacheWith(t, felix.CacheSettings{})
}

func (e *env) cacheWith(t *testing.T, settings felix.CacheSettings) felix.Cache {
	t.Helper()
	scope := e.scope()
	ctx := within(t)
	if _, created, _, err := e.service.CreateCache(ctx, scope, settings); err != nil || !created {
		t.Fatalf("creating cache %s: created %v, error %v", scope, created, err)
	}
	return e.open(t, scope)
}

func (e *env) open(t *testing.T, scope felix.Scope) felix.Cache {
	t.Helper()
	cache, err := e.service.Cache(within(t), scope)
	if err != nil {
		t.Fatalf("opening cache %s: %v", scope, err)
	}
	if cache.Scope() != scope {
		t.Fatalf("the cache opened as %s says it is %s", scope, cache.Scope())
	}
	return cache
}

// do runs operations as one batch.
func do(t *testing.T, cache felix.Cache, ops ...felix.Op) []felix.Reply {
	t.Helper()
	return doGroups(t, cache, ops, nil)
}

// doGroups runs operations as one batch with groups.
func doGroups(t *testing.T, cache felix.Cache, ops []felix.Op, groups []felix.Group) []felix.Reply {
	t.Helper()
	replies, err := felix.DoGroups(within(t), cache, ops, groups)
	if err != nil {
		t.Fatalf("no answer: %v", err)
	}
	return replies
}

// one runs one operation that must not fail.
func one(t *testing.T, cache felix.Cache, op felix.Op) felix.Reply {
	t.Helper()
	r := do(t, cache, op)[0]
	if r.Err != nil {
		t.Fatalf("%s: %v", describe(&op), r.Err)
	}
	return r
}

// wantCode checks that err is an *felix.Error with this code.
func wantCode(t *testing.T, what string, err error, code felix.Code) {
	t.Helper()
	e, ok := err.(*felix.Error)
	if !ok || e == nil || e.Code != code {
		t.Errorf("%s: error %v (%T), want %s", what, err, err, code)
		return
	}
	if e.Message == "" {
		t.Errorf("%s: the %s error has no words", what, code)
	}
}

// eventually polls until ok; for what the service does in the background.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("still not so after %v: %s", patience, what)
		}
	}
}
