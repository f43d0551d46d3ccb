package raftlog

import (
	"bytes"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"go.etcd.io/raft/v3/raftpb"
)

func prefilled(t *testing.T, fs vfs.FS) (names []string) {
	t.Helper()
	all, err := fs.List(testDir)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range all {
		if strings.HasPrefix(name, prefillPrefix) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

func put(t *testing.T, fs vfs.FS, name string, content []byte) {
	t.Helper()
	f, err := fs.Create(fs.PathJoin(testDir, name), vfs.WriteCategoryUnspecified)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Write(bytes.Clone(content)); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestPrefillLeftovers: whole files of the right size are used again, the rest
// is removed.
func TestPrefillLeftovers(t *testing.T) {
	mem := vfs.NewMem()
	if err := mem.MkdirAll(testDir, 0o755); err != nil {
		t.Fatal(err)
	}
	o := smallOptions(t, mem).withDefaults()
	whole := make([]byte, 5000)
	put(t, mem, "prefill-7.zero", whole)
	put(t, mem, "prefill-8.zero", whole[:4999]) // another size
	put(t, mem, "prefill-9.tmp", whole)         // perhaps not whole
	put(t, mem, "prefill-x.zero", whole)
	put(t, mem, "other", whole)
	if err := (&prefillFS{FS: mem, dir: testDir, size: 5000, want: 9, logger: o.Logger}).adopt(); err != nil {
		t.Fatal(err)
	}
	if got := prefilled(t, mem); !slices.Equal(got, []string{"prefill-7.zero"}) {
		t.Errorf("left are %v", got)
	}
	p, err := newPrefillFS(mem, testDir, 5000, 1, o.Logger)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := mem.Stat(mem.PathJoin(testDir, "other")); err != nil {
		t.Error(err)
	}
	f, err := p.Create(mem.PathJoin(testDir, "000001.log"), walCategory)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := f.Stat(); err != nil || info.Size() != 5000 || p.handedOut.Load() != 1 {
		t.Errorf("the WAL has %d bytes, %v", info.Size(), err)
	}
	f2, err := p.Create(mem.PathJoin(testDir, "000001.sst"), walCategory)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := f2.Stat(); err != nil || info.Size() != 0 {
		t.Errorf("a table has %d bytes, %v", info.Size(), err)
	}
	p.close()
	for _, name := range prefilled(t, mem) {
		f, err := mem.Open(mem.PathJoin(testDir, name))
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(f)
		if err != nil || !bytes.Equal(data, make([]byte, 5000)) || name == "prefill-7.zero" {
			t.Errorf("%s: %d bytes, not all of them zero, or used", name, len(data))
		}
	}
}

// TestShortWALIsReplaced: a WAL that was made the plain way is not reused while
// there are prefilled files.
func TestShortWALIsReplaced(t *testing.T) {
	mem := vfs.NewMem()
	if err := mem.MkdirAll(testDir, 0o755); err != nil {
		t.Fatal(err)
	}
	put(t, mem, "000001.log", []byte("short"))
	put(t, mem, "000002.log", make([]byte, 6000))
	p, err := newPrefillFS(mem, testDir, 5000, 1, smallOptions(t, mem).withDefaults().Logger)
	if err != nil {
		t.Fatal(err)
	}
	defer p.close()
	for from, want := range map[string]int64{"000001": 5000, "000002": 6000} {
		old, name := mem.PathJoin(testDir, from+".log"), mem.PathJoin(testDir, "1"+from+".log")
		f, err := p.ReuseForWrite(old, name, walCategory)
		if err != nil {
			t.Fatal(err)
		}
		if info, err := f.Stat(); err != nil || info.Size() != want {
			t.Errorf("reusing %s gives %d bytes, %v", from, info.Size(), err)
		}
		if _, err := mem.Stat(old); err == nil {
			t.Errorf("%s is still there", old)
		}
	}
}

// TestPrefillSteadyState: from the first commit on every WAL is prefilled or
// reused at full size, also after a restart, and the entries survive it.
func TestPrefillSteadyState(t *testing.T) {
	o := smallOptions(t, vfs.NewMem())
	next := uint64(1)
	for range 3 {
		l := mustOpen(t, o)
		s := mustShard(t, l, 1)
		if first := l.Stats(); first.PrefilledWALs == 0 || first.PlainWALs != 0 {
			t.Errorf("the first WAL is not prefilled: %+v", first)
		}
		for range 100 {
			e := entry(next, 1, strings.Repeat("x", 2000))
			mustCommit(t, l, Append{Shard: s, Entries: []*raftpb.Entry{e}, Sync: true})
			next++
		}
		m := l.Metrics()
		if m.Flush.Count == 0 {
			t.Error("no WAL was full")
		}
		mustClose(t, l)
	}
	l := mustOpen(t, o)
	defer mustClose(t, l)
	if im := imageOf(t, mustShard(t, l, 1)); im.last() != next-1 {
		t.Errorf("%v; want entries to %d", im, next-1)
	}
}

func TestNoPrefillByDefaultInMemory(t *testing.T) {
	mem := vfs.NewMem()
	o := smallOptions(t, mem)
	o.WALPrefillFiles = 0
	l := mustOpen(t, o)
	defer mustClose(t, l)
	if got := prefilled(t, mem); got != nil || l.prefill != nil {
		t.Errorf("prefilled files %v", got)
	}
}
