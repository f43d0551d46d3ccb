package client

import (
	"context"
	"math/big"
	"time"
	"unicode/utf8"

	"connectrpc.com/connect"

	"github.com/felix-go/felix"
	felixv1 "github.com/felix-go/felix/api/felix/v1"
)

// AddOptions are what an add may be asked for beside its delta. The zero value is
// a plain add.
type AddOptions struct {
	// Min and Max are what the sum may be at least and at most; nil is no bound.
	// With one of them or Saturate, a sum that would overflow is outside of the
	// bounds, too, and no error.
	Min, Max *int64
	// Saturate goes as far as the bound, instead of changing nothing.
	Saturate bool
	// ExpiresIn, at least a millisecond, or ExpiresAt is when the counter is to
	// expire, on the shard's clock. Without either its expiry stays as it is; a
	// new counter never expires.
	ExpiresIn time.Duration
	ExpiresAt time.Time
	// ExpiryIfNone sets the expiry only where there is none: a window that begins
	// with its first add. It needs ExpiresIn or ExpiresAt.
	ExpiryIfNone bool
}

// Added is the answer to an add.
type Added struct {
	// Value is the sum: with what was added, or as it is if Applied is false (0
	// where there is no counter).
	Value int64
	// Applied is false if the sum would have been outside of the bounds: nothing
	// was changed.
	Applied bool
	// Added is what was added: the delta, or what led to the bound, or 0.
	Added int64
	// ExpiresAt is on the shard's clock; zero means never.
	ExpiresAt time.Time
	// Version is that of the counter.
	Version uint64
}

// CounterAdd adds delta to a counter, from 0 if it does not exist, and answers
// the sum. It is sent at most once. Errors: out_of_range if the sum would
// overflow, cache_not_found, invalid_argument, resource_exhausted, unavailable
// (none of these changed anything); outcome_unknown if the answer was lost.
func (c *Client) CounterAdd(ctx context.Context, tenant, namespace, cache, key string, delta int64) (int64, error) {
	added, err := c.CounterAddWith(ctx, tenant, namespace, cache, key, delta, AddOptions{})
	return added.Value, err
}

// CounterAddWith is CounterAdd with bounds and an expiry. A sum that would be
// outside of the bounds is an answer, not an error.
func (c *Client) CounterAddWith(ctx context.Context, tenant, namespace, cache, key string, delta int64, opts AddOptions) (Added, error) {
	req, err := addRequest(key, delta, &opts)
	if err != nil {
		return Added{}, err
	}
	req.Tenant, req.Namespace, req.Cache = tenant, namespace, cache
	resp, err := call(ctx, c, changes, func(ctx context.Context, b broker) (*connect.Response[felixv1.CounterAddResponse], error) {
		return b.counters.Add(ctx, connect.NewRequest(req))
	})
	if err != nil {
		return Added{}, err
	}
	a := Added{Value: resp.GetValue(), Applied: resp.GetApplied(), Added: resp.GetAdded(),
		ExpiresAt: timeOf(resp.GetExpiresAtMillis()), Version: resp.GetVersion()}
	if req.Min == nil && req.Max == nil && !req.Saturate {
		a.Applied, a.Added = true, delta // what an older broker does not say
	}
	return a, nil
}

// addRequest is the request without its cache. The error is invalid_argument.
func addRequest(key string, delta int64, opts *AddOptions) (*felixv1.CounterAddRequest, error) {
	if err := checkKey(key); err != nil {
		return nil, err
	}
	req := &felixv1.CounterAddRequest{Delta: &delta, Min: opts.Min, Max: opts.Max, Saturate: opts.Saturate, ExpiryIfNone: opts.ExpiryIfNone}
	if utf8.ValidString(key) {
		req.KeyForm = &felixv1.CounterAddRequest_Key{Key: key}
	} else {
		req.KeyForm = &felixv1.CounterAddRequest_KeyBytes{KeyBytes: []byte(key)}
	}
	if err := checkExpiry(opts.ExpiresIn, opts.ExpiresAt); err != nil {
		return nil, err
	}
	switch {
	case opts.ExpiresIn != 0:
		req.Expiry = &felixv1.CounterAddRequest_ExpiresInMillis{ExpiresInMillis: opts.ExpiresIn.Milliseconds()}
	case !opts.ExpiresAt.IsZero():
		req.Expiry = &felixv1.CounterAddRequest_ExpiresAtMillis{ExpiresAtMillis: opts.ExpiresAt.UnixMilli()}
	}
	return req, nil
}

// checkExpiry refuses what the API cannot say.
func checkExpiry(in time.Duration, at time.Time) error {
	if in != 0 && !at.IsZero() {
		return felix.Errorf(felix.InvalidArgument, "it expires in %v or at %v: give one of them", in, at)
	}
	if in != 0 && in < time.Millisecond {
		return felix.Errorf(felix.InvalidArgument, "it expires in %v: at least a millisecond is needed", in)
	}
	return nil
}

// CounterTotals counts the counters whose keys begin with prefix (empty means
// all) and adds them up; the sum may be more than 64 bits hold. It asks a page at
// a time, each a call of its own with the client's timeout, so counters written
// meanwhile may or may not be counted. Errors are those of CounterGet.
func (c *Client) CounterTotals(ctx context.Context, tenant, namespace, cache, prefix string) (count int64, sum *big.Int, err error) {
	sum = new(big.Int)
	req := listRequest(tenant, namespace, cache, prefix, felix.MaxScanPage)
	req.TotalsOnly = true
	for page, err := range c.counterPages(ctx, req) {
		if err != nil {
			return 0, nil, err
		}
		n, ok := new(big.Int).SetString(page.GetSum(), 10)
		if !ok {
			return 0, nil, felix.Errorf(felix.Internal, "the broker answered %.40q where a sum should be", page.GetSum())
		}
		count += page.GetCount()
		sum.Add(sum, n)
	}
	return count, sum, nil
}
