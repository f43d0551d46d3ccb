package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/peer"
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
		fmt.Fprintf(stderr, "felix: %s\n", lastWords(err))
		os.Exit(exitFail)
	}
	d, err := start(ctx, c, log, fatal, stdout)
	if err != nil && ctx.Err() != nil {
		log.Info("stopped before the broker was up", "error", err)
		return nil // as asked: it may have waited for others
	}
	if err != nil {
		return err
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

// lastWords are why a broker ends that cannot go on. One that the others have
// refused for good says what they have said.
func lastWords(err error) string {
	var refused *peer.Refusal
	if errors.As(err, &refused) {
		return oneLine(err)
	}
	return oneLine(advised(err)) + "; the process ends here, so nothing doubtful is acknowledged"
}

// brokers are one, or several.
type brokers interface {
	Failed() <-chan error
	Stop(ctx context.Context) error
}

// start starts what c asks for, and tells a newcomer about it.
func start(ctx context.Context, c Config, log *slog.Logger, fatal func(error), stdout io.Writer) (brokers, error) {
	if c.Nodes > 1 {
		f, err := StartFleet(ctx, c, log, fatal)
		if err != nil {
			return nil, err
		}
		fleetBanner(stdout, c.DataDir, f.Daemons())
		return f, nil
	}
	d, err := Start(ctx, c, log, fatal)
	if err != nil {
		return nil, err
	}
	if c.Dev {
		banner(stdout, c.DataDir, d.RESPAddr(), d.HTTPAddr())
	}
	return d, nil
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
		debug.SetMemoryLimit(int64(c.Nodes) * ((c.RecordMemory+c.BlockCache+c.InflightMemory+c.ConnMemory+othersMiB)<<20 + felix.MaxHTTPBytes))
	}
}

func newLogger(c Config, w io.Writer) *slog.Logger {
	o := &slog.HandlerOptions{Level: logLevels[c.LogLevel]}
	if c.LogFormat == "json" {
		return slog.New(slog.NewJSONHandler(w, o))
	}
	return slog.New(slog.NewTextHandler(w, o))
}
