// Package e2e runs what others wrote for Redis, and felixctl's scripts, against
// a whole broker: the daemon with its doors on real sockets and a real disk.
package e2e

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/felix-go/felix/internal/cli/clitest"
	"github.com/felix-go/felix/internal/daemon"
	"github.com/felix-go/felix/internal/redisapi/difftest"
)

func TestMain(m *testing.M) { clitest.Main(m) }

// start runs a broker as `felix dev` does, on free ports, and stops it with
// the test.
func start(t *testing.T) *daemon.Daemon { return startWith(t, func(*daemon.Config) {}) }

// startWith is start with other settings.
func startWith(t *testing.T, change func(*daemon.Config)) *daemon.Daemon {
	t.Helper()
	config := daemon.DefaultConfig(true)
	change(&config)
	config.DataDir, config.RESPAddr, config.HTTPAddr, config.PeerAddr = t.TempDir(), "127.0.0.1:0", "127.0.0.1:0", "127.0.0.1:0"
	d, err := daemon.Start(t.Context(), config, slog.New(slog.DiscardHandler), func(err error) { t.Errorf("fatal: %v", err) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := d.Stop(ctx); err != nil {
			t.Errorf("stopping: %v", err)
		}
	})
	return d
}

// TestDifferential compares every reply with a real redis-server's.
func TestDifferential(t *testing.T) {
	d := start(t)
	difftest.Run(t, func() net.Conn {
		c, err := net.Dial("tcp", d.RESPAddr())
		if err != nil {
			t.Fatal(err)
		}
		return c
	})
}

// TestLargeRequests sends one request of many large values, and one that is
// larger than any may be: the first is done, the second refused in words.
func TestLargeRequests(t *testing.T) {
	c, err := net.Dial("tcp", start(t).RESPAddr())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	value := strings.Repeat("v", 1<<20)
	mset := func(keys int) string {
		var b strings.Builder
		fmt.Fprintf(&b, "*%d\r\n$4\r\nMSET\r\n", 1+2*keys)
		for i := range keys {
			fmt.Fprintf(&b, "$3\r\nk%02d\r\n$%d\r\n%s\r\n", i, len(value), value)
		}
		return b.String()
	}
	for _, step := range []struct {
		keys int
		want string
	}{{10, "+OK\r\n"}, {40, "-ERR Protocol error"}} {
		go func() {
			// The refusal may come, and the connection close, before all is sent.
			_, _ = c.Write([]byte(mset(step.keys)))
		}()
		got := make([]byte, len(step.want))
		if _, err := io.ReadFull(c, got); err != nil || string(got) != step.want {
			t.Fatalf("MSET of %d MiB: %q, %v, want %q", step.keys, got, err, step.want)
		}
	}
}

// TestClients uses Redis client libraries with their default settings.
func TestClients(t *testing.T) { difftest.RunClients(t, start(t).RESPAddr()) }

// TestFelixctl runs felixctl's scripts.
func TestFelixctl(t *testing.T) { clitest.Run(t, clitest.BrokerScripts(), start(t).HTTPAddr()) }
