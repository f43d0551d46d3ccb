package record

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math"

	"github.com/felix-go/felix"
)

// IDKeyBytes is the length of an IDKey, and of a Fingerprint.
const IDKeyBytes = 16

// IDKey is where the record of an idempotency id stands in its shard: the
// beginning of a SHA-256 over the key and the id. It has one length whatever
// they are, and nobody can make two that are the same.
type IDKey [IDKeyBytes]byte

// Fingerprint is of one or more operations: the beginning of a SHA-256 over all
// that they ask for. The same id with another Fingerprint is another operation.
type Fingerprint [IDKeyBytes]byte

// Digest makes IDKeys and Fingerprints, without allocating once it is warm. The
// zero Digest is ready.
type Digest struct{ buf []byte }

// What is digested begins with one of these, so that nothing of one kind can pass
// for another.
const (
	digestKey = iota + 1
	digestOps
)

// Key is the IDKey of an id of operations on key; that of a group has the key
// nil.
func (d *Digest) Key(key, id []byte) IDKey {
	b := append(d.buf[:0], digestKey)
	b = appendBytes(appendBytes(b, key), id)
	return IDKey(d.sum(b))
}

// Fingerprint is that of operations, in their order. What Once says is no part of
// it: a retry may ask for another retention.
func (d *Digest) Fingerprint(ops []felix.Op) Fingerprint {
	b := append(d.buf[:0], digestOps)
	for i := range ops {
		b = appendOp(b, &ops[i])
	}
	return Fingerprint(d.sum(b))
}

// digestKept bounds the memory that a Digest keeps.
const digestKept = 128 << 10

func (d *Digest) sum(b []byte) [IDKeyBytes]byte {
	sum := sha256.Sum256(b)
	if d.buf = b; cap(b) > digestKept {
		d.buf = nil
	}
	return [IDKeyBytes]byte(sum[:])
}

// appendOp is an operation in canonical form: every field, in one order, each with
// a length of its own.
func appendOp(b []byte, op *felix.Op) []byte {
	flags := byte(0)
	if op.ReturnOld {
		flags |= 1
	}
	if op.NoValue {
		flags |= 2
	}
	bounds := felix.Bounds{Min: math.MinInt64, Max: math.MaxInt64}
	if op.Bounds != nil {
		flags |= 4
		bounds = *op.Bounds
	}
	if bounds.Saturate {
		flags |= 8
	}
	b = append(b, byte(op.Kind), byte(op.View), byte(op.If), byte(op.TTL), byte(op.ExpireIf), flags)
	for _, n := range [...]int64{op.Int, op.ExpiryMillis, int64(op.Version), bounds.Min, bounds.Max} {
		b = binary.BigEndian.AppendUint64(b, uint64(n))
	}
	return appendBytes(appendBytes(b, op.Key), op.Value)
}

func appendBytes(b, v []byte) []byte {
	return append(binary.AppendUvarint(b, uint64(len(v))), v...)
}

// outcomeFormat is the first byte of an outcome.
const outcomeFormat = 1

// fields of a stored reply.
const (
	replyErr = 1 << iota
	replyApplied
	replyAborted
	replyFound
	replyNumbers
	replyExpiry
	replyVersion
	replyAll = 1<<iota - 1
)

// storedErrors are those that an operation can be refused with for good. Their
// places are what is written.
var storedErrors = [...]*felix.Error{1: felix.ErrNotInteger, 2: felix.ErrOverflow, 3: felix.ErrInvalidExpire}

// AppendOutcome is the record of an id: the Fingerprint of its operations and what
// they were answered. Replies have no Value: operations with an id ask for none.
func AppendOutcome(b []byte, f Fingerprint, replies []felix.Reply) []byte {
	b = append(append(b, outcomeFormat), f[:]...)
	b = binary.AppendUvarint(b, uint64(len(replies)))
	for i := range replies {
		b = appendReply(b, &replies[i])
	}
	return b
}

