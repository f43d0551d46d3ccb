package netloop

import (
	"context"
	"flag"
	"fmt"
	"hash/maphash"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/felix-go/felix"
)

// syncCache is a cache as the broker's: shards that evaluate on goroutines of
// their own, and one committer that syncs a real file for all of them.
type syncCache struct {
	noScan
	shards []*syncShard
	seed   maphash.Seed

	inflight atomic.Int64 // parts on their way to the disk
	recent   atomic.Int64
	mu       sync.Mutex
	queue    []heldPart
	work     chan struct{}
	wakes    []func()
	file     *os.File
	buf      []byte
	stop     chan struct{}
	done     sync.WaitGroup
	syncs    atomic.Int64
}

type syncShard struct {
	mu    sync.Mutex
	queue []heldPart
	work  chan struct{}
	table table
}

func newSyncCache(tb testing.TB, shards int) *syncCache {
	f, err := os.Create(filepath.Join(tb.TempDir(), "log"))
	if err != nil {
		tb.Fatal(err)
	}
	if _, err := f.Write(make([]byte, 64<<20)); err != nil {
		tb.Fatal(err)
	}
	if err := f.Sync(); err != nil {
		tb.Fatal(err)
	}
	c := &syncCache{seed: maphash.MakeSeed(), work: make(chan struct{}, 1), file: f, stop: make(chan struct{}), buf: make([]byte, 1<<20)}
	for range shards {
		s := &syncShard{work: make(chan struct{}, 1)}
		c.shards = append(c.shards, s)
		c.done.Go(func() { c.evaluate(s) })
	}
	c.done.Go(c.commit)
	tb.Cleanup(func() {
		close(c.stop)
		c.done.Wait()
		_ = f.Close()
	})
	return c
}

func signal(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

func (c *syncCache) Submit(b *felix.Batch) {
	parts := make([][]int32, len(c.shards))
	for i := range b.Ops {
		k := int(maphash.Bytes(c.seed, b.Ops[i].Key) % uint64(len(parts)))
		parts[k] = append(parts[k], int32(i))
	}
	for k, p := range parts {
		if p == nil {
			continue
		}
		c.inflight.Add(1)
		s := c.shards[k]
		s.mu.Lock()
		s.queue = append(s.queue, heldPart{b, p})
		s.mu.Unlock()
		signal(s.work)
	}
}

func (c *syncCache) evaluate(s *syncShard) {
	for {
		select {
		case <-s.work:
		case <-c.stop:
			return
		}
		s.mu.Lock()
		q := s.queue
		s.queue = nil
		s.mu.Unlock()
		for _, p := range q {
			s.table.eval(p.b, p.part)
		}
		c.mu.Lock()
		c.queue = append(c.queue, q...)
		c.mu.Unlock()
		signal(c.work)
	}
}

func (c *syncCache) commit() {
	var at int64
	for {
		select {
		case <-c.work:
		case <-c.stop:
			return
		}
		c.mu.Lock()
		q := c.queue
		c.queue = nil
		wakes := c.wakes
		c.mu.Unlock()
		n := 0
		for _, p := range q {
			n += 30 * len(p.part)
		}
		if n == 0 {
			continue
		}
		began := time.Now()
		n = min(n, len(c.buf))
		if at+int64(n) > 64<<20 {
			at = 0
		}
		if _, err := c.file.WriteAt(c.buf[:n], at); err != nil {
			panic(err)
		}
		at += int64(n)
		if err := syscall.Fdatasync(int(c.file.Fd())); err != nil {
			panic(err)
		}
		c.syncs.Add(1)
		c.recent.Store((7*c.recent.Load() + int64(time.Since(began))) / 8)
		c.inflight.Add(-int64(len(q)))
		for _, p := range q {
			p.b.Done.OpsDone(p.b, p.part)
		}
		for _, w := range wakes {
			w()
		}
	}
}

func (c *syncCache) Busy() bool { return c.inflight.Load() > 0 }
func (c *syncCache) OnSynced(wake func()) func() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wakes = append(append([]func(){}, c.wakes...), wake)
	return func() {}
}
func (c *syncCache) RecentSync() time.Duration { return time.Duration(c.recent.Load()) }

var (
	benchLoops    = flag.Int("netloop.loops", 0, "event loops in BenchmarkRedis")
	benchEager    = flag.Bool("netloop.eager", false, "no pacing in BenchmarkRedis")
	benchPortable = flag.Bool("netloop.portable", false, "the portable driver in BenchmarkRedis")
)

var perSecond = regexp.MustCompile(`([0-9.]+) requests per second`)

// BenchmarkRedis measures INCR with redis-benchmark against a cache that syncs
// a real file: one line per connections x pipeline.
func BenchmarkRedis(b *testing.B) {
	for _, bc := range []struct{ c, p, n int }{
		{1, 1, 4000}, {50, 1, 60000}, {50, 16, 400000}, {50, 64, 1000000}, {512, 1, 60000}, {512, 64, 1000000},
	} {
		b.Run(fmt.Sprintf("%dx%d", bc.c, bc.p), func(b *testing.B) {
			cache := newSyncCache(b, 4)
			o := Options{Handler: &miniHandler{caches: []felix.Cache{cache}}, Loops: *benchLoops, Portable: *benchPortable}
			if !*benchEager {
				o.Pacer = cache
			}
			s, err := Listen("tcp", "127.0.0.1:0", o)
			if err != nil {
				b.Fatal(err)
			}
			served := make(chan error, 1)
			go func() { served <- s.Serve() }()
			_, port, _ := net.SplitHostPort(s.Addr().String())
			var before, after syscall.Rusage
			for b.Loop() {
				_ = syscall.Getrusage(syscall.RUSAGE_SELF, &before)
				out, err := exec.Command("redis-benchmark", "-p", port, "-t", "incr", "-q", "-r", "100000",
					"-c", strconv.Itoa(bc.c), "-P", strconv.Itoa(bc.p), "-n", strconv.Itoa(bc.n)).CombinedOutput()
				_ = syscall.Getrusage(syscall.RUSAGE_SELF, &after)
				m := perSecond.FindAllSubmatch(out, -1)
				if err != nil || m == nil {
					b.Fatalf("redis-benchmark: %v\n%s", err, out)
				}
				rate, _ := strconv.ParseFloat(string(m[len(m)-1][1]), 64)
				b.ReportMetric(rate, "req/s")
			}
			st := s.Stats()
			cpu := after.Utime.Nano() + after.Stime.Nano() - before.Utime.Nano() - before.Stime.Nano()
			b.ReportMetric(float64(cpu)/1000/float64(bc.n), "cpu-us/req")
			b.ReportMetric(float64(st.Ops)/float64(max(1, st.Batches)), "ops/batch")
			b.ReportMetric(float64(st.Ops)/float64(max(1, cache.syncs.Load())), "ops/sync")
			b.ReportMetric(float64(cache.recent.Load())/1000, "sync-us")
			if err := s.Shutdown(context.Background()); err != nil {
				b.Fatal(err)
			}
			if err := <-served; err != nil {
				b.Fatal(err)
			}
		})
	}
}
