package repotest

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
)

// breaker speaks enough Redis for clients to begin with, and closes a
// connection when INCR comes, before it answers: the first so many times.
type breaker struct {
	breaks int32
	incrs  atomic.Int32 // how often INCR came
	addr   string
}

func startBreaker(t *testing.T, breaks int32) *breaker {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	b := &breaker{breaks: breaks, addr: l.Addr().String()}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return // closed by Cleanup
			}
			go b.serve(c)
		}
	}()
	return b
}

func (b *breaker) serve(c net.Conn) {
	defer func() { _ = c.Close() }()
	in := bufio.NewReader(c)
	for {
		words, err := readCommand(in)
		if err != nil {
			return
		}
		answer := "+OK\r\n"
		switch strings.ToUpper(words[0]) {
		case "INCR", "INCRBY":
			n := b.incrs.Add(1)
			if n <= b.breaks {
				return
			}
			answer = fmt.Sprintf(":%d\r\n", n)
		case "HELLO":
			answer = "%3\r\n+server\r\n+redis\r\n+version\r\n+7.0.15\r\n+proto\r\n:3\r\n"
			if len(words) == 1 || words[1] != "3" {
				answer = "-ERR unknown command 'HELLO'\r\n"
			}
		case "INFO":
			answer = "$20\r\nredis_version:7.0.15\r\n"
		case "CLUSTER":
			answer = "-ERR This instance has cluster support disabled\r\n"
		case "PING":
			answer = "+PONG\r\n"
		}
		if _, err := io.WriteString(c, answer); err != nil {
			return
		}
	}
}

// readCommand reads one command, an array of strings.
func readCommand(in *bufio.Reader) ([]string, error) {
	number := func(prefix string) (int, error) {
		line, err := in.ReadString('\n')
		if err != nil {
			return 0, err
		}
		return strconv.Atoi(strings.TrimPrefix(strings.TrimSpace(line), prefix))
	}
	n, err := number("*")
	if err != nil {
		return nil, err
	}
	words := make([]string, n)
	for i := range words {
		size, err := number("$")
		if err != nil {
			return nil, err
		}
		word := make([]byte, size+2)
		if _, err := io.ReadFull(in, word); err != nil {
			return nil, err
		}
		words[i] = string(word[:size])
	}
	return words, nil
}

// What the README says of clients that resend: how often each sends an INCR
// whose connection breaks before the answer, by default and with the setting
// that the README names.
func TestClientsThatResend(t *testing.T) {
	readme := document(t, "README.md")
	for _, setting := range []string{"`MaxRetries: -1`", "`autoResendUnfulfilledCommands: false`", "`commandTimeout`", "`DisableRetry`"} {
		if !strings.Contains(readme, setting) {
			t.Errorf("the README does not name %s", setting)
		}
	}
	modules := nodeModules(t)
	node := func(client string) func(*testing.T, string) {
		return func(t *testing.T, addr string) {
			runClient(t, []string{"NODE_PATH=" + modules}, "node", "testdata/resend.cjs", client, port(addr))
		}
	}
	goRedis := func(o redis.Options) func(*testing.T, string) {
		return func(t *testing.T, addr string) {
			o.Addr = addr
			c := redis.NewClient(&o)
			defer func() { _ = c.Close() }()
			t.Log(c.Incr(t.Context(), "k").Result())
		}
	}
	for _, v := range []struct {
		name   string
		incr   func(t *testing.T, addr string)
		breaks int32
		want   int32
	}{
		{"go-redis", goRedis(redis.Options{}), 9, 4},
		{"go-redis, MaxRetries: -1", goRedis(redis.Options{MaxRetries: -1}), 9, 1},
		{"rueidis", incrByRueidis, 9, 1},
		{"ioredis", node("ioredis"), 1, 2},
		{"ioredis, as the README says", node("ioredis-once"), 9, 1},
		{"node-redis", node("node-redis"), 9, 1},
		{"redis-py of Debian", func(t *testing.T, addr string) {
			runClient(t, nil, "/usr/bin/python3", "testdata/resend.py", port(addr))
		}, 9, 1},
	} {
		t.Run(v.name, func(t *testing.T) {
			b := startBreaker(t, v.breaks)
			v.incr(t, b.addr)
			if got := b.incrs.Load(); got != v.want {
				t.Errorf("INCR came %d times, the README says %d", got, v.want)
			}
		})
	}
}

func incrByRueidis(t *testing.T, addr string) {
	c, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{addr}, DisableCache: true})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	t.Log(c.Do(t.Context(), c.B().Incr().Key("k").Build()).AsInt64())
}

func port(addr string) string {
	_, p, _ := net.SplitHostPort(addr)
	return p
}

func runClient(t *testing.T, env []string, name string, args ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c := exec.CommandContext(ctx, name, args...)
	c.Env = append(os.Environ(), env...)
	out, err := c.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %q: %v\n%s", name, args, err, out)
	}
	t.Logf("%s", out)
}

// nodeModules installs the Node clients, of the versions that the differential
// test uses.
func nodeModules(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"package.json", "package-lock.json"} {
		b := document(t, filepath.Join("internal/redisapi/difftest/node", name))
		if err := os.WriteFile(filepath.Join(dir, name), []byte(b), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	c := exec.Command("npm", "ci", "--no-audit", "--no-fund")
	c.Dir = dir
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("npm ci (it needs npm and its registry): %v\n%s", err, out)
	}
	return filepath.Join(dir, "node_modules")
}