func appendReply(b []byte, r *felix.Reply) []byte {
	if r.Err != nil {
		return appendError(append(b, replyErr), r.Err)
	}
	at := len(b)
	b = append(b, 0)
	fields := byte(0)
	if r.Applied {
		fields |= replyApplied
	}
	if r.Aborted {
		fields |= replyAborted
	}
	if r.Found != felix.NoRecord {
		fields |= replyFound
		b = append(b, byte(r.Found))
	}
	if r.Int != 0 || r.Delta != 0 {
		fields |= replyNumbers
		b = binary.AppendVarint(binary.AppendVarint(b, r.Int), r.Delta)
	}
	if r.ExpiresAtMillis != 0 {
		fields |= replyExpiry
		b = binary.AppendVarint(binary.AppendVarint(b, r.ExpiresAtMillis), r.NowMillis)
	}
	if r.Version != 0 {
		fields |= replyVersion
		b = binary.AppendUvarint(b, r.Version)
	}
	b[at] = fields
	return b
}

func appendError(b []byte, e *felix.Error) []byte {
	for i, known := range storedErrors {
		if e == known {
			return append(b, byte(i))
		}
	}
	b = append(b, 0, byte(e.Code))
	return appendBytes(b, []byte(e.Message))
}

// OutcomeFingerprint is that of an outcome, without its replies.
func OutcomeFingerprint(b []byte) (f Fingerprint, err error) {
	if len(b) <= IDKeyBytes || b[0] != outcomeFormat {
		return f, fmt.Errorf("%w: outcome of %d bytes", ErrCorrupt, len(b))
	}
	return Fingerprint(b[1 : 1+IDKeyBytes]), nil
}

// ReadOutcome reads the replies of an outcome; there must be as many of them.
// Each that is no error says that it is Replayed.
func ReadOutcome(b []byte, replies []felix.Reply) error {
	if _, err := OutcomeFingerprint(b); err != nil {
		return err
	}
	d := decoder{rest: b[1+IDKeyBytes:]}
	if n := d.uvarint(); d.bad || n != uint64(len(replies)) {
		return fmt.Errorf("%w: outcome of %d operations, not %d", ErrCorrupt, n, len(replies))
	}
	for i := range replies {
		d.reply(&replies[i])
	}
	if d.bad || len(d.rest) > 0 {
		return fmt.Errorf("%w: outcome of %d bytes", ErrCorrupt, len(b))
	}
	return nil
}

// CheckOutcome says whether an outcome can be read.
func CheckOutcome(b []byte) error {
	if _, err := OutcomeFingerprint(b); err != nil {
		return err
	}
	d := decoder{rest: b[1+IDKeyBytes:]}
	var r felix.Reply
	for n := d.uvarint(); n > 0 && !d.bad; n-- {
		d.reply(&r)
	}
	if d.bad || len(d.rest) > 0 {
		return fmt.Errorf("%w: outcome of %d bytes", ErrCorrupt, len(b))
	}
	return nil
}

func (d *decoder) reply(r *felix.Reply) {
	fields := d.byte()
	*r = felix.Reply{Replayed: fields&replyErr == 0}
	if fields&replyErr != 0 {
		if r.Err = d.error(); fields != replyErr {
			d.fail()
		}
		return
	}
	r.Applied, r.Aborted = fields&replyApplied != 0, fields&replyAborted != 0
	if fields&replyFound != 0 {
		r.Found = felix.RecordKind(d.byte())
	}
	if fields&replyNumbers != 0 {
		r.Int, r.Delta = d.varint(), d.varint()
	}
	if fields&replyExpiry != 0 {
		if r.ExpiresAtMillis, r.NowMillis = d.varint(), d.varint(); r.ExpiresAtMillis == 0 {
			d.fail() // nobody writes a time to compare nothing with
		}
	}
	if fields&replyVersion != 0 {
		r.Version = d.uvarint()
	}
	if fields&^replyAll != 0 || r.Found > felix.ValueRecord {
		d.fail()
	}
}

func (d *decoder) error() *felix.Error {
	if known := d.byte(); known != 0 {
		if int(known) >= len(storedErrors) {
			d.fail()
			return nil
		}
		return storedErrors[known]
	}
	e := &felix.Error{Code: felix.Code(d.byte()), Message: string(d.bytes())}
	if e.Code < felix.InvalidArgument || e.Code > felix.Internal {
		d.fail()
	}
	return e
}

// Recorded says whether a reply says what became of the operation, and is kept
// with its id. Otherwise it was not evaluated, and a retry is a first try.
func Recorded(r *felix.Reply) bool {
	return r.Err == nil || r.Err.Code == felix.InvalidArgument || r.Err.Code == felix.OutOfRange
}
