package broker

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/servicetest"
)

// testBroker is a broker whose wall clock the suite sets.
type testBroker struct {
	*Broker
	wall atomic.Int64
}

// SetNow implements servicetest.Clocked.
func (t *testBroker) SetNow(millis int64) { t.wall.Store(millis) }

// openTest opens a broker on fs and closes it with the test.
func openTest(t *testing.T, fs vfs.FS, change func(*Options)) *testBroker {
	t.Helper()
	tb := &testBroker{}
	o := Options{Dir: "data", FS: fs, ReplicationIsTarget: true, Wall: func() int64 {
		if now := tb.wall.Load(); now != 0 {
			return now
		}
		return time.Now().UnixMilli()
	}}
	if change != nil {
		change(&o)
	}
	b, err := Open(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	tb.Broker = b
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := b.Close(ctx); err != nil {
			t.Errorf("closing the broker: %v", err)
		}
	})
	return tb
}

func TestService(t *testing.T) {
	servicetest.Run(t, func(t *testing.T) felix.Service {
		return openTest(t, vfs.NewMem(), func(o *Options) {
			o.CheckpointEvery = 100 * time.Millisecond // expired records are found once they are in the state store
			o.SweepEvery = 100 * time.Millisecond
		})
	})
}

// TestServiceUnderPressure runs the suite with hardly any memory for records,
// constant checkpoints and tiny intervals: every operation meets records that
// were evicted, and every scan a checkpoint under way.
func TestServiceUnderPressure(t *testing.T) {
	servicetest.Run(t, func(t *testing.T) felix.Service {
		return openTest(t, vfs.NewMem(), func(o *Options) {
			o.Workers = 3
			o.RecordBytes = 1
			o.CheckpointDirty = 1
			o.SweepEvery = 10 * time.Millisecond
			o.TickInterval = 5 * time.Millisecond
		})
	})
}
