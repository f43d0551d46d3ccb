package peer

import (
	"encoding/binary"
	"time"

	"github.com/felix-go/felix"
)

// decoder reads what opcodec.go describes. Once something does not fit, bad is
// set and all that follows is zero; whoever reads a list looks at it.
type decoder struct {
	b   []byte
	bad bool
}

func (d *decoder) fail() {
	d.b, d.bad = nil, true
}

func (d *decoder) byte() byte {
	if len(d.b) == 0 {
		d.fail()
		return 0
	}
	v := d.b[0]
	d.b = d.b[1:]
	return v
}

func (d *decoder) uvarint() uint64 {
	v, n := binary.Uvarint(d.b)
	if n <= 0 {
		d.fail()
		return 0
	}
	d.b = d.b[n:]
	return v
}

func (d *decoder) varint() int64 {
	v, n := binary.Varint(d.b)
	if n <= 0 {
		d.fail()
		return 0
	}
	d.b = d.b[n:]
	return v
}

// bytes is never nil, and is part of the decoder's memory.
func (d *decoder) bytes() []byte {
	n := d.uvarint()
	if n > uint64(len(d.b)) {
		d.fail()
	}
	if d.bad {
		return []byte{}
	}
	v := d.b[:n:n]
	d.b = d.b[n:]
	return v
}

func (d *decoder) optional() []byte {
	if d.bool() {
		return d.bytes()
	}
	return nil
}

// bool reads a byte that is 0 or 1.
func (d *decoder) bool() bool {
	v := d.byte()
	if v > 1 {
		d.fail()
	}
	return v == 1
}

// count reads the length of a list whose items take at least size bytes each,
// so that a length that cannot be true makes nobody allocate.
func (d *decoder) count(size int) int {
	n := d.uvarint()
	if n > uint64(len(d.b)/size) {
		d.fail()
		return 0
	}
	return int(n)
}

const (
	minOpBytes    = 7
	minReplyBytes = 1
	minItemBytes  = 6
)

// inboundCall is a call that came, with the memory that most of them need: they
// have one operation.
type inboundCall struct {
	Call
	batch     felix.Batch
	ops       [1]felix.Op
	replies   [1]felix.Reply
	positions [1]int32
}

// decodeCalls reads a frame of calls, which belongs to them afterwards. after is
// the number of the call before it: calls of a stream are numbered one by one.
func decodeCalls(frame []byte, after uint64, now time.Duration) ([]*Call, error) {
	d := decoder{b: frame}
	var calls []*Call
	for len(d.b) > 0 {
		after++
		c := d.call(now)
		if d.bad || c.seq != after {
			return nil, errMalformed
		}
		calls = append(calls, c)
	}
	return calls, nil
}

// maxLeft keeps a peer's deadline from overflowing ours.
const maxLeft = uint64(24 * time.Hour / time.Millisecond)

func (d *decoder) call(now time.Duration) *Call {
	in := &inboundCall{}
	c := &in.Call
	c.seq = d.uvarint()
	kind := d.byte()
	if c.Kind = CallKind(kind); kind == kindGroups {
		c.Kind = CallOps
	}
	c.Shard = d.uvarint()
	c.Deadline = now + time.Duration(min(d.uvarint(), maxLeft))*time.Millisecond
	switch c.Kind {
	case CallOps:
		if d.ops(in); kind == kindGroups && !d.bad {
			d.groups(c)
		}
	case CallScan:
		c.Scan.View, c.Scan.KeysOnly = felix.View(d.byte()), d.bool()
		c.Scan.Prefix, c.Scan.After = d.bytes(), d.optional()
		limit := d.uvarint()
		if c.Scan.View > felix.ViewRedis || limit < 1 || limit > felix.MaxScanPage {
			d.fail()
		}
		c.Scan.Limit = int(limit)
	case CallCount, CallClear, CallBarrier:
	default:
		d.fail()
	}
	return c
}

func (d *decoder) ops(in *inboundCall) {
	n := d.count(minOpBytes)
	if n == 0 {
		d.fail()
		return
	}
	in.batch.Ops, in.batch.Replies, in.Positions = in.ops[:], in.replies[:], in.positions[:]
	if n > 1 {
		in.batch.Ops, in.batch.Replies, in.Positions = make([]felix.Op, n), make([]felix.Reply, n), make([]int32, n)
	}
	for i := range in.batch.Ops {
		d.op(&in.batch.Ops[i])
		in.Positions[i] = int32(i)
	}
	in.Batch = &in.batch
}

func (d *decoder) op(op *felix.Op) {
	if len(d.b) < minOpBytes {
		d.fail()
		return
	}
	op.Kind, op.View, op.If = felix.Kind(d.b[0]), felix.View(d.b[1]), felix.If(d.b[2])
	op.TTL, op.ExpireIf = felix.TTL(d.b[3]), felix.ExpireIf(d.b[4])
	fields := d.b[5] // all bits have a meaning
	d.b = d.b[6:]
	op.Key = d.bytes()
	op.ReturnOld, op.NoValue = fields&opReturnOld != 0, fields&opNoValue != 0
	if fields&opValue != 0 {
		op.Value = d.bytes()
	}
	if fields&opInt != 0 {
		op.Int = d.varint()
	}
	if fields&opExpiry != 0 {
		op.ExpiryMillis = d.varint()
	}
	if fields&opVersion != 0 {
		op.Version = d.uvarint()
	}
	if fields&opBounds != 0 {
		op.Bounds = &felix.Bounds{Min: d.varint(), Max: d.varint(), Saturate: d.bool()}
	}
	if fields&opOnce != 0 {
		op.Once = &felix.Once{ID: d.bytes(), RetentionMillis: d.varint()}
	}
}

