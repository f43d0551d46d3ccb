package peer

import (
	"errors"
	"net"
	"strings"
	"testing"

	"github.com/felix-go/felix/internal/peer/peerv1"
)

// TestHandshakeRefusals: every reason is told to the side that is refused, in a
// sentence, and no stream comes to be.
func TestHandshakeRefusals(t *testing.T) {
	for name, v := range map[string]struct {
		a      func(a *broker) // before they meet; b is node 2
		b      func(b *broker)
		reason Reason
		says   string
	}{
		"another cluster": {func(a *broker) { a.id.ClusterID = "other" }, nil, ReasonCluster,
			`node 1 is of cluster "other" and node 2 of cluster "cluster"`},
		"a build without a feature": {func(a *broker) { a.id.Features = nil }, func(b *broker) { b.roster.Finalized = []string{"fence"} },
			ReasonFeature, "the cluster has finalized fence, which felix test of node 1 does not have"},
		"removed": {nil, func(b *broker) { b.roster.Members[1] = Member{StoreID: storeOf(1), Removed: true} },
			ReasonRemoved, "node 1 was removed from this cluster; start it with an empty directory and a new --node-id"},
		"another directory": {func(a *broker) { a.id.StoreID = "wiped" }, nil, ReasonStore,
			"node 1 is known with another data directory: if it was lost or copied, run `felixctl node rm 1` and join under a new id"},
		"an old copy": {nil, func(b *broker) { b.roster.Members[1] = Member{StoreID: storeOf(1), Last: Start{1, "original"}} },
			ReasonStarts, "node 1 has gone on since its directory was copied: its directory is an old copy; run `felixctl node rm 1` and join under a new id"},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := newBroker(t, 1, nil), newBroker(t, 2, nil)
			if v.a != nil {
				a.locked(func() { v.a(a) })
			}
			if v.b != nil {
				b.locked(func() { v.b(b) })
			}
			a.net.SetPeers([]Peer{b.peer()})
			a.expectRefusal(v.reason, v.says)
			b.locked(func() {
				if len(b.messages) != 0 || len(b.ups) != 0 {
					t.Error("the refused one was heard")
				}
			})
		})
	}
}

// expectRefusal waits until node 2 refuses b.
func (b *broker) expectRefusal(reason Reason, says string) {
	b.t.Helper()
	var last *Refusal
	eventually(b.t, "it is refused as "+string(reason), func() bool {
		b.locked(func() {
			if n := len(b.refusals); n > 0 {
				last = b.refusals[n-1]
			}
		})
		return last != nil && last.Reason == reason
	})
	l := b.net.Links()[0]
	if !strings.Contains(last.Message, says) || l.Refused != last.Message || l.Up {
		b.t.Errorf("%q, link %+v", last.Message, l)
	}
	b.locked(func() {
		if len(b.ups[l.Node]) != 0 {
			b.t.Errorf("the link was up: %v", b.ups)
		}
	})
}

// An address that another broker uses now is refused by that one, and who dials
// does not take a welcome from anybody else.
func TestAddressOfAnother(t *testing.T) {
	a, c := newBroker(t, 1, nil), newBroker(t, 3, nil)
	a.net.SetPeers([]Peer{{Node: 2, StoreID: storeOf(2), Addr: c.addr}})
	a.expectRefusal(ReasonAddress, c.addr+" is the address of node 3 with store store3, not of node 2 with store store2")

	_, _, err := a.net.greet(Peer{Node: 2, StoreID: storeOf(2), Addr: "h:1"}, func(*peerv1.Hello) error { return nil },
		func() (frame, error) {
			w := helloOf(c.Self(), 1, storeOf(1))
			return &peerv1.RaftFrame{Kind: &peerv1.RaftFrame_Welcome{Welcome: w}}, nil
		})
	var r *Refusal
	if !errors.As(err, &r) || r.Reason != ReasonAddress || !strings.HasPrefix(r.Message, "h:1 is the address of node 3") {
		t.Errorf("the welcome of node 3 for node 2: %v", err)
	}
}

// Who dials checks as well: it is not the one that is refused, and only says why
// there is no link.
func TestWelcomeIsChecked(t *testing.T) {
	a, b := newBroker(t, 1, nil), newBroker(t, 2, nil)
	a.locked(func() { a.roster.Members[2] = Member{StoreID: storeOf(2), Removed: true} })
	a.net.SetPeers([]Peer{b.peer()})
	eventually(t, "the link is refused", func() bool { return strings.Contains(a.net.Links()[0].Refused, "node 2 was removed") })
	a.locked(func() {
		if len(a.refusals) != 0 {
			t.Errorf("node 2 did not refuse: %v", a.refusals)
		}
	})
}

