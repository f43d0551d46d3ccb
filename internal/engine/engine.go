// Package engine evaluates operations: given an operation and the cell of its
// key, it changes the cell and says what to answer. It is pure: no I/O, no
// clock of its own, no goroutines, no state between calls. The owner of a shard
// calls it once per operation and puts the records that changed into the log
// (design.md section 3, "the owner decides").
package engine

import (
	"github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/invariant"
	"github.com/felix-go/felix/internal/record"
)

// Clock gives shard time. Asking for it marks the evaluation as dependent on
// time: the shard then makes sure that the time is below the logged ceiling. So
// Eval asks only if an expiry is involved.
type Clock interface {
	// Now is the shard time in Unix milliseconds, the same within one batch of
	// evaluations.
	Now() int64
}

// Eval evaluates an operation that Validate accepted on the cell of its key. It
// fills r completely and changes the cell in place; the records it wrote carry
// version. changed says whether the cell is any different: if not, nothing needs
// to be logged, and version is not in use. Nothing in the cell or in r shares
// memory with op; r.Value may share memory with the cell as it was, whose values
// are immutable.
//
// An expired record (expiry <= now) in the operation's view counts as absent. An
// operation that writes drops it; one that does not leaves it to Sweep. Records
// outside the view are neither looked at nor changed.
//
// Errors in r.Err: felix.ErrOverflow, felix.ErrNotInteger, felix.ErrInvalidExpire.
func Eval(op *felix.Op, cell *record.Cell, version uint64, clock Clock, r *felix.Reply) (changed bool) {
	*r = felix.Reply{}
	t := timer{clock: clock}
	e := evaluation{op: op, cell: cell, version: version, timer: &t, r: r}
	switch op.Kind {
	case felix.Get:
		e.show(e.look())
		return false
	case felix.Add:
		return e.add()
	case felix.Set:
		return e.set()
	case felix.Delete:
		return e.delete()
	case felix.Expire:
		return e.expire()
	case felix.Check:
		e.check()
		return false
	}
	invariant.Fail("an operation of kind %d reached evaluation", op.Kind)
	return false
}

// Sweep drops the cell's expired records: those whose expiry is not after now
// (shard time, Unix milliseconds).
func Sweep(cell *record.Cell, now int64) (changed bool) {
	before := cell.Has
	if cell.Has&record.HasCounter != 0 && expired(cell.CounterExpiry, now) {
		cell.DropCounter()
	}
	if cell.Has&record.HasValue != 0 && expired(cell.ValueExpiry, now) {
		cell.DropValue()
	}
	return cell.Has != before
}

func expired(expiry, now int64) bool { return expiry != 0 && expiry <= now }

// evaluation is one call of Eval. It lives on the stack.
type evaluation struct {
	op      *felix.Op
	cell    *record.Cell
	version uint64
	r       *felix.Reply
	// timer is apart so that the compiler sees that calling the clock keeps
	// nothing of the evaluation: otherwise op, cell and r would be forced onto
	// the caller's heap.
	timer *timer
}

// timer asks a clock at most once.
type timer struct {
	clock Clock
	now   int64
	asked bool
}

// time is the shard time; only called where an expiry is involved.
func (e *evaluation) time() int64 {
	t := e.timer
	if !t.asked {
		t.now, t.asked = t.clock.Now(), true
	}
	return t.now
}

// look finds the record that the operation sees: the one live record of its
// view, the counter before the value, or none. It asks the clock only if a
// record that it considers has an expiry.
func (e *evaluation) look() record.Has {
	c := e.cell
	if c.Has&record.HasCounter != 0 && e.op.View != felix.ViewValue &&
		(c.CounterExpiry == 0 || c.CounterExpiry > e.time()) {
		return record.HasCounter
	}
	if c.Has&record.HasValue != 0 && e.op.View != felix.ViewCounter &&
		(c.ValueExpiry == 0 || c.ValueExpiry > e.time()) {
		return record.HasValue
	}
	return 0
}

// show fills the reply with the record that was seen.
func (e *evaluation) show(seen record.Has) {
	r, c := e.r, e.cell
	switch seen {
	case record.HasCounter:
		r.Found, r.Int, r.ExpiresAtMillis, r.Version = felix.CounterRecord, c.Sum, c.CounterExpiry, c.CounterVer
	case record.HasValue:
		r.Found, r.ExpiresAtMillis, r.Version = felix.ValueRecord, c.ValueExpiry, c.ValueVer
		if e.op.NoValue || e.op.Once != nil {
			r.Int = int64(len(c.Value))
		} else {
			r.Value = c.Value
		}
	}
	if r.ExpiresAtMillis != 0 {
		r.NowMillis = e.time()
	}
}

// expiryOf is the expiry of the record that was seen.
func (e *evaluation) expiryOf(seen record.Has) int64 {
	switch seen {
	case record.HasCounter:
		return e.cell.CounterExpiry
	case record.HasValue:
		return e.cell.ValueExpiry
	}
	return 0
}

// versionOf is the version of the record that was seen.
func (e *evaluation) versionOf(seen record.Has) uint64 {
	switch seen {
	case record.HasCounter:
		return e.cell.CounterVer
	case record.HasValue:
		return e.cell.ValueVer
	}
	return 0
}

// putCounter makes a counter the only record of the view.
func (e *evaluation) putCounter(sum, expiry int64) {
	c := e.cell
	if e.op.View == felix.ViewRedis && c.Has&record.HasValue != 0 {
		c.DropValue()
	}
	c.Has |= record.HasCounter
	c.Sum, c.CounterExpiry, c.CounterVer = sum, expiry, e.version
}

// putValue makes a value the only record of the view. The value must not change
// any more.
func (e *evaluation) putValue(value []byte, expiry int64) {
	c := e.cell
	if e.op.View == felix.ViewRedis && c.Has&record.HasCounter != 0 {
		c.DropCounter()
	}
	c.Has |= record.HasValue
	c.Value, c.ValueExpiry, c.ValueVer = value, expiry, e.version
}

// drop removes every record of the view, seen or expired.
func (e *evaluation) drop() (changed bool) {
	before := e.cell.Has
	if e.op.View != felix.ViewValue && before&record.HasCounter != 0 {
		e.cell.DropCounter()
	}
	if e.op.View != felix.ViewCounter && before&record.HasValue != 0 {
		e.cell.DropValue()
	}
	return e.cell.Has != before
}
