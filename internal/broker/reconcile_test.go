package broker

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/placement"
)

func scopeOf(name string) felix.Scope { return felix.Scope{Tenant: "t", Namespace: "n", Cache: name} }

// TestViewsAreReused: a record is parsed again only when it has changed, and what
// is gone is gone.
func TestViewsAreReused(t *testing.T) {
	t.Parallel()
	b, _ := openOn(t, vfs.NewMem(), 2, nil)
	makeCache(t, b, "other", 1)
	makeCache(t, b, "gone", 1)
	before := viewOf(t, b)
	if again := viewOf(t, b); again != before {
		t.Error("it was read again, although nothing has changed")
	}
	id := before.caches[scopeOf("other")].Shards[0].ID
	if s := before.shards[id]; s.cache != before.caches[scopeOf("other")] || s.number != 0 || s.placement.ID != id {
		t.Errorf("the shard is %+v", s)
	}
	if err := b.DeleteCache(context.Background(), scopeOf("gone")); err != nil {
		t.Fatal(err)
	}
	if err := b.updateShard(context.Background(), id, func(s *placement.Shard) bool { s.NextRaft++; return true }); err != nil {
		t.Fatal(err)
	}
	after := viewOf(t, b)
	if after == before || after.index <= before.index {
		t.Errorf("the view is of index %d, it was %d", after.index, before.index)
	}
	if after.caches[scopeOf("c")] != before.caches[scopeOf("c")] || after.nodes[1] != before.nodes[1] || after.cluster != before.cluster {
		t.Error("what has not changed was parsed again")
	}
	if m := after.caches[scopeOf("other")]; m.Shards[0].NextRaft != 3 || before.caches[scopeOf("other")].Shards[0].NextRaft != 2 {
		t.Errorf("the change: %+v", m)
	}
	if after.caches[scopeOf("gone")] != nil || len(after.shards) != 1+2+1 || len(after.records) != len(before.records)-1 {
		t.Errorf("what is gone is in %+v", after)
	}
	if err := closeBroker(b); err != nil {
		t.Error(err)
	}
}

// TestMetadataOfTheFuture: a record that this build cannot read ends the process
// that meets it, and the next start.
func TestMetadataOfTheFuture(t *testing.T) {
	t.Parallel()
	mem := vfs.NewMem()
	fatal := make(chan error, 1)
	b, err := Open(context.Background(), Options{Dir: "data", FS: mem, Fatal: func(err error) { fatal <- err }})
	if err != nil {
		t.Fatal(err)
	}
	_, err = b.metaDo(context.Background(), felix.Op{Kind: felix.Set, View: felix.ViewValue, Key: []byte("cache/t/n/new"), Value: []byte(`{"format":9}`)})
	if err != nil {
		t.Fatal(err)
	}
	if err := <-fatal; !strings.Contains(err.Error(), `"cache/t/n/new" in format 9`) || !strings.Contains(err.Error(), "data directory data") {
		t.Errorf("it ends with %v", err)
	}
	if err := closeBroker(b); err != nil {
		t.Error(err)
	}
	if _, err := Open(context.Background(), Options{Dir: "data", FS: mem}); err == nil || !strings.Contains(err.Error(), "use the newer build") {
		t.Errorf("Open = %v", err)
	}
}

