package crashtest

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// patience is how long a test waits for what should take a moment.
const patience = time.Minute

// broker is a felix process whose end is watched.
type broker struct {
	t      *testing.T
	cmd    *exec.Cmd
	up     chan string   // gets the RESP address once it serves
	ended  chan struct{} // closed when the process has
	mu     sync.Mutex
	stderr bytes.Buffer
}

// launch starts a broker on dir; the end of the test kills it.
func launch(t *testing.T, binary, dir string) *broker {
	t.Helper()
	return run(t, exec.Command(binary, "dev", "--data-dir", dir, "--resp-addr", "127.0.0.1:0", "--http-addr", "127.0.0.1:0",
		"--peer-addr", "127.0.0.1:0", "--checkpoint-interval", "50ms"))
}

// run starts a broker; the end of the test kills it.
func run(t *testing.T, cmd *exec.Cmd) *broker {
	t.Helper()
	b := &broker{t: t, up: make(chan string, 1), ended: make(chan struct{}), cmd: cmd}
	stderr, err := b.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := b.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(b.ended)
		lines := bufio.NewScanner(stderr)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			b.mu.Lock()
			b.stderr.WriteString(lines.Text() + "\n")
			b.mu.Unlock()
			if m := respAddr.FindStringSubmatch(lines.Text()); m != nil && strings.Contains(lines.Text(), "broker is up") {
				b.up <- m[1]
			}
		}
		_ = b.cmd.Wait() // its state says it all
	}()
	t.Cleanup(b.kill)
	return b
}

// serves waits until the broker serves and answers its address, or "" if it
// ended instead.
func (b *broker) serves() string {
	b.t.Helper()
	select {
	case addr := <-b.up:
		return addr
	case <-b.ended:
		return ""
	case <-time.After(patience):
		b.t.Fatalf("the broker neither serves nor ends:\n%s", b.text())
	}
	return ""
}

func (b *broker) kill() {
	_ = b.cmd.Process.Signal(syscall.SIGKILL) // it may have ended
	<-b.ended
}

// stop ends it as a service manager does.
func (b *broker) stop() {
	b.t.Helper()
	_ = b.cmd.Process.Signal(syscall.SIGTERM)
	b.wait()
	if code := b.cmd.ProcessState.ExitCode(); code != 0 {
		b.t.Errorf("after SIGTERM the exit status is %d:\n%s", code, b.text())
	}
}

func (b *broker) wait() {
	b.t.Helper()
	select {
	case <-b.ended:
	case <-time.After(patience):
		b.t.Fatalf("the broker does not end:\n%s", b.text())
	}
}

func (b *broker) text() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.stderr.String()
}

// failed checks that the broker ended by itself with status 1 and one line that
// has one of the words, and no stack of goroutines.
func (b *broker) failed(words ...string) {
	b.t.Helper()
	b.wait()
	var reasons []string
	for line := range strings.Lines(b.text()) {
		if strings.HasPrefix(line, "felix: ") {
			reasons = append(reasons, line)
		}
	}
	code := b.cmd.ProcessState.ExitCode()
	if code != 1 || len(reasons) != 1 || strings.Contains(b.text(), "goroutine ") {
		b.t.Errorf("exit status %d (want 1), reasons %q (want one line, no stacks):\n%s", code, reasons, b.text())
		return
	}
	for _, w := range words {
		if strings.Contains(reasons[0], w) {
			return
		}
	}
	b.t.Errorf("the reason is %q; it should have one of %q", reasons[0], words)
}

// conn is a connection to a Redis door.
type conn struct {
	net.Conn
	r *bufio.Reader
}

func dial(addr string) (*conn, error) {
	c, err := net.DialTimeout("tcp", addr, patience)
	if err != nil {
		return nil, err
	}
	return newConn(c), nil
}

func newConn(c net.Conn) *conn { return &conn{Conn: c, r: bufio.NewReader(c)} }

// send writes a command.
func (c *conn) send(args ...string) error {
	var b strings.Builder
	fmt.Fprintf(&b, "*%d\r\n", len(args))
	for _, a := range args {
		fmt.Fprintf(&b, "$%d\r\n%s\r\n", len(a), a)
	}
	_, err := io.WriteString(c, b.String())
	return err
}

// reply reads one reply that is no array: its text, and whether it is an error
// of the server.
func (c *conn) reply() (text string, refused bool, err error) {
	line, err := c.r.ReadString('\n')
	if err != nil {
		return "", false, err
	}
	line = strings.TrimSuffix(line, "\r\n")
	if line[0] != '$' {
		return line[1:], line[0] == '-', nil
	}
	n, err := strconv.Atoi(line[1:])
	if err != nil || n < 0 {
		return "(nil)", false, err
	}
	body := make([]byte, n+2)
	_, err = io.ReadFull(c.r, body)
	return string(body[:n]), false, err
}

func (c *conn) do(args ...string) (text string, refused bool, err error) {
	if err := c.send(args...); err != nil {
		return "", false, err
	}
	return c.reply()
}
