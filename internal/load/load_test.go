package load

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// server answers commands of one line words as Redis does, and keeps count.
type server struct {
	addr string
	// answer is what a command gets; it may take its time.
	answer func(words []string) string

	leaves func() bool // nil is never

	mu   sync.Mutex
	keys map[string]int
}

func startServer(t *testing.T, answer func(words []string) string) *server {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &server{addr: l.Addr().String(), answer: answer, keys: map[string]int{}}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() { s.serve(conn) })
		}
	})
	t.Cleanup(func() { l.Close(); all.Wait() })
	return s
}

// used is how often each key was, since the last time that it was asked.
func (s *server) used() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	used := s.keys
	s.keys = map[string]int{}
	return used
}

func (s *server) serve(conn net.Conn) {
	defer conn.Close()
	in, out := bufio.NewReader(conn), bufio.NewWriter(conn)
	for {
		words, err := readCommand(in)
		if err != nil {
			return
		}
		if len(words) > 1 {
			s.mu.Lock()
			s.keys[words[1]]++
			s.mu.Unlock()
		}
		_, _ = out.WriteString(s.answer(words)) // Flush tells of errors
		if s.leaves != nil && s.leaves() {
			return
		}
		if in.Buffered() == 0 && out.Flush() != nil {
			return
		}
	}
}

func readCommand(in *bufio.Reader) (words []string, err error) {
	var n, size int
	if _, err := fmt.Fscanf(in, "*%d\r\n", &n); err != nil {
		return nil, err
	}
	for range n {
		if _, err := fmt.Fscanf(in, "$%d\r\n", &size); err != nil {
			return nil, err
		}
		b := make([]byte, size+2)
		if _, err := io.ReadFull(in, b); err != nil {
			return nil, err
		}
		words = append(words, string(b[:size]))
	}
	return words, nil
}

func config(s *server) Config {
	return Config{Addrs: []string{s.addr}, Connections: 3, Depth: 4, Keys: 10, Prefix: "k:", Duration: 200 * time.Millisecond}
}

func mustRun(t *testing.T, c Config) Result {
	t.Helper()
	r, err := Run(context.Background(), c, nil)
	if err != nil {
		t.Fatal(err)
	}
	if r.Operations == 0 || r.Latency.TotalCount() != r.Operations || r.Elapsed < c.Duration {
		t.Fatalf("%d operations, %d latencies, %v", r.Operations, r.Latency.TotalCount(), r.Elapsed)
	}
	return r
}

// TestClosedLoop: every answer is counted once, and no command is sent that the
// pipeline has no room for.
func TestClosedLoop(t *testing.T) {
	var asked atomic.Int64
	s := startServer(t, func(words []string) string {
		if words[0] == "INCR" {
			asked.Add(1)
		}
		return ":1\r\n"
	})
	c := config(s)
	r := mustRun(t, c)
	if sent := asked.Load(); sent < r.Operations || sent > r.Operations+int64(c.Connections*c.Depth) {
		t.Errorf("%d commands came, %d are counted", sent, r.Operations)
	}
	if keys := s.used(); len(keys) != 10 || keys["k:7"] == 0 {
		t.Errorf("the keys were %v", keys)
	}
}

// TestKinds: hot and Zipf keys, GET, replies of all kinds.
func TestKinds(t *testing.T) {
	var n atomic.Int64
	s := startServer(t, func(words []string) string {
		if words[0] == "PING" {
			return "+PONG\r\n"
		}
		return []string{"$-1\r\n", "$5\r\n\r\n\r\nx\r\n", "_\r\n", "-ERR no\r\n"}[n.Add(1)%4]
	})
	c := config(s)
	c.Work, c.Keys = Get, 1
	r := mustRun(t, c)
	if r.FirstError != "ERR no" || r.Errors < r.Operations/4-int64(c.Connections) || r.Errors > r.Operations/4+int64(c.Connections) {
		t.Errorf("%d of %d were errors, the first %q", r.Errors, r.Operations, r.FirstError)
	}
	if keys := s.used(); len(keys) != 1 || keys["k:0"] == 0 {
		t.Errorf("the hot key was %v", keys)
	}
	c.Keys, c.Spread = 1000, Zipf
	r = mustRun(t, c)
	keys := s.used()
	if first, half := keys["k:000"], keys["k:500"]; first < 20*half || int64(first) > r.Operations/2 {
		t.Errorf("of %d, the first key was used %d times, the 500th %d times", r.Operations, first, half)
	}
}

