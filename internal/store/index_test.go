package store

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"testing"
)

// indexed is one entry of the dumb index.
type indexed struct {
	hash uint64
	ref  Ref
}

// found are the Refs that probing for a hash meets, sorted.
func (x *index) found(hash uint64) []Ref {
	var refs []Ref
	s := x.sub(hash)
	if len(s.slots) == 0 {
		return nil
	}
	mask := uint64(len(s.slots) - 1)
	for i := hash & 0xffffffff & mask; s.slots[i] != 0; i = (i + 1) & mask {
		if s.slots[i]>>32 == hash&0xffffffff {
			refs = append(refs, Ref(s.slots[i]))
		}
	}
	slices.Sort(refs)
	return refs
}

// checkIndex compares the index with what was put in.
func checkIndex(t *testing.T, x *index, all map[indexed]bool) {
	t.Helper()
	want := map[uint64][]Ref{} // by sub-table and low half: what probing can tell apart
	subs := map[*subIndex]int{}
	short := func(hash uint64) uint64 { return hash>>(64-subBits)<<32 | hash&0xffffffff }
	for e := range all {
		want[short(e.hash)] = append(want[short(e.hash)], e.ref)
		subs[x.sub(e.hash)]++
	}
	for e := range all {
		slices.Sort(want[short(e.hash)])
		if got := x.found(e.hash); !slices.Equal(got, want[short(e.hash)]) {
			t.Fatalf("probing for %#x finds %v, want %v", e.hash, got, want[short(e.hash)])
		}
	}
	for i := range x.subs {
		s := &x.subs[i]
		if s.used != subs[s] || 4*s.used > 3*len(s.slots) {
			t.Fatalf("sub-table %d counts %d in %d slots, want %d", i, s.used, len(s.slots), subs[s])
		}
		if len(s.slots) > subMinSlots && 8*s.used < len(s.slots) {
			t.Fatalf("sub-table %d keeps %d slots for %d entries", i, len(s.slots), s.used)
		}
		if len(s.slots)&(len(s.slots)-1) != 0 {
			t.Fatalf("sub-table %d has %d slots", i, len(s.slots))
		}
	}
}

func TestIndexAgainstMap(t *testing.T) {
	hashes := map[string]func(*rand.Rand) uint64{
		"spread": func(r *rand.Rand) uint64 { return r.Uint64() },
		// One sub-table, few homes: long chains that overlap and wrap around.
		"crowded": func(r *rand.Rand) uint64 { return uint64(r.IntN(5)) | uint64(r.IntN(3)-1)&0xffffffff },
		// Equal low halves: probing cannot tell them apart but by the key.
		"colliding": func(r *rand.Rand) uint64 { return r.Uint64N(4)<<40 | 0xfffffff0 | r.Uint64N(2) },
	}
	for name, hash := range hashes {
		t.Run(name, func(t *testing.T) {
			seed := rand.Uint64()
			t.Logf("seed %d", seed)
			rng := rand.New(rand.NewPCG(seed, 0))
			var x index
			all, list := map[indexed]bool{}, []indexed{}
			for round := range 12 {
				grow := round%2 == 0
				for range 600 {
					if grow == (rng.IntN(4) > 0) || len(list) == 0 {
						e := indexed{hash(rng), Ref(1 + rng.Uint32N(1<<32-1))}
						if all[e] {
							continue
						}
						x.add(e.hash, e.ref)
						all[e], list = true, append(list, e)
						continue
					}
					i := rng.IntN(len(list))
					x.remove(list[i].hash, list[i].ref)
					delete(all, list[i])
					list[i] = list[len(list)-1]
					list = list[:len(list)-1]
					if rng.IntN(50) == 0 {
						checkIndex(t, &x, all)
					}
				}
				checkIndex(t, &x, all)
			}
			for _, e := range list {
				x.remove(e.hash, e.ref)
				delete(all, e)
			}
			checkIndex(t, &x, all)
		})
	}
}

// TestLookupOfCollidingKeys puts two keys under one hash.
func TestLookupOfCollidingKeys(t *testing.T) {
	table := NewTable(appliedAt(1), &Budget{MaxBytes: 1 << 20})
	const hash = 0x123456789abcdef0
	refs := map[string]Ref{}
	for _, key := range []string{"a", "b", string(bytes.Repeat([]byte("long"), 20))} {
		ref := table.insert([]byte(key), 0)
		table.index.add(hash, ref)
		refs[key] = ref
	}
	for key, ref := range refs {
		if got := table.lookup(hash, []byte(key), 0); got != ref {
			t.Errorf("key %q is found at %d, want %d", key, got, ref)
		}
	}
	if got := table.lookup(hash, []byte("c"), 0); got != 0 {
		t.Errorf("a key that is not there is found at %d", got)
	}
	table.index.remove(hash, refs["a"])
	if got := table.lookup(hash, []byte("b"), 0); got != refs["b"] {
		t.Errorf("after its neighbour was removed, b is found at %d, want %d", got, refs["b"])
	}
	if got := table.lookup(hash, []byte("a"), 0); got != 0 {
		t.Errorf("what was removed is found at %d", got)
	}
}

// TestIndexGivesMemoryBack fills and empties the index.
func TestIndexGivesMemoryBack(t *testing.T) {
	var x index
	hash := func(i int) uint64 { return uint64(i) * 0x9e3779b97f4a7c15 }
	const n = 50_000
	for i := range n {
		x.add(hash(i+1), Ref(i+1))
	}
	full := x.slotCount()
	if full < n*4/3 || full > n*8/3+subCount*subMinSlots {
		t.Errorf("%d entries take %d slots", n, full)
	}
	for i := range n {
		x.remove(hash(i+1), Ref(i+1))
	}
	if got := x.slotCount(); got > subCount*subMinSlots {
		t.Errorf("an empty index keeps %d slots", got)
	}
}

func (x *index) slotCount() (n int) {
	for i := range x.subs {
		n += len(x.subs[i].slots)
	}
	return n
}
