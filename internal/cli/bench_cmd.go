package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/spf13/cobra"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/load"
)

// benchFlags are how a load is made.
type benchFlags struct {
	redis       []string
	respAddrs   []string
	user        string
	password    string
	connections int
	depth       int
	keys        string
	keyCount    int
	prefix      string
	duration    time.Duration
	warmup      time.Duration
	rate        float64
	seed        uint64
}

// benchJSON is what was measured, for --json. Latencies are in microseconds.
type benchJSON struct {
	Work        string             `json:"work"`
	Server      string             `json:"server"`
	Cache       string             `json:"cache,omitempty"`
	Connections int                `json:"connections"`
	Depth       int                `json:"depth"`
	Keys        string             `json:"keys"`
	KeyCount    int                `json:"keyCount"`
	AskedRate   float64            `json:"askedRate,omitempty"`
	Seconds     float64            `json:"seconds"`
	Operations  int64              `json:"operations,string"`
	PerSecond   float64            `json:"operationsPerSecond"`
	Errors      int64              `json:"errors,string"`
	FirstError  string             `json:"firstError,omitempty"`
	Unanswered  int64              `json:"unanswered,string"`
	Latency     map[string]float64 `json:"latencyMicros"`
}

// percentiles are those that are shown.
var percentiles = []struct {
	name string
	of   float64
}{{"p50", 50}, {"p90", 90}, {"p99", 99}, {"p99.9", 99.9}, {"max", 100}}

func (a *app) benchCommands() *cobra.Command {
	return a.group(&cobra.Command{
		Use:   "bench",
		Short: "Measure how fast a broker, or a Redis, answers",
		Long: `Makes load through the Redis door and prints how many commands a second were answered
and how long they took. The same load goes to any server that speaks the Redis
protocol with --redis, so that you can compare for yourself. It needs as much of the
machine as the server does: run it on another one if you can, and say which when you
tell others.`,
	}, a.benchWork("counter", load.Counter, "Add 1 to counters (INCR)",
		"The counters stay: their keys begin with --prefix. Use a cache of their own."),
		a.benchWork("get", load.Get, "Read counters (GET)",
			"A counter that does not exist is answered, too, but costs less: run bench counter before."))
}

func (a *app) benchWork(name string, work load.Work, short, long string) *cobra.Command {
	f := &benchFlags{}
	c := leaf(&cobra.Command{
		Use:   name + " [CACHE]",
		Short: short,
		Long: short + `. Without --rate each connection sends --depth commands, waits for all their
answers, and sends the next: what one can get out of the server. With --rate commands
are due at that rate, whatever the server does, and their latency is counted from when
they were due: a server that stalls is not spared the time for which it held up the
others ("coordinated omission"). ` + long,
		Example: "  felixctl bench " + name + " default --connections 50 --depth 16\n" +
			"  felixctl bench " + name + " default --rate 20000 --keys zipf --json\n" +
			"  felixctl bench " + name + " --redis 127.0.0.1:6379 --connections 50 --depth 16",
	}, 0, 1, func(cmd *cobra.Command, args []string) error {
		config, cache, err := a.benchConfig(cmd, f, work, args)
		if err != nil {
			return err
		}
		return a.bench(cmd.Context(), f, name, cache, config)
	})
	flags := c.Flags()
	flags.StringSliceVar(&f.redis, "redis", nil, "host:port,… of a Redis to measure instead of Felix")
	flags.StringSliceVar(&f.respAddrs, "resp-addr", nil, "host:port,… of brokers' Redis doors (default: the door of the broker that --brokers names)")
	flags.StringVar(&f.user, "user", "", "with --redis: the user, for AUTH")
	flags.StringVar(&f.password, "password", "", "the password or token, for AUTH")
	flags.IntVarP(&f.connections, "connections", "c", 50, "how many connections")
	flags.IntVarP(&f.depth, "depth", "P", 1, "how many commands a connection sends before it waits for answers")
	flags.StringVar(&f.keys, "keys", "uniform", "which keys: uniform, zipf (few of them often) or hot (one)")
	flags.IntVar(&f.keyCount, "key-count", 100_000, "how many different keys")
	flags.StringVar(&f.prefix, "prefix", "bench:", "what keys begin with")
	flags.DurationVarP(&f.duration, "duration", "d", 10*time.Second, "how long it is measured")
	flags.DurationVar(&f.warmup, "warmup", time.Second, "how long the same load is made before, without being measured")
	flags.Float64Var(&f.rate, "rate", 0, "commands a second that are due, of all connections together (default: as fast as they are answered)")
	flags.Uint64Var(&f.seed, "seed", 1, "of the choice of keys")
	return c
}

// benchConfig is the load that flags ask for, and the cache if it is for Felix.
func (a *app) benchConfig(cmd *cobra.Command, f *benchFlags, work load.Work, args []string) (c load.Config, cache string, err error) {
	c = load.Config{Addrs: f.redis, User: f.user, Password: f.password, Work: work, Connections: f.connections, Depth: f.depth,
		Keys: f.keyCount, Prefix: f.prefix, Duration: f.duration, Rate: f.rate, Seed: f.seed}
	switch f.keys {
	case "uniform":
	case "zipf":
		c.Spread = load.Zipf
	case "hot":
		c.Keys = 1
	default:
		return c, "", felix.Errorf(felix.InvalidArgument, "--keys %s: it is uniform, zipf or hot", printable(f.keys))
	}
	if f.warmup < 0 {
		return c, "", felix.Errorf(felix.InvalidArgument, "--warmup %v: it cannot be negative", f.warmup)
	}
	if len(f.redis) > 0 {
		if len(args) > 0 || len(f.respAddrs) > 0 {
			return c, "", felix.Errorf(felix.InvalidArgument, "--redis measures a Redis, which has no caches: leave CACHE and --resp-addr out")
		}
	} else if cache, err = a.benchFelix(cmd, f, &c, args); err != nil {
		return c, "", err
	}
	if err := c.Validate(); err != nil {
		return c, "", felix.Errorf(felix.InvalidArgument, "%v", err)
	}
	return c, cache, nil
}

