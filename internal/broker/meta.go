package broker

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
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

// firstRecords are what the metadata of a new cluster begins with, for the
// identity that the directory has or is about to get. The cluster's own record
// comes last: where it is, all of them are.
func (b *Broker) firstRecords(id *identity, isNew bool) ([]felix.Op, error) {
	now := b.opts.Wall()
	var ops []felix.Op
	var errs []error
	put := func(key []byte, m any) {
		op, err := metaSet(key, m, felix.IfAbsent, 0)
		ops, errs = append(ops, op), append(errs, err)
	}
	for _, f := range id.Founders {
		n := &nodeMeta{Format: nodeMetaFormat, ID: f.ID, StoreID: f.StoreID, PeerAddr: f.PeerAddr, Features: supportedFeatures(), State: nodeActive}
		if f.ID == id.NodeID { // the others say the rest of themselves
			b.describeSelf(n)
			n.Starts, n.Instance = 0, "" // introduce does that
		}
		put(nodeKey(f.ID), n)
	}
	if isNew {
		for _, feature := range supportedFeatures() {
			put([]byte(featurePrefix+feature), &featureMeta{Format: featureMetaFormat, FinalizedAtMillis: now})
		}
	}
	put([]byte(clusterKey), &clusterMeta{Format: clusterMetaFormat, ClusterID: id.ClusterID, CreatedAtMillis: now, Shard: metaPlacement(id.Founders)})
	return ops, errors.Join(errs...)
}

// metaDo runs one operation on the meta shard.
func (b *Broker) metaDo(ctx context.Context, op felix.Op) (felix.Reply, error) {
	replies, err := felix.Do(ctx, b.meta, op)
	if err != nil {
		return felix.Reply{}, err
	}
	if replies[0].Err != nil {
		return felix.Reply{}, replies[0].Err
	}
	return replies[0], nil
}

// changing is the context of a change of the metadata that was asked for in ctx.
// It goes on if whoever asked has gone: a change that was begun will mostly take
// effect all the same, and what follows from it must not be left out.
func (b *Broker) changing(ctx context.Context) (context.Context, context.CancelFunc) {
	deadline, is := ctx.Deadline()
	if latest := time.Now().Add(b.opts.metaTimeout); !is || deadline.After(latest) {
		deadline = latest
	}
	return context.WithDeadline(context.WithoutCancel(ctx), deadline)
}

// metaChanged waits until all brokers that can be reached, this one first, have
// acted on what was changed so far in the metadata.
func (b *Broker) metaChanged(ctx context.Context) error {
	index, err := b.barrier(ctx)
	if err != nil {
		return err
	}
	if err := b.awaitMeta(ctx, index); err != nil {
		return err
	}
	b.awaitOthers(ctx, index, nil)
	return nil
}

// othersTimeout is how long a change of the metadata waits for other brokers to
// act on it.
const othersTimeout = 2 * time.Second

// awaitOthers waits until the other brokers that can be reached have acted on the
// metadata up to index, for those of needed until ctx ends: late are those of them
// that have not. Those that cannot be reached will before they serve again anybody
// who has heard of it from others.
func (b *Broker) awaitOthers(ctx context.Context, index uint64, needed map[uint64]bool) (late []uint64) {
	short, cancel := context.WithTimeout(ctx, othersTimeout)
	defer cancel()
	var waiting sync.WaitGroup
	var mu sync.Mutex
	up := b.reached()
	for id, n := range b.view().nodes {
		if id == b.node || n.State == nodeRemoved || !up[id] {
			continue
		}
		until := short
		if needed[id] {
			until = ctx
		}
		waiting.Go(func() {
			err := b.net.AwaitMeta(until, id, index)
			if err == nil {
				return
			}
			b.opts.Logger.Debug("a broker has not acted on a change of the metadata yet", "node", id, "err", err)
			if needed[id] {
				mu.Lock()
				late = append(late, id)
				mu.Unlock()
			}
		})
	}
	waiting.Wait()
	slices.Sort(late)
	return late
}

// usable are the brokers that can have caches.
func (b *Broker) usable(v *view) (nodes []placement.Node) {
	up := b.reached()
	for id, n := range v.nodes {
		if n.State == nodeActive {
			nodes = append(nodes, placement.Node{ID: id, Up: up[id]})
		}
	}
	return nodes
}

