package crashtest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/felix-go/felix"
)

// binaryOf tells the copy of the test in its namespaces where the broker is.
const binaryOf = "FELIX_CRASHTEST_BINARY"

// TestPartitions takes the network between brokers apart: each from each, one way
// only, one from both others, and with packets that are lost at random. Whatever
// clients are told is true, and when the network is whole again all is well.
//
// Every broker has a network namespace of its own. They belong to a mount and a
// network namespace that vanish with the process: so the test runs in a copy of
// itself.
func TestPartitions(t *testing.T) {
	if binary := os.Getenv(binaryOf); binary != "" {
		partition(t, binary)
		return
	}
	binary := build(t)
	out, err := inNetwork(binary, 0)
	if errors.Is(err, syscall.EPERM) { // not root
		out, err = inNetwork(binary, syscall.CLONE_NEWUSER)
	}
	t.Logf("%s", out)
	if err != nil {
		t.Fatalf("in a network namespace (which root, or a kernel with user namespaces, can make): %v", err)
	}
}

func inNetwork(binary string, flags uintptr) ([]byte, error) {
	cmd := exec.Command(os.Args[0], "-test.run=^TestPartitions$", "-test.v", "-test.timeout=5m")
	cmd.Env = append(os.Environ(), binaryOf+"="+binary)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS | flags, Pdeathsig: syscall.SIGKILL}
	if flags != 0 {
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
	}
	return cmd.CombinedOutput()
}

// shell runs commands, one a line.
func shell(t *testing.T, commands string) {
	t.Helper()
	for line := range strings.Lines(commands) {
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		if out, err := exec.Command(words[0], words[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", strings.TrimSpace(line), err, out)
		}
	}
}

// network gives each member a namespace with an address on a bridge, which has
// one for the clients, too.
func (c *cluster) network() {
	shell(c.t, `
		mount --make-rprivate /
		mount -t tmpfs none /run
		ip link set lo up
		ip link add bridge type bridge
		ip addr add 10.77.0.254/24 dev bridge
		ip link set bridge up`)
	var peers []string
	for _, m := range c.members {
		ns, addr := fmt.Sprint("node", m.id), fmt.Sprint("10.77.0.", m.id)
		shell(c.t, fmt.Sprintf(`
			ip netns add %[1]s
			ip link add %[1]s type veth peer name eth0 netns %[1]s
			ip link set %[1]s master bridge up
			ip -n %[1]s addr add %[2]s/24 dev eth0
			ip -n %[1]s link set eth0 up
			ip -n %[1]s link set lo up`, ns, addr))
		m.prefix = []string{"ip", "netns", "exec", ns}
		m.peer, m.resp, m.http = addr+":7381", addr+":7379", addr+":7380"
		peers = append(peers, fmt.Sprintf("%d=%s", m.id, m.peer))
	}
	c.peers = strings.Join(peers, ",")
}

// drop makes a member lose what comes from another one; rule says which packets,
// all if it is empty.
func (m *member) drop(from *member, rule string) {
	shell(m.c.t, fmt.Sprintf("%s iptables -A INPUT -s 10.77.0.%d %s -j DROP", strings.Join(m.prefix, " "), from.id, rule))
}

// heal makes the network whole.
func (c *cluster) heal() {
	for _, m := range c.members {
		shell(c.t, strings.Join(m.prefix, " ")+" iptables -F INPUT")
	}
}

// partition is the test, inside the namespaces.
func partition(t *testing.T, binary string) {
	c := newCluster(t, binary, 3, "--insecure", "--request-timeout", "2s")
	c.network()
	c.form(felix.CacheSettings{Shards: 4})
	y := newTraffic(t)
	y.through(3, c.members...)
	y.advance(500)
	const split, whole = 1500 * time.Millisecond, 500 * time.Millisecond
	for range number(t, "FELIX_PARTITION_ROUNDS", 1) {
		order := rand.Perm(len(c.members))
		m, next := c.members[order[0]], c.members[order[1]]
		for _, s := range []struct {
			name string
			cut  func()
		}{
			{fmt.Sprintf("%d and %d apart", m.id, next.id), func() { m.drop(next, ""); next.drop(m, "") }},
			{fmt.Sprintf("%d does not hear %d", m.id, next.id), func() { m.drop(next, "") }},
			{fmt.Sprintf("%d does not hear %d", next.id, m.id), func() { next.drop(m, "") }},
			{fmt.Sprintf("%d alone", m.id), func() {
				for _, o := range m.others() {
					m.drop(o, "")
					o.drop(m, "")
				}
			}},
			{fmt.Sprintf("%d hears nobody", m.id), func() {
				for _, o := range m.others() {
					m.drop(o, "")
				}
			}},
			{"a third of all packets is lost", func() {
				for _, a := range c.members {
					for _, b := range a.others() {
						a.drop(b, "-m statistic --mode random --probability 0.3")
					}
				}
			}},
		} {
			s.cut()
			time.Sleep(split)
			n := y.answered()
			c.heal()
			time.Sleep(whole)
			t.Logf("%v: %s: %d answered by then", time.Since(y.start).Round(time.Millisecond), s.name, n)
		}
	}
	y.advance(500)
	y.check(c.members...)
}
