package peer

import (
	"context"
	"errors"
	"net"
	"sync"

	"connectrpc.com/connect"

	"github.com/felix-go/felix/internal/peer/peerv1"
)

// service answers what other brokers ask.
type service struct{ n *Network }

// errStopping is for streams and questions that come too late.
var errStopping = connect.NewError(connect.CodeUnavailable, errors.New("the broker is stopping"))

// outside runs f on a goroutine of its own: net/http would swallow a panic on its
// goroutines, and a broken invariant has to end the process.
func outside(f func() error) error {
	done := make(chan error, 1)
	go func() { done <- f() }()
	return <-done
}

// accept does the handshake of a stream that somebody has opened. After a nil
// error the caller has to call n.left.
func (s *service) accept(ctx context.Context, in *inbound, receive func() (frame, error), send func(*peerv1.Hello) error) error {
	conn, ok := ctx.Value(connKey{}).(net.Conn)
	if !ok {
		return connect.NewError(connect.CodeInternal, errors.New("a stream without its connection"))
	}
	in.conn = conn
	slow := closeUnless(conn, handshakeTimeout)
	defer slow.Stop()
	return s.n.welcome(in, receive, send)
}

// Raft implements the stream of Raft messages.
func (s *service) Raft(ctx context.Context, stream *connect.BidiStream[peerv1.RaftFrame, peerv1.RaftFrame]) error {
	return outside(func() error {
		in := &inbound{kind: raftStream}
		err := s.accept(ctx, in, func() (frame, error) { return stream.Receive() }, func(h *peerv1.Hello) error {
			return stream.Send(&peerv1.RaftFrame{Kind: &peerv1.RaftFrame_Welcome{Welcome: h}})
		})
		if err != nil {
			return err
		}
		defer s.n.left(in)
		for {
			f, err := stream.Receive()
			if err != nil {
				return ended(err)
			}
			s.n.hear(in)
			if b := f.GetBatch(); b != nil {
				ms, err := decodeMessages(b)
				if err != nil {
					return connect.NewError(connect.CodeInvalidArgument, err)
				}
				s.n.o.Handler.Raft(in.id.Node, ms)
			}
			if p := f.GetPing(); p != nil {
				if err := stream.Send(s.pong(p)); err != nil {
					return err
				}
			}
		}
	})
}

func (s *service) pong(p *peerv1.ClockPing) *peerv1.RaftFrame {
	pong := s.n.o.Handler.Pong()
	return &peerv1.RaftFrame{Kind: &peerv1.RaftFrame_Pong{Pong: &peerv1.ClockPong{Seq: p.GetSeq(),
		WallMillis: pong.WallMillis, ClockEligible: pong.Eligible, Stopping: pong.Stopping}}}
}

// ended is nil for a stream that the peer has closed.
func ended(err error) error {
	if isEOF(err) {
		return nil
	}
	return err
}

// Forward implements the stream of calls.
func (s *service) Forward(ctx context.Context, stream *connect.BidiStream[peerv1.ForwardFrame, peerv1.ForwardFrame]) error {
	return outside(func() error {
		in := &inbound{kind: forwardStream}
		err := s.accept(ctx, in, func() (frame, error) { return stream.Receive() }, func(h *peerv1.Hello) error {
			return stream.Send(&peerv1.ForwardFrame{Kind: &peerv1.ForwardFrame_Welcome{Welcome: h}})
		})
		if err != nil {
			return err
		}
		defer s.n.left(in)
		return ended(s.exchange(ctx, in, stream.Receive, stream.Send))
	})
}

// exchange hands calls to the Handler, and sends the answers, until the stream
// ends.
func (s *service) exchange(ctx context.Context, in *inbound, receive func() (*peerv1.ForwardFrame, error), send func(*peerv1.ForwardFrame) error) error {
	over, end := context.WithCancel(ctx)
	var sender sync.WaitGroup
	sender.Go(func() {
		if err := sendAnswers(over, in.calls, send); err != nil {
			// The reader below hears of it, whether it waits for the peer or for
			// answers to be sent.
			in.calls.close()
			_ = in.conn.Close()
		}
	})
	err := s.receiveCalls(in, receive)
	in.calls.close()
	end()
	sender.Wait()
	return err
}

// receiveCalls hands calls to the Handler until the stream ends.
func (s *service) receiveCalls(in *inbound, receive func() (*peerv1.ForwardFrame, error)) error {
	last := uint64(0)
	for {
		f, err := receive()
		if err != nil {
			return err
		}
		calls, err := decodeCalls(f.GetCalls(), last, s.n.o.Mono())
		if err != nil {
			return connect.NewError(connect.CodeInvalidArgument, err)
		}
		if len(calls) == 0 {
			continue
		}
		last = calls[len(calls)-1].seq
		if calls = in.calls.take(calls); len(calls) > 0 {
			s.n.o.Handler.Forward(in.calls, calls)
		}
	}
}

// sendAnswers sends what has been answered, and a goodbye at the end of a link
// that this broker ends, until something fails.
func sendAnswers(ctx context.Context, l *Link, send func(*peerv1.ForwardFrame) error) error {
	var spare []byte
	for {
		b, last := l.next(spare)
		spare = b
		switch {
		case len(b) > 0:
			if err := send(&peerv1.ForwardFrame{Kind: &peerv1.ForwardFrame_Answers{Answers: b}}); err != nil {
				return err
			}
		case last:
			return send(&peerv1.ForwardFrame{Kind: &peerv1.ForwardFrame_Goodbye{Goodbye: &peerv1.Goodbye{LastCall: l.lastTaken()}}})
		default:
			select {
			case <-l.wake:
			case <-ctx.Done():
				return nil
			}
		}
	}
}
