package store

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/cespare/xxhash/v2"

	"github.com/felix-go/felix/internal/record"
)

// chainAfter is what the sum of a chain is to be after one more entry.
func chainAfter(sum, index uint64, e *logged) uint64 {
	b := binary.BigEndian.AppendUint64(nil, index)
	b = append(binary.BigEndian.AppendUint64(b, e.term), 0)
	if e.conf {
		b[16] = 1
	}
	return sum*chainFactor + xxhash.Sum64(append(b, e.payload...))
}

// chained applies n entries, all of them different.
func chained(t *testing.T, table *Table, n int) {
	t.Helper()
	for range n {
		i := table.Applied().Index + 1
		if err := table.Apply(i, 1, record.AppendHeader(nil, record.Header{Base: i}), nil); err != nil {
			t.Fatal(err)
		}
	}
}

// TestChainTellsEntriesApart: whatever is different about an entry, the sums
// differ from then on.
func TestChainTellsEntriesApart(t *testing.T) {
	put := func(sum int64) []byte {
		return record.AppendPutCounter(record.AppendHeader(nil, record.Header{}), []byte("a"), sum, 0, 0)
	}
	one := put(1)
	entries := map[string]func(*Table){
		"as it is":     func(table *Table) { _ = table.Apply(2, 1, one, nil) },
		"another term": func(table *Table) { _ = table.Apply(2, 2, one, nil) },
		"another sum":  func(table *Table) { _ = table.Apply(2, 1, put(2), nil) },
		"another type": func(table *Table) { table.SkipTo(2, 1, 1, one, nil) },
		"nothing":      func(table *Table) { _ = table.Apply(2, 1, nil, nil) },
		"another step": func(table *Table) { _ = table.Apply(2, 1, append(one[:len(one)-1:len(one)-1], 1), nil) },
	}
	sums := map[uint64]string{}
	for name, apply := range entries {
		table := NewTable(appliedAt(1), &Budget{MaxBytes: 1 << 20})
		apply(table)
		chained(t, table, 300)
		sum, known := table.ChainAt(302)
		if other, same := sums[sum]; same || !known {
			t.Errorf("%s has the sum of %s, %v", name, other, known)
		}
		sums[sum] = name
	}
}

// TestChainPoints: a table remembers sums at indexes at which others do, too,
// and no others, and none of a state that a snapshot has replaced.
func TestChainPoints(t *testing.T) {
	table := NewTable(appliedAt(1), &Budget{MaxBytes: 1 << 20})
	all := map[uint64]uint64{}
	check := func() {
		t.Helper()
		last := table.Applied().Index
		for index := range last + 2*chainEvery {
			sum, known := table.ChainAt(index)
			want := index == last || index > 0 && index < last && index%chainEvery == 0 && last/chainEvery-index/chainEvery < chainPoints
			if known != want || known && sum != all[index] {
				t.Fatalf("at %d, of %d applied: %x, known %v; want %x, %v", index, last, sum, known, all[index], want)
			}
		}
		points := table.ChainPoints()
		if points[0] != (ChainPoint{last, all[last]}) || last > 600 && len(points) < 3 {
			t.Fatalf("the points are %v", points)
		}
		for i, p := range points {
			if sum, known := table.ChainAt(p.Index); !known || sum != p.Sum || i > 0 && p.Index >= points[i-1].Index {
				t.Fatalf("the points are %v", points)
			}
		}
	}
	for i := range chainEvery*chainPoints + 1000 {
		chained(t, table, 1)
		all[table.Applied().Index] = table.Applied().Chain.Sum
		if i%1111 == 0 {
			check()
		}
	}
	check()
	a := appliedAt(table.Applied().Index + chainEvery)
	a.Chain = record.Chain{Base: 1, Sum: 42}
	table.Install(a)
	for index := range a.Index {
		if sum, known := table.ChainAt(index); known {
			t.Fatalf("after a snapshot there is a sum %x at %d", sum, index)
		}
	}
	if points := table.ChainPoints(); len(points) != 1 || points[0] != (ChainPoint{a.Index, 42}) {
		t.Fatalf("after a snapshot the points are %v", points)
	}
}

// TestChainIsAdopted: a table that does not know where its chain began has the
// sums of one that does as soon as it is told one of them.
func TestChainIsAdopted(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 20 {
		whole := NewTable(appliedAt(1), &Budget{MaxBytes: 1 << 20})
		chained(t, whole, rng.IntN(1000))
		late := whole.Applied()
		late.Chain = record.Chain{} // as of an older build, or before it is stored
		table := NewTable(late, &Budget{MaxBytes: 1 << 20})
		n := 1 + rng.IntN(1000)
		chained(t, whole, n)
		chained(t, table, n)
		if a := table.Applied().Chain; a.Base != late.Index || a.Sum == whole.Applied().Chain.Sum {
			t.Fatalf("the chain of the entries from %d on is %+v", late.Index, a)
		}
		points := whole.ChainPoints()
		p := points[rng.IntN(len(points))]
		can := p.Index >= late.Index
		if table.AdoptChain(1, ChainPoint{table.Applied().Index + 1, 1}) || table.AdoptChain(late.Index, p) || table.AdoptChain(0, p) {
			t.Fatal("a chain was adopted that does not fit")
		}
		if table.AdoptChain(1, p) != can {
			t.Fatalf("a chain that was told at %d, of %d, is adopted: %v", p.Index, late.Index, !can)
		}
		if !can {
			continue
		}
		for range 3 {
			if table.Applied().Chain != whole.Applied().Chain {
				t.Fatalf("adopted at %d: %+v, want %+v", p.Index, table.Applied().Chain, whole.Applied().Chain)
			}
			for index := range table.Applied().Index {
				sum, known := table.ChainAt(index)
				want, _ := whole.ChainAt(index)
				if known && sum != want || !known && index >= p.Index && index%chainEvery == 0 && index > late.Index {
					t.Fatalf("adopted at %d: %x at %d, known %v, want %x", p.Index, sum, index, known, want)
				}
			}
			chained(t, table, 200)
			chained(t, whole, 200)
		}
	}
}

// BenchmarkChain is what an entry costs beside all else that is done with it.
func BenchmarkChain(b *testing.B) {
	for _, size := range []int{40, 1 << 10, 64 << 10} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			table := NewTable(appliedAt(1), &Budget{MaxBytes: 1 << 20})
			data := make([]byte, size)
			b.SetBytes(int64(size))
			for range b.N {
				table.applied.Index++
				table.link(0, data)
			}
		})
	}
}