// TestCachesEverywhere: a cache that is made at one broker works at once at all of
// them, and one that was deleted is gone at all when DeleteCache returns.
func TestCachesEverywhere(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	_, brokers := openPiped(t, 3, nil)
	for round := range 6 {
		maker, name := brokers[round%3], fmt.Sprint("c", round/2) // every name twice
		info, created, warning, err := maker.CreateCache(ctx, scopeOf(name), felix.CacheSettings{Shards: 3})
		if err != nil || !created || warning != "" || info.Replication != 3 || info.Replicas != 3 {
			t.Fatalf("%+v, %v, %q, %v", info, created, warning, err)
		}
		for i, b := range brokers {
			c, err := b.Cache(ctx, scopeOf(name))
			if err != nil {
				t.Fatal(err)
			}
			if r := mustDo(t, c, add("k", 1)); r[0].Int != int64(i+1) {
				t.Errorf("broker %d: the sum is %d", b.node, r[0].Int)
			}
			again, created, _, err := b.CreateCache(ctx, scopeOf(name), felix.CacheSettings{Shards: 3})
			if err != nil || created || again.Counts.Keys != 1 {
				t.Errorf("broker %d makes it again: %+v, %v, %v", b.node, again, created, err)
			}
			if infos, err := b.Caches(ctx, "t", ""); err != nil || len(infos) != 1 {
				t.Errorf("broker %d lists %+v, %v", b.node, infos, err)
			}
		}
		if err := brokers[(round+1)%3].DeleteCache(ctx, scopeOf(name)); err != nil {
			t.Fatal(err)
		}
		for _, b := range brokers {
			if _, err := b.Cache(ctx, scopeOf(name)); err == nil || felix.AsError(err).Code != felix.CacheNotFound {
				t.Errorf("broker %d still has the cache: %v", b.node, err)
			}
			if left := shardsOnDisk(t, b); len(left) > 0 {
				t.Errorf("broker %d still has shards %d", b.node, left)
			}
		}
	}
}

// TestPlacementIsSpread: replicas and owners are even, and the number of brokers
// bounds the replication.
func TestPlacementIsSpread(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	_, brokers := openPiped(t, 3, nil)
	for i := range 3 {
		if _, _, _, err := brokers[i].CreateCache(ctx, scopeOf(fmt.Sprint("c", i)), felix.CacheSettings{Shards: 2, Replication: 2}); err != nil {
			t.Fatal(err)
		}
	}
	for node, n := range viewOf(t, brokers[0]).load() {
		if n.Replicas != 4 || n.Preferred != 2 {
			t.Errorf("node %d has %+v", node, n)
		}
	}
	for _, b := range brokers {
		if n := len(shardsOnDisk(t, b)); n != 4 {
			t.Errorf("broker %d has %d shards", b.node, n)
		}
	}
	eventually(t, "owners are where they should be", func() bool {
		return !slices.ContainsFunc(brokers, func(b *Broker) bool { n := b.Stats().Owned; return n < 2 || n > 3 })
	})
	_, _, _, err := brokers[1].CreateCache(ctx, scopeOf("more"), felix.CacheSettings{Replication: 4})
	if err == nil || err.Error() != "invalid_argument: replication 4 needs 4 brokers, there are 3: use --replication 3" &&
		!strings.Contains(err.Error(), "needs 4 brokers, there are 3: use --replication 3") {
		t.Errorf("replication 4: %v", err)
	}
	if info, warning, err := brokers[2].SetReplication(ctx, scopeOf("c0"), 3); err != nil || info.Replicas != 2 || !strings.Contains(warning, "replicas 2/3: more are being made") {
		t.Errorf("%+v, %q, %v", info, warning, err)
	}
	eventually(t, "all replicas are there", func() bool {
		info, err := brokers[0].CacheInfo(ctx, scopeOf("c0"))
		return err == nil && info.Replicas == 3
	})
}

// TestWithoutMetadata: caches that a broker knows work without a majority for the
// metadata, and what it does not know is not said to be missing.
func TestWithoutMetadata(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	p, brokers := openPiped(t, 3, nil)
	if _, _, _, err := brokers[0].CreateCache(ctx, scopeOf("c"), felix.CacheSettings{Shards: 1, Replication: 1}); err != nil {
		t.Fatal(err)
	}
	at := viewOf(t, brokers[0]).caches[scopeOf("c")].Shards[0].Prefer
	b := brokers[at-1]
	c, err := b.Cache(ctx, scopeOf("c"))
	if err != nil {
		t.Fatal(err)
	}
	p.setCut(at, true)
	mustDo(t, c, add("k", 1))
	short, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
	defer cancel()
	if _, err := b.Cache(short, scopeOf("d")); err == nil || felix.AsError(err).Code != felix.Unavailable {
		t.Errorf("a cache that it does not know: %v", err)
	}
	p.setCut(at, false)
	eventually(t, "it can be asked again", func() bool {
		_, err := b.Cache(ctx, scopeOf("d"))
		return err != nil && felix.AsError(err).Code == felix.CacheNotFound
	})
}

