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
	CounterVer    uint64 // of the change that wrote it: grows with every change of the key

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

// FirstVersion is where the versions of a new owner begin: term << 40, so that
// they are above all that owners of older terms gave out, even where a leader
// cache lost the tail of such a term (design.md section 3, rule 7). highest is
// the highest version applied. An owner that stays for more than 2^40 changes
// of one key runs over into the bits of the term; then the next one begins a
// whole 2^40 further on, beyond any tail that could be lost.
func FirstVersion(term, highest uint64) uint64 {
	const longestTail = 1 << 32
	return max(term, (highest+longestTail)>>40+1) << 40
}

// Counts says how many records and keys a shard holds.
type Counts struct {
	Counters int64
	Values   int64
	Keys     int64 // distinct keys
	IDs      int64 // idempotency ids: none of the others, nor of a key
}

// Add adds a change.
func (c *Counts) Add(d Counts) {
	c.Counters += d.Counters
	c.Values += d.Values
	c.Keys += d.Keys
	c.IDs += d.IDs
}

// CountChange is what replacing a cell's records changes in the counts.
func CountChange(before, after Has) Counts {
	return Counts{
		Counters: bit(after, HasCounter) - bit(before, HasCounter),
		Values:   bit(after, HasValue) - bit(before, HasValue),
		Keys:     bit(after, HasCounter|HasValue) - bit(before, HasCounter|HasValue),
	}
}

// IDChange is what replacing what there is of an id changes in the counts. Its
// record is held in a cell as a value is.
func IDChange(before, after Has) Counts {
	return Counts{IDs: bit(after, HasValue) - bit(before, HasValue)}
}

func bit(h, mask Has) int64 {
	if h&mask != 0 {
		return 1
	}
	return 0
}
