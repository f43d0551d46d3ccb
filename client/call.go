package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http/httptrace"
	"net/url"
	"sync/atomic"
	"syscall"
	"time"

	"connectrpc.com/connect"

	"github.com/felix-go/felix"
	felixv1 "github.com/felix-go/felix/api/felix/v1"
)

// errorCodeHeader is where a broker names its code besides the error detail.
const errorCodeHeader = "Felix-Error-Code"

// ErrNoBroker is what errors.Is finds in an error when no broker could be
// connected to at all. The error is unavailable: nothing was sent.
var ErrNoBroker = errors.New("no broker answers")

// noBroker is a *felix.Error for errors.As and ErrNoBroker for errors.Is.
type noBroker struct{ err *felix.Error }

func (e noBroker) Error() string        { return e.err.Error() }
func (e noBroker) Unwrap() error        { return e.err }
func (e noBroker) Is(target error) bool { return target == ErrNoBroker }

// effect says what a call may do to the cluster, and so how it may be sent.
type effect bool

const (
	reads   effect = false
	changes effect = true
)

// call makes a call with the delivery rules of the package. ask sends one
// request to one broker.
func call[Resp any](ctx context.Context, c *Client, does effect, ask func(context.Context, broker) (*connect.Response[Resp], error)) (*Resp, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, c.timeout, fmt.Errorf("no answer within %v", c.timeout))
	defer cancel()
	attempts := len(c.brokers)
	if does == reads {
		// A read whose answer was lost is worth a second round, also
		// with a single broker: a broker that restarts drops connections.
		attempts *= 2
	}
	first := int(c.current.Load())
	var last *felix.Error
	refused := 0 // attempts, from the first on, in which no connection was made
	for i := range attempts {
		at := (first + i) % len(c.brokers)
		resp, e, sent := attempt(ctx, c, c.brokers[at], does, attempts-i, ask)
		if e == nil {
			c.current.Store(int32(at))
			return resp, nil
		}
		// An error that says more is not hidden by a refused connection.
		if sent || last == nil || refused == i {
			last = e
		}
		if !sent {
			refused++
		}
		if refused == len(c.brokers) && i == refused-1 && !errors.Is(ctx.Err(), context.Canceled) {
			return nil, noBroker{c.nobody(last)}
		}
		if sent && (does == changes || !again(e)) || ctx.Err() != nil {
			break
		}
	}
	return nil, last
}

// again says whether another broker may answer a read better.
func again(e *felix.Error) bool { return e.Code == felix.Unavailable || e.Code == felix.OutcomeUnknown }

// attempt sends one request and judges what became of it. sent is false if it
// certainly reached no broker.
func attempt[Resp any](ctx context.Context, c *Client, to broker, does effect, left int, ask func(context.Context, broker) (*connect.Response[Resp], error)) (_ *Resp, _ *felix.Error, sent bool) {
	if ctx.Err() != nil {
		return nil, felix.Errorf(felix.Unavailable, "not sent: %v", reason(ctx, nil)), false
	}
	if does == reads {
		// A broker that hangs must leave time for the others.
		var cancel context.CancelFunc
		deadline, _ := ctx.Deadline() // call has set one
		ctx, cancel = context.WithTimeout(ctx, time.Until(deadline)/time.Duration(left))
		defer cancel()
	}
	t := newTracker(c.own != nil)
	resp, err := ask(httptrace.WithClientTrace(ctx, t.trace()), to)
	if err == nil {
		return resp.Msg, nil, true
	}
	if !t.maybeSent() {
		if errors.Is(ctx.Err(), context.Canceled) {
			return nil, felix.Errorf(felix.Unavailable, "not sent: %v", reason(ctx, err)), false
		}
		return nil, unsent(to, reason(ctx, err)), false
	}
	if e := answered(err); e != nil {
		return nil, e, true
	}
	if does == reads {
		return nil, felix.Errorf(felix.Unavailable, "%s gave no usable answer: %v", to.address, reason(ctx, err)), true
	}
	return nil, felix.Errorf(felix.OutcomeUnknown,
		"sent to %s, but the answer was lost (%v): it may have been applied", to.address, reason(ctx, err)), true
}

func unsent(to broker, why error) *felix.Error {
	return felix.Errorf(felix.Unavailable, "no broker answers at %s: %v", to.address, why)
}

// nobody words the error of a call for which no broker could be reached.
func (c *Client) nobody(last *felix.Error) *felix.Error {
	if len(c.brokers) == 1 {
		return last
	}
	return felix.Errorf(felix.Unavailable, "none of %d brokers can be reached; the last: %s", len(c.brokers), last.Message)
}

// answered reads the error a broker answered with, or is nil if the error does
// not carry a code of ours: then it comes from something else on the way, or
// from a broken connection, and says nothing about what was applied.
func answered(err error) *felix.Error {
	var ce *connect.Error
	if !errors.As(err, &ce) {
		return nil
	}
	for _, detail := range ce.Details() {
		value, err := detail.Value()
		if err != nil {
			continue // a kind this client does not know
		}
		if info, ok := value.(*felixv1.ErrorInfo); ok {
			if code, known := felix.ParseCode(info.GetCode()); known {
				return &felix.Error{Code: code, Message: ce.Message(), RetryAfter: time.Duration(info.GetRetryAfterMillis()) * time.Millisecond}
			}
		}
	}
	if code, known := felix.ParseCode(ce.Meta().Get(errorCodeHeader)); known {
		return &felix.Error{Code: code, Message: ce.Message()}
	}
	return nil
}

// reason is the shortest account of a failure that is still true.
func reason(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		if errors.Is(cause, context.Canceled) {
			return errors.New("interrupted")
		}
		if errors.Is(cause, context.DeadlineExceeded) {
			return errors.New("no answer in time")
		}
		return cause
	}
	if errors.Is(err, syscall.ECONNREFUSED) {
		return errors.New("connection refused")
	}
	if errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) {
		return errors.New("the connection was closed")
	}
	var ue *url.Error
	if errors.As(err, &ue) {
		return ue.Err
	}
	var ce *connect.Error
	if errors.As(err, &ce) && ce.Unwrap() != nil {
		return ce.Unwrap()
	}
	return err
}

// tracker learns from the transport whether a request may have been sent.
type tracker struct {
	// asked is set once the transport looks for a connection: one that never
	// does cannot be judged.
	asked atomic.Bool
	// connected is set once the request has a connection: from then on bytes
	// may be on their way.
	connected atomic.Bool
	// own says that the transport is ours. It asks for a second connection
	// only where it knows that nothing was written to the first.
	own bool
}

func newTracker(own bool) *tracker { return &tracker{own: own} }

func (t *tracker) trace() *httptrace.ClientTrace {
	return &httptrace.ClientTrace{
		GetConn: func(string) {
			t.asked.Store(true)
			if t.own {
				t.connected.Store(false)
			}
		},
		GotConn: func(httptrace.GotConnInfo) { t.connected.Store(true) },
	}
}

func (t *tracker) maybeSent() bool { return t.connected.Load() || !t.asked.Load() }