// A node that is not known yet is no refusal: it tries again until it is.
func TestUnknownNodeWaits(t *testing.T) {
	a, b := newBroker(t, 1, nil), newBroker(t, 2, nil)
	asked := 0
	b.locked(func() { delete(b.roster.Members, 1) })
	a.net.SetPeers([]Peer{b.peer()})
	a.net.link(2).awaitWhy(t, "node 1: the node is not known here yet")
	a.locked(func() { asked = len(a.refusals) })
	if asked != 0 || a.net.Links()[0].Refused != "" {
		t.Errorf("it is refused: %+v", a.net.Links())
	}
	b.locked(func() { b.roster.Members[1] = Member{StoreID: storeOf(1)} })
	a.awaitLink(2)
}

// awaitWhy waits until the link has logged a reason.
func (l *link) awaitWhy(t *testing.T, why string) {
	t.Helper()
	eventually(t, "there is no link because "+why, func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return strings.Contains(l.lastWhy, why)
	})
}

// What is recorded of a node tells an old copy of its directory from the directory
// itself, whatever the copy was started since, and whatever was about to be
// recorded when a process died.
func TestPassed(t *testing.T) {
	for _, v := range []struct {
		name     string
		last     Start
		recorded []Start // of a process that is start 9
		passed   bool
	}{
		{"nothing is recorded", Start{}, nil, false},
		{"the record is what the directory knows", Start{7, "g"}, []Start{{7, "g"}}, false},
		{"this process is recorded", Start{9, "i"}, []Start{{7, "g"}}, false},
		{"what was about to be recorded was", Start{8, "h"}, []Start{{7, "g"}, {8, "h"}}, false},
		{"what was about to be recorded was not", Start{7, "g"}, []Start{{7, "g"}, {8, "h"}}, false},
		{"the record is old", Start{6, "f"}, []Start{{7, "g"}}, false},
		{"the original was started since", Start{8, "x"}, []Start{{7, "g"}}, true},
		{"and the copy as often", Start{9, "x"}, []Start{{7, "g"}}, true},
		{"and the copy more often", Start{8, "x"}, []Start{{7, "g"}, {9, "i"}}, true},
		{"two copies", Start{7, "x"}, []Start{{7, "g"}}, true},
		{"copied before it was ever recorded", Start{1, "x"}, nil, true},
	} {
		m := Member{Last: v.last}
		if got := m.Passed(Identity{Starts: 9, Instance: "i", Recorded: v.recorded}); got != v.passed {
			t.Errorf("%s: %t", v.name, got)
		}
	}
}

// TestRecheck: whoever would be refused by now is cut off, in both directions, and
// others are not.
func TestRecheck(t *testing.T) {
	a, b, c := newBroker(t, 1, nil), newBroker(t, 2, nil), newBroker(t, 3, nil)
	c.net.SetPeers([]Peer{b.peer()})
	a.net.SetPeers([]Peer{b.peer()})
	b.net.SetPeers([]Peer{a.peer(), c.peer()})
	for _, node := range []uint64{1, 3} {
		b.awaitLink(node)
	}
	a.awaitLink(2)
	b.locked(func() { b.roster.Members[1] = Member{StoreID: storeOf(1), Last: Start{5, "original"}} })
	b.net.Recheck()
	eventually(t, "it is refused", func() (is bool) {
		a.locked(func() { is = len(a.refusals) > 0 && a.refusals[0].Reason == ReasonStarts })
		return is
	})
	eventually(t, "its own link is down", func() bool { l := b.net.Links()[0]; return !l.Up && strings.Contains(l.Refused, "is an old copy") })
	b.locked(func() {
		if n := len(b.ups[3]); n != 1 {
			t.Errorf("the link to node 3 has changed %d times", n)
		}
	})
	b.locked(func() { b.roster.Members[1] = Member{StoreID: storeOf(1)} })
	a.awaitLink(2)
	b.awaitLink(1)
}

// TestEitherAddress: a peer is looked for at both of its addresses until it was
// found; one that is found stays there.
func TestEitherAddress(t *testing.T) {
	a, b, c := newBroker(t, 1, nil), newBroker(t, 2, nil), newBroker(t, 3, nil)
	p := b.peer()
	p.Addr, p.Also = c.addr, p.Addr
	a.net.SetPeers([]Peer{p})
	a.awaitLink(2)
	if l := a.net.link(2); l.target().Addr != b.addr {
		t.Errorf("it is looked for at %s", l.target().Addr)
	}
	p.Also = ""
	a.net.SetPeers([]Peer{p}) // as before
	if l := a.net.link(2); l.target().Addr != b.addr {
		t.Errorf("it is looked for at %s", l.target().Addr)
	}
}

