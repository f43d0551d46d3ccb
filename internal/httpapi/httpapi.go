// Package httpapi is the HTTP door: the felix.v1 API as gRPC, gRPC-web and
// JSON on one listener, with /livez, /readyz and /metrics beside it. It
// translates between the schema and the vocabulary of package felix and decides
// nothing.
package httpapi

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"connectrpc.com/connect"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/api/felix/v1/felixv1connect"
)

const (
	// maxBodyBytes bounds a request's body, as sent and as unpacked. The
	// largest legal one is a key of MaxKeyBytes whose every byte JSON writes
	// as six, or a value of MaxValueBytes in base64; this is twice that.
	maxBodyBytes = 3 << 20
	// bodyTimeout bounds how long a client may take to send its body, so that
	// slow senders cannot hold memory and connections.
	bodyTimeout = 15 * time.Second
	// headerTimeout is the same for the request's head.
	headerTimeout = 10 * time.Second
	// idleTimeout is how long a connection without a request is kept; longer
	// than the 60 and 90 seconds after which common proxies and Go's client
	// give theirs up, so that it is not the server that hangs up first.
	idleTimeout = 120 * time.Second
	// maxHeaderBytes bounds a request's head; the API needs a few hundred.
	maxHeaderBytes = 32 << 10
	// maxStreams bounds the requests at once on one HTTP/2 connection.
	maxStreams = 1_000
)

// Options are the settings of the door.
type Options struct {
	// Log receives bugs (panics and internal errors); nil means slog.Default.
	Log *slog.Logger
	// Ready says why the broker is not ready, for /readyz, or nil. A nil
	// func means that it is always ready.
	Ready func(ctx context.Context) error
	// Metrics are shown at /metrics; nil means that there are none.
	Metrics prometheus.Gatherer
	// RequestTimeout bounds a request; a client may ask for less. Zero means
	// felix.RequestTimeout.
	RequestTimeout time.Duration
}

// Handler is the whole door. Serve it with NewServer, which also speaks HTTP/2
// without TLS, as gRPC needs.
func Handler(service felix.Service, opts Options) http.Handler {
	if opts.Log == nil {
		opts.Log = slog.Default()
	}
	if opts.RequestTimeout <= 0 {
		opts.RequestTimeout = felix.RequestTimeout
	}
	d := &door{service: service, log: opts.Log, timeout: opts.RequestTimeout}
	options := connect.WithHandlerOptions(
		connect.WithInterceptors(connect.UnaryInterceptorFunc(d.intercept)),
		connect.WithReadMaxBytes(maxBodyBytes),
		connect.WithCodec(binaryCodec{}),
		connect.WithCodec(jsonCodec{"json"}),
		connect.WithCodec(jsonCodec{"json; charset=utf-8"}),
	)
	mux := http.NewServeMux()
	mount := func(path string, h http.Handler) { mux.Handle(path, d.rpc(path, h)) }
	mount(felixv1connect.NewCacheServiceHandler(cacheService{d}, options))
	mount(felixv1connect.NewCounterServiceHandler(counterService{d}, options))
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) { writeText(w, http.StatusOK, "ok") })
	mux.HandleFunc("GET /readyz", readyz(opts.Ready))
	if opts.Metrics != nil {
		mux.Handle("GET /metrics", promhttp.HandlerFor(opts.Metrics, promhttp.HandlerOpts{
			ErrorLog: slog.NewLogLogger(opts.Log.Handler(), slog.LevelError),
		}))
	}
	mux.HandleFunc("/", d.notFound)
	return d.guard(mux)
}

// NewServer is an http.Server for the door: HTTP/1.1, and HTTP/2 with and
// without TLS, with bounds on time and size. The caller serves and closes it.
func NewServer(handler http.Handler, log *slog.Logger) *http.Server {
	if log == nil {
		log = slog.Default()
	}
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	protocols.SetUnencryptedHTTP2(true)
	return &http.Server{
		Handler:           handler,
		Protocols:         protocols,
		HTTP2:             &http.HTTP2Config{MaxConcurrentStreams: maxStreams},
		ReadHeaderTimeout: headerTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		// Mostly clients that hung up or spoke another protocol.
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
}

// door is what all handlers share. It is immutable.
type door struct {
	service felix.Service
	log     *slog.Logger
	timeout time.Duration
}

func readyz(ready func(context.Context) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if ready != nil {
			if err := ready(r.Context()); err != nil {
				writeText(w, http.StatusServiceUnavailable, "not ready: "+err.Error())
				return
			}
		}
		writeText(w, http.StatusOK, "ok")
	}
}

func writeText(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	fmt.Fprintln(w, text) // a failure means the client is gone
}
