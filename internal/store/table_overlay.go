package store

import (
	"bytes"
	"slices"

	"github.com/felix-go/felix/internal/record"
)

// Overlay lists the dirty applied cells with the prefix and above after, in
// key order: at most limit of them (at least 1), cut saying that there are
// more. unloaded are entries among these of which the DB knows more; while
// there are any, the overlay is not to be used.
//
// All dirty entries are looked at, on the shard's goroutine, so most of them
// must cost next to nothing: one comparison with the largest of the page so far.
func (t *Table) Overlay(prefix, after []byte, limit int) (items []OverlayItem, cut bool, unloaded []Ref) {
	p := overlayPage{table: t, prefix: prefix, after: after, limit: max(limit, 1)}
	current := flagDirty0 << t.parity
	p.add(t.dirty, flagID)
	if c := t.checkpoint; c != nil {
		rest := c.entries
		if c.written {
			rest = rest[c.next:]
		}
		p.add(rest, current|flagID) // those that changed again are in t.dirty
	}
	slices.SortFunc(p.heap, func(a, b overlayKey) int { return bytes.Compare(a.key, b.key) })
	complete := t.complete()
	items = make([]OverlayItem, len(p.heap))
	for i, k := range p.heap {
		e := t.at(k.ref)
		if e.flags&flagKnownAll != flagKnownAll {
			if !complete {
				unloaded = append(unloaded, k.ref)
				continue
			}
			e.flags |= flagKnownAll
		}
		items[i].Key = bytes.Clone(k.key)
		t.readApplied(e, &items[i].Cell)
	}
	return items, p.cut, unloaded
}

// overlayPage gathers the lowest keys of a range: a heap, its largest first.
type overlayPage struct {
	table         *Table
	prefix, after []byte
	limit         int
	heap          []overlayKey
	cut           bool
}

type overlayKey struct {
	key []byte // the entry's own memory
	ref Ref
}

// add offers dirty entries, but those with a flag of except.
func (p *overlayPage) add(refs []Ref, except flags) {
	t := p.table
	for len(refs) > 0 {
		group := refs[:min(len(refs), WarmGroup)]
		refs = refs[len(group):]
		t.warmRefs(group)
		for _, ref := range group {
			if e := t.at(ref); e.flags&flagDirtyAny != 0 && e.flags&except == 0 {
				p.offer(t.keyOf(e), ref)
			}
		}
	}
}

func (p *overlayPage) offer(key []byte, ref Ref) {
	full := len(p.heap) == p.limit
	if full && p.cut && bytes.Compare(key, p.heap[0].key) > 0 {
		return
	}
	if !bytes.HasPrefix(key, p.prefix) || p.after != nil && bytes.Compare(key, p.after) <= 0 {
		return
	}
	if !full {
		p.heap = append(p.heap, overlayKey{key, ref})
		p.up(len(p.heap) - 1)
		return
	}
	p.cut = true
	if bytes.Compare(key, p.heap[0].key) < 0 {
		p.heap[0] = overlayKey{key, ref}
		p.down(0)
	}
}

func (p *overlayPage) up(i int) {
	h := p.heap
	for i > 0 {
		parent := (i - 1) / 2
		if bytes.Compare(h[parent].key, h[i].key) >= 0 {
			return
		}
		h[parent], h[i] = h[i], h[parent]
		i = parent
	}
}

func (p *overlayPage) down(i int) {
	h := p.heap
	for {
		child := 2*i + 1
		if child >= len(h) {
			return
		}
		if next := child + 1; next < len(h) && bytes.Compare(h[next].key, h[child].key) > 0 {
			child = next
		}
		if bytes.Compare(h[i].key, h[child].key) >= 0 {
			return
		}
		h[i], h[child] = h[child], h[i]
		i = child
	}
}

// Counts is how many records are applied.
func (t *Table) Counts() record.Counts { return t.applied.Counts }
