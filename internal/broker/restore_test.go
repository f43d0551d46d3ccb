package broker

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/felix-go/felix/internal/raftlog"
)

// TestOlderLog: a log that ends below what the state has applied has lost synced
// data: a log file is gone, or an older log was restored beside a newer state.
// It is refused, not begun anew.
func TestOlderLog(t *testing.T) {
	t.Parallel()
	mem := vfs.NewCrashableMem()
	b, c := openOn(t, mem, 1, nil)
	mustDo(t, c, add("a", 1))
	older := mem.CrashClone(vfs.CrashCloneCfg{})
	for range 100 {
		mustDo(t, c, add("a", 1))
	}
	if err := closeBroker(b); err != nil { // with a checkpoint
		t.Fatal(err)
	}
	mixed := mem.CrashClone(vfs.CrashCloneCfg{})
	if err := mixed.RemoveAll("data/log"); err != nil {
		t.Fatal(err)
	}
	if ok, err := vfs.Clone(older, mixed, "data/log", "data/log"); !ok || err != nil {
		t.Fatal(ok, err)
	}
	_, err := Open(context.Background(), Options{Dir: "data", FS: mixed})
	if !errors.Is(err, raftlog.ErrCorrupt) || !strings.Contains(err.Error(), "synced data is missing") {
		t.Errorf("Open = %v", err)
	}
}
