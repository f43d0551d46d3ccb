package crashtest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// hostileMemory is what the broker of TestHostileClients may need at most, as
// docs/configuration.md says: its budgets, those of HTTP, and garbage.
const hostileMemory = (64 + 16 + 32 + 32 + 128 + 256) << 20

// TestHostileClients: whatever clients do to a broker, it stays up, others are
// served, and its memory stays below what its settings say. What they ask it to
// hold is much more: 500 MB of commands that do not end, 8 GB of answers that
// nobody reads.
//
// Broken: loop.crowded (budget_linux.go of netloop).
func TestHostileClients(t *testing.T) {
	b := run(t, exec.Command(build(t), "dev", "--data-dir", t.TempDir(), "--resp-addr", "127.0.0.1:0", "--http-addr", "127.0.0.1:0",
		"--peer-addr", "127.0.0.1:0", "--record-memory", "64", "--block-cache", "16", "--inflight-memory", "32", "--connection-memory", "32"))
	addr := b.serves()
	httpAddr := regexp.MustCompile(`http_addr=(\S+)`).FindStringSubmatch(b.text())
	if addr == "" || httpAddr == nil {
		t.Fatalf("the broker does not serve:\n%s", b.text())
	}
	good, err := dial(addr)
	if err != nil {
		t.Fatal(err)
	}
	defer good.Close()
	if text, refused, err := good.do("SET", "large", strings.Repeat("x", 1<<20)); err != nil || refused {
		t.Fatal(text, err)
	}
	h := &hostile{t: t, done: make(chan struct{})}
	for name, text := range map[string]string{"a line that does not end": strings.Repeat("a", 1<<20), "an array of 10^9": "*1000000000\r\n",
		"a bulk of 512 MB": "*2\r\n$3\r\nGET\r\n$536870912\r\n", "a key of 10^18 bytes": "*2\r\n$3\r\nGET\r\n$1000000000000000000\r\n"} {
		h.many(50, addr, func(c net.Conn) { h.refused(c, name, text) })
	}
	h.left.Wait()
	h.many(2000, addr, func(c net.Conn) { h.wait() }) // idle
	h.many(500, addr, func(c net.Conn) {              // commands that do not end
		h.write(c, "*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$1048576\r\n"+strings.Repeat("y", 1<<20-1))
		h.wait()
	})
	h.many(128, addr, func(c net.Conn) { // answers that nobody reads
		h.write(c, strings.Repeat("*2\r\n$3\r\nGET\r\n$5\r\nlarge\r\n", 64))
		h.wait()
	})
	h.many(16, addr, func(c net.Conn) { // more than can be taken
		go func() { _, _ = io.Copy(io.Discard, c) }()
		value := strings.Repeat("z", 900_000)
		for i := 0; h.write(c, fmt.Sprintf("*3\r\n$3\r\nSET\r\n$4\r\nf%03d\r\n$900000\r\n%s\r\n", i%100, value)); i++ {
		}
	})
	h.many(100, httpAddr[1], func(c net.Conn) { // heads and bodies that do not end
		h.write(c, "POST /felix.v1.CounterService/Add HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000000000\r\nContent-Type: application/json\r\n\r\n{")
		h.wait()
	})
	h.many(100, httpAddr[1], func(c net.Conn) {
		for h.write(c, "GET / HTTP/1.1\r\nX-"+strings.Repeat("h", 4096)) {
		}
	})
	const count = 50
	for i := range count {
		h.increment(good, i+1)
	}
	h.end()
	h.increment(good, count+1)
	if peak := h.peak(b.cmd.Process.Pid); peak > hostileMemory {
		t.Errorf("the broker took %d MiB, want at most %d", peak>>20, hostileMemory>>20)
	} else {
		t.Logf("the broker took %d MiB", peak>>20)
	}
	if text := b.text(); strings.Contains(text, "panic") {
		t.Errorf("the broker panicked:\n%s", text)
	}
}

// hostile is clients that mean no good.
type hostile struct {
	t     *testing.T
	conns []net.Conn
	left  sync.WaitGroup
	done  chan struct{}
}

// many lets n of them do something, each on a connection of its own.
func (h *hostile) many(n int, addr string, do func(net.Conn)) {
	h.t.Helper()
	for range n {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			h.t.Fatal(err)
		}
		h.conns = append(h.conns, c)
		h.left.Go(func() { do(c) })
	}
}

// write writes, and says whether the broker still takes it.
func (h *hostile) write(c net.Conn, text string) bool {
	_, err := c.Write([]byte(text))
	return err == nil
}

func (h *hostile) wait() { <-h.done }

// refused sends what cannot be: it is answered with an error, and the connection
// is closed.
func (h *hostile) refused(c net.Conn, name, text string) {
	if err := c.SetReadDeadline(time.Now().Add(patience)); err != nil {
		h.t.Error(err)
	}
	go h.write(c, text)
	answer, err := io.ReadAll(c)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		h.t.Errorf("%s is neither answered nor closed", name)
	}
	// A reset is an end, too, if much of what was sent was never read.
	if !bytes.HasPrefix(answer, []byte("-ERR Protocol error")) && err == nil {
		h.t.Errorf("%s is answered %q", name, answer)
	}
}

// increment counts, as who means well, to what must be next.
func (h *hostile) increment(c *conn, want int) {
	h.t.Helper()
	for {
		text, refused, err := c.do("INCR", "n")
		switch {
		case err != nil:
			h.t.Fatal(err)
		case refused && strings.HasPrefix(text, "TRYAGAIN"): // was not applied
			time.Sleep(10 * time.Millisecond)
			continue
		case text != strconv.Itoa(want):
			h.t.Fatalf("the count is %q, want %d", text, want)
		}
		return
	}
}

// end ends them all.
func (h *hostile) end() {
	close(h.done)
	for _, c := range h.conns {
		_ = c.Close() // the broker may have, before
	}
	h.left.Wait()
}

// peak is the most memory that a process has ever had, in bytes.
func (h *hostile) peak(pid int) int64 {
	h.t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		h.t.Fatal(err)
	}
	words := strings.Fields(string(text))
	kilobytes, err := strconv.ParseInt(words[slices.Index(words, "VmHWM:")+1], 10, 64)
	if err != nil {
		h.t.Fatal(err)
	}
	return kilobytes << 10
}
