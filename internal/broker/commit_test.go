package broker

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/felix-go/felix"
)

// openOn opens a broker with a cache on fs, for a test to close itself.
func openOn(t testing.TB, fs vfs.FS, shards int, change func(*Options)) (*Broker, felix.Cache) {
	t.Helper()
	o := Options{Dir: "data", FS: fs, RequestTimeout: time.Minute}
	if change != nil {
		change(&o)
	}
	b, err := Open(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	return b, makeCache(t, b, "c", shards)
}

func makeCache(t testing.TB, b *Broker, name string, shards int) felix.Cache {
	t.Helper()
	scope := felix.Scope{Tenant: "t", Namespace: "n", Cache: name}
	_, _, _, err := b.CreateCache(context.Background(), scope, felix.CacheSettings{Shards: shards})
	if err != nil {
		t.Fatal(err)
	}
	c, err := b.Cache(context.Background(), scope)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func mustDo(t testing.TB, c felix.Cache, ops ...felix.Op) []felix.Reply {
	t.Helper()
	replies, err := felix.Do(context.Background(), c, ops...)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range replies {
		if r.Err != nil {
			t.Fatal(r.Err)
		}
	}
	return replies
}

func add(key string, n int64) felix.Op { return felix.Op{Kind: felix.Add, Key: []byte(key), Int: n} }

// TestGroupCommit: operations that come while the disk syncs share the next
// sync, whatever connection and shard they belong to.
func TestGroupCommit(t *testing.T) {
	const submitters, each = 64, 20
	syncs := map[int]float64{}
	for _, shards := range []int{1, 64} {
		var gate slowWAL
		b, c := openOn(t, gate.wrap(vfs.NewMem()), shards, nil)
		before := b.Stats().Log.Syncs
		gate.delay.Store(int64(2 * time.Millisecond))
		var all sync.WaitGroup
		for s := range submitters {
			all.Go(func() {
				for i := range each {
					mustDo(t, c, add(fmt.Sprint(s, "/", i), 1))
				}
			})
		}
		all.Wait()
		gate.delay.Store(0)
		n := b.Stats().Log.Syncs - before
		syncs[shards] = float64(n)
		t.Logf("%d shards: %d operations, %d syncs", shards, submitters*each, n)
		if n > submitters*each/8 {
			t.Errorf("%d shards: %d syncs for %d operations: they do not share", shards, n, submitters*each)
		}
		if err := closeBroker(b); err != nil {
			t.Error(err)
		}
	}
	if syncs[64] > 4*syncs[1] {
		t.Errorf("%v syncs with 64 shards, %v with one: syncs grow with the shards", syncs[64], syncs[1])
	}
}

// slowWAL is a disk whose log syncs take long, or for ever until released.
type slowWAL struct {
	delay   atomic.Int64 // nanoseconds
	mu      sync.Mutex
	gate    chan struct{} // nil is open
	waiting chan struct{} // told of each sync that meets the gate
}

func (s *slowWAL) wrap(fs vfs.FS) vfs.FS {
	s.waiting = make(chan struct{}, 1000)
	return &diskFS{FS: fs, before: func(op diskOp) error {
		if op.kind != "sync" || !op.isWAL() {
			return nil
		}
		time.Sleep(time.Duration(s.delay.Load()))
		s.mu.Lock()
		gate := s.gate
		s.mu.Unlock()
		if gate != nil {
			s.waiting <- struct{}{}
			<-gate
		}
		return nil
	}}
}

func (s *slowWAL) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gate = make(chan struct{})
}

func (s *slowWAL) open() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.gate)
	s.gate = nil
}

// told counts how often each operation of a batch was told to be done.
type told struct {
	mu    sync.Mutex
	times []int
	left  int
	done  chan struct{}
}

func newTold(n int) *told { return &told{times: make([]int, n), left: n, done: make(chan struct{})} }

// OpsDone implements felix.Completer.
func (d *told) OpsDone(_ *felix.Batch, part []int32) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, p := range part {
		d.times[p]++
	}
	if d.left -= len(part); d.left == 0 {
		close(d.done)
	}
}

