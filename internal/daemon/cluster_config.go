package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/felix-go/felix"
)

// ClusterConfig is how a broker finds the others of its cluster. The part of
// Config that only matters to those who have several.
type ClusterConfig struct {
	PeerAddr       string
	AdvertisePeer  string // empty: the entry in Peers, or PeerAddr
	AdvertiseHTTP  string
	AdvertiseRESP  string
	NodeID         uint64 // 0: the data directory's
	Peers          map[uint64]string
	Join           []string
	PeerCert       string
	PeerKey        string
	PeerCA         string
	Reads          string
	ReplaceAfter   time.Duration
	MaxClockOffset time.Duration
	// Nodes is how many brokers `felix dev` runs.
	Nodes int
	// dial connects to another broker; nil is by its address.
	dial func(ctx context.Context, node uint64, addr string) (net.Conn, error)
}

// addClusterFlags declares the flags of a broker among others.
func (c *Config) addClusterFlags(f *pflag.FlagSet) {
	c.Nodes = 1
	if c.Dev {
		f.IntVar(&c.Nodes, "nodes", 1, fmt.Sprintf("`number` of brokers, 1 to %d: with more than one, a cluster to play with; each has its own directory in --data-dir, and ports %d above those of the one before", maxFleet, portStep))
	}
	f.StringVar(&c.PeerAddr, "peer-addr", "127.0.0.1:7381", "`host:port` for the other brokers of the cluster; port 0 is any free one; if not given, this broker's entry in --peers")
	f.StringVar(&c.AdvertisePeer, "advertise-peer-addr", "", "`host:port` at which the other brokers reach this one; if empty its entry in --peers, or --peer-addr")
	f.StringVar(&c.AdvertiseHTTP, "advertise-http-addr", "", "`host:port` at which clients reach --http-addr, as the cluster tells them; --http-addr if empty")
	f.StringVar(&c.AdvertiseRESP, "advertise-resp-addr", "", "`host:port` at which clients reach --resp-addr, as the cluster tells them; --resp-addr if empty")
	f.Uint64Var(&c.NodeID, "node-id", 0, "`number` of this broker in its cluster, for ever; 0 is the one that its directory has, or 1")
	f.Var((*peerList)(&c.Peers), "peers", "`1=host:port,2=…`: all brokers that form a new cluster, this one among them; once it is formed, where to look for them first")
	f.Var((*addrList)(&c.Join), "join", "`host:port,…` of brokers whose cluster this one joins; of no effect once it has")
	f.StringVar(&c.PeerCert, "peer-cert", "", "PEM `file` of the certificate that this broker shows to others; with the next two: mutual TLS between brokers")
	f.StringVar(&c.PeerKey, "peer-key", "", "PEM `file` of its private key")
	f.StringVar(&c.PeerCA, "peer-ca", "", "PEM `file` of the certificates that sign those of other brokers")
	f.StringVar(&c.Reads, "reads", "", "fence or lease: the `way` reads of quorum caches are confirmed; empty is fence (also env FELIX_QUORUM_READS)")
	f.DurationVar(&c.ReplaceAfter, "replace-after", 5*time.Minute, "how long a broker is away before others get its replicas, a `duration`")
	f.DurationVar(&c.MaxClockOffset, "max-clock-offset", 500*time.Millisecond, "how far the clock may be from most other brokers', a `duration`; beyond it the broker owns no shard")
}

// checkCluster answers the first of the cluster's settings that cannot be.
func (c *Config) checkCluster() error {
	if err := c.checkMembership(); err != nil {
		return err
	}
	secure := c.PeerCert != ""
	if secure != (c.PeerKey != "") || secure != (c.PeerCA != "") {
		return errors.New("--peer-cert, --peer-key and --peer-ca: TLS between brokers needs all three")
	}
	if err := checkAddr("peer-addr", c.PeerAddr); err != nil {
		return err
	}
	if host, _, _ := net.SplitHostPort(c.PeerAddr); !secure && !c.Insecure && !isLoopback(host) {
		return fmt.Errorf("--peer-addr %s can be reached from outside, and who connects there can change everything: give --peer-cert, --peer-key and --peer-ca, or add --insecure if the network keeps strangers out", c.PeerAddr)
	}
	for _, one := range []struct{ name, listen, advertise string }{
		{"peer", c.PeerAddr, c.AdvertisePeer}, {"http", c.HTTPAddr, c.AdvertiseHTTP}, {"resp", c.RESPAddr, c.AdvertiseRESP},
	} {
		if err := c.checkAdvertised(one.name, one.listen, one.advertise); err != nil {
			return err
		}
	}
	if err := c.checkReach(); err != nil {
		return err
	}
	if c.Reads != "" && c.Reads != "fence" && c.Reads != "lease" {
		return fmt.Errorf("--reads %q: it is fence or lease", c.Reads)
	}
	return nil
}

