package felix

// Kind says what an operation does.
type Kind uint8

// The kinds of operation. Each works on one key, atomically.
const (
	// Get reads. It changes nothing.
	Get Kind = iota + 1
	// Add adds Int to the counter; one that does not exist starts at 0. It
	// answers the new sum in Reply.Int. An overflow is out_of_range, unless the
	// Add has Bounds.
	Add
	// Set replaces the record, on If.
	Set
	// Delete removes the record, on If.
	Delete
	// Expire changes when the record expires, on ExpireIf.
	Expire
	// Check says in Reply.Applied whether If holds, and what was Found if it
	// does not; it changes nothing. In a Group it is what the rest depends on.
	Check
)

// View says which records of a key an operation means. A counter and a value
// with the same key are unrelated, except in the Redis view.
type View uint8

const (
	// ViewCounter is the counter alone.
	ViewCounter View = iota
	// ViewValue is the cache value alone.
	ViewValue
	// ViewRedis shows both as one Redis string. If both exist the counter is
	// seen. Any write or delete replaces both. Set stores bytes that are a
	// canonical int64 as a counter and all others as a value. Add on a value
	// that holds canonical digits makes it a counter and keeps its expiry; on
	// any other value it is ErrNotInteger.
	ViewRedis
)

// RecordKind says what a record is.
type RecordKind uint8

const (
	// NoRecord means there is none.
	NoRecord RecordKind = iota
	// CounterRecord is a signed 64-bit sum.
	CounterRecord
	// ValueRecord is a string of bytes.
	ValueRecord
)

// If is the condition of a Set, Delete or Check. Unmet, nothing changes and
// Reply.Applied is false: an answer, not an error.
type If uint8

const (
	// Always has no condition.
	Always If = iota
	// IfAbsent wants no such record (in the Redis view: neither kind).
	IfAbsent
	// IfPresent wants the record to exist.
	IfPresent
	// IfVersion wants the record to exist with Op.Version.
	IfVersion
)

// TTL says what a Set, Add or Expire does with the expiry.
type TTL uint8

const (
	// TTLDefault is: Set clears it, Add and Expire keep it; a new record
	// never expires.
	TTLDefault TTL = iota
	// TTLKeep keeps what the record has.
	TTLKeep
	// TTLClear makes the record last.
	TTLClear
	// TTLIn expires the record Op.ExpiryMillis after the shard's now.
	TTLIn
	// TTLAt expires the record at shard time Op.ExpiryMillis.
	TTLAt
	// TTLInIfNone is TTLIn where the record has no expiry (or is new), and
	// otherwise TTLKeep: a window that begins with its first hit and is not
	// moved by the next. Add only.
	TTLInIfNone
	// TTLAtIfNone is the same with TTLAt.
	TTLAtIfNone
)

// Bounds limit the sum that an Add may make, as those of Redis's INCREX do. A sum
// outside of them, or one that would overflow, is not an error: nothing changes
// (not the expiry either, and a counter that does not exist is not made),
// Reply.Applied is false and Reply.Int is the sum as it is, 0 where there is none.
//
// They look at the new sum alone. Where the old one is outside already, since the
// bounds were others then, an Add that ends inside is applied and every other one
// is not, also if it goes towards them.
type Bounds struct {
	Min, Max int64 // both included; math.MinInt64 and math.MaxInt64 are no bound
	// Saturate makes a sum that would be outside the bound that is nearest to it,
	// instead of refusing it: the Add is applied, with Reply.Delta. (From a sum
	// that is outside already this may go the other way, to the bound.) If even
	// that difference is no int64 it is ErrOverflow. Where the counter is at the
	// bound already, and its expiry stays as it is, nothing is written.
	Saturate bool
}

// Once makes a retried operation count once: the same id with the same operation
// on the same key answers what the first answered, with Reply.Replayed, until the
// retention has passed; with another operation it is ErrIDReused. What an
// operation with an id is refused (an unmet bound, say) is kept as well. Its reply
// has no bytes of values, as with NoValue: it is kept for long.
type Once struct {
	ID              []byte // 1 to MaxIDBytes bytes
	RetentionMillis int64  // 0 is DefaultIDRetention; at most MaxIDRetention
}

