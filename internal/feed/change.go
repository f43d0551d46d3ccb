// Package feed is what a watch is made of: the changes that a log entry makes,
// places in the log and the tokens that name them, and the queue of a watcher.
// The Raft log is the feed: nothing else is written for watchers, and what they
// see is committed.
package feed

import (
	"bytes"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/record"
)

// Change is one record write of a committed entry. It is shared by all watchers
// that want it, and never changed.
type Change struct {
	Index uint64 // of the entry
	Write uint32 // which of its writes
	// Clear says that every record of the shard is gone; nothing else is set.
	Clear bool
	View  felix.View       // ViewCounter or ViewValue
	Event felix.WatchEvent // without Skipped and Token
}

// changeBytes is what a change costs in memory beside its key and value.
const changeBytes = 192

func (c *Change) bytes() int64 {
	return int64(len(c.Event.Key) + len(c.Event.Value) + changeBytes)
}

// Read calls want for each write of the entry at index, and take with a copy of
// those that are wanted, in order. A clear of the shard is always wanted. The
// error is record.ErrCorrupt.
func Read(index uint64, payload []byte, want func(view felix.View, key []byte) bool, take func(*Change)) error {
	r, err := record.ReadEntry(payload)
	if err != nil {
		return err
	}
	var w record.Write
	for n := uint32(0); r.More(); n++ {
		if err := r.Next(&w); err != nil {
			return err
		}
		switch view := viewOf(w.Kind); w.Kind {
		case record.ClearShard:
			take(change(index, n, view, &w, r.Header.Base))
		case record.PutCounter, record.PutValue, record.DeleteCounter, record.DeleteValue:
			if want(view, w.Key) {
				take(change(index, n, view, &w, r.Header.Base))
			}
		default: // of idempotency ids: nobody watches those
		}
	}
	return nil
}

// viewOf is the view that shows the records of such a write.
func viewOf(kind record.WriteKind) felix.View {
	if kind == record.PutValue || kind == record.DeleteValue {
		return felix.ViewValue
	}
	return felix.ViewCounter
}

func change(index uint64, n uint32, view felix.View, w *record.Write, base uint64) *Change {
	c := &Change{Index: index, Write: n, View: view, Event: felix.WatchEvent{Key: bytes.Clone(w.Key)}}
	e := &c.Event
	switch w.Kind {
	case record.PutCounter, record.PutValue:
		e.Kind, e.Int, e.ExpiresAtMillis, e.Version = felix.WatchPut, w.Sum, w.Expiry, base+w.Step
		e.Value = bytes.Clone(w.Value)
	case record.DeleteCounter, record.DeleteValue:
		e.Kind = felix.WatchDelete
	case record.ClearShard:
		c.Clear = true
	}
	return c
}
