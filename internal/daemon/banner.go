package daemon

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
)

// banner tells a newcomer what there is and what to try, in commands that work
// whatever the listeners' addresses are.
func banner(w io.Writer, dataDir, respAddr, httpAddr string) {
	redis := net.JoinHostPort(reachable(respAddr))
	http := net.JoinHostPort(reachable(httpAddr))
	fmt.Fprintf(w, `Felix is up. Its data is in %s; Ctrl-C stops it.

  Redis clients   %s
  HTTP and gRPC   http://%s

Try, in another terminal:

  %s INCR page-views
  go run ./cmd/felixctl%s counter add stats visits 1
  curl -s -H 'Content-Type: application/json' -d '{"cache":"stats","key":"visits"}' %s
`, dataDir, redis, http, redisCLI(respAddr), brokersFlag(httpAddr), shellWord("http://"+http+"/felix.v1.CounterService/Get"))
}

// fleetBanner is banner for the brokers of `felix dev --nodes`.
func fleetBanner(w io.Writer, dataDir string, daemons []*Daemon) {
	fmt.Fprintf(w, "Felix is up: a cluster of brokers. Their data is in %s; Ctrl-C stops them.\n\n", dataDir)
	var up []*Daemon
	for i, d := range daemons {
		if d == nil {
			fmt.Fprintf(w, "  node %d   was removed from the cluster\n", i+1)
			continue
		}
		up = append(up, d)
		fmt.Fprintf(w, "  node %d   Redis clients %s   HTTP and gRPC http://%s\n", i+1,
			net.JoinHostPort(reachable(d.RESPAddr())), net.JoinHostPort(reachable(d.HTTPAddr())))
	}
	if len(up) == 0 {
		return
	}
	first, last := up[0], up[len(up)-1]
	fmt.Fprintf(w, `
Try, in another terminal: every broker serves every key.

  %s INCR page-views
  %s INCR page-views
  go run ./cmd/felixctl%s node ls
  go run ./cmd/felixctl%s shard ls
`, redisCLI(first.RESPAddr()), redisCLI(last.RESPAddr()), brokersFlag(first.HTTPAddr()), brokersFlag(last.HTTPAddr()))
}

// redisCLI is the command to reach a listener with.
func redisCLI(addr string) string {
	host, port := reachable(addr)
	if host == "127.0.0.1" {
		return "redis-cli -p " + port
	}
	return "redis-cli -h " + host + " -p " + port
}

// brokersFlag is what felixctl needs to reach a listener, if anything.
func brokersFlag(addr string) string {
	http := net.JoinHostPort(reachable(addr))
	if http == "127.0.0.1:7380" {
		return ""
	}
	return " --brokers " + shellWord(http)
}

// reachable is where clients on this machine reach a listener: one on every
// address is reached over loopback, and that of IPv4 is there everywhere.
func reachable(addr string) (host, port string) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return addr, "" // no address of a listener
	}
	if ip, err := netip.ParseAddr(host); err == nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	return host, port
}

// shellWord keeps shells from taking the brackets of an IPv6 address for a
// pattern.
func shellWord(s string) string {
	if strings.Contains(s, "[") {
		return "'" + s + "'"
	}
	return s
}
