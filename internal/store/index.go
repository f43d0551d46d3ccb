package store

// index finds the Ref of a key's hash: open addressing with linear probing, in
// sub-tables that grow one at a time, so that no growth takes long. It holds
// no pointers, so the garbage collector does not look at it.
type index struct {
	subs [subCount]subIndex
}

const (
	subBits  = 6
	subCount = 1 << subBits
	// subMinSlots is the smallest sub-table; one without entries has none.
	subMinSlots = 8
)

// subIndex is one sub-table. A slot is the low 32 bits of the hash above the
// Ref; 0 is an empty slot (Ref 0 names no entry).
type subIndex struct {
	slots []uint64 // length 0 or a power of two
	used  int      // at most 3/4 of the slots
}

func (x *index) sub(hash uint64) *subIndex { return &x.subs[hash>>(64-subBits)] }

func slotOf(hash uint64, ref Ref) uint64 { return hash<<32 | uint64(ref) }

// add puts a Ref in; the caller knows that it is not there.
func (x *index) add(hash uint64, ref Ref) {
	s := x.sub(hash)
	if 4*(s.used+1) > 3*len(s.slots) {
		s.resize(max(subMinSlots, 2*len(s.slots)))
	}
	s.put(slotOf(hash, ref))
	s.used++
}

func (s *subIndex) put(slot uint64) {
	mask := uint64(len(s.slots) - 1)
	for i := slot >> 32 & mask; ; i = (i + 1) & mask {
		if s.slots[i] == 0 {
			s.slots[i] = slot
			return
		}
	}
}

// remove takes a Ref out; the caller knows that it is there.
func (x *index) remove(hash uint64, ref Ref) {
	s := x.sub(hash)
	mask := uint64(len(s.slots) - 1)
	i := hash & 0xffffffff & mask
	for want := slotOf(hash, ref); s.slots[i] != want; {
		i = (i + 1) & mask
	}
	// Close the gap: move back every following slot that would no longer be
	// found past it (Knuth, The Art of Computer Programming 6.4, algorithm R).
	for j := i; ; {
		j = (j + 1) & mask
		slot := s.slots[j]
		if slot == 0 {
			break
		}
		home := slot >> 32 & mask
		if (j-home)&mask >= (j-i)&mask {
			s.slots[i] = slot
			i = j
		}
	}
	s.slots[i] = 0
	s.used--
	if len(s.slots) > subMinSlots && 8*s.used < len(s.slots) {
		s.resize(len(s.slots) / 2)
	}
}

func (s *subIndex) resize(slots int) {
	old := s.slots
	s.slots = make([]uint64, slots)
	for _, slot := range old {
		if slot != 0 {
			s.put(slot)
		}
	}
}
