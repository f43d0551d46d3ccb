package daemon

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/felix-go/felix/internal/cli/clitest"
)

// fleetLine is a broker in the banner of `felix dev --nodes`.
var fleetLine = regexp.MustCompile(`(?m)^  node (\d)   Redis clients (\S+)   HTTP and gRPC http://(\S+)$`)

// devNodes runs `felix dev --nodes`, and answers the Redis and HTTP addresses of
// its brokers.
func devNodes(t *testing.T, dir, nodes string) (p *process, resp, http []string) {
	t.Helper()
	p = launch(t, "dev", "--nodes", nodes, "--data-dir", dir, "--resp-addr", "127.0.0.1:0", "--http-addr", "127.0.0.1:0", "--peer-addr", "127.0.0.1:0")
	reached(t, p, "the banner", func() bool {
		select {
		case <-p.ended:
			t.Fatalf("the brokers do not start; the log:\n%s", p.log())
		default:
		}
		return strings.Contains(p.output(), "shard ls")
	})
	for _, m := range fleetLine.FindAllStringSubmatch(p.output(), -1) {
		resp, http = append(resp, m[2]), append(http, m[3])
	}
	return p, resp, http
}

// Three brokers in one process are one cluster: each serves what another was
// told, they stop as one, and find each other again on other ports.
func TestDevNodes(t *testing.T) {
	dir := t.TempDir()
	p, resp, http := devNodes(t, dir, "3")
	if len(resp) != 3 {
		t.Fatalf("the banner:\n%s", p.output())
	}
	for i, addr := range resp {
		if n := number(t, dial(t, addr).call(t, "INCR", "k")); n != int64(i+1) {
			t.Errorf("INCR at node %d: %d", i+1, n)
		}
	}
	if got := refuses(t, exitFail, "dev", "--data-dir", dir, "--resp-addr", "127.0.0.1:0", "--http-addr", "127.0.0.1:0", "--peer-addr", "127.0.0.1:0"); got != "data directory "+dir+": it is that of several brokers: give --nodes, or another --data-dir" {
		t.Error(got)
	}
	text := scrape(t, &process{http: http[0]})
	for _, want := range []string{"felix_clock_eligible 1\n", "felix_forwarded_lost_total 0\n", "felix_replicas_lagging 0\n", "felix_clock_offset_seconds ", `felix_peer_up{node="2"} 1`, `felix_peer_up{node="3"} 1`} {
		if !strings.Contains(text, want) {
			t.Errorf("/metrics of node 1 does not say %q", want)
		}
	}
	if !regexp.MustCompile(`(?m)^felix_ownerships_total [1-9]`).MatchString(text) || !regexp.MustCompile(`(?m)^felix_forwarded_total [1-9]`).MatchString(text) {
		t.Errorf("/metrics of node 1 counts no ownership or no forwarded request:\n%s", text)
	}
	p.stop()
	p, resp, _ = devNodes(t, dir, "3")
	for i, addr := range resp {
		if n := number(t, dial(t, addr).call(t, "INCR", "k")); n != int64(i+4) {
			t.Errorf("INCR at node %d after a restart: %d", i+1, n)
		}
	}
	p.stop()
}

// A directory is one broker's or several brokers'.
func TestNodesOnTheDirectoryOfOne(t *testing.T) {
	dir := t.TempDir()
	dev(t, dir).stop()
	args := []string{"dev", "--nodes", "3", "--data-dir", dir, "--resp-addr", "127.0.0.1:0", "--http-addr", "127.0.0.1:0", "--peer-addr", "127.0.0.1:0"}
	if got := refuses(t, exitFail, args...); got != "data directory "+dir+": it is that of one broker, not of several: leave out --nodes, or give another --data-dir" {
		t.Error(got)
	}
	if _, err := os.Stat(filepath.Join(dir, "node-1")); !os.IsNotExist(err) {
		t.Errorf("a directory was made: %v", err)
	}
}

