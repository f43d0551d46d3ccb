package broker

import (
	"bytes"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/felix-go/felix"
)

// stuckState is a disk on which no checkpoint is finished while it is closed.
type stuckState struct {
	mu sync.RWMutex // held for writing: closed
}

func (s *stuckState) wrap(fs vfs.FS) vfs.FS {
	return &diskFS{FS: fs, before: func(op diskOp) error {
		if op.kind == "sync" && strings.Contains(op.path, "checkpoint-") {
			s.mu.RLock()
			defer s.mu.RUnlock()
		}
		return nil
	}}
}

const pressValue = 10 << 10

func setValue(key string) felix.Op {
	return felix.Op{Kind: felix.Set, View: felix.ViewValue, Key: []byte(key), Value: bytes.Repeat([]byte{key[len(key)-1]}, pressValue)}
}

// press sets values under the keys that next gives, from a few clients, until
// each has been refused some times; it answers which keys were acknowledged.
func press(t *testing.T, c felix.Cache, next func() string, watch func()) (acked []string) {
	t.Helper()
	var mu sync.Mutex
	var clients sync.WaitGroup
	for range 4 {
		clients.Go(func() {
			for refused, tries := 0, 0; refused < 2; tries++ {
				if tries == 2000 {
					t.Error("nothing holds writes back")
					return
				}
				key := next()
				done := newTold(1)
				batch := &felix.Batch{Ops: []felix.Op{setValue(key)}, Replies: make([]felix.Reply, 1), Done: done,
					Deadline: time.Now().Add(300 * time.Millisecond)}
				c.Submit(batch)
				<-done.done
				watch()
				switch err := batch.Replies[0].Err; {
				case err == nil:
					mu.Lock()
					acked = append(acked, key)
					mu.Unlock()
				case err.Code != felix.ResourceExhausted || err.RetryAfter <= 0:
					t.Errorf("a refused write answers %+v", err)
					return
				default:
					refused++
				}
			}
		})
	}
	clients.Wait()
	return acked
}

func wantValues(t *testing.T, c felix.Cache, keys []string) {
	t.Helper()
	for _, key := range keys {
		r := mustDo(t, c, felix.Op{Kind: felix.Get, View: felix.ViewValue, Key: []byte(key)})
		if !bytes.Equal(r[0].Value, setValue(key).Value) {
			t.Fatalf("%s was acknowledged and is %d bytes", key, len(r[0].Value))
		}
	}
}

// TestWritesWaitForTheStateStore: where no checkpoint gets through, memory stays
// bounded: writes wait and are refused, reads go on. When the disk works again,
// so do writes, and what was acknowledged is there.
func TestWritesWaitForTheStateStore(t *testing.T) {
	const bound = 1 << 20
	var disk stuckState
	mem := vfs.NewMem()
	b, c := openOn(t, disk.wrap(mem), 4, func(o *Options) {
		o.RecordBytes, o.MaxDirtyBytes = bound, bound
	})
	mustDo(t, c, setValue("before"))
	var n, peak atomic.Int64
	disk.mu.Lock()
	acked := press(t, c, func() string { return fmt.Sprint("key", n.Add(1)) }, func() {
		if now := b.Stats().RecordBytes; now > peak.Load() {
			peak.Store(now)
		}
	})
	wantValues(t, c, []string{"before"})
	disk.mu.Unlock()
	t.Logf("%d writes were acknowledged, %d bytes of records at most", len(acked), peak.Load())
	if peak.Load() > 2*bound || len(acked) < 20 {
		t.Errorf("%d bytes of records after %d writes; the bound is %d", peak.Load(), len(acked), bound)
	}
	for i := range 300 { // three times the bound
		key := fmt.Sprint("after", i)
		mustDo(t, c, setValue(key))
		acked = append(acked, key)
	}
	wantValues(t, c, acked)
	if err := closeBroker(b); err != nil {
		t.Fatal(err)
	}
}

