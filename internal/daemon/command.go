package daemon

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/felix-go/felix"
)

// Exit statuses of felix.
const (
	exitOK    = 0
	exitFail  = 1 // it could not start, or stopped for a reason
	exitUsage = 2 // a flag, variable or config file is wrong
)

// Main runs the felix command and answers its exit status. It returns when the
// broker has stopped: by SIGTERM, SIGINT, the end of ctx, or a failure.
func Main(ctx context.Context, args, environ []string, stdout, stderr io.Writer) int {
	status := exitOK
	root := &cobra.Command{
		Use:           "felix",
		Short:         "Felix: one number that many processes share, exact and durable",
		Long:          "felix runs a broker: durable, exact counters for many processes, over the Redis protocol, HTTP and gRPC.",
		SilenceErrors: true, SilenceUsage: true,
		CompletionOptions: cobra.CompletionOptions{HiddenDefaultCmd: true},
	}
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	root.AddCommand(
		brokerCommand("dev", "Run a broker to play with: loopback, data in ./.felix, caches default and stats", true, environ, &status),
		brokerCommand("serve", "Run a broker for real use: --data-dir is required", false, environ, &status),
		&cobra.Command{Use: "version", Short: "Print the version", Args: cobra.NoArgs, RunE: func(c *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(stdout, "felix", Version())
			return err
		}},
	)
	if err := root.ExecuteContext(ctx); err != nil {
		fmt.Fprintf(stderr, "felix: %s\n", oneLine(err))
		if status == exitOK {
			status = exitUsage // cobra did not come as far as running a command
		}
	}
	return status
}

func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }

func brokerCommand(name, short string, dev bool, environ []string, status *int) *cobra.Command {
	config := Config{Dev: dev}
	command := &cobra.Command{
		Use:   name,
		Short: short,
		Long: short + ".\n\nEvery flag can also be given as an environment variable (FELIX_ and its name in capitals, with _ for -)\n" +
			"or in the config file; a flag beats the environment, and that beats the file.\n" +
			"SIGTERM or Ctrl-C stops the broker after what was read is answered.",
		Args: cobra.NoArgs,
	}
	config.addFlags(command.Flags())
	command.RunE = func(c *cobra.Command, _ []string) error {
		if err := config.resolve(c.Flags(), getenvOf(environ)); err != nil {
			*status = exitUsage
			return err
		}
		if err := run(c.Context(), config, c.OutOrStdout(), c.ErrOrStderr()); err != nil {
			*status = exitFail
			return err
		}
		return nil
	}
	return command
}

// run starts a broker and stops it when it is asked to.
func run(ctx context.Context, c Config, stdout, stderr io.Writer) error {
	ctx, cancel := signal.NotifyContext(ctx, syscall.SIGTERM, os.Interrupt)
	defer cancel()
	setMemory(c, os.Getenv)
	log := newLogger(c, stderr)
	fatal := func(err error) {
		// Fail-stop: nothing may be acknowledged after this, so nothing else
		// in the process gets another turn.
		fmt.Fprintf(stderr, "felix: %s; the process ends here, so nothing doubtful is acknowledged\n", oneLine(advised(err)))
		os.Exit(exitFail)
	}
	d, err := Start(ctx, c, log, fatal)
	if err != nil {
		return err
	}
	if c.Dev {
		banner(stdout, c.DataDir, d.RESPAddr(), d.HTTPAddr())
	}
	var failure error
	select {
	case <-ctx.Done():
	case failure = <-d.Failed():
	}
	cancel() // a second signal ends the process at once
	stopCtx, stop := context.WithTimeout(context.WithoutCancel(ctx), c.StopTimeout)
	defer stop()
	if err := d.Stop(stopCtx); err != nil {
		log.Warn("the stop was not clean; nothing acknowledged is lost", "error", err)
		if failure == nil {
			failure = err
		}
	}
	return failure
}

// setMemory tells the garbage collector what the process may use. Records are
// in slabs without pointers, which cost it nothing, so it may wait long, as
// long as the sum of the budgets is kept: measured, 800 instead of 100 percent
// is worth 8 to 10 % at 50 × 64. GOGC and GOMEMLIMIT, where given, win.
func setMemory(c Config, getenv func(string) string) {
	const gcPercent, othersMiB = 800, 256
	if getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	if getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit((c.RecordMemory+c.BlockCache+c.InflightMemory+c.ConnMemory+othersMiB)<<20 + felix.MaxHTTPBytes)
	}
}

func newLogger(c Config, w io.Writer) *slog.Logger {
	o := &slog.HandlerOptions{Level: logLevels[c.LogLevel]}
	if c.LogFormat == "json" {
		return slog.New(slog.NewJSONHandler(w, o))
	}
	return slog.New(slog.NewTextHandler(w, o))
}

// banner tells a newcomer what there is and what to try, in commands that work
// whatever the listeners' addresses are.
func banner(w io.Writer, dataDir, respAddr, httpAddr string) {
	respHost, respPort := reachable(respAddr)
	redisCLI := "redis-cli -p " + respPort
	if respHost != "127.0.0.1" {
		redisCLI = "redis-cli -h " + respHost + " -p " + respPort
	}
	http := net.JoinHostPort(reachable(httpAddr))
	brokers := ""
	if http != "127.0.0.1:7380" {
		brokers = " --brokers " + shellWord(http)
	}
	fmt.Fprintf(w, `Felix is up. Its data is in %s; Ctrl-C stops it.

  Redis clients   %s
  HTTP and gRPC   http://%s

Try, in another terminal:

  %s INCR page-views
  go run ./cmd/felixctl%s counter add stats visits 1
  curl -s -H 'Content-Type: application/json' -d '{"cache":"stats","key":"visits"}' %s
`, dataDir, net.JoinHostPort(respHost, respPort), http, redisCLI, brokers, shellWord("http://"+http+"/felix.v1.CounterService/Get"))
}

// reachable is where clients on this machine reach a listener: one on every
// address is reached over loopback, and that of IPv4 is there everywhere.
func reachable(addr string) (host, port string) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return addr, "" // no address of a listener
	}
	if ip, err := netip.ParseAddr(host); err == nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	return host, port
}

// shellWord keeps shells from taking the brackets of an IPv6 address for a
// pattern.
func shellWord(s string) string {
	if strings.Contains(s, "[") {
		return "'" + s + "'"
	}
	return s
}