func (d *told) twice() (ops []int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i, n := range d.times {
		if n != 1 {
			ops = append(ops, i)
		}
	}
	return ops
}

func submit(c felix.Cache, ops ...felix.Op) (*felix.Batch, *told) {
	d := newTold(len(ops))
	b := &felix.Batch{Ops: ops, Replies: make([]felix.Reply, len(ops)), Done: d}
	c.Submit(b)
	return b, d
}

func isDone(d *told) bool {
	select {
	case <-d.done:
		return true
	default:
		return false
	}
}

// TestNothingWaitsInLineForASync: while one sync hangs, reads of other keys are
// answered (of the same shard, from memory and from disk), more operations are
// taken, and none that changed anything is acknowledged. All those that came
// meanwhile then need one more sync.
func TestNothingWaitsInLineForASync(t *testing.T) {
	var disk slowWAL
	b, c := openOn(t, disk.wrap(vfs.NewMem()), 4, func(o *Options) {
		o.RecordBytes, o.CheckpointDirty, o.CheckpointEvery = 1, 1, time.Millisecond
	})
	const keys = 50
	for i := range keys {
		mustDo(t, c, add(fmt.Sprint("k", i), int64(i)))
	}
	// From here on every record is on disk only, so that reads have to load.
	eventually(t, "everything is evicted", func() bool { return b.Stats().RecordBytes < 4096 })
	disk.close()
	_, first := submit(c, add("hot", 1))
	<-disk.waiting
	var pending []*told
	for i := range 200 {
		_, d := submit(c, add("hot", 1), add(fmt.Sprint("new", i), 1))
		pending = append(pending, d)
	}
	for i := range keys {
		if r := mustDo(t, c, felix.Op{Kind: felix.Get, Key: fmt.Append(nil, "k", i)}); r[0].Int != int64(i) {
			t.Errorf("k%d is %d", i, r[0].Int)
		}
	}
	_, read := submit(c, felix.Op{Kind: felix.Get, Key: []byte("hot")})
	for i, d := range append(pending, first, read) {
		if isDone(d) {
			t.Fatalf("operation %d was answered before what it wrote or saw was synced", i)
		}
	}
	if b.Ready() != nil {
		t.Error("the broker is not ready")
	}
	before := b.Stats().Log.Syncs
	disk.open()
	for _, d := range append(pending, first, read) {
		<-d.done
	}
	if n := b.Stats().Log.Syncs - before; n > 4 {
		t.Errorf("what waited for one sync took %d more", n)
	}
	if r := mustDo(t, c, felix.Op{Kind: felix.Get, Key: []byte("hot")}); r[0].Int != 201 {
		t.Errorf("hot is %d, want 201", r[0].Int)
	}
	if err := closeBroker(b); err != nil {
		t.Error(err)
	}
}

// TestOverload: what goes over the bound on operations in flight is refused
// with a time to come back, and nothing of it is applied; memory stays bounded;
// afterwards all is well.
func TestOverload(t *testing.T) {
	const bound = 64 << 10
	var disk slowWAL
	b, c := openOn(t, disk.wrap(vfs.NewMem()), 2, func(o *Options) { o.InflightBytes = bound })
	disk.close()
	var batches []*felix.Batch
	var tolds []*told
	accepted, refused := int64(0), 0
	for range 1000 {
		batch, d := submit(c, add("a", 1), add("b", 1), add("c", 1))
		batches, tolds = append(batches, batch), append(tolds, d)
		if used := b.Stats().InflightBytes; used > bound {
			t.Fatalf("%d bytes are in flight, the bound is %d", used, bound)
		}
	}
	for i, batch := range batches {
		if !isDone(tolds[i]) {
			accepted++
			continue
		}
		refused++
		for _, r := range batch.Replies {
			if r.Err == nil || r.Err.Code != felix.ResourceExhausted || r.Err.RetryAfter <= 0 {
				t.Fatalf("a refused operation answers %+v", r)
			}
		}
	}
	if accepted < 20 || refused < 500 {
		t.Errorf("%d batches were accepted, %d refused", accepted, refused)
	}
	disk.open()
	for i, d := range tolds {
		<-d.done
		if ops := d.twice(); ops != nil {
			t.Fatalf("batch %d: operations %v were not told once", i, ops)
		}
	}
	eventually(t, "nothing is in flight", func() bool { return b.Stats().InflightBytes == 0 })
	for _, key := range []string{"a", "b", "c"} {
		if r := mustDo(t, c, add(key, 0)); r[0].Int != accepted {
			t.Errorf("%s is %d; %d adds were accepted", key, r[0].Int, accepted)
		}
	}
	if err := closeBroker(b); err != nil {
		t.Error(err)
	}
}

