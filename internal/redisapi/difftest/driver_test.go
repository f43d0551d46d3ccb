package difftest_test

import (
	"context"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/model"
	"github.com/felix-go/felix/internal/netloop"
	"github.com/felix-go/felix/internal/redisapi"
	"github.com/felix-go/felix/internal/redisapi/difftest"
)

func TestDifferential(t *testing.T) {
	addr := serve(t, newHandler(t))
	difftest.Run(t, func() net.Conn {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		return conn
	})
}

func TestClients(t *testing.T) {
	difftest.RunClients(t, serve(t, newHandler(t)))
}

// newHandler is the door to the model with the caches that `felix dev` creates.
func newHandler(t testing.TB) netloop.Handler {
	t.Helper()
	service := model.New(func() int64 { return time.Now().UnixMilli() })
	for _, cache := range []string{felix.DefaultCache, felix.StatsCache} {
		scope := felix.Scope{Tenant: felix.DefaultTenant, Namespace: felix.DefaultNamespace, Cache: cache}
		if _, _, _, err := service.CreateCache(context.Background(), scope, felix.CacheSettings{}); err != nil {
			t.Fatal(err)
		}
	}
	return redisapi.New(service, redisapi.Options{Version: "0.0.0-test", ServerPort: 7379})
}

// serve serves the handler on a free port, a goroutine per connection, until
// the test ends.
func serve(t testing.TB, h netloop.Handler) (addr string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	t.Cleanup(func() {
		cancel()
		listener.Close()
		running.Wait()
	})
	running.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			running.Go(func() {
				stop := context.AfterFunc(ctx, func() { conn.Close() })
				defer stop()
				defer conn.Close()
				connection(ctx, conn, h.NewSession(conn.RemoteAddr()))
			})
		}
	})
	return listener.Addr().String()
}

// connection takes the turns of one connection.
func connection(ctx context.Context, conn net.Conn, s netloop.Session) {
	defer s.Closed()
	in := make([]byte, 0, 4096)
	for {
		if cap(in)-len(in) < 2048 {
			in = append(make([]byte, 0, 2*cap(in)), in...)
		}
		n, err := conn.Read(in[len(in):cap(in)])
		if err != nil {
			return
		}
		in = in[:len(in)+n]
		for {
			used, out, stop := turn(ctx, s, in)
			if len(out) > 0 {
				if _, err := conn.Write(out); err != nil {
					return
				}
			}
			if stop {
				// Let the peer have the answer before a reset can overtake it.
				if tcp, ok := conn.(*net.TCPConn); ok {
					tcp.CloseWrite()
					tcp.SetReadDeadline(time.Now().Add(time.Second))
					io.Copy(io.Discard, tcp)
				}
				return
			}
			if used == 0 {
				break
			}
			in = append(make([]byte, 0, cap(in)), in[used:]...)
			if len(in) == 0 {
				break
			}
		}
	}
}

// turn is one turn of a session on the bytes.
func turn(ctx context.Context, s netloop.Session, in []byte) (used int, out []byte, stop bool) {
	var t netloop.Turn
	used = s.Parse(in, &t)
	var replies []felix.Reply
	if len(t.Ops) > 0 {
		var err error
		if replies, err = felix.DoGroups(ctx, t.Cache, t.Ops, t.Groups); err != nil {
			return used, nil, true
		}
	}
	if t.Slow != nil {
		t.Slow(ctx)
	}
	for left := 1; left > 0; { // in parts, if it is much
		var part []byte
		part, left = s.Reply(nil, replies)
		out = append(out, part...)
	}
	if used == 0 && t.Slow != nil { // which was only to prepare the next Parse
		return turn(ctx, s, in)
	}
	return used, out, t.Close
}
