package broker

import (
	"context"
	"maps"
	"slices"

	"github.com/felix-go/felix"
)

// featureSummaries say what features are, for people.
var featureSummaries = map[string]string{
	leaseFreeReads: "every broker can confirm reads of quorum caches by a majority, and does unless it was started with --reads lease",
	idempotencyIDs: "operations may carry idempotency ids, so that a retry counts once",
	replicaHashes:  "every broker stores what it compares its replicas with others by, and goes on from there when it restarts",
}

// Features implements felix.Cluster.
func (b *Broker) Features(ctx context.Context) ([]felix.FeatureInfo, error) {
	v := b.adminView(ctx)
	names := map[string]bool{}
	for _, name := range supportedFeatures() {
		names[name] = true
	}
	for name := range v.features {
		names[name] = true
	}
	var all []felix.FeatureInfo
	for _, name := range slices.Sorted(maps.Keys(names)) {
		info, err := b.featureInfo(ctx, v, name)
		if err != nil {
			return nil, err
		}
		all = append(all, info)
	}
	return all, nil
}

func (b *Broker) featureInfo(ctx context.Context, v *view, name string) (felix.FeatureInfo, error) {
	info := felix.FeatureInfo{Name: name, Summary: featureSummaries[name], Finalized: v.features[name], Lacking: v.lacks(name)}
	if !info.Finalized {
		return info, nil
	}
	key := []byte(featurePrefix + name)
	reply, err := b.metaDo(ctx, felix.Op{Kind: felix.Get, View: felix.ViewValue, Key: key})
	if err != nil {
		return info, err
	}
	var m featureMeta
	if err := readMeta(string(key), reply.Value, featureMetaFormat, &m); err != nil {
		return info, err
	}
	info.FinalizedAtMillis = m.FinalizedAtMillis
	return info, nil
}

// lacks are the nodes whose build does not have a feature.
func (v *view) lacks(feature string) (nodes []uint64) {
	for id, n := range v.nodes {
		if n.State != nodeRemoved && !slices.Contains(n.Features, feature) {
			nodes = append(nodes, id)
		}
	}
	slices.Sort(nodes)
	return nodes
}

// FinalizeFeature implements felix.Cluster. A broker without the feature that
// joins at the same time is not let in by the others.
func (b *Broker) FinalizeFeature(ctx context.Context, name string) (felix.FeatureInfo, error) {
	if !slices.Contains(supportedFeatures(), name) {
		return felix.FeatureInfo{}, felix.Errorf(felix.FeatureNotFound, "this build knows no feature %q; felixctl feature ls shows those that there are", name)
	}
	v, err := b.confirmedView(ctx)
	if err != nil {
		return felix.FeatureInfo{}, err
	}
	if lacking := v.lacks(name); len(lacking) > 0 && !v.features[name] {
		return felix.FeatureInfo{}, felix.Errorf(felix.InvalidArgument,
			"nodes %v have a build without %s: upgrade them first, or remove them", lacking, name)
	}
	op, err := metaSet([]byte(featurePrefix+name), &featureMeta{Format: featureMetaFormat, FinalizedAtMillis: b.opts.Wall()}, felix.IfAbsent, 0)
	if err != nil {
		return felix.FeatureInfo{}, err
	}
	reply, err := b.metaDo(ctx, op)
	if err != nil {
		return felix.FeatureInfo{}, err
	}
	if err := b.metaChanged(ctx); err != nil {
		return felix.FeatureInfo{}, felix.Errorf(felix.OutcomeUnknown, "the feature was finalized, but not every broker may know yet: %v", err)
	}
	if reply.Applied {
		b.opts.Logger.Info("a feature was finalized", "feature", name)
	}
	if v, err = b.confirmedView(ctx); err != nil {
		return felix.FeatureInfo{}, felix.Errorf(felix.OutcomeUnknown, "the feature was finalized, but cannot be read back: %v", err)
	}
	return b.featureInfo(ctx, v, name)
}
