package raftlog

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// crashFS takes a clone of the disk, as a power cut would leave it, before and
// after every sync of a file or directory.
type crashFS struct {
	vfs.FS
	onSync func()
	// reuse keeps ReuseForWrite and clones apart: MemFS takes a read lock twice
	// there, which deadlocks when CrashClone waits in between.
	reuse sync.Mutex
}

func (c *crashFS) Unwrap() vfs.FS { return c.FS }

func (c *crashFS) wrap(f vfs.File, err error) (vfs.File, error) {
	if err != nil {
		return nil, err
	}
	return &crashFile{File: f, onSync: c.cut}, nil
}

func (c *crashFS) cut() {
	c.reuse.Lock()
	defer c.reuse.Unlock()
	c.onSync()
}

// Create makes a MANIFEST's directory entry durable at once. Pebble writes the
// entry that points to it right after, without a sync in between, and so relies
// on file systems to keep the entries of one directory in order. MemFS does not.
func (c *crashFS) Create(name string, cat vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := c.wrap(c.FS.Create(name, cat))
	if err != nil || !strings.Contains(name, "MANIFEST-") {
		return f, err
	}
	dir, err := c.FS.OpenDir(c.FS.PathDir(name))
	if err != nil {
		return nil, err
	}
	return f, errors.Join(dir.Sync(), dir.Close())
}

func (c *crashFS) ReuseForWrite(o, n string, cat vfs.DiskWriteCategory) (vfs.File, error) {
	c.reuse.Lock()
	defer c.reuse.Unlock()
	return c.wrap(c.FS.ReuseForWrite(o, n, cat))
}

func (c *crashFS) OpenDir(name string) (vfs.File, error) { return c.wrap(c.FS.OpenDir(name)) }

type crashFile struct {
	vfs.File
	onSync func()
}

func (f *crashFile) Sync() error {
	f.onSync()
	defer f.onSync()
	return f.File.Sync()
}

func (f *crashFile) SyncData() error {
	f.onSync()
	defer f.onSync()
	return f.File.SyncData()
}

// clone is the disk after a power cut, and what must be on it: one of the
// states lo to hi.
type clone struct {
	fs     *vfs.MemFS
	lo, hi int
}

// crasher records the states that the disk may be in and collects clones.
type crasher struct {
	synced, written atomic.Int64 // indexes into states: durable for sure, perhaps

	mu     sync.Mutex
	seed   uint64
	clones []clone
}

// cut is the power cut. Every second one loses all that was not synced; the
// others keep a random part of the blocks and of the directory entries.
func (c *crasher) cut(mem *vfs.MemFS) {
	lo := int(c.synced.Load())
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seed++
	cfg := vfs.CrashCloneCfg{}
	if c.seed%2 == 0 {
		cfg.UnsyncedDataPercent = int(c.seed*37) % 101
		cfg.RNG = rand.New(rand.NewPCG(c.seed, 3))
	}
	fs := mem.CrashClone(cfg)
	c.clones = append(c.clones, clone{fs: fs, lo: lo, hi: int(c.written.Load())})
}

func (c *crasher) take() []clone {
	c.mu.Lock()
	defer c.mu.Unlock()
	clones := c.clones
	c.clones = nil
	return clones
}

const crashShards = 3

// diskState is the images of all shards, as a batch left them.
type diskState [crashShards]image

// powerTest runs random operations and keeps, beside the Log, what its batches
// should have written.
type powerTest struct {
	t      *testing.T
	rng    *rand.Rand
	c      crasher
	opts   Options
	log    *Log
	memory diskState   // what the Log shows
	states []diskState // what each written batch left on disk
	tested int
}

func TestPowerLossAtEverySync(t *testing.T) {
	for seed := range uint64(3) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			mem := vfs.NewCrashableMem()
			p := &powerTest{t: t, rng: rand.New(rand.NewPCG(seed, 11)), states: make([]diskState, 1)}
			p.c.seed = seed * 1000
			p.opts = smallOptions(t, &crashFS{FS: mem, onSync: func() { p.c.cut(mem) }})
			p.opts.WALPrefillBytes = 40 << 10 // smaller than some WALs, larger than others
			p.log = mustOpen(t, p.opts)
			for range 18 {
				p.step()
				p.verify()
			}
			if st := p.log.Stats(); st.PrefilledWALs == 0 {
				t.Errorf("no prefilled WAL was used: %+v", st)
			}
			p.submit()
			mustClose(t, p.log)
			p.verify()
			t.Logf("%d power cuts", p.tested)
		})
	}
}

