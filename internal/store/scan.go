package store

import (
	"bytes"
	"errors"

	"github.com/cockroachdb/pebble/v2"

	felix "github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/record"
)

// OverlayItem is a key that memory knows better than the disk. A Cell without
// records is a key that does not exist.
type OverlayItem struct {
	Key  []byte
	Cell record.Cell
}

// Cursor lists one page of a shard's keys as the disk was when the Cursor was
// made. It keeps the files of that moment on disk, so it has to be closed
// soon. It belongs to one goroutine.
type Cursor struct {
	db            *DB
	shard         uint64
	prefix, after []byte
	it            *pebble.Iterator // nil when closed
}

// Cursor pins the disk state at this moment for one page of keys that begin
// with prefix and lie above after (nil: from the start). It reads nothing yet,
// so it may be called where memory is captured, to get both of one moment.
func (db *DB) Cursor(shard uint64, prefix, after []byte) (*Cursor, error) {
	it, err := db.iterate(record.AppendShard(nil, shard), shardEnd(shard))
	if err != nil {
		return nil, err
	}
	return &Cursor{db: db, shard: shard, prefix: bytes.Clone(prefix), after: bytes.Clone(after), it: it}, nil
}

// Close gives the pinned state free. It may be called more than once.
func (c *Cursor) Close() {
	if c.it == nil {
		return
	}
	it := c.it
	c.it = nil
	if err := it.Close(); err != nil {
		_ = c.db.fail("scanning", err) // Fatal hears of it; nobody here waits for it
	}
}

// PageRequest says what a Cursor's page shows.
type PageRequest struct {
	View      felix.View
	KeysOnly  bool  // without the bytes of values
	NowMillis int64 // shard time
	Limit     int   // of items, at least 1
	MaxBytes  int   // of keys and values: the page ends with the item that reaches it
	// Overlay are memory's newer cells in the cursor's range, sorted by key:
	// each replaces what the disk has under its key. Cut says that memory has
	// more of them above the last one; the page then ends there.
	Overlay []OverlayItem
	Cut     bool
}

// Page lists the first keys of the cursor's range that are visible, and closes
// the cursor. The items' memory is the caller's own.
//
// more says that there may be keys after the page. The next page begins after
// the last item; if there is none, which only happens with Cut, after the last
// overlay key.
func (c *Cursor) Page(p PageRequest) (items []felix.ScanItem, more bool, err error) {
	defer c.Close()
	if p.Cut && len(p.Overlay) == 0 {
		return nil, false, errors.New("the overlay of a page is cut but empty: it needs at least one item")
	}
	if c.it == nil {
		return nil, false, errors.New("the cursor is closed: each is good for one page")
	}
	m := merge{overlay: p.Overlay, keysOnly: p.KeysOnly}
	if err := c.openStreams(&m, p.View); err != nil {
		return nil, false, c.db.fail("scanning", errors.Join(err, m.close()))
	}
	limit, maxBytes := max(p.Limit, 1), max(p.MaxBytes, 1)
	for size := 0; len(items) < limit && size < maxBytes && m.next(); {
		if item, ok := visible(&m.cell, p.View, p.NowMillis); ok {
			item.Key = bytes.Clone(m.key)
			items = append(items, item)
			size += len(item.Key) + len(item.Value)
		}
		if p.Cut && len(m.overlay) == 0 {
			more = true // memory has more keys, and some may be below the disk's next
			break
		}
	}
	more = more || m.pending()
	if err := errors.Join(m.err, m.close()); err != nil {
		return nil, false, c.db.fail("scanning", err)
	}
	return items, more, nil
}

// openStreams makes a stream for each kind of record that the view shows. The
// last one takes over the cursor's iterator.
func (c *Cursor) openStreams(m *merge, view felix.View) error {
	kinds := recordKinds[:]
	switch view {
	case felix.ViewCounter:
		kinds = recordKinds[:1]
	case felix.ViewValue:
		kinds = recordKinds[1:]
	}
	for i := range kinds {
		it := c.it
		if i < len(kinds)-1 {
			var err error
			if it, err = it.Clone(pebble.CloneOptions{}); err != nil {
				return err
			}
		} else {
			c.it = nil
		}
		m.streams = append(m.streams, &stream{it: it, class: kinds[i].class})
		m.streams[i].begin(c.bounds(kinds[i].class))
	}
	return nil
}

