package client_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/client"
)

// ways are the ways in which an answer can be lost after a broker may have the
// request.
func ways() map[string]treatment {
	head := "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: application/proto\r\n"
	return map[string]treatment{
		"hangs up before it reads":      func(net.Conn, func()) {},
		"hangs up while it reads":       func(c net.Conn, _ func()) { _, _ = c.Read(make([]byte, 5)) },
		"reads and hangs up":            answer(""),
		"hangs up in the header":        answer("HTTP/1.1 200 OK\r\nContent-"),
		"hangs up in the body":          answer(head + "Content-Length: 9\r\n\r\n\x08"),
		"answers nonsense in protobuf":  answer(head + "Content-Length: 3\r\n\r\n\xff\xff\xff"),
		"is another kind of server":     answer("HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 2\r\n\r\nhi"),
		"is no HTTP server":             answer("-ERR unknown command 'POST'\r\n"),
		"is a proxy with a gateway":     answer("HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n"),
		"is a proxy with a 503":         answer("HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n"),
		"is a proxy with a 404":         answer("HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"),
		"answers an error without code": answer("HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\nContent-Length: 27\r\n\r\n{\"code\":\"invalid_argument\"}"),
		"hangs up in an error":          answer("HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{\"code\":\"inv"),
		"answers a code of the future":  answer("HTTP/1.1 400 Bad Request\r\nFelix-Error-Code: too_new\r\nContent-Length: 0\r\n\r\n"),
		"redirects":                     answer("HTTP/1.1 307 Temporary Redirect\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n"),
	}
}

// TestLostAnswers: a change whose answer is lost is outcome_unknown, and is
// sent to nobody again; a read is asked of the next broker.
func TestLostAnswers(t *testing.T) {
	for name, treat := range ways() {
		t.Run(name, func(t *testing.T) {
			broken, good := startBroken(t, treat), startBroker(t)
			c := newClient(t, patience, broken.address, good.address)
			_, err := c.CounterAdd(t.Context(), "", "", "c", "k", 1)
			if codeOf(t, err) != felix.OutcomeUnknown {
				t.Errorf("add: %v", err)
			}
			if n := broken.connections.Load(); n != 1 || good.requests.Load() != 0 {
				t.Errorf("the add was sent over %d connections, and %d times to the next broker", n, good.requests.Load())
			}
			if _, found, err := c.CounterGet(t.Context(), "", "", "c", "k"); found || err != nil {
				t.Errorf("get: %v, %v", found, err)
			}
			// From now on the broker that answers is asked first.
			if sum, err := c.CounterAdd(t.Context(), "", "", "c", "k", 1); sum != 1 || err != nil {
				t.Errorf("add: %d, %v", sum, err)
			}
			alone := newClient(t, patience, broken.address)
			if _, _, err := alone.CounterGet(t.Context(), "", "", "c", "k"); codeOf(t, err) != felix.Unavailable || errors.Is(err, client.ErrNoBroker) {
				t.Errorf("get: %v", err)
			}
		})
	}
}

// TestEveryChangeIsSentOnce checks each method that changes something.
func TestEveryChangeIsSentOnce(t *testing.T) {
	for name, do := range map[string]func(context.Context, *client.Client) error{
		"add": func(ctx context.Context, c *client.Client) error {
			_, err := c.CounterAdd(ctx, "", "", "c", "k", 1)
			return err
		},
		"set": func(ctx context.Context, c *client.Client) error { return c.CounterSet(ctx, "", "", "c", "k", 1) },
		"delete": func(ctx context.Context, c *client.Client) error {
			_, err := c.CounterDelete(ctx, "", "", "c", "k")
			return err
		},
		"create": func(ctx context.Context, c *client.Client) error {
			_, _, _, err := c.CacheCreate(ctx, "", "", "c", felix.CacheSettings{})
			return err
		},
		"replication": func(ctx context.Context, c *client.Client) error {
			_, _, err := c.CacheSetReplication(ctx, "", "", "c", 1)
			return err
		},
		"rm": func(ctx context.Context, c *client.Client) error { return c.CacheDelete(ctx, "", "", "c") },
	} {
		broken := startBroken(t, answer(""))
		err := do(t.Context(), newClient(t, patience, broken.address))
		if codeOf(t, err) != felix.OutcomeUnknown || broken.requests.Load() != 1 || broken.connections.Load() != 1 {
			t.Errorf("%s: %v after %d requests", name, err, broken.requests.Load())
		}
	}
}

