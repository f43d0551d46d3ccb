package httpapi

import (
	"context"
	"unicode/utf8"

	"connectrpc.com/connect"

	"github.com/felix-go/felix"
	felixv1 "github.com/felix-go/felix/api/felix/v1"
)

// defaultPageItems is the size of a page of a list when none is asked for:
// large enough to make round trips cheap, small enough to read at once.
const defaultPageItems = 1_000

// counterService implements felixv1connect.CounterServiceHandler.
type counterService struct{ *door }

// addressed is every request that names a cache.
type addressed interface {
	GetTenant() string
	GetNamespace() string
	GetCache() string
}

// keyed is every request that names a key in a cache.
type keyed interface {
	addressed
	GetKey() string
	GetKeyBytes() []byte
}

// scopeOf reads an address; what is left out is the default, except the cache.
func scopeOf(m addressed) (felix.Scope, error) {
	scope := felix.Scope{Tenant: m.GetTenant(), Namespace: m.GetNamespace(), Cache: m.GetCache()}
	if scope.Tenant == "" {
		scope.Tenant = felix.DefaultTenant
	}
	if scope.Namespace == "" {
		scope.Namespace = felix.DefaultNamespace
	}
	return scope, scope.Validate()
}

// keyOf reads a key in whichever form it came: a oneof has at most one.
func keyOf(m keyed) []byte {
	if b := m.GetKeyBytes(); len(b) > 0 {
		return b
	}
	return []byte(m.GetKey())
}

// do runs one operation on the key of a request.
func (s *door) do(ctx context.Context, m keyed, op felix.Op) (felix.Reply, error) {
	scope, err := scopeOf(m)
	if err != nil {
		return felix.Reply{}, err
	}
	op.Key = keyOf(m)
	if err := felix.ValidateKey(op.Key); err != nil {
		return felix.Reply{}, err
	}
	cache, err := s.service.Cache(ctx, scope)
	if err != nil {
		return felix.Reply{}, err
	}
	replies, err := felix.Do(ctx, cache, op)
	if err != nil {
		return felix.Reply{}, err
	}
	if e := replies[0].Err; e != nil {
		return felix.Reply{}, e
	}
	return replies[0], nil
}

// Add implements the method of the schema.
func (s counterService) Add(ctx context.Context, req *connect.Request[felixv1.CounterAddRequest]) (*connect.Response[felixv1.CounterAddResponse], error) {
	op, err := addOf(req.Msg)
	if err != nil {
		return nil, err
	}
	r, err := s.do(ctx, req.Msg, op)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(addResponse(&op, &r)), nil
}

// Get implements the method of the schema.
func (s counterService) Get(ctx context.Context, req *connect.Request[felixv1.CounterGetRequest]) (*connect.Response[felixv1.CounterGetResponse], error) {
	r, err := s.do(ctx, req.Msg, felix.Op{Kind: felix.Get, View: felix.ViewCounter})
	if err != nil {
		return nil, err
	}
	if r.Found != felix.CounterRecord {
		return connect.NewResponse(&felixv1.CounterGetResponse{}), nil
	}
	return connect.NewResponse(&felixv1.CounterGetResponse{
		Found: true, Value: &r.Int, ExpiresAtMillis: r.ExpiresAtMillis, Version: r.Version,
	}), nil
}

// Set implements the method of the schema.
func (s counterService) Set(ctx context.Context, req *connect.Request[felixv1.CounterSetRequest]) (*connect.Response[felixv1.CounterSetResponse], error) {
	if req.Msg.Value == nil {
		return nil, felix.Errorf(felix.InvalidArgument, "the value is missing: say what the counter is to hold")
	}
	op := felix.Op{Kind: felix.Set, View: felix.ViewCounter, Int: *req.Msg.Value}
	switch expiry := req.Msg.GetExpiry().(type) {
	case *felixv1.CounterSetRequest_ExpiresInMillis:
		op.TTL, op.ExpiryMillis = felix.TTLIn, expiry.ExpiresInMillis
	case *felixv1.CounterSetRequest_ExpiresAtMillis:
		op.TTL, op.ExpiryMillis = felix.TTLAt, expiry.ExpiresAtMillis
	case *felixv1.CounterSetRequest_KeepExpiry:
		if expiry.KeepExpiry {
			op.TTL = felix.TTLKeep
		}
	}
	r, err := s.do(ctx, req.Msg, op)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&felixv1.CounterSetResponse{Value: op.Int, Version: r.Version}), nil
}