// bounds are the first key of the range in a class and the first one above it.
func (c *Cursor) bounds(class record.Class) (lower, upper []byte) {
	lower = record.AppendStateKey(nil, c.shard, class, c.prefix)
	upper = successor(lower)
	if c.after != nil && bytes.Compare(c.after, c.prefix) >= 0 {
		lower = append(record.AppendStateKey(nil, c.shard, class, c.after), 0)
	}
	return lower, upper
}

// successor is the first key above all that begin with b, which has a byte
// below 0xff: the class.
func successor(b []byte) []byte {
	end := bytes.Clone(b)
	for end[len(end)-1] == 0xff {
		end = end[:len(end)-1]
	}
	end[len(end)-1]++
	return end
}

// stream is the records of one class in key order.
type stream struct {
	it    *pebble.Iterator
	class record.Class
	valid bool
}

func (s *stream) begin(lower, upper []byte) {
	if bytes.Compare(lower, upper) >= 0 {
		return
	}
	s.it.SetBounds(lower, upper)
	s.valid = s.it.First()
}

func (s *stream) key() []byte { return s.it.Key()[record.StateKeyPrefixBytes:] }

// read puts the record into the cell and goes on to the next.
func (s *stream) read(c *record.Cell, keysOnly bool) (err error) {
	switch {
	case s.class == record.CounterClass:
		err = record.ReadCounter(s.it.Value(), c)
	case keysOnly:
		err = record.ReadValueHead(s.it.Value(), c)
	default:
		err = record.ReadValue(s.it.Value(), c)
	}
	s.valid = s.it.Next()
	return err
}

// merge walks the streams and the overlay together, key by key.
type merge struct {
	streams  []*stream
	overlay  []OverlayItem
	keysOnly bool
	key      []byte // of the cell; valid until next
	cell     record.Cell
	err      error
}

// pending says whether next would find another key.
func (m *merge) pending() bool {
	for _, s := range m.streams {
		if s.valid {
			return true
		}
	}
	return len(m.overlay) > 0
}

// next goes to the lowest key that has not been seen and reads its cell: the
// overlay's if it has one, else the disk's.
func (m *merge) next() bool {
	lowest, found := []byte(nil), false
	for _, s := range m.streams {
		if s.valid && (!found || bytes.Compare(s.key(), lowest) < 0) {
			lowest, found = s.key(), true
		}
	}
	fromOverlay := len(m.overlay) > 0 && (!found || bytes.Compare(m.overlay[0].Key, lowest) <= 0)
	if fromOverlay {
		lowest, found = m.overlay[0].Key, true
	}
	if !found || m.err != nil {
		return false
	}
	m.key = append(m.key[:0], lowest...)
	m.cell = record.Cell{}
	for _, s := range m.streams {
		if s.valid && bytes.Equal(s.key(), m.key) {
			m.err = errors.Join(m.err, s.read(&m.cell, m.keysOnly))
		}
	}
	if fromOverlay {
		m.cell = m.overlay[0].Cell
		if m.keysOnly {
			m.cell.Value = nil
		}
		m.cell.Value = bytes.Clone(m.cell.Value)
		m.overlay = m.overlay[1:]
	}
	return m.err == nil
}

func (m *merge) close() (err error) {
	for _, s := range m.streams {
		err = errors.Join(err, s.it.Close())
	}
	return err
}

// visible is what the view shows of a cell at nowMillis.
func visible(c *record.Cell, view felix.View, nowMillis int64) (item felix.ScanItem, ok bool) {
	live := func(has record.Has, expiry int64) bool {
		return c.Has&has != 0 && (expiry == 0 || expiry > nowMillis)
	}
	if view != felix.ViewValue && live(record.HasCounter, c.CounterExpiry) {
		return felix.ScanItem{Kind: felix.CounterRecord, Int: c.Sum,
			ExpiresAtMillis: c.CounterExpiry, Version: c.CounterVer}, true
	}
	if view != felix.ViewCounter && live(record.HasValue, c.ValueExpiry) {
		return felix.ScanItem{Kind: felix.ValueRecord, Value: c.Value,
			ExpiresAtMillis: c.ValueExpiry, Version: c.ValueVer}, true
	}
	return felix.ScanItem{}, false
}
