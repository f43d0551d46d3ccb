package broker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/peer"
	"github.com/felix-go/felix/internal/record"
)

const (
	// joinTimeout bounds one attempt to join: a member answers when the owner of
	// the metadata has given the new broker its replica of it. Attempts can be
	// repeated.
	joinTimeout = 5 * time.Second
	// joinPoll is how often that member looks.
	joinPoll = 50 * time.Millisecond
)

// joinCluster makes the broker a member of the cluster of Options.Cluster.Join.
// What it is told is on disk before it acts on it: first that it is a member, then
// which replica of the metadata it has, which then waits for a snapshot.
func (b *Broker) joinCluster(ctx context.Context) error {
	reply, err := b.askToJoin(ctx, b.opts.Cluster.Join)
	if err != nil {
		return err
	}
	err = b.dir.change(func(id *identity) error {
		id.ClusterID, id.NodeID, id.Formed, id.Seeds = reply.ClusterID, b.node, true, nil
		for _, p := range reply.Nodes {
			if p.Node != b.node {
				id.Seeds = append(id.Seeds, p.Addr)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	b.opts.Logger.Info("this broker is a member of the cluster", "cluster_id", reply.ClusterID, "node_id", b.node)
	b.opts.Cluster.OnStep("join-identity")
	return b.awaitMetadata(reply)
}

// comeBack goes on where a crash has stopped a broker that joined: until it has
// metadata of its own, others have to tell it who the members are.
func (b *Broker) comeBack(ctx context.Context) error {
	id := b.dir.id()
	if len(id.Founders) > 0 {
		return nil
	}
	_, has, err := b.db.Applied(metaShard)
	if err != nil || has {
		return err
	}
	_, waits, err := b.db.Replica(metaShard)
	if err != nil || id.Bootstrapped && !waits {
		return err // it was there, and openShards says that it is not any more
	}
	if b.links == nil {
		return errors.New(needsListener)
	}
	seeds := slices.Concat(id.Seeds, b.opts.Cluster.Join)
	slices.Sort(seeds)
	reply, err := b.askToJoin(ctx, slices.Compact(seeds))
	if err != nil {
		return err
	}
	return b.awaitMetadata(reply)
}

// awaitMetadata prepares the broker's replica of the metadata, which begins with
// what the others send it. That there is one is noted apart, so that one that was
// lost is not taken for one that never was: it may have voted.
func (b *Broker) awaitMetadata(reply peer.JoinReply) error {
	mine, known, err := b.db.Replica(metaShard)
	if err != nil {
		return err
	}
	if known && mine.RaftID != reply.MetaRaftID { // which the cluster has given up
		if err := b.dropData([]uint64{metaShard}); err != nil {
			return err
		}
	}
	if !known || mine.RaftID != reply.MetaRaftID {
		err := b.db.SetReplicas(map[uint64]record.Replica{metaShard: {RaftID: reply.MetaRaftID, Consistency: byte(felix.Quorum)}})
		if err != nil {
			return err
		}
		b.opts.Cluster.OnStep("join-replica")
	}
	b.setPeers(reply.Nodes)
	return b.dir.change(func(id *identity) error { id.Bootstrapped = true; return nil })
}

// askToJoin asks the brokers at the addresses in turn until one of them has taken
// this one in, or says that the cluster never will.
func (b *Broker) askToJoin(ctx context.Context, seeds []string) (peer.JoinReply, error) {
	own := b.dir.id()
	o := &b.opts.Cluster
	request := peer.JoinRequest{Node: b.node, StoreID: own.StoreID, PeerAddr: b.links.addr, HTTPAddr: o.Advertise.HTTP,
		RESPAddr: o.Advertise.RESP, Version: o.Version, Features: supportedFeatures()}
	pause, told := minEntryPause, time.Duration(0)
	for {
		var waits []string
		for _, addr := range seeds {
			reply, err := b.joinAt(ctx, addr, request)
			switch {
			case err == nil && (own.ClusterID == "" || own.ClusterID == reply.ClusterID):
				return reply, nil
			case err == nil:
				return reply, fmt.Errorf("%s is of the cluster %s, and data directory %s of the cluster %s: check the addresses", addr, reply.ClusterID, b.opts.Dir, own.ClusterID)
			case isFinal(err):
				return reply, fmt.Errorf("the broker at %s does not let this one join: %w", addr, err)
			}
			waits = append(waits, fmt.Sprintf("%s: %v", addr, err))
		}
		if err := b.pauseEntry(ctx, &pause, &told, "waiting to join the cluster", waits); err != nil {
			return peer.JoinReply{}, err
		}
	}
}

func (b *Broker) joinAt(ctx context.Context, addr string, request peer.JoinRequest) (peer.JoinReply, error) {
	ctx, cancel := context.WithTimeout(ctx, joinTimeout)
	defer cancel()
	reply, err := b.caller(addr).Join(ctx, request)
	if err == nil && (reply.ClusterID == "" || reply.MetaRaftID == 0) {
		err = felix.Errorf(felix.Internal, "it does not say which cluster it is of")
	}
	return reply, err
}

// isFinal says whether asking again is of no use.
func isFinal(err error) bool {
	var refused *peer.Refusal
	var e *felix.Error
	return errors.As(err, &refused) || errors.As(err, &e) && e.Code == felix.InvalidArgument
}

// errNotInService keeps brokers that want to join waiting.
var errNotInService = felix.Errorf(felix.Unavailable, "the broker does not have the cluster's metadata yet")

// admitNode takes another broker into the cluster, and may be asked again: it
// records the broker, and answers when the owner of the metadata has given it a
// replica of that.
func (b *Broker) admitNode(ctx context.Context, j peer.JoinRequest) (peer.JoinReply, error) {
	if b.view().cluster == nil {
		return peer.JoinReply{}, errNotInService
	}
	if why := cmp.Or(cannotJoin(&j), misleads(j.Node, j.PeerAddr, b.links.addr)); why != nil {
		return peer.JoinReply{}, why
	}
	v, err := b.confirmedView(ctx)
	if err == nil {
		err = v.admits(&j)
	}
	if err == nil {
		err = b.recordNode(ctx, v.nodes[j.Node], &j)
	}
	if err != nil {
		return peer.JoinReply{}, err
	}
	poll := time.NewTicker(joinPoll)
	defer poll.Stop()
	for {
		if v, err = b.confirmedView(ctx); err != nil {
			return peer.JoinReply{}, err
		}
		if err := v.admits(&j); err != nil { // recorded by somebody else, or removed again
			return peer.JoinReply{}, err
		}
		if raft := v.cluster.Shard.ReplicaOn(j.Node); raft != 0 {
			return peer.JoinReply{ClusterID: v.cluster.ClusterID, MetaRaftID: raft, Nodes: v.peers()}, nil
		}
		select {
		case <-poll.C:
		case <-ctx.Done():
			return peer.JoinReply{}, felix.Errorf(felix.Unavailable, "node %d is recorded; the owner of the metadata has not given it a replica yet", j.Node)
		}
	}
}

// cannotJoin says what is wrong with a request.
func cannotJoin(j *peer.JoinRequest) error {
	switch {
	case j.Node == 0 || j.Node > maxNodeID:
		return felix.Errorf(felix.InvalidArgument, "node id %d: it is 1 to %d", j.Node, uint64(maxNodeID))
	case j.StoreID == "":
		return felix.Errorf(felix.InvalidArgument, "node %d has no store id", j.Node)
	case !isAddress(j.PeerAddr):
		return felix.Errorf(felix.InvalidArgument, "node %d tells others to reach it at %q: give it an --advertise-peer-addr", j.Node, j.PeerAddr)
	}
	return nil
}

// admits says why the cluster does not take a broker in.
func (v *view) admits(j *peer.JoinRequest) error {
	for _, name := range slices.Sorted(maps.Keys(v.features)) {
		if !slices.Contains(j.Features, name) {
			return &peer.Refusal{Reason: peer.ReasonFeature, Message: fmt.Sprintf(
				"the cluster has finalized %s, which felix %s of node %d does not have: start it with a newer build", name, j.Version, j.Node)}
		}
	}
	active := 0
	for id, n := range v.nodes {
		if n.StoreID == j.StoreID && id != j.Node {
			return &peer.Refusal{Reason: peer.ReasonStore, Message: fmt.Sprintf(
				"the data directory of node %d is that of node %d: start it with an empty one", j.Node, id)}
		}
		if n.State != nodeRemoved && id != j.Node {
			active++
		}
	}
	switch n := v.nodes[j.Node]; {
	case n == nil && active >= felix.MaxNodes:
		return felix.Errorf(felix.ResourceExhausted, "the cluster has %d brokers, and no more may join", active)
	case n == nil:
	case n.State == nodeRemoved || n.State == nodeRemoving:
		return &peer.Refusal{Reason: peer.ReasonRemoved, Message: fmt.Sprintf(
			"node %d was removed from this cluster; start it with an empty directory and a new --node-id", j.Node)}
	case n.StoreID != j.StoreID:
		return &peer.Refusal{Reason: peer.ReasonStore, Message: fmt.Sprintf(
			"node %d is known with another data directory: if it was lost or copied, run `felixctl node rm %d` and join under a new id", j.Node, j.Node)}
	}
	return nil
}

// recordNode sees to it that the metadata has the broker, and where it is. known
// is its record, if it has one.
func (b *Broker) recordNode(ctx context.Context, known *nodeMeta, j *peer.JoinRequest) error {
	moves := func(n *nodeMeta) bool {
		if n.StoreID != j.StoreID || n.PeerAddr == j.PeerAddr && n.HTTPAddr == j.HTTPAddr && n.RESPAddr == j.RESPAddr {
			return false
		}
		n.PeerAddr, n.HTTPAddr, n.RESPAddr = j.PeerAddr, j.HTTPAddr, j.RESPAddr
		return true
	}
	if known != nil {
		now := *known
		if !moves(&now) {
			return nil
		}
		return b.updateNode(ctx, j.Node, moves)
	}
	op, err := metaSet(nodeKey(j.Node), &nodeMeta{Format: nodeMetaFormat, ID: j.Node, StoreID: j.StoreID, PeerAddr: j.PeerAddr, HTTPAddr: j.HTTPAddr,
		RESPAddr: j.RESPAddr, Version: j.Version, Features: j.Features, State: nodeActive}, felix.IfAbsent, 0)
	if err != nil {
		return err
	}
	reply, err := b.metaDo(ctx, op)
	if err == nil && reply.Applied {
		b.opts.Logger.Info("a broker joins the cluster", "node", j.Node, "addr", j.PeerAddr)
		b.opts.Cluster.OnStep("join-recorded")
	}
	return err
}
