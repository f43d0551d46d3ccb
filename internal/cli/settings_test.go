package cli

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/httpapi"
)

// refusing is a Service that answers every search for a cache with err, and
// remembers what was searched.
type refusing struct {
	felix.Service
	err   error
	mu    sync.Mutex
	scope felix.Scope
}

func (r *refusing) Cache(_ context.Context, scope felix.Scope) (felix.Cache, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.scope = scope
	return nil, r.err
}

func (r *refusing) last() felix.Scope {
	r.mu.Lock()
	defer r.mu.Unlock()
	defer func() { r.scope = felix.Scope{} }()
	return r.scope
}

func startService(t *testing.T, service felix.Service) string {
	t.Helper()
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	server := httpapi.NewServer(httpapi.Handler(service, httpapi.Options{Log: log}), log)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- server.Serve(listener) }()
	t.Cleanup(func() {
		_ = server.Close()
		<-done
	})
	return listener.Addr().String()
}

// felixctl runs one command in this process.
func felixctl(t *testing.T, env []string, args ...string) (exit int, out, errOut string) {
	t.Helper()
	var o, e bytes.Buffer
	exit = run(t.Context(), args, strings.NewReader(""), &o, &e, env)
	return exit, o.String(), e.String()
}

// TestPrecedence: flag, environment, context, default; each setting apart.
func TestPrecedence(t *testing.T) {
	service := &refusing{err: felix.Errorf(felix.CacheNotFound, "none")}
	live := startService(t, service)
	config := filepath.Join(t.TempDir(), "contexts.json")
	base := []string{"FELIXCTL_CONFIG=" + config}
	for _, args := range [][]string{
		{"context", "add", "full", "--brokers", live, "--tenant", "ct", "-n", "cn"},
		{"context", "add", "part", "--tenant", "pt"},
		{"context", "use", "full"},
	} {
		if exit, _, errOut := felixctl(t, base, args...); exit != 0 {
			t.Fatal(errOut)
		}
	}
	for _, c := range []struct {
		env, flags        string
		tenant, namespace string
	}{
		{"", "", "ct", "cn"},
		{"FELIX_AUTH_TENANT=et", "", "et", "cn"},
		{"FELIX_NAMESPACE=en", "", "ct", "en"},
		{"FELIX_NAMESPACE=", "", "ct", "cn"},
		{"FELIX_AUTH_TENANT=et FELIX_NAMESPACE=en", "--tenant ft", "ft", "en"},
		{"FELIX_AUTH_TENANT=et FELIX_NAMESPACE=en", "-n fn", "et", "fn"},
		{"", "--tenant ft --namespace fn", "ft", "fn"},
		{"", "-nfn", "ct", "fn"},
		{"FELIX_BROKERS=" + live, "--context part", "pt", "default"},
		{"FELIX_BROKERS=" + live + " FELIX_CONTEXT=part", "", "pt", "default"},
		{"FELIX_CONTEXT=part", "--context full", "ct", "cn"},
		{"FELIX_BROKERS=127.0.0.1:1", "--brokers " + live, "ct", "cn"},
		{"FELIX_BROKERS=127.0.0.1:1 FELIX_TIMEOUT=1ns", "--timeout 5s --brokers=" + live, "ct", "cn"},
	} {
		env := append(strings.Fields(c.env), base...)
		args := append(strings.Fields(c.flags), "counter", "get", "c", "k")
		exit, _, errOut := felixctl(t, env, args...)
		want := felix.Scope{Tenant: c.tenant, Namespace: c.namespace, Cache: "c"}
		if got := service.last(); exit != 5 || got != want {
			t.Errorf("%q %q: exit %d, %v, want %v; %s", c.env, c.flags, exit, got, want, errOut)
		}
	}
	// What beats the context is also not asked of it.
	if exit, _, errOut := felixctl(t, append(base, "FELIX_BROKERS=127.0.0.1:1"), "counter", "get", "c", "k"); exit != 3 || !strings.Contains(errOut, "127.0.0.1:1") {
		t.Errorf("FELIX_BROKERS does not beat the context: exit %d, %s", exit, errOut)
	}
	if exit, _, errOut := felixctl(t, append(base, "FELIX_TIMEOUT=1ns"), "counter", "get", "c", "k"); exit != 3 {
		t.Errorf("FELIX_TIMEOUT is not used: exit %d, %s", exit, errOut)
	}
	if exit, _, errOut := felixctl(t, nil, "counter", "get", "c", "k", "--context", "full"); exit != 2 {
		t.Errorf("without a place for contexts: exit %d, %s", exit, errOut)
	}
}

