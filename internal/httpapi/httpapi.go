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
	"sync/atomic"
	"time"

	"connectrpc.com/connect"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/api/felix/v1/felixv1connect"
)

// Options are the settings of the door.
type Options struct {
	// Cluster is what operators ask; nil means that its methods do not exist.
	Cluster felix.Cluster
	// Log receives bugs (panics and internal errors); nil means slog.Default.
	Log *slog.Logger
	// Ready says why the broker is not ready, for /readyz, or nil. A nil
	// func means that it is always ready.
	Ready func(ctx context.Context) error
	// Metrics are shown at /metrics; nil means that there are none.
	Metrics prometheus.Gatherer
	// Register takes the door's own metrics; nil means that nobody wants them.
	Register prometheus.Registerer
	// RequestTimeout bounds a request; a client may ask for less. Zero means
	// felix.RequestTimeout.
	RequestTimeout time.Duration
	// AnswerTimeout bounds how long a client may take to read an answer. Zero
	// means felix.HTTPAnswerTimeout.
	AnswerTimeout time.Duration
	// MaxBytes bounds the memory of all requests together. Zero means
	// felix.MaxHTTPBytes.
	MaxBytes int64
}

// Handler is the whole door. Serve it with NewServer, which also speaks HTTP/2
// without TLS, as gRPC needs.
func Handler(service felix.Service, opts Options) http.Handler {
	return newDoor(service, opts).handler(opts)
}

func newDoor(service felix.Service, opts Options) *door {
	if opts.Log == nil {
		opts.Log = slog.Default()
	}
	if opts.RequestTimeout <= 0 {
		opts.RequestTimeout = felix.RequestTimeout
	}
	if opts.AnswerTimeout <= 0 {
		opts.AnswerTimeout = felix.HTTPAnswerTimeout
	}
	if opts.MaxBytes <= 0 {
		opts.MaxBytes = felix.MaxHTTPBytes
	}
	return &door{
		service: service, cluster: opts.Cluster, log: opts.Log, timeout: opts.RequestTimeout, answerTimeout: opts.AnswerTimeout,
		budget:   &budget{max: opts.MaxBytes},
		decoding: make(chan struct{}, felix.MaxHTTPDecoding),
		batching: make(chan struct{}, felix.MaxHTTPBatches),
		listing:  make(chan struct{}, felix.MaxHTTPListing),
	}
}

func (d *door) handler(opts Options) http.Handler {
	options := connect.WithHandlerOptions(
		connect.WithInterceptors(connect.UnaryInterceptorFunc(d.intercept)),
		connect.WithReadMaxBytes(felix.MaxHTTPBodyBytes),
		connect.WithCodec(binaryCodec{}),
		connect.WithCodec(jsonCodec{"json"}),
		connect.WithCodec(jsonCodec{"json; charset=utf-8"}),
	)
	mux := http.NewServeMux()
	mount := func(path string, h http.Handler) { mux.Handle(path, d.rpc(path, h)) }
	mount(felixv1connect.NewCacheServiceHandler(cacheService{d}, options))
	mount(felixv1connect.NewCounterServiceHandler(counterService{d}, options))
	mount(felixv1connect.NewValueServiceHandler(valueService{d}, options))
	mount(felixv1connect.NewBatchServiceHandler(batchService{d}, options))
	if d.cluster != nil {
		mount(felixv1connect.NewClusterServiceHandler(clusterService{d}, options))
	}
	mux.HandleFunc("GET "+watchPath, d.watch)
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) { writeText(w, http.StatusOK, "ok") })
	mux.HandleFunc("GET /readyz", readyz(opts.Ready))
	if opts.Metrics != nil {
		mux.Handle("GET /metrics", promhttp.HandlerFor(opts.Metrics, promhttp.HandlerOpts{
			ErrorLog:            slog.NewLogLogger(d.log.Handler(), slog.LevelError),
			MaxRequestsInFlight: felix.MaxHTTPScrapes,
		}))
	}
	mux.HandleFunc("/", d.notFound)
	if opts.Register != nil {
		d.register(opts.Register)
	}
	return d.guard(mux)
}

func (d *door) register(r prometheus.Registerer) {
	r.MustRegister(
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "felix_http_held_bytes",
			Help: "Memory of HTTP requests under way and of answers that are not read yet."},
			func() float64 { return float64(d.budget.used.Load()) }),
		prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "felix_http_refused_total",
			Help: "HTTP requests refused: there were too many, or too many connections."},
			func() float64 { return float64(d.refused.Load()) }),
	)
}

// NewServer is an http.Server for the door: HTTP/1.1, and HTTP/2 with and
// without TLS, with bounds on time and size. The caller serves and closes it;
// LimitConnections makes the listener.
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
		HTTP2:             &http.HTTP2Config{MaxConcurrentStreams: felix.MaxHTTPStreams, WriteByteTimeout: felix.HTTPAnswerTimeout},
		ConnContext:       connContext,
		ReadHeaderTimeout: felix.HTTPHeaderTimeout,
		ReadTimeout:       felix.HTTPHeaderTimeout + felix.HTTPBodyTimeout, // also of a body that no handler reads
		// From the head on; a request that is evaluated extends it.
		WriteTimeout:   felix.HTTPBodyTimeout + felix.HTTPAnswerTimeout,
		IdleTimeout:    felix.HTTPIdleTimeout,
		MaxHeaderBytes: felix.MaxHTTPHeaderBytes,
		// Mostly clients that hung up or spoke another protocol.
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
}

// door is what all handlers share.
type door struct {
	service       felix.Service
	cluster       felix.Cluster // or nil
	log           *slog.Logger
	timeout       time.Duration
	answerTimeout time.Duration

	budget  *budget
	refused atomic.Uint64
	// Rooms with so many places: for requests whose messages are being made,
	// those of batches apart, and for those that list.
	decoding, batching, listing chan struct{}
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
