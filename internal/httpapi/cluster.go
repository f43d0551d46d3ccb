package httpapi

import (
	"context"

	"connectrpc.com/connect"

	"github.com/felix-go/felix"
	felixv1 "github.com/felix-go/felix/api/felix/v1"
)

// clusterService implements felixv1connect.ClusterServiceHandler.
type clusterService struct{ *door }

// NodeList implements the method of the schema.
func (s clusterService) NodeList(ctx context.Context, _ *connect.Request[felixv1.NodeListRequest]) (*connect.Response[felixv1.NodeListResponse], error) {
	nodes, err := s.cluster.Nodes(ctx)
	if err != nil {
		return nil, err
	}
	out := &felixv1.NodeListResponse{Nodes: make([]*felixv1.Node, len(nodes))}
	for i := range nodes {
		out.Nodes[i] = nodeMessage(&nodes[i])
	}
	return connect.NewResponse(out), nil
}

// NodeDrain implements the method of the schema.
func (s clusterService) NodeDrain(ctx context.Context, req *connect.Request[felixv1.NodeDrainRequest]) (*connect.Response[felixv1.NodeDrainResponse], error) {
	if err := given("id", req.Msg.GetId()); err != nil {
		return nil, err
	}
	node, err := s.cluster.DrainNode(ctx, req.Msg.GetId(), !req.Msg.GetUndo())
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&felixv1.NodeDrainResponse{Node: nodeMessage(&node)}), nil
}

// NodeRemove implements the method of the schema.
func (s clusterService) NodeRemove(ctx context.Context, req *connect.Request[felixv1.NodeRemoveRequest]) (*connect.Response[felixv1.NodeRemoveResponse], error) {
	if err := given("id", req.Msg.GetId()); err != nil {
		return nil, err
	}
	node, err := s.cluster.RemoveNode(ctx, req.Msg.GetId())
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&felixv1.NodeRemoveResponse{Node: nodeMessage(&node)}), nil
}

// ShardList implements the method of the schema.
func (s clusterService) ShardList(ctx context.Context, req *connect.Request[felixv1.ShardListRequest]) (*connect.Response[felixv1.ShardListResponse], error) {
	var of *felix.Scope
	if req.Msg.GetCache() != "" || req.Msg.GetTenant() != "" || req.Msg.GetNamespace() != "" {
		scope, err := scopeOf(req.Msg)
		if err != nil {
			return nil, err
		}
		of = &scope
	}
	leave, err := place(ctx, s.listing)
	if err != nil {
		return nil, err
	}
	defer leave()
	shards, err := s.cluster.Shards(ctx, of)
	if err != nil {
		return nil, err
	}
	out := &felixv1.ShardListResponse{Shards: make([]*felixv1.Shard, len(shards))}
	for i := range shards {
		out.Shards[i] = shardMessage(&shards[i])
	}
	return connect.NewResponse(out), nil
}

// ShardMove implements the method of the schema.
func (s clusterService) ShardMove(ctx context.Context, req *connect.Request[felixv1.ShardMoveRequest]) (*connect.Response[felixv1.ShardMoveResponse], error) {
	scope, err := scopeOf(req.Msg)
	if err != nil {
		return nil, err
	}
	if err := given("from", req.Msg.GetFrom()); err != nil {
		return nil, err
	}
	if err := given("to", req.Msg.GetTo()); err != nil {
		return nil, err
	}
	shard, err := s.cluster.MoveShard(ctx, scope, int(req.Msg.GetNumber()), req.Msg.GetFrom(), req.Msg.GetTo())
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&felixv1.ShardMoveResponse{Shard: shardMessage(&shard)}), nil
}

// ShardPrefer implements the method of the schema.
func (s clusterService) ShardPrefer(ctx context.Context, req *connect.Request[felixv1.ShardPreferRequest]) (*connect.Response[felixv1.ShardPreferResponse], error) {
	scope, err := scopeOf(req.Msg)
	if err != nil {
		return nil, err
	}
	if err := given("node", req.Msg.GetNode()); err != nil {
		return nil, err
	}
	shard, err := s.cluster.PreferOwner(ctx, scope, int(req.Msg.GetNumber()), req.Msg.GetNode())
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&felixv1.ShardPreferResponse{Shard: shardMessage(&shard)}), nil
}

