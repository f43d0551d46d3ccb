// Package load makes load on a server that speaks the Redis protocol, Felix or
// any other, and measures how it answers: commands in pipelines on many
// connections, as fast as they are answered or at a rate that does not depend
// on the answers.
package load

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// Work is what the commands do.
type Work uint8

const (
	// Counter adds 1: INCR.
	Counter Work = iota
	// Get reads: GET.
	Get
)

// Spread says which keys are used how often.
type Spread uint8

const (
	// Uniform uses all keys equally often.
	Uniform Spread = iota
	// Zipf uses the nth key 1/n^ZipfExponent as often as the first.
	Zipf
)

// ZipfExponent is that of web requests and words, a little above 1: the first of
// 100,000 keys gets about a tenth of all.
const ZipfExponent = 1.05

// Config is a load. All fields must be set, unless they say otherwise.
type Config struct {
	Addrs          []string // host:port of the server, or of several; connections take turns
	User, Password string   // for AUTH; an empty user with a password sends only that, both empty none
	Work           Work
	Connections    int
	Depth          int    // commands that a connection sends before it waits for answers
	Keys           int    // how many different keys; 1 is one hot key
	Prefix         string // of the keys
	Spread         Spread
	Duration       time.Duration
	// Rate is how many commands a second all connections send together, whether
	// or not there are answers; 0 sends as fast as they come. The time that a
	// command takes is counted from when it was due, not from when it could be
	// sent: a server that stalls is not spared the commands that it held up
	// ("coordinated omission").
	Rate float64
	Seed uint64 // of the choice of keys; may be 0
}

// Result is what was measured.
type Result struct {
	Operations int64 // answered in time, errors included
	Errors     int64 // answered with an error
	FirstError string
	Unanswered int64 // due, but not answered when the time was up
	Elapsed    time.Duration
	// Latency is in microseconds, to three digits, up to MaxLatency.
	Latency *hdrhistogram.Histogram
}

// MaxLatency is the longest that is told apart from longer ones.
const MaxLatency = time.Minute

// Rate is the answered commands per second.
func (r *Result) Rate() float64 { return float64(r.Operations) / r.Elapsed.Seconds() }

// Progress is what has been done so far; it may be read at any time.
type Progress struct{ operations atomic.Int64 }

// Operations have been answered.
func (p *Progress) Operations() int64 { return p.operations.Load() }

// Validate says what is wrong with a configuration, in the words of a user.
func (c *Config) Validate() error {
	for _, v := range []struct {
		what      string
		got       float64
		low, high float64
	}{
		{"connections", float64(c.Connections), 1, 50_000},
		{"depth", float64(c.Depth), 1, 10_000},
		{"keys", float64(c.Keys), 1, 1_000_000_000},
		{"duration in seconds", c.Duration.Seconds(), 0.001, 7 * 24 * 3600},
		{"rate", c.Rate, 0, 100_000_000},
	} {
		if v.got < v.low || v.got > v.high {
			return fmt.Errorf("%s %v: it is %v to %v", v.what, v.got, v.low, v.high)
		}
	}
	if len(c.Addrs) == 0 {
		return errors.New("there is no address to connect to")
	}
	if len(c.Prefix) > maxPrefixBytes {
		return fmt.Errorf("the prefix of keys has %d bytes, at most %d are allowed", len(c.Prefix), maxPrefixBytes)
	}
	return nil
}

// maxPrefixBytes keeps keys legal, with their number.
const maxPrefixBytes = 1000

// Run makes the load. progress may be nil. An error is of the connection: no
// connection could be made, or the server closed one. When ctx ends, the load
// does, and what was measured so far is answered without an error.
func Run(ctx context.Context, c Config, progress *Progress) (Result, error) {
	if err := c.Validate(); err != nil {
		return Result{}, err
	}
	if progress == nil {
		progress = &Progress{}
	}
	g := &generator{Config: c, progress: progress}
	for range 2 * runtime.GOMAXPROCS(0) {
		g.tallies = append(g.tallies, newTally())
	}
	conns, err := g.connect(ctx)
	defer func() {
		for _, conn := range conns {
			conn.Close()
		}
	}()
	if err != nil {
		return Result{}, err
	}
	return g.run(ctx, conns)
}

