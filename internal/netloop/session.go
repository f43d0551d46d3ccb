// Package netloop serves many connections from few goroutines: it reads all
// that has arrived on all of them, lets their sessions turn it into
// operations, submits those as one batch per cache, and writes each
// connection's answers in one write. While the broker makes a batch durable it
// lets requests gather instead of reading them eagerly into small batches
// (pacing; design.md section 3, "Hot path").
package netloop

import (
	"context"
	"net"
	"time"

	"github.com/felix-go/felix"
)

// Handler makes the protocol state of new connections.
type Handler interface {
	// NewSession is called once per accepted connection.
	NewSession(remote net.Addr) Session
	// TooMany is what a client is told before its connection is closed
	// because the door has as many connections as it allows.
	TooMany() []byte
}

// AnswerBytes is how much a session should answer at a time, so that a client
// that does not read makes the door hold no more than about that for it.
const AnswerBytes = 128 << 10

// Session is the protocol state of one connection. Its methods are never
// called at the same time. A connection goes through turns: Parse, then (when
// every operation has its reply, and Slow or Wait is over) Reply until nothing
// is left, then Parse on what has come in since.
type Session interface {
	// Parse reads whole requests from the front of in, puts what they need
	// into t, and returns how many bytes it used; a request that is not whole
	// yet is left, to be seen again with more behind it. in stays untouched
	// until Reply has returned, so operations may alias it. Parse reads as
	// many requests as it can, except that one with Slow or Wait ends the turn
	// and must be the turn's only request: if others stand before it, it is
	// left for the next turn. Slow may use nothing, if it only prepares what
	// the next Parse of the same bytes needs.
	Parse(in []byte, t *Turn) (used int)
	// Reply appends the answers to the turn's requests, in their order, to
	// out. replies are those of the turn's Ops. A session that finds
	// AnswerBytes in out may stop and say how many bytes are left, roughly,
	// but not 0: when the client has taken what there is, Reply is called
	// again with the same replies.
	Reply(out []byte, replies []felix.Reply) (_ []byte, left int)
	// Closed is called once, when the connection is gone and no operation of
	// it is under way.
	Closed()
}

// Turn is what a session wants done. The loop resets it before each Parse.
type Turn struct {
	// Cache is where the Ops go; nil if there are none.
	Cache felix.Cache
	// Ops are appended by Parse. The slice may hold other sessions' operations
	// before the session's own: only append.
	Ops []felix.Op
	// Groups are of Ops, by their positions in it, ascending: only append.
	Groups []felix.Group
	// Slow is work that is no operation on one key (a scan, a flush, an
	// authentication): it runs on a goroutine of its own, with a context that
	// ends when the connection or the server does.
	Slow func(ctx context.Context)
	// Wait is how long the turn is to last although there is nothing to do; it
	// holds no goroutine. It is cut short when the client closes its side or
	// the server shuts down.
	Wait time.Duration
	// Need is a hint: the bytes the request at the front of what is left is
	// known to take in total, so that the buffer grows once. 0 is unknown.
	Need int
	// Close asks to close the connection once the turn's replies are written.
	Close bool
}

// Pacer tells the loops when the broker's own disk is the bottleneck.
type Pacer interface {
	// Busy says whether entries are being made durable on this broker's disk
	// (an entry that only waits for peers, or of a leader cache, does not
	// count).
	Busy() bool
	// OnSynced registers a function that is called, from the broker's
	// goroutine, each time a sync has ended and the replies it released have
	// been told. It must not block. cancel takes it away again.
	OnSynced(wake func()) (cancel func())
	// RecentSync is what nearly all of the last syncs took at most: the bound
	// on pacing.
	RecentSync() time.Duration
}
