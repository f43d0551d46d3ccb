package raftlog

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
)

// TestAgainstMemoryStorage runs random operations on a Log and on raft's own
// MemoryStorage and compares everything that raft.Storage can tell.
func TestAgainstMemoryStorage(t *testing.T) {
	for seed := range uint64(6) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			m := newModelTest(t, seed)
			for range 400 {
				m.step()
			}
			mustClose(t, m.log)
		})
	}
}

type modelTest struct {
	t      *testing.T
	rng    *rand.Rand
	opts   Options
	log    *Log
	shards []*Shard
	models []*raft.MemoryStorage
}

func newModelTest(t *testing.T, seed uint64) *modelTest {
	m := &modelTest{t: t, rng: rand.New(rand.NewPCG(seed, 7))}
	m.opts = smallOptions(t, vfs.NewMem())
	for range 3 {
		m.models = append(m.models, raft.NewMemoryStorage())
	}
	m.open()
	return m
}

func (m *modelTest) open() {
	m.log = mustOpen(m.t, m.opts)
	m.shards = nil
	for i := range m.models {
		m.shards = append(m.shards, mustShard(m.t, m.log, uint64(10+i)))
	}
}

func (m *modelTest) step() {
	switch n := m.rng.IntN(100); {
	case n < 70:
		m.commit()
	case n < 80:
		m.compact()
	case n < 82:
		mustClose(m.t, m.log)
		m.open()
	}
	for i := range m.shards {
		m.compare(i)
	}
}

// commit makes up to four appends, also several of one shard.
func (m *modelTest) commit() {
	var appends []Append
	for range 1 + m.rng.IntN(4) {
		i := m.rng.IntN(len(m.shards))
		model := m.models[i]
		a := Append{Shard: m.shards[i], Sync: m.rng.IntN(2) == 0}
		first, _ := model.FirstIndex()
		last, _ := model.LastIndex()
		if m.rng.IntN(12) == 0 {
			a.Reset = &Reset{Index: last + 1 + uint64(m.rng.IntN(20)), Term: 1 + uint64(m.rng.IntN(9))}
			snap := &raftpb.Snapshot{Metadata: &raftpb.SnapshotMetadata{Index: &a.Reset.Index, Term: &a.Reset.Term}}
			m.check(model.ApplySnapshot(snap))
			first, last = a.Reset.Index+1, a.Reset.Index
		}
		if m.rng.IntN(3) > 0 {
			from := last + 1
			if m.rng.IntN(3) == 0 {
				// Replace the end; sometimes with entries from before the start.
				from = first + m.rng.Uint64N(last+2-first)
				from -= min(from-1, uint64(m.rng.IntN(3)))
			}
			a.Entries = randomEntries(m.rng, from, 1+uint64(m.rng.IntN(9)), 12, 400)
			m.check(model.Append(a.Entries))
		}
		if m.rng.IntN(2) == 0 {
			a.HardState = hard(1+uint64(m.rng.IntN(9)), uint64(m.rng.IntN(3)), uint64(m.rng.IntN(99)))
			m.check(model.SetHardState(a.HardState))
		}
		appends = append(appends, a)
	}
	m.check(m.log.Commit(appends))
}

func (m *modelTest) compact() {
	i := m.rng.IntN(len(m.shards))
	first, _ := m.models[i].FirstIndex()
	last, _ := m.models[i].LastIndex()
	if last < first {
		return
	}
	index := first + m.rng.Uint64N(last+1-first)
	m.check(m.models[i].Compact(index))
	m.check(m.shards[i].Compact(index))
	m.check(m.shards[i].Compact(index)) // nothing is left to do
}

func (m *modelTest) check(err error) {
	m.t.Helper()
	if err != nil {
		m.t.Fatal(err)
	}
}

func (m *modelTest) compare(i int) {
	m.t.Helper()
	model, s := m.models[i], m.shards[i]
	first, _ := model.FirstIndex()
	last, _ := model.LastIndex()
	if f, err := s.FirstIndex(); f != first || err != nil {
		m.t.Fatalf("FirstIndex() = %d, %v; want %d", f, err, first)
	}
	if l, err := s.LastIndex(); l != last || err != nil {
		m.t.Fatalf("LastIndex() = %d, %v; want %d", l, err, last)
	}
	hs, cs, err := s.InitialState()
	want, _, _ := model.InitialState()
	if err != nil || cs == nil || hardStateOf(hs) != hardStateOf(want) || (hs == nil) != (want == nil) {
		m.t.Fatalf("InitialState() = %v, %v, %v; want %v", hs, cs, err, want)
	}
	for index := max(first, 3) - 3; index <= last+2; index++ {
		got, gerr := s.Term(index)
		want, werr := model.Term(index)
		if got != want || !errors.Is(gerr, werr) {
			m.t.Fatalf("Term(%d) = %d, %v; want %d, %v", index, got, gerr, want, werr)
		}
	}
	for range 4 {
		m.compareEntries(i, first, last)
	}
	imageOf(m.t, s)
	m.log.shardsMu.Lock()
	limit := m.log.tailLimit.Load()
	m.log.shardsMu.Unlock()
	if s.w.tailBytes > limit || limit > m.opts.TotalTailBytes/int64(len(m.shards)) {
		m.t.Fatalf("%d bytes in memory, the limit is %d", s.w.tailBytes, limit)
	}
}

func (m *modelTest) compareEntries(i int, first, last uint64) {
	m.t.Helper()
	if last < first {
		return
	}
	lo := first - 1 + m.rng.Uint64N(last+2-first)
	if lo == 0 || lo > last {
		return
	}
	hi := lo + 1 + m.rng.Uint64N(last+1-lo)
	limit := []uint64{0, math.MaxUint64, m.rng.Uint64N(5000)}[m.rng.IntN(3)]
	got, gerr := m.shards[i].Entries(lo, hi, limit)
	want, werr := m.models[i].Entries(lo, hi, limit)
	if !errors.Is(gerr, werr) || len(got) != len(want) {
		m.t.Fatalf("Entries(%d, %d, %d) = %d entries, %v; want %d, %v", lo, hi, limit, len(got), gerr, len(want), werr)
	}
	for j := range got {
		if !sameEntry(got[j], want[j]) {
			m.t.Fatalf("Entries(%d, %d, %d)[%d] = %v; want %v", lo, hi, limit, j, got[j], want[j])
		}
	}
	// The slice is the caller's: appending must not reach the log.
	_ = append(got, entry(1, 1, "not in the log"))
}