// TestCachesThatCannotBeCounted: a cache whose shards cannot be asked is in the
// list all the same, after a moment and with unknown counts; so are the others,
// with theirs.
func TestCachesThatCannotBeCounted(t *testing.T) {
	t.Parallel()
	p, brokers := openPiped(t, 3, func(_ uint64, o *Options) { o.RequestTimeout = time.Hour })
	ctx, cancel := context.WithCancel(context.Background()) // without a deadline: it would be in vain to wait for that hour
	defer cancel()
	defer time.AfterFunc(20*time.Second, cancel).Stop()
	names := []string{"a", "b", "c", "d", "e", "f"}
	on := map[string]uint64{}
	for i, name := range names {
		b := brokers[i%3]
		if _, _, _, err := b.CreateCache(ctx, scopeOf(name), felix.CacheSettings{Shards: 1, Replication: 1 + 2*(i/5)}); err != nil {
			t.Fatal(err)
		}
		c, err := b.Cache(ctx, scopeOf(name))
		if err != nil {
			t.Fatal(err)
		}
		mustDo(t, c, add("k", 1))
		on[name] = viewOf(t, b).caches[scopeOf(name)].Shards[0].Prefer
	}
	lost := on["a"]
	on["f"] = 0 // it has replicas elsewhere
	b := brokers[lost%3]
	p.setCut(lost, true)
	// The metadata, and f, may need another owner, and a busy machine a moment more.
	for begun := time.Now(); ; {
		infos, err := b.Caches(ctx, "t", "n")
		if err != nil && felix.AsError(err).Code != felix.Unavailable || err == nil && len(infos) != len(names) {
			t.Fatalf("the list: %+v, %v", infos, err)
		}
		wrong := ""
		for _, info := range infos {
			want := felix.RecordCount{Counters: 1, Keys: 1}
			if on[info.Cache] == lost {
				want = felix.RecordCount{}
			}
			if info.Counts != want || info.CountsUnknown != (on[info.Cache] == lost) {
				wrong = fmt.Sprintf("cache %s on node %d: counts %+v, unknown %v", info.Cache, on[info.Cache], info.Counts, info.CountsUnknown)
			}
		}
		if err == nil && wrong == "" {
			break
		}
		if time.Since(begun) > 15*time.Second {
			t.Fatalf("node %d is lost; %s, error %v", lost, wrong, err)
		}
	}
	if info, err := b.CacheInfo(ctx, scopeOf("a")); err != nil || !info.CountsUnknown {
		t.Errorf("one of them: %+v, %v", info, err)
	}
	if info, _, err := b.SetReplication(ctx, scopeOf("a"), 2); err != nil || !info.CountsUnknown || info.Replication != 2 {
		t.Errorf("its replication: %+v, %v", info, err)
	}
}

// TestDeletedWhileAway: a broker that was away when a cache was deleted and made
// anew serves the new one, and drops what it has of the old one.
func TestDeletedWhileAway(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	p, brokers := openPiped(t, 3, nil)
	makeCache(t, brokers[0], "c", 2)
	makeCache(t, brokers[0], "gone", 1)
	old, err := brokers[2].Cache(ctx, scopeOf("c"))
	if err != nil {
		t.Fatal(err)
	}
	mustDo(t, old, add("k", 5))
	p.setCut(3, true)
	eventually(t, "the others own all", func() bool { return brokers[0].Stats().Owned+brokers[1].Stats().Owned == 4 })
	for _, name := range []string{"c", "gone"} {
		if err := brokers[0].DeleteCache(ctx, scopeOf(name)); err != nil {
			t.Fatal(err)
		}
	}
	makeCache(t, brokers[1], "c", 2)
	if len(shardsOnDisk(t, brokers[2])) != 3 {
		t.Error("it has heard of it")
	}
	p.setCut(3, false)
	eventually(t, "it drops the old shards", func() bool {
		return slices.Equal(shardsOnDisk(t, brokers[2]), shardsOnDisk(t, brokers[0]))
	})
	c, err := brokers[2].Cache(ctx, scopeOf("c"))
	if err != nil {
		t.Fatal(err)
	}
	if r := mustDo(t, c, add("k", 1)); r[0].Int != 1 {
		t.Errorf("the new cache has %d", r[0].Int)
	}
	if r, err := felix.Do(ctx, old, add("k", 1)); err == nil && r[0].Err == nil {
		t.Errorf("the old cache still takes adds: %+v", r)
	}
}