// ExpireIf is the condition of an Expire: a set of these, all of which must
// hold, with the meaning of Redis 7: a record without expiry counts as
// infinitely far away.
type ExpireIf uint8

const (
	// ExpireIfNone wants the record to have no expiry (NX).
	ExpireIfNone ExpireIf = 1 << iota
	// ExpireIfSome wants it to have one (XX).
	ExpireIfSome
	// ExpireIfLater wants the new expiry to be later (GT).
	ExpireIfLater
	// ExpireIfSooner wants it to be sooner (LT).
	ExpireIfSooner
)

// Op is one operation on one key. The zero value of a field means "not used".
type Op struct {
	Kind     Kind
	View     View
	If       If
	TTL      TTL
	ExpireIf ExpireIf
	// ReturnOld asks Set, Delete and Expire for the record as it was before.
	// (Expire does not change the contents, so "before" is also "now".)
	ReturnOld bool
	// NoValue asks for the reply without the bytes of a value, which may be
	// many: Reply.Int is then their number.
	NoValue bool
	// Key is 1 to MaxKeyBytes bytes.
	Key []byte
	// Value is what Set stores in the views ViewValue and ViewRedis: at most
	// MaxValueBytes.
	Value []byte
	// Int is Add's delta and what Set stores in ViewCounter.
	Int int64
	// ExpiryMillis belongs to TTLIn (a duration) and TTLAt (Unix time on the
	// shard's clock). Set and Add want it positive; Expire with a time that
	// is not in the future deletes the record.
	ExpiryMillis int64
	// Version belongs to IfVersion.
	Version uint64
	// Bounds, of an Add, and Once are nil where there is none. They are apart
	// so that the operations that need neither stay small.
	Bounds *Bounds
	Once   *Once
}

// Mutates says whether the operation may change anything. A lost answer to one
// that does is outcome_unknown; to one that does not, merely unavailable.
func (o *Op) Mutates() bool { return o.Kind != Get && o.Kind != Check }

// Reply is the answer to one operation.
type Reply struct {
	// Err is nil, or why the operation was not applied (or, for
	// outcome_unknown, may have been). If it is set, nothing else is.
	Err *Error
	// Applied says that the operation took effect: an Add without Bounds and an
	// unconditional Set always do; Delete if there was something to delete; a
	// Check if its condition holds; Expire if the
	// record exists and its conditions held (also when the effect was to
	// delete it).
	Applied bool
	// Replayed says that this is the answer to an earlier operation with the
	// same id: nothing was done this time.
	Replayed bool
	// Aborted says that the operation was not applied because another one of
	// its Group was not; if it is set, nothing else is.
	Aborted bool
	// Found is the kind of record that Get found, or that stood there before
	// a Set, Delete, Check or Expire with ReturnOld or an unmet condition, or an Add
	// with unmet Bounds (Value is nil then).
	Found RecordKind
	// Delta is what an Add with Bounds has added: what it was asked to, or with
	// Saturate what leads to the bound, or 0 if it was not applied.
	Delta int64
	// Int is Add's new sum (with Bounds and Applied false: the one that is);
	// otherwise the sum of the counter that was Found, or with NoValue the
	// length of the value that was.
	Int int64
	// Value is the value that was Found. It must not be changed: it is shared
	// with the store. With NoValue it is nil.
	Value []byte
	// ExpiresAtMillis is when the record (after Add: the counter as it now
	// is; otherwise the one that was Found) expires, in shard time; 0 means
	// never.
	ExpiresAtMillis int64
	// NowMillis is the shard time at which the operation was evaluated, set
	// whenever ExpiresAtMillis is.
	NowMillis int64
	// Version is that of the record written (Add, Set, Expire) or, if nothing
	// had to be, of the one that is; or of the one Found. Versions of a key only grow and are never used twice.
	Version uint64
}
