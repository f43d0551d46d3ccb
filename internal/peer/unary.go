package peer

import (
	"context"

	"connectrpc.com/connect"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/peer/peerv1"
	"github.com/felix-go/felix/internal/peer/peerv1/peerv1connect"
)

// Caller asks the broker at an address, whoever it is: what has to be asked before
// there is a cluster. Errors are those of the broker that was asked (a
// *felix.Error or a *Refusal), or unavailable.
type Caller struct {
	n    *Network
	addr string
}

// Caller makes one; it costs nothing until it is used.
func (n *Network) Caller(addr string) *Caller { return &Caller{n: n, addr: addr} }

// ask makes one call on a connection of its own.
func ask[Req, Res any](ctx context.Context, n *Network, node uint64, addr string, req *Req,
	method func(peerv1connect.PeerServiceClient, context.Context, *connect.Request[Req]) (*connect.Response[Res], error)) (*Res, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(n.ctx, cancel)()
	line := n.line(ctx, node, addr)
	defer line.close(errLineClosed)
	res, err := method(line.client, line.ctx, connect.NewRequest(req))
	if err != nil {
		return nil, localError(err)
	}
	return res.Msg, nil
}

// Probe asks who the broker is.
func (c *Caller) Probe(ctx context.Context) (ProbeInfo, error) {
	r, err := ask(ctx, c.n, 0, c.addr, &peerv1.ProbeRequest{}, peerv1connect.PeerServiceClient.Probe)
	if err != nil {
		return ProbeInfo{}, err
	}
	return ProbeInfo{Node: r.GetNode(), StoreID: r.GetStoreId(), ClusterID: r.GetClusterId(), Formed: r.GetFormed(), Digest: r.GetDigest()}, nil
}

// Adopt asks the broker to become a founder.
func (c *Caller) Adopt(ctx context.Context, a Adoption) error {
	_, err := ask(ctx, c.n, 0, c.addr, &peerv1.AdoptRequest{ClusterId: a.ClusterID, Founders: membersOf(a.Founders)},
		peerv1connect.PeerServiceClient.Adopt)
	return err
}

// Form tells the broker that all founders have adopted the cluster.
func (c *Caller) Form(ctx context.Context, clusterID string) error {
	_, err := ask(ctx, c.n, 0, c.addr, &peerv1.FormRequest{ClusterId: clusterID}, peerv1connect.PeerServiceClient.Form)
	return err
}

// Join asks the broker to take another one into its cluster.
func (c *Caller) Join(ctx context.Context, j JoinRequest) (JoinReply, error) {
	r, err := ask(ctx, c.n, 0, c.addr, &peerv1.JoinRequest{Node: j.Node, StoreId: j.StoreID, PeerAddr: j.PeerAddr,
		HttpAddr: j.HTTPAddr, RespAddr: j.RESPAddr, Version: j.Version, Features: j.Features}, peerv1connect.PeerServiceClient.Join)
	if err != nil {
		return JoinReply{}, err
	}
	return JoinReply{ClusterID: r.GetClusterId(), MetaRaftID: r.GetMetaRaftId(), Nodes: peersOf(r.GetNodes())}, nil
}

// Status asks a peer about its shards.
func (n *Network) Status(ctx context.Context, node uint64) (*peerv1.StatusResponse, error) {
	l := n.link(node)
	if l == nil {
		return nil, felix.Errorf(felix.Unavailable, "node %d is no peer", node)
	}
	return ask(ctx, n, node, l.target().Addr, &peerv1.StatusRequest{ClusterId: n.o.Handler.Self().ClusterID},
		peerv1connect.PeerServiceClient.Status)
}

// AwaitMeta waits until a peer has acted on the metadata up to index.
func (n *Network) AwaitMeta(ctx context.Context, node, index uint64) error {
	l := n.link(node)
	if l == nil {
		return felix.Errorf(felix.Unavailable, "node %d is no peer", node)
	}
	_, err := ask(ctx, n, node, l.target().Addr, &peerv1.AwaitMetaRequest{ClusterId: n.o.Handler.Self().ClusterID, Index: index},
		peerv1connect.PeerServiceClient.AwaitMeta)
	return err
}

// MaxCompared is how many replicas a question of Compare may be about, whatever
// there is to tell of each.
const MaxCompared = 256

// Compare asks a peer by what its replicas of the same shards are compared.
func (n *Network) Compare(ctx context.Context, node uint64, replicas []*peerv1.ReplicaHashes) ([]*peerv1.ReplicaHashes, error) {
	l := n.link(node)
	if l == nil {
		return nil, felix.Errorf(felix.Unavailable, "node %d is no peer", node)
	}
	r, err := ask(ctx, n, node, l.target().Addr, &peerv1.CompareRequest{ClusterId: n.o.Handler.Self().ClusterID, Replicas: replicas},
		peerv1connect.PeerServiceClient.Compare)
	return r.GetReplicas(), err
}

