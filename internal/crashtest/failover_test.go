package crashtest

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/felix-go/felix"
)

// failovers is how often TestFailover kills an owner; FELIX_FAILOVER_KILLS
// overrides it.
const failovers = 5

// number reads a setting of the tests from the environment.
func number(t *testing.T, name string, otherwise int) int {
	t.Helper()
	s := os.Getenv(name)
	if s == "" {
		return otherwise
	}
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return n
}

// TestFailover kills the owner of a shard under load, again and again, and
// measures how long it takes until an operation that is begun after that is
// answered. What the clients were told is true all the same.
func TestFailover(t *testing.T) {
	kills := number(t, "FELIX_FAILOVER_KILLS", failovers)
	c := startCluster(t, build(t), 3, felix.CacheSettings{Shards: 1})
	y := newTraffic(t)
	y.through(4, c.members...)
	var took []time.Duration
	for range kills {
		y.advance(500)
		owner := c.owner()
		moment := time.Since(y.start)
		owner.b.kill()
		took = append(took, y.firstAfter(moment))
		y.advance(500)
		owner.start()
		owner.ready()
	}
	y.check(c.members...)
	slices.Sort(took)
	median, worst := took[len(took)/2], took[len(took)*99/100]
	t.Logf("%d kills: the next answer after %v at the median, %v at the 99th percentile; all: %v", kills, median, worst, took)
	if measured() && (median > time.Second || worst > 2*time.Second) {
		t.Errorf("median %v, 99th percentile %v; want at most 1s and 2s", median, worst)
	}
}

// measured says whether the machine has nothing else to do, so that times are
// worth something.
func measured() bool { return os.Getenv("FELIX_MEASURE") != "" }

// TestRollingRestart stops and starts one broker after the other: no request
// through another one fails.
func TestRollingRestart(t *testing.T) {
	c := startCluster(t, build(t), 3, felix.CacheSettings{Shards: 4})
	y := newTraffic(t)
	y.strict = true
	y.through(2, c.members...)
	for _, m := range c.members {
		y.advance(300)
		y.pause(m) // its clients go elsewhere
		m.b.stop()
		y.advance(300)
		m.start()
		m.ready()
		y.resume(m)
	}
	y.advance(300)
	y.check(c.members...)
}

// TestPausedOwner: an owner that sleeps past the election of another one does
// not know it when it wakes up. What it then answers is no older than what the
// new owner has answered, and it acknowledges nothing that that one lacks.
func TestPausedOwner(t *testing.T) {
	binary := build(t)
	for _, reads := range []string{"fence", "lease"} {
		t.Run(reads, func(t *testing.T) {
			c := startCluster(t, binary, 3, felix.CacheSettings{Shards: 1}, "--reads", reads)
			y := newTraffic(t)
			y.through(2, c.members...)
			for range 2 {
				for _, busy := range []bool{true, false} {
					y.advance(300)
					c.owner().sleep(y, busy)
					y.advance(300)
				}
			}
			y.check(c.members...)
		})
	}
}

// sleep pauses an owner past the election of another one. What it finds when it
// wakes up was sent when the new one had answered for a while, over connections
// that were there before: nothing tells it faster that it is not the owner. One
// that was busy has writes in flight, and answers nothing that saw them; one that
// was not has only its fence or lease to keep it from answering.
func (m *member) sleep(y *traffic, busy bool) {
	t := m.c.t
	t.Helper()
	var waiting []*conn
	for range 24 {
		c, err := dial(m.resp)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close() // it has served
		if text, _, err := c.do("PING"); err != nil || text != "PONG" {
			t.Fatal(text, err)
		}
		waiting = append(waiting, c)
	}
	for _, o := range m.c.members {
		if !busy {
			y.pause(o)
		}
	}
	if err := m.b.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	for _, o := range m.others() {
		y.resume(o)
	}
	pause := time.NewTimer(3 * time.Second)
	y.firstAfter(time.Since(y.start)) // there is a new owner
	<-pause.C
	var all sync.WaitGroup
	for i, c := range waiting {
		all.Go(func() { y.askFor(c, i%trafficKeys, busy && i%2 == 0) })
	}
	time.Sleep(50 * time.Millisecond) // they have been sent
	if err := m.b.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	all.Wait()
	y.resume(m)
}

// TestIdleCost says what 256 shards on three brokers cost while nobody uses
// them.
func TestIdleCost(t *testing.T) {
	c := newCluster(t, build(t), 3)
	c.form(felix.CacheSettings{Shards: felix.MaxShardsPerCache})
	quiet, span := time.Second, 5*time.Second
	if measured() {
		quiet, span = 5*time.Second, 20*time.Second
	}
	time.Sleep(quiet) // first checkpoints, clocks
	before := make([]time.Duration, len(c.members))
	for i, m := range c.members {
		before[i] = m.cpu()
	}
	began := time.Now()
	time.Sleep(span)
	for i, m := range c.members {
		share := float64(m.cpu()-before[i]) / float64(time.Since(began))
		rss := m.rss()
		t.Logf("node %d: %.1f %% of a core, %d MiB", m.id, 100*share, rss>>20)
		if measured() && (share > 0.05 || rss > 300e6) {
			t.Errorf("node %d takes %.1f %% of a core and %d MB; want at most 5 %% and 300 MB", m.id, 100*share, rss/1e6)
		}
	}
}

// cpu is the time that the member has computed.
func (m *member) cpu() time.Duration {
	m.c.t.Helper()
	var ticks int64
	for _, f := range m.proc("stat")[13:15] { // utime and stime; "(felix)" is one word
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			m.c.t.Fatal(err)
		}
		ticks += n
	}
	return time.Duration(ticks) * time.Second / 100 // USER_HZ
}

// proc is the words of a file about the member's process.
func (m *member) proc(file string) []string {
	m.c.t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", m.b.cmd.Process.Pid, file))
	if err != nil {
		m.c.t.Fatal(err)
	}
	return strings.Fields(string(text))
}

// rss is the member's memory in bytes.
func (m *member) rss() int64 {
	m.c.t.Helper()
	words := m.proc("status")
	at := slices.Index(words, "VmRSS:")
	kilobytes, err := strconv.ParseInt(words[at+1], 10, 64)
	if err != nil {
		m.c.t.Fatal(err)
	}
	return kilobytes << 10
}
