package felix

import (
	"context"
	"time"
)

// Cluster is what a broker offers to those who operate the cluster: which
// brokers there are, where the shards are, and how to change both while
// everything runs. Any broker answers for the whole cluster. Every error is an
// *Error; changes are begun when a call returns, and go on by themselves, also
// if the broker that was asked stops.
type Cluster interface {
	// Nodes lists the brokers in the order of their ids, those that were removed
	// included.
	Nodes(ctx context.Context) ([]NodeInfo, error)
	// DrainNode moves every replica and every ownership away from a node, but for
	// its copy of the metadata; with drain false it may have some again. A node
	// that is drained stays a member. It is node_not_found where there is none.
	DrainNode(ctx context.Context, id uint64, drain bool) (NodeInfo, error)
	// RemoveNode drains a node and then takes it out of the cluster for ever: its
	// id is never used again, and its data directory is refused from then on.
	// NodeInfo.Waiting says what is left to do. Removing a node that is removed
	// succeeds.
	RemoveNode(ctx context.Context, id uint64) (NodeInfo, error)
	// Shards lists the shards of a cache in their order; a nil scope means those of
	// all caches, the metadata's shard first.
	Shards(ctx context.Context, scope *Scope) ([]ShardInfo, error)
	// MoveShard gives the shard's replica on node from to node to, which has none
	// of it yet.
	MoveShard(ctx context.Context, scope Scope, number int, from, to uint64) (ShardInfo, error)
	// PreferOwner says which of the nodes with a replica should own the shard; the
	// ownership is handed over to it as soon as it can take it.
	PreferOwner(ctx context.Context, scope Scope, number int, node uint64) (ShardInfo, error)
	// Topology says who owns which part of a cache, for clients that go there
	// directly. It is a belief: a broker that does not own a key passes requests
	// on.
	Topology(ctx context.Context, scope Scope) (TopologyInfo, error)
	// Features lists the features that this build knows, and those that are
	// finalized, by name.
	Features(ctx context.Context) ([]FeatureInfo, error)
	// FinalizeFeature turns a feature on for ever. It is refused as
	// invalid_argument while a broker's build lacks the feature, and is
	// feature_not_found where this build does not know it. Finalizing it again
	// succeeds.
	FinalizeFeature(ctx context.Context, name string) (FeatureInfo, error)
}

// NodeState is what an operator wants of a node.
type NodeState string

// The states of a node.
const (
	// NodeActive has replicas and owns shards.
	NodeActive NodeState = "active"
	// NodeDraining gives its replicas away, and gets none.
	NodeDraining NodeState = "draining"
	// NodeRemoving gives away its replicas, then its copy of the metadata, and then
	// becomes NodeRemoved.
	NodeRemoving NodeState = "removing"
	// NodeRemoved was a node. It stays in the list, so that its id and its
	// directory are refused.
	NodeRemoved NodeState = "removed"
)

// NodeInfo is a broker as the cluster knows it.
type NodeInfo struct {
	ID       uint64
	State    NodeState
	Up       bool   // whether the broker that answers reaches it, or is it
	Here     bool   // whether it is the broker that answers
	StoreID  string // the identity of its data directory
	Version  string // of its build
	Features []string
	// Where its doors are, as it advertises them.
	PeerAddr, HTTPAddr, RESPAddr string
	// ClockOffset is how far its clock is ahead of that of the broker that answers.
	ClockOffset time.Duration
	// Ineligible says, in one sentence, why it does not own shards although it is
	// up; empty if it may.
	Ineligible string
	// Waiting says, in one sentence, what a drain or a removal waits for; empty if
	// for nothing.
	Waiting string
	// How many replicas it shall have, and how many shards it is believed to own,
	// the metadata's included.
	Replicas, Owned int
}

// ReplicaRole is what a replica is, or shall be, in its shard.
type ReplicaRole string

// The roles of a replica. The empty one is a replica that the shard does not
// know yet.
const (
	// ReplicaLearner gets everything and has no vote.
	ReplicaLearner ReplicaRole = "learner"
	// ReplicaVoter counts for majorities.
	ReplicaVoter ReplicaRole = "voter"
	// ReplicaGone is one that shall not be any more.
	ReplicaGone ReplicaRole = "gone"
)

// ShardInfo is a shard, as its owner knows it; where no owner answers, as the
// metadata knows it: then Owner is 0.
type ShardInfo struct {
	Scope            // empty for the metadata's shard
	Meta      bool   // whether it is the metadata's shard
	Number    int    // in its cache, from 0
	ID        uint64 // in the cluster
	Owner     uint64 // the node that owns it; 0 is not known
	Preferred uint64 // the node that should
	Term      uint64 // how often, at most, the owner has changed
	Commit    uint64 // index of the last log entry that a majority has
	Replicas  []ReplicaInfo
}

// ReplicaInfo is one replica of a shard.
type ReplicaInfo struct {
	Node   uint64
	RaftID uint64 // in the shard; never used again
	Want   ReplicaRole
	Have   ReplicaRole
	// The rest is what the shard's owner knows.
	Match    uint64        // index of the last log entry that it has
	Lag      uint64        // how many committed entries it lacks
	Active   bool          // whether it was heard of lately
	Snapshot *SnapshotInfo // the snapshot on its way to it, or nil
	Differs  bool          // whether it is known to differ from the owner's, which must not be
}

// SnapshotInfo is how far a snapshot is.
type SnapshotInfo struct {
	SentBytes     int64
	EstimateBytes int64 // of all of it; it may turn out larger
}

// TopologyInfo says where the keys of a cache are: the slot of a key is the
// CRC16 of it, or of its {tag}, modulo SlotCount.
type TopologyInfo struct {
	Scope
	Shards []ShardOwner // in the order of their slots, which they cover without a gap
}

// ShardOwner is where one shard is.
type ShardOwner struct {
	Number              int
	FirstSlot, LastSlot int // both included
	Owner               uint64
	// The owner's doors; empty if the owner is not known.
	HTTPAddr, RESPAddr string
	Nodes              []uint64 // with a replica that has a vote
}

// FeatureInfo is a feature of the cluster: something that brokers do only once
// all can, because the operator has said so.
type FeatureInfo struct {
	Name              string
	Summary           string // in one sentence; empty if this build does not know it
	Finalized         bool
	FinalizedAtMillis int64    // Unix time; 0 if it is not
	Lacking           []uint64 // nodes whose build does not have it
}
