package store

import (
	"encoding/binary"

	"github.com/cespare/xxhash/v2"

	"github.com/felix-go/felix/internal/record"
)

// The entries that a table has applied are hashed one after the other:
//
//	sum of n+1 entries = sum of n entries * chainFactor + hash of entry n+1
//
// modulo 2^64, the hash of an entry being xxHash64 over its index, term, type and
// data. The factor is odd, so that a difference never vanishes behind what is
// added later; and one that was not there from the beginning can be made up for
// without the entries (AdoptChain), which needs a sum that is linear.

const (
	chainFactor = 0x9e3779b97f4a7c15
	// chainEvery is at which indexes a table remembers its sum, and chainPoints at
	// how many of them: replicas compare their sums where all have one, and a
	// busy one applies thousands of entries a second.
	chainEvery  = 128
	chainPoints = 128
)

// ChainPoint is the sum of a chain after the entry at an index.
type ChainPoint struct{ Index, Sum uint64 }

// chain is what a table knows of its chain beside applied.Chain.
type chain struct {
	digest xxhash.Digest
	// points are the sums at multiples of chainEvery, each at its place; one that
	// is not known has index 0. nil until there is one.
	points *[chainPoints]ChainPoint
}

// beginChain is for a table that has its state from elsewhere. A chain that is
// not known begins here.
func (t *Table) beginChain() {
	t.chain.points = nil
	if t.applied.Chain.Base == 0 {
		t.applied.Chain = record.Chain{Base: t.applied.Index}
	}
}

// link adds the last applied entry to the chain.
func (t *Table) link(kind byte, data []byte) {
	a := &t.applied
	var head [17]byte
	binary.BigEndian.PutUint64(head[:], a.Index)
	binary.BigEndian.PutUint64(head[8:], a.Term)
	head[16] = kind
	d := &t.chain.digest
	d.Reset()
	d.Write(head[:])
	d.Write(data)
	a.Chain.Sum = a.Chain.Sum*chainFactor + d.Sum64()
	if a.Index%chainEvery == 0 {
		if t.chain.points == nil {
			t.chain.points = new([chainPoints]ChainPoint)
		}
		*t.chain.at(a.Index) = ChainPoint{a.Index, a.Chain.Sum}
	}
}

// at is the place of a multiple of chainEvery.
func (c *chain) at(index uint64) *ChainPoint { return &c.points[index/chainEvery%chainPoints] }

// ChainAt is the sum of the chain after the entry at index, if the table
// remembers it: it does for the last one, and for older multiples of a constant.
func (t *Table) ChainAt(index uint64) (sum uint64, known bool) {
	if index == t.applied.Index {
		return t.applied.Chain.Sum, true
	}
	if t.chain.points == nil || index%chainEvery != 0 || index == 0 {
		return 0, false
	}
	p := t.chain.at(index)
	return p.Sum, p.Index == index
}

// ChainPoints are some of the sums that the table remembers, the newest first:
// that of the last entry, and older ones that a replica which is behind has, too.
func (t *Table) ChainPoints() []ChainPoint {
	last := t.applied.Index
	all := []ChainPoint{{last, t.applied.Chain.Sum}}
	newest := last / chainEvery * chainEvery
	for _, back := range [...]uint64{0, 1, chainPoints / 4, chainPoints - 1} {
		if back*chainEvery >= newest || newest-back*chainEvery == last {
			continue
		}
		if sum, known := t.ChainAt(newest - back*chainEvery); known {
			all = append(all, ChainPoint{newest - back*chainEvery, sum})
		}
	}
	return all
}

// AdoptChain makes the chain one that begins after the entry at base, earlier than
// its own, and whose sum at p.Index, which the table has to remember, is p.Sum, as
// another replica says. It says false where it cannot.
func (t *Table) AdoptChain(base uint64, p ChainPoint) bool {
	own, known := t.ChainAt(p.Index)
	if !known || base == 0 || base >= t.applied.Chain.Base || p.Index < t.applied.Chain.Base {
		return false
	}
	lacking := p.Sum - own
	if points := t.chain.points; points != nil {
		for i := range points {
			if points[i].Index < p.Index {
				points[i] = ChainPoint{} // of the chain before
			} else {
				points[i].Sum += lacking * chainPower(points[i].Index-p.Index)
			}
		}
	}
	t.applied.Chain.Base = base
	t.applied.Chain.Sum += lacking * chainPower(t.applied.Index-p.Index)
	return true
}

// chainPower is chainFactor to the power n.
func chainPower(n uint64) uint64 {
	power := uint64(1)
	for factor := uint64(chainFactor); n > 0; n >>= 1 {
		if n&1 != 0 {
			power *= factor
		}
		factor *= factor
	}
	return power
}
