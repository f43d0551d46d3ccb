package raftlog

import (
	"fmt"
	"testing"

	"go.etcd.io/raft/v3/raftpb"
)

// BenchmarkCommit measures synced commits of one entry, on a real disk, from
// the first commit of a new log on, with compaction as a checkpoint would do
// it. Run it with
//
//	go test -run '^$' -bench Commit -benchtime 3s ./internal/raftlog
func BenchmarkCommit(b *testing.B) {
	for _, size := range []int{200, 4 << 10, 64 << 10} {
		for name, files := range map[string]int{"plain": -1, "prefilled": 2} {
			b.Run(fmt.Sprintf("%s/%dB", name, size), func(b *testing.B) { benchmarkCommit(b, size, files) })
		}
	}
}

func benchmarkCommit(b *testing.B, size, files int) {
	l, err := Open(b.TempDir(), Options{WALPrefillFiles: files})
	if err != nil {
		b.Fatal(err)
	}
	defer func() {
		if err := l.Close(); err != nil {
			b.Fatal(err)
		}
	}()
	s, err := l.Shard(1)
	if err != nil {
		b.Fatal(err)
	}
	data := make([]byte, size)
	b.ReportAllocs()
	for i := uint64(1); b.Loop(); i++ {
		e := &raftpb.Entry{Index: new(i), Term: new(uint64(1)), Data: data}
		if err := l.Commit([]Append{{Shard: s, Entries: []*raftpb.Entry{e}, Sync: true}}); err != nil {
			b.Fatal(err)
		}
		if i%64 == 0 {
			if err := s.Compact(i - 32); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "commits/s")
	st, m := l.Stats(), l.Metrics()
	b.ReportMetric(float64(st.PlainWALs), "plain-WALs")
	b.ReportMetric(float64(m.Flush.Count), "flushes")
}
