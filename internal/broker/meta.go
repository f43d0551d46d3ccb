package broker

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/felix-go/felix"
)

// metaTimeout bounds what opening a broker waits for its own meta shard, which
// replays its log, and what a change of the metadata waits for the disk.
const metaTimeout = time.Minute

// Keys of the meta shard.
const (
	cachePrefix  = "cache/"     // + tenant/namespace/name: a cacheMeta as JSON
	nextShardKey = "next-shard" // a counter: the ids given out so far, above metaShard
)

// cacheMetaFormat is the newest form of cacheMeta that this build reads.
const cacheMetaFormat = 1

// cacheMeta is a cache in the metadata.
type cacheMeta struct {
	Format          int      `json:"format"`
	Tenant          string   `json:"tenant"`
	Namespace       string   `json:"namespace"`
	Name            string   `json:"name"`
	Replication     int      `json:"replication"` // the target
	Consistency     string   `json:"consistency"`
	CreatedAtMillis int64    `json:"created_at_millis"`
	ShardIDs        []uint64 `json:"shard_ids"` // by shard number; never reused

	version uint64 // of the record it was read from
}

func (m *cacheMeta) scope() felix.Scope {
	return felix.Scope{Tenant: m.Tenant, Namespace: m.Namespace, Cache: m.Name}
}

func cacheKey(s felix.Scope) []byte { return []byte(cachePrefix + s.String()) }

// openCache opens the shards of a cache and publishes it.
func (b *Broker) openCache(m *cacheMeta) (*cache, error) {
	consistency, err := felix.ParseConsistency(m.Consistency)
	if err != nil {
		return nil, fmt.Errorf("the metadata of cache %s: %w", m.scope(), err)
	}
	c := &cache{b: b, scope: m.scope(), created: m.CreatedAtMillis,
		settings: felix.CacheSettings{Shards: len(m.ShardIDs), Replication: m.Replication, Consistency: consistency}}
	for _, id := range m.ShardIDs {
		r, err := b.openShard(id, consistency)
		if err != nil {
			return nil, err
		}
		c.replicas = append(c.replicas, r)
	}
	b.mu.Lock()
	b.caches[c.scope] = c
	b.mu.Unlock()
	return c, nil
}

// readCaches lists the metadata of all caches.
func (b *Broker) readCaches(ctx context.Context) ([]*cacheMeta, error) {
	var all []*cacheMeta
	req := felix.ScanRequest{View: felix.ViewValue, Prefix: []byte(cachePrefix), Limit: 1000}
	for {
		page, err := b.meta.Scan(ctx, req)
		if err != nil {
			return nil, err
		}
		for _, item := range page.Items {
			m, err := parseCacheMeta(item.Value, item.Version)
			if err != nil {
				return nil, err
			}
			all = append(all, m)
		}
		if !page.More {
			return all, nil
		}
		req.After = page.Next
	}
}

func parseCacheMeta(raw []byte, version uint64) (*cacheMeta, error) {
	m := &cacheMeta{version: version}
	if err := json.Unmarshal(raw, m); err != nil {
		return nil, fmt.Errorf("the metadata of a cache is corrupt: %w", err)
	}
	if m.Format > cacheMetaFormat {
		return nil, fmt.Errorf("the metadata of cache %s has format %d, this build knows %d: use the newer build", m.scope(), m.Format, cacheMetaFormat)
	}
	return m, nil
}

// metaDo runs one operation on the meta shard. A change is waited for even if
// whoever asked for it has gone: it will take effect all the same, and this
// broker must not go on as if it had not.
func (b *Broker) metaDo(ctx context.Context, op felix.Op) (felix.Reply, error) {
	if op.Mutates() {
		waiting, cancel := context.WithTimeout(context.WithoutCancel(ctx), b.opts.metaTimeout)
		defer cancel()
		ctx = waiting
	}
	replies, err := felix.Do(ctx, b.meta, op)
	if err != nil {
		return felix.Reply{}, err
	}
	if replies[0].Err != nil {
		return felix.Reply{}, replies[0].Err
	}
	return replies[0], nil
}

