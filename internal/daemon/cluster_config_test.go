package daemon

import (
	"net"
	"reflect"
	"testing"
	"time"

	"github.com/felix-go/felix/internal/broker"
	"github.com/felix-go/felix/internal/peer"
)

// Every setting of the cluster reaches the broker, and others are told where the
// listeners are, as far as these know it themselves.
func TestClusterOptions(t *testing.T) {
	c := DefaultConfig(false)
	c.RESPAddr, c.HTTPAddr, c.PeerAddr = "127.0.0.1:0", "[::]:0", "127.0.0.1:0"
	l, err := listen(c)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.close() }()
	want := broker.ClusterOptions{Listener: l.peer, Version: Version(), ReplaceAfter: 5 * time.Minute, MaxClockOffset: 500 * time.Millisecond,
		Advertise: broker.Addresses{Peer: l.peer.Addr().String(), RESP: l.resp.Addr().String()}}
	check := func() {
		t.Helper()
		d := &Daemon{config: c, listeners: l}
		if got := d.clusterOptions(); !reflect.DeepEqual(got, want) {
			t.Errorf("%+v, want %+v", got, want)
		}
	}
	check()
	c.Peers, c.Join, c.Reads = map[uint64]string{1: "a:1"}, []string{"b:1"}, "lease"
	c.ReplaceAfter, c.MaxClockOffset = time.Hour, time.Second
	c.AdvertisePeer, c.AdvertiseHTTP, c.AdvertiseRESP = "p:1", "h:1", "r:1"
	c.PeerCert, c.PeerKey, c.PeerCA = "cert", "key", "ca"
	want = broker.ClusterOptions{Listener: l.peer, Version: Version(), Peers: c.Peers, Join: c.Join, Reads: "lease",
		ReplaceAfter: time.Hour, MaxClockOffset: time.Second, Advertise: broker.Addresses{Peer: "p:1", HTTP: "h:1", RESP: "r:1"},
		TLS: &peer.TLS{CertFile: "cert", KeyFile: "key", CAFile: "ca"}}
	check()
}

// A listener that cannot be bound leaves none behind.
func TestListenIsAllOrNothing(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	c := DefaultConfig(false)
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c.RESPAddr, c.HTTPAddr, c.PeerAddr = free.Addr().String(), "127.0.0.1:0", taken.Addr().String()
	if err := free.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := listen(c); err == nil {
		t.Fatal("a port that is taken was bound")
	}
	again, err := net.Listen("tcp", c.RESPAddr)
	if err != nil {
		t.Fatalf("the listener before it was left open: %v", err)
	}
	_ = again.Close()
}
