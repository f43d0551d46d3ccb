// Package client is the Go client of Felix: durable counters that many
// processes add to, and values beside them.
//
//	c, err := client.New(client.Options{Brokers: []string{"127.0.0.1:7380"}})
//	sum, err := c.CounterAdd(ctx, "", "", "stats", "page-views", 1)
//	seat, err := c.CounterAddWith(ctx, "", "", "stats", "seats", 1, client.AddOptions{Max: &seats})
//
// A bound or a condition that is not met is an answer (seat.Applied is false),
// not an error.
//
// An empty tenant or namespace means "default". A key is any string of 1 to
// felix.MaxKeyBytes bytes; it need not be UTF-8.
//
// # Errors
//
// Every error is, or wraps, a *felix.Error (errors.As finds it). For calls that
// change something its Code tells the two kinds of failure apart:
// outcome_unknown (and internal, a bug in the broker) means that the change may
// have been made; every other code means that it was not, and the call can be
// made again.
//
// A call that changes something is sent to a broker at most once: it goes on
// to the next broker only while it was certainly not sent, as when a connection
// is refused. If the answer is lost, it is outcome_unknown. A read is asked
// again, of the next broker, until the time is over.
package client

import (
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/api/felix/v1/felixv1connect"
)

const (
	// DefaultBroker is where `felix dev` listens for HTTP.
	DefaultBroker = "127.0.0.1:7380"
	// DefaultTimeout bounds a call; somewhat longer than the broker's own
	// felix.RequestTimeout, so that the broker's answer, which knows whether
	// something was applied, comes before the client gives up.
	DefaultTimeout = felix.RequestTimeout + time.Second

	defaultPort = "7380"
	// dialTimeout bounds connecting to one broker: a host that is down must
	// not use up the time for the next one.
	dialTimeout = 2 * time.Second
	// idleConnections bounds the unused connections kept to one broker.
	idleConnections = 128
	// maxAnswerBytes bounds an answer in memory: a page of
	// felix.MaxScanPage keys of ordinary size.
	maxAnswerBytes = 256 << 20
)

// Options are the settings of a client. The zero value is a client of a broker
// on this machine.
type Options struct {
	// Brokers are the HTTP addresses of brokers, host:port; 7380 if the port
	// is left out. With "https://" before it TLS is used. Any broker serves
	// any key; the first that answers is used until it does not. Empty means
	// DefaultBroker.
	Brokers []string
	// Timeout bounds each call, all its attempts together; a context may end
	// it sooner. Zero means DefaultTimeout.
	Timeout time.Duration
	// HTTPClient sends the requests; nil means one of its own without
	// proxies. Its Transport must not send a POST twice on its own account;
	// http.Transport does not. Redirects are never followed. Its connections
	// are the caller's to close.
	HTTPClient *http.Client
}

// Client speaks to the brokers of one cluster. It is safe for concurrent use.
type Client struct {
	timeout time.Duration
	brokers []broker
	// current is the index of the broker that answered last; a hint.
	current atomic.Int32
	own     *http.Transport // nil if the HTTPClient is the caller's
	http    *http.Client    // sends everything
}

// broker is one address and its services.
type broker struct {
	address  string
	base     string // of URLs: scheme and address
	caches   felixv1connect.CacheServiceClient
	counters felixv1connect.CounterServiceClient
	values   felixv1connect.ValueServiceClient
	batches  felixv1connect.BatchServiceClient
	cluster  felixv1connect.ClusterServiceClient
}

// New makes a client. It connects only when it is used. The error is
// invalid_argument: an address that is none, a negative timeout.
func New(opts Options) (*Client, error) {
	if opts.Timeout < 0 {
		return nil, felix.Errorf(felix.InvalidArgument, "the timeout is %v: it must be positive, or 0 for %v", opts.Timeout, DefaultTimeout)
	}
	if opts.Timeout == 0 {
		opts.Timeout = DefaultTimeout
	}
	addresses := opts.Brokers
	if len(addresses) == 0 {
		addresses = []string{DefaultBroker}
	}
	c := &Client{timeout: opts.Timeout}
	sender := c.sender(opts.HTTPClient)
	c.http = sender
	for _, address := range addresses {
		base, err := baseURL(address)
		if err != nil {
			return nil, err
		}
		if slices.ContainsFunc(c.brokers, func(b broker) bool { return b.address == base.Host }) {
			continue
		}
		limit := connect.WithReadMaxBytes(maxAnswerBytes)
		c.brokers = append(c.brokers, broker{
			address:  base.Host,
			base:     base.String(),
			caches:   felixv1connect.NewCacheServiceClient(sender, base.String(), limit),
			counters: felixv1connect.NewCounterServiceClient(sender, base.String(), limit),
			values:   felixv1connect.NewValueServiceClient(sender, base.String(), limit),
			batches:  felixv1connect.NewBatchServiceClient(sender, base.String(), limit),
			cluster:  felixv1connect.NewClusterServiceClient(sender, base.String(), limit),
		})
	}
	return c, nil
}

// Close closes idle connections. Calls under way are not disturbed.
func (c *Client) Close() {
	if c.own != nil {
		c.own.CloseIdleConnections()
	}
}

// sender prepares the HTTP client: redirects would send a request twice.
func (c *Client) sender(given *http.Client) *http.Client {
	var hc http.Client
	if given != nil {
		hc = *given
		if hc.Transport == nil {
			hc.Transport = http.DefaultTransport
		}
		hc.Transport = once{hc.Transport}
	} else {
		c.own = &http.Transport{
			DialContext:         (&net.Dialer{Timeout: min(dialTimeout, c.timeout)}).DialContext,
			TLSHandshakeTimeout: dialTimeout,
			MaxIdleConnsPerHost: idleConnections,
			IdleConnTimeout:     time.Minute,
			// Go's HTTP/2 resends a request after some errors of the server.
			Protocols: http1(),
		}
		hc.Transport = c.own
	}
	hc.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	hc.Timeout = 0 // the call's context has it
	return &hc
}

// once takes from a request the means to send its body a second time, because
// what a caller's transport does on failures is not known.
type once struct{ next http.RoundTripper }

// RoundTrip implements http.RoundTripper, which may not change its argument.
func (o once) RoundTrip(r *http.Request) (*http.Response, error) {
	single := *r
	single.GetBody = nil
	return o.next.RoundTrip(&single)
}

func http1() *http.Protocols {
	p := new(http.Protocols)
	p.SetHTTP1(true)
	return p
}

// baseURL reads a broker's address. The error is invalid_argument.
func baseURL(address string) (*url.URL, error) {
	bad := func(why string) (*url.URL, error) {
		return nil, felix.Errorf(felix.InvalidArgument, "broker %.100q: %s; give host:port, such as %s", address, why, DefaultBroker)
	}
	text := strings.TrimSuffix(address, "/")
	if !strings.Contains(text, "://") {
		text = "http://" + text
	}
	u, err := url.Parse(text)
	if err != nil {
		return bad("not an address")
	}
	switch {
	case u.Scheme != "http" && u.Scheme != "https":
		return bad("only http and https are spoken")
	case u.Hostname() == "":
		return bad("the host is missing")
	case u.Path != "" || u.RawQuery != "" || u.Fragment != "" || u.User != nil:
		return bad("nothing may follow or precede host and port")
	}
	if u.Port() == "" {
		if strings.HasSuffix(u.Host, ":") {
			return bad("the port is missing")
		}
		u.Host = net.JoinHostPort(u.Hostname(), defaultPort)
	}
	return &url.URL{Scheme: u.Scheme, Host: u.Host}, nil
}
