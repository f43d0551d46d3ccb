package daemon

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/felix-go/felix/internal/cli/clitest"
)

// actAsFelix makes this test binary be the felix command: the brokers of these
// tests are real processes, with the race detector where the tests have it.
const actAsFelix = "FELIX_DAEMON_TEST_IS_FELIX"

func TestMain(m *testing.M) {
	if os.Getenv(actAsFelix) != "" {
		os.Exit(Main(context.Background(), os.Args[1:], os.Environ(), os.Stdout, os.Stderr))
	}
	clitest.Main(m)
}

// patience is how long a test waits for what should take milliseconds.
const patience = 60 * time.Second

// process is a felix that runs.
type process struct {
	t      *testing.T
	cmd    *exec.Cmd
	up     chan struct{} // closed when the broker is up or its log has ended
	ended  chan struct{} // closed when the process has
	status int           // exit status, or minus the signal; valid once ended is closed

	mu         sync.Mutex
	stdout     strings.Builder
	stderr     strings.Builder
	resp, http string
}

// launch starts the command; the test's end kills it.
func launch(t *testing.T, args ...string) *process {
	t.Helper()
	p := &process{t: t, cmd: exec.Command(os.Args[0], args...), up: make(chan struct{}), ended: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), actAsFelix+"=1")
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	log, err := p.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var readers sync.WaitGroup
	readers.Go(func() { p.read(bufio.NewScanner(out), &p.stdout) })
	readers.Go(func() {
		p.read(bufio.NewScanner(log), &p.stderr)
		p.isUp("", "")
	})
	go func() {
		readers.Wait()
		err := p.cmd.Wait()
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			p.status = exit.ExitCode()
			if w := exit.Sys().(syscall.WaitStatus); w.Signaled() {
				p.status = -int(w.Signal())
			}
		}
		close(p.ended)
	}()
	t.Cleanup(func() {
		p.signal(syscall.SIGKILL)
		<-p.ended
		if s := p.log(); strings.Contains(s, "DATA RACE") {
			t.Errorf("the broker has a data race:\n%s", s)
		}
	})
	return p
}

func (p *process) read(lines *bufio.Scanner, into *strings.Builder) {
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		p.mu.Lock()
		into.WriteString(lines.Text() + "\n")
		p.mu.Unlock()
		var line struct{ Msg, Resp_addr, Http_addr string }
		if json.Unmarshal(lines.Bytes(), &line) == nil && line.Msg == "broker is up" {
			p.isUp(line.Resp_addr, line.Http_addr)
		}
	}
}

// isUp is called by the reader of the log only.
func (p *process) isUp(resp, http string) {
	select {
	case <-p.up:
	default:
		p.resp, p.http = resp, http
		close(p.up)
	}
}

func (p *process) signal(s syscall.Signal) {
	// An error is a process that has ended already.
	_ = p.cmd.Process.Signal(s)
}

// log is what the process has written to standard error.
func (p *process) log() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stderr.String()
}

func (p *process) output() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stdout.String()
}

// wait waits for the end of the process and answers its status.
func (p *process) wait() int {
	p.t.Helper()
	select {
	case <-p.ended:
		return p.status
	case <-time.After(patience):
		p.t.Fatalf("the process does not end; its log:\n%s", p.log())
		return 0
	}
}

// stop asks the broker to stop and checks that it does so cleanly.
func (p *process) stop() {
	p.t.Helper()
	p.signal(syscall.SIGTERM)
	if status := p.wait(); status != 0 {
		p.t.Fatalf("exit status %d after SIGTERM; the log:\n%s", status, p.log())
	}
}

// serve starts a broker on free ports and waits until it is up.
func serve(t *testing.T, dir string, args ...string) *process {
	t.Helper()
	return running(t, "serve", dir, args...)
}

// dev is serve, with `felix dev`.
func dev(t *testing.T, dir string, args ...string) *process {
	t.Helper()
	return running(t, "dev", dir, args...)
}

func running(t *testing.T, command, dir string, args ...string) *process {
	t.Helper()
	p := launch(t, append([]string{command, "--data-dir", dir, "--resp-addr", "127.0.0.1:0", "--http-addr", "127.0.0.1:0",
		"--peer-addr", "127.0.0.1:0", "--log-format", "json"}, args...)...)
	select {
	case <-p.up:
	case <-time.After(patience):
	}
	if p.resp == "" {
		p.t.Fatalf("the broker does not start; its log:\n%s", p.log())
	}
	return p
}

// refuses starts a broker that must not start: one line on standard error, and
// this exit status. It answers the line, without "felix: ".
func refuses(t *testing.T, status int, args ...string) string {
	t.Helper()
	p := launch(t, args...)
	got := p.wait()
	line, isOne := strings.CutPrefix(p.log(), "felix: ")
	if got != status || !isOne || strings.Count(line, "\n") != 1 || p.output() != "" {
		t.Fatalf("felix %q: exit status %d, want %d, and one line\nstandard error:\n%s\nstandard output:\n%s", args, got, status, p.log(), p.output())
	}
	return strings.TrimSpace(line)
}

// serveArgs are those of a broker on free ports.
func serveArgs(dir string) []string {
	return []string{"serve", "--data-dir", dir, "--resp-addr", "127.0.0.1:0", "--http-addr", "127.0.0.1:0", "--peer-addr", "127.0.0.1:0"}
}

// conn is a Redis connection.
type conn struct {
	net.Conn
	in *bufio.Reader
}

func dial(t *testing.T, addr string) *conn {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	return &conn{Conn: c, in: bufio.NewReader(c)}
}

// call sends one command and answers the reply's first line, without its end.
func (c *conn) call(t *testing.T, words ...string) string {
	t.Helper()
	if _, err := c.Write([]byte(request(words...))); err != nil {
		t.Fatal(err)
	}
	line, err := c.in.ReadString('\n')
	if err != nil {
		t.Fatalf("%q: %v", words, err)
	}
	return strings.TrimSuffix(line, "\r\n")
}

func request(words ...string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "*%d\r\n", len(words))
	for _, w := range words {
		fmt.Fprintf(&b, "$%d\r\n%s\r\n", len(w), w)
	}
	return b.String()
}

// number reads the integer in a reply such as ":7".
func number(t *testing.T, reply string) int64 {
	t.Helper()
	n, err := strconv.ParseInt(strings.TrimPrefix(reply, ":"), 10, 64)
	if err != nil || !strings.HasPrefix(reply, ":") {
		t.Fatalf("%q is no integer reply", reply)
	}
	return n
}

// makeCache makes default/default/default, where Redis clients start.
func makeCache(t *testing.T, p *process) {
	t.Helper()
	status, body := post(t, p, "felix.v1.CacheService/Create", `{"cache":"default","shards":2}`)
	if status != 200 {
		t.Fatalf("making the cache: %d %s", status, body)
	}
}

func writeFile(t *testing.T, path, text string) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}