// TestMakingAndDroppingIsCutShort cuts the power of the broker of a cluster of one
// at each step of making and dropping replicas: the next start does the rest.
func TestMakingAndDroppingIsCutShort(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	var cuts []*vfs.MemFS
	var steps []string
	mem := vfs.NewCrashableMem()
	var armed atomic.Bool
	b, err := Open(ctx, Options{Dir: "data", FS: mem, Cluster: ClusterOptions{OnStep: func(step string) {
		if armed.Load() && strings.HasPrefix(step, "replicas-") { // clustertest has the others
			steps = append(steps, step)
			cuts = append(cuts, mem.CrashClone(vfs.CrashCloneCfg{}))
		}
	}}})
	if err != nil {
		t.Fatal(err)
	}
	makeCache(t, b, "stays", 1)
	armed.Store(true)
	makeCache(t, b, "c", 2)
	made := len(cuts)
	if err := b.DeleteCache(ctx, scopeOf("c")); err != nil {
		t.Fatal(err)
	}
	armed.Store(false)
	if err := closeBroker(b); err != nil {
		t.Fatal(err)
	}
	if want := []string{"replicas-wanted", "replicas-made", "replicas-closed", "replicas-dropped"}; !slices.Equal(steps, want) {
		t.Fatalf("the steps are %q", steps)
	}
	for i, fs := range cuts {
		b, err := Open(ctx, Options{Dir: "data", FS: fs})
		if err != nil {
			t.Fatalf("%s: %v", steps[i], err)
		}
		want := 1
		if i < made {
			want = 3
			c, err := b.Cache(ctx, scopeOf("c"))
			if err != nil {
				t.Fatalf("%s: %v", steps[i], err)
			}
			mustDo(t, c, add("a", 1), add("b", 1), add("c", 1))
		}
		if left := shardsOnDisk(t, b); len(left) != want {
			t.Errorf("%s: shards %d are there, want %d", steps[i], left, want)
		}
		checkWhole(t, b, fs)
		if err := closeBroker(b); err != nil {
			t.Error(err)
		}
	}
}

// TestNoReplicaOnOldMetadata: what is made or dropped on disk rests on the
// metadata as it is now. Without its owner nothing is.
func TestNoReplicaOnOldMetadata(t *testing.T) {
	t.Parallel()
	p, brokers := openPiped(t, 3, nil)
	makeCache(t, brokers[0], "c", 1)
	b := brokers[2]
	id := viewOf(t, b).caches[scopeOf("c")].Shards[0].ID
	p.setCut(3, true)
	eventually(t, "it knows no owner", func() bool { return b.routeOf(metaShard).here.Load() == nil || !b.replicaOf(metaShard).owns.Load() })
	for i, name := range []string{"new", "newer"} { // when it looks at the second one, it is done with the first
		pretend(b, func(v *view) {
			v.index = 1<<40 + uint64(i) // which nobody has confirmed
			v.caches, v.shards, v.placed = map[felix.Scope]*cacheMeta{}, map[uint64]*shardRef{}, map[uint64]*placement.Shard{}
			v.take(v.cluster)
			v.take(&cacheMeta{Tenant: "t", Namespace: "n", Name: name, Replication: 1, Consistency: "quorum",
				Shards: []placement.Shard{placement.Sole(500, 3)}, version: 1})
		})
		eventually(t, "it has looked", func() bool { return b.cacheAt(scopeOf(name)) != nil })
	}
	if b.replicaOf(500) != nil || b.replicaOf(id) == nil {
		t.Error("it has acted on metadata that nobody has confirmed")
	}
}

