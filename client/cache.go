package client

import (
	"context"

	"connectrpc.com/connect"

	"github.com/felix-go/felix"
	felixv1 "github.com/felix-go/felix/api/felix/v1"
)

// All is the tenant or namespace that means all of them in CacheList.
const All = "*"

// CacheCreate makes a cache and waits until it can be used. created is false if
// it was there already with the same settings; with other settings the error is
// already_exists. warning is a sentence for people, or empty. It is sent at most
// once; after outcome_unknown it can safely be called again.
func (c *Client) CacheCreate(ctx context.Context, tenant, namespace, cache string, settings felix.CacheSettings) (info felix.CacheInfo, created bool, warning string, err error) {
	req := &felixv1.CacheCreateRequest{
		Tenant: tenant, Namespace: namespace, Cache: cache,
		Shards: clampInt32(settings.Shards), Replication: clampInt32(settings.Replication),
		Consistency: settings.Consistency.String(),
	}
	resp, err := call(ctx, c, changes, func(ctx context.Context, b broker) (*connect.Response[felixv1.CacheCreateResponse], error) {
		return b.caches.Create(ctx, connect.NewRequest(req))
	})
	if err != nil {
		return felix.CacheInfo{}, false, "", err
	}
	return cacheOf(resp.GetCache()), resp.GetCreated(), resp.GetWarning(), nil
}

// CacheGet describes a cache; cache_not_found where there is none.
func (c *Client) CacheGet(ctx context.Context, tenant, namespace, cache string) (felix.CacheInfo, error) {
	req := &felixv1.CacheGetRequest{Tenant: tenant, Namespace: namespace, Cache: cache}
	resp, err := call(ctx, c, reads, func(ctx context.Context, b broker) (*connect.Response[felixv1.CacheGetResponse], error) {
		return b.caches.Get(ctx, connect.NewRequest(req))
	})
	if err != nil {
		return felix.CacheInfo{}, err
	}
	return cacheOf(resp.GetCache()), nil
}

// CacheList lists the caches of a tenant's namespace in the order of their
// names; tenant and namespace may be All.
func (c *Client) CacheList(ctx context.Context, tenant, namespace string) ([]felix.CacheInfo, error) {
	req := &felixv1.CacheListRequest{Tenant: tenant, Namespace: namespace}
	resp, err := call(ctx, c, reads, func(ctx context.Context, b broker) (*connect.Response[felixv1.CacheListResponse], error) {
		return b.caches.List(ctx, connect.NewRequest(req))
	})
	if err != nil {
		return nil, err
	}
	infos := make([]felix.CacheInfo, len(resp.GetCaches()))
	for i, m := range resp.GetCaches() {
		infos[i] = cacheOf(m)
	}
	return infos, nil
}

// CacheSetReplication changes how many replicas each shard is to have, online.
// warning is as with CacheCreate. It is sent at most once; after
// outcome_unknown it can safely be called again.
func (c *Client) CacheSetReplication(ctx context.Context, tenant, namespace, cache string, replication int) (info felix.CacheInfo, warning string, err error) {
	replicas := clampInt32(replication)
	req := &felixv1.CacheUpdateRequest{Tenant: tenant, Namespace: namespace, Cache: cache, Replication: &replicas}
	resp, err := call(ctx, c, changes, func(ctx context.Context, b broker) (*connect.Response[felixv1.CacheUpdateResponse], error) {
		return b.caches.Update(ctx, connect.NewRequest(req))
	})
	if err != nil {
		return felix.CacheInfo{}, "", err
	}
	return cacheOf(resp.GetCache()), resp.GetWarning(), nil
}

// CacheDelete removes a cache and everything in it; cache_not_found where there
// is none. It is sent at most once.
func (c *Client) CacheDelete(ctx context.Context, tenant, namespace, cache string) error {
	req := &felixv1.CacheDeleteRequest{Tenant: tenant, Namespace: namespace, Cache: cache}
	_, err := call(ctx, c, changes, func(ctx context.Context, b broker) (*connect.Response[felixv1.CacheDeleteResponse], error) {
		return b.caches.Delete(ctx, connect.NewRequest(req))
	})
	return err
}

// clampInt32 keeps a number that is far out of range out of range, where a
// conversion might wrap it into a legal one.
func clampInt32(n int) int32 {
	return int32(max(-1, min(n, 1<<30)))
}

func cacheOf(m *felixv1.Cache) felix.CacheInfo {
	// A consistency of a newer broker shows as quorum; it is for display.
	consistency, _ := felix.ParseConsistency(m.GetConsistency())
	return felix.CacheInfo{
		Scope:           felix.Scope{Tenant: m.GetTenant(), Namespace: m.GetNamespace(), Cache: m.GetCache()},
		CacheSettings:   felix.CacheSettings{Shards: int(m.GetShards()), Replication: int(m.GetReplication()), Consistency: consistency},
		Replicas:        int(m.GetReplicas()),
		CreatedAtMillis: m.GetCreatedAtMillis(),
		Counts:          felix.RecordCount{Counters: m.GetCounters(), Values: m.GetValues(), Keys: m.GetKeys()},
		CountsUnknown:   m.Counters == nil,
	}
}
