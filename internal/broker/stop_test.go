package broker

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/shard"
)

// TestCommitterStopsAfterAFailedCommit: once the log could not be written, nobody
// goes on with it, even if Fatal should return; nothing is acknowledged.
func TestCommitterStopsAfterAFailedCommit(t *testing.T) {
	t.Parallel()
	fatal := make(chan error, 1)
	b, c := openOn(t, vfs.NewMem(), 2, func(o *Options) { o.Fatal = func(err error) { fatal <- err } })
	mustDo(t, c, add("a", 1))
	if err := b.log.Close(); err != nil {
		t.Fatal(err)
	}
	first, d1 := submit(c, add("a", 1))
	if err := <-fatal; !strings.Contains(err.Error(), "the log cannot be written") {
		t.Errorf("Fatal was told %v", err)
	}
	select {
	case <-b.committer.done:
	case <-time.After(time.Minute):
		t.Fatal("the committer goes on after a failed commit")
	}
	second, d2 := submit(c, add("b", 1), add("c", 1))
	_ = closeBroker(b) // the last checkpoint may fail: the log cannot be truncated
	<-d1.done
	<-d2.done
	for _, r := range append(first.Replies, second.Replies...) {
		if r.Err == nil {
			t.Errorf("an operation was acknowledged after the log had failed: %+v", r)
		}
	}
}

// TestCloseIsBounded: a disk that does not let go of a checkpoint does not hold
// up a stop for ever, and what was acknowledged is there at the next start.
func TestCloseIsBounded(t *testing.T) {
	t.Parallel()
	for _, v := range []struct {
		name  string
		every time.Duration // how often there are checkpoints
	}{
		{"the last checkpoint", time.Hour},
		{"a checkpoint under way", time.Millisecond},
	} {
		t.Run(v.name, func(t *testing.T) {
			t.Parallel()
			mem := vfs.NewMem()
			var armed atomic.Bool
			release, met := make(chan struct{}), make(chan struct{}, 1000)
			disk := &diskFS{FS: mem, before: func(op diskOp) error {
				if armed.Load() && strings.Contains(op.path, "checkpoint-") {
					met <- struct{}{}
					<-release
				}
				return nil
			}}
			b, c := openOn(t, disk, 2, func(o *Options) { o.CheckpointEvery = v.every })
			armed.Store(true)
			mustDo(t, c, add("a", 1), add("b", 2))
			if v.every < time.Hour {
				<-met
			}
			ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
			defer cancel()
			began := time.Now()
			if err := b.Close(ctx); err == nil || !strings.Contains(err.Error(), "too slow") {
				t.Errorf("Close = %v", err)
			}
			if took := time.Since(began); took > 30*time.Second {
				t.Errorf("Close took %v", took)
			}
			// The process would end here. This one waits until the files are closed.
			armed.Store(false)
			close(release)
			var err error
			eventually(t, "the directory is free", func() bool {
				b, err = Open(context.Background(), Options{Dir: "data", FS: mem})
				return err == nil || !strings.Contains(err.Error(), "in use")
			})
			if err != nil {
				t.Fatal(err)
			}
			if c, err = b.Cache(context.Background(), c.Scope()); err != nil {
				t.Fatal(err)
			}
			if r := mustDo(t, c, add("a", 0), add("b", 0)); r[0].Int != 1 || r[1].Int != 2 {
				t.Errorf("a is %d, b is %d", r[0].Int, r[1].Int)
			}
			if err := closeBroker(b); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestDroppedReplicaDoesNothing: a replica that was dropped after it had become
// active does not work on.
func TestDroppedReplicaDoesNothing(t *testing.T) {
	t.Parallel()
	b, c := openOn(t, vfs.NewMem(), 1, nil)
	mustDo(t, c, add("a", 1))
	r := c.(*cache).shards[0].here.Load()
	var left int
	r.worker.callWait(func() {
		w := r.worker
		w.activate(r)
		w.drop(r, errCacheGone)
		// A step would find that its time is up, and say so.
		request := &shard.Request{Kind: shard.Count, Finished: newFinished()}
		r.shard.Submit(request)
		w.advance()
		select {
		case <-request.Finished:
			left++
		default:
		}
	})
	if left > 0 {
		t.Error("a dropped replica answered a request")
	}
	b.mu.Lock()
	delete(b.replicas, r.id)
	delete(b.caches, c.Scope())
	b.mu.Unlock()
	if err := closeBroker(b); err != nil {
		t.Error(err)
	}
}

// TestIdleLogIsCovered: when there is nothing more to do, the log gets its mark
// behind what was synced last.
func TestIdleLogIsCovered(t *testing.T) {
	t.Parallel()
	b, c := openOn(t, vfs.NewMem(), 1, func(o *Options) { o.coverAfter = 20 * time.Millisecond })
	mustDo(t, c, add("a", 1))
	before := b.Stats().Log.Syncs
	eventually(t, "a mark is synced", func() bool { return b.Stats().Log.Syncs > before })
	if r := mustDo(t, c, felix.Op{Kind: felix.Get, Key: []byte("a")}); r[0].Int != 1 {
		t.Errorf("a is %d", r[0].Int)
	}
	if err := closeBroker(b); err != nil {
		t.Error(err)
	}
}