// benchFelix fills in where Felix is and which cache is meant.
func (a *app) benchFelix(cmd *cobra.Command, f *benchFlags, c *load.Config, args []string) (cache string, err error) {
	if f.user != "" {
		return "", felix.Errorf(felix.InvalidArgument, "--user is for --redis: in Felix --tenant, --namespace and CACHE say who asks for what")
	}
	broker, s, err := a.connect(cmd)
	if err != nil {
		return "", err
	}
	defer broker.Close()
	scope := felix.Scope{Tenant: s.tenant, Namespace: s.namespace, Cache: felix.DefaultCache}
	if len(args) == 1 {
		scope.Cache = args[0]
	}
	if err := scope.Validate(); err != nil {
		return "", err
	}
	if c.User = scope.String(); c.Password == "" {
		c.Password = "none"
	}
	if c.Addrs = f.respAddrs; len(c.Addrs) > 0 {
		return scope.String(), nil
	}
	nodes, err := broker.Nodes(cmd.Context())
	if err != nil {
		return "", err
	}
	for _, n := range nodes {
		if n.Here && n.RESPAddr != "" {
			c.Addrs = []string{n.RESPAddr}
			return scope.String(), nil
		}
	}
	return "", felix.Errorf(felix.InvalidArgument, "the broker does not say where its Redis door is: give --resp-addr")
}

// bench makes the load and prints what was measured.
func (a *app) bench(ctx context.Context, f *benchFlags, name, cache string, c load.Config) error {
	if f.warmup > 0 {
		warm := c
		warm.Duration = f.warmup
		if _, err := load.Run(ctx, warm, nil); err != nil {
			return benchFailed(err)
		}
	}
	progress := &load.Progress{}
	stop := a.showProgress(progress)
	r, err := load.Run(ctx, c, progress)
	stop()
	if err != nil {
		return benchFailed(err)
	}
	j := benchJSON{Work: name, Server: strings.Join(c.Addrs, ","), Cache: cache, Connections: c.Connections, Depth: c.Depth, Keys: f.keys,
		KeyCount: c.Keys, AskedRate: c.Rate, Seconds: r.Elapsed.Seconds(), Operations: r.Operations, PerSecond: r.Rate(), Errors: r.Errors,
		FirstError: r.FirstError, Unanswered: r.Unanswered, Latency: latencies(r.Latency)}
	if err := a.answer(j, func(w io.Writer) { j.text(w) }); err != nil {
		return err
	}
	if r.Errors > 0 {
		return felix.Errorf(felix.Unavailable, "%d of %d commands were answered with an error, the first: %s", r.Errors, r.Operations, r.FirstError)
	}
	return nil
}

// benchFailed gives an error of the load the code of a broker that cannot be
// reached.
func benchFailed(err error) error {
	return felix.Errorf(felix.Unavailable, "%s", strings.ReplaceAll(err.Error(), "\n", "; "))
}

func latencies(h *hdrhistogram.Histogram) map[string]float64 {
	all := map[string]float64{"mean": h.Mean()}
	for _, p := range percentiles {
		all[p.name] = float64(h.ValueAtPercentile(p.of))
	}
	return all
}

func (j *benchJSON) text(w io.Writer) {
	target := j.Server
	if j.Cache != "" {
		target += ", cache " + j.Cache
	}
	keys := fmt.Sprintf("%d keys (%s)", j.KeyCount, j.Keys)
	if j.KeyCount == 1 {
		keys = "one hot key"
	}
	fmt.Fprintf(w, "%s on %s: %d connections × %d deep, %s\n", j.Work, printable(target), j.Connections, j.Depth, keys)
	fmt.Fprintf(w, "  %.0f commands a second; %d in %.1f s, %d errors\n", j.PerSecond, j.Operations, j.Seconds, j.Errors)
	if j.AskedRate > 0 {
		fmt.Fprintf(w, "  asked for %.0f a second: %d were due and not answered\n", j.AskedRate, j.Unanswered)
	}
	line := "  latency:"
	for _, p := range percentiles {
		line += fmt.Sprintf("  %s %s", p.name, time.Duration(j.Latency[p.name]*float64(time.Microsecond)))
	}
	fmt.Fprintln(w, line)
}

// showProgress tells somebody who watches how far a load is, once a second, until
// stop is called.
func (a *app) showProgress(p *load.Progress) (stop func()) {
	screen, ok := a.errOut.(*os.File)
	if !ok || !isTerminal(screen) || a.flags.json {
		return func() {}
	}
	ended, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		ticker := time.NewTicker(time.Second)
		defer ticker.Stop()
		before := int64(0)
		for {
			select {
			case <-ended:
				fmt.Fprint(screen, "\r\x1b[K")
				return
			case <-ticker.C:
				now := p.Operations()
				fmt.Fprintf(screen, "\r\x1b[K%d commands a second", now-before)
				before = now
			}
		}
	}()
	return func() { close(ended); <-done }
}
