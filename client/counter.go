package client

import (
	"context"
	"iter"
	"time"
	"unicode/utf8"

	"connectrpc.com/connect"

	"github.com/felix-go/felix"
	felixv1 "github.com/felix-go/felix/api/felix/v1"
)

// Counter is a counter as it was read.
type Counter struct {
	Key   string // any bytes
	Value int64
	// ExpiresAt is on the shard's clock; zero means never.
	ExpiresAt time.Time
	// Version grows with every write of the counter.
	Version uint64
}

// CounterGet reads a counter. found is false if it was never written, has
// expired or was deleted, which is not the same as 0. Errors: cache_not_found,
// invalid_argument, unavailable.
func (c *Client) CounterGet(ctx context.Context, tenant, namespace, cache, key string) (counter Counter, found bool, err error) {
	if err := checkKey(key); err != nil {
		return Counter{}, false, err
	}
	req := &felixv1.CounterGetRequest{Tenant: tenant, Namespace: namespace, Cache: cache}
	if utf8.ValidString(key) {
		req.KeyForm = &felixv1.CounterGetRequest_Key{Key: key}
	} else {
		req.KeyForm = &felixv1.CounterGetRequest_KeyBytes{KeyBytes: []byte(key)}
	}
	resp, err := call(ctx, c, reads, func(ctx context.Context, b broker) (*connect.Response[felixv1.CounterGetResponse], error) {
		return b.counters.Get(ctx, connect.NewRequest(req))
	})
	if err != nil || !resp.GetFound() {
		return Counter{}, false, err
	}
	return Counter{Key: key, Value: resp.GetValue(), ExpiresAt: timeOf(resp.GetExpiresAtMillis()), Version: resp.GetVersion()}, true, nil
}

// CounterSet makes a counter hold a value, without expiry. It is sent at most
// once; errors are those of CounterAdd but for out_of_range.
func (c *Client) CounterSet(ctx context.Context, tenant, namespace, cache, key string, value int64) error {
	if err := checkKey(key); err != nil {
		return err
	}
	req := &felixv1.CounterSetRequest{Tenant: tenant, Namespace: namespace, Cache: cache, Value: &value}
	if utf8.ValidString(key) {
		req.KeyForm = &felixv1.CounterSetRequest_Key{Key: key}
	} else {
		req.KeyForm = &felixv1.CounterSetRequest_KeyBytes{KeyBytes: []byte(key)}
	}
	_, err := call(ctx, c, changes, func(ctx context.Context, b broker) (*connect.Response[felixv1.CounterSetResponse], error) {
		return b.counters.Set(ctx, connect.NewRequest(req))
	})
	return err
}

// CounterDelete removes a counter; deleted is false if there was none. It is
// sent at most once; errors are those of CounterAdd but for out_of_range.
func (c *Client) CounterDelete(ctx context.Context, tenant, namespace, cache, key string) (deleted bool, err error) {
	if err := checkKey(key); err != nil {
		return false, err
	}
	req := &felixv1.CounterDeleteRequest{Tenant: tenant, Namespace: namespace, Cache: cache}
	if utf8.ValidString(key) {
		req.KeyForm = &felixv1.CounterDeleteRequest_Key{Key: key}
	} else {
		req.KeyForm = &felixv1.CounterDeleteRequest_KeyBytes{KeyBytes: []byte(key)}
	}
	resp, err := call(ctx, c, changes, func(ctx context.Context, b broker) (*connect.Response[felixv1.CounterDeleteResponse], error) {
		return b.counters.Delete(ctx, connect.NewRequest(req))
	})
	return resp.GetDeleted(), err
}

// CounterList lists the counters whose keys begin with prefix (empty means
// all) in the byte order of their keys, asking for pageSize at a time (0 lets
// the broker choose; at most felix.MaxScanPage). Each page is a call of its own,
// with the client's timeout, so counters written meanwhile may or may not be
// seen. An error ends the list.
func (c *Client) CounterList(ctx context.Context, tenant, namespace, cache, prefix string, pageSize int) iter.Seq2[Counter, error] {
	return func(yield func(Counter, error) bool) {
		if pageSize < 0 || pageSize > felix.MaxScanPage {
			yield(Counter{}, felix.Errorf(felix.InvalidArgument, "the page size is %d: it is 0 to %d", pageSize, felix.MaxScanPage))
			return
		}
		for page, err := range c.counterPages(ctx, listRequest(tenant, namespace, cache, prefix, pageSize)) {
			if err != nil {
				yield(Counter{}, err)
				return
			}
			for _, item := range page.GetCounters() {
				if !yield(counterOf(item), nil) {
					return
				}
			}
		}
	}
}

func listRequest(tenant, namespace, cache, prefix string, pageSize int) *felixv1.CounterListRequest {
	req := &felixv1.CounterListRequest{Tenant: tenant, Namespace: namespace, Cache: cache, PageSize: int32(pageSize)}
	if utf8.ValidString(prefix) {
		req.PrefixForm = &felixv1.CounterListRequest_Prefix{Prefix: prefix}
	} else {
		req.PrefixForm = &felixv1.CounterListRequest_PrefixBytes{PrefixBytes: []byte(prefix)}
	}
	return req
}

// counterPages asks for one page after the other. An error is the last.
func (c *Client) counterPages(ctx context.Context, req *felixv1.CounterListRequest) iter.Seq2[*felixv1.CounterListResponse, error] {
	return func(yield func(*felixv1.CounterListResponse, error) bool) {
		for {
			page, err := call(ctx, c, reads, func(ctx context.Context, b broker) (*connect.Response[felixv1.CounterListResponse], error) {
				return b.counters.List(ctx, connect.NewRequest(req))
			})
			if !yield(page, err) || err != nil || page.GetNextPageToken() == "" {
				return
			}
			req.PageToken = page.GetNextPageToken()
		}
	}
}

func counterOf(m *felixv1.Counter) Counter {
	key := m.GetKey()
	if b := m.GetKeyBytes(); len(b) > 0 {
		key = string(b)
	}
	return Counter{Key: key, Value: m.GetValue(), ExpiresAt: timeOf(m.GetExpiresAtMillis()), Version: m.GetVersion()}
}

func timeOf(unixMillis int64) time.Time {
	if unixMillis == 0 {
		return time.Time{}
	}
	return time.UnixMilli(unixMillis)
}

// checkKey is here too, and not only in the broker, so that a hopeless request
// is not sent.
func checkKey(key string) error {
	if err := felix.ValidateKey([]byte(key)); err != nil {
		return err
	}
	return nil
}
