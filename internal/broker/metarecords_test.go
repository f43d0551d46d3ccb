package broker

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/placement"
)

// wholeCluster, wholeNode and wholeCache have everything that their records can
// have.
func wholeCluster() *clusterMeta {
	return &clusterMeta{Format: 1, ClusterID: "c1", CreatedAtMillis: 5, Shard: placement.Shard{ID: metaShard, NextRaft: 4, Initial: []uint64{1, 2}, Prefer: 2,
		Replicas: []placement.Replica{{Raft: 1, Node: 1, Want: placement.Gone, Have: placement.Learner}, {Raft: 2, Node: 2, Want: placement.Voter, Have: placement.Voter}, {Raft: 3, Node: 1, Want: placement.Learner}}}}
}

func wholeNode() *nodeMeta {
	return &nodeMeta{Format: 1, ID: 12, StoreID: "a1", PeerAddr: "h:1", HTTPAddr: "h:2", RESPAddr: "h:3", Version: "1.2",
		Features: []string{leaseFreeReads}, State: nodeDraining, Instance: "i", Starts: 9}
}

func wholeCache() *cacheMeta {
	return &cacheMeta{Format: 2, Tenant: "t", Namespace: "n", Name: "c", Replication: 3, Consistency: "leader", CreatedAtMillis: 7,
		Shards: []placement.Shard{placement.Sole(5, 3), placement.Sole(6, 4)}, version: 8}
}

func addJSON(t testing.TB, v *view, key string, m any) error {
	t.Helper()
	raw, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return v.add(key, raw, 8, newView())
}

// TestMetaRecords: what is written is read, and keys of the future are left
// alone.
func TestMetaRecords(t *testing.T) {
	t.Parallel()
	v := newView()
	for key, m := range map[string]any{clusterKey: wholeCluster(), string(nodeKey(12)): wholeNode(), "cache/t/n/c": wholeCache(),
		"feature/lease_free_reads": featureMeta{1, 3}, "policy/of/the/future": "?"} {
		if err := addJSON(t, v, key, m); err != nil {
			t.Error(err)
		}
	}
	want := newView()
	want.cluster, want.nodes[12], want.features[leaseFreeReads] = wholeCluster(), wholeNode(), true
	want.caches[wholeCache().scope()] = wholeCache()
	want.place(&shardRef{placement: &want.cluster.Shard})
	for i := range wholeCache().Shards {
		want.place(&shardRef{cache: wholeCache(), number: i, placement: &wholeCache().Shards[i]})
	}
	want.records = v.records
	if !reflect.DeepEqual(v, want) || len(v.records) != 4 {
		t.Errorf("the view is %+v", v)
	}
	if key := string(nodeKey(12)); key != "node/0000000012" {
		t.Errorf("the key of node 12 is %q", key)
	}
	if s := wholeCluster().Shard; s.ReplicaOn(1) != 3 || s.ReplicaOn(2) != 2 || s.ReplicaOn(3) != 0 {
		t.Errorf("%+v has replicas %d, %d and %d", s, s.ReplicaOn(1), s.ReplicaOn(2), s.ReplicaOn(3))
	}
}

// TestCacheMetaFormat1: in the old format a cache has its only replicas on
// node 1. It is written in the new one.
func TestCacheMetaFormat1(t *testing.T) {
	t.Parallel()
	m, err := parseCacheMeta("cache/t/n/c", []byte(`{"format":1,"tenant":"t","namespace":"n","name":"c","replication":2,"consistency":"quorum",`+
		`"created_at_millis":5,"shard_ids":[7,8]}`), 9)
	want := &cacheMeta{Format: 1, Tenant: "t", Namespace: "n", Name: "c", Replication: 2, Consistency: "quorum", CreatedAtMillis: 5,
		Shards: []placement.Shard{placement.Sole(7, 1), placement.Sole(8, 1)}, version: 9}
	if err != nil || !reflect.DeepEqual(m, want) {
		t.Fatalf("it is read as %+v, %v", m, err)
	}
	raw, err := json.Marshal(m.newest())
	const stored = `{"format":2,"tenant":"t","namespace":"n","name":"c","replication":2,"consistency":"quorum","created_at_millis":5,"shards":[` +
		`{"id":7,"next_raft":2,"initial":[1],"prefer":1,"replicas":[{"raft":1,"node":1,"want":"voter","have":"voter"}]},` +
		`{"id":8,"next_raft":2,"initial":[1],"prefer":1,"replicas":[{"raft":1,"node":1,"want":"voter","have":"voter"}]}]}`
	if err != nil || string(raw) != stored { // docs/format.md says this
		t.Errorf("it is written as %s, %v", raw, err)
	}
}