func membersOf(peers []Peer) []*peerv1.Member {
	var all []*peerv1.Member
	for _, p := range peers {
		all = append(all, &peerv1.Member{Node: p.Node, StoreId: p.StoreID, PeerAddr: p.Addr})
	}
	return all
}

func peersOf(members []*peerv1.Member) []Peer {
	var all []Peer
	for _, m := range members {
		all = append(all, Peer{Node: m.GetNode(), StoreID: m.GetStoreId(), Addr: m.GetPeerAddr()})
	}
	return all
}

// answer runs what a unary call asks for.
func answer[Res any](s *service, f func() (*Res, error)) (*connect.Response[Res], error) {
	if !s.n.begin() {
		return nil, errStopping
	}
	defer s.n.running.Done()
	var res *Res
	err := outside(func() (err error) {
		res, err = f()
		return err
	})
	if err != nil {
		return nil, wireError(err)
	}
	return connect.NewResponse(res), nil
}

// Probe implements the question.
func (s *service) Probe(ctx context.Context, _ *connect.Request[peerv1.ProbeRequest]) (*connect.Response[peerv1.ProbeResponse], error) {
	return answer(s, func() (*peerv1.ProbeResponse, error) {
		p, err := s.n.o.Handler.Probe(ctx)
		return &peerv1.ProbeResponse{Node: p.Node, StoreId: p.StoreID, ClusterId: p.ClusterID, Formed: p.Formed, Digest: p.Digest}, err
	})
}

// Adopt implements the call.
func (s *service) Adopt(ctx context.Context, r *connect.Request[peerv1.AdoptRequest]) (*connect.Response[peerv1.AdoptResponse], error) {
	return answer(s, func() (*peerv1.AdoptResponse, error) {
		a := Adoption{ClusterID: r.Msg.GetClusterId(), Founders: peersOf(r.Msg.GetFounders())}
		return &peerv1.AdoptResponse{}, s.n.o.Handler.Adopt(ctx, a)
	})
}

// Form implements the call.
func (s *service) Form(ctx context.Context, r *connect.Request[peerv1.FormRequest]) (*connect.Response[peerv1.FormResponse], error) {
	return answer(s, func() (*peerv1.FormResponse, error) {
		return &peerv1.FormResponse{}, s.n.o.Handler.Form(ctx, r.Msg.GetClusterId())
	})
}

// Join implements the call.
func (s *service) Join(ctx context.Context, r *connect.Request[peerv1.JoinRequest]) (*connect.Response[peerv1.JoinResponse], error) {
	return answer(s, func() (*peerv1.JoinResponse, error) {
		j := JoinRequest{Node: r.Msg.GetNode(), StoreID: r.Msg.GetStoreId(), PeerAddr: r.Msg.GetPeerAddr(), HTTPAddr: r.Msg.GetHttpAddr(),
			RESPAddr: r.Msg.GetRespAddr(), Version: r.Msg.GetVersion(), Features: r.Msg.GetFeatures()}
		reply, err := s.n.o.Handler.Join(ctx, j)
		return &peerv1.JoinResponse{ClusterId: reply.ClusterID, MetaRaftId: reply.MetaRaftID, Nodes: membersOf(reply.Nodes)}, err
	})
}

// member refuses the questions of brokers of other clusters.
func (s *service) member(clusterID string) error {
	if own := s.n.o.Handler.Self().ClusterID; clusterID != own || own == "" {
		return refusal(ReasonCluster, "the broker is of cluster %q, not of %q", own, clusterID)
	}
	return nil
}

// Status implements the question.
func (s *service) Status(ctx context.Context, r *connect.Request[peerv1.StatusRequest]) (*connect.Response[peerv1.StatusResponse], error) {
	return answer(s, func() (*peerv1.StatusResponse, error) {
		if err := s.member(r.Msg.GetClusterId()); err != nil {
			return nil, err
		}
		return s.n.o.Handler.Status(ctx)
	})
}

// AwaitMeta implements the question.
func (s *service) AwaitMeta(ctx context.Context, r *connect.Request[peerv1.AwaitMetaRequest]) (*connect.Response[peerv1.AwaitMetaResponse], error) {
	return answer(s, func() (*peerv1.AwaitMetaResponse, error) {
		if err := s.member(r.Msg.GetClusterId()); err != nil {
			return nil, err
		}
		return &peerv1.AwaitMetaResponse{}, s.n.o.Handler.AwaitMeta(ctx, r.Msg.GetIndex())
	})
}

// Compare implements the question.
func (s *service) Compare(ctx context.Context, r *connect.Request[peerv1.CompareRequest]) (*connect.Response[peerv1.CompareResponse], error) {
	return answer(s, func() (*peerv1.CompareResponse, error) {
		if err := s.member(r.Msg.GetClusterId()); err != nil {
			return nil, err
		}
		replicas, err := s.n.o.Handler.Compare(ctx, r.Msg.GetReplicas())
		return &peerv1.CompareResponse{Replicas: replicas}, err
	})
}
