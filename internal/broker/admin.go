package broker

import (
	"context"

	"github.com/felix-go/felix/internal/peer/peerv1"
)

// clusterStatus tells of the broker's shards.
func (b *Broker) clusterStatus(context.Context) (*peerv1.StatusResponse, error) {
	return nil, errNoCluster
}
