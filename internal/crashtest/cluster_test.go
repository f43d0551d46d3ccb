package crashtest

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/client"
)

// cluster is broker processes that know each other.
type cluster struct {
	t       *testing.T
	binary  string
	members []*member // in order of their node ids, which begin with 1
	peers   string    // as --peers has them
	args    []string  // that all are started with
}

// member is one of them: its place, and the process while one runs.
type member struct {
	c                *cluster
	id               uint64
	dir              string
	peer, resp, http string
	args             []string    // of its own
	prefix           []string    // of its command line
	env              []string    // beside the test's
	join             string      // addresses of members of the cluster that it joins; empty: it forms one with the others
	knobs            io.Writer   // of a broker that was built with them
	removed          atomic.Bool // from the cluster, or soon
	b                *broker
}

// freeAddrs are addresses that nothing listens on.
func freeAddrs(t *testing.T, n int) (addrs []string) {
	t.Helper()
	for range n {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer ln.Close() // all at the end: they are different ones
		addrs = append(addrs, ln.Addr().String())
	}
	return addrs
}

// newCluster makes the places of n brokers.
func newCluster(t *testing.T, binary string, n int, args ...string) *cluster {
	t.Helper()
	c := &cluster{t: t, binary: binary, args: args}
	dir, addrs := t.TempDir(), freeAddrs(t, 3*n)
	var peers []string
	for i := range n {
		m := &member{c: c, id: uint64(i + 1), dir: filepath.Join(dir, fmt.Sprint("node-", i+1)), peer: addrs[3*i], resp: addrs[3*i+1], http: addrs[3*i+2]}
		c.members = append(c.members, m)
		peers = append(peers, fmt.Sprintf("%d=%s", m.id, m.peer))
	}
	c.peers = strings.Join(peers, ",")
	return c
}

// startCluster makes a cluster of n brokers with the cache that Redis clients
// start in.
func startCluster(t *testing.T, binary string, n int, settings felix.CacheSettings, args ...string) *cluster {
	t.Helper()
	c := newCluster(t, binary, n, args...)
	c.form(settings)
	return c
}

// form starts all brokers and makes the cache.
func (c *cluster) form(settings felix.CacheSettings) {
	c.t.Helper()
	for _, m := range c.members {
		m.start()
	}
	for _, m := range c.members {
		m.ready()
	}
	c.create(felix.DefaultCache, settings)
}

// command is the command line of the member.
func (m *member) command() *exec.Cmd {
	line := append([]string{}, m.prefix...)
	others := []string{"--peers", m.c.peers}
	if m.join != "" {
		others = []string{"--join", m.join}
	}
	line = append(line, m.c.binary, "serve", "--data-dir", m.dir, "--node-id", fmt.Sprint(m.id), others[0], others[1],
		"--peer-addr", m.peer, "--resp-addr", m.resp, "--http-addr", m.http)
	line = append(append(line, m.c.args...), m.args...)
	cmd := exec.Command(line[0], line[1:]...)
	cmd.Env = append(os.Environ(), m.env...)
	return cmd
}

// start starts the member's process, and does not wait for it.
func (m *member) start() {
	m.c.t.Helper()
	m.b = run(m.c.t, m.command())
}

// ready waits until the member says that it is.
func (m *member) ready() {
	t := m.c.t
	t.Helper()
	if m.b.serves() == "" {
		t.Fatalf("node %d ended:\n%s", m.id, m.b.text())
	}
	last := ""
	for deadline := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		r, err := http.Get("http://" + m.http + "/readyz")
		if err == nil {
			_ = r.Body.Close() // only its status counts
			if last = r.Status; r.StatusCode == http.StatusOK {
				return
			}
		} else {
			last = err.Error()
		}
		if time.Now().After(deadline) {
			t.Fatalf("node %d is not ready: %s\n%s", m.id, last, m.b.text())
		}
	}
}

// says waits until the member logs a line with all of the words.
func (m *member) says(words ...string) {
	t := m.c.t
	t.Helper()
	has := func(line string) bool {
		for _, w := range words {
			if !strings.Contains(line, w) {
				return false
			}
		}
		return true
	}
	for deadline := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		for line := range strings.Lines(m.b.text()) {
			if has(line) {
				return
			}
		}
		if time.Now().After(deadline) {
			t.Fatalf("node %d does not say %q:\n%s", m.id, words, m.b.text())
		}
	}
}

// admin is a client of the member's HTTP door.
func (m *member) admin() *client.Client {
	m.c.t.Helper()
	a, err := client.New(client.Options{Brokers: []string{m.http}, Timeout: patience})
	if err != nil {
		m.c.t.Fatal(err)
	}
	m.c.t.Cleanup(a.Close)
	return a
}

func (c *cluster) create(name string, settings felix.CacheSettings) {
	c.t.Helper()
	info, _, _, err := c.members[0].admin().CacheCreate(context.Background(), felix.DefaultTenant, felix.DefaultNamespace, name, settings)
	if err != nil {
		c.t.Fatal(err)
	}
	if want := min(3, len(c.members)); settings.Replication == 0 && info.Replication != want {
		c.t.Fatalf("the cache has a replication of %d, want %d", info.Replication, want)
	}
}

// owner is the member that owns the first shard of the default cache.
func (c *cluster) owner() *member {
	c.t.Helper()
	var last error
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		for _, m := range c.members {
			if m.b == nil || m.down() {
				continue
			}
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			top, err := m.admin().Topology(ctx, felix.DefaultTenant, felix.DefaultNamespace, felix.DefaultCache)
			cancel()
			if last = err; err == nil && top.Shards[0].Owner != 0 && !c.members[top.Shards[0].Owner-1].down() {
				return c.members[top.Shards[0].Owner-1]
			}
		}
	}
	c.t.Fatalf("nobody knows the owner: %v", last)
	return nil
}

// down says whether the member's process has ended.
func (m *member) down() bool {
	select {
	case <-m.b.ended:
		return true
	default:
		return false
	}
}

// others are all members but this one.
func (m *member) others() (all []*member) {
	for _, o := range m.c.members {
		if o != m {
			all = append(all, o)
		}
	}
	return all
}