// TestHeldWritesLeaveRoomForReads: however many writes wait, they do not fill
// the budget of operations in flight.
func TestHeldWritesLeaveRoomForReads(t *testing.T) {
	const bound = 1 << 20
	var disk stuckState
	b, c := openOn(t, disk.wrap(vfs.NewMem()), 4, func(o *Options) { o.MaxDirtyBytes, o.InflightBytes = bound, bound })
	disk.mu.Lock()
	var waiting []*told
	for i := 0; len(waiting) < bound/pressValue/3; i++ {
		batch, done := submit(c, setValue(fmt.Sprint("key", i)))
		select {
		case <-done.done:
		case <-time.After(20 * time.Millisecond):
			waiting = append(waiting, done)
		}
		if i > 2000 {
			t.Fatal("nothing holds writes back")
		}
		if isDone(done) && batch.Replies[0].Err != nil {
			t.Fatal(batch.Replies[0].Err)
		}
	}
	for refused := false; !refused; {
		batch, done := submit(c, setValue("more"))
		refused = isDone(done) && batch.Replies[0].Err != nil
		if waiting = append(waiting, done); len(waiting) > bound/pressValue*3/4 {
			t.Fatal("held writes fill the budget")
		}
	}
	wantValues(t, c, []string{"key0"})
	disk.mu.Unlock()
	for _, done := range waiting {
		<-done.done
	}
	if err := closeBroker(b); err != nil {
		t.Fatal(err)
	}
}

// TestWritesWaitForTheLog: the same, where few records are written again and
// again: what a restart would replay is bounded, over all shards.
func TestWritesWaitForTheLog(t *testing.T) {
	const bound = 2 << 20
	var disk stuckState
	b, c := openOn(t, disk.wrap(vfs.NewMem()), 64, func(o *Options) {
		o.MaxLogBytes, o.TickInterval = bound, 5*time.Millisecond
	})
	var n atomic.Int64
	disk.mu.Lock()
	acked := press(t, c, func() string { return fmt.Sprint("key", n.Add(1)%64) }, func() { time.Sleep(time.Millisecond) })
	if logged := b.Stats().LogBytes; logged < bound || logged > 2*bound {
		t.Errorf("%d bytes of log; the bound is %d", logged, bound)
	}
	disk.mu.Unlock()
	eventually(t, "the log is truncated", func() bool { return b.Stats().LogBytes < bound/2 })
	mustDo(t, c, setValue("after"))
	wantValues(t, c, append(acked, "after"))
	if err := closeBroker(b); err != nil {
		t.Fatal(err)
	}
}

// TestReplayIsBoundedInMemory: a log of many times the memory for records is
// replayed with checkpoints in the middle of it.
func TestReplayIsBoundedInMemory(t *testing.T) {
	const bound, keys = 2 << 20, 4000
	mem := vfs.NewCrashableMem()
	b, c := openOn(t, mem, 4, noCheckpoints)
	var acked []string
	var ops []felix.Op
	for i := range keys {
		acked = append(acked, fmt.Sprint("key", i))
		if ops = append(ops, setValue(acked[i])); len(ops) == 100 {
			mustDo(t, c, ops...)
			ops = nil
		}
	}
	killed := mem.CrashClone(vfs.CrashCloneCfg{})
	if err := closeBroker(b); err != nil {
		t.Fatal(err)
	}
	b, c = openOn(t, killed, 4, func(o *Options) { o.RecordBytes, o.MaxDirtyBytes = bound, bound })
	peak := int64(0)
	eventually(t, "the shards are owned", func() bool {
		peak = max(peak, b.Stats().RecordBytes)
		return b.Ready() == nil
	})
	n := b.Stats().Checkpoints.Checkpoints
	t.Logf("%d checkpoints, %d bytes of records at most", n, peak)
	if limit := int64(bound + 4*2*maxApplyBytes); peak > limit || n < 2 {
		t.Errorf("a replay of %d bytes took %d checkpoints and %d bytes of records, want at most %d", keys*pressValue, n, peak, limit)
	}
	wantValues(t, c, acked)
	if err := closeBroker(b); err != nil {
		t.Fatal(err)
	}
}