// normalize fills in defaults and checks bounds.
func (b *Broker) normalize(s felix.CacheSettings) (felix.CacheSettings, error) {
	if s.Shards == 0 {
		s.Shards = felix.DefaultShards
	}
	if s.Shards < 1 || s.Shards > felix.MaxShardsPerCache {
		return s, felix.Errorf(felix.InvalidArgument, "%d shards: a cache has 1 to %d", s.Shards, felix.MaxShardsPerCache)
	}
	if s.Replication == 0 {
		s.Replication = 1
	}
	if s.Consistency > felix.Leader {
		return s, felix.Errorf(felix.InvalidArgument, "consistency %d is not known: it is quorum or leader", s.Consistency)
	}
	return s, b.checkReplication(s.Replication)
}

func (b *Broker) checkReplication(n int) error {
	if n < 1 || n > felix.MaxReplication {
		return felix.Errorf(felix.InvalidArgument, "replication %d: it is 1 to %d", n, felix.MaxReplication)
	}
	if n > 1 && !b.opts.ReplicationIsTarget {
		return felix.Errorf(felix.InvalidArgument, "replication %d needs %d brokers, there is 1: use --replication 1", n, n)
	}
	return nil
}

// CreateCache implements felix.Service.
func (b *Broker) CreateCache(ctx context.Context, scope felix.Scope, settings felix.CacheSettings) (info felix.CacheInfo, created bool, warning string, err error) {
	if err := scope.Validate(); err != nil {
		return info, false, "", err
	}
	asked := settings
	if settings, err = b.normalize(settings); err != nil {
		return info, false, "", err
	}
	b.metaMu.Lock()
	defer b.metaMu.Unlock()
	c := b.cacheAt(scope)
	if c == nil {
		if c, created, err = b.makeCache(ctx, scope, settings); err != nil {
			return info, false, "", err
		}
	}
	if created {
		info = b.info(c, felix.RecordCount{}) // nobody could write to it yet
		return info, true, replicasWarning(info), nil
	}
	if asked.Replication == 0 {
		settings.Replication = c.settings.Replication // not asked for: as it is
	}
	if have := c.settings; have != settings {
		return info, false, "", felix.Errorf(felix.AlreadyExists,
			"cache %s exists with other settings: %d shards, replication %d, consistency %s", scope, have.Shards, have.Replication, have.Consistency)
	}
	if info, err = b.describe(ctx, c); err != nil {
		return info, false, "", err
	}
	return info, false, replicasWarning(info), nil
}

func replicasWarning(info felix.CacheInfo) string {
	if info.Replicas >= info.Replication {
		return ""
	}
	return fmt.Sprintf("replicas %d/%d: there is 1 broker; more replicas are made as brokers join", info.Replicas, info.Replication)
}

// makeCache makes a cache, or opens the one that an earlier attempt has made
// whose answer was lost. metaMu is held.
func (b *Broker) makeCache(ctx context.Context, scope felix.Scope, settings felix.CacheSettings) (c *cache, created bool, err error) {
	b.mu.RLock()
	caches, shards := len(b.caches), len(b.replicas)
	b.mu.RUnlock()
	if caches >= felix.MaxCaches || shards+settings.Shards > felix.MaxShards {
		return nil, false, felix.Errorf(felix.ResourceExhausted,
			"the broker has %d caches and %d shards, at most %d and %d are allowed: remove caches or use fewer shards", caches, shards, felix.MaxCaches, felix.MaxShards)
	}
	if err := b.settle(ctx); err != nil {
		return nil, false, err
	}
	reply, err := b.metaDo(ctx, felix.Op{Kind: felix.Add, Key: []byte(nextShardKey), Int: int64(settings.Shards)})
	if err != nil {
		return nil, false, err
	}
	m := &cacheMeta{Format: cacheMetaFormat, Tenant: scope.Tenant, Namespace: scope.Namespace, Name: scope.Cache,
		Replication: settings.Replication, Consistency: settings.Consistency.String(), CreatedAtMillis: b.opts.Wall()}
	for i := range settings.Shards {
		m.ShardIDs = append(m.ShardIDs, metaShard+uint64(reply.Int)-uint64(settings.Shards)+uint64(i)+1)
	}
	// First the shards, then the name: what a crash leaves behind in between
	// is dropped at the next start.
	if err := b.bootstrap(m.ShardIDs...); err != nil {
		return nil, false, err
	}
	if created, err = b.nameCache(ctx, m); err != nil {
		return nil, false, err
	}
	if !created {
		if m, err = b.readCache(ctx, scope); err != nil {
			return nil, false, err
		}
	}
	c, err = b.openCache(m)
	return c, created, err
}

