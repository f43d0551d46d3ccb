package httpapi

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/model"
)

// logBuffer collects what the door logs.
type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// start serves the door as the daemon does and answers its URL.
func start(t *testing.T, service felix.Service, opts Options) (url string, log *logBuffer) {
	t.Helper()
	log = &logBuffer{}
	opts.Log = slog.New(slog.NewTextHandler(log, nil))
	url, _ = startDoor(t, service, opts, felix.MaxConnections)
	return url, log
}

// startDoor is start with a bound on connections. It answers the door itself,
// of which the test's end checks that it holds nothing.
func startDoor(t *testing.T, service felix.Service, opts Options, connections int) (url string, d *door) {
	t.Helper()
	d = newDoor(service, opts)
	server := NewServer(d.handler(opts), opts.Log)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- server.Serve(LimitConnections(listener, connections)) }()
	t.Cleanup(func() {
		_ = server.Close()
		<-done
		eventually(t, "the door holds nothing", d.holdsNothing)
	})
	return "http://" + listener.Addr().String(), d
}

func (d *door) holdsNothing() bool {
	return d.budget.used.Load() == 0 && len(d.decoding) == 0 && len(d.batching) == 0 && len(d.listing) == 0
}

// eventually waits until something is so.
func eventually(t *testing.T, what string, so func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !so(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain until %s", what)
		}
	}
}

// newModel is a model with one cache, default/default/c, at a standing clock.
func newModel(t *testing.T) *model.Service {
	t.Helper()
	service := model.New(func() int64 { return 1_000_000 })
	scope := felix.Scope{Tenant: "default", Namespace: "default", Cache: "c"}
	if _, _, _, err := service.CreateCache(t.Context(), scope, felix.CacheSettings{}); err != nil {
		t.Fatal(err)
	}
	return service
}

// post is what curl does.
func post(t *testing.T, url, contentType, body string) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if contentType != "" {
		req.Header.Set("Content-Type", contentType)
	}
	return send(t, req)
}

func send(t *testing.T, req *http.Request) (*http.Response, string) {
	t.Helper()
	resp, err := http.DefaultClient.Do(req)
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

// failing is a Service whose every operation answers err, panics with it, or
// waits for ever.
type failing struct {
	felix.Service
	err   error
	panic any
	hang  bool
}

func (f failing) Cache(context.Context, felix.Scope) (felix.Cache, error) {
	if f.panic != nil {
		panic(f.panic)
	}
	if f.hang {
		return hanging{}, nil
	}
	return nil, f.err
}

// hanging is a Cache that never answers.
type hanging struct{ felix.Cache }

func (hanging) Submit(*felix.Batch) {}
