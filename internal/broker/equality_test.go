package broker

import (
	"context"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/record"
)

// chain is the chain of a node's replica, and how far it is applied.
func (g *group) chain(node uint64) (index uint64, c record.Chain) {
	g.t.Helper()
	g.onWorker(node, func(r *replica) {
		a := r.shard.Table().Applied()
		index, c = a.Index, a.Chain
	})
	return index, c
}

// sameChains waits until the nodes' replicas have the same chain, from the shard's
// first entry on.
func (g *group) sameChains(nodes ...uint64) {
	g.t.Helper()
	eventually(g.t, "the chains are the same", func() bool {
		index, want := g.chain(nodes[0])
		if want.Base != bootstrapIndex || want.Sum == 0 {
			g.t.Fatalf("the chain of node %d is %+v", nodes[0], want)
		}
		for _, node := range nodes[1:] {
			at, got := g.chain(node)
			if at == index && got != want {
				g.t.Fatalf("the chain of node %d is %+v, that of node %d %+v at entry %d", node, got, nodes[0], want, index)
			}
			if at != index {
				return false
			}
		}
		return true
	})
}

// TestChainGoesOn: a replica's chain is what it would be without a restart, a lost
// power, a snapshot, a change of the configuration.
func TestChainGoesOn(t *testing.T) {
	t.Parallel()
	g := newGroup(t)
	g.add()
	g.checkpoint()
	g.add() // replayed
	node := g.follower()
	g.waitFor(node)
	g.name(node)
	g.restart(node, g.mems[node].CrashClone(vfs.CrashCloneCfg{}))
	g.waitFor(node)
	g.sameChains(1, 2, 3)
	node = g.lag()
	g.heal(node)
	g.waitFor(node)
	if g.pipes.snapshots == 0 {
		t.Error("no snapshot was sent")
	}
	g.join()
	eventually(t, "the new replica has something", func() bool { return g.status(4).Applied > 1 })
	g.waitFor(4)
	g.sameChains(1, 2, 3, 4)
}

// TestChainIsStoredOnceAllCanReadIt: until the feature is finalized the disk has
// what older builds can read, and a restart begins a new chain.
func TestChainIsStoredOnceAllCanReadIt(t *testing.T) {
	t.Parallel()
	mem, ctx := vfs.NewMem(), context.Background()
	b, _ := openOn(t, mem, 1, nil)
	if _, err := b.metaDo(ctx, felix.Op{Kind: felix.Delete, View: felix.ViewValue, Key: []byte(featurePrefix + replicaHashes)}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the feature is not finalized", func() bool { return !b.view().features[replicaHashes] })
	c := makeCache(t, b, "d", 1)
	id := c.(*cache).shards[0].id
	stored := func() record.Applied {
		t.Helper()
		mustDo(t, c, add("k", 1))
		if err := b.checkpoint.all(ctx); err != nil {
			t.Fatal(err)
		}
		a, ok, err := b.db.Applied(id)
		if !ok || err != nil || a.Index <= bootstrapIndex {
			t.Fatalf("%+v, %v", a, err)
		}
		return a
	}
	before := stored()
	if before.Chain != (record.Chain{}) {
		t.Errorf("stored before all can read it: %+v", before.Chain)
	}
	if err := closeBroker(b); err != nil {
		t.Fatal(err)
	}
	b, _ = openOnAgain(t, mem)
	c, err := b.Cache(ctx, felix.Scope{Tenant: "t", Namespace: "n", Cache: "d"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.FinalizeFeature(ctx, replicaHashes); err != nil {
		t.Fatal(err)
	}
	if after := stored(); after.Chain.Base < before.Index || after.Chain.Sum == 0 {
		t.Errorf("stored when all can read it: %+v, was at %d", after.Chain, before.Index)
	}
	if err := closeBroker(b); err != nil {
		t.Fatal(err)
	}
}
