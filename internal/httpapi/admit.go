package httpapi

import (
	"context"
	"io"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/felix-go/felix"
)

var (
	errBusy = &felix.Error{Code: felix.ResourceExhausted, RetryAfter: time.Second,
		Message: "the broker has as many HTTP requests under way as it allows; nothing was applied, try again a little later"}
	errConnections = &felix.Error{Code: felix.ResourceExhausted, RetryAfter: time.Second,
		Message: "too many HTTP connections; nothing was applied, and this one is closed"}
)

// What a request holds for each byte of its body: the body and the message made
// of it; and for each byte of its answer (in protobuf): what the answer was made
// of, the message, and its encoded form, which in JSON is larger.
const (
	heldPerBodyByte   = 2
	heldPerAnswerByte = 4
)

// budget bounds the memory of all requests of the door together.
type budget struct {
	max  int64
	used atomic.Int64
}

// take takes so many bytes, if there are as many. Probes may go beyond the
// bound by an eighth: whether the process lives is asked most when it is busy.
func (b *budget) take(bytes int64, probe bool) bool {
	limit := b.max
	if probe {
		limit += b.max / 8
	}
	for {
		used := b.used.Load()
		if used+bytes > limit {
			return false
		}
		if b.used.CompareAndSwap(used, used+bytes) {
			return true
		}
	}
}

// share is what one request has taken of the budget. It belongs to the
// request's goroutine.
type share struct {
	of    *budget
	bytes int64
	// decoded gives back the request's place among those that are decoded; nil
	// if it has none.
	decoded func()
}

// grow takes so many bytes more, if there are as many.
func (s *share) grow(bytes int64) bool {
	if !s.of.take(bytes, false) {
		return false
	}
	s.bytes += bytes
	return true
}

// endDecoding is called when the request's message is made, or will not be.
func (s *share) endDecoding() {
	if s.decoded != nil {
		s.decoded()
		s.decoded = nil
	}
}

// end gives everything back.
func (s *share) end() {
	s.endDecoding()
	s.of.used.Add(-s.bytes)
	s.bytes = 0
}

// admit gives a request its share, or nil.
func (d *door) admit(probe bool) *share {
	if !d.budget.take(felix.HTTPRequestBytes, probe) {
		return nil
	}
	return &share{of: d.budget, bytes: felix.HTTPRequestBytes}
}

type shareKey struct{}

// shareOf is the share of the request that ctx belongs to. Every request has
// one: guard sees to it.
func shareOf(ctx context.Context) *share { return ctx.Value(shareKey{}).(*share) }

// place takes a place in a room of so many, and answers how to give it back.
// The error is unavailable, if ctx ends before one is free.
func place(ctx context.Context, room chan struct{}) (leave func(), err error) {
	select {
	case room <- struct{}{}:
		return func() { <-room }, nil
	case <-ctx.Done():
		return nil, felix.Errorf(felix.Unavailable, "the request ended before its turn came: %v", context.Cause(ctx))
	}
}

// counted is a body whose bytes are taken from the budget as they come.
type counted struct {
	io.Reader
	share *share
}

// Read implements io.Reader; the error is errBusy if there is no room.
func (c counted) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	if n > 0 && !c.share.grow(heldPerBodyByte*int64(n)) {
		return 0, errBusy
	}
	return n, err
}

// hold takes room for an answer until it is written, which is as long as the
// client reads. Only answers of reads are large, and only they are refused: it
// must not be said of a change that it was not applied.
func (s *share) hold(answer any, readOnly bool) bool {
	message, ok := answer.(proto.Message)
	return !ok || s.grow(heldPerAnswerByte*int64(proto.Size(message))) || !readOnly
}
