package crashtest

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

// insideNetwork tells a copy of a test that it runs in namespaces of its own, and
// where the broker's binary is.
const insideNetwork = "FELIX_CRASHTEST_BINARY"

// inNetwork runs a test in a copy of itself that has a network and a mount
// namespace of its own: what it does to either vanishes with the process. The
// network namespaces of brokers belong to them. binary makes the broker that the
// test is given; what the copy says is logged as it comes.
//
// The bridge between the brokers is given its hardware address: otherwise it takes
// another one when somebody is plugged in, and others go on sending to the old.
func inNetwork(t *testing.T, binary func(*testing.T) string, test func(t *testing.T, binary string)) {
	t.Helper()
	if path := os.Getenv(insideNetwork); path != "" {
		shell(t, `
			mount --make-rprivate /
			mount -t tmpfs none /run
			ip link set lo up
			ip link add bridge address 02:00:00:00:00:01 type bridge
			ip addr add 10.77.0.254/16 dev bridge
			ip link set bridge up`)
		test(t, path)
		return
	}
	path := binary(t)
	err := copyInNetwork(t, path, 0)
	if errors.Is(err, syscall.EPERM) { // not root
		err = copyInNetwork(t, path, syscall.CLONE_NEWUSER)
	}
	if err != nil {
		t.Fatalf("in a network namespace (which root, or a kernel with user namespaces, can make): %v", err)
	}
}

func copyInNetwork(t *testing.T, binary string, flags uintptr) error {
	t.Helper()
	left := time.Duration(0) // is for ever
	if deadline, is := t.Deadline(); is {
		left = time.Until(deadline)
	}
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v", "-test.timeout="+left.String())
	cmd.Env = append(os.Environ(), insideNetwork+"="+binary)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS | flags, Pdeathsig: syscall.SIGKILL}
	if flags != 0 {
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
	}
	out, in := io.Pipe()
	cmd.Stdout, cmd.Stderr = in, in
	said := make(chan struct{})
	go func() {
		defer close(said)
		lines := bufio.NewScanner(out)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			t.Log(lines.Text())
		}
		_, _ = io.Copy(io.Discard, out) // a line that was too long
	}()
	err := cmd.Run()
	_ = in.Close() // a pipe's never fails
	<-said
	return err
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

// network plugs every member in.
func (c *cluster) network() {
	var peers []string
	for _, m := range c.members {
		m.plug()
		peers = append(peers, fmt.Sprintf("%d=%s", m.id, m.peer))
	}
	c.peers = strings.Join(peers, ",")
}

// plug gives the member a network namespace with an address on the bridge, which
// has one for the clients, too.
func (m *member) plug() {
	ns, addr := fmt.Sprint("node", m.id), fmt.Sprint("10.77.0.", m.id)
	shell(m.c.t, fmt.Sprintf(`
		ip netns add %[1]s
		ip link add %[1]s type veth peer name eth0 netns %[1]s
		ip link set %[1]s master bridge up
		ip -n %[1]s addr add %[2]s/16 dev eth0
		ip -n %[1]s link set eth0 up
		ip -n %[1]s link set lo up`, ns, addr))
	m.prefix = []string{"ip", "netns", "exec", ns}
	m.peer, m.resp, m.http = addr+":7381", addr+":7379", addr+":7380"
}

// drop makes a member lose what comes from another one, straight or through its
// wire; rule says which packets, all if it is empty.
func (m *member) drop(from *member, rule string) {
	for _, net := range []int{0, 1} {
		shell(m.c.t, fmt.Sprintf("%s iptables -w -A INPUT -s 10.77.%d.%d %s -j DROP", strings.Join(m.prefix, " "), net, from.id, rule))
	}
}

// hear lets a member hear everybody again.
func (m *member) hear() { shell(m.c.t, strings.Join(m.prefix, " ")+" iptables -w -F INPUT") }

// heal makes the network whole.
func (c *cluster) heal() {
	for _, m := range c.members {
		m.hear()
	}
}