// Delete implements the method of the schema.
func (s counterService) Delete(ctx context.Context, req *connect.Request[felixv1.CounterDeleteRequest]) (*connect.Response[felixv1.CounterDeleteResponse], error) {
	r, err := s.do(ctx, req.Msg, felix.Op{Kind: felix.Delete, View: felix.ViewCounter})
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&felixv1.CounterDeleteResponse{Deleted: r.Applied}), nil
}

// List implements the method of the schema.
func (s counterService) List(ctx context.Context, req *connect.Request[felixv1.CounterListRequest]) (*connect.Response[felixv1.CounterListResponse], error) {
	scope, err := scopeOf(req.Msg)
	if err != nil {
		return nil, err
	}
	scan, err := scanRequest(req.Msg)
	if err != nil {
		return nil, err
	}
	cache, err := s.service.Cache(ctx, scope)
	if err != nil {
		return nil, err
	}
	page, err := s.page(ctx, cache, scan)
	if err != nil {
		return nil, err
	}
	out := &felixv1.CounterListResponse{NowMillis: page.NowMillis, Count: int64(len(page.Items)), Sum: sumOf(page.Items)}
	if !req.Msg.GetTotalsOnly() {
		out.Counters = make([]*felixv1.Counter, len(page.Items))
		for i := range page.Items {
			out.Counters[i] = counterMessage(&page.Items[i])
		}
	}
	if page.More { // not after the last item: there may be none, where many were deleted
		out.NextPageToken = encodePageToken(scan.Prefix, page.Next)
	}
	return connect.NewResponse(out), nil
}

// page gathers a page, when it is this request's turn.
func (s counterService) page(ctx context.Context, cache felix.Cache, scan felix.ScanRequest) (felix.ScanPage, error) {
	leave, err := place(ctx, s.listing)
	if err != nil {
		return felix.ScanPage{}, err
	}
	defer leave()
	return cache.Scan(ctx, scan)
}

// scanRequest reads what page is asked for. The error is invalid_argument.
func scanRequest(m *felixv1.CounterListRequest) (felix.ScanRequest, error) {
	scan := felix.ScanRequest{View: felix.ViewCounter, Limit: int(m.GetPageSize()), Prefix: m.GetPrefixBytes()}
	if len(scan.Prefix) == 0 {
		scan.Prefix = []byte(m.GetPrefix())
	}
	if len(scan.Prefix) > felix.MaxKeyBytes {
		return scan, felix.Errorf(felix.InvalidArgument, "the prefix has %d bytes: no key has more than %d", len(scan.Prefix), felix.MaxKeyBytes)
	}
	if scan.Limit == 0 {
		scan.Limit = defaultPageItems
	}
	if scan.Limit < 0 || scan.Limit > felix.MaxScanPage {
		return scan, felix.Errorf(felix.InvalidArgument, "the page size is %d: it is 1 to %d, or 0 for %d", scan.Limit, felix.MaxScanPage, defaultPageItems)
	}
	if token := m.GetPageToken(); token != "" {
		after, err := decodePageToken(token, scan.Prefix)
		if err != nil {
			return scan, err
		}
		scan.After = after
	}
	return scan, nil
}

// counterMessage shows a record; a key that is no UTF-8 goes as bytes.
func counterMessage(item *felix.ScanItem) *felixv1.Counter {
	c := &felixv1.Counter{Value: item.Int, ExpiresAtMillis: item.ExpiresAtMillis, Version: item.Version}
	if utf8.Valid(item.Key) {
		c.KeyForm = &felixv1.Counter_Key{Key: string(item.Key)}
	} else {
		c.KeyForm = &felixv1.Counter_KeyBytes{KeyBytes: item.Key}
	}
	return c
}