// A second process under the same id is refused while the first one lives, and
// let in once it has gone.
func TestCopiedDirectory(t *testing.T) {
	a, b := newBroker(t, 1, nil), newBroker(t, 2, nil)
	meet(t, a, b)
	copied := newBroker(t, 1, nil)
	copied.locked(func() { copied.id.Instance = "copy" })
	// The copy was passed as well; that there are two says more.
	b.locked(func() { b.roster.Members[1] = Member{StoreID: storeOf(1), Last: Start{7, "original"}} })
	copied.net.SetPeers([]Peer{b.peer()})
	copied.expectRefusal(ReasonInstance, "another process already acts as node 1, at "+a.addr+": is this a copied directory?")
	if l := b.net.Links(); !l[0].Up || l[0].Addr != a.addr {
		t.Errorf("the copy has moved the link: %+v", l)
	}
	b.locked(func() { b.roster.Members[1] = Member{StoreID: storeOf(1)} })
	ctx, cancel := timeout(patience)
	defer cancel()
	if err := a.net.Shutdown(ctx); err != nil {
		t.Error(err)
	}
	copied.awaitLink(2)
}

// Two that come at the same moment were both checked before either was heard of:
// one is let in.
func TestCopiesAtOnce(t *testing.T) {
	b := newBroker(t, 2, nil)
	for i, in := range []*inbound{{kind: raftStream, id: Identity{Node: 1, Instance: "a", Addr: "h:1"}},
		{kind: raftStream, id: Identity{Node: 1, Instance: "b", Addr: "h:2"}}} {
		err := b.net.enter(in)
		var r *Refusal
		if i == 0 && err != nil || i == 1 && (!errors.As(err, &r) || r.Reason != ReasonInstance) {
			t.Errorf("instance %s: %v", in.id.Instance, err)
		}
		if err == nil {
			defer b.net.left(in)
		}
	}
}

// Who is no peer any more is cut off at once, and refused when it comes again.
func TestRemovedPeerIsCut(t *testing.T) {
	a, b := newBroker(t, 1, nil), newBroker(t, 2, nil)
	meet(t, a, b)
	b.locked(func() { b.roster.Members[1] = Member{StoreID: storeOf(1), Removed: true} })
	b.net.SetPeers([]Peer{b.peer()})
	eventually(t, "node 1 is refused", func() (ok bool) {
		a.locked(func() { ok = len(a.refusals) > 0 && a.refusals[0].Reason == ReasonRemoved })
		return ok && !a.net.Links()[0].Up
	})
}

func TestProtocolVersions(t *testing.T) {
	for _, v := range []struct {
		low, high uint32
		ok        bool
	}{{1, 1, true}, {0, 1, true}, {1, 9, true}, {2, 9, true}, {3, 9, false}, {0, 0, false}} {
		err := checkProtocol(&peerv1.Hello{ProtocolMin: v.low, ProtocolMax: v.high, Version: "9.9", From: 4})
		var r *Refusal
		if (err == nil) != v.ok || err != nil && (!errors.As(err, &r) || r.Reason != ReasonProtocol || !strings.Contains(r.Message, "felix 9.9 of node 4")) {
			t.Errorf("%+v: %v", v, err)
		}
	}
	b := newBroker(t, 2, nil)
	_, err := b.net.check(&peerv1.Hello{ProtocolMin: 3, ProtocolMax: 3, From: 1})
	if r := (*Refusal)(nil); !errors.As(err, &r) || r.Reason != ReasonProtocol {
		t.Errorf("a hello of another protocol: %v", err)
	}
	for high, spoken := range map[uint32]uint32{1: 1, 2: 2, 9: 2} {
		if id := identityOf(&peerv1.Hello{ProtocolMin: 1, ProtocolMax: high}); id.protocol != spoken {
			t.Errorf("with a build of up to %d, version %d is spoken, want %d", high, id.protocol, spoken)
		}
	}
}

// Who does not begin with a hello is not heard, and who says nothing at all is
// not waited for.
func TestNothingBeforeTheHandshake(t *testing.T) {
	a, b := newBroker(t, 1, nil), newBroker(t, 2, nil)
	ctx, cancel := timeout(patience)
	defer cancel()
	l := a.net.line(ctx, 2, b.addr)
	defer l.close(errLineClosed)
	stream := l.client.Raft(l.ctx)
	batch, err := appendMessage(nil, Message{1, appOf(1, 2, nil)})
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&peerv1.RaftFrame{Kind: &peerv1.RaftFrame_Batch{Batch: batch}}); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Receive(); err == nil || !strings.Contains(err.Error(), "begins with a hello") {
		t.Errorf("answered with %v", err)
	}
	b.locked(func() {
		if len(b.messages) != 0 {
			t.Error("its message was taken")
		}
	})
	silent := a.net.line(ctx, 2, b.addr)
	defer silent.close(errLineClosed)
	stream = silent.client.Raft(silent.ctx)
	if err := stream.Send(nil); err != nil { // the request alone
		t.Fatal(err)
	}
	conn, err := net.Dial("tcp", b.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if n, err := conn.Read(make([]byte, 1)); err == nil || n != 0 {
		t.Errorf("read %d bytes, %v", n, err)
	}
	if _, err := stream.Receive(); err == nil || ctx.Err() != nil {
		t.Errorf("a stream without a hello ended with %v", err)
	}
}