// TestCloseUnderLoad: every operation is answered exactly once, and what was
// acknowledged is there afterwards; what was refused is not.
func TestCloseUnderLoad(t *testing.T) {
	for round := range 4 {
		mem := vfs.NewMem()
		b, c := openOn(t, mem, 4, func(o *Options) {
			o.RecordBytes, o.CheckpointDirty, o.Workers = 1, 1, 2
		})
		var acked, unknown atomic.Int64
		var started, all sync.WaitGroup
		started.Add(8)
		for s := range 8 {
			all.Go(func() {
				for i := 0; ; i++ {
					batch, d := submit(c, add("sum", 1), add(fmt.Sprint(s, "/", i), 1), felix.Op{Kind: felix.Get, Key: []byte("sum")})
					scanned := make(chan error, 1)
					if i%8 == 0 {
						go func() {
							_, err := c.Scan(context.Background(), felix.ScanRequest{View: felix.ViewRedis, Limit: 100})
							scanned <- err
						}()
					} else {
						scanned <- nil
					}
					<-d.done
					if err := <-scanned; err != nil && felix.AsError(err).Code != felix.Unavailable {
						t.Errorf("Scan: %v", err)
					}
					if i == 3 {
						started.Done()
					}
					if ops := d.twice(); ops != nil {
						t.Errorf("operations %v were not told once", ops)
					}
					switch err := batch.Replies[0].Err; {
					case err == nil:
						acked.Add(1)
					case err.Code == felix.OutcomeUnknown:
						unknown.Add(1)
					case err.Code != felix.Unavailable:
						t.Errorf("while closing: %v", err)
					}
					if batch.Replies[2].Err != nil {
						if i < 3 {
							started.Done()
						}
						return
					}
				}
			})
		}
		started.Wait()
		time.Sleep(time.Duration(round) * 3 * time.Millisecond) // different moments
		if err := closeBroker(b); err != nil {
			t.Error(err)
		}
		all.Wait()
		late, d := submit(c, add("late", 1), add("later", 1), add("latest", 1))
		eventually(t, "a closed broker answers", func() bool { return isDone(d) })
		for _, r := range late.Replies {
			if r.Err == nil || r.Err.Code != felix.Unavailable {
				t.Errorf("a closed broker answers %+v", r)
			}
		}
		b, c = openOnAgain(t, mem)
		got := mustDo(t, c, add("sum", 0))[0].Int
		if got < acked.Load() || got > acked.Load()+unknown.Load() {
			t.Errorf("the sum is %d; %d adds were acknowledged, %d are unknown", got, acked.Load(), unknown.Load())
		}
		if err := closeBroker(b); err != nil {
			t.Error(err)
		}
	}
}

func openOnAgain(t testing.TB, fs vfs.FS) (*Broker, felix.Cache) {
	t.Helper()
	b, err := Open(context.Background(), Options{Dir: "data", FS: fs})
	if err != nil {
		t.Fatal(err)
	}
	c, err := b.Cache(context.Background(), felix.Scope{Tenant: "t", Namespace: "n", Cache: "c"})
	if err != nil {
		t.Fatal(errors.Join(err, b.Close(context.Background())))
	}
	return b, c
}

