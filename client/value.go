package client

import (
	"context"
	"time"
	"unicode/utf8"

	"connectrpc.com/connect"

	"github.com/felix-go/felix"
	felixv1 "github.com/felix-go/felix/api/felix/v1"
)

// Value is a cache value as it was read.
type Value struct {
	Key  string // any bytes
	Data []byte
	// ExpiresAt is on the shard's clock; zero means never.
	ExpiresAt time.Time
	// Version grows with every write of the value, and is never used again.
	Version uint64
}

// PutOptions are what a put may be asked for. The zero value stores the value,
// whatever is there, and lets it never expire.
type PutOptions struct {
	// IfAbsent stores only if there is no value, IfVersion (0 is none) only if
	// there is one with this version.
	IfAbsent  bool
	IfVersion uint64
	// ExpiresIn, at least a millisecond, or ExpiresAt is when the value is to
	// expire, on the shard's clock; KeepExpiry keeps what it has.
	ExpiresIn  time.Duration
	ExpiresAt  time.Time
	KeepExpiry bool
}

// ValuePut stores a value of at most felix.MaxValueBytes. If the condition was
// not met, applied is false and version is that of the value that is there, or 0
// where there is none; otherwise version is the one that was written. It is sent
// at most once; errors are those of CounterAdd but for out_of_range.
func (c *Client) ValuePut(ctx context.Context, tenant, namespace, cache, key string, value []byte, opts PutOptions) (applied bool, version uint64, err error) {
	req, err := putRequest(key, value, &opts)
	if err != nil {
		return false, 0, err
	}
	req.Tenant, req.Namespace, req.Cache = tenant, namespace, cache
	resp, err := call(ctx, c, changes, func(ctx context.Context, b broker) (*connect.Response[felixv1.ValuePutResponse], error) {
		return b.values.Put(ctx, connect.NewRequest(req))
	})
	if err != nil {
		return false, 0, err
	}
	return resp.GetApplied(), resp.GetVersion(), nil
}

// putRequest is the request without its cache. The error is invalid_argument.
func putRequest(key string, value []byte, opts *PutOptions) (*felixv1.ValuePutRequest, error) {
	if err := checkKey(key); err != nil {
		return nil, err
	}
	if len(value) > felix.MaxValueBytes {
		return nil, felix.Errorf(felix.InvalidArgument, "the value has %d bytes, at most %d are allowed", len(value), felix.MaxValueBytes)
	}
	if opts.IfAbsent && opts.IfVersion != 0 {
		return nil, felix.Errorf(felix.InvalidArgument, "a value that is absent has no version: give one condition")
	}
	if err := checkExpiry(opts.ExpiresIn, opts.ExpiresAt); err != nil {
		return nil, err
	}
	timed := opts.ExpiresIn != 0 || !opts.ExpiresAt.IsZero()
	if timed && opts.KeepExpiry {
		return nil, felix.Errorf(felix.InvalidArgument, "the expiry is kept or set: give one of them")
	}
	req := &felixv1.ValuePutRequest{ValueForm: &felixv1.ValuePutRequest_ValueBytes{ValueBytes: value}}
	if utf8.ValidString(key) {
		req.KeyForm = &felixv1.ValuePutRequest_Key{Key: key}
	} else {
		req.KeyForm = &felixv1.ValuePutRequest_KeyBytes{KeyBytes: []byte(key)}
	}
	switch {
	case opts.IfAbsent:
		req.Condition = &felixv1.ValuePutRequest_IfAbsent{IfAbsent: true}
	case opts.IfVersion != 0:
		req.Condition = &felixv1.ValuePutRequest_IfVersion{IfVersion: opts.IfVersion}
	}
	switch {
	case opts.ExpiresIn != 0:
		req.Expiry = &felixv1.ValuePutRequest_ExpiresInMillis{ExpiresInMillis: opts.ExpiresIn.Milliseconds()}
	case timed:
		req.Expiry = &felixv1.ValuePutRequest_ExpiresAtMillis{ExpiresAtMillis: opts.ExpiresAt.UnixMilli()}
	case opts.KeepExpiry:
		req.Expiry = &felixv1.ValuePutRequest_KeepExpiry{KeepExpiry: true}
	}
	return req, nil
}

// ValueGet reads a value. found is false if it was never written, has expired or
// was deleted. Errors: cache_not_found, invalid_argument, unavailable.
func (c *Client) ValueGet(ctx context.Context, tenant, namespace, cache, key string) (value Value, found bool, err error) {
	if err := checkKey(key); err != nil {
		return Value{}, false, err
	}
	req := &felixv1.ValueGetRequest{Tenant: tenant, Namespace: namespace, Cache: cache}
	if utf8.ValidString(key) {
		req.KeyForm = &felixv1.ValueGetRequest_Key{Key: key}
	} else {
		req.KeyForm = &felixv1.ValueGetRequest_KeyBytes{KeyBytes: []byte(key)}
	}
	resp, err := call(ctx, c, reads, func(ctx context.Context, b broker) (*connect.Response[felixv1.ValueGetResponse], error) {
		return b.values.Get(ctx, connect.NewRequest(req))
	})
	if err != nil || !resp.GetFound() {
		return Value{}, false, err
	}
	data := []byte(resp.GetValue())
	if b := resp.GetValueBytes(); len(b) > 0 {
		data = b
	}
	return Value{Key: key, Data: data, ExpiresAt: timeOf(resp.GetExpiresAtMillis()), Version: resp.GetVersion()}, true, nil
}

// ValueDelete removes a value, with ifVersion (0 is none) only if it has this
// version. If deleted is false, version is that of the value that is there, or 0
// where there is none. It is sent at most once; errors are those of CounterAdd
// but for out_of_range.
func (c *Client) ValueDelete(ctx context.Context, tenant, namespace, cache, key string, ifVersion uint64) (deleted bool, version uint64, err error) {
	if err := checkKey(key); err != nil {
		return false, 0, err
	}
	req := &felixv1.ValueDeleteRequest{Tenant: tenant, Namespace: namespace, Cache: cache}
	if utf8.ValidString(key) {
		req.KeyForm = &felixv1.ValueDeleteRequest_Key{Key: key}
	} else {
		req.KeyForm = &felixv1.ValueDeleteRequest_KeyBytes{KeyBytes: []byte(key)}
	}
	if ifVersion != 0 {
		req.IfVersion = &ifVersion
	}
	resp, err := call(ctx, c, changes, func(ctx context.Context, b broker) (*connect.Response[felixv1.ValueDeleteResponse], error) {
		return b.values.Delete(ctx, connect.NewRequest(req))
	})
	if err != nil {
		return false, 0, err
	}
	return resp.GetDeleted(), resp.GetVersion(), nil
}
