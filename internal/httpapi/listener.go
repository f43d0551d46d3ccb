package httpapi

import (
	"context"
	"net"
	"sync"

	"github.com/felix-go/felix"
)

// LimitConnections bounds the open connections of a listener that a NewServer
// serves. Those above max are accepted too, but their requests are refused in
// words, and they are closed; felix.MaxHTTPRefusals of them at once, the next
// wait to be accepted.
func LimitConnections(l net.Listener, max int) net.Listener {
	return &limitedListener{
		Listener: l, max: max,
		places: make(chan struct{}, max+felix.MaxHTTPRefusals),
		closed: make(chan struct{}),
	}
}

type limitedListener struct {
	net.Listener
	max    int
	places chan struct{} // one is taken for each open connection
	once   sync.Once
	closed chan struct{}
}

// Accept implements net.Listener. It is called by one goroutine.
func (l *limitedListener) Accept() (net.Conn, error) {
	select {
	case l.places <- struct{}{}:
	case <-l.closed:
		return nil, net.ErrClosed
	}
	c, err := l.Listener.Accept()
	if err != nil {
		<-l.places
		return nil, err
	}
	return &limitedConn{Conn: c, of: l, refused: len(l.places) > l.max}, nil
}

// Close implements net.Listener.
func (l *limitedListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return l.Listener.Close()
}

// limitedConn gives its place back when it is closed.
type limitedConn struct {
	net.Conn
	of      *limitedListener
	once    sync.Once
	refused bool // there were too many when it came
}

// Close implements net.Conn.
func (c *limitedConn) Close() error {
	err := c.Conn.Close()
	c.once.Do(func() { <-c.of.places })
	return err
}

// CloseWrite lets net/http close a connection so that its last answer arrives.
func (c *limitedConn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}

// refusedKey is set in the context of connections that are refused.
type refusedKey struct{}

// connContext is an http.Server's ConnContext: it tells the door what the
// listener knows of a connection.
func connContext(ctx context.Context, c net.Conn) context.Context {
	if l, ok := c.(*limitedConn); ok && l.refused {
		return context.WithValue(ctx, refusedKey{}, true)
	}
	return ctx
}

func isRefused(ctx context.Context) bool { return ctx.Value(refusedKey{}) != nil }
