package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

// The servers, as the table names them. Like is compared with like: Felix's
// quorum cache and Redis always answer after the disk has it; Felix's leader
// cache and Redis none answer before (Felix's still logs to disk, Redis none
// never does).
const (
	redisAlways = "redis-always"
	redisNone   = "redis-none"
	felixQuorum = "felix-quorum"
	felixLeader = "felix-leader"
)

// server is one that INCR can be sent to.
type server struct {
	name string
	port int
	user string // for AUTH: the scope, in Felix
}

// startServers starts everything; stop ends what was started, also after an
// error.
func startServers(ctx context.Context, dir string) (servers []server, stop func() error, err error) {
	var processes []*exec.Cmd
	stop = func() error {
		var errs []error
		for _, p := range processes {
			errs = append(errs, p.Process.Signal(syscall.SIGTERM), ignoreExit(p.Wait()))
		}
		return errors.Join(errs...)
	}
	start := func(port int, name string, args ...string) error {
		var output bytes.Buffer
		p := exec.Command(name, args...)
		p.Stdout, p.Stderr = &output, &output
		if err := p.Start(); err != nil {
			return err
		}
		processes = append(processes, p)
		if err := await(ctx, port); err != nil {
			return fmt.Errorf("%s did not start: %w\n%s", name, err, output.Bytes())
		}
		return nil
	}
	ports, err := freePorts(4)
	if err != nil {
		return nil, stop, err
	}
	for _, sub := range []string{"always", "none"} {
		if err := os.Mkdir(filepath.Join(dir, sub), 0o755); err != nil {
			return nil, stop, err
		}
	}
	always := []string{"--port", strconv.Itoa(ports[0]), "--bind", "127.0.0.1", "--dir", filepath.Join(dir, "always"), "--save", "",
		"--appendonly", "yes", "--appendfsync", "always", "--auto-aof-rewrite-percentage", "0"}
	none := []string{"--port", strconv.Itoa(ports[1]), "--bind", "127.0.0.1", "--dir", filepath.Join(dir, "none"), "--save", "", "--appendonly", "no"}
	if err := start(ports[0], "redis-server", always...); err != nil {
		return nil, stop, err
	}
	if err := start(ports[1], "redis-server", none...); err != nil {
		return nil, stop, err
	}
	for _, command := range []string{"felix", "felixctl"} {
		build := exec.CommandContext(ctx, "go", "build", "-o", filepath.Join(dir, command), "./cmd/"+command)
		if raw, err := build.CombinedOutput(); err != nil {
			return nil, stop, fmt.Errorf("building %s (run this in the repository): %w\n%s", command, err, raw)
		}
	}
	felix := []string{"dev", "--data-dir", filepath.Join(dir, "data"), "--resp-addr", "127.0.0.1:" + strconv.Itoa(ports[2]),
		"--http-addr", "127.0.0.1:" + strconv.Itoa(ports[3]), "--peer-addr", "127.0.0.1:0"}
	if err := start(ports[2], filepath.Join(dir, "felix"), felix...); err != nil {
		return nil, stop, err
	}
	create := exec.CommandContext(ctx, filepath.Join(dir, "felixctl"), "--brokers", "127.0.0.1:"+strconv.Itoa(ports[3]),
		"cache", "create", "leader", "--consistency", "leader")
	if raw, err := create.CombinedOutput(); err != nil {
		return nil, stop, fmt.Errorf("creating the leader cache: %w\n%s", err, raw)
	}
	return []server{
		{redisAlways, ports[0], ""}, {felixQuorum, ports[2], ""}, {redisNone, ports[1], ""}, {felixLeader, ports[2], "default/default/leader"},
	}, stop, nil
}

func ignoreExit(err error) error {
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return nil
	}
	return err
}

// await waits until a server listens.
func await(ctx context.Context, port int) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	for {
		c, err := net.Dial("tcp", "127.0.0.1:"+strconv.Itoa(port))
		if err == nil {
			return c.Close()
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// freePorts finds ports that nothing listens on now.
func freePorts(n int) (ports []int, err error) {
	var listeners []net.Listener
	defer func() {
		for _, l := range listeners {
			err = firstError(err, l.Close())
		}
	}()
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		listeners = append(listeners, l)
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	return ports, nil
}
