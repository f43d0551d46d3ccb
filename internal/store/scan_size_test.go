package store

import (
	"fmt"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/record"
)

// TestPageIsBoundedInBytes: a page over large values ends early, says that
// there is more, and the pages together are the whole.
func TestPageIsBoundedInBytes(t *testing.T) {
	db, err := Open("db", Options{FS: vfs.NewMem()})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	const keys = 12
	part := Checkpoint{Shard: 7, Applied: record.Applied{Index: 9, Term: 1}}
	for i := range keys {
		cell := record.Cell{Has: record.HasValue, Value: make([]byte, felix.MaxValueBytes)}
		part.Records = append(part.Records, CheckpointRecord{Key: fmt.Appendf(nil, "k%02d", i), Cell: cell})
	}
	if err := db.WriteCheckpoint(part); err != nil {
		t.Fatal(err)
	}
	var after []byte
	for seen := 0; ; {
		c, err := db.Cursor(7, nil, after)
		if err != nil {
			t.Fatal(err)
		}
		items, more, err := c.Page(PageRequest{View: felix.ViewValue, Limit: 1000, MaxBytes: felix.MaxScanPageBytes})
		if err != nil {
			t.Fatal(err)
		}
		if n := len(items) * felix.MaxValueBytes; n == 0 || n > felix.MaxScanPageBytes+felix.MaxValueBytes {
			t.Fatalf("a page of %d bytes", n)
		}
		for _, item := range items {
			if want := fmt.Sprintf("k%02d", seen); string(item.Key) != want {
				t.Fatalf("item %q, want %q", item.Key, want)
			}
			seen++
		}
		if !more {
			if seen != keys {
				t.Fatalf("%d keys, want %d", seen, keys)
			}
			return
		}
		after = items[len(items)-1].Key
	}
}
