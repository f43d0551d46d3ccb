package broker

import (
	"context"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/peer/peerv1"
)

// clusterStatus tells of the broker's shards.
func (b *Broker) clusterStatus(context.Context) (*peerv1.StatusResponse, error) {
	return nil, errNoCluster
}

// errNoCluster is the answer to what only brokers of a cluster are asked.
var errNoCluster = felix.Errorf(felix.Unavailable, "this broker forms no cluster")
