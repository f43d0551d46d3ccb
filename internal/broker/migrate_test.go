package broker

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/placement"
	"github.com/felix-go/felix/internal/record"
)

// oldRecord is what a broker of format 1 answered to a Get.
type oldRecord struct {
	Cache   string     `json:"cache"`
	Key     string     `json:"key"`
	View    felix.View `json:"view"`
	Int     int64      `json:"int"`
	Value   string     `json:"value"`
	Version uint64     `json:"version"`
}

// oldCaches are the caches of testdata/format1.tar.gz. There was one more, which
// was deleted; "late" is in the log alone.
var oldCaches = map[string]felix.CacheSettings{
	"quorum": {Shards: 2, Replication: 1},
	"leader": {Shards: 1, Replication: 3, Consistency: felix.Leader},
	"late":   {Shards: 2, Replication: 1},
}

// oldDirectory is a data directory of format 1 as a power cut left it, written
// by the last build that wrote that format (5e419e2), and what was in it.
func oldDirectory(t testing.TB) (*vfs.MemFS, []oldRecord) {
	t.Helper()
	f, err := os.Open("testdata/format1.tar.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	mem := vfs.NewCrashableMem()
	var want []oldRecord
	for archive := tar.NewReader(z); ; {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		raw, err := io.ReadAll(archive)
		if err != nil {
			t.Fatal(err)
		}
		if h.Name == "expected.json" {
			err = json.Unmarshal(raw, &want)
		} else if err = makeDir(mem, path.Dir(h.Name)); err == nil {
			err = writeFile(mem, path.Dir(h.Name), path.Base(h.Name), raw)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if len(want) == 0 {
		t.Fatal("nothing is expected")
	}
	return mem, want
}

// readIdentity reads felix.json.
func readIdentity(t testing.TB, fs vfs.FS) identity {
	t.Helper()
	raw, err := readFile(fs, "data/felix.json")
	if err != nil {
		t.Fatal(err)
	}
	id, err := parseIdentity(raw)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func viewOf(t testing.TB, b *Broker) *view {
	t.Helper()
	v, err := b.confirmedView(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// checkWhole: felix.json, the metadata and the state of a broker alone say the
// same, in the newest formats.
func checkWhole(t testing.TB, b *Broker, fs vfs.FS) *view {
	t.Helper()
	id, v := readIdentity(t, fs), viewOf(t, b)
	if id.Format != dataFormat || id.NodeID != 1 || !id.Formed || !id.Bootstrapped || id.Starts < 1 || len(id.Founders) != 1 {
		t.Errorf("felix.json is %+v", id)
	}
	if err := v.belongsTo(&id); err != nil {
		t.Error(err)
	}
	if n := v.nodes[1]; len(v.nodes) != 1 || n.State != nodeActive || !slices.Equal(n.Features, supportedFeatures()) {
		t.Errorf("the nodes are %+v", v.nodes)
	}
	shards := []placement.Shard{v.cluster.Shard}
	levels := map[uint64]byte{metaShard: byte(felix.Quorum)}
	for _, m := range v.caches {
		if m.Format != cacheMetaFormat {
			t.Errorf("cache %s has format %d", m.scope(), m.Format)
		}
		level, err := felix.ParseConsistency(m.Consistency)
		if err != nil {
			t.Error(err)
		}
		for _, s := range m.Shards {
			shards, levels[s.ID] = append(shards, s), byte(level)
		}
	}
	for _, s := range shards {
		want := record.Replica{RaftID: s.ReplicaOn(1), Consistency: levels[s.ID]}
		if r, ok, err := b.db.Replica(s.ID); err != nil || !ok || r != want || r.RaftID != 1 {
			t.Errorf("the state has %+v (%v, %v) of shard %d, %+v was placed", r, ok, err, s.ID, want)
		}
	}
	onDisk, err := b.db.Shards()
	if err != nil || !slices.Equal(onDisk, slices.Sorted(maps.Keys(levels))) {
		t.Errorf("the state has shards %d, %v; the metadata %v", onDisk, err, levels)
	}
	return v
}

// checkOld: nothing of what was in the old directory has changed.
func checkOld(t testing.TB, b *Broker, want []oldRecord) {
	t.Helper()
	ctx := context.Background()
	counts := map[string]felix.RecordCount{}
	for _, w := range want {
		c, err := b.Cache(ctx, felix.Scope{Tenant: "t", Namespace: "n", Cache: w.Cache})
		if err != nil {
			t.Fatal(err)
		}
		r := mustDo(t, c, felix.Op{Kind: felix.Get, View: w.View, Key: []byte(w.Key)})[0]
		if r.Int != w.Int || string(r.Value) != w.Value || r.Version != w.Version {
			t.Errorf("%s: %q is %+v; it was %+v", w.Cache, w.Key, r, w)
		}
		n := counts[w.Cache]
		n.Keys++
		if w.View == felix.ViewCounter {
			n.Counters++
		} else {
			n.Values++
		}
		counts[w.Cache] = n
	}
	infos, err := b.Caches(ctx, "", "")
	if err != nil || len(infos) != len(oldCaches) {
		t.Errorf("there are %d caches, %v", len(infos), err)
	}
	for _, info := range infos {
		name := info.Scope.Cache
		was := oldCaches[name]
		was.MaxIDs = felix.DefaultMaxIDs // a setting that builds of then did not have
		if info.CacheSettings != was || info.Counts != counts[name] {
			t.Errorf("cache %s is %+v; it was %+v, %+v", name, info, was, counts[name])
		}
	}
}

// TestMigration: a directory of format 1 becomes one of a cluster of one, once,
// and has everything that it had.
func TestMigration(t *testing.T) {
	t.Parallel()
	mem, want := oldDirectory(t)
	old := readIdentity(t, mem)
	if old.Format != 1 {
		t.Fatalf("the old directory is %+v", old)
	}
	if _, err := Open(context.Background(), Options{Dir: "data", FS: mem, NodeID: 2}); err == nil || !strings.Contains(err.Error(), "it is that of node 1, not of node 2") {
		t.Errorf("opened as node 2: %v", err)
	}
	var first identity
	for start := range uint64(3) {
		b, err := Open(context.Background(), Options{Dir: "data", FS: mem, ReplicationIsTarget: true})
		if err != nil {
			t.Fatal(err)
		}
		checkOld(t, b, want)
		v := checkWhole(t, b, mem)
		if len(v.features) != 0 {
			t.Errorf("%v are finalized, which an older build that joins may not know", v.features)
		}
		id := readIdentity(t, mem)
		if start == 0 {
			first = id
		}
		if id.StoreID != old.StoreID || id.ClusterID != first.ClusterID || id.Starts != start+1 {
			t.Errorf("start %d: felix.json is %+v; it was %+v, and %+v before the migration", start, id, first, old)
		}
		c := makeCache(t, b, "new", 2)
		mustDo(t, c, add("k", 1))
		checkWhole(t, b, mem)
		if err := b.DeleteCache(context.Background(), c.Scope()); err != nil {
			t.Fatal(err)
		}
		if err := closeBroker(b); err != nil {
			t.Fatal(err)
		}
	}
}

// startCut is the disk as a power cut in the course of a start leaves it.
type startCut struct {
	fs    *vfs.MemFS
	where string
}

// cutStart starts a broker on mem and closes it, with a power cut before every
// operation that makes something durable or changes a directory, and one when
// it has started. Every other one loses only a part of what was not synced.
func cutStart(t *testing.T, mem *vfs.MemFS) []startCut {
	t.Helper()
	var mu sync.Mutex
	var cuts []startCut
	rng := rand.New(rand.NewPCG(testSeed(t), 1))
	started := false
	disk := &diskFS{FS: mem}
	point := func(op diskOp) {
		mu.Lock()
		defer mu.Unlock()
		if started || op.kind == "write" || op.kind == "opendir" || op.kind == "close" {
			return
		}
		cfg := vfs.CrashCloneCfg{}
		if len(cuts)%2 == 1 {
			cfg = vfs.CrashCloneCfg{UnsyncedDataPercent: rng.IntN(101), RNG: rng}
		}
		disk.reuse.Lock()
		defer disk.reuse.Unlock()
		cuts = append(cuts, startCut{mem.CrashClone(cfg), "before " + op.kind + " " + op.path})
	}
	disk.before = func(op diskOp) error { point(op); return nil }
	b, err := Open(context.Background(), Options{Dir: "data", FS: disk, ReplicationIsTarget: true})
	if err != nil {
		t.Fatal(err)
	}
	point(diskOp{"start", "of the broker ends"})
	mu.Lock()
	started = true
	mu.Unlock()
	if err := closeBroker(b); err != nil {
		t.Fatal(err)
	}
	return cuts
}

// onCuts starts a broker on what each power cut has left, twice.
func onCuts(t *testing.T, cuts []startCut, check func(b *Broker, cut startCut)) {
	t.Helper()
	for _, cut := range cuts {
		for range 2 {
			b, err := Open(context.Background(), Options{Dir: "data", FS: cut.fs, ReplicationIsTarget: true})
			if err != nil {
				t.Fatalf("power cut %s: %v", cut.where, err)
			}
			check(b, cut)
			if err := closeBroker(b); err != nil {
				t.Fatalf("power cut %s: %v", cut.where, err)
			}
		}
		if t.Failed() {
			t.Fatalf("power cut %s", cut.where)
		}
	}
}

// TestMigrationPowerLoss cuts the power at every step of a migration. The next
// start completes it, and goes on with the cluster id that the metadata has.
func TestMigrationPowerLoss(t *testing.T) {
	t.Parallel()
	mem, want := oldDirectory(t)
	cuts := cutStart(t, mem)
	whole := readIdentity(t, mem)
	formats := map[int]int{}
	kept := map[string]bool{}
	for _, cut := range cuts {
		formats[readIdentity(t, cut.fs).Format]++
		kept[cut.where] = strings.HasSuffix(cut.where, "data/felix.json") || strings.HasSuffix(cut.where, "data/felix.json.new")
	}
	if formats[1] < 20 || formats[2] < 1 {
		t.Errorf("of the power cuts %v left felix.json in each format: too few to prove anything", formats)
	}
	last := 0
	onCuts(t, cuts, func(b *Broker, cut startCut) {
		checkOld(t, b, want)
		if v := checkWhole(t, b, cut.fs); len(v.features) != 0 {
			t.Errorf("%v are finalized", v.features)
		}
		if kept[cut.where] { // the metadata was whole, felix.json was not
			last++
			if id := readIdentity(t, cut.fs); id.ClusterID != whole.ClusterID {
				t.Errorf("the cluster became %s, the metadata had %s", id.ClusterID, whole.ClusterID)
			}
		}
	})
	if last < 4 {
		t.Errorf("%d power cuts between the metadata and felix.json: too few to prove anything", last)
	}
}
