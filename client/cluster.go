package client

import (
	"context"
	"time"

	"connectrpc.com/connect"

	"github.com/felix-go/felix"
	felixv1 "github.com/felix-go/felix/api/felix/v1"
)

// Nodes lists the brokers of the cluster in the order of their ids, those that
// were removed included.
func (c *Client) Nodes(ctx context.Context) ([]felix.NodeInfo, error) {
	resp, err := call(ctx, c, reads, func(ctx context.Context, b broker) (*connect.Response[felixv1.NodeListResponse], error) {
		return b.cluster.NodeList(ctx, connect.NewRequest(&felixv1.NodeListRequest{}))
	})
	if err != nil {
		return nil, err
	}
	nodes := make([]felix.NodeInfo, len(resp.GetNodes()))
	for i, m := range resp.GetNodes() {
		nodes[i] = nodeOf(m)
	}
	return nodes, nil
}

// NodeDrain moves every replica and ownership away from a node, or with drain
// false lets it have some again; node_not_found where there is none. It answers
// when that is begun: NodeInfo.Waiting says what is left. It is sent at most
// once; after outcome_unknown it can safely be called again.
func (c *Client) NodeDrain(ctx context.Context, node uint64, drain bool) (felix.NodeInfo, error) {
	resp, err := call(ctx, c, changes, func(ctx context.Context, b broker) (*connect.Response[felixv1.NodeDrainResponse], error) {
		return b.cluster.NodeDrain(ctx, connect.NewRequest(&felixv1.NodeDrainRequest{Id: node, Undo: !drain}))
	})
	if err != nil {
		return felix.NodeInfo{}, err
	}
	return nodeOf(resp.GetNode()), nil
}

// NodeRemove drains a node and takes it out of the cluster for ever. It answers
// when that is begun: NodeInfo.Waiting says what is left. It is sent at most
// once; after outcome_unknown it can safely be called again.
func (c *Client) NodeRemove(ctx context.Context, node uint64) (felix.NodeInfo, error) {
	resp, err := call(ctx, c, changes, func(ctx context.Context, b broker) (*connect.Response[felixv1.NodeRemoveResponse], error) {
		return b.cluster.NodeRemove(ctx, connect.NewRequest(&felixv1.NodeRemoveRequest{Id: node}))
	})
	if err != nil {
		return felix.NodeInfo{}, err
	}
	return nodeOf(resp.GetNode()), nil
}

// Shards lists the shards of all caches, the metadata's first.
func (c *Client) Shards(ctx context.Context) ([]felix.ShardInfo, error) {
	return c.shards(ctx, &felixv1.ShardListRequest{})
}

// CacheShards lists the shards of a cache.
func (c *Client) CacheShards(ctx context.Context, tenant, namespace, cache string) ([]felix.ShardInfo, error) {
	if cache == "" { // it would mean all of them
		return nil, felix.Errorf(felix.InvalidArgument, "the cache name is empty")
	}
	return c.shards(ctx, &felixv1.ShardListRequest{Tenant: tenant, Namespace: namespace, Cache: cache})
}

func (c *Client) shards(ctx context.Context, req *felixv1.ShardListRequest) ([]felix.ShardInfo, error) {
	resp, err := call(ctx, c, reads, func(ctx context.Context, b broker) (*connect.Response[felixv1.ShardListResponse], error) {
		return b.cluster.ShardList(ctx, connect.NewRequest(req))
	})
	if err != nil {
		return nil, err
	}
	shards := make([]felix.ShardInfo, len(resp.GetShards()))
	for i, m := range resp.GetShards() {
		shards[i] = shardOf(m)
	}
	return shards, nil
}

// ShardMove gives a shard's replica on the node from to the node to. It answers
// when that is begun. It is sent at most once; after outcome_unknown Shards tells
// whether it was.
func (c *Client) ShardMove(ctx context.Context, tenant, namespace, cache string, number int, from, to uint64) (felix.ShardInfo, error) {
	req := &felixv1.ShardMoveRequest{Tenant: tenant, Namespace: namespace, Cache: cache, Number: clampInt32(number), From: from, To: to}
	resp, err := call(ctx, c, changes, func(ctx context.Context, b broker) (*connect.Response[felixv1.ShardMoveResponse], error) {
		return b.cluster.ShardMove(ctx, connect.NewRequest(req))
	})
	if err != nil {
		return felix.ShardInfo{}, err
	}
	return shardOf(resp.GetShard()), nil
}

// ShardPrefer says which of the nodes with a replica should own a shard. It is
// sent at most once; after outcome_unknown it can safely be called again.
func (c *Client) ShardPrefer(ctx context.Context, tenant, namespace, cache string, number int, node uint64) (felix.ShardInfo, error) {
	req := &felixv1.ShardPreferRequest{Tenant: tenant, Namespace: namespace, Cache: cache, Number: clampInt32(number), Node: node}
	resp, err := call(ctx, c, changes, func(ctx context.Context, b broker) (*connect.Response[felixv1.ShardPreferResponse], error) {
		return b.cluster.ShardPrefer(ctx, connect.NewRequest(req))
	})
	if err != nil {
		return felix.ShardInfo{}, err
	}
	return shardOf(resp.GetShard()), nil
}