// TestMetaIsRefused: what is damaged, and what a newer build wrote.
func TestMetaIsRefused(t *testing.T) {
	t.Parallel()
	for _, v := range []struct{ key, raw, want string }{
		{clusterKey, `{"format":2}`, "use the newer build"},
		{"node/0000000001", `{"format":2}`, "use the newer build"},
		{"cache/t/n/c", `{"format":3,"shards":"?"}`, "use the newer build"},
		{"feature/lease_free_reads", `{"format":2}`, "use the newer build"},
		{"feature/of_the_future", `{"format":1}`, "use the newer build"},
		{clusterKey, ``, "corrupt"},
		{clusterKey, `{}`, "corrupt"},
		{"node/0000000001", `{"format":1,"id":2,"store_id":"a","state":"active"}`, "corrupt"},
		{"node/0000000001", `{"format":1,"id":1,"store_id":"","state":"active"}`, "corrupt"},
		{"node/0000000001", `{"format":1,"id":1,"store_id":"a","state":"asleep"}`, "corrupt"},
		{"node/x", `{"format":1,"id":1,"store_id":"a","state":"active"}`, "corrupt"},
		{"feature/lease_free_reads", `[]`, "corrupt"},
	} {
		if err := newView().add(v.key, []byte(v.raw), 1, newView()); err == nil || !strings.Contains(err.Error(), v.want) {
			t.Errorf("%s %s: %v", v.key, v.raw, err)
		}
	}
	for name, change := range map[string]func(m *cacheMeta, s *placement.Shard){
		"a bad name":             func(m *cacheMeta, _ *placement.Shard) { m.Tenant = "T" },
		"another name":           func(m *cacheMeta, _ *placement.Shard) { m.Name = "d" },
		"no such consistency":    func(m *cacheMeta, _ *placement.Shard) { m.Consistency = "most" },
		"no shards":              func(m *cacheMeta, _ *placement.Shard) { m.Shards = nil },
		"no replication":         func(m *cacheMeta, _ *placement.Shard) { m.Replication = 0 },
		"too much replication":   func(m *cacheMeta, _ *placement.Shard) { m.Replication = felix.MaxReplication + 1 },
		"the meta shard":         func(_ *cacheMeta, s *placement.Shard) { s.ID = metaShard },
		"a shard twice":          func(_ *cacheMeta, s *placement.Shard) { s.ID = 6 },
		"shard 0":                func(_ *cacheMeta, s *placement.Shard) { s.ID = 0 },
		"no replicas":            func(_ *cacheMeta, s *placement.Shard) { s.Replicas = nil },
		"no owner":               func(_ *cacheMeta, s *placement.Shard) { s.Prefer = 0 },
		"a raft id never minted": func(_ *cacheMeta, s *placement.Shard) { s.Replicas[0].Raft = 2 },
		"raft id 0":              func(_ *cacheMeta, s *placement.Shard) { s.Replicas[0].Raft = 0 },
		"node 0":                 func(_ *cacheMeta, s *placement.Shard) { s.Replicas[0].Node = 0 },
		"a raft id twice": func(_ *cacheMeta, s *placement.Shard) {
			s.Replicas = append(s.Replicas, placement.Replica{Raft: 1, Node: 9, Want: placement.Voter, Have: ""})
		},
		"two on a node": func(_ *cacheMeta, s *placement.Shard) {
			s.NextRaft, s.Replicas = 3, append(s.Replicas, placement.Replica{Raft: 2, Node: 3, Want: placement.Voter, Have: ""})
		},
		"no such wish":         func(_ *cacheMeta, s *placement.Shard) { s.Replicas[0].Want = "king" },
		"no such fact":         func(_ *cacheMeta, s *placement.Shard) { s.Replicas[0].Have = placement.Gone },
		"began with no one":    func(_ *cacheMeta, s *placement.Shard) { s.Initial[0] = 0 },
		"began with a late id": func(_ *cacheMeta, s *placement.Shard) { s.Initial[0] = 2 },
	} {
		m := wholeCache()
		change(m, &m.Shards[0])
		if err := addJSON(t, newView(), "cache/t/n/c", m); err == nil || !strings.Contains(err.Error(), "corrupt") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A record is refused, or it is read as what it is when it is written again.
func FuzzMetaRecord(f *testing.F) {
	for key, m := range map[string]any{clusterKey: wholeCluster(), "node/0000000012": wholeNode(), "cache/t/n/c": wholeCache(), "feature/lease_free_reads": featureMeta{1, 3}} {
		raw, err := json.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(key, raw)
	}
	f.Add("cache/t/n/c", []byte(`{"format":1,"tenant":"t","namespace":"n","name":"c","replication":1,"shard_ids":[7]}`))
	f.Fuzz(func(t *testing.T, key string, raw []byte) {
		v, again := newView(), newView()
		if v.add(key, raw, 1, newView()) != nil {
			return
		}
		var err error
		if v.cluster != nil {
			err = addJSON(t, again, key, v.cluster)
		}
		for _, m := range v.nodes {
			err = addJSON(t, again, key, m)
		}
		for _, m := range v.caches {
			err = addJSON(t, again, key, m.newest())
		}
		if err != nil || fmt.Sprint(len(v.nodes), len(v.caches), v.cluster == nil) != fmt.Sprint(len(again.nodes), len(again.caches), again.cluster == nil) {
			t.Fatalf("%q %s, written again: %v", key, raw, err)
		}
	})
}
