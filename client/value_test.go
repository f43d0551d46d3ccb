package client_test

import (
	"bytes"
	"context"
	"math"
	"math/big"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/felix-go/felix"
	felixv1 "github.com/felix-go/felix/api/felix/v1"
	"github.com/felix-go/felix/api/felix/v1/felixv1connect"
	"github.com/felix-go/felix/client"
)

// now is when the model's clock stands.
var now = time.UnixMilli(1_000_000)

func TestAddWithin(t *testing.T) {
	b := startBroker(t)
	c := newClient(t, patience, b.address)
	add := func(delta int64, opts client.AddOptions) client.Added {
		t.Helper()
		got, err := c.CounterAddWith(t.Context(), "", "", "c", "\xffk", delta, opts)
		if err != nil {
			t.Fatal(err)
		}
		got.Version = 0
		return got
	}
	most, least, later := int64(3), int64(-1), now.Add(time.Hour)
	for _, s := range []struct {
		delta int64
		opts  client.AddOptions
		want  client.Added
	}{
		{5, client.AddOptions{Max: &most}, client.Added{}},
		{2, client.AddOptions{Max: &most, ExpiresIn: time.Minute, ExpiryIfNone: true}, client.Added{Value: 2, Applied: true, Added: 2, ExpiresAt: now.Add(time.Minute)}},
		{1, client.AddOptions{Max: &most, ExpiresAt: later, ExpiryIfNone: true}, client.Added{Value: 3, Applied: true, Added: 1, ExpiresAt: now.Add(time.Minute)}},
		{1, client.AddOptions{Max: &most, ExpiresAt: later}, client.Added{Value: 3, ExpiresAt: now.Add(time.Minute)}},
		{1, client.AddOptions{Max: &most, Saturate: true, ExpiresAt: later}, client.Added{Value: 3, Applied: true, ExpiresAt: later}},
		{-9, client.AddOptions{Min: &least, Saturate: true}, client.Added{Value: -1, Applied: true, Added: -4, ExpiresAt: later}},
		{math.MinInt64, client.AddOptions{Saturate: true}, client.Added{Value: math.MinInt64, Applied: true, Added: math.MinInt64 + 1, ExpiresAt: later}},
	} {
		if got := add(s.delta, s.opts); got != s.want {
			t.Errorf("add of %d with %+v: %+v, want %+v", s.delta, s.opts, got, s.want)
		}
	}
	before := b.requests.Load()
	for _, opts := range []client.AddOptions{
		{ExpiresIn: time.Microsecond}, {ExpiresIn: -time.Second}, {ExpiresIn: time.Second, ExpiresAt: later},
	} {
		if _, err := c.CounterAddWith(t.Context(), "", "", "c", "k", 1, opts); codeOf(t, err) != felix.InvalidArgument {
			t.Errorf("%+v: %v", opts, err)
		}
	}
	if b.requests.Load() != before {
		t.Error("what cannot be was sent")
	}
	if _, err := c.CounterAddWith(t.Context(), "", "", "c", "k", 1, client.AddOptions{Min: &most, Max: &least}); codeOf(t, err) != felix.InvalidArgument {
		t.Errorf("crossed bounds: %v", err)
	}
}

// older is a broker that says nothing but the sum and the version.
type older struct {
	felixv1connect.UnimplementedCounterServiceHandler
}

func (older) Add(context.Context, *connect.Request[felixv1.CounterAddRequest]) (*connect.Response[felixv1.CounterAddResponse], error) {
	return connect.NewResponse(&felixv1.CounterAddResponse{Value: 5, Version: 1}), nil
}

// A plain add was applied, also if the broker is too old to say so. Broken: the
// last condition of CounterAddWith.
func TestOlderBrokersAdd(t *testing.T) {
	_, h := felixv1connect.NewCounterServiceHandler(older{})
	c := newClient(t, patience, serve(t, h))
	got, err := c.CounterAddWith(t.Context(), "", "", "c", "k", 2, client.AddOptions{})
	if want := (client.Added{Value: 5, Applied: true, Added: 2, Version: 1}); err != nil || got != want {
		t.Errorf("%+v, %v, want %+v", got, err, want)
	}
}

func TestTotals(t *testing.T) {
	b := startBroker(t)
	c := newClient(t, patience, b.address)
	want, n := new(big.Int), int64(0)
	for i, value := range []int64{math.MaxInt64, math.MaxInt64, -5, 7, 0, 1, 2, 3, 4} {
		if err := c.CounterSet(t.Context(), "", "", "c", "in:"+strings.Repeat("x", i), value); err != nil {
			t.Fatal(err)
		}
		want.Add(want, big.NewInt(value))
		n++
	}
	if err := c.CounterSet(t.Context(), "", "", "c", "out", 100); err != nil {
		t.Fatal(err)
	}
	count, sum, err := c.CounterTotals(t.Context(), "", "", "c", "in:")
	if err != nil || count != n || sum.Cmp(want) != 0 {
		t.Errorf("%d counters, sum %v, %v; want %d and %v", count, sum, err, n, want)
	}
	if count, sum, err := c.CounterTotals(t.Context(), "", "", "c", "none"); err != nil || count != 0 || sum.Sign() != 0 {
		t.Errorf("of nothing: %d, %v, %v", count, sum, err)
	}
	if _, _, err := c.CounterTotals(t.Context(), "", "", "nothing", ""); codeOf(t, err) != felix.CacheNotFound {
		t.Errorf("no such cache: %v", err)
	}
}

