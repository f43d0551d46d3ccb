package store

import "hash/maphash"

// A look-up in a table larger than the processor's caches waits for memory
// twice: for the index, then for the entry. Done one after the other that is
// most of what an operation costs. Warm does the same reads for many keys in
// two loops whose iterations do not depend on each other, so the processor has
// a dozen of them under way at once (the technique of Kocberber et al.,
// "Asynchronous Memory Access Chaining", VLDB 2015, in its simplest form:
// group prefetching).

// WarmGroup is how many keys are worth warming at once: enough for the
// processor to overlap, few enough that they are still in its caches when
// they are looked up.
const WarmGroup = 512

// Hash is what FindHashed and Warm want of a key.
func (t *Table) Hash(key []byte) uint64 { return maphash.Bytes(t.seed, key) }

// Warm brings the entries of the keys with these hashes into the processor's
// caches. It changes nothing that can be seen.
func (t *Table) Warm(hashes []uint64) {
	for len(hashes) > 0 {
		n := min(len(hashes), WarmGroup)
		t.warm(hashes[:n])
		hashes = hashes[n:]
	}
}

func (t *Table) warm(hashes []uint64) {
	var refs [WarmGroup]Ref
	n := 0
	for _, hash := range hashes {
		s := t.index.sub(hash)
		if len(s.slots) == 0 {
			continue
		}
		// The first slot of the chain is mostly the right one; what it is not
		// is found by lookup.
		refs[n] = Ref(s.slots[hash&0xffffffff&uint64(len(s.slots)-1)])
		n++
	}
	t.warmRefs(refs[:n])
}

// warmRefs brings entries into the processor's caches; Ref 0 is passed over.
func (t *Table) warmRefs(refs []Ref) {
	sum := uint64(0)
	for _, ref := range refs {
		if ref != 0 {
			sum += uint64(t.at(ref).keyLen)
		}
	}
	t.warmed += sum
}

// warmTouched is warmRefs for the entries that a log entry will change.
func (t *Table) warmTouched(touched []Touch) {
	sum := uint64(0)
	for i := range touched {
		sum += uint64(t.at(touched[i].Ref).keyLen)
	}
	t.warmed += sum
}
