// Package clitest runs felixctl's scripts (internal/cli/testdata), in front of
// whatever broker a test has: the model, or a real one. A script leaves nothing
// behind that disturbs another: each has a namespace of its own.
package clitest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/felix-go/felix/internal/cli"
)

// Main is the TestMain of a package that calls Run: scripts run the test's own
// binary as felixctl. It does not return.
func Main(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"felixctl": func() { os.Exit(cli.Main(os.Args[1:], os.Stdin, os.Stdout, os.Stderr, os.Environ())) },
	})
}

// BrokerScripts is the directory of the scripts that any broker must pass.
func BrokerScripts() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Join(filepath.Dir(file), "..", "testdata", "broker")
}

// Run runs every script of a directory. brokers is what FELIX_BROKERS is to be;
// empty leaves it unset. Scripts have one command more than testscript's:
//
//	exits N felixctl …     the command must end with exit status N
func Run(t *testing.T, dir, brokers string) {
	testscript.Run(t, testscript.Params{
		Dir: dir,
		Setup: func(env *testscript.Env) error {
			name := strings.TrimPrefix(filepath.Base(env.WorkDir), "script-")
			env.Setenv("FELIX_NAMESPACE", "script-"+name)
			env.Setenv("NAMESPACE", "script-"+name)
			env.Setenv("XDG_CONFIG_HOME", filepath.Join(env.WorkDir, "config"))
			env.Setenv("BROKERS", brokers)
			if brokers != "" {
				env.Setenv("FELIX_BROKERS", brokers)
			}
			return nil
		},
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){"exits": exits},
	})
}

func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits N command [arguments]")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	err = ts.Exec(args[1], args[2:]...)
	got := 0
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		got = exit.ExitCode()
	} else {
		ts.Check(err)
	}
	if got != want {
		fmt.Fprintf(ts.Stderr(), "exit status %d, want %d\n", got, want)
		ts.Fatalf("exit status %d, want %d", got, want)
	}
}