// TestContextPath: the XDG rules.
func TestContextPath(t *testing.T) {
	for _, c := range []struct {
		env  []string
		want string
	}{
		{[]string{"HOME=/h"}, "/h/.config/felix/contexts.json"},
		{[]string{"HOME=/h", "XDG_CONFIG_HOME=/x"}, "/x/felix/contexts.json"},
		{[]string{"HOME=/h", "XDG_CONFIG_HOME=relative"}, "/h/.config/felix/contexts.json"},
		{[]string{"HOME=/h", "XDG_CONFIG_HOME=/x", "FELIXCTL_CONFIG=/f"}, "/f"},
		{[]string{"HOME=/h", "FELIX_CONFIG=/etc/felix.toml"}, "/h/.config/felix/contexts.json"}, // the broker's
		{nil, ""},
	} {
		a := &app{env: environment(c.env)}
		if got := a.contextPath(); got != c.want {
			t.Errorf("%q: %q, want %q", c.env, got, c.want)
		}
	}
}

// TestEveryCodeExits: the exit status and the JSON of each code of a broker.
func TestEveryCodeExits(t *testing.T) {
	for _, code := range felix.Codes() {
		address := startService(t, &refusing{err: felix.Errorf(code, "two\nlines \x1b[2J")})
		exit, out, errOut := felixctl(t, nil, "counter", "add", "c", "k", "--brokers", address)
		if exit != code.Info().Exit || out != "" || !strings.HasPrefix(errOut, "felixctl: "+code.String()+": ") {
			t.Errorf("%s: exit %d, %q, %q", code, exit, out, errOut)
		}
		if strings.Count(errOut, "\n") != 1 || strings.Contains(errOut, "\x1b") {
			t.Errorf("%s: not one safe line: %q", code, errOut)
		}
		exit, out, errOut = felixctl(t, nil, "--json", "counter", "add", "c", "k", "--brokers", address)
		if exit != code.Info().Exit || out != "" || !strings.Contains(errOut, `"code":"`+code.String()+`","exit":`) || strings.Count(errOut, "\n") != 1 {
			t.Errorf("%s: exit %d, %q, %q", code, exit, out, errOut)
		}
	}
}

// TestErrorsAsAsked: an error is JSON exactly where the answer would be.
func TestErrorsAsAsked(t *testing.T) {
	for args, want := range map[string]bool{
		"--json":                       true,
		"--json=true":                  true,
		"--json=TRUE":                  true,
		"--json=True":                  true,
		"--json=t":                     true,
		"--json=T":                     true,
		"--json=1":                     true,
		"--json=false":                 false,
		"--json=F":                     false,
		"--json=0":                     false,
		"--json --json=false":          false,
		"--json=false --json":          true,
		"--json=perhaps":               false,
		"--context --json":             false, // the name of a context
		"--context=x --json":           true,
		"--timeout=-1s --json":         true,
		"--yes --json":                 true,
		"-y --json":                    true,
		"-n --json":                    false,
		"-yn --json":                   false,
		"--no-such-flag --json":        true,
		"-- --json":                    false,
		"--json -- --json=false":       true,
		"--jsonx":                      false,
		"-3 --json":                    true,
		"--key-encoding nope --json=t": true,
	} {
		// No such context, or a bad flag: all of these fail.
		exit, out, errOut := felixctl(t, []string{"FELIX_CONTEXT=none"}, append([]string{"counter", "get", "c", "k"}, strings.Fields(args)...)...)
		if exit != 2 || out != "" || strings.HasPrefix(errOut, "{") != want {
			t.Errorf("%s: exit %d, %q, %q; want JSON: %v", args, exit, out, errOut, want)
		}
	}
}

