package broker

import (
	"context"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/peer"
)

// joinCluster makes the broker a member of the cluster of Options.Cluster.Join.
func (b *Broker) joinCluster(context.Context) error {
	return felix.Errorf(felix.Unavailable, "joining is not there yet")
}

// comeBack completes what a crash may have cut short of a broker that is a member
// already.
func (b *Broker) comeBack(context.Context) error { return nil }

// admitNode takes another broker into the cluster.
func (b *Broker) admitNode(context.Context, peer.JoinRequest) (peer.JoinReply, error) {
	return peer.JoinReply{}, felix.Errorf(felix.Unavailable, "joining is not there yet")
}
