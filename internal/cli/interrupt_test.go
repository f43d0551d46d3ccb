package cli_test

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// TestInterrupt: Ctrl-C while an add is under way ends felixctl, which says
// that the add may have been applied. It runs as a process of its own, in front
// of a broker that never answers.
func TestInterrupt(t *testing.T) {
	arrived := make(chan struct{}, 1)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // net/http watches for a hang-up only after the body
		arrived <- struct{}{}
		<-r.Context().Done()
	}))
	defer server.Close()
	cmd := exec.CommandContext(t.Context(), "felixctl", "counter", "add", "c", "k", "--timeout", "1h", "--brokers", server.Listener.Addr().String())
	var errOut bytes.Buffer
	cmd.Stderr = &errOut
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	<-arrived
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	err := cmd.Wait()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 3 {
		t.Errorf("%v", err)
	}
	if !strings.HasPrefix(errOut.String(), "felixctl: outcome_unknown: ") || !strings.Contains(errOut.String(), "interrupted") {
		t.Errorf("%q", errOut.String())
	}
}

// TestClosedPipe: a reader that has enough ends a long list quietly.
func TestClosedPipe(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	_ = r.Close()
	defer w.Close()
	cmd := exec.CommandContext(t.Context(), "felixctl", "--help")
	var errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = w, &errOut
	if err := cmd.Run(); err == nil || errOut.Len() > 0 {
		t.Errorf("%v, %q", err, errOut.String())
	}
}
