package broker

import (
	"context"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/peer"
)

// enter makes the broker a member of a cluster, if it is none yet: of one of its
// own, of the one that it forms with others, or of the one that it joins.
func (b *Broker) enter(context.Context) error { return nil }

// errNoCluster is the answer to what only brokers of a cluster are asked.
var errNoCluster = felix.Errorf(felix.Unavailable, "this broker forms no cluster")

// probe says who the broker is.
func (b *Broker) probe(context.Context) (peer.ProbeInfo, error) {
	return peer.ProbeInfo{}, errNoCluster
}

// adopt makes a cluster's identity the broker's own.
func (b *Broker) adopt(context.Context, peer.Adoption) error { return errNoCluster }

// formed says that all founders have adopted the cluster.
func (b *Broker) formed(context.Context, string) error { return errNoCluster }