// nameCache gives a cache whose shards have been made its name, and drops the
// shards if that fails or the name is taken. Where it is not known whether it
// failed, settle drops them later. metaMu is held.
func (b *Broker) nameCache(ctx context.Context, m *cacheMeta) (named bool, err error) {
	raw, err := json.Marshal(m)
	if err != nil {
		return false, err
	}
	put, err := b.metaDo(ctx, felix.Op{Kind: felix.Set, View: felix.ViewValue, If: felix.IfAbsent, Key: cacheKey(m.scope()), Value: raw})
	switch {
	case err == nil && put.Applied:
		return true, nil
	case err != nil && felix.AsError(err).MayBeApplied():
		b.doubtful = append(b.doubtful, m)
		return false, err
	}
	return false, errors.Join(err, b.dropData(m.ShardIDs))
}

// settle finds out which of the caches that earlier attempts have left in doubt
// are in the metadata, and drops the shards of the others, so that these do not
// add up. metaMu is held.
func (b *Broker) settle(ctx context.Context) error {
	for len(b.doubtful) > 0 {
		m := b.doubtful[0]
		named, err := b.readCache(ctx, m.scope())
		if err != nil && felix.AsError(err).Code != felix.CacheNotFound {
			return err
		}
		if err != nil || !slices.Equal(named.ShardIDs, m.ShardIDs) {
			if err := b.dropData(m.ShardIDs); err != nil {
				return err
			}
		}
		b.doubtful = b.doubtful[1:]
	}
	return nil
}

func (b *Broker) cacheAt(scope felix.Scope) *cache {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return b.caches[scope]
}

func (b *Broker) find(scope felix.Scope) (*cache, error) {
	if err := scope.Validate(); err != nil {
		return nil, err
	}
	c := b.cacheAt(scope)
	if c == nil {
		return nil, felix.Errorf(felix.CacheNotFound, "no such cache: %s", scope)
	}
	return c, nil
}

func (b *Broker) describe(ctx context.Context, c *cache) (felix.CacheInfo, error) {
	counts, err := c.Count(ctx)
	return b.info(c, counts), err
}

func (b *Broker) info(c *cache, counts felix.RecordCount) felix.CacheInfo {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return felix.CacheInfo{Scope: c.scope, CacheSettings: c.settings, Replicas: 1, CreatedAtMillis: c.created, Counts: counts}
}

// Caches implements felix.Service.
func (b *Broker) Caches(ctx context.Context, tenant, namespace string) ([]felix.CacheInfo, error) {
	if tenant != "" {
		if err := felix.ValidateName("tenant", tenant); err != nil {
			return nil, err
		}
	}
	if namespace != "" {
		if err := felix.ValidateName("namespace", namespace); err != nil {
			return nil, err
		}
	}
	b.mu.RLock()
	var found []*cache
	for scope, c := range b.caches {
		if (tenant == "" || scope.Tenant == tenant) && (namespace == "" || scope.Namespace == namespace) {
			found = append(found, c)
		}
	}
	b.mu.RUnlock()
	slices.SortFunc(found, func(x, y *cache) int {
		return cmp.Or(strings.Compare(x.scope.Tenant, y.scope.Tenant), strings.Compare(x.scope.Namespace, y.scope.Namespace),
			strings.Compare(x.scope.Cache, y.scope.Cache))
	})
	var infos []felix.CacheInfo
	for _, c := range found {
		info, err := b.describe(ctx, c)
		if errors.Is(err, errCacheGone) {
			continue
		}
		if err != nil {
			return nil, err
		}
		infos = append(infos, info)
	}
	return infos, nil
}