// normalize fills in defaults and checks bounds, with so many brokers.
func (b *Broker) normalize(s felix.CacheSettings, brokers int) (felix.CacheSettings, error) {
	if s.Shards == 0 {
		s.Shards = felix.DefaultShards
	}
	if s.Shards < 1 || s.Shards > felix.MaxShardsPerCache {
		return s, felix.Errorf(felix.InvalidArgument, "%d shards: a cache has 1 to %d", s.Shards, felix.MaxShardsPerCache)
	}
	switch {
	case s.Replication != 0:
	case brokers >= defaultReplication:
		s.Replication = defaultReplication
	default:
		s.Replication = 1
	}
	if s.Consistency > felix.Leader {
		return s, felix.Errorf(felix.InvalidArgument, "consistency %d is not known: it is quorum or leader", s.Consistency)
	}
	if s.MaxIDs == 0 {
		s.MaxIDs = felix.DefaultMaxIDs
	}
	if err := b.checkMaxIDs(s.MaxIDs); err != nil {
		return s, err
	}
	return s, b.checkReplication(s.Replication, brokers)
}

// defaultReplication is how many replicas a cache has where there are as many
// brokers: one may be lost and the others still are a majority.
const defaultReplication = 3

func (b *Broker) checkReplication(n, brokers int) error {
	if n < 1 || n > felix.MaxReplication {
		return felix.Errorf(felix.InvalidArgument, "replication %d: it is 1 to %d", n, felix.MaxReplication)
	}
	if n > brokers && !b.opts.ReplicationIsTarget {
		return felix.Errorf(felix.InvalidArgument, "replication %d needs %d brokers, there %s: use --replication %d", n, n, areBrokers(brokers, ""), max(1, brokers))
	}
	return nil
}

// areBrokers says how many there are.
func areBrokers(n int, noun string) string {
	if n == 1 {
		return "is 1" + noun
	}
	if noun != "" {
		noun += "s"
	}
	return fmt.Sprintf("are %d%s", n, noun)
}

// CreateCache implements felix.Service.
func (b *Broker) CreateCache(ctx context.Context, scope felix.Scope, settings felix.CacheSettings) (info felix.CacheInfo, created bool, warning string, err error) {
	if err := scope.Validate(); err != nil {
		return info, false, "", err
	}
	ctx, cancel := b.changing(ctx)
	defer cancel()
	b.metaMu.Lock()
	defer b.metaMu.Unlock()
	for {
		v, err := b.confirmedView(ctx)
		if err != nil {
			return info, false, "", err
		}
		nodes := b.usable(v)
		asked, err := b.normalize(settings, len(nodes))
		if err != nil {
			return info, false, "", err
		}
		if m := v.caches[scope]; m != nil {
			info, err = b.sameCache(ctx, m, asked, settings.Replication == 0)
			return info, false, replicasWarning(info, len(nodes)), err
		}
		c, err := b.makeCache(ctx, v, nodes, scope, asked)
		if err != nil {
			return info, false, "", err
		}
		if c != nil {
			if again, err := b.misplaced(ctx, c); err != nil {
				return info, false, "", err
			} else if again {
				continue
			}
			info = b.info(c, felix.RecordCount{}) // nobody could write to it yet
			return info, true, replicasWarning(info, len(nodes)), b.awaitShards(ctx, c)
		}
	}
}

// sameCache describes a cache that exists, if it has these settings.
func (b *Broker) sameCache(ctx context.Context, m *cacheMeta, settings felix.CacheSettings, anyReplication bool) (felix.CacheInfo, error) {
	c := b.know(m)
	have := b.info(c, felix.RecordCount{}).CacheSettings
	if anyReplication {
		settings.Replication = have.Replication
	}
	if have != settings {
		return felix.CacheInfo{}, felix.Errorf(felix.AlreadyExists,
			"cache %s exists with other settings: %d shards, replication %d, consistency %s, max-ids %d", m.scope(), have.Shards, have.Replication, have.Consistency, have.MaxIDs)
	}
	return b.describe(ctx, c)
}

func replicasWarning(info felix.CacheInfo, brokers int) string {
	switch {
	case info.Replicas >= info.Replication:
		return ""
	case brokers >= info.Replication:
		return fmt.Sprintf("replicas %d/%d: more are being made", info.Replicas, info.Replication)
	}
	return fmt.Sprintf("replicas %d/%d: there %s; more replicas are made as brokers join", info.Replicas, info.Replication, areBrokers(brokers, " broker"))
}