// TestDeleteWhoseCallerIsGone: the caller of DeleteCache gives up while the disk
// hangs. The cache is deleted all the same, so nothing may be acknowledged in it
// afterwards that the next start would not find.
func TestDeleteWhoseCallerIsGone(t *testing.T) {
	var disk slowWAL
	mem := vfs.NewMem()
	b, c := openOn(t, disk.wrap(mem), 2, nil)
	mustDo(t, c, add("k", 1))
	disk.close()
	ctx, cancel := context.WithCancel(context.Background())
	deleted := make(chan error, 1)
	go func() { deleted <- b.DeleteCache(ctx, c.Scope()) }()
	<-disk.waiting
	cancel()
	select {
	case err := <-deleted:
		t.Logf("while the disk hangs: %v", err)
		deleted <- err
	case <-time.After(50 * time.Millisecond): // it may also wait for the disk
	}
	disk.open()
	if err := <-deleted; err != nil && !felix.AsError(err).MayBeApplied() {
		t.Errorf("DeleteCache: %v, although it takes effect", err)
	}
	acked := false
	if again, err := b.Cache(context.Background(), c.Scope()); err == nil {
		r, err := felix.Do(context.Background(), again, add("k", 1))
		acked = err == nil && r[0].Err == nil
	}
	if err := closeBroker(b); err != nil {
		t.Error(err)
	}
	b, err := Open(context.Background(), Options{Dir: "data", FS: mem})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Cache(context.Background(), c.Scope()); err != nil && acked {
		t.Errorf("an add was acknowledged, and after a restart its cache is gone: %v", err)
	}
	if err := closeBroker(b); err != nil {
		t.Error(err)
	}
}

// TestExpiredRecordsGo: expired records leave memory and disk by themselves,
// also those of before a restart; the ones that live stay.
func TestExpiredRecordsGo(t *testing.T) {
	const records = 2000
	var wall atomic.Int64
	wall.Store(worldStart)
	small := func(o *Options) {
		o.Wall, o.SweepEvery = wall.Load, 10*time.Millisecond
		o.CheckpointEvery, o.CheckpointDirty = 50*time.Millisecond, 1000
	}
	mem := vfs.NewMem()
	b, c := openOn(t, mem, 4, small)
	mustDo(t, c, add("lives", 7))
	var ops []felix.Op
	for i := range records {
		op := felix.Op{Kind: felix.Set, View: felix.View(i % 3), Key: fmt.Append(nil, "key", i), TTL: felix.TTLIn, ExpiryMillis: 60_000}
		if op.View == felix.ViewCounter {
			op.Int = int64(i)
		} else {
			op.Value = fmt.Appendf(nil, "%0400d", i)
		}
		ops = append(ops, op)
	}
	mustDo(t, c, ops...)
	full := b.Stats().RecordBytes
	if err := closeBroker(b); err != nil {
		t.Fatal(err)
	}
	o := Options{Dir: "data", FS: mem}
	small(&o)
	b, err := Open(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	if c, err = b.Cache(context.Background(), c.Scope()); err != nil {
		t.Fatal(err)
	}
	count := func() felix.RecordCount {
		n, err := c.Count(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	if n := count(); n.Keys != records+1 {
		t.Errorf("%+v before anything has expired; want %d keys", n, records+1)
	}
	before := b.Stats().StateBytes
	wall.Add(120_000)
	eventually(t, "only what lives is left", func() bool { return count() == felix.RecordCount{Counters: 1, Keys: 1} })
	// What is known to be absent may still be remembered, at a few bytes a key.
	eventually(t, "memory shrinks", func() bool { return b.Stats().RecordBytes < full/3 })
	eventually(t, "the disk holds no due expiry hint", func() bool {
		for id := range b.replicas {
			keys, _, more, err := b.db.Expired(id, wall.Load(), 10)
			if err != nil {
				t.Fatal(err)
			}
			if len(keys) > 0 || more {
				return false
			}
		}
		return true
	})
	t.Logf("memory %d → %d bytes, disk %d → %d bytes", full, b.Stats().RecordBytes, before, b.Stats().StateBytes)
	if r := mustDo(t, c, add("lives", 0)); r[0].Int != 7 {
		t.Errorf("the record without expiry is %d", r[0].Int)
	}
	if err := closeBroker(b); err != nil {
		t.Error(err)
	}
}