// CacheInfo implements felix.Service.
func (b *Broker) CacheInfo(ctx context.Context, scope felix.Scope) (felix.CacheInfo, error) {
	c, err := b.find(scope)
	if err != nil {
		return felix.CacheInfo{}, err
	}
	return b.describe(ctx, c)
}

// Cache implements felix.Service.
func (b *Broker) Cache(_ context.Context, scope felix.Scope) (felix.Cache, error) {
	c, err := b.find(scope)
	if err != nil {
		return nil, err
	}
	return c, nil
}

// readCache reads one cache's metadata.
func (b *Broker) readCache(ctx context.Context, scope felix.Scope) (*cacheMeta, error) {
	reply, err := b.metaDo(ctx, felix.Op{Kind: felix.Get, View: felix.ViewValue, Key: cacheKey(scope)})
	if err != nil {
		return nil, err
	}
	if reply.Found == felix.NoRecord {
		return nil, felix.Errorf(felix.CacheNotFound, "no such cache: %s", scope)
	}
	return parseCacheMeta(reply.Value, reply.Version)
}

// SetReplication implements felix.Service. The records are counted first: once
// the change is made, nothing may fail as if it were not.
func (b *Broker) SetReplication(ctx context.Context, scope felix.Scope, replication int) (info felix.CacheInfo, warning string, err error) {
	if err := b.checkReplication(replication); err != nil {
		return info, "", err
	}
	b.metaMu.Lock()
	defer b.metaMu.Unlock()
	c, err := b.find(scope)
	if err != nil {
		return info, "", err
	}
	counts, err := c.Count(ctx)
	if err != nil {
		return info, "", err
	}
	m, err := b.readCache(ctx, scope)
	if err != nil {
		return info, "", err
	}
	m.Replication = replication
	raw, err := json.Marshal(m)
	if err != nil {
		return info, "", err
	}
	reply, err := b.metaDo(ctx, felix.Op{Kind: felix.Set, View: felix.ViewValue, If: felix.IfVersion, Version: m.version, Key: cacheKey(scope), Value: raw})
	if err != nil {
		return info, "", err
	}
	if !reply.Applied {
		return info, "", felix.Errorf(felix.Unavailable, "cache %s is being changed by somebody else, try again", scope)
	}
	b.mu.Lock()
	c.settings.Replication = replication
	b.mu.Unlock()
	info = b.info(c, counts)
	return info, replicasWarning(info), nil
}

// DeleteCache implements felix.Service: first the name, then the data. What a
// crash leaves behind in between is dropped at the next start.
func (b *Broker) DeleteCache(ctx context.Context, scope felix.Scope) error {
	b.metaMu.Lock()
	defer b.metaMu.Unlock()
	c, err := b.find(scope)
	if err != nil {
		return err
	}
	_, err = b.metaDo(ctx, felix.Op{Kind: felix.Delete, View: felix.ViewValue, Key: cacheKey(scope)})
	if err != nil && !felix.AsError(err).MayBeApplied() {
		return err
	}
	c.gone.Store(true)
	b.mu.Lock()
	delete(b.caches, scope)
	b.mu.Unlock()
	b.closeShards(c.replicas, errCacheGone)
	ids := make([]uint64, 0, len(c.replicas))
	for _, r := range c.replicas {
		ids = append(ids, r.id)
	}
	if err != nil {
		// Perhaps deleted: then nothing may be acknowledged in it any more.
		// Perhaps not: then its data must stay.
		b.doubtful = append(b.doubtful, &cacheMeta{Tenant: scope.Tenant, Namespace: scope.Namespace, Name: scope.Cache, ShardIDs: ids})
		return err
	}
	return b.dropData(ids)
}
