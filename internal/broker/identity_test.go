package broker

import (
	"context"
	"encoding/json"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/felix-go/felix/internal/peer"
)

// TestNewDirectory: a broker alone forms a cluster of one.
func TestNewDirectory(t *testing.T) {
	t.Parallel()
	mem := vfs.NewMem()
	var first identity
	for start := range uint64(3) {
		b, err := Open(context.Background(), Options{Dir: "data", FS: mem})
		if err != nil {
			t.Fatal(err)
		}
		if start == 0 {
			makeCache(t, b, "c", 2)
			first = readIdentity(t, mem)
		}
		v := checkWhole(t, b, mem)
		if !v.features[leaseFreeReads] || len(v.features) != len(supportedFeatures()) || len(v.caches) != 1 {
			t.Errorf("%v are finalized; the caches are %v", v.features, v.caches)
		}
		id := readIdentity(t, mem)
		first.Starts, first.Recorded = start+1, []peer.Start{{Starts: start + 1}}
		if !reflect.DeepEqual(id, first) || id.StoreID != b.StoreID() {
			t.Errorf("start %d: felix.json is %+v; it was %+v", start, id, first)
		}
		if err := closeBroker(b); err != nil {
			t.Fatal(err)
		}
	}
}

// TestNewDirectoryPowerLoss cuts the power at every step of the first start.
func TestNewDirectoryPowerLoss(t *testing.T) {
	t.Parallel()
	cuts := cutStart(t, vfs.NewCrashableMem())
	if len(cuts) < 20 {
		t.Errorf("%d power cuts: too few to prove anything", len(cuts))
	}
	onCuts(t, cuts, func(b *Broker, cut startCut) {
		if v := checkWhole(t, b, cut.fs); !v.features[leaseFreeReads] {
			t.Errorf("%v are finalized", v.features)
		}
	})
}

// TestNodeID: a directory is one node's.
func TestNodeID(t *testing.T) {
	t.Parallel()
	mem := vfs.NewMem()
	if _, err := Open(context.Background(), Options{Dir: "data", FS: mem, NodeID: maxNodeID + 1}); err == nil || !strings.Contains(err.Error(), "it is 1 to 4294967296") {
		t.Errorf("a node id that is too high: %v", err)
	}
	for _, asked := range []uint64{7, 0, 7} {
		b, err := Open(context.Background(), Options{Dir: "data", FS: mem, NodeID: asked})
		if err != nil {
			t.Fatal(err)
		}
		if id, v := readIdentity(t, mem), viewOf(t, b); id.NodeID != 7 || v.nodes[7] == nil || v.cluster.Shard.ReplicaOn(7) != 1 {
			t.Errorf("felix.json is %+v, the nodes are %v", id, v.nodes)
		}
		if err := closeBroker(b); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := Open(context.Background(), Options{Dir: "data", FS: mem, NodeID: 1}); err == nil || !strings.Contains(err.Error(), "it is that of node 7, not of node 1") {
		t.Errorf("opened as node 1: %v", err)
	}
}

// TestLostMetadataIsNotMadeAgain: a directory whose log and state are gone has
// lost what was acknowledged. It is not a new one.
func TestLostMetadataIsNotMadeAgain(t *testing.T) {
	t.Parallel()
	mem := vfs.NewMem()
	b, _ := openOn(t, mem, 1, nil)
	if err := closeBroker(b); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"data/log", "data/state"} {
		if err := mem.RemoveAll(name); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if _, err := Open(context.Background(), Options{Dir: "data", FS: mem}); err == nil || !strings.Contains(err.Error(), "the metadata is missing") {
			t.Fatalf("Open = %v", err)
		}
	}
}