// The brokers of a fleet have ports and directories of their own.
func TestMembers(t *testing.T) {
	c := DefaultConfig(true)
	c.HTTPAddr = "127.0.0.1:0"
	for i, want := range []struct{ dir, resp, http, peer string }{
		{".felix/node-1", "127.0.0.1:7379", "127.0.0.1:0", "127.0.0.1:7381"},
		{".felix/node-2", "127.0.0.1:7389", "127.0.0.1:0", "127.0.0.1:7391"},
		{".felix/node-3", "127.0.0.1:7399", "127.0.0.1:0", "127.0.0.1:7401"},
	} {
		m := c.member(i)
		if m.DataDir != want.dir || m.RESPAddr != want.resp || m.HTTPAddr != want.http || m.PeerAddr != want.peer || m.NodeID != uint64(i+1) {
			t.Errorf("%d: %+v", i, m)
		}
	}
}

// felixctl works on a real cluster as it does on the model of one.
func TestClusterScripts(t *testing.T) {
	_, _, http := devNodes(t, t.TempDir(), "3")
	clitest.Run(t, "../cli/testdata/three", strings.Join(http, ","))
}

// TestFleetIsIntroduced: who is a member, or about to be one with the others, is
// told of all; who is not joins those that are.
func TestFleetIsIntroduced(t *testing.T) {
	const none, fresh, adopted, formed = "", `{"format":2,"store_id":"s"}`, `{"format":2,"store_id":"s","cluster_id":"c"}`, `{"format":2,"store_id":"s","cluster_id":"c","formed":true}`
	for _, v := range []struct {
		identities []string
		joins      []bool
	}{
		{[]string{none, none, none}, []bool{false, false, false}},
		{[]string{fresh, none, fresh}, []bool{false, false, false}}, // killed while they began
		{[]string{adopted, adopted, fresh}, []bool{false, false, false}},
		{[]string{formed, adopted, adopted}, []bool{false, false, false}},
		{[]string{formed, formed, none}, []bool{false, false, true}},
		{[]string{formed, formed, fresh}, []bool{false, false, true}},
	} {
		f, dir := &Fleet{}, t.TempDir()
		for i, text := range v.identities {
			ln, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = ln.Close() }()
			m := &member{config: Config{DataDir: filepath.Join(dir, fmt.Sprint(i)), ClusterConfig: ClusterConfig{NodeID: uint64(i + 1)}}, listeners: listeners{peer: ln}}
			if err := os.Mkdir(m.config.DataDir, 0o700); err != nil {
				t.Fatal(err)
			}
			if text != none {
				writeFile(t, identityOf(m.config.DataDir), text)
			}
			f.members = append(f.members, m)
		}
		f.introduce()
		for i, m := range f.members {
			if joins := len(m.config.Join) > 0; joins != v.joins[i] || joins == (len(m.config.Peers) > 0) {
				t.Errorf("%q: node %d joins %q, forms a cluster with %v", v.identities, i+1, m.config.Join, m.config.Peers)
			}
		}
	}
}

// A fleet that gets more brokers has them join; one that is removed stops alone,
// stays out at the next start, and what it held is on the others.
func TestFleetGrowsAndShrinks(t *testing.T) {
	dir := t.TempDir()
	p, resp, _ := devNodes(t, dir, "2")
	dial(t, resp[0]).call(t, "INCR", "k")
	p.stop()
	p, resp, http := devNodes(t, dir, "3")
	if n := number(t, dial(t, resp[2]).call(t, "INCR", "k")); n != 2 {
		t.Errorf("INCR at the broker that has joined: %d", n)
	}
	if text := scrape(t, &process{http: http[2]}); !regexp.MustCompile(`(?m)^felix_snapshots_received_total [1-9]`).MatchString(text) {
		t.Errorf("the broker that has joined counts no snapshot:\n%s", text)
	}
	first := &process{t: t, http: http[0]}
	if status, body := post(t, first, "felix.v1.ClusterService/NodeRemove", `{"id":"2"}`); status != 200 {
		t.Fatalf("%d %s", status, body)
	}
	reached(t, p, "node 2 is removed and stops", func() bool {
		_, err := net.Dial("tcp", http[1])
		return err != nil
	})
	if n := number(t, dial(t, resp[2]).call(t, "INCR", "k")); n != 3 {
		t.Errorf("INCR after a broker was removed: %d", n)
	}
	p.stop()
	p, resp, _ = devNodes(t, dir, "3")
	if !strings.Contains(p.output(), "node 2   was removed from the cluster") || len(resp) != 2 {
		t.Errorf("the banner:\n%s", p.output())
	}
	if n := number(t, dial(t, resp[1]).call(t, "INCR", "k")); n != 4 {
		t.Errorf("INCR without the broker that was removed: %d", n)
	}
	p.stop()
}
