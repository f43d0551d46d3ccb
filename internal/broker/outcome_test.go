package broker

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/slots"
)

// keyOf is a key of a cache's shard.
func keyOf(shard, shards int) string {
	for i := range 10_000 {
		if key := "k" + string(rune('0'+i%10)) + strings.Repeat("x", i/10); slots.Shard(slots.Slot([]byte(key)), shards) == shard {
			return key
		}
	}
	panic("no key for the shard")
}

// TestClearOfAPart: where one shard refuses to be cleared and another has been
// cleared, or will be, the outcome is unknown: "not applied" would be a lie.
func TestClearOfAPart(t *testing.T) {
	t.Parallel()
	var disk slowWAL
	b, c := openOn(t, disk.wrap(vfs.NewMem()), 2, func(o *Options) { o.RequestTimeout = time.Second })
	busy, idle := keyOf(0, 2), keyOf(1, 2)
	mustDo(t, c, add(busy, 1), add(idle, 1))
	disk.close()
	_, d := submit(c, add(busy, 1)) // the shard's Clear has to wait for it
	<-disk.waiting
	err := c.Clear(context.Background())
	if felix.AsError(err).Code != felix.OutcomeUnknown {
		t.Errorf("Clear = %v", err)
	}
	<-d.done
	disk.open()
	eventually(t, "the idle shard is cleared", func() bool {
		return mustDo(t, c, felix.Op{Kind: felix.Get, Key: []byte(idle)})[0].Found == felix.NoRecord
	})
	if r := mustDo(t, c, felix.Op{Kind: felix.Get, Key: []byte(busy)}); r[0].Int != 2 {
		t.Errorf("the busy shard's counter is %d, want 2: it was cleared although its Clear had been given up", r[0].Int)
	}
	if err := closeBroker(b); err != nil {
		t.Error(err)
	}
}

func TestClearOutcome(t *testing.T) {
	refused := felix.Errorf(felix.Unavailable, "no")
	gone := felix.Errorf(felix.CacheNotFound, "gone")
	unknown := felix.Errorf(felix.OutcomeUnknown, "perhaps")
	for _, v := range []struct {
		shards []error
		want   felix.Code // 0 is success
	}{
		{[]error{nil, nil}, 0},
		{[]error{refused, gone}, felix.Unavailable},
		{[]error{gone, refused}, felix.CacheNotFound},
		{[]error{refused, nil}, felix.OutcomeUnknown},
		{[]error{nil, refused}, felix.OutcomeUnknown},
		{[]error{refused, unknown}, felix.OutcomeUnknown},
		{[]error{nil, unknown}, felix.OutcomeUnknown},
	} {
		err := clearOutcome(v.shards)
		if v.want == 0 && err != nil || v.want != 0 && (err == nil || felix.AsError(err).Code != v.want) {
			t.Errorf("shards that answer %v: %v", v.shards, err)
		}
	}
}

// TestChangesOfTheMetadataAreNotDenied: the caller is gone before the change is
// on disk. What has been changed all the same must not be answered as if it
// were not.
func TestChangesOfTheMetadataAreNotDenied(t *testing.T) {
	t.Parallel()
	scope := felix.Scope{Tenant: "t", Namespace: "n", Cache: "new"}
	var disk slowWAL
	b, _ := openOn(t, disk.wrap(vfs.NewMem()), 1, func(o *Options) { o.ReplicationIsTarget = true })
	for _, v := range []struct {
		name string
		do   func(context.Context) (felix.CacheInfo, error)
		want int // replication afterwards
	}{
		{"CreateCache", func(ctx context.Context) (felix.CacheInfo, error) {
			info, created, _, err := b.CreateCache(ctx, scope, felix.CacheSettings{})
			if err == nil && !created {
				err = errors.New("it was there")
			}
			return info, err
		}, 1},
		{"SetReplication", func(ctx context.Context) (felix.CacheInfo, error) {
			info, _, err := b.SetReplication(ctx, scope, 3)
			return info, err
		}, 3},
	} {
		disk.close()
		ctx, cancel := context.WithCancel(context.Background())
		type answer struct {
			info felix.CacheInfo
			err  error
		}
		done := make(chan answer, 1)
		go func() {
			info, err := v.do(ctx)
			done <- answer{info, err}
		}()
		<-disk.waiting
		cancel()
		disk.open()
		a := <-done
		info, err := b.CacheInfo(context.Background(), scope)
		if err != nil || info.Replication != v.want {
			t.Fatalf("after %s: %+v, %v", v.name, info, err)
		}
		if a.err != nil && !felix.AsError(a.err).MayBeApplied() {
			t.Errorf("%s = %v, although it took effect", v.name, a.err)
		}
		if a.err == nil && a.info != info {
			t.Errorf("%s = %+v, want %+v", v.name, a.info, info)
		}
	}
	if err := closeBroker(b); err != nil {
		t.Error(err)
	}
}