// makeCache gives a cache its name, with all its placements, upon which the
// brokers make its shards. It answers nil if the name was given meanwhile. metaMu
// is held.
func (b *Broker) makeCache(ctx context.Context, v *view, nodes []placement.Node, scope felix.Scope, settings felix.CacheSettings) (*cache, error) {
	if len(v.caches) >= felix.MaxCaches {
		return nil, felix.Errorf(felix.ResourceExhausted, "there are %d caches, as many as are allowed: remove caches", len(v.caches))
	}
	reply, err := b.metaDo(ctx, felix.Op{Kind: felix.Add, Key: []byte(nextShardKey), Int: int64(settings.Shards)})
	if err != nil {
		return nil, err
	}
	b.opts.Cluster.OnStep("create-ids")
	ids := make([]uint64, settings.Shards)
	for i := range ids {
		ids[i] = metaShard + uint64(reply.Int) - uint64(settings.Shards) + uint64(i) + 1
	}
	m := &cacheMeta{Tenant: scope.Tenant, Namespace: scope.Namespace, Name: scope.Cache, Format: cacheMetaFormat,
		Replication: settings.Replication, Consistency: settings.Consistency.String(), CreatedAtMillis: b.opts.Wall(),
		MaxIDs: storedMaxIDs(settings.MaxIDs), Shards: placement.Create(nodes, v.load(), ids, settings.Replication)}
	for i := range m.Shards {
		if len(m.Shards[i].Replicas) < min(settings.Replication, len(nodes)) || len(nodes) == 0 {
			return nil, felix.Errorf(felix.ResourceExhausted,
				"the %d brokers have no room for %d shards with %d replicas, each has at most %d replicas: remove caches, use fewer shards or add brokers",
				len(nodes), settings.Shards, settings.Replication, felix.MaxShards)
		}
	}
	op, err := metaSet(cacheKey(scope), m, felix.IfAbsent, 0)
	if err != nil {
		return nil, err
	}
	if reply, err = b.metaDo(ctx, op); err != nil || !reply.Applied {
		return nil, err
	}
	b.opts.Cluster.OnStep("create-named")
	m.version = reply.Version
	return b.know(m), nil
}

// misplaced looks whether a node that a new cache has replicas on was taken out of
// the cluster between the choice of the node and the writing of the record. Then
// the cache is taken back, for its only replica may be there. Whoever makes a
// tombstone of the node without having seen the record has begun to remove it
// before that was written: so it is seen here.
func (b *Broker) misplaced(ctx context.Context, c *cache) (bool, error) {
	v, err := b.confirmedView(ctx)
	if err != nil {
		return false, felix.Errorf(felix.OutcomeUnknown, "cache %s was made, but whether its brokers are still there could not be looked at: %v", c.scope, err)
	}
	m := v.caches[c.scope]
	if m == nil || m.Shards[0].ID != c.shards[0].id {
		return false, nil // somebody has deleted it already
	}
	for i := range m.Shards {
		for _, r := range m.Shards[i].Replicas {
			n := v.nodes[r.Node]
			if n != nil && n.State != nodeRemoving && n.State != nodeRemoved {
				continue
			}
			b.opts.Logger.Info("a new cache is placed again, for a node was removed meanwhile", "cache", c.scope.String(), "node", r.Node)
			_, err := b.metaDo(ctx, felix.Op{Kind: felix.Delete, View: felix.ViewValue, Key: cacheKey(c.scope)})
			b.forget(c)
			if err != nil {
				return false, felix.Errorf(felix.OutcomeUnknown, "cache %s was made on node %d, which is being removed, and may not be gone again: %v", c.scope, r.Node, err)
			}
			return true, b.awaitGone(ctx, m)
		}
	}
	return false, nil
}

// load is what the nodes have to do for the caches.
func (v *view) load() placement.Load {
	var all []placement.Shard
	for _, m := range v.caches {
		all = append(all, m.Shards...)
	}
	return placement.LoadOf(all)
}

// awaitCount waits until every shard of a cache has answered. The first owners of
// a new shard may change while they do, of which a count is told at once.
func (b *Broker) awaitCount(ctx context.Context, c *cache) error {
	if _, limited := ctx.Deadline(); !limited {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, b.opts.RequestTimeout)
		defer cancel()
	}
	for attempts := 1; ; attempts++ {
		_, err := c.Count(ctx)
		if err == nil || felix.AsError(err).Code != felix.Unavailable || ctx.Err() != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(pause(attempts)):
		}
	}
}

// awaitShards waits until every shard of a new cache answers, and all brokers know
// it. If that takes too long, the cache is there all the same.
func (b *Broker) awaitShards(ctx context.Context, c *cache) error {
	err := b.metaChanged(ctx)
	if err == nil {
		err = b.awaitCount(ctx, c)
	}
	if err != nil {
		return felix.Errorf(felix.OutcomeUnknown, "cache %s was made, but not all of its shards serve yet: %v", c.scope, err)
	}
	return nil
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
	v, err := b.confirmedView(ctx)
	if err != nil {
		return nil, err
	}
	var found []*cacheMeta
	for scope, m := range v.caches {
		if (tenant == "" || scope.Tenant == tenant) && (namespace == "" || scope.Namespace == namespace) {
			found = append(found, m)
		}
	}
	slices.SortFunc(found, func(x, y *cacheMeta) int {
		return cmp.Or(strings.Compare(x.Tenant, y.Tenant), strings.Compare(x.Namespace, y.Namespace), strings.Compare(x.Name, y.Name))
	})
	var caches []*cache
	for _, m := range found {
		caches = append(caches, b.know(m))
	}
	return b.describeAll(ctx, caches)
}