// Topology says which node is believed to own which part of a cache.
func (c *Client) Topology(ctx context.Context, tenant, namespace, cache string) (felix.TopologyInfo, error) {
	req := &felixv1.TopologyRequest{Tenant: tenant, Namespace: namespace, Cache: cache}
	resp, err := call(ctx, c, reads, func(ctx context.Context, b broker) (*connect.Response[felixv1.TopologyResponse], error) {
		return b.cluster.Topology(ctx, connect.NewRequest(req))
	})
	if err != nil {
		return felix.TopologyInfo{}, err
	}
	t := felix.TopologyInfo{Scope: felix.Scope{Tenant: resp.GetTenant(), Namespace: resp.GetNamespace(), Cache: resp.GetCache()},
		Shards: make([]felix.ShardOwner, len(resp.GetShards()))}
	for i, m := range resp.GetShards() {
		t.Shards[i] = felix.ShardOwner{Number: int(m.GetNumber()), FirstSlot: int(m.GetFirstSlot()), LastSlot: int(m.GetLastSlot()),
			Owner: m.GetOwner(), HTTPAddr: m.GetHttpAddr(), RESPAddr: m.GetRespAddr(), Nodes: m.GetNodes()}
	}
	return t, nil
}

// Features lists the features of the cluster by name.
func (c *Client) Features(ctx context.Context) ([]felix.FeatureInfo, error) {
	resp, err := call(ctx, c, reads, func(ctx context.Context, b broker) (*connect.Response[felixv1.FeatureListResponse], error) {
		return b.cluster.FeatureList(ctx, connect.NewRequest(&felixv1.FeatureListRequest{}))
	})
	if err != nil {
		return nil, err
	}
	features := make([]felix.FeatureInfo, len(resp.GetFeatures()))
	for i, m := range resp.GetFeatures() {
		features[i] = featureOf(m)
	}
	return features, nil
}

// FeatureFinalize turns a feature on for ever; feature_not_found where the broker
// does not know it, invalid_argument while another broker's build lacks it. It is
// sent at most once; after outcome_unknown it can safely be called again.
func (c *Client) FeatureFinalize(ctx context.Context, name string) (felix.FeatureInfo, error) {
	resp, err := call(ctx, c, changes, func(ctx context.Context, b broker) (*connect.Response[felixv1.FeatureFinalizeResponse], error) {
		return b.cluster.FeatureFinalize(ctx, connect.NewRequest(&felixv1.FeatureFinalizeRequest{Name: name}))
	})
	if err != nil {
		return felix.FeatureInfo{}, err
	}
	return featureOf(resp.GetFeature()), nil
}

func nodeOf(m *felixv1.Node) felix.NodeInfo {
	return felix.NodeInfo{
		ID: m.GetId(), State: felix.NodeState(m.GetState()), Up: m.GetUp(), Here: m.GetHere(), StoreID: m.GetStoreId(),
		Version: m.GetVersion(), Features: m.GetFeatures(),
		PeerAddr: m.GetPeerAddr(), HTTPAddr: m.GetHttpAddr(), RESPAddr: m.GetRespAddr(),
		ClockOffset: time.Duration(m.GetClockOffsetMillis()) * time.Millisecond, Ineligible: m.GetIneligible(), Waiting: m.GetWaiting(),
		Replicas: int(m.GetReplicas()), Owned: int(m.GetOwned()),
	}
}

func shardOf(m *felixv1.Shard) felix.ShardInfo {
	s := felix.ShardInfo{
		Scope: felix.Scope{Tenant: m.GetTenant(), Namespace: m.GetNamespace(), Cache: m.GetCache()}, Meta: m.GetMeta(),
		Number: int(m.GetNumber()), ID: m.GetId(), Owner: m.GetOwner(), Preferred: m.GetPreferred(), Term: m.GetTerm(),
		Commit: m.GetCommit(), Replicas: make([]felix.ReplicaInfo, len(m.GetReplicas())),
	}
	for i, r := range m.GetReplicas() {
		s.Replicas[i] = felix.ReplicaInfo{Node: r.GetNode(), RaftID: r.GetRaftId(), Want: felix.ReplicaRole(r.GetWant()),
			Have: felix.ReplicaRole(r.GetHave()), Match: r.GetMatch(), Lag: r.GetLag(), Active: r.GetActive(), Differs: r.GetDiffers()}
		if r.SnapshotSentBytes != nil {
			s.Replicas[i].Snapshot = &felix.SnapshotInfo{SentBytes: r.GetSnapshotSentBytes(), EstimateBytes: r.GetSnapshotEstimateBytes()}
		}
	}
	return s
}

func featureOf(m *felixv1.Feature) felix.FeatureInfo {
	return felix.FeatureInfo{Name: m.GetName(), Summary: m.GetSummary(), Finalized: m.GetFinalized(),
		FinalizedAtMillis: m.GetFinalizedAtMillis(), Lacking: m.GetLacking()}
}
