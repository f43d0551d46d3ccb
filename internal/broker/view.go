package broker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/peer"
	"github.com/felix-go/felix/internal/placement"
	"github.com/felix-go/felix/internal/shard"
)

// view is the metadata as this broker's replica of it had applied it. It is not
// changed any more.
type view struct {
	// index is how far the metadata's log was applied: all up to there is in the
	// view, and perhaps some of what came while it was read.
	index    uint64
	cluster  *clusterMeta         // nil until the cluster's first records are all there
	nodes    map[uint64]*nodeMeta // tombstones included
	caches   map[felix.Scope]*cacheMeta
	shards   map[uint64]*shardRef        // of all caches, and the metadata's
	placed   map[uint64]*placement.Shard // the same
	features map[string]bool             // finalized

	records map[string]viewRecord // as they were parsed, by their keys
}

// shardRef is a shard of the cluster.
type shardRef struct {
	cache     *cacheMeta // nil: it is the metadata's
	number    int        // in the cache
	placement *placement.Shard
}

// consistency is the shard's.
func (s *shardRef) consistency() felix.Consistency {
	if s.cache == nil {
		return felix.Quorum
	}
	consistency, _ := felix.ParseConsistency(s.cache.Consistency) // was checked
	return consistency
}

// viewRecord is a record as it was parsed. The next view takes it over if its
// version is still the same.
type viewRecord struct {
	version uint64
	parsed  any // a pointer to a record, or a finalized feature
}

// finalized is a feature that is.
type finalized string

func newView() *view {
	return &view{nodes: map[uint64]*nodeMeta{}, caches: map[felix.Scope]*cacheMeta{}, shards: map[uint64]*shardRef{}, placed: map[uint64]*placement.Shard{},
		features: map[string]bool{}, records: map[string]viewRecord{}}
}

// add takes in one record. before is an earlier view.
func (v *view) add(key string, raw []byte, version uint64, before *view) error {
	r, known := before.records[key]
	if !known || r.version != version {
		parsed, err := parseMeta(key, raw, version)
		if err != nil {
			return err
		}
		r = viewRecord{version, parsed}
	}
	if r.parsed != nil {
		v.take(r.parsed)
		v.records[key] = r
	}
	return nil
}

// take takes in a record that was parsed.
func (v *view) take(record any) {
	switch m := record.(type) {
	case *clusterMeta:
		v.cluster = m
		v.place(&shardRef{placement: &m.Shard})
	case *nodeMeta:
		v.nodes[m.ID] = m
	case *cacheMeta:
		v.caches[m.scope()] = m
		for i := range m.Shards {
			v.place(&shardRef{cache: m, number: i, placement: &m.Shards[i]})
		}
	case finalized:
		v.features[string(m)] = true
	}
}

func (v *view) place(s *shardRef) {
	v.shards[s.placement.ID], v.placed[s.placement.ID] = s, s.placement
}

// parseMeta parses a record. Keys that this build does not know are not its
// business: what it must not ignore comes with a feature that it lacks.
func parseMeta(key string, raw []byte, version uint64) (any, error) {
	switch {
	case key == clusterKey:
		return parseClusterMeta(raw)
	case strings.HasPrefix(key, nodePrefix):
		return parseNodeMeta(key, raw)
	case strings.HasPrefix(key, cachePrefix):
		return parseCacheMeta(key, raw, version)
	case strings.HasPrefix(key, featurePrefix):
		name := strings.TrimPrefix(key, featurePrefix)
		if !slices.Contains(supportedFeatures(), name) {
			return nil, fmt.Errorf("the cluster has finalized the feature %s, which this build does not know: use the newer build", name)
		}
		return finalized(name), readMeta(key, raw, featureMetaFormat, &featureMeta{})
	}
	return nil, nil
}

// belongsTo says why the metadata is not that of a directory with this
// identity: one of the two came from elsewhere.
func (v *view) belongsTo(id *identity) error {
	if v.cluster == nil || v.cluster.ClusterID != id.ClusterID {
		return fmt.Errorf("felix.json is of the cluster %s, the metadata is not: the directory is damaged, restore it", id.ClusterID)
	}
	if n := v.nodes[id.NodeID]; n == nil || n.StoreID != id.StoreID {
		return fmt.Errorf("the metadata does not know node %d with this store id: the directory is damaged, restore it", id.NodeID)
	}
	return nil
}