// TestRefusedConnections: what was certainly not sent goes to the next broker.
func TestRefusedConnections(t *testing.T) {
	good := startBroker(t)
	c := newClient(t, patience, deadAddress(t), deadAddress(t), good.address)
	if sum, err := c.CounterAdd(t.Context(), "", "", "c", "k", 1); sum != 1 || err != nil || good.requests.Load() != 1 {
		t.Errorf("add: %d, %v, sent %d times", sum, err, good.requests.Load())
	}
	for _, brokers := range [][]string{{deadAddress(t)}, {deadAddress(t), deadAddress(t)}} {
		c := newClient(t, patience, brokers...)
		_, err := c.CounterAdd(t.Context(), "", "", "c", "k", 1)
		if codeOf(t, err) != felix.Unavailable || !errors.Is(err, client.ErrNoBroker) || !strings.Contains(err.Error(), "connection refused") {
			t.Errorf("add: %v", err)
		}
		if _, _, err := c.CounterGet(t.Context(), "", "", "c", "k"); codeOf(t, err) != felix.Unavailable || !errors.Is(err, client.ErrNoBroker) {
			t.Errorf("get: %v", err)
		}
	}
	// An answer says more than a refused connection after it.
	broken := startBroken(t, answer(""))
	c = newClient(t, patience, deadAddress(t), broken.address)
	if _, err := c.CounterAdd(t.Context(), "", "", "c", "k", 1); codeOf(t, err) != felix.OutcomeUnknown {
		t.Errorf("add: %v", err)
	}
}

// TestAnsweredErrors: an error with our code is believed, and a change is not
// tried elsewhere even if it was not applied.
func TestAnsweredErrors(t *testing.T) {
	for _, code := range felix.Codes() {
		body := `{"code":"unavailable","message":"the words"}`
		refusing := startBroken(t, answer(fmt.Sprintf("HTTP/1.1 503 Service Unavailable\r\nFelix-Error-Code: %s\r\n"+
			"Connection: close\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", code, len(body), body)))
		good := startBroker(t)
		c := newClient(t, patience, refusing.address, good.address)
		_, err := c.CounterAdd(t.Context(), "", "", "c", "k", 1)
		if codeOf(t, err) != code || felix.AsError(err).Message != "the words" || good.requests.Load() != 0 || refusing.requests.Load() != 1 {
			t.Errorf("%s: %v, sent %d+%d times", code, err, refusing.requests.Load(), good.requests.Load())
		}
		_, _, err = c.CounterGet(t.Context(), "", "", "c", "k")
		if retried := code == felix.Unavailable || code == felix.OutcomeUnknown; retried != (err == nil) {
			t.Errorf("get after %s: %v", code, err)
		}
	}
}

func TestRetryAfterComesThrough(t *testing.T) {
	body := `{"code":"resource_exhausted","message":"busy","details":[{"type":"felix.v1.ErrorInfo","value":"ChJyZXNvdXJjZV9leGhhdXN0ZWQQ3As"}]}`
	address := serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusTooManyRequests)
		_, _ = io.WriteString(w, body)
	}))
	_, err := newClient(t, patience, address).CounterAdd(t.Context(), "", "", "c", "k", 1)
	if e := felix.AsError(err); e.Code != felix.ResourceExhausted || e.RetryAfter != 1500*time.Millisecond {
		t.Errorf("%v, retry after %v", err, e.RetryAfter)
	}
}

// TestHangingBroker: time runs out.
func TestHangingBroker(t *testing.T) {
	release := make(chan struct{})
	var hung atomic.Int32
	address := serve(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // net/http watches for a hang-up only after the body
		hung.Add(1)
		select {
		case <-release:
		case <-r.Context().Done():
		}
	}))
	defer close(release)
	c := newClient(t, 50*time.Millisecond, address)
	if _, err := c.CounterAdd(t.Context(), "", "", "c", "k", 1); codeOf(t, err) != felix.OutcomeUnknown || hung.Load() != 1 {
		t.Errorf("add: %v, sent %d times", err, hung.Load())
	}
	if _, _, err := c.CounterGet(t.Context(), "", "", "c", "k"); codeOf(t, err) != felix.Unavailable {
		t.Errorf("get: %v", err)
	}
	// A read leaves time for the next broker.
	good := startBroker(t)
	c = newClient(t, 4*time.Second, address, good.address)
	if _, found, err := c.CounterGet(t.Context(), "", "", "c", "k"); found || err != nil {
		t.Errorf("get: %v", err)
	}
}