func (c *Config) checkMembership() error {
	_, among := c.Peers[c.NodeID]
	switch {
	case c.Nodes < 1 || c.Nodes > maxFleet:
		return fmt.Errorf("--nodes %d: it is 1 to %d", c.Nodes, maxFleet)
	case c.Nodes > 1 && (c.inCluster() || c.NodeID != 0 || c.AdvertisePeer != "" || c.AdvertiseHTTP != "" || c.AdvertiseRESP != ""):
		return errors.New("--nodes makes a cluster of its own: leave out --peers, --join, --node-id and --advertise-…-addr")
	case len(c.Peers) > 0 && len(c.Join) > 0:
		return errors.New("--peers and --join: a new broker forms a cluster with those of --peers, or joins the one of --join, not both")
	case len(c.Peers) > 0 && c.NodeID == 0:
		return errors.New("--peers needs a --node-id: which of them this broker is")
	case len(c.Peers) > 0 && !among:
		return fmt.Errorf("--peers %s does not have node %d, which this broker is", (*peerList)(&c.Peers), c.NodeID)
	case len(c.Peers) > felix.MaxNodes:
		return fmt.Errorf("--peers: %d brokers are more than the %d that a cluster may have", len(c.Peers), felix.MaxNodes)
	case len(c.Join) > 0 && c.NodeID == 0:
		return errors.New("--join needs a --node-id: choose one that no broker of the cluster has or had")
	}
	return nil
}

// checkAdvertised sees to it that other machines are told where a listener is.
func (c *Config) checkAdvertised(name, listen, advertise string) error {
	if advertise != "" {
		if !isDialable(advertise) {
			return fmt.Errorf("--advertise-%s-addr %q: it is the host:port that others use, not an unspecified address or port 0", name, advertise)
		}
		return nil
	}
	if name == "peer" {
		listen = c.peerAddress()
	}
	host, _, _ := net.SplitHostPort(listen) // checked before
	if (c.inCluster() || name == "peer") && isUnspecified(host) {
		return fmt.Errorf("--%s-addr %s does not say where others find this broker: give --advertise-%s-addr host:port", name, listen, name)
	}
	return nil
}

// peerAddress is where others are told to reach this broker.
func (c *Config) peerAddress() string {
	return cmp.Or(c.AdvertisePeer, c.Peers[c.NodeID], c.PeerAddr)
}

// checkReach refuses settings by which others would look for this broker where
// they are themselves, or where it does not listen.
func (c *Config) checkReach() error {
	own := c.peerAddress()
	if isLocal(own) {
		for _, other := range slices.Concat(slices.Collect(maps.Values(c.Peers)), c.Join) {
			if !isLocal(other) {
				return fmt.Errorf("node %d tells others to reach it at %s, which for the one at %s is its own machine: give --peer-addr or --advertise-peer-addr", c.NodeID, own, other)
			}
		}
		return nil
	}
	if c.AdvertisePeer == "" && isLocal(c.PeerAddr) {
		return fmt.Errorf("--peers says that node %d is at %s, and --peer-addr %s can be reached from this machine only: give --peer-addr, or --advertise-peer-addr if something passes on what comes there", c.NodeID, own, c.PeerAddr)
	}
	return nil
}

// isLocal says whether an address is of use on its own machine only.
func isLocal(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	return err == nil && isLoopback(host)
}

// inCluster says whether the settings speak of other brokers.
func (c *Config) inCluster() bool { return len(c.Peers) > 0 || len(c.Join) > 0 }

func isUnspecified(host string) bool {
	ip := net.ParseIP(host)
	return host == "" || ip != nil && ip.IsUnspecified()
}

// isDialable says whether others can connect to addr, as far as one can see.
func isDialable(addr string) bool {
	host, port, err := net.SplitHostPort(addr)
	if err != nil || isUnspecified(host) {
		return false
	}
	n, err := strconv.ParseUint(port, 10, 16)
	return err == nil && n > 0
}

// peerList is the value of --peers.
type peerList map[uint64]string

// String is the list as it is given, in the order of the ids.
func (p *peerList) String() string {
	var all []string
	for _, id := range slices.Sorted(maps.Keys(*p)) {
		all = append(all, fmt.Sprintf("%d=%s", id, (*p)[id]))
	}
	return strings.Join(all, ",")
}

// Set reads a list; the one before is forgotten.
func (p *peerList) Set(text string) error {
	list := peerList{}
	used := map[string]uint64{}
	for entry := range strings.SplitSeq(text, ",") {
		number, addr, _ := strings.Cut(strings.TrimSpace(entry), "=")
		id, err := strconv.ParseUint(number, 10, 32)
		switch {
		case err != nil || id == 0 || !isDialable(addr):
			return fmt.Errorf("%q is not ID=host:port, as in 1=felix-1:7381", entry)
		case list[id] != "":
			return fmt.Errorf("node %d is there twice", id)
		case used[addr] != 0:
			return fmt.Errorf("nodes %d and %d have one address", used[addr], id)
		}
		list[id], used[addr] = addr, id
	}
	*p = list
	return nil
}

// Type is what pflag calls it.
func (*peerList) Type() string { return "list of brokers" }

// addrList is the value of --join.
type addrList []string

// String is the list as it is given.
func (a *addrList) String() string { return strings.Join(*a, ",") }

// Set reads a list; the one before is forgotten.
func (a *addrList) Set(text string) error {
	var list addrList
	for addr := range strings.SplitSeq(text, ",") {
		if addr = strings.TrimSpace(addr); !isDialable(addr) {
			return fmt.Errorf("%q is not host:port, as in felix-1:7381", addr)
		}
		list = append(list, addr)
	}
	*a = list
	return nil
}

// Type is what pflag calls it.
func (*addrList) Type() string { return "list of addresses" }
