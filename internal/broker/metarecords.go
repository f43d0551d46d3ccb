package broker

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/peer"
	"github.com/felix-go/felix/internal/placement"
)

// Keys of the meta shard. All but the counter hold JSON with a format of its
// own (docs/format.md).
const (
	clusterKey    = "cluster"    // a clusterMeta; written last when a cluster begins
	nodePrefix    = "node/"      // + id, in ten digits: a nodeMeta
	cachePrefix   = "cache/"     // + tenant/namespace/name: a cacheMeta
	featurePrefix = "feature/"   // + name: a featureMeta; there is none of what is not finalized
	nextShardKey  = "next-shard" // a counter: the ids given out so far, above metaShard
)

// The newest forms of the records that this build reads, and the ones that it
// writes.
const (
	clusterMetaFormat = 1
	nodeMetaFormat    = 1
	cacheMetaFormat   = 2
	featureMetaFormat = 1
)

// leaseFreeReads is the feature whose finalizing refuses a build that cannot
// confirm reads by fences.
const leaseFreeReads = "lease_free_reads"

// replicaHashes is the feature whose finalizing refuses a build that cannot read an
// applied record with a chain. Before, chains are not stored.
const replicaHashes = "replica_hashes"

// idempotencyIDs is the feature whose finalizing refuses a build that cannot read
// the records of ids. Before, operations with ids are refused.
const idempotencyIDs = "idempotency_ids"

// supportedFeatures are those that this build can live with when they are
// finalized.
func supportedFeatures() []string { return []string{idempotencyIDs, leaseFreeReads, replicaHashes} }

// clusterMeta is the cluster: its identity, and where the meta shard itself is.
type clusterMeta struct {
	Format          int             `json:"format"`
	ClusterID       string          `json:"cluster_id"`
	CreatedAtMillis int64           `json:"created_at_millis"`
	Shard           placement.Shard `json:"shard"`
}

// nodeMeta is a broker of the cluster, or one that was.
type nodeMeta struct {
	Format   int      `json:"format"`
	ID       uint64   `json:"id"`
	StoreID  string   `json:"store_id"`
	PeerAddr string   `json:"peer_addr,omitempty"`
	HTTPAddr string   `json:"http_addr,omitempty"`
	RESPAddr string   `json:"resp_addr,omitempty"`
	Version  string   `json:"version,omitempty"`
	Features []string `json:"features"` // what its build supports
	State    string   `json:"state"`
	Instance string   `json:"instance,omitempty"` // the process, random
	Starts   uint64   `json:"starts"`             // of its directory
}

// States of a node. One that was removed stays as a tombstone for ever: its id
// must not come back.
const (
	nodeActive   = "active"
	nodeDraining = "draining"
	nodeRemoving = "removing"
	nodeRemoved  = "removed"
)

// member is the node as those who come are checked by.
func (n *nodeMeta) member() peer.Member {
	return peer.Member{StoreID: n.StoreID, Removed: n.State == nodeRemoved, Last: peer.Start{Starts: n.Starts, Instance: n.Instance}}
}

// cacheMeta is a cache.
type cacheMeta struct {
	Format          int               `json:"format"` // as it was read
	Tenant          string            `json:"tenant"`
	Namespace       string            `json:"namespace"`
	Name            string            `json:"name"`
	Replication     int               `json:"replication"` // the target
	Consistency     string            `json:"consistency"`
	CreatedAtMillis int64             `json:"created_at_millis"`
	MaxIDs          int64             `json:"max_ids,omitempty"` // 0 is the default; another one needs idempotencyIDs
	Shards          []placement.Shard `json:"shards"`            // by shard number

	version uint64 // of the record it was read from
}

// featureMeta is a feature that was finalized, for good.
type featureMeta struct {
	Format            int   `json:"format"`
	FinalizedAtMillis int64 `json:"finalized_at_millis"`
}

func (m *cacheMeta) scope() felix.Scope {
	return felix.Scope{Tenant: m.Tenant, Namespace: m.Namespace, Cache: m.Name}
}

// shardIDs are the shards' ids, by shard number.
func (m *cacheMeta) shardIDs() []uint64 {
	ids := make([]uint64, 0, len(m.Shards))
	for i := range m.Shards {
		ids = append(ids, m.Shards[i].ID)
	}
	return ids
}

