// Package crashtest hurts real broker processes, at random moments and in every
// way that processes, disks, networks and clocks do, and looks at what is left. It
// holds tests only.
package crashtest

import (
	"bufio"
	"bytes"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	// What the broker is made of: the tests run a binary that they build, and
	// without this a cached result would stand for a broker that has changed.
	_ "github.com/felix-go/felix/internal/daemon"
)

// kills is how often the broker is killed; FELIX_KILLS overrides it.
const kills = 20

// clients and depth are the load: clients connections, each sending depth adds
// before it reads the answers.
const (
	clients = 8
	depth   = 16
	keys    = 50
)

// process is a running broker.
type process struct {
	cmd  *exec.Cmd
	addr string
	log  *bytes.Buffer
}

var respAddr = regexp.MustCompile(`resp_addr=(\S+)`)

// scratch is a directory for what all tests share.
var scratch string

// TestMain makes it and removes it.
func TestMain(m *testing.M) {
	var err error
	if scratch, err = os.MkdirTemp("", "crashtest"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	_ = os.RemoveAll(scratch) // it is where things may be lost
	os.Exit(code)
}

// built is the broker's binary, which the first test makes for all.
var built = sync.OnceValues(func() (string, error) {
	binary := filepath.Join(scratch, "felix")
	if out, err := exec.Command("go", "build", "-o", binary, "github.com/felix-go/felix/cmd/felix").CombinedOutput(); err != nil {
		return "", fmt.Errorf("building felix: %w\n%s", err, out)
	}
	return binary, nil
})

// build makes the broker's binary.
func build(t *testing.T) string {
	t.Helper()
	binary, err := built()
	if err != nil {
		t.Fatal(err)
	}
	return binary
}

// start starts a broker and waits until it serves. If killAfter is not 0 it is
// killed that long after its start, perhaps before it serves; then the process
// is nil.
func start(t *testing.T, binary, dir string, killAfter time.Duration) *process {
	t.Helper()
	p := &process{cmd: exec.Command(binary, "dev", "--data-dir", dir, "--resp-addr", "127.0.0.1:0", "--http-addr", "127.0.0.1:0",
		"--peer-addr", "127.0.0.1:0", "--checkpoint-interval", "50ms"), log: &bytes.Buffer{}}
	stderr, err := p.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if killAfter > 0 {
		timer := time.AfterFunc(killAfter, func() { _ = p.cmd.Process.Signal(syscall.SIGKILL) }) // it may have ended
		defer timer.Stop()
	}
	lines := bufio.NewScanner(stderr)
	for lines.Scan() {
		p.log.WriteString(lines.Text() + "\n")
		if m := respAddr.FindStringSubmatch(lines.Text()); m != nil && strings.Contains(lines.Text(), "broker is up") {
			p.addr = m[1]
			break
		}
	}
	if p.addr == "" {
		err := p.cmd.Wait()
		if killAfter == 0 || p.cmd.ProcessState.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
			t.Fatalf("the broker did not start: %v\n%s", err, p.log)
		}
		return nil
	}
	go func() { // keep the pipe empty; the text is not looked at any more
		for lines.Scan() {
		}
	}()
	return p
}

func (p *process) kill() {
	_ = p.cmd.Process.Signal(syscall.SIGKILL) // it may have been killed by its timer
	_ = p.cmd.Wait()                          // "killed"
}

// tally is what the clients know of each key: adds answered, and adds sent
// whose answer never came.
type tally struct {
	mu                sync.Mutex
	answered, unknown [keys]int64
	responses         int64
}

// load adds 1 to random keys over one connection until it breaks.
func (y *tally) load(t *testing.T, addr string, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 1))
	c, err := net.Dial("tcp", addr)
	if err != nil {
		return // killed already
	}
	defer c.Close()
	r := bufio.NewReader(c)
	for {
		var sent [depth]int
		var b strings.Builder
		for i := range sent {
			sent[i] = rng.IntN(keys)
			fmt.Fprintf(&b, "INCR key:%d\r\n", sent[i])
		}
		_, err := c.Write([]byte(b.String()))
		got := 0
		for ; err == nil && got < depth; got++ {
			var line string
			if line, err = r.ReadString('\n'); err != nil {
				break
			}
			if line[0] != ':' {
				t.Errorf("INCR was answered %q", line)
				return
			}
		}
		y.mu.Lock()
		for i, k := range sent {
			if i < got {
				y.answered[k]++
				y.responses++
			} else {
				y.unknown[k]++
			}
		}
		y.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// check compares what the broker says with what the clients know, and takes
// the broker's word from there on.
func (y *tally) check(t *testing.T, addr string, round int) {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	r := bufio.NewReader(c)
	for k := range keys {
		if _, err := fmt.Fprintf(c, "INCRBY key:%d 0\r\n", k); err != nil {
			t.Fatal(err)
		}
		line, err := r.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		value, err := strconv.ParseInt(strings.TrimSpace(strings.TrimPrefix(line, ":")), 10, 64)
		if err != nil {
			t.Fatalf("INCRBY was answered %q", line)
		}
		if value < y.answered[k] || value > y.answered[k]+y.unknown[k] {
			t.Fatalf("after kill %d key:%d is %d; %d adds were answered and %d more sent", round, k, value, y.answered[k], y.unknown[k])
		}
		y.answered[k], y.unknown[k] = value, 0
	}
}

// TestKill: kill -9 under load, at random moments, also while the broker
// starts: every answered add is there afterwards, and no more than the
// unanswered ones besides.
func TestKill(t *testing.T) {
	rounds := kills
	if s := os.Getenv("FELIX_KILLS"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil {
			t.Fatalf("FELIX_KILLS: %v", err)
		}
		rounds = n
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	binary, dir := build(t), filepath.Join(t.TempDir(), "data")
	var known tally
	for round := range rounds {
		if round%3 == 2 { // once more in the middle of a restart, with its replay
			if p := start(t, binary, dir, time.Duration(1+rng.IntN(150))*time.Millisecond); p != nil {
				p.kill()
			}
		}
		p := start(t, binary, dir, 0)
		known.check(t, p.addr, round)
		var loads sync.WaitGroup
		for range clients {
			load := rng.Uint64()
			loads.Go(func() { known.load(t, p.addr, load) })
		}
		timer := time.NewTimer(time.Duration(rng.IntN(400)) * time.Millisecond)
		<-timer.C
		p.kill()
		loads.Wait()
	}
	p := start(t, binary, dir, 0)
	known.check(t, p.addr, rounds)
	p.kill()
	if known.responses == 0 {
		t.Fatal("no add was ever answered: nothing was tested")
	}
	t.Logf("%d kills, %d adds answered", rounds, known.responses)
}
