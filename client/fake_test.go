package client_test

import (
	"bufio"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/client"
	"github.com/felix-go/felix/internal/httpapi"
	"github.com/felix-go/felix/internal/model"
)

// broker is a real door before the model, with cache default/default/c, that
// counts the requests it received.
type broker struct {
	address  string
	requests atomic.Int32
	service  *model.Service
}

func startBroker(t *testing.T) *broker {
	t.Helper()
	b := &broker{service: model.New(func() int64 { return 1_000_000 })}
	scope := felix.Scope{Tenant: "default", Namespace: "default", Cache: "c"}
	if _, _, _, err := b.service.CreateCache(t.Context(), scope, felix.CacheSettings{}); err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	door := httpapi.Handler(b.service, httpapi.Options{Log: log})
	b.address = serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b.requests.Add(1)
		door.ServeHTTP(w, r)
	}))
	return b
}

func serve(t *testing.T, h http.Handler) string {
	t.Helper()
	listener := listen(t)
	server := httpapi.NewServer(h, slog.New(slog.NewTextHandler(io.Discard, nil)))
	done := make(chan error, 1)
	go func() { done <- server.Serve(listener) }()
	t.Cleanup(func() {
		_ = server.Close()
		<-done
	})
	return listener.Addr().String()
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return listener
}

// deadAddress is one at which connections are refused.
func deadAddress(t *testing.T) string {
	t.Helper()
	listener := listen(t)
	defer listener.Close()
	return listener.Addr().String()
}

// treatment is what a broken broker does to a connection before it closes it.
// It calls read once it has read a request whole, and before it answers.
type treatment func(conn net.Conn, read func())

// brokenBroker counts the connections made to it and the requests it has read.
type brokenBroker struct {
	address     string
	connections atomic.Int32
	requests    atomic.Int32
}

func startBroken(t *testing.T, treat treatment) *brokenBroker {
	t.Helper()
	listener := listen(t)
	b := &brokenBroker{address: listener.Addr().String()}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			b.connections.Add(1)
			treat(conn, func() { b.requests.Add(1) })
			_ = conn.Close()
		}
	}()
	t.Cleanup(func() {
		_ = listener.Close()
		<-done
	})
	return b
}

// answer reads a request whole, sends text and hangs up.
func answer(text string) treatment {
	return func(conn net.Conn, read func()) {
		req, err := http.ReadRequest(bufio.NewReader(conn))
		if err != nil {
			return
		}
		if _, err := io.Copy(io.Discard, req.Body); err != nil {
			return
		}
		read()
		_, _ = io.WriteString(conn, text) // the client may be gone
	}
}

func newClient(t *testing.T, timeout time.Duration, brokers ...string) *client.Client {
	t.Helper()
	c, err := client.New(client.Options{Brokers: brokers, Timeout: timeout})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// codeOf is the code of an error, and 0 of none.
func codeOf(t *testing.T, err error) felix.Code {
	t.Helper()
	if err == nil {
		return 0
	}
	var e *felix.Error
	if !errors.As(err, &e) {
		t.Fatalf("%v (%T) is no *felix.Error", err, err)
	}
	return e.Code
}