func (d *decoder) error() *felix.Error {
	shared := d.byte()
	if shared != 0 {
		if int(shared) >= len(sharedErrors) {
			d.fail()
			return nil
		}
		return sharedErrors[shared]
	}
	e := &felix.Error{Code: felix.Code(d.byte()), Message: string(d.bytes()), RetryAfter: time.Duration(d.uvarint())}
	if e.Code < felix.InvalidArgument || e.Code > felix.Internal || e.RetryAfter < 0 {
		d.fail() // a code of a build that should have raised the protocol's version
	}
	return e
}

// nextAnswer takes one answer off a frame: which call it is for, and what
// decodeAnswer reads.
func (d *decoder) nextAnswer() (seq uint64, body []byte) {
	seq = d.uvarint()
	if len(d.b) < 4 {
		d.fail()
		return 0, nil
	}
	n := binary.LittleEndian.Uint32(d.b)
	d.b = d.b[4:]
	if uint64(n) > uint64(len(d.b)) {
		d.fail()
		return 0, nil
	}
	body, d.b = d.b[:n:n], d.b[n:]
	return seq, body
}

// decodeAnswer fills c with an answer. The frame belongs to c's results
// afterwards. After an error those must not be looked at.
func decodeAnswer(body []byte, c *Call) error {
	d := decoder{b: body}
	switch d.byte() {
	case howAnswered:
		c.Outcome = Answered
		d.results(c)
	case howWide:
		c.Outcome = Answered
		d.wide(c)
	case howRefused:
		c.Outcome, c.Err = Answered, d.error()
	case howNotOwner:
		c.Outcome, c.Owner = NotOwner, d.uvarint()
	default:
		d.fail()
	}
	if d.bad || len(d.b) > 0 {
		return errMalformed
	}
	return nil
}

func (d *decoder) results(c *Call) {
	switch c.Kind {
	case CallOps:
		if n := d.count(minReplyBytes); n != len(c.Positions) {
			d.fail()
			return
		}
		for _, p := range c.Positions {
			c.Batch.Replies[p] = d.reply()
		}
	case CallScan:
		d.page(&c.Page)
	case CallCount:
		c.Count = felix.RecordCount{Counters: d.varint(), Values: d.varint(), Keys: d.varint()}
	case CallBarrier:
		c.Index = d.uvarint()
		c.NowMillis = d.varint()
	}
}

// wide reads the replies of operations with what version 2 has brought.
func (d *decoder) wide(c *Call) {
	if n := d.count(1 + minReplyBytes); c.Kind != CallOps || n != len(c.Positions) {
		d.fail()
		return
	}
	for _, p := range c.Positions {
		more, delta := d.byte(), int64(0)
		if more&^moreAll != 0 {
			d.fail()
			return
		}
		if more&moreDelta != 0 {
			delta = d.varint()
		}
		r := d.reply()
		r.Replayed, r.Aborted, r.Delta = more&moreReplayed != 0, more&moreAborted != 0, delta
		c.Batch.Replies[p] = r
	}
}

func (d *decoder) reply() (r felix.Reply) {
	fields := d.byte()
	if fields&replyErr != 0 {
		if fields != replyErr {
			d.fail()
		}
		r.Err = d.error()
		return r
	}
	r.Applied = fields&replyApplied != 0
	if fields&replyFound != 0 {
		r.Found = felix.RecordKind(d.byte())
	}
	if fields&replyInt != 0 {
		r.Int = d.varint()
	}
	if fields&replyValue != 0 {
		r.Value = d.bytes()
	}
	if fields&replyExpires != 0 {
		r.ExpiresAtMillis = d.varint()
	}
	if fields&replyNow != 0 {
		r.NowMillis = d.varint()
	}
	if fields&replyVersion != 0 {
		r.Version = d.uvarint()
	}
	if r.Found > felix.ValueRecord {
		d.fail()
	}
	return r
}

func (d *decoder) page(page *felix.ScanPage) {
	page.More = d.bool()
	if next := d.bytes(); len(next) > 0 {
		page.Next = next
	}
	page.NowMillis = d.varint()
	n := d.count(minItemBytes)
	if n == 0 {
		return
	}
	page.Items = make([]felix.ScanItem, n)
	for i := range page.Items {
		item := &page.Items[i]
		item.Key = d.bytes()
		item.Kind = felix.RecordKind(d.byte())
		item.Int = d.varint()
		item.Value = d.optional()
		item.ExpiresAtMillis = d.varint()
		item.Version = d.uvarint()
		if item.Kind != felix.CounterRecord && item.Kind != felix.ValueRecord {
			d.fail()
			return
		}
	}
}