// TestInterrupted: a context that ends while the add is under way.
func TestInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	address := serve(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // net/http watches for a hang-up only after the body
		cancel()
		<-r.Context().Done()
	}))
	_, err := newClient(t, patience, address).CounterAdd(ctx, "", "", "c", "k", 1)
	if codeOf(t, err) != felix.OutcomeUnknown || !strings.Contains(err.Error(), "interrupted") {
		t.Errorf("%v", err)
	}
	// Before it began, nothing was sent.
	good := startBroker(t)
	_, err = newClient(t, patience, good.address).CounterAdd(ctx, "", "", "c", "k", 1)
	if codeOf(t, err) != felix.Unavailable || errors.Is(err, client.ErrNoBroker) || good.requests.Load() != 0 {
		t.Errorf("%v, sent %d times", err, good.requests.Load())
	}
}

// TestBrokerRestarts: a connection that the broker closed while it was idle
// costs no answer, and no add is sent twice.
func TestBrokerRestarts(t *testing.T) {
	good := startBroker(t)
	relay := startRelay(t, good.address)
	c := newClient(t, patience, relay.address)
	for i := range 20 {
		sum, err := c.CounterAdd(t.Context(), "", "", "c", "k", 1)
		if err != nil && codeOf(t, err) != felix.OutcomeUnknown {
			t.Fatalf("add %d: %v", i, err)
		}
		if err == nil && sum > int64(i+1) {
			t.Fatalf("after %d adds the sum is %d", i+1, sum)
		}
		relay.hangUp()
	}
	if n := good.requests.Load(); n > 20 {
		t.Errorf("20 adds were sent as %d", n)
	}
}

// TestForeignTransport: one that tells nothing of its connections cannot be
// judged, so its failures are outcome_unknown; and it cannot send again.
func TestForeignTransport(t *testing.T) {
	silent := roundTripper(func(*http.Request) (*http.Response, error) { return nil, errors.New("broken") })
	c, err := client.New(client.Options{Brokers: []string{"h:1"}, HTTPClient: &http.Client{Transport: silent}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.CounterAdd(t.Context(), "", "", "c", "k", 1); codeOf(t, err) != felix.OutcomeUnknown {
		t.Errorf("%v", err)
	}
	// One that would send again has nothing to send.
	again := roundTripper(func(r *http.Request) (*http.Response, error) {
		if r.GetBody != nil {
			t.Error("a foreign transport could send the request again")
		}
		return nil, errors.New("broken")
	})
	if c, err = client.New(client.Options{Brokers: []string{"h:1"}, HTTPClient: &http.Client{Transport: again}}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.CounterAdd(t.Context(), "", "", "c", "k", 1); codeOf(t, err) != felix.OutcomeUnknown {
		t.Errorf("%v", err)
	}
	// One that had a connection and then looks for another may have sent.
	twice := roundTripper(func(r *http.Request) (*http.Response, error) {
		trace := httptrace.ContextClientTrace(r.Context())
		trace.GetConn("h:1")
		trace.GotConn(httptrace.GotConnInfo{})
		trace.GetConn("h:1")
		return nil, errors.New("broken")
	})
	if c, err = client.New(client.Options{Brokers: []string{"h:1"}, HTTPClient: &http.Client{Transport: twice}}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.CounterAdd(t.Context(), "", "", "c", "k", 1); codeOf(t, err) != felix.OutcomeUnknown {
		t.Errorf("%v", err)
	}
	// net/http's own does tell.
	c, err = client.New(client.Options{Brokers: []string{deadAddress(t)}, HTTPClient: &http.Client{Transport: &http.Transport{}}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.CounterAdd(t.Context(), "", "", "c", "k", 1); codeOf(t, err) != felix.Unavailable {
		t.Errorf("%v", err)
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