// generator is one Run.
type generator struct {
	Config
	progress *Progress
	tallies  []*tally
	began    time.Time
}

// tally is what some of the connections measure.
type tally struct {
	mu      sync.Mutex
	latency *hdrhistogram.Histogram
	result  Result
}

func newTally() *tally {
	return &tally{latency: hdrhistogram.New(1, MaxLatency.Microseconds(), 3)}
}

// dialers is how many connections are made at the same time: a listener's queue
// is short.
const dialers = 32

func (g *generator) connect(ctx context.Context) (conns []net.Conn, err error) {
	conns = make([]net.Conn, g.Connections)
	errs := make([]error, g.Connections)
	slots := make(chan struct{}, dialers)
	var all sync.WaitGroup
	for i := range conns {
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			conns[i], errs[i] = g.dial(ctx, g.Addrs[i%len(g.Addrs)])
		})
	}
	all.Wait()
	made := conns[:0]
	for _, c := range conns {
		if c != nil {
			made = append(made, c)
		}
	}
	for _, e := range errs {
		if e != nil {
			return made, fmt.Errorf("connection %d of %d: %w", len(made)+1, g.Connections, e)
		}
	}
	return made, nil
}

// dial makes a connection and speaks first: AUTH, or a PING, so that a server
// that refuses says so now.
func (g *generator) dial(ctx context.Context, addr string) (net.Conn, error) {
	d := net.Dialer{Timeout: 10 * time.Second}
	conn, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	command := appendCommand(nil, "PING")
	if g.User != "" {
		command = appendCommand(nil, "AUTH", g.User, g.Password)
	} else if g.Password != "" {
		command = appendCommand(nil, "AUTH", g.Password)
	}
	err = errors.Join(conn.SetDeadline(time.Now().Add(10*time.Second)), send(conn, command))
	if err == nil {
		var refusal []byte
		if refusal, err = readReply(bufio.NewReader(conn)); err == nil && refusal != nil {
			err = fmt.Errorf("the server says: %s", refusal)
		}
	}
	if err = errors.Join(err, conn.SetDeadline(time.Time{})); err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}

func send(conn net.Conn, b []byte) error {
	_, err := conn.Write(b)
	return err
}

// run lets all connections work until the time is up.
func (g *generator) run(ctx context.Context, conns []net.Conn) (Result, error) {
	g.began = time.Now()
	ctx, cancel := context.WithDeadline(ctx, g.began.Add(g.Duration))
	defer cancel()
	// The end of the time ends reads and writes that would wait longer.
	stop := context.AfterFunc(ctx, func() {
		for _, conn := range conns {
			_ = conn.SetDeadline(time.Unix(1, 0)) // a closed one has ended already
		}
	})
	defer stop()
	errs := make([]error, len(conns))
	var all sync.WaitGroup
	for i, conn := range conns {
		w := newWorker(g, i, conn)
		all.Go(func() {
			if g.Rate > 0 {
				errs[i] = w.openLoop(ctx)
			} else {
				errs[i] = w.closedLoop(ctx)
			}
			if errs[i] != nil {
				cancel() // one connection less would be another load
			}
		})
	}
	all.Wait()
	result := Result{Elapsed: time.Since(g.began), Latency: newTally().latency}
	for _, t := range g.tallies {
		result.Operations += t.result.Operations
		result.Errors += t.result.Errors
		result.Unanswered += t.result.Unanswered
		if result.FirstError == "" {
			result.FirstError = t.result.FirstError
		}
		result.Latency.Merge(t.latency)
	}
	return result, errors.Join(errs...)
}