// TestOwnRecord: after a start the metadata says what the broker is now.
func TestOwnRecord(t *testing.T) {
	t.Parallel()
	mem := vfs.NewMem()
	for start := uint64(1); start <= 2; start++ {
		now := Addresses{Peer: fmt.Sprint("p:", start), HTTP: fmt.Sprint("h:", start), RESP: fmt.Sprint("r:", start)}
		b, err := Open(context.Background(), Options{Dir: "data", FS: mem, Cluster: ClusterOptions{Advertise: now, Version: fmt.Sprint("v", start)}})
		if err != nil {
			t.Fatal(err)
		}
		n := viewOf(t, b).nodes[1]
		if n.Starts != start || n.Version != fmt.Sprint("v", start) || n.PeerAddr != now.Peer || n.HTTPAddr != now.HTTP || n.RESPAddr != now.RESP {
			t.Errorf("start %d: %+v", start, n)
		}
		if err := closeBroker(b); err != nil {
			t.Error(err)
		}
	}
	_, brokers := openPiped(t, 3, func(node uint64, o *Options) { o.Cluster.Version = fmt.Sprint("v", node) })
	eventually(t, "every broker has said what it is", func() bool {
		for node, n := range viewOf(t, brokers[0]).nodes {
			if n.Version != fmt.Sprint("v", node) {
				return false
			}
		}
		return true
	})
}

// TestFoundersBeginTogether: five brokers have one metadata, of three voters and
// five copies, whoever of them begins it.
func TestFoundersBeginTogether(t *testing.T) {
	t.Parallel()
	for n, voters := range map[int]int{2: 2, 4: 3, 5: 5} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			t.Parallel()
			_, brokers := openPiped(t, n, nil)
			for _, b := range brokers {
				v := viewOf(t, b)
				s := v.cluster.Shard
				if len(v.nodes) != n || len(s.Initial) != voters || len(s.Replicas) != n || s.Prefer != 1 || !v.features[leaseFreeReads] {
					t.Errorf("broker %d: %+v, %d nodes", b.node, s, len(v.nodes))
				}
				eventually(t, "its replica is what it is to be", func() bool {
					want := learnerPart
					if int(b.node) <= voters {
						want = voterPart
					}
					return replicaPart(b.replicaOf(metaShard).part.Load()) == want
				})
			}
		})
	}
}

// TestMetaAlike: all brokers of a cluster come to the same metadata, also while it
// is changed at all of them.
func TestMetaAlike(t *testing.T) {
	t.Parallel()
	_, brokers := openPiped(t, 3, nil)
	var all sync.WaitGroup
	for i, b := range brokers {
		all.Go(func() {
			for n := range 5 {
				_, _, _, err := b.CreateCache(context.Background(), scopeOf(fmt.Sprintf("c%d-%d", i, n)), felix.CacheSettings{Shards: 1})
				_, created, _, sharedErr := b.CreateCache(context.Background(), scopeOf(fmt.Sprint("all", n)), felix.CacheSettings{Shards: 1})
				if err = errors.Join(err, sharedErr); err != nil {
					t.Error(created, err)
				}
			}
		})
	}
	all.Wait()
	first := viewOf(t, brokers[0])
	if len(first.caches) != 3*5+5 || len(first.shards) != 1+3*5+5 {
		t.Errorf("%d caches, %d shards", len(first.caches), len(first.shards))
	}
	for _, b := range brokers[1:] {
		v := viewOf(t, b)
		if !slices.Equal(slices.Sorted(maps.Keys(v.shards)), slices.Sorted(maps.Keys(first.shards))) {
			t.Errorf("broker %d has other shards", b.node)
		}
	}
}