// Topology implements the method of the schema.
func (s clusterService) Topology(ctx context.Context, req *connect.Request[felixv1.TopologyRequest]) (*connect.Response[felixv1.TopologyResponse], error) {
	scope, err := scopeOf(req.Msg)
	if err != nil {
		return nil, err
	}
	t, err := s.cluster.Topology(ctx, scope)
	if err != nil {
		return nil, err
	}
	out := &felixv1.TopologyResponse{Tenant: t.Tenant, Namespace: t.Namespace, Cache: t.Cache, Shards: make([]*felixv1.ShardOwner, len(t.Shards))}
	for i, o := range t.Shards {
		out.Shards[i] = &felixv1.ShardOwner{Number: int32(o.Number), FirstSlot: int32(o.FirstSlot), LastSlot: int32(o.LastSlot),
			Owner: o.Owner, HttpAddr: o.HTTPAddr, RespAddr: o.RESPAddr, Nodes: o.Nodes}
	}
	return connect.NewResponse(out), nil
}

// FeatureList implements the method of the schema.
func (s clusterService) FeatureList(ctx context.Context, _ *connect.Request[felixv1.FeatureListRequest]) (*connect.Response[felixv1.FeatureListResponse], error) {
	features, err := s.cluster.Features(ctx)
	if err != nil {
		return nil, err
	}
	out := &felixv1.FeatureListResponse{Features: make([]*felixv1.Feature, len(features))}
	for i := range features {
		out.Features[i] = featureMessage(&features[i])
	}
	return connect.NewResponse(out), nil
}

// FeatureFinalize implements the method of the schema.
func (s clusterService) FeatureFinalize(ctx context.Context, req *connect.Request[felixv1.FeatureFinalizeRequest]) (*connect.Response[felixv1.FeatureFinalizeResponse], error) {
	if req.Msg.GetName() == "" {
		return nil, felix.Errorf(felix.InvalidArgument, "the name of the feature is missing")
	}
	feature, err := s.cluster.FinalizeFeature(ctx, req.Msg.GetName())
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&felixv1.FeatureFinalizeResponse{Feature: featureMessage(&feature)}), nil
}

// given refuses a node id that was left out.
func given(field string, node uint64) error {
	if node == 0 {
		return felix.Errorf(felix.InvalidArgument, "%s is missing: give the id of a node, from 1", field)
	}
	return nil
}

func nodeMessage(n *felix.NodeInfo) *felixv1.Node {
	return &felixv1.Node{
		Id: n.ID, State: string(n.State), Up: n.Up, Here: n.Here, StoreId: n.StoreID, Version: n.Version, Features: n.Features,
		PeerAddr: n.PeerAddr, HttpAddr: n.HTTPAddr, RespAddr: n.RESPAddr,
		ClockOffsetMillis: n.ClockOffset.Milliseconds(), Ineligible: n.Ineligible, Waiting: n.Waiting,
		Replicas: int32(n.Replicas), Owned: int32(n.Owned),
	}
}

func shardMessage(s *felix.ShardInfo) *felixv1.Shard {
	m := &felixv1.Shard{
		Tenant: s.Tenant, Namespace: s.Namespace, Cache: s.Cache, Meta: s.Meta, Number: int32(s.Number), Id: s.ID,
		Owner: s.Owner, Preferred: s.Preferred, Term: s.Term, Commit: s.Commit, Replicas: make([]*felixv1.Replica, len(s.Replicas)),
	}
	for i, r := range s.Replicas {
		m.Replicas[i] = &felixv1.Replica{Node: r.Node, RaftId: r.RaftID, Want: string(r.Want), Have: string(r.Have),
			Match: r.Match, Lag: r.Lag, Active: r.Active, Differs: r.Differs}
		if r.Snapshot != nil {
			m.Replicas[i].SnapshotSentBytes = &r.Snapshot.SentBytes
			m.Replicas[i].SnapshotEstimateBytes = &r.Snapshot.EstimateBytes
		}
	}
	return m
}

func featureMessage(f *felix.FeatureInfo) *felixv1.Feature {
	return &felixv1.Feature{Name: f.Name, Summary: f.Summary, Finalized: f.Finalized, FinalizedAtMillis: f.FinalizedAtMillis, Lacking: f.Lacking}
}