func TestValues(t *testing.T) {
	b := startBroker(t)
	c := newClient(t, patience, b.address)
	for _, key := range []string{"k", "\xff\x00"} {
		for _, value := range [][]byte{{}, []byte("text"), {0xff, 0, 0xfe}, bytes.Repeat([]byte("v"), felix.MaxValueBytes)} {
			if _, _, err := c.ValuePut(t.Context(), "", "", "c", key, value, client.PutOptions{}); err != nil {
				t.Fatal(err)
			}
			got, found, err := c.ValueGet(t.Context(), "", "", "c", key)
			if err != nil || !found || got.Key != key || !bytes.Equal(got.Data, value) || got.Version == 0 || !got.ExpiresAt.IsZero() {
				t.Errorf("put %.9q, got %.9q %v %d, %v, %v", value, got.Data, got.ExpiresAt, got.Version, found, err)
			}
		}
	}
	put := func(opts client.PutOptions) (bool, uint64) {
		t.Helper()
		applied, version, err := c.ValuePut(t.Context(), "", "", "c", "cas", []byte("x"), opts)
		if err != nil {
			t.Fatal(err)
		}
		return applied, version
	}
	if applied, version := put(client.PutOptions{IfVersion: 1}); applied || version != 0 {
		t.Errorf("on a version of nothing: %v %d", applied, version)
	}
	_, first := put(client.PutOptions{IfAbsent: true, ExpiresIn: time.Minute})
	if applied, version := put(client.PutOptions{IfAbsent: true}); applied || version != first {
		t.Errorf("if absent: %v, version %d, want %d", applied, version, first)
	}
	applied, second := put(client.PutOptions{IfVersion: first, KeepExpiry: true})
	if !applied || second <= first {
		t.Errorf("on the version that is: %v, %d after %d", applied, second, first)
	}
	if got, _, err := c.ValueGet(t.Context(), "", "", "c", "cas"); err != nil || !got.ExpiresAt.Equal(now.Add(time.Minute)) {
		t.Errorf("the expiry that was kept: %v, %v", got.ExpiresAt, err)
	}
	if deleted, version, err := c.ValueDelete(t.Context(), "", "", "c", "cas", first); deleted || version != second || err != nil {
		t.Errorf("delete on an old version: %v, %d, %v", deleted, version, err)
	}
	if deleted, version, err := c.ValueDelete(t.Context(), "", "", "c", "cas", second); !deleted || version != 0 || err != nil {
		t.Errorf("delete: %v, %d, %v", deleted, version, err)
	}
	if deleted, version, err := c.ValueDelete(t.Context(), "", "", "c", "cas", 0); deleted || version != 0 || err != nil {
		t.Errorf("delete of nothing: %v, %d, %v", deleted, version, err)
	}
	if got, found, err := c.ValueGet(t.Context(), "", "", "c", "cas"); found || err != nil {
		t.Errorf("what was deleted: %+v, %v", got, err)
	}
	put(client.PutOptions{ExpiresAt: now.Add(time.Hour)})
	if got, _, err := c.ValueGet(t.Context(), "", "", "c", "cas"); err != nil || !got.ExpiresAt.Equal(now.Add(time.Hour)) {
		t.Errorf("expires at %v, %v", got.ExpiresAt, err)
	}
	testValueArguments(t, b, c)
}

// testValueArguments: what cannot be is not sent.
func testValueArguments(t *testing.T, b *broker, c *client.Client) {
	before := b.requests.Load()
	for _, opts := range []client.PutOptions{
		{IfAbsent: true, IfVersion: 1}, {ExpiresIn: time.Second, KeepExpiry: true}, {ExpiresIn: 1}, {ExpiresIn: time.Second, ExpiresAt: now},
	} {
		if _, _, err := c.ValuePut(t.Context(), "", "", "c", "k", nil, opts); codeOf(t, err) != felix.InvalidArgument {
			t.Errorf("%+v: %v", opts, err)
		}
	}
	if _, _, err := c.ValuePut(t.Context(), "", "", "c", "k", make([]byte, felix.MaxValueBytes+1), client.PutOptions{}); codeOf(t, err) != felix.InvalidArgument {
		t.Errorf("a value that is too large: %v", err)
	}
	if _, _, err := c.ValueDelete(t.Context(), "", "", "c", "", 0); codeOf(t, err) != felix.InvalidArgument {
		t.Errorf("the empty key: %v", err)
	}
	if b.requests.Load() != before {
		t.Error("what cannot be was sent")
	}
}