// TestKeysThatAreNoText: raw bytes are a key as they are, or refused; another
// key is never touched in their place.
func TestKeysThatAreNoText(t *testing.T) {
	service := &refusing{err: felix.Errorf(felix.CacheNotFound, "none")}
	live := startService(t, service)
	for _, command := range []string{"add c K 1", "get c K", "set c K 1", "del c K --yes", "ls c K"} {
		args := append([]string{"counter", "--brokers", live}, strings.Fields(command)...)
		for i := range args {
			if args[i] == "K" {
				args[i] = "a\xff"
			}
		}
		exit, _, errOut := felixctl(t, nil, append(args, "--key-encoding", "escaped")...)
		if exit != 2 || !strings.Contains(errOut, "not UTF-8") || service.last() != (felix.Scope{}) {
			t.Errorf("%s: exit %d, %q", command, exit, errOut)
		}
		if exit, _, errOut := felixctl(t, nil, args...); exit != 5 || service.last().Cache != "c" {
			t.Errorf("%s, as text: exit %d, %q", command, exit, errOut)
		}
	}
}

// uncounted is a Service with a cache whose records cannot be counted.
type uncounted struct{ felix.Service }

func (uncounted) CacheInfo(_ context.Context, scope felix.Scope) (felix.CacheInfo, error) {
	return felix.CacheInfo{Scope: scope, CountsUnknown: true}, nil
}

func (u uncounted) Caches(ctx context.Context, tenant, namespace string) ([]felix.CacheInfo, error) {
	lost, err := u.CacheInfo(ctx, felix.Scope{Tenant: tenant, Namespace: namespace, Cache: "lost"})
	empty := felix.CacheInfo{Scope: felix.Scope{Tenant: tenant, Namespace: namespace, Cache: "none"}}
	return []felix.CacheInfo{lost, empty}, err
}

// TestUnknownCounts: what is not known is not shown as 0, through the whole way
// from a broker to its user.
func TestUnknownCounts(t *testing.T) {
	live := startService(t, uncounted{})
	for args, want := range map[string][]string{
		"cache ls --json":        {`"counters":null,"values":null,"keys":null`, `"counters":"0","values":"0","keys":"0"`},
		"cache ls":               {"lost 0 quorum 0/0 - -", "none 0 quorum 0/0 0 0"},
		"cache info lost --json": {`"counters":null,"values":null,"keys":null`},
		"cache info lost":        {"counters - values - keys -"},
	} {
		exit, out, errOut := felixctl(t, nil, append(strings.Fields(args), "--brokers", live)...)
		for _, words := range want {
			if exit != 0 || !strings.Contains(strings.Join(strings.Fields(out), " "), words) {
				t.Errorf("%s: exit %d, %q, %q; want %s", args, exit, out, errOut, words)
			}
		}
	}
	resp, err := http.Post("http://"+live+"/felix.v1.CacheService/Get", "application/json", strings.NewReader(`{"cache":"lost"}`))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if text, err := io.ReadAll(resp.Body); err != nil || !strings.Contains(string(text), `"lost"`) || strings.Contains(string(text), "counters") {
		t.Errorf("over HTTP: %s, %v", text, err)
	}
}

type failingWriter struct{ err error }

func (w failingWriter) Write([]byte) (int, error) { return 0, w.err }

// TestUnwritableAnswer: nobody reads on, or the disk is full.
func TestUnwritableAnswer(t *testing.T) {
	var errOut bytes.Buffer
	for _, args := range [][]string{{"version"}, {"--help"}, {"context", "ls", "--json"}} {
		if exit := run(t.Context(), args, nil, failingWriter{syscall.EPIPE}, &errOut, nil); exit != 141 || errOut.Len() > 0 {
			t.Errorf("%q to a closed pipe: exit %d, %q", args, exit, errOut.String())
		}
	}
	if exit := run(t.Context(), []string{"version"}, nil, failingWriter{errors.New("disk full")}, &errOut, nil); exit != 1 || !strings.Contains(errOut.String(), "disk full") {
		t.Errorf("exit %d, %q", exit, errOut.String())
	}
}

// TestContextsThatCannotBeWritten keeps the old file and leaves no other.
func TestContextsThatCannotBeWritten(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "contexts.json")
	if err := os.Mkdir(path, 0o700); err != nil {
		t.Fatal(err)
	}
	a := &app{env: map[string]string{"FELIXCTL_CONFIG": path}}
	if err := a.saveContexts(contextFile{}); felix.AsError(err).Code != felix.Internal || err == nil {
		t.Errorf("%v", err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 {
		t.Errorf("%v, %v", entries, err)
	}
}
