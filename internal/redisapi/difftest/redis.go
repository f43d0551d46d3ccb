package difftest

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

const (
	// redisServer is Debian's; its version is the one that Felix promises.
	redisServer = "/usr/bin/redis-server"
	// replyTimeout is when a test gives up on a reply.
	replyTimeout = 20 * time.Second
)

// startRedis starts a Redis of its own for the test on a Unix socket, with one
// database and without persistence, and gives a way to connect to it.
func startRedis(t *testing.T) func() net.Conn {
	t.Helper()
	if _, err := os.Stat(redisServer); err != nil {
		t.Fatalf("the differential test needs Redis 7.0.15 at %s: apt-get install redis-server (%v)", redisServer, err)
	}
	dir, err := os.MkdirTemp("", "difftest") // short: a socket's path has at most 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	socket := filepath.Join(dir, "s")
	cmd := exec.Command(redisServer, "--port", "0", "--unixsocket", socket, "--save", "", "--appendonly", "no",
		"--databases", "1", "--dir", dir, "--logfile", filepath.Join(dir, "log"))
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	dial := func() net.Conn {
		conn, err := net.Dial("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		return conn
	}
	for deadline := time.Now().Add(replyTimeout); ; {
		conn, err := net.Dial("unix", socket)
		if err == nil {
			conn.Close()
			return dial
		}
		if time.Now().After(deadline) {
			text, _ := os.ReadFile(filepath.Join(dir, "log"))
			t.Fatalf("redis-server did not start: %v\n%s", err, text)
		}
		time.Sleep(5 * time.Millisecond) // polling for the socket
	}
}
