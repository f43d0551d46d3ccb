package broker

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/felix-go/felix"
)

// submitParts submits parts as one batch, as the loop of a door does with what
// its connections have sent.
func submitParts(c felix.Cache, parts ...[]felix.Op) (*felix.Batch, *told) {
	b := &felix.Batch{}
	for _, p := range parts {
		b.Ops = append(b.Ops, p...)
		b.Ends = append(b.Ends, int32(len(b.Ops)))
	}
	d := newTold(len(b.Ops))
	b.Replies, b.Done = make([]felix.Reply, len(b.Ops)), d
	c.Submit(b)
	return b, d
}

// TestMergedBatchIsAdmittedInParts: a batch of many connections that is larger
// than the budget is not refused as a whole, for ever: each part is admitted or
// refused by itself, and whole.
func TestMergedBatchIsAdmittedInParts(t *testing.T) {
	t.Parallel()
	const bound, connections, each = 64 << 10, 100, 10
	b, c := openOn(t, vfs.NewMem(), 4, func(o *Options) { o.InflightBytes = bound })
	waiting := make([]int, connections)
	for i := range waiting {
		waiting[i] = i
	}
	for round := 0; len(waiting) > 0; round++ {
		if round == connections {
			t.Fatalf("after %d rounds, connections %v have not been admitted", round, waiting)
		}
		var parts [][]felix.Op
		for _, connection := range waiting {
			var ops []felix.Op
			for i := range each {
				ops = append(ops, add(fmt.Sprint(connection, "/", i), 1))
			}
			parts = append(parts, ops, []felix.Op{{Kind: felix.Add}}) // an illegal one between them
		}
		batch, d := submitParts(c, parts...)
		<-d.done
		if ops := d.twice(); ops != nil {
			t.Fatalf("operations %v were not told once", ops)
		}
		var refused []int
		for p, connection := range waiting {
			replies := batch.Replies[p*(each+1):][:each+1]
			if err := replies[each].Err; err == nil || err.Code != felix.InvalidArgument {
				t.Fatalf("an illegal operation answers %v", err)
			}
			failed := 0
			for _, r := range replies[:each] {
				if r.Err != nil {
					failed++
				}
			}
			if failed != 0 && failed != each {
				t.Fatalf("%d of a connection's %d operations were refused", failed, each)
			}
			if failed > 0 {
				refused = append(refused, connection)
			}
		}
		if len(refused) == len(waiting) {
			t.Fatalf("an idle broker refused all of %d connections", len(waiting))
		}
		waiting = refused
		eventually(t, "nothing is in flight", func() bool { return b.Stats().InflightBytes == 0 })
	}
	for connection := range connections {
		for i := range each {
			if r := mustDo(t, c, add(fmt.Sprint(connection, "/", i), 0)); r[0].Int != 1 {
				t.Fatalf("%d/%d was added to %d times", connection, i, r[0].Int)
			}
		}
	}
	if err := closeBroker(b); err != nil {
		t.Error(err)
	}
}

// TestLargePartRefusesNobodyElse: one connection's batch is too large; those of
// others in the same batch are admitted, before it and after it.
func TestLargePartRefusesNobodyElse(t *testing.T) {
	t.Parallel()
	b, c := openOn(t, vfs.NewMem(), 4, func(o *Options) { o.InflightBytes = 64 << 10 })
	large := felix.Op{Kind: felix.Set, View: felix.ViewValue, Key: []byte("large"), Value: []byte(strings.Repeat("x", 100_000))}
	batch, d := submitParts(c, []felix.Op{add("a", 1)}, []felix.Op{add("b", 1), large}, []felix.Op{add("a", 1), add("c", 1)})
	<-d.done
	for i, refused := range []bool{false, true, true, false, false} {
		if err := batch.Replies[i].Err; (err != nil) != refused || refused && err.Code != felix.ResourceExhausted {
			t.Errorf("operation %d: %v", i, err)
		}
	}
	if r := mustDo(t, c, add("a", 0), add("c", 0), felix.Op{Kind: felix.Get, Key: []byte("b")}); r[0].Int != 2 || r[1].Int != 1 || r[2].Found != felix.NoRecord {
		t.Errorf("%+v", r)
	}
	if err := closeBroker(b); err != nil {
		t.Error(err)
	}
}