func cacheKey(s felix.Scope) []byte { return []byte(cachePrefix + s.String()) }

// nodeKey orders nodes by their ids.
func nodeKey(id uint64) []byte { return fmt.Appendf(nil, "%s%010d", nodePrefix, id) }

// newest is the record in the format that this build writes.
func (m *cacheMeta) newest() *cacheMeta {
	c := *m
	c.Format = cacheMetaFormat
	return &c
}

// readMeta reads a record of the metadata of which this build knows formats up
// to known.
func readMeta(key string, raw []byte, known int, into any) error {
	var head struct {
		Format int `json:"format"`
	}
	err := json.Unmarshal(raw, &head)
	if err == nil && head.Format > known {
		return fmt.Errorf("the metadata has %q in format %d, this build knows %d: use the newer build", key, head.Format, known)
	}
	if err == nil && head.Format < 1 {
		err = errors.New("it has no format")
	}
	if err == nil {
		err = json.Unmarshal(raw, into)
	}
	if err != nil {
		return corruptMeta(key, err)
	}
	return nil
}

func corruptMeta(key string, err error) error {
	return fmt.Errorf("the metadata has %q, which is corrupt: %w", key, err)
}

// parseClusterMeta reads the record of clusterKey.
func parseClusterMeta(raw []byte) (*clusterMeta, error) {
	m := &clusterMeta{}
	if err := readMeta(clusterKey, raw, clusterMetaFormat, m); err != nil {
		return nil, err
	}
	err := m.Shard.Check()
	if err == nil && (m.ClusterID == "" || m.Shard.ID != metaShard) {
		err = errors.New("it is not one cluster")
	}
	if err != nil {
		return nil, corruptMeta(clusterKey, err)
	}
	return m, nil
}

// parseNodeMeta reads the record of a node's key.
func parseNodeMeta(key string, raw []byte) (*nodeMeta, error) {
	m := &nodeMeta{}
	if err := readMeta(key, raw, nodeMetaFormat, m); err != nil {
		return nil, err
	}
	states := []string{nodeActive, nodeDraining, nodeRemoving, nodeRemoved}
	if key != string(nodeKey(m.ID)) || m.ID == 0 || m.ID > maxNodeID || m.StoreID == "" || !slices.Contains(states, m.State) {
		return nil, corruptMeta(key, fmt.Errorf("it is node %d with store id %q, %q", m.ID, m.StoreID, m.State))
	}
	return m, nil
}

// parseCacheMeta reads the record of a cache's key. In format 1 there was one
// broker, and so no placement but this.
func parseCacheMeta(key string, raw []byte, version uint64) (*cacheMeta, error) {
	m := &struct {
		cacheMeta
		ShardIDs []uint64 `json:"shard_ids"` // format 1
	}{}
	if err := readMeta(key, raw, cacheMetaFormat, m); err != nil {
		return nil, err
	}
	if m.Format == 1 {
		m.Shards = nil
		for _, id := range m.ShardIDs {
			m.Shards = append(m.Shards, placement.Sole(id, firstNode))
		}
	}
	m.version = version
	if err := m.check(key); err != nil {
		return nil, corruptMeta(key, err)
	}
	return &m.cacheMeta, nil
}

// check says what cannot be in the record of a cache.
func (m *cacheMeta) check(key string) error {
	if err := m.scope().Validate(); err != nil {
		return err
	}
	if key != string(cacheKey(m.scope())) {
		return fmt.Errorf("it is the record of cache %s", m.scope())
	}
	if _, err := felix.ParseConsistency(m.Consistency); err != nil {
		return err
	}
	if len(m.Shards) < 1 || len(m.Shards) > felix.MaxShardsPerCache || m.Replication < 1 || m.Replication > felix.MaxReplication {
		return fmt.Errorf("it has %d shards, replication %d", len(m.Shards), m.Replication)
	}
	if m.MaxIDs < 0 || m.MaxIDs > felix.MaxIDsPerCache {
		return fmt.Errorf("it may have %d ids", m.MaxIDs)
	}
	seen := map[uint64]bool{metaShard: true}
	for i := range m.Shards {
		s := &m.Shards[i]
		if seen[s.ID] {
			return fmt.Errorf("shard %d is not the cache's alone", s.ID)
		}
		seen[s.ID] = true
		if err := s.Check(); err != nil {
			return err
		}
	}
	return nil
}
