package broker

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/felix-go/felix"
)

// restartCase is what a broker was doing when it was killed.
type restartCase struct {
	name  string
	keys  int
	fill  func(b *testing.B, r *restartCase, broker *Broker, c felix.Cache)
	tune  func(*Options)
	check int64 // what each counter is
}

var restartCases = []restartCase{
	// The checkpoints are off while the log fills up to just below the bounds
	// that would ask for one: the longest replay there is.
	{name: "1M counters, full log", keys: 1 << 20, fill: fillLog, tune: noCheckpoints, check: 1},
	{name: "1M counters, right after a checkpoint", keys: 1 << 20, fill: fillAndCheckpoint, check: 1},
	{name: "1M counters, 16 MiB of records in memory", keys: 1 << 20, fill: fillAndCheckpoint, check: 1,
		tune: func(o *Options) { o.RecordBytes = 16 << 20 }},
	{name: "100 counters, 256 MiB of log", keys: 100, fill: fillHot, tune: noCheckpoints},
}

func noCheckpoints(o *Options) {
	o.CheckpointEvery, o.CheckpointDirty, o.CheckpointBytes = 24*time.Hour, 1<<40, 1<<50
	o.MaxDirtyBytes, o.MaxLogBytes = 1<<50, 1<<50
}

const fillBatch = 10_000

func benchKey(i int) []byte { return fmt.Appendf(nil, "user:%d:2026-10-17T09:15", i) }

// fillLog adds 1 to every key.
func fillLog(b *testing.B, r *restartCase, _ *Broker, c felix.Cache) {
	for from := 0; from < r.keys; from += fillBatch {
		var ops []felix.Op
		for i := from; i < min(r.keys, from+fillBatch); i++ {
			ops = append(ops, felix.Op{Kind: felix.Add, Key: benchKey(i), Int: 1})
		}
		mustDo(b, c, ops...)
	}
}

func fillAndCheckpoint(b *testing.B, r *restartCase, broker *Broker, c felix.Cache) {
	fillLog(b, r, broker, c)
	if err := broker.checkpoint.all(context.Background()); err != nil {
		b.Fatal(err)
	}
}

// fillHot writes the same values again and again until the four shards' logs
// together are as long as CheckpointBytes lets them grow.
func fillHot(b *testing.B, r *restartCase, broker *Broker, c felix.Cache) {
	var ops []felix.Op
	value := make([]byte, 10_000)
	for i := range r.keys {
		ops = append(ops, felix.Op{Kind: felix.Set, View: felix.ViewValue, Key: benchKey(i), Value: value})
	}
	for range (256 << 20) / (len(value) * r.keys) {
		mustDo(b, c, ops...)
	}
}

// BenchmarkRestart kills a broker on a real disk and opens what is left: the
// time until it has replayed its log and answers a read of every shard.
// The disk's page cache is warm.
//
//	go test -run '^$' -bench Restart -benchtime 3x ./internal/broker
func BenchmarkRestart(b *testing.B) {
	for i := range restartCases {
		r := &restartCases[i]
		b.Run(r.name, func(b *testing.B) { benchRestart(b, r) })
	}
}

// killFS is a disk on which nothing changes any more once it is locked, as if
// the process had been killed.
type killFS struct {
	vfs.FS
	killed sync.RWMutex
}

func (k *killFS) Unwrap() vfs.FS { return k.FS }

func (k *killFS) held(f vfs.File, err error) (vfs.File, error) {
	if err != nil {
		return nil, err
	}
	return &killFile{File: f, fs: k}, nil
}

func (k *killFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	k.killed.RLock()
	defer k.killed.RUnlock()
	return k.held(k.FS.Create(name, c))
}

func (k *killFS) ReuseForWrite(o, n string, c vfs.DiskWriteCategory) (vfs.File, error) {
	k.killed.RLock()
	defer k.killed.RUnlock()
	return k.held(k.FS.ReuseForWrite(o, n, c))
}

func (k *killFS) Rename(o, n string) error {
	k.killed.RLock()
	defer k.killed.RUnlock()
	return k.FS.Rename(o, n)
}

func (k *killFS) Link(o, n string) error {
	k.killed.RLock()
	defer k.killed.RUnlock()
	return k.FS.Link(o, n)
}

func (k *killFS) Remove(name string) error {
	k.killed.RLock()
	defer k.killed.RUnlock()
	return k.FS.Remove(name)
}

type killFile struct {
	vfs.File
	fs *killFS
}

func (f *killFile) Write(p []byte) (int, error) {
	f.fs.killed.RLock()
	defer f.fs.killed.RUnlock()
	return f.File.Write(p)
}

func benchRestart(b *testing.B, r *restartCase) {
	dir := filepath.Join(b.TempDir(), "data")
	kill := &killFS{FS: vfs.Default}
	o := Options{Dir: dir, FS: kill}
	if r.tune != nil {
		r.tune(&o)
	}
	broker, err := Open(context.Background(), o)
	if err != nil {
		b.Fatal(err)
	}
	c := makeCache(b, broker, "c", 4)
	r.fill(b, r, broker, c)
	logBytes := int64(0)
	for _, replica := range broker.replicas {
		logBytes += replica.log.Size()
	}
	kill.killed.Lock() // for ever: from here on the broker changes nothing on the disk
	killed := filepath.Join(b.TempDir(), "killed")
	if ok, err := vfs.Clone(vfs.Default, vfs.Default, dir, killed, vfs.CloneSync); !ok || err != nil {
		b.Fatal(ok, err)
	}
	o.FS = nil
	b.ResetTimer()
	for n := range b.N {
		b.StopTimer()
		o.Dir = filepath.Join(b.TempDir(), fmt.Sprint(n))
		if ok, err := vfs.Clone(vfs.Default, vfs.Default, killed, o.Dir); !ok || err != nil {
			b.Fatal(ok, err)
		}
		b.StartTimer()
		broker, err := Open(context.Background(), o)
		if err != nil {
			b.Fatal(err)
		}
		c, err := broker.Cache(context.Background(), c.Scope())
		if err != nil {
			b.Fatal(err)
		}
		count, err := c.Count(context.Background())
		if err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		if int(count.Keys) != r.keys {
			b.Fatalf("%+v, want %d keys", count, r.keys)
		}
		if got := mustDo(b, c, felix.Op{Kind: felix.Get, Key: benchKey(r.keys / 2)}); r.check != 0 && got[0].Int != r.check {
			b.Fatalf("a counter is %d, want %d", got[0].Int, r.check)
		}
		if err := closeBroker(broker); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(logBytes)/(1<<20), "log-MiB")
}
