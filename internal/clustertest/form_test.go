package clustertest

import (
	"testing"

	"github.com/felix-go/felix"
)

// TestThreeBrokersForm: brokers that are started with the same --peers become a
// cluster, a cache created on one of them has three replicas and works on all,
// and all this stands when they were stopped and started again.
func TestThreeBrokersForm(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 3, calm)
	if info := c.create(1, "main", felix.CacheSettings{}); info.Replication != 3 {
		t.Errorf("the cache has %d replicas of each shard, want 3", info.Replication)
	}
	for _, id := range c.ids() {
		must(t, c.cache(id, "main"), felix.Op{Kind: felix.Add, Key: []byte("k"), Int: 1})
	}
	c.stop(1)
	c.stop(2)
	c.stop(3)
	c.start(1, 2, 3)
	c.ready(1, 2, 3)
	for _, id := range c.ids() {
		if r := must(t, c.cache(id, "main"), felix.Op{Kind: felix.Get, Key: []byte("k")}); r[0].Int != 3 {
			t.Errorf("node %d reads %d, want 3", id, r[0].Int)
		}
	}
}
