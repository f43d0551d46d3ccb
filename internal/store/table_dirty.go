package store

// What is dirty cannot be evicted: only a checkpoint makes it clean. So it is
// counted apart from the rest, for those who write to be held back before the
// checkpoints have fallen too far behind.

// DirtyBytes is the part of UsedBytes that eviction cannot free: entries that
// changed since the last checkpoint, and what a checkpoint under way holds.
func (b *Budget) DirtyBytes() int64 { return b.dirty.Load() }

// cost is what an entry is charged: its slot, its key and its value.
func (t *Table) cost(e *entry) int64 {
	cost := int64(entryBytes)
	if e.flags&flagLongKey != 0 {
		cost += longKeyBytes + int64(e.keyLen)
	}
	if e.value != 0 {
		cost += valueBytes + int64(len(t.values[e.value].data))
	}
	return cost
}

// soil counts an entry that is about to become dirty for the next checkpoint.
// One that the running checkpoint has captured is about to lose its value,
// which from then on only the capture holds.
func (t *Table) soil(e *entry) {
	if e.flags&flagDirtyAny == 0 {
		t.dirtyBytes += t.cost(e)
	} else if e.flags&flagCaptured != 0 && e.value != 0 {
		t.hold(t.checkpoint, int64(len(t.values[e.value].data)))
	}
}

// cleaned is the opposite of soil, for an entry whose dirty bits were taken.
func (t *Table) cleaned(e *entry) {
	if e.flags&flagDirtyAny == 0 {
		t.dirtyBytes -= t.cost(e)
	}
}

// hold charges the table for what a checkpoint holds.
func (t *Table) hold(c *Capture, bytes int64) {
	c.bytes += bytes
	t.dirtyBytes += bytes
	t.charge(bytes)
}

// tellDirty brings the budget up to date. Changes of single entries are told
// together, once a log entry or slice, since all shards share the budget.
func (t *Table) tellDirty() {
	if n := t.dirtyBytes - t.dirtyTold; n != 0 {
		t.dirtyTold = t.dirtyBytes
		t.budget.dirty.Add(n)
	}
}
