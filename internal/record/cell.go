// Package record holds what Felix stores and how it is written down: the cell
// (a key's counter and value in memory), the payload of a log entry, and the
// records of the state store. docs/format.md describes the bytes.
package record

// Has is the set of records that a cell holds.
type Has uint8

// The records of a cell.
const (
	HasCounter Has = 1 << iota
	HasValue
)

// Cell is everything stored under one key: its counter, its value, or both.
// The zero Cell is a key that does not exist. Fields of a record that the cell
// does not have are zero.
type Cell struct {
	Has Has

	Sum           int64
	CounterExpiry int64  // shard time in Unix milliseconds; 0 means never
	CounterVer    uint64 // Version of the entry that wrote it

	Value       []byte // immutable once in a cell
	ValueExpiry int64  // as CounterExpiry
	ValueVer    uint64 // as CounterVer
}

// Exists says whether there is anything under the key.
func (c *Cell) Exists() bool { return c.Has != 0 }

// DropCounter removes the counter.
func (c *Cell) DropCounter() {
	c.Has &^= HasCounter
	c.Sum, c.CounterExpiry, c.CounterVer = 0, 0, 0
}

// DropValue removes the value.
func (c *Cell) DropValue() {
	c.Has &^= HasValue
	c.Value, c.ValueExpiry, c.ValueVer = nil, 0, 0
}

// Version is the version of every record that the log entry at (term, index)
// writes: unique, and increasing even where a leader cache lost the tail of an
// older term (design.md section 3, rule 7).
func Version(term, index uint64) uint64 { return term<<40 | index&(1<<40-1) }

// Counts says how many records and keys a shard holds.
type Counts struct {
	Counters int64
	Values   int64
	Keys     int64 // distinct keys
}

// Add adds a change.
func (c *Counts) Add(d Counts) {
	c.Counters += d.Counters
	c.Values += d.Values
	c.Keys += d.Keys
}

// CountChange is what replacing a cell's records changes in the counts.
func CountChange(before, after Has) Counts {
	return Counts{
		Counters: bit(after, HasCounter) - bit(before, HasCounter),
		Values:   bit(after, HasValue) - bit(before, HasValue),
		Keys:     bit(after, HasCounter|HasValue) - bit(before, HasCounter|HasValue),
	}
}

func bit(h, mask Has) int64 {
	if h&mask != 0 {
		return 1
	}
	return 0
}
