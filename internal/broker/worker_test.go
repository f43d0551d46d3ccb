package broker

import (
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/felix-go/felix/internal/record"
)

// TestStride: a worker looks at the clock less often only while nothing waits and
// every shard has an owner.
func TestStride(t *testing.T) {
	t.Parallel()
	b, c := openOn(t, vfs.NewMem(), 16, func(o *Options) { o.TickInterval, o.Workers = time.Hour, 1 })
	mustDo(t, c, add("k", 1))
	eventually(t, "all shards are owned", func() bool { return b.Stats().Owned == 17 })
	w := b.workers[0]
	tick := func() (stride int) {
		w.callWait(func() {
			w.advance() // what is still active
			w.tick(1)
			stride = w.stride()
		})
		return stride
	}
	if got := tick(); got != maxStride {
		t.Errorf("an idle worker waits for %d ticks, want %d", got, maxStride)
	}
	if err := b.db.SetReplicas(map[uint64]record.Replica{71: {RaftID: 9}}); err != nil {
		t.Fatal(err)
	}
	if _, err := b.openReplica(b.addRoute(71, 1), electionTicks); err != nil {
		t.Fatal(err)
	}
	if got := tick(); got != 1 {
		t.Errorf("with a replica that knows no owner a worker waits for %d ticks, want 1", got)
	}
	if err := closeBroker(b); err != nil {
		t.Error(err)
	}
}

// TestBeat: whatever the strides are, the clocks of all shards that the worker
// leads are right whenever heartbeatTicks have gone by, and not before.
func TestBeat(t *testing.T) {
	t.Parallel()
	b, c := openOn(t, vfs.NewMem(), 4, func(o *Options) { o.TickInterval, o.Workers = time.Hour, 1 })
	mustDo(t, c, add("k", 1))
	eventually(t, "all shards are owned", func() bool { return b.Stats().Owned == 5 })
	w := b.workers[0]
	w.callWait(func() {
		w.tick(heartbeatTicks) // from here on all owe the same
		for sinceBeat, i := w.ticks%heartbeatTicks, 0; i < 100; i++ {
			stride := 1 + i*i%3%maxStride
			w.tick(stride)
			if sinceBeat += stride; sinceBeat >= heartbeatTicks {
				sinceBeat -= heartbeatTicks
				if n := owedMost(w); n != 0 {
					t.Errorf("after %d ticks a clock is %d behind", w.ticks, n)
				}
			} else if n := owedMost(w); n == 0 {
				t.Errorf("after %d ticks all clocks have moved, apart from the heartbeats", w.ticks)
			}
		}
	})
	if err := closeBroker(b); err != nil {
		t.Error(err)
	}
}

// owedMost is how far the clock of a shard is behind that is furthest behind.
func owedMost(w *worker) (ticks int) {
	for _, r := range w.replicas {
		ticks = max(ticks, r.owed)
	}
	return ticks
}