func (p *powerTest) step() {
	switch n := p.rng.IntN(20); {
	case n < 16:
		p.commit()
	case n < 19:
		p.compact()
	default:
		p.submit() // Close writes what waits
		mustClose(p.t, p.log)
		p.synced()
		p.log = mustOpen(p.t, p.opts)
	}
}

func (p *powerTest) commit() {
	var appends []Append
	sync, writes := false, false
	for range 1 + p.rng.IntN(4) {
		i := p.rng.IntN(crashShards)
		im := &p.memory[i]
		a := Append{Shard: mustShard(p.t, p.log, uint64(i+1)), Sync: p.rng.IntN(3) > 0}
		if p.rng.IntN(10) == 0 {
			a = im.announce(a, im.last()+5, 3)
			sync, writes = true, true
			appends = append(appends, a)
			continue
		}
		if p.rng.IntN(15) == 0 {
			a.Reset = &Reset{Index: im.last() + 5, Term: 3}
			*im = image{start: position{index: a.Reset.Index, term: 3}, hard: im.hard}
		}
		if p.rng.IntN(4) > 0 {
			from := im.last() + 1
			if p.rng.IntN(3) == 0 {
				from = im.start.index + 1 + p.rng.Uint64N(uint64(len(im.entries))+1)
			}
			a.Entries = randomEntries(p.rng, from, 1+uint64(p.rng.IntN(9)), 8, 3000)
			*im = im.append(a.Entries)
		}
		if p.rng.IntN(2) == 0 {
			a.HardState = hard(1+uint64(p.rng.IntN(9)), uint64(p.rng.IntN(3)), im.last())
			im.hard = hardStateOf(a.HardState)
		}
		sync = sync || a.Sync
		writes = writes || a.Reset != nil || a.Entries != nil
		appends = append(appends, a)
	}
	if sync || writes {
		p.submit()
	}
	mustCommit(p.t, p.log, appends...)
	if sync {
		p.synced()
	}
	for _, a := range appends {
		if got, want := imageOf(p.t, a.Shard), p.memory[a.Shard.ID()-1]; !got.equal(want) {
			p.t.Fatalf("shard %d: %v; want %v", a.Shard.ID(), got, want)
		}
	}
}

// submit notes that what memory holds may be on disk from now on.
func (p *powerTest) submit() {
	p.states = append(p.states, p.memory)
	p.c.written.Store(int64(len(p.states) - 1))
}

// synced notes that it must be.
func (p *powerTest) synced() { p.c.synced.Store(int64(len(p.states) - 1)) }

func (p *powerTest) compact() {
	i := p.rng.IntN(crashShards)
	im := &p.memory[i]
	if len(im.entries) == 0 {
		return
	}
	index := im.start.index + 1 + p.rng.Uint64N(uint64(len(im.entries)))
	if err := mustShard(p.t, p.log, uint64(i+1)).Compact(index); err != nil {
		p.t.Fatal(err)
	}
	*im = im.compact(index)
}

// verify opens the clones. Opening takes clones too: the power may fail again
// while a log recovers, and that must lose nothing either.
func (p *powerTest) verify() {
	for i, cl := range p.c.take() {
		again := crasher{seed: uint64(p.tested)}
		opts := p.opts
		opts.FS = cl.fs
		opts.WALPrefillFiles = -1 // they are not what is tested here
		if i%16 == 0 {
			opts.WALPrefillFiles = 1
			opts.FS = &crashFS{FS: cl.fs, onSync: func() { again.cut(cl.fs) }}
		}
		found := p.verifyClone(cl, opts)
		for _, second := range again.take() {
			opts.FS = second.fs
			p.verifyClone(clone{lo: found, hi: found}, opts)
		}
	}
}

// verifyClone opens a log and finds which state it is in.
func (p *powerTest) verifyClone(cl clone, opts Options) int {
	p.t.Helper()
	p.tested++
	l, err := Open(testDir, opts)
	if err != nil {
		p.t.Fatalf("after a power cut: %v", err)
	}
	var got diskState
	for i := range got {
		got[i] = imageOf(p.t, mustShard(p.t, l, uint64(i+1)))
	}
	mustClose(p.t, l)
	hi := min(cl.hi, len(p.states)-1)
	for k := cl.lo; k <= hi; k++ {
		if slices.EqualFunc(got[:], p.states[k][:], image.equal) {
			return k
		}
	}
	p.t.Fatalf("after a power cut: %v\nis none of the states %d to %d; the first is %v\nthe last is %v",
		got, cl.lo, hi, p.states[cl.lo], p.states[hi])
	return 0
}
