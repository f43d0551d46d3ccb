package httpapi

import (
	"context"

	"connectrpc.com/connect"

	"github.com/felix-go/felix"
	felixv1 "github.com/felix-go/felix/api/felix/v1"
)

// everything is the tenant or namespace that means all of them in a list. It
// is no legal name.
const everything = "*"

// cacheService implements felixv1connect.CacheServiceHandler.
type cacheService struct{ *door }

// Create implements the method of the schema.
func (s cacheService) Create(ctx context.Context, req *connect.Request[felixv1.CacheCreateRequest]) (*connect.Response[felixv1.CacheCreateResponse], error) {
	scope, err := scopeOf(req.Msg)
	if err != nil {
		return nil, err
	}
	consistency, err := felix.ParseConsistency(req.Msg.GetConsistency())
	if err != nil {
		return nil, err
	}
	settings := felix.CacheSettings{
		Shards:      int(req.Msg.GetShards()),
		Replication: int(req.Msg.GetReplication()),
		Consistency: consistency,
	}
	info, created, warning, err := s.service.CreateCache(ctx, scope, settings)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&felixv1.CacheCreateResponse{Cache: cacheMessage(info), Created: created, Warning: warning}), nil
}

// Get implements the method of the schema.
func (s cacheService) Get(ctx context.Context, req *connect.Request[felixv1.CacheGetRequest]) (*connect.Response[felixv1.CacheGetResponse], error) {
	scope, err := scopeOf(req.Msg)
	if err != nil {
		return nil, err
	}
	info, err := s.service.CacheInfo(ctx, scope)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&felixv1.CacheGetResponse{Cache: cacheMessage(info)}), nil
}

// List implements the method of the schema.
func (s cacheService) List(ctx context.Context, req *connect.Request[felixv1.CacheListRequest]) (*connect.Response[felixv1.CacheListResponse], error) {
	tenant, err := listedName("tenant", req.Msg.GetTenant(), felix.DefaultTenant)
	if err != nil {
		return nil, err
	}
	namespace, err := listedName("namespace", req.Msg.GetNamespace(), felix.DefaultNamespace)
	if err != nil {
		return nil, err
	}
	leave, err := place(ctx, s.listing)
	if err != nil {
		return nil, err
	}
	defer leave()
	infos, err := s.service.Caches(ctx, tenant, namespace)
	if err != nil {
		return nil, err
	}
	out := &felixv1.CacheListResponse{Caches: make([]*felixv1.Cache, len(infos))}
	for i := range infos {
		out.Caches[i] = cacheMessage(infos[i])
	}
	return connect.NewResponse(out), nil
}

// listedName reads a tenant or namespace of a list as the Service wants it,
// where empty means all.
func listedName(what, name, fallback string) (string, error) {
	switch name {
	case everything:
		return "", nil
	case "":
		return fallback, nil
	}
	return name, felix.ValidateName(what, name)
}

// Update implements the method of the schema.
func (s cacheService) Update(ctx context.Context, req *connect.Request[felixv1.CacheUpdateRequest]) (*connect.Response[felixv1.CacheUpdateResponse], error) {
	scope, err := scopeOf(req.Msg)
	if err != nil {
		return nil, err
	}
	if req.Msg.Replication == nil {
		return nil, felix.Errorf(felix.InvalidArgument, "nothing to change: say what replication is to be")
	}
	info, warning, err := s.service.SetReplication(ctx, scope, int(req.Msg.GetReplication()))
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&felixv1.CacheUpdateResponse{Cache: cacheMessage(info), Warning: warning}), nil
}

// Delete implements the method of the schema.
func (s cacheService) Delete(ctx context.Context, req *connect.Request[felixv1.CacheDeleteRequest]) (*connect.Response[felixv1.CacheDeleteResponse], error) {
	scope, err := scopeOf(req.Msg)
	if err != nil {
		return nil, err
	}
	if err := s.service.DeleteCache(ctx, scope); err != nil {
		return nil, err
	}
	return connect.NewResponse(&felixv1.CacheDeleteResponse{}), nil
}

func cacheMessage(info felix.CacheInfo) *felixv1.Cache {
	m := &felixv1.Cache{
		Tenant:          info.Tenant,
		Namespace:       info.Namespace,
		Cache:           info.Cache,
		Shards:          int32(info.Shards),
		Replication:     int32(info.Replication),
		Consistency:     info.Consistency.String(),
		Replicas:        int32(info.Replicas),
		CreatedAtMillis: info.CreatedAtMillis,
	}
	if !info.CountsUnknown {
		m.Counters, m.Values, m.Keys = &info.Counts.Counters, &info.Counts.Values, &info.Counts.Keys
	}
	return m
}