// TestStallIsNotOmitted: at a fixed rate all commands that a stall holds up are
// slow, not only the one that was under way.
func TestStallIsNotOmitted(t *testing.T) {
	const stall, rate = 400 * time.Millisecond, 1000
	var once sync.Once
	s := startServer(t, func(words []string) string {
		if words[0] == "INCR" {
			once.Do(func() { time.Sleep(stall) }) // the disk of this server
		}
		return ":1\r\n"
	})
	c := config(s)
	c.Connections, c.Depth, c.Rate, c.Duration = 1, 1, rate, time.Second
	r := mustRun(t, c)
	slow := int64(0)
	for _, bar := range r.Latency.Distribution() {
		if bar.From >= (stall / 2).Microseconds() {
			slow += bar.Count
		}
	}
	if want := int64(rate * (stall / 2).Seconds() / 2); slow < want {
		t.Errorf("%d of %d commands took half the stall or longer, want %d", slow, r.Operations, want)
	}
	if r.Operations+r.Unanswered < rate/2 || r.Operations > rate*11/10 {
		t.Errorf("%d operations and %d unanswered at %d a second", r.Operations, r.Unanswered, rate)
	}
}

// TestNoAnswer: what was due and got no answer is told.
func TestNoAnswer(t *testing.T) {
	gone := make(chan struct{})
	s := startServer(t, func(words []string) string {
		if words[0] == "INCR" {
			<-gone
		}
		return ":1\r\n"
	})
	c := config(s)
	c.Rate = 1000
	r, err := Run(context.Background(), c, nil)
	close(gone)
	if err != nil || r.Operations != 0 || r.Unanswered < 100 {
		t.Errorf("%+v, %v", r, err)
	}
}

// TestServerLeaves: a connection that ends early is an error, and ends the load.
func TestServerLeaves(t *testing.T) {
	for _, rate := range []float64{0, 1000} {
		var n atomic.Int64
		s := startServer(t, func(words []string) string {
			if words[0] == "INCR" && n.Add(1) == 20 {
				return ""
			}
			return ":1\r\n"
		})
		s.leaves = func() bool { return n.Load() >= 20 }
		c := config(s)
		c.Rate, c.Duration = rate, time.Minute
		if _, err := Run(context.Background(), c, nil); err == nil || !strings.Contains(err.Error(), "of 3 ended") {
			t.Errorf("rate %v: %v", rate, err)
		}
	}
}

// TestRefusals: servers that are not there, refuse, speak otherwise or hang up,
// and settings that mean nothing.
func TestRefusals(t *testing.T) {
	refuses := startServer(t, func([]string) string { return "-WRONGPASS no\r\n" })
	other := startServer(t, func([]string) string { return "HTTP/1.1 400 Bad Request\r\n" })
	for _, v := range []struct {
		change func(c *Config)
		want   string
	}{
		{func(c *Config) { c.Addrs = []string{"127.0.0.1:1"} }, "connection 1 of 3"},
		{func(c *Config) { c.Addrs = []string{refuses.addr} }, "WRONGPASS no"},
		{func(c *Config) { c.Addrs = []string{other.addr} }, "does not speak the Redis protocol"},
		{func(c *Config) { c.Addrs = nil }, "no address"},
		{func(c *Config) { c.Connections = 0 }, "connections 0"},
		{func(c *Config) { c.Depth = 0 }, "depth 0"},
		{func(c *Config) { c.Keys = 0 }, "keys 0"},
		{func(c *Config) { c.Duration = 0 }, "duration in seconds 0"},
		{func(c *Config) { c.Rate = -1 }, "rate -1"},
		{func(c *Config) { c.Prefix = strings.Repeat("x", 2000) }, "the prefix"},
	} {
		c := config(refuses)
		v.change(&c)
		if _, err := Run(context.Background(), c, nil); err == nil || !strings.Contains(err.Error(), v.want) {
			t.Errorf("%v, want %q", err, v.want)
		}
	}
}
