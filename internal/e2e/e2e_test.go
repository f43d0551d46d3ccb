// Package e2e runs what others wrote for Redis, and felixctl's scripts, against
// a whole broker: the daemon with its doors on real sockets and a real disk.
package e2e

import (
	"context"
	"log/slog"
	"net"
	"testing"
	"time"

	"github.com/felix-go/felix/internal/cli/clitest"
	"github.com/felix-go/felix/internal/daemon"
	"github.com/felix-go/felix/internal/redisapi/difftest"
)

func TestMain(m *testing.M) { clitest.Main(m) }

// start runs a broker as `felix dev` does, on free ports, and stops it with
// the test.
func start(t *testing.T) *daemon.Daemon {
	t.Helper()
	config := daemon.DefaultConfig(true)
	config.DataDir, config.RESPAddr, config.HTTPAddr = t.TempDir(), "127.0.0.1:0", "127.0.0.1:0"
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

// TestClients uses Redis client libraries with their default settings.
func TestClients(t *testing.T) { difftest.RunClients(t, start(t).RESPAddr()) }

// TestFelixctl runs felixctl's scripts.
func TestFelixctl(t *testing.T) { clitest.Run(t, clitest.BrokerScripts(), start(t).HTTPAddr()) }
