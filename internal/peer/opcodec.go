package peer

import (
	"encoding/binary"
	"errors"
	"time"

	"github.com/felix-go/felix"
)

// Calls and answers on the wire. uvarint and varint are encoding/binary's (varint
// is zigzag), bytes are a uvarint length and that many bytes. The protocol version
// of Hello names this format: a change of it raises the version. What a stream's
// version lacks is not sent on it (protocolOf): an older build would end the stream
// at it, with everything on its way. Marked "2:" is what version 2 has brought.
//
//	calls     call*
//	call      uvarint seq, byte kind, uvarint shard, uvarint milliseconds left, body
//	 seq      counts the calls of a stream from 1
//	 kind     0 ops, 1 scan, 2 count, 3 clear, 4 barrier; only the first two have a body,
//	          2: and 5 ops, uvarint n, group{n}
//	 ops      uvarint n, op{n}
//	 op       byte kind, byte view, byte if, byte ttl, byte expire-if, byte fields, bytes key,
//	          then what fields names, in this order
//	  fields  1 return-old (nothing follows), 2 bytes value, 4 varint int,
//	          8 varint expiry, 16 uvarint version, 32 no-value (nothing follows),
//	          2: 64 varint min, varint max, byte saturate,
//	          2: 128 bytes id, varint its retention in milliseconds
//	 group    uvarint ops before it and after the group before it, uvarint ops in it,
//	          byte fields: 1 all or nothing, 2 bytes id, varint its retention
//	 scan     byte view, byte keys-only, bytes prefix, optional after, uvarint limit
//	optional  byte 0 for nil, or byte 1 and bytes
//
//	answers   answer*
//	answer    uvarint seq, 4 bytes length of what follows, little endian, byte how, body
//	 how      0 answered, 1 refused: error, 2 not the owner: uvarint owner,
//	          2: 3 answered, with wide replies
//	 ops      uvarint n, reply{n}
//	 reply    byte fields, then what fields names, in this order
//	  fields  1 error (the only one then), 2 applied (nothing follows), 4 byte found,
//	          8 varint int, 16 bytes value, 32 varint expires-at, 64 varint now,
//	          128 uvarint version
//	  wide    byte more before each of them: 1 replayed, 2 aborted (nothing follows),
//	          4 varint delta, which comes before fields
//	 scan     byte more, bytes next, varint now, uvarint n, item{n}
//	  item    bytes key, byte kind, varint int, optional value, varint expires-at, uvarint version
//	 count    varint counters, varint values, varint keys
//	 clear    nothing
//	 barrier  uvarint index, varint now
//	error     byte 1 ErrNotInteger, 2 ErrOverflow, 3 ErrInvalidExpire: the same pointers again;
//	          or 0, byte code, bytes message, uvarint retry-after in nanoseconds

const (
	opReturnOld = 1 << iota
	opValue
	opInt
	opExpiry
	opVersion
	opNoValue
	opBounds
	opOnce
)

const (
	replyErr = 1 << iota
	replyApplied
	replyFound
	replyInt
	replyValue
	replyExpires
	replyNow
	replyVersion
)

// Of a wide reply, before its other fields.
const (
	moreReplayed = 1 << iota
	moreAborted
	moreDelta
	moreAll = 1<<iota - 1
)

const (
	howAnswered = iota
	howRefused
	howNotOwner
	howWide
)

// kindGroups is CallOps with groups.
const kindGroups = 5

// errMalformed ends a stream: whatever follows cannot be read either.
var errMalformed = errors.New("a peer's calls or answers cannot be read")

// sharedErrors are those that doors know by their pointers.
var sharedErrors = [...]*felix.Error{1: felix.ErrNotInteger, 2: felix.ErrOverflow, 3: felix.ErrInvalidExpire}

// What an encoded item takes beside its keys and values, at most.
const (
	opOverheadBytes   = 96
	callOverheadBytes = 64
)

// callBytes is at least what c takes on the wire.
func callBytes(c *Call) int64 {
	n := callOverheadBytes + len(c.Scan.Prefix) + len(c.Scan.After) + groupBytes(c)
	for _, p := range c.Positions {
		op := &c.Batch.Ops[p]
		n += opOverheadBytes + len(op.Key) + len(op.Value)
		if op.Once != nil {
			n += len(op.Once.ID)
		}
	}
	return int64(n)
}

