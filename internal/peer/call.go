package peer

import (
	"time"

	"github.com/felix-go/felix"
)

// CallKind says what a call asks of a shard.
type CallKind uint8

const (
	// CallOps evaluates Batch.Ops at Positions into Batch.Replies.
	CallOps CallKind = iota
	// CallScan lists Page.
	CallScan
	// CallCount counts into Count.
	CallCount
	// CallClear deletes every record of the shard.
	CallClear
	// CallBarrier answers Index: all that was committed before the call is at
	// or below it.
	CallBarrier
)

// Outcome says what has become of a call.
type Outcome uint8

const (
	// Answered means that the owner answered: the results are there, or Err says
	// why the call as a whole was refused. A queue that is full is such an
	// answer too (resource_exhausted, not sent).
	Answered Outcome = iota
	// NotSent means that the call has not left this broker: there was no link,
	// or it ended first, or the other side stopped without looking at the call.
	NotSent
	// NotOwner means that the other side evaluated nothing, because it does not
	// own the shard. Owner says who may.
	NotOwner
	// Lost means that the call was sent and its answer has not come: it may
	// have been evaluated.
	Lost
	// Expired means that the deadline passed before the call was sent.
	Expired
)

// Call is one request to a shard that another broker owns.
//
// From Network.Forward until Done its memory, that of its keys and values
// included, belongs to the Network. On the side that answers, it belongs to the
// Handler until Link.Answer.
type Call struct {
	Kind  CallKind
	Shard uint64
	// Batch and Positions belong to CallOps: Ops, with their Groups, in, Replies
	// out. The side that answers gets a batch of its own with the operations of this call, and sets
	// its Done.
	Batch     *felix.Batch
	Positions []int32           // at least one
	Scan      felix.ScanRequest // CallScan, as felix.Cache.Scan allows it
	// Deadline, as Options.Mono, is when to stop waiting.
	Deadline time.Duration

	Outcome Outcome
	Owner   uint64       // NotOwner: the node that may own the shard, 0 if unknown
	Err     *felix.Error // Answered: why the whole call was refused; nil if it was not
	Page    felix.ScanPage
	Count   felix.RecordCount
	Index   uint64
	// NowMillis is the shard time of the answer, for what needs it.
	NowMillis int64

	// Done is told once, from a goroutine of the Network or from inside Forward.
	// It must not block. It is not used on the side that answers.
	Done func(*Call)
	// User is the caller's own.
	User any

	seq   uint64 // number on its stream
	bytes int64  // of the queue, while it is in one
	open  bool   // came from a peer and is not answered; the Link's lock guards it
}

// mutates says whether the call may change anything.
func (c *Call) mutates() bool {
	switch c.Kind {
	case CallOps:
		for _, p := range c.Positions {
			if c.Batch.Ops[p].Mutates() {
				return true
			}
		}
		return false
	default:
		return c.Kind == CallClear
	}
}

// tell finishes calls. No lock may be held.
func tell(calls []*Call, o Outcome) {
	for _, c := range calls {
		c.Outcome = o
		c.Done(c)
	}
}