// TestClusterNeverFormed: a broker alone does not make the metadata of a cluster
// that others are to vote in.
func TestClusterNeverFormed(t *testing.T) {
	t.Parallel()
	mem := vfs.NewMem()
	err := makeDir(mem, "data")
	if err == nil {
		err = writeFile(mem, "data", "felix.json", []byte(`{"format":2,"store_id":"a","cluster_id":"c","node_id":1}`))
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Open(context.Background(), Options{Dir: "data", FS: mem}); err == nil || !strings.Contains(err.Error(), "was never formed") {
		t.Errorf("Open = %v", err)
	}
}

// wholeIdentity has everything that felix.json can have.
func wholeIdentity() identity {
	return identity{Format: dataFormat, StoreID: "a1", ClusterID: "c1", NodeID: 2, Formed: true, Bootstrapped: true, Starts: 9,
		Founders: []founder{{1, "a0", "h0:7381"}, {2, "a1", "h1:7381"}}, Seeds: []string{"h2:7381"}, Recorded: []peer.Start{{Starts: 8, Instance: "i8"}},
		more: map[string]json.RawMessage{"later": json.RawMessage(`{"a":1}`), "never": json.RawMessage("null")}}
}

// TestFlippedIdentity: what has become of felix.json on a bad disk is not
// believed, whichever bit it is.
func TestFlippedIdentity(t *testing.T) {
	t.Parallel()
	whole, err := wholeIdentity().encode()
	if err != nil {
		t.Fatal(err)
	}
	for i := range 8 * len(whole) {
		raw := append(slices.Clone(whole), '\n')
		raw[i/8] ^= 1 << (i % 8)
		id, err := parseIdentity(raw)
		want := wholeIdentity()
		id.more, want.more = nil, nil // it may be the checksum's name that has changed
		if err == nil && !reflect.DeepEqual(id, want) {
			t.Errorf("bit %d: %s is believed", i, raw)
		}
	}
}

func TestParseIdentity(t *testing.T) {
	t.Parallel()
	whole, err := wholeIdentity().encode()
	if err != nil {
		t.Fatal(err)
	}
	const stored = `{"format":2,"store_id":"a1","cluster_id":"c1","node_id":2,"formed":true,"bootstrapped":true,"starts":9,"recorded":[{"starts":8,"instance":"i8"}],` +
		`"founders":[{"id":1,"store_id":"a0","peer_addr":"h0:7381"},{"id":2,"store_id":"a1","peer_addr":"h1:7381"}],` +
		`"seeds":["h2:7381"],"later":{"a":1},"never":null}`
	if string(whole) != strings.TrimSuffix(stored, "}")+`,"checksum":"41c7bf51"}` { // docs/format.md says this
		t.Errorf("felix.json is %s", whole)
	}
	if id, err := parseIdentity([]byte(stored)); err != nil || !reflect.DeepEqual(id, wholeIdentity()) {
		t.Errorf("it is read as %+v, %v", id, err)
	}
	old := identity{Format: 1, StoreID: "a1", NodeID: 1}
	if id, err := parseIdentity([]byte(`{"format":1,"store_id":"a1"}`)); err != nil || !reflect.DeepEqual(id, old) {
		t.Errorf("format 1 is read as %+v, %v", id, err)
	}
	var newer newerFormat
	if _, err := parseIdentity([]byte(`{"format":3,"store_id":7}`)); !errors.As(err, &newer) || errors.Is(err, errIdentity) {
		t.Errorf("a newer format: %v", err)
	}
	for name, change := range map[string]func(id *identity){
		"no store id":                 func(id *identity) { id.StoreID = "" },
		"format 0":                    func(id *identity) { id.Format = 0 },
		"a format below all":          func(id *identity) { id.Format = -1 },
		"a node id too high":          func(id *identity) { id.NodeID, id.Founders = maxNodeID+1, nil },
		"no node id":                  func(id *identity) { id.NodeID, id.Founders = 0, nil },
		"no cluster id":               func(id *identity) { id.ClusterID = "" },
		"formed without a cluster":    func(id *identity) { id.ClusterID, id.NodeID, id.Founders = "", 0, nil },
		"bootstrapped before formed":  func(id *identity) { id.Formed = false },
		"other founders":              func(id *identity) { id.Founders = id.Founders[:1] },
		"a founder with another disk": func(id *identity) { id.StoreID = "a2" },
		"a founder twice":             func(id *identity) { id.Founders[0].ID = 2 },
		"founder 0":                   func(id *identity) { id.Founders[0].ID = 0 },
		"a founder without a disk":    func(id *identity) { id.Founders[0].StoreID = "" },
	} {
		id := wholeIdentity()
		change(&id)
		raw, err := id.encode()
		if err != nil {
			t.Fatal(err)
		}
		if got, err := parseIdentity(raw); !errors.Is(err, errIdentity) {
			t.Errorf("%s: read as %+v, %v", name, got, err)
		}
	}
}

func FuzzParseIdentity(f *testing.F) {
	whole, err := wholeIdentity().encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(whole)
	f.Add([]byte(`{"format":1,"store_id":"a1"}`))
	f.Add([]byte(`{"format":2,"store_id":"a1"}`))
	f.Add([]byte(`{"format":2,"store_id":"a1","later": {"a": 1},"Starts":2,"starts":3}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		id, err := parseIdentity(raw)
		if err != nil {
			return
		}
		again, err := id.encode()
		if err != nil {
			t.Fatal(err)
		}
		if id.Format == 1 {
			return // it is not written any more
		}
		if len(id.Founders) == 0 {
			id.Founders = nil // the same in JSON
		}
		if len(id.Seeds) == 0 {
			id.Seeds = nil
		}
		for name, value := range id.more { // without spaces
			if id.more[name], err = json.Marshal(value); err != nil {
				t.Fatal(err)
			}
		}
		if got, err := parseIdentity(again); err != nil || !reflect.DeepEqual(got, id) {
			t.Fatalf("%+v became %+v, %v", id, got, err)
		}
	})
}