// protocolOf is the first protocol version that has all that c needs.
func protocolOf(c *Call) uint32 {
	for _, p := range c.Positions {
		op := &c.Batch.Ops[p]
		// That an older build refuses a kind and a ttl mode that it does not know
		// is no reason to call them invalid.
		if op.Bounds != nil || op.Once != nil || op.Kind > felix.Expire || op.TTL > felix.TTLAt {
			return 2
		}
	}
	if grouped(c) {
		return 2
	}
	return protocolMin
}

// answerBytes is at least what c's answer takes on the wire.
func answerBytes(c *Call) int64 {
	n := callOverheadBytes + len(c.Page.Next)
	if c.Err != nil {
		n += len(c.Err.Message)
	}
	for _, p := range c.Positions {
		r := &c.Batch.Replies[p]
		n += opOverheadBytes + len(r.Value)
		if r.Err != nil {
			n += len(r.Err.Message)
		}
	}
	for i := range c.Page.Items {
		n += opOverheadBytes + len(c.Page.Items[i].Key) + len(c.Page.Items[i].Value)
	}
	return int64(n)
}

func appendBytes(b, v []byte) []byte {
	return append(binary.AppendUvarint(b, uint64(len(v))), v...)
}

func appendOptional(b, v []byte) []byte {
	if v == nil {
		return append(b, 0)
	}
	return appendBytes(append(b, 1), v)
}

func flag(on bool, bit byte) byte {
	if on {
		return bit
	}
	return 0
}

func appendCall(b []byte, c *Call, left time.Duration) []byte {
	b = binary.AppendUvarint(b, c.seq)
	kind, withGroups := byte(c.Kind), grouped(c)
	if withGroups {
		kind = kindGroups
	}
	b = append(b, kind)
	b = binary.AppendUvarint(b, c.Shard)
	b = binary.AppendUvarint(b, uint64(left/time.Millisecond))
	switch c.Kind {
	case CallOps:
		b = binary.AppendUvarint(b, uint64(len(c.Positions)))
		for _, p := range c.Positions {
			b = appendOp(b, &c.Batch.Ops[p])
		}
		if withGroups {
			b = appendGroups(b, c)
		}
	case CallScan:
		b = append(b, byte(c.Scan.View), flag(c.Scan.KeysOnly, 1))
		b = appendBytes(b, c.Scan.Prefix)
		b = appendOptional(b, c.Scan.After)
		b = binary.AppendUvarint(b, uint64(c.Scan.Limit))
	}
	return b
}

func appendOp(b []byte, op *felix.Op) []byte {
	fields := flag(op.ReturnOld, opReturnOld) | flag(op.Value != nil, opValue) | flag(op.Int != 0, opInt) |
		flag(op.ExpiryMillis != 0, opExpiry) | flag(op.Version != 0, opVersion) | flag(op.NoValue, opNoValue) |
		flag(op.Bounds != nil, opBounds) | flag(op.Once != nil, opOnce)
	b = append(b, byte(op.Kind), byte(op.View), byte(op.If), byte(op.TTL), byte(op.ExpireIf), fields)
	b = appendBytes(b, op.Key)
	if op.Value != nil {
		b = appendBytes(b, op.Value)
	}
	if op.Int != 0 {
		b = binary.AppendVarint(b, op.Int)
	}
	if op.ExpiryMillis != 0 {
		b = binary.AppendVarint(b, op.ExpiryMillis)
	}
	if op.Version != 0 {
		b = binary.AppendUvarint(b, op.Version)
	}
	if op.Bounds != nil {
		b = binary.AppendVarint(b, op.Bounds.Min)
		b = append(binary.AppendVarint(b, op.Bounds.Max), flag(op.Bounds.Saturate, 1))
	}
	if op.Once != nil {
		b = binary.AppendVarint(appendBytes(b, op.Once.ID), op.Once.RetentionMillis)
	}
	return b
}

