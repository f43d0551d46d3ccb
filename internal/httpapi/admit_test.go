package httpapi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/felix-go/felix"
	felixv1 "github.com/felix-go/felix/api/felix/v1"
	"github.com/felix-go/felix/api/felix/v1/felixv1connect"
)

// alone is an HTTP client that shares its connection with nobody.
func alone(t *testing.T) *http.Client {
	t.Helper()
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// ask sends one request, with a body or without, and reads the answer.
func ask(t *testing.T, c *http.Client, url, body string) (*http.Response, string) {
	t.Helper()
	method := http.MethodGet
	if body != "" {
		method = http.MethodPost
	}
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", asJSON)
	resp, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(text)
}

// checkTurnedAway wants a refusal that says when to try again.
func checkTurnedAway(t *testing.T, what string, resp *http.Response, body string) {
	t.Helper()
	if resp.StatusCode != http.StatusTooManyRequests || resp.Header.Get("Felix-Error-Code") != "resource_exhausted" || resp.Header.Get("Retry-After") != "1" {
		t.Errorf("%s: %d %v %.200s", what, resp.StatusCode, resp.Header, body)
	}
	checkDetail(t, body, "resource_exhausted")
}

const addOne = `{"cache":"c","key":"k"}`

// TestConnectionsAreBounded: those beyond the bound are told so in their own
// protocol, and closed; probes are answered all the same.
func TestConnectionsAreBounded(t *testing.T) {
	url, _ := startDoor(t, newModel(t), Options{}, 2)
	first, second := alone(t), alone(t)
	for _, c := range []*http.Client{first, second} {
		if resp, body := ask(t, c, url+counter+"Add", addOne); resp.StatusCode != http.StatusOK {
			t.Fatalf("%d %s", resp.StatusCode, body)
		}
	}
	resp, body := ask(t, alone(t), url+counter+"Add", addOne)
	checkTurnedAway(t, "the third", resp, body)
	if !resp.Close {
		t.Error("the connection beyond the bound is kept")
	}
	if resp, body := ask(t, alone(t), url+"/livez", ""); resp.StatusCode != http.StatusOK || !resp.Close {
		t.Errorf("/livez: %d %s, to be closed %v", resp.StatusCode, body, resp.Close)
	}
	for name, opts := range protocols() {
		c := felixv1connect.NewCounterServiceClient(h2c(), url, opts...)
		_, err := c.Add(t.Context(), connect.NewRequest(&felixv1.CounterAddRequest{Cache: "c", KeyForm: &felixv1.CounterAddRequest_Key{Key: "k"}}))
		var ce *connect.Error
		if !errors.As(err, &ce) || ce.Code() != connect.CodeResourceExhausted || detail(t, ce).GetCode() != "resource_exhausted" {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, body := ask(t, first, url+counter+"Get", addOne); !strings.Contains(body, `"value":"2"`) {
		t.Errorf("what was refused has counted: %s", body)
	}
	first.CloseIdleConnections()
	eventually(t, "a place is free again", func() bool {
		resp, _ := ask(t, alone(t), url+counter+"Get", addOne)
		return resp.StatusCode == http.StatusOK
	})
}

// TestConnectionsBeyondAllBoundsWait: they cost nothing while they do.
func TestConnectionsBeyondAllBoundsWait(t *testing.T) {
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := LimitConnections(inner, 1)
	dial := func() {
		c, err := net.Dial("tcp", inner.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
	}
	var accepted []net.Conn
	for i := range 1 + felix.MaxHTTPRefusals {
		dial()
		c, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		accepted = append(accepted, c)
		if refused := isRefused(connContext(t.Context(), c)); refused != (i >= 1) {
			t.Errorf("connection %d: refused %v", i, refused)
		}
	}
	dial()
	more := make(chan error, 1)
	accept := func() {
		_, err := l.Accept()
		more <- err
	}
	go accept()
	select {
	case err := <-more:
		t.Fatalf("one more was accepted, %v", err)
	case <-time.After(20 * time.Millisecond):
	}
	for range 2 { // closing twice gives one place back
		_ = accepted[0].Close()
	}
	if err := <-more; err != nil {
		t.Errorf("with a place that is free: %v", err)
	}
	go accept()
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if err := <-more; !errors.Is(err, net.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

// padded is an add of one whose body has so many bytes.
func padded(bytes int) string {
	return strings.TrimSuffix(addOne, "}") + strings.Repeat(" ", bytes-len(addOne)) + "}"
}

// TestBodiesAreBounded: all bodies together have a bound, whole or not; beyond
// it a request is refused and nothing is applied.
func TestBodiesAreBounded(t *testing.T) {
	url, d := startDoor(t, newModel(t), Options{MaxBytes: 1 << 20}, felix.MaxConnections)
	large := padded(400_000)
	read, write := io.Pipe()
	slow := make(chan *http.Response, 1)
	go func() {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+counter+"Add", read)
		if err != nil {
			t.Error(err)
		}
		req.Header.Set("Content-Type", asJSON)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Error(err)
		}
		slow <- resp
	}()
	if _, err := io.WriteString(write, large[:390_000]); err != nil {
		t.Fatal(err)
	}
	eventually(t, "most of it was read", func() bool { return d.budget.used.Load() > heldPerBodyByte*390_000 })
	resp, body := ask(t, alone(t), url+counter+"Add", large)
	checkTurnedAway(t, "a second large body", resp, body)
	if resp, body := ask(t, alone(t), url+counter+"Add", addOne); resp.StatusCode != http.StatusOK {
		t.Errorf("a small body: %d %s", resp.StatusCode, body)
	}
	if _, err := io.WriteString(write, large[390_000:]); err != nil {
		t.Fatal(err)
	}
	_ = write.Close()
	if resp := <-slow; resp == nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("the slow one: %v", resp)
	} else if err := resp.Body.Close(); err != nil {
		t.Error(err)
	}
	eventually(t, "there is room again", func() bool {
		resp, _ := ask(t, alone(t), url+counter+"Add", large)
		return resp.StatusCode == http.StatusOK
	})
	if _, body := ask(t, alone(t), url+counter+"Get", addOne); !strings.Contains(body, `"value":"3"`) {
		t.Errorf("after three adds: %s", body)
	}
}

// TestRequestsAreBounded: each costs something, however small its body is; the
// last room is for probes.
func TestRequestsAreBounded(t *testing.T) {
	url, d := startDoor(t, failing{hang: true}, Options{MaxBytes: 10 * felix.HTTPRequestBytes}, felix.MaxConnections)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for range 9 {
		go func() {
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+counter+"Add", strings.NewReader(addOne))
			if err != nil {
				t.Error(err)
				return
			}
			req.Header.Set("Content-Type", asJSON)
			if resp, err := http.DefaultClient.Do(req); err == nil {
				_ = resp.Body.Close()
			}
		}()
	}
	eventually(t, "nine requests wait", func() bool {
		return d.budget.used.Load() == 9*(felix.HTTPRequestBytes+heldPerBodyByte*int64(len(addOne)))
	})
	resp, body := ask(t, alone(t), url+counter+"Add", addOne)
	checkTurnedAway(t, "the tenth", resp, body)
	if resp, body := ask(t, alone(t), url+"/livez", ""); resp.StatusCode != http.StatusOK {
		t.Errorf("/livez: %d %s", resp.StatusCode, body)
	}
}

// TestDecodingGivesItsPlaceBack: also when nothing can be made of a body.
func TestDecodingGivesItsPlaceBack(t *testing.T) {
	url, _ := startDoor(t, newModel(t), Options{}, felix.MaxConnections)
	for range 2 * felix.MaxHTTPDecoding {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+counter+"Add", strings.NewReader("no gzip"))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", asJSON)
		req.Header.Set("Content-Encoding", "gzip")
		if resp, body := send(t, req); resp.StatusCode != http.StatusBadRequest {
			t.Fatalf("%d %s", resp.StatusCode, body)
		}
	}
}

// wide is a Service whose one cache has as many long keys as are asked for.
type wide struct{ felix.Service }

func (w wide) Cache(context.Context, felix.Scope) (felix.Cache, error) { return wideCache{}, nil }

type wideCache struct{ felix.Cache }

func (wideCache) Scan(_ context.Context, req felix.ScanRequest) (page felix.ScanPage, err error) {
	for i := range req.Limit {
		key := fmt.Appendf(nil, "%08d%s", i, strings.Repeat("x", 50_000))
		page.Items = append(page.Items, felix.ScanItem{Key: key, Kind: felix.CounterRecord})
	}
	return page, nil
}

// TestAnswersAreBounded: an answer for which there is no room is refused.
func TestAnswersAreBounded(t *testing.T) {
	url, _ := startDoor(t, wide{}, Options{MaxBytes: 2 << 20}, felix.MaxConnections)
	resp, body := ask(t, alone(t), url+counter+"List", `{"cache":"c","pageSize":100}`)
	checkTurnedAway(t, "a large page", resp, body)
	for range 2 * felix.MaxHTTPListing { // and each gives its room back
		eventually(t, "a small page is answered", func() bool {
			resp, body := ask(t, alone(t), url+counter+"List", `{"cache":"c","pageSize":5}`)
			return resp.StatusCode == http.StatusOK && strings.Count(body, `"key"`) == 5
		})
	}
}

// TestSlowReaders: a client that does not read its answer does not hold it for
// ever.
func TestSlowReaders(t *testing.T) {
	opts := Options{AnswerTimeout: 2 * time.Second, RequestTimeout: 3 * time.Second}
	const page = `{"cache":"c","pageSize":200}`
	t.Run("HTTP/1", func(t *testing.T) {
		url, d := startDoor(t, wide{}, opts, felix.MaxConnections)
		c, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := fmt.Fprintf(c, "POST %sList HTTP/1.1\r\nHost: x\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n%s", counter, asJSON, len(page), page); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(c, make([]byte, 1)); err != nil { // the answer has begun
			t.Fatal(err)
		}
		eventually(t, "the answer is given up", d.holdsNothing)
	})
	t.Run("HTTP/2", func(t *testing.T) {
		url, d := startDoor(t, wide{}, opts, felix.MaxConnections)
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+counter+"List", strings.NewReader(page))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", asJSON)
		resp, err := h2c().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		eventually(t, "the answer is given up", d.holdsNothing)
	})
}
