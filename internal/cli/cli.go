// Package cli is felixctl, the command line of Felix: it reads flags, the
// environment and contexts, calls brokers through package client, and prints
// answers for people or, with --json, for programs.
package cli

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/client"
)

const (
	// exitLocal is for failures on this machine, such as a full disk.
	exitLocal = 1
	// exitRefused is for what was answered, but not applied: it is no error, and
	// has the exit status of those that refuse.
	exitRefused = 4
	// exitPipe is what a shell shows of a command that SIGPIPE ended, which
	// is how most commands end when nobody reads on.
	exitPipe = 128 + int(syscall.SIGPIPE)
)

// Main runs felixctl and answers its exit status: 0, or that of the error's
// code (see felix.Code). environ is as os.Environ gives it. SIGINT and SIGTERM
// end the request under way: a change that was sent is then outcome_unknown. A
// second signal ends the process at once.
func Main(args []string, in io.Reader, out, errOut io.Writer, environ []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop)
	return run(ctx, args, in, out, errOut, environ)
}

// run is Main without signals.
func run(ctx context.Context, args []string, in io.Reader, out, errOut io.Writer, environ []string) int {
	a := &app{in: in, out: bufio.NewWriter(out), errOut: errOut, env: environment(environ)}
	if file, ok := out.(*os.File); ok {
		a.terminal = isTerminal(file)
	}
	root := a.rootCommand()
	root.SetArgs(normalize(root, args))
	err := root.ExecuteContext(ctx)
	if flushErr := a.out.Flush(); flushErr != nil {
		if errors.Is(flushErr, syscall.EPIPE) {
			return exitPipe
		}
		if err == nil {
			err = felix.Errorf(felix.Internal, "the command was done, but its answer could not be written: %v", flushErr)
		}
	}
	switch {
	case err == nil:
		return 0
	case errors.Is(err, errNotApplied):
		return exitRefused
	}
	return a.fail(err, wantsJSON(root, args))
}

// app is one run of felixctl.
type app struct {
	in     io.Reader
	out    *bufio.Writer
	errOut io.Writer
	env    map[string]string
	// terminal says that out is one: what it shows must be safe.
	terminal bool
	flags    globalFlags
}

// environment keeps what is set and not empty.
func environment(environ []string) map[string]string {
	env := make(map[string]string, len(environ))
	for _, entry := range environ {
		if name, value, _ := strings.Cut(entry, "="); value != "" {
			env[name] = value
		}
	}
	return env
}

// fail prints an error as one line and answers the exit status. Errors that
// have no code are cobra's: something about the command line is wrong.
func (a *app) fail(err error, asJSON bool) int {
	var e *felix.Error
	if !errors.As(err, &e) {
		e = felix.Errorf(felix.InvalidArgument, "%v", err)
	}
	message := e.Message
	if errors.Is(err, client.ErrNoBroker) {
		message += "; start one with `felix dev` or name others with --brokers"
	}
	exit := e.Code.Info().Exit
	if asJSON {
		line, err := marshal(struct {
			Error string `json:"error"`
			Code  string `json:"code"`
			Exit  int    `json:"exit"`
		}{message, e.Code.String(), exit})
		if err != nil {
			line = []byte(`{"error":"the error cannot be shown","code":"internal","exit":1}`)
			exit = exitLocal
		}
		fmt.Fprintf(a.errOut, "%s\n", line)
		return exit
	}
	fmt.Fprintf(a.errOut, "felixctl: %s: %s\n", e.Code, printable(message))
	return exit
}

// wantsJSON looks for --json as parsing would: an error of parsing must be shown
// as asked, too.
func wantsJSON(root *cobra.Command, args []string) (asked bool) {
	known := collectFlags(root)
	for i := 0; i < len(args) && args[i] != "--"; i++ {
		name, value, given := strings.Cut(args[i], "=")
		switch {
		case name == "--json" && !given:
			asked = true
		case name == "--json":
			if yes, err := strconv.ParseBool(value); err == nil {
				asked = yes
			}
		case strings.HasPrefix(args[i], "-") && known.wantsValue(args[i]):
			i++ // it is a value, whatever it looks like
		}
	}
	return asked
}

// warn tells people something beside the answer. With --json the answer itself
// carries it.
func (a *app) warn(message string) {
	if message != "" && !a.flags.json {
		fmt.Fprintf(a.errOut, "felixctl: warning: %s\n", printable(message))
	}
}

// errNotApplied is how a command ends that was answered, but not applied: the answer
// is printed already.
var errNotApplied = errors.New("answered, but not applied")

// answerUnless prints an answer. If the request was refused, which is no error,
// why goes to standard error and the exit status is that of refusals.
func (a *app) answerUnless(refused bool, why string, v any, text func(w io.Writer)) error {
	if err := a.answer(v, text); err != nil || !refused {
		return err
	}
	a.warn(why)
	return errNotApplied
}

// answer prints v as one JSON object with --json, and otherwise calls text.
func (a *app) answer(v any, text func(w io.Writer)) error {
	if !a.flags.json {
		text(a.out)
		return nil
	}
	line, err := marshal(v)
	if err != nil {
		return felix.Errorf(felix.Internal, "the answer cannot be shown: %v", err)
	}
	a.out.Write(line)
	a.out.WriteByte('\n')
	return nil
}

// marshal is JSON in one line that is safe on a terminal: characters that do
// not print are escaped, which JSON allows in strings, and only there can they
// be.
func marshal(v any) ([]byte, error) {
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return escapeJSON(strings.TrimSuffix(b.String(), "\n")), nil
}