// alone says whether there is no other broker that has the metadata.
func (v *view) alone(node uint64) bool {
	if v.cluster == nil {
		return false
	}
	s := &v.cluster.Shard
	return len(s.Replicas) == 1 && s.Replicas[0].Node == node
}

// peers are the brokers of the cluster, in the order of their ids.
func (v *view) peers() (all []peer.Peer) {
	for _, n := range v.nodes {
		if n.State != nodeRemoved {
			all = append(all, peer.Peer{Node: n.ID, StoreID: n.StoreID, Addr: n.PeerAddr})
		}
	}
	slices.SortFunc(all, func(a, b peer.Peer) int {
		if a.Node < b.Node {
			return -1
		}
		return 1
	})
	return all
}

// placements are those of all shards, the metadata's included, by their ids.
func (v *view) placements() map[uint64]*placement.Shard { return v.placed }

// view is the metadata as this broker last saw it, empty before that.
func (b *Broker) view() *view {
	if v := b.seen.Load(); v != nil {
		return v
	}
	return newView()
}

// viewPage is how many records of the metadata are read at once.
const viewPage = 1000

// badMeta is metadata that this build cannot live with.
type badMeta struct{ error }

func (e badMeta) Unwrap() error { return e.error }

// readView reads the metadata from this broker's own replica, whatever that has
// applied by now, if it is more than was read before. It asks nobody.
func (b *Broker) readView(ctx context.Context) (*view, error) {
	b.viewMu.Lock()
	defer b.viewMu.Unlock()
	before := b.seen.Load()
	if before != nil && before.index >= b.metaApplied.load() {
		return before, nil
	}
	if before == nil {
		before = newView()
	}
	v := newView()
	var after []byte
	for more := true; more; {
		page, index, err := b.scanMeta(ctx, after)
		if err != nil {
			return nil, err
		}
		for _, item := range page.Items {
			if err := v.add(string(item.Key), item.Value, item.Version, before); err != nil {
				return nil, badMeta{err}
			}
		}
		if after == nil {
			v.index = index
		}
		more, after = page.More, page.Next
	}
	b.seen.Store(v)
	return v, nil
}

// scanMeta reads a page of what this broker's replica of the metadata has
// applied, up to index. Pages may differ in that: records do not depend on each
// other.
func (b *Broker) scanMeta(ctx context.Context, after []byte) (page felix.ScanPage, index uint64, err error) {
	r := b.replicaOf(metaShard)
	if r == nil {
		return page, 0, errStopping
	}
	b.inflight.Add(opOverheadBytes)
	request := &shard.Request{Kind: shard.LocalScan, Scan: felix.ScanRequest{View: felix.ViewValue, Limit: viewPage, After: after},
		MaxPageBytes: felix.MaxScanPageBytes, Bytes: opOverheadBytes, Deadline: b.deadline(ctx), Finished: newFinished()}
	defer b.letGo(request)
	b.submit(r, request)
	if err := await(ctx, request); err != nil {
		return page, 0, err
	}
	return request.Scanned, request.Index, nil
}

// readConfirmed reads the metadata so that nothing is missing that was
// acknowledged before the call.
func (b *Broker) readConfirmed(ctx context.Context) (*view, error) {
	index, err := b.barrier(ctx)
	if err != nil {
		return nil, err
	}
	if err := b.metaApplied.await(ctx, index); err != nil {
		return nil, felix.Errorf(felix.Unavailable, "this broker's copy of the metadata is behind, nothing was applied: %v", err)
	}
	return b.readView(ctx)
}

// confirmedView is the metadata as of now: nothing that was acknowledged before
// is missing. It waits for no longer than any request does.
func (b *Broker) confirmedView(ctx context.Context) (*view, error) {
	ctx, cancel := context.WithTimeout(ctx, b.opts.RequestTimeout)
	defer cancel()
	v, err := b.readConfirmed(ctx)
	b.mustRead(err)
	return v, err
}

// mustRead ends the process if there is metadata that this build cannot read:
// whatever it did without it would be wrong.
func (b *Broker) mustRead(err error) {
	var bad badMeta
	if errors.As(err, &bad) {
		b.opts.Fatal(dirErrorf(b.opts.Dir, "reading the metadata: %w", bad))
	}
}
