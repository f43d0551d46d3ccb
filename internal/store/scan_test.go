package store

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	felix "github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/record"
)

// wantPage is the dumb page: everything in one map, sorted, filtered.
func wantPage(disk map[string]record.Cell, overlay []OverlayItem, cut bool, prefix, after []byte, view felix.View, now int64) (items []felix.ScanItem) {
	all := maps.Clone(disk)
	for _, o := range overlay {
		all[string(o.Key)] = o.Cell
	}
	for _, key := range slices.Sorted(maps.Keys(all)) {
		if !strings.HasPrefix(key, string(prefix)) || after != nil && key <= string(after) {
			continue
		}
		if cut && key > string(overlay[len(overlay)-1].Key) {
			break
		}
		c := all[key]
		counter := c.Has&record.HasCounter != 0 && (c.CounterExpiry == 0 || c.CounterExpiry > now)
		value := c.Has&record.HasValue != 0 && (c.ValueExpiry == 0 || c.ValueExpiry > now)
		switch {
		case counter && (view == felix.ViewCounter || view == felix.ViewRedis):
			items = append(items, felix.ScanItem{Key: []byte(key), Kind: felix.CounterRecord, Int: c.Sum,
				ExpiresAtMillis: c.CounterExpiry, Version: c.CounterVer})
		case value && (view == felix.ViewValue || view == felix.ViewRedis):
			items = append(items, felix.ScanItem{Key: []byte(key), Kind: felix.ValueRecord, Value: c.Value,
				ExpiresAtMillis: c.ValueExpiry, Version: c.ValueVer})
		}
	}
	return items
}

func samePage(a, b []felix.ScanItem) bool {
	return slices.EqualFunc(a, b, func(x, y felix.ScanItem) bool {
		same := bytes.Equal(x.Value, y.Value)
		x.Value, y.Value = nil, nil
		return same && reflect.DeepEqual(x, y)
	})
}

// randomOverlay are cells as the memory might hold them in the range.
func (w *world) randomOverlay(prefix, after []byte) (overlay []OverlayItem, cut bool) {
	cells := map[string]record.Cell{}
	for range w.rng.IntN(10) {
		key := w.key()
		if strings.HasPrefix(key, string(prefix)) && (after == nil || key > string(after)) {
			cells[key] = w.cell()
		}
	}
	for _, key := range slices.Sorted(maps.Keys(cells)) {
		overlay = append(overlay, OverlayItem{Key: []byte(key), Cell: cells[key]})
	}
	return overlay, len(overlay) > 0 && w.rng.IntN(3) == 0
}

func TestCursorPageAgainstModel(t *testing.T) {
	prefixes := []string{"", "b", "b\xff", "\xff", "\xff\xff", "user:", "user:1", "nothing"}
	for seed := range uint64(8) {
		w := &world{rng: rand.New(rand.NewPCG(seed, 77)), disk: diskModel{}, now: 1000}
		db := openMem(t, vfs.NewMem(), Options{FileBytes: 300})
		for range 8 {
			parts := []Checkpoint{w.checkpoint(1), w.checkpoint(2), w.checkpoint(1<<64 - 1)}
			if err := db.WriteCheckpoint(parts...); err != nil {
				t.Fatal(err)
			}
			w.disk.write(parts)
			for range 60 {
				w.comparePage(t, db, prefixes[w.rng.IntN(len(prefixes))])
			}
		}
		closeDB(t, db)
	}
}

func (w *world) comparePage(t *testing.T, db *DB, prefix string) {
	t.Helper()
	shard := []uint64{1, 2, 1<<64 - 1, 7}[w.rng.IntN(4)]
	var after []byte
	if w.rng.IntN(2) == 0 {
		after = []byte(w.key())
	}
	overlay, cut := w.randomOverlay([]byte(prefix), after)
	view := felix.View(w.rng.IntN(3))
	limit := 1 + w.rng.IntN(12)
	disk := map[string]record.Cell{}
	if s := w.disk[shard]; s != nil {
		disk = s.cells
	}
	want := wantPage(disk, overlay, cut, []byte(prefix), after, view, w.now)
	c, err := db.Cursor(shard, []byte(prefix), after)
	if err != nil {
		t.Fatal(err)
	}
	items, more, err := c.Page(PageRequest{View: view, Overlay: overlay, Cut: cut, NowMillis: w.now, Limit: limit, MaxBytes: 1 << 20})
	what := fmt.Sprintf("shard %d prefix %q after %q view %d limit %d cut %v overlay %v", shard, prefix, after, view, limit, cut, overlay)
	if err != nil || !samePage(items, want[:min(limit, len(want))]) {
		t.Fatalf("%s:\ngot  %v, %v\nwant %v", what, items, err, want)
	}
	if !more && (len(want) > limit || cut) {
		t.Fatalf("%s: more is false, but there are %d items", what, len(want))
	}
	if more && !cut && len(items) < limit {
		t.Fatalf("%s: more is true after a page that is not full", what)
	}
	if _, _, err := c.Page(PageRequest{View: view, NowMillis: w.now, Limit: limit}); err == nil {
		t.Fatal("a cursor gives a second page")
	}
}

// TestCursorPins shows that a cursor keeps its moment, whatever is written,
// dropped and compacted before its page is read.
func TestCursorPins(t *testing.T) {
	db := openMem(t, vfs.NewMem(), Options{})
	put := func(sum int64, key string) {
		t.Helper()
		p := Checkpoint{Shard: 1, Records: []CheckpointRecord{{Key: []byte(key), Cell: record.Cell{Has: record.HasCounter, Sum: sum}}}}
		if err := db.WriteCheckpoint(p); err != nil {
			t.Fatal(err)
		}
	}
	put(1, "k")
	c, err := db.Cursor(1, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	unused, err := db.Cursor(1, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	put(2, "k")
	put(3, "j")
	if err := db.Drop(1); err != nil {
		t.Fatal(err)
	}
	if err := db.kv.Compact(t.Context(), []byte{0}, []byte{0xff}, false); err != nil {
		t.Fatal(err)
	}
	items, more, err := c.Page(PageRequest{View: felix.ViewRedis, NowMillis: 5, Limit: 10, MaxBytes: 1000})
	if err != nil || more || len(items) != 1 || items[0].Int != 1 || string(items[0].Key) != "k" {
		t.Fatalf("%v, %v, %v", items, more, err)
	}
	c.Close()
	unused.Close()
	unused.Close()
	closeDB(t, db) // would report a leaked iterator
}

func TestPageRefusesAnEmptyCut(t *testing.T) {
	db := openMem(t, vfs.NewMem(), Options{})
	c, err := db.Cursor(1, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := c.Page(PageRequest{View: felix.ViewRedis, Cut: true}); err == nil {
		t.Fatal("a cut overlay without items was accepted")
	}
	closeDB(t, db)
}
