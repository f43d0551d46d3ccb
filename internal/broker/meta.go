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
	"github.com/felix-go/felix/internal/placement"
)

// metaTimeout bounds what opening a broker waits for its own meta shard, which
// replays its log, and what a change of the metadata waits for the disk.
const metaTimeout = time.Minute

// metaBatch is how many records of the metadata are written together: a few
// megabytes at most, for which there is always room in flight.
const metaBatch = 32

// metaSet is an operation that writes a record of the metadata under a
// condition.
func metaSet(key []byte, m any, cond felix.If, version uint64) (felix.Op, error) {
	raw, err := json.Marshal(m)
	return felix.Op{Kind: felix.Set, View: felix.ViewValue, If: cond, Version: version, Key: key, Value: raw}, err
}

// metaWrite runs operations on the meta shard in their order, which is also
// that in which a crash lets them take effect. Those that depend on a version
// must all do so.
func (b *Broker) metaWrite(ctx context.Context, ops []felix.Op) error {
	for part := range slices.Chunk(ops, metaBatch) {
		replies, err := felix.Do(ctx, b.meta, part...)
		if err != nil {
			return err
		}
		for i, r := range replies {
			if r.Err != nil {
				return r.Err
			}
			if part[i].If == felix.IfVersion && !r.Applied {
				return fmt.Errorf("the metadata's %q was changed by somebody else", part[i].Key)
			}
		}
	}
	return nil
}

// firstRecords are what the metadata of a cluster of one begins with, for the
// identity that the directory has or is about to get. The cluster's own record
// comes last: where it is, all of them are.
func (b *Broker) firstRecords(id *identity, isNew bool) ([]felix.Op, error) {
	now := b.opts.Wall()
	node, err := metaSet(nodeKey(id.NodeID), &nodeMeta{Format: nodeMetaFormat, ID: id.NodeID, StoreID: id.StoreID,
		Features: supportedFeatures(), State: nodeActive, Starts: id.Starts}, felix.IfAbsent, 0)
	cluster, clusterErr := metaSet([]byte(clusterKey), &clusterMeta{Format: clusterMetaFormat, ClusterID: id.ClusterID,
		CreatedAtMillis: now, Shard: placement.Sole(metaShard, id.NodeID)}, felix.IfAbsent, 0)
	feature, featureErr := metaSet([]byte(featurePrefix+leaseFreeReads),
		&featureMeta{Format: featureMetaFormat, FinalizedAtMillis: now}, felix.IfAbsent, 0)
	if err := errors.Join(err, clusterErr, featureErr); err != nil {
		return nil, err
	}
	if !isNew {
		return []felix.Op{node, cluster}, nil
	}
	return []felix.Op{node, feature, cluster}, nil
}

// openCache opens the shards of a cache and publishes it. silent is as for
// openReplica.
func (b *Broker) openCache(m *cacheMeta, silent int) (*cache, error) {
	consistency, err := felix.ParseConsistency(m.Consistency)
	if err != nil {
		return nil, fmt.Errorf("the metadata of cache %s: %w", m.scope(), err)
	}
	c := &cache{b: b, scope: m.scope(), created: m.CreatedAtMillis,
		settings: felix.CacheSettings{Shards: len(m.Shards), Replication: m.Replication, Consistency: consistency}}
	for _, id := range m.shardIDs() {
		c.shards = append(c.shards, b.addRoute(id, len(m.Shards)))
		if _, err := b.openShard(id, consistency, silent); err != nil {
			return nil, err
		}
	}
	b.mu.Lock()
	b.caches[c.scope] = c
	b.mu.Unlock()
	return c, nil
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
	m := &cacheMeta{Tenant: scope.Tenant, Namespace: scope.Namespace, Name: scope.Cache,
		Replication: settings.Replication, Consistency: settings.Consistency.String(), CreatedAtMillis: b.opts.Wall()}
	for i := range settings.Shards {
		id := metaShard + uint64(reply.Int) - uint64(settings.Shards) + uint64(i) + 1
		m.Shards = append(m.Shards, placement.Sole(id, b.node))
	}
	// First the shards, then the name: what a crash leaves behind in between
	// is dropped at the next start.
	if err := b.bootstrap(settings.Consistency, m.Shards...); err != nil {
		return nil, false, err
	}
	if created, err = b.nameCache(ctx, m); err != nil {
		return nil, false, err
	}
	silent := 0
	if !created {
		if m, err = b.readCache(ctx, scope); err != nil {
			return nil, false, err
		}
		silent = electionTicks
	}
	c, err = b.openCache(m, silent)
	return c, created, err
}

// nameCache gives a cache whose shards have been made its name, and drops the
// shards if that fails or the name is taken. Where it is not known whether it
// failed, settle drops them later. metaMu is held.
func (b *Broker) nameCache(ctx context.Context, m *cacheMeta) (named bool, err error) {
	op, err := metaSet(cacheKey(m.scope()), m.newest(), felix.IfAbsent, 0)
	if err != nil {
		return false, err
	}
	put, err := b.metaDo(ctx, op)
	switch {
	case err == nil && put.Applied:
		return true, nil
	case err != nil && felix.AsError(err).MayBeApplied():
		b.doubtful = append(b.doubtful, doubt{m.scope(), m.shardIDs()})
		return false, err
	}
	return false, errors.Join(err, b.dropData(m.shardIDs()))
}

// doubt is a cache that is perhaps in the metadata and perhaps not, with these
// shards.
type doubt struct {
	scope  felix.Scope
	shards []uint64
}

// settle finds out which of the caches that earlier attempts have left in doubt
// are in the metadata, and drops the shards of the others, so that these do not
// add up. metaMu is held.
func (b *Broker) settle(ctx context.Context) error {
	for len(b.doubtful) > 0 {
		d := b.doubtful[0]
		named, err := b.readCache(ctx, d.scope)
		if err != nil && felix.AsError(err).Code != felix.CacheNotFound {
			return err
		}
		if err != nil || !slices.Equal(named.shardIDs(), d.shards) {
			if err := b.dropData(d.shards); err != nil {
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
	return parseCacheMeta(string(cacheKey(scope)), reply.Value, reply.Version)
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
	op, err := metaSet(cacheKey(scope), m.newest(), felix.IfVersion, m.version)
	if err != nil {
		return info, "", err
	}
	reply, err := b.metaDo(ctx, op)
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
	b.closeShards(c.shards, errCacheGone)
	ids := make([]uint64, 0, len(c.shards))
	for _, rt := range c.shards {
		ids = append(ids, rt.id)
	}
	if err != nil {
		// Perhaps deleted: then nothing may be acknowledged in it any more.
		// Perhaps not: then its data must stay.
		b.doubtful = append(b.doubtful, doubt{scope, ids})
		return err
	}
	return b.dropData(ids)
}