// TestSetReplicationBesideRecreation: a cache is deleted and made anew while a
// change of its replication waits. It changes the new cache, or nothing.
func TestSetReplicationBesideRecreation(t *testing.T) {
	t.Parallel()
	var disk slowWAL
	b, c := openOn(t, disk.wrap(vfs.NewMem()), 1, func(o *Options) { o.ReplicationIsTarget = true })
	disk.close()
	deleted, created, changed := make(chan error, 1), make(chan error, 1), make(chan error, 1)
	go func() { deleted <- b.DeleteCache(context.Background(), c.Scope()) }()
	<-disk.waiting
	// The pauses only make the order likely in which this went wrong once:
	// whatever the order, what follows holds.
	go func() {
		_, _, _, err := b.CreateCache(context.Background(), c.Scope(), felix.CacheSettings{Shards: 1})
		created <- err
	}()
	time.Sleep(5 * time.Millisecond)
	go func() {
		_, _, err := b.SetReplication(context.Background(), c.Scope(), 3)
		changed <- err
	}()
	time.Sleep(5 * time.Millisecond)
	disk.open()
	if err := errors.Join(<-deleted, <-created); err != nil {
		t.Fatal(err)
	}
	want := 3
	if err := <-changed; err != nil {
		want = 1
		if felix.AsError(err).Code != felix.CacheNotFound {
			t.Error(err)
		}
	}
	stored, err := b.readCache(context.Background(), c.Scope())
	if err != nil {
		t.Fatal(err)
	}
	info, err := b.CacheInfo(context.Background(), c.Scope())
	if err != nil || info.Replication != want || stored.Replication != want {
		t.Errorf("the replication is %d, in the metadata %d; want %d; %v", info.Replication, stored.Replication, want, err)
	}
	if err := closeBroker(b); err != nil {
		t.Error(err)
	}
}

// shardsOnDisk are the shards that the disk holds anything of, but the metadata's.
func shardsOnDisk(t *testing.T, b *Broker) []uint64 {
	t.Helper()
	state, err := b.db.Shards()
	if err != nil {
		t.Fatal(err)
	}
	log, err := b.log.Shards()
	if err != nil {
		t.Fatal(err)
	}
	all := append(state, log...)
	slices.Sort(all)
	return slices.DeleteFunc(slices.Compact(all), func(id uint64) bool { return id == metaShard })
}

// TestCachesInDoubtLeaveNothing: shards whose cache did not get its name, or lost
// it, do not stay on the disk until the next start.
func TestCachesInDoubtLeaveNothing(t *testing.T) {
	t.Parallel()
	t.Run("refused", func(t *testing.T) {
		t.Parallel()
		b, err := Open(context.Background(), Options{Dir: "data", FS: vfs.NewMem(), InflightBytes: 4 << 10})
		if err != nil {
			t.Fatal(err)
		}
		scope := felix.Scope{Tenant: "t", Namespace: "n", Cache: "c"}
		_, _, _, err = b.CreateCache(context.Background(), scope, felix.CacheSettings{Shards: 100})
		if felix.AsError(err).Code != felix.ResourceExhausted {
			t.Errorf("CreateCache = %v; its metadata is too large for the budget", err)
		}
		if left := shardsOnDisk(t, b); len(left) > 0 {
			t.Errorf("shards %v are left", left)
		}
		if err := closeBroker(b); err != nil {
			t.Error(err)
		}
	})
	impatient := func(o *Options) { o.metaTimeout = time.Second }
	t.Run("deleted", func(t *testing.T) {
		t.Parallel()
		var disk slowWAL
		b, c := openOn(t, disk.wrap(vfs.NewMem()), 3, impatient)
		disk.close()
		if err := b.DeleteCache(context.Background(), c.Scope()); felix.AsError(err).Code != felix.OutcomeUnknown {
			t.Errorf("DeleteCache = %v while the disk hangs", err)
		}
		disk.open()
		makeCache(t, b, "other", 2)
		if left := shardsOnDisk(t, b); len(left) != 2 {
			t.Errorf("shards %v are left, want those of one cache of 2", left)
		}
		if err := closeBroker(b); err != nil {
			t.Error(err)
		}
	})
	t.Run("created", func(t *testing.T) {
		t.Parallel()
		var disk slowWAL
		var armed atomic.Bool
		fs := disk.wrap(vfs.NewMem())
		b, _ := openOn(t, &diskFS{FS: fs, before: func(op diskOp) error {
			// Between the sync of the ids and that of the name comes that of the
			// shards' first state.
			if op.kind == "rename" || op.kind == "link" || op.kind == "sync" {
				if strings.Contains(op.path, "data/state") && armed.CompareAndSwap(true, false) {
					disk.close()
				}
			}
			return nil
		}}, 1, impatient)
		scope := felix.Scope{Tenant: "t", Namespace: "n", Cache: "new"}
		armed.Store(true)
		if _, _, _, err := b.CreateCache(context.Background(), scope, felix.CacheSettings{Shards: 3}); felix.AsError(err).Code != felix.OutcomeUnknown {
			t.Errorf("CreateCache = %v while the disk hangs", err)
		}
		disk.open()
		makeCache(t, b, "other", 2) // which finds out that the name was given
		if left := shardsOnDisk(t, b); len(left) != 1+3+2 {
			t.Errorf("shards %v are there, want those of caches of 1, 3 and 2", left)
		}
		if _, created, _, err := b.CreateCache(context.Background(), scope, felix.CacheSettings{Shards: 3}); err != nil || created {
			t.Errorf("CreateCache again = created %v, %v", created, err)
		}
		if left := shardsOnDisk(t, b); len(left) != 1+3+2 {
			t.Errorf("shards %v are there, want those of caches of 1, 3 and 2", left)
		}
		if err := closeBroker(b); err != nil {
			t.Error(err)
		}
	})
}
