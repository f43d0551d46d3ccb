package store

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/felix-go/felix/internal/record"
)

// hashed is a replica whose state is hashed: a table with the DB behind it.
type hashed struct {
	t     *testing.T
	db    *DB
	table *Table
}

func newHashed(t *testing.T, budget int64) *hashed {
	h := &hashed{t: t, db: openMem(t, vfs.NewMem(), Options{})}
	t.Cleanup(func() { closeDB(t, h.db) })
	if err := h.db.WriteCheckpoint(Checkpoint{Shard: 7, Applied: appliedAt(1), Replica: &record.Replica{RaftID: 3}}); err != nil {
		t.Fatal(err)
	}
	h.table = NewTable(appliedAt(1), &Budget{MaxBytes: budget})
	return h
}

// write writes a capture, and answers the hash of the state.
func (h *hashed) write(c *Capture) uint64 {
	h.t.Helper()
	for !h.table.CaptureSlice(c, 3) {
	}
	c.Checkpoint.Shard = 7
	if err := h.db.WriteCheckpoint(c.Checkpoint); err != nil {
		h.t.Fatal(err)
	}
	for !h.table.FinishSlice(c, 3) {
	}
	return h.hash()
}

func (h *hashed) hash() uint64 {
	h.t.Helper()
	s, err := h.db.OpenSnapshot(7)
	if err != nil {
		h.t.Fatal(err)
	}
	defer s.Close()
	sum, err := s.Hash(func(int) error { return nil })
	if err != nil {
		h.t.Fatal(err)
	}
	return sum
}

// entries apply the same random entries everywhere, from the next one up to index.
func (h *hashed) entries(index uint64) {
	h.t.Helper()
	for i := h.table.Applied().Index + 1; i <= index; i++ {
		rng := rand.New(rand.NewPCG(i, 1))
		key := fmt.Appendf(nil, "key %d", rng.IntN(40))
		b := record.AppendHeader(nil, record.Header{Base: i << 20, Ceiling: int64(i)})
		switch i % 4 {
		case 0, 1:
			b = record.AppendPutCounter(b, key, int64(i), rng.Int64N(3)*1000, 0)
		case 2:
			b = record.AppendPutValue(b, key, key, rng.Int64N(3)*1000, 0)
		default:
			b = record.AppendDelete(b, record.DeleteValue, key)
		}
		if err := h.table.Apply(i, 1, b, nil); err != nil {
			h.t.Fatal(err)
		}
		h.table.Trim(1000)
	}
}

// TestStateHash: the hash of a state is of the state as of one index, whatever
// else was written before, is applied since, and is in memory; any other record
// makes another one.
func TestStateHash(t *testing.T) {
	plain, busy := newHashed(t, 1<<30), newHashed(t, 1)
	busy.entries(50)
	busy.write(busy.table.BeginCheckpoint()) // hints of records that are overwritten
	busy.entries(100)
	busy.write(busy.table.BeginCheckpoint())
	for _, h := range []*hashed{plain, busy} {
		if !h.table.CaptureAt(300) || h.table.CaptureIndex() != 300 {
			t.Fatal("nothing will be captured")
		}
		h.entries(400)
	}
	c := busy.table.TakeCapture()
	if c == nil || c.Checkpoint.Applied.Index != 300 || busy.table.TakeCapture() != nil || busy.table.CaptureIndex() != 0 {
		t.Fatalf("the capture is %+v", c)
	}
	want := plain.write(plain.table.TakeCapture())
	if got := busy.write(c); got != want {
		t.Fatalf("the states of entry 300 have the hashes %x and %x", got, want)
	}
	for name, plant := range map[string]func(c *Checkpoint){
		"a record more":   func(*Checkpoint) {},
		"another ceiling": func(c *Checkpoint) { c.Records, c.Applied.Ceiling = nil, 79 },
		"another index":   func(c *Checkpoint) { c.Records, c.Applied.Index = nil, 301 },
		"another count":   func(c *Checkpoint) { c.Records, c.Applied.Counts.Keys = nil, 80 },
	} {
		t.Run(name, func(t *testing.T) {
			same := newHashed(t, 1<<30)
			same.entries(300)
			if same.table.CaptureAt(299) || !same.table.CaptureAt(300) {
				t.Fatal("what has passed is captured, or what is now is not")
			}
			if got := same.write(same.table.TakeCapture()); got != want {
				t.Fatalf("the hash is %x, want %x", got, want)
			}
			part := Checkpoint{Shard: 7, Applied: same.table.Applied(), Records: []CheckpointRecord{{Key: []byte("planted"),
				Cell: record.Cell{Has: record.HasCounter, Sum: 1, CounterVer: 1}}}}
			part.Applied.Chain = record.Chain{}
			plant(&part)
			if err := same.db.WriteCheckpoint(part); err != nil {
				t.Fatal(err)
			}
			if same.hash() == want {
				t.Error("the hash is the same")
			}
		})
	}
}

// TestCaptureAtMisses: what cannot be captured is not captured at another index.
func TestCaptureAtMisses(t *testing.T) {
	h := newHashed(t, 1<<30)
	h.table.CaptureAt(30)
	h.entries(20)
	other := h.table.BeginCheckpoint()
	h.entries(40)
	if c := h.table.TakeCapture(); c != nil || h.table.CaptureAt(40) {
		t.Errorf("captured while another checkpoint is under way: %+v", c)
	}
	h.write(other)
	h.table.CaptureAt(60)
	h.table.Install(appliedAt(59))
	h.entries(70)
	if c := h.table.TakeCapture(); c != nil {
		t.Errorf("captured after a snapshot was installed: %+v", c)
	}
}

// TestHashIsPaced: who is told how much was read can end it.
func TestHashIsPaced(t *testing.T) {
	h := newHashed(t, 1<<30)
	var part Checkpoint
	for i := range 100 {
		part.Records = append(part.Records, CheckpointRecord{Key: fmt.Appendf(nil, "key %d", i),
			Cell: record.Cell{Has: record.HasValue, Value: make([]byte, 10_000), ValueVer: 1}})
	}
	part.Shard, part.Applied = 7, appliedAt(2)
	if err := h.db.WriteCheckpoint(part); err != nil {
		t.Fatal(err)
	}
	s, err := h.db.OpenSnapshot(7)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	calls, enough := 0, errors.New("enough")
	_, err = s.Hash(func(bytes int) error {
		if calls++; calls == 3 {
			return enough
		}
		if bytes < 256<<10 || bytes > 300<<10 {
			t.Errorf("told after %d bytes", bytes)
		}
		return nil
	})
	if !errors.Is(err, enough) {
		t.Errorf("ended with %v", err)
	}
}
