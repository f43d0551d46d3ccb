package raftlog

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"
)

const testDir = "log"

// smallOptions make everything that has a size small, so that a short test
// rotates WALs, flushes, reads tables and hands out prefilled files.
func smallOptions(t testing.TB, fs vfs.FS) Options {
	return Options{
		FS:              fs,
		Fatal:           func(err error) { t.Errorf("fatal: %v", err) },
		MemTableBytes:   64 << 10,
		WALPrefillFiles: 2,
		ShardTailBytes:  3000,
		TotalTailBytes:  6000,
	}
}

func mustOpen(t testing.TB, o Options) *Log {
	t.Helper()
	l, err := Open(testDir, o)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func mustClose(t testing.TB, l *Log) {
	t.Helper()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

func mustShard(t testing.TB, l *Log, id uint64) *Shard {
	t.Helper()
	s, err := l.Shard(id)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func mustCommit(t testing.TB, l *Log, appends ...Append) {
	t.Helper()
	if err := l.Commit(appends); err != nil {
		t.Fatal(err)
	}
}

func entry(index, term uint64, data string) *raftpb.Entry {
	e := &raftpb.Entry{Index: new(index), Term: new(term)}
	if data != "" {
		e.Data = []byte(data)
	}
	return e
}

// entries makes n entries from index on.
func entries(index uint64, n int, term uint64) []*raftpb.Entry {
	var out []*raftpb.Entry
	for i := range uint64(n) {
		out = append(out, entry(index+i, term, fmt.Sprintf("%d/%d", term, index+i)))
	}
	return out
}

func hard(term, vote, commit uint64) *raftpb.HardState {
	return &raftpb.HardState{Term: new(term), Vote: new(vote), Commit: new(commit)}
}

// image is all that one shard's log holds.
type image struct {
	start   position
	entries []*raftpb.Entry
	hard    hardState
	install position // announced
}

func (im image) last() uint64 { return im.start.index + uint64(len(im.entries)) }

func (im image) String() string {
	return fmt.Sprintf("start %v, entries to %d, hard state %v, install %v", im.start, im.last(), im.hard, im.install)
}

// append is what raft means by appending, done the dumb way.
func (im image) append(es []*raftpb.Entry) image {
	keep := es[0].GetIndex() - im.start.index - 1
	im.entries = append(im.entries[:keep:keep], es...)
	return im
}

// announce makes a the append that announces a snapshot.
func (im *image) announce(a Append, index, term uint64) Append {
	a.Install, a.HardState, a.Sync = &Reset{Index: index, Term: term}, hard(im.hard.term+1, 0, index), true
	im.install, im.hard.term, im.hard.vote = position{index, term}, im.hard.term+1, 0
	return a
}

func (im image) compact(index uint64) image {
	n := index - im.start.index
	im.start = position{index: index, term: im.entries[n-1].GetTerm()}
	im.entries = im.entries[n:]
	return im
}

func (im image) equal(other image) bool {
	if im.start != other.start || im.hard != other.hard || im.install != other.install || len(im.entries) != len(other.entries) {
		return false
	}
	for i, e := range im.entries {
		if !sameEntry(e, other.entries[i]) {
			return false
		}
	}
	return true
}

func sameEntry(a, b *raftpb.Entry) bool {
	return a.GetIndex() == b.GetIndex() && a.GetTerm() == b.GetTerm() && a.GetType() == b.GetType() &&
		bytes.Equal(a.GetData(), b.GetData())
}

// imageOf reads a shard through its raft.Storage methods.
func imageOf(t testing.TB, s *Shard) image {
	t.Helper()
	first, _ := s.FirstIndex()
	last, _ := s.LastIndex()
	term, err := s.Term(first - 1)
	if err != nil {
		t.Fatal(err)
	}
	hs, _, err := s.InitialState()
	if err != nil {
		t.Fatal(err)
	}
	im := image{start: position{index: first - 1, term: term}, hard: hardStateOf(hs), install: s.disk.install}
	if last >= first {
		if im.entries, err = s.Entries(first, last+1, math.MaxUint64); err != nil {
			t.Fatal(err)
		}
	}
	if im.last() != last {
		t.Fatalf("entries end at %d, LastIndex is %d", im.last(), last)
	}
	var size int64
	for i, e := range im.entries {
		if e.GetIndex() != first+uint64(i) {
			t.Fatalf("entry %d has index %d", first+uint64(i), e.GetIndex())
		}
		if term, err := s.Term(e.GetIndex()); err != nil || term != e.GetTerm() {
			t.Fatalf("Term(%d) = %d, %v; the entry has %d", e.GetIndex(), term, err, e.GetTerm())
		}
		size += int64(entryKeyBytes + entryValueBytes(e))
	}
	if s.Size() != size || s.SizeAbove(0) != size {
		t.Fatalf("Size() = %d, SizeAbove(0) = %d, the entries take %d", s.Size(), s.SizeAbove(0), size)
	}
	for _, e := range im.entries {
		size -= int64(entryKeyBytes + entryValueBytes(e))
		if got := s.SizeAbove(e.GetIndex()); got != size {
			t.Fatalf("SizeAbove(%d) = %d, the entries take %d", e.GetIndex(), got, size)
		}
	}
	if got := s.SizeAbove(last + 7); got != 0 {
		t.Fatalf("%d bytes are above the last entry", got)
	}
	if term, vote, commit := s.HardState(); (hardState{term, vote, commit}) != im.hard {
		t.Fatalf("HardState() = %d, %d, %d; want %v", term, vote, commit, im.hard)
	}
	return im
}

// randomEntries makes 1 to n entries from index on, of non-decreasing terms
// from term on, of all types, some empty.
func randomEntries(rng *rand.Rand, index, term uint64, n, maxBytes int) []*raftpb.Entry {
	var out []*raftpb.Entry
	for i := range 1 + rng.IntN(n) {
		if rng.IntN(8) == 0 {
			term++
		}
		e := entry(index+uint64(i), term, "")
		if size := rng.IntN(maxBytes); size > 20 {
			e.Data = make([]byte, size)
			for j := range e.Data {
				e.Data[j] = byte(rng.Uint32())
			}
		}
		if typ := raftpb.EntryType(rng.IntN(6)); typ <= raftpb.EntryConfChangeV2 && typ > 0 {
			e.Type = &typ
		}
		out = append(out, e)
	}
	return out
}

// fatalRecorder is an Options.Fatal that remembers.
type fatalRecorder struct {
	mu   sync.Mutex
	errs []error
	once chan struct{} // closed at the first
}

func newFatalRecorder() *fatalRecorder { return &fatalRecorder{once: make(chan struct{})} }

func (f *fatalRecorder) fatal(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.errs = append(f.errs, err); len(f.errs) == 1 {
		close(f.once)
	}
}

func (f *fatalRecorder) all() []error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]error(nil), f.errs...)
}

func TestProtoBytesIsProtoSize(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for range 2000 {
		e := randomEntries(rng, rng.Uint64()>>rng.IntN(64), rng.Uint64()>>rng.IntN(64), 1, 300)[0]
		switch rng.IntN(5) {
		case 0:
			e.Type = raftpb.EntryNormal.Enum()
		case 1:
			e.Data = []byte{}
		case 2:
			e.Term = nil
		case 3:
			e.Index = nil
		}
		if got, want := protoBytes(e), uint64(proto.Size(e)); got != want {
			t.Fatalf("protoBytes(%v) = %d, proto.Size = %d", e, got, want)
		}
	}
}