func appendError(b []byte, e *felix.Error) []byte {
	for i, shared := range sharedErrors {
		if e == shared {
			return append(b, byte(i))
		}
	}
	b = append(b, 0, byte(e.Code))
	b = append(binary.AppendUvarint(b, uint64(len(e.Message))), e.Message...)
	return binary.AppendUvarint(b, uint64(max(e.RetryAfter, 0)))
}

func appendAnswer(b []byte, c *Call) []byte {
	b = binary.AppendUvarint(b, c.seq)
	at := len(b)
	b = append(b, 0, 0, 0, 0)
	switch {
	case c.Outcome == NotOwner:
		b = binary.AppendUvarint(append(b, howNotOwner), c.Owner)
	case c.Err != nil:
		b = appendError(append(b, howRefused), c.Err)
	case anyWide(c):
		b = appendWide(append(b, howWide), c)
	default:
		b = appendResults(append(b, howAnswered), c)
	}
	binary.LittleEndian.PutUint32(b[at:], uint32(len(b)-at-4))
	return b
}

// anyWide says whether replies have what only version 2 has. Then the call had,
// too: none of them comes of an operation that version 1 knows.
func anyWide(c *Call) bool {
	for _, p := range c.Positions {
		if r := &c.Batch.Replies[p]; r.Replayed || r.Aborted || r.Delta != 0 {
			return true
		}
	}
	return false
}

func appendWide(b []byte, c *Call) []byte {
	b = binary.AppendUvarint(b, uint64(len(c.Positions)))
	for _, p := range c.Positions {
		r := &c.Batch.Replies[p]
		b = append(b, flag(r.Replayed, moreReplayed)|flag(r.Aborted, moreAborted)|flag(r.Delta != 0, moreDelta))
		if r.Delta != 0 {
			b = binary.AppendVarint(b, r.Delta)
		}
		b = appendReply(b, r)
	}
	return b
}

func appendResults(b []byte, c *Call) []byte {
	switch c.Kind {
	case CallOps:
		b = binary.AppendUvarint(b, uint64(len(c.Positions)))
		for _, p := range c.Positions {
			b = appendReply(b, &c.Batch.Replies[p])
		}
	case CallScan:
		b = append(b, flag(c.Page.More, 1))
		b = appendBytes(b, c.Page.Next)
		b = binary.AppendVarint(b, c.Page.NowMillis)
		b = binary.AppendUvarint(b, uint64(len(c.Page.Items)))
		for i := range c.Page.Items {
			item := &c.Page.Items[i]
			b = appendBytes(b, item.Key)
			b = binary.AppendVarint(append(b, byte(item.Kind)), item.Int)
			b = appendOptional(b, item.Value)
			b = binary.AppendVarint(b, item.ExpiresAtMillis)
			b = binary.AppendUvarint(b, item.Version)
		}
	case CallCount:
		b = binary.AppendVarint(b, c.Count.Counters)
		b = binary.AppendVarint(b, c.Count.Values)
		b = binary.AppendVarint(b, c.Count.Keys)
	case CallBarrier:
		b = binary.AppendUvarint(b, c.Index)
		b = binary.AppendVarint(b, c.NowMillis)
	}
	return b
}

func appendReply(b []byte, r *felix.Reply) []byte {
	if r.Err != nil {
		return appendError(append(b, replyErr), r.Err)
	}
	b = append(b, flag(r.Applied, replyApplied)|flag(r.Found != 0, replyFound)|flag(r.Int != 0, replyInt)|
		flag(r.Value != nil, replyValue)|flag(r.ExpiresAtMillis != 0, replyExpires)|flag(r.NowMillis != 0, replyNow)|
		flag(r.Version != 0, replyVersion))
	if r.Found != 0 {
		b = append(b, byte(r.Found))
	}
	if r.Int != 0 {
		b = binary.AppendVarint(b, r.Int)
	}
	if r.Value != nil {
		b = appendBytes(b, r.Value)
	}
	if r.ExpiresAtMillis != 0 {
		b = binary.AppendVarint(b, r.ExpiresAtMillis)
	}
	if r.NowMillis != 0 {
		b = binary.AppendVarint(b, r.NowMillis)
	}
	if r.Version != 0 {
		b = binary.AppendUvarint(b, r.Version)
	}
	return b
}