// CacheInfo implements felix.Service.
func (b *Broker) CacheInfo(ctx context.Context, scope felix.Scope) (felix.CacheInfo, error) {
	c, err := b.find(ctx, scope)
	if err != nil {
		return felix.CacheInfo{}, err
	}
	return b.describe(ctx, c)
}

// Cache implements felix.Service.
func (b *Broker) Cache(ctx context.Context, scope felix.Scope) (felix.Cache, error) {
	c, err := b.find(ctx, scope)
	if err != nil {
		return nil, err
	}
	return c, nil
}

// readCache reads one cache's metadata, as its owner has it.
func (b *Broker) readCache(ctx context.Context, scope felix.Scope) (*cacheMeta, error) {
	reply, err := b.metaDo(ctx, felix.Op{Kind: felix.Get, View: felix.ViewValue, Key: cacheKey(scope)})
	if err != nil {
		return nil, err
	}
	if reply.Found == felix.NoRecord {
		return nil, felix.Errorf(felix.CacheNotFound, "no such cache: %s", scope)
	}
	m, err := parseCacheMeta(string(cacheKey(scope)), reply.Value, reply.Version)
	if err != nil {
		b.mustRead(badMeta{err})
	}
	return m, err
}

// SetReplication implements felix.Service. The records are counted first: once
// the change is made, nothing may fail as if it were not.
func (b *Broker) SetReplication(ctx context.Context, scope felix.Scope, replication int) (info felix.CacheInfo, warning string, err error) {
	if err := scope.Validate(); err != nil {
		return info, "", err
	}
	ctx, cancel := b.changing(ctx)
	defer cancel()
	b.metaMu.Lock()
	defer b.metaMu.Unlock()
	v, err := b.confirmedView(ctx)
	if err != nil {
		return info, "", err
	}
	brokers := len(b.usable(v))
	if err := b.checkReplication(replication, brokers); err != nil {
		return info, "", err
	}
	m := v.caches[scope]
	if m == nil {
		return info, "", felix.Errorf(felix.CacheNotFound, "no such cache: %s", scope)
	}
	before, err := b.describe(ctx, b.know(m))
	if err != nil {
		return info, "", err
	}
	m, err = b.updateCache(ctx, scope, func(m *cacheMeta) bool {
		is := m.Replication != replication
		m.Replication = replication
		return is
	})
	if err != nil {
		return info, "", err
	}
	info = b.info(b.know(m), before.Counts)
	info.CountsUnknown = before.CountsUnknown
	return info, replicasWarning(info, brokers), nil
}

// DeleteCache implements felix.Service: first the name, then, at every broker,
// the data. It returns when no broker that can be reached serves the cache any
// more.
func (b *Broker) DeleteCache(ctx context.Context, scope felix.Scope) error {
	if err := scope.Validate(); err != nil {
		return err
	}
	ctx, cancel := b.changing(ctx)
	defer cancel()
	b.metaMu.Lock()
	defer b.metaMu.Unlock()
	v, err := b.confirmedView(ctx)
	if err != nil {
		return err
	}
	m := v.caches[scope]
	if m == nil {
		return felix.Errorf(felix.CacheNotFound, "no such cache: %s", scope)
	}
	_, err = b.metaDo(ctx, felix.Op{Kind: felix.Delete, View: felix.ViewValue, Key: cacheKey(scope)})
	if err != nil && !felix.AsError(err).MayBeApplied() {
		return err
	}
	// Perhaps deleted: then nothing may be acknowledged in it any more. Perhaps
	// not: then it is found again, in the metadata.
	b.forget(b.know(m))
	if err != nil {
		return err
	}
	return b.awaitGone(ctx, m)
}

// awaitGone waits until no broker that can be reached serves a cache that was
// deleted: what one of them still acknowledged would be lost.
func (b *Broker) awaitGone(ctx context.Context, m *cacheMeta) error {
	index, err := b.barrier(ctx)
	if err == nil {
		err = b.awaitMeta(ctx, index)
	}
	if err != nil {
		b.opts.Logger.Warn("a cache was deleted, its data is not removed yet", "cache", m.scope().String(), "err", err)
		return nil
	}
	holders := map[uint64]bool{}
	for i := range m.Shards {
		for _, r := range m.Shards[i].Replicas {
			holders[r.Node] = true
		}
	}
	if late := b.awaitOthers(ctx, index, holders); len(late) > 0 {
		return felix.Errorf(felix.OutcomeUnknown, "cache %s is deleted, but of the brokers that have it node %d has not heard of that yet: what it still answers for the cache is lost", m.scope(), late[0])
	}
	return nil
}
