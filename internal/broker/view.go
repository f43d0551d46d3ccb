package broker

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/placement"
)

// view is the metadata as it was at one moment. It is not changed any more.
type view struct {
	cluster  *clusterMeta         // nil until the cluster's first records are all there
	nodes    map[uint64]*nodeMeta // tombstones included
	caches   map[felix.Scope]*cacheMeta
	features map[string]bool // finalized
}

func newView() *view {
	return &view{nodes: map[uint64]*nodeMeta{}, caches: map[felix.Scope]*cacheMeta{}, features: map[string]bool{}}
}

// viewPage is how many records of the metadata are read at once.
const viewPage = 1000

// readView reads all of the metadata.
func (b *Broker) readView(ctx context.Context) (*view, error) {
	v := newView()
	req := felix.ScanRequest{View: felix.ViewValue, Limit: viewPage}
	for {
		page, err := b.meta.Scan(ctx, req)
		if err != nil {
			return nil, err
		}
		for _, item := range page.Items {
			if err := v.add(string(item.Key), item.Value, item.Version); err != nil {
				return nil, err
			}
		}
		if !page.More {
			return v, nil
		}
		req.After = page.Next
	}
}

// add takes in one record. Keys that this build does not know are not its
// business: what it must not ignore comes with a feature that it lacks.
func (v *view) add(key string, raw []byte, version uint64) error {
	switch {
	case key == clusterKey:
		m, err := parseClusterMeta(raw)
		v.cluster = m
		return err
	case strings.HasPrefix(key, nodePrefix):
		m, err := parseNodeMeta(key, raw)
		if err == nil {
			v.nodes[m.ID] = m
		}
		return err
	case strings.HasPrefix(key, cachePrefix):
		m, err := parseCacheMeta(key, raw, version)
		if err == nil {
			v.caches[m.scope()] = m
		}
		return err
	case strings.HasPrefix(key, featurePrefix):
		name := strings.TrimPrefix(key, featurePrefix)
		if !slices.Contains(supportedFeatures(), name) {
			return fmt.Errorf("the cluster has finalized the feature %s, which this build does not know: use the newer build", name)
		}
		v.features[name] = true
		return readMeta(key, raw, featureMetaFormat, &featureMeta{})
	}
	return nil
}

// firstView reads the metadata when the broker starts, completed if an older
// build wrote it or if it is new, and checks that it is this directory's.
func (b *Broker) firstView(ctx context.Context) (*view, error) {
	v, err := b.readView(ctx)
	if err != nil {
		return nil, fmt.Errorf("reading the metadata: %w", err)
	}
	id := b.dir.id()
	switch {
	case id.Format < dataFormat:
		err = b.migrate(ctx, v)
	case v.cluster == nil:
		err = b.beginCluster(ctx)
	default:
		return v, v.belongsTo(&id)
	}
	if err != nil {
		return nil, fmt.Errorf("writing the metadata: %w", err)
	}
	if v, err = b.readView(ctx); err != nil {
		return nil, fmt.Errorf("reading the metadata: %w", err)
	}
	id = b.dir.id() // migrating has changed it
	return v, v.belongsTo(&id)
}

// beginCluster writes the first records of a new cluster.
func (b *Broker) beginCluster(ctx context.Context) error {
	id := b.dir.id()
	ops, err := b.firstRecords(&id, true)
	if err != nil {
		return err
	}
	return b.metaWrite(ctx, ops)
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

// view is the metadata as this broker last saw it, empty before that.
func (b *Broker) view() *view {
	if v := b.seen.Load(); v != nil {
		return v
	}
	return newView()
}

// confirmedView is the metadata as of now: nothing that was acknowledged before
// is missing.
func (b *Broker) confirmedView(ctx context.Context) (*view, error) { return b.readView(ctx) }

// placements are those of all shards, the metadata's included.
func (v *view) placements() map[uint64]*placement.Shard {
	all := map[uint64]*placement.Shard{}
	if v.cluster != nil {
		all[metaShard] = &v.cluster.Shard
	}
	for _, m := range v.caches {
		for i := range m.Shards {
			all[m.Shards[i].ID] = &m.Shards[i]
		}
	}
	return all
}
