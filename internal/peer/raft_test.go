package peer

import (
	"bytes"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"
)

// Messages of many shards arrive whole and those of a kind in order.
func TestRaftMessagesArrive(t *testing.T) {
	a, b := newBroker(t, 1, nil), newBroker(t, 2, nil)
	meet(t, a, b)
	big := bytes.Repeat([]byte("x"), 3*frameBytes)
	var want []Message
	for shard := range uint64(300) {
		data := []byte{byte(shard)}
		if shard%100 == 0 {
			data = big
		}
		want = append(want, Message{Shard: shard, M: appOf(1, 2, data)})
	}
	a.net.SendRaft(2, want[:150])
	a.net.SendRaft(2, want[150:])
	eventually(t, "all messages have come", func() (all bool) {
		b.locked(func() { all = len(b.messages) == len(want) })
		return all
	})
	b.locked(func() {
		for i, m := range b.messages {
			if m.Shard != want[i].Shard || !proto.Equal(m.M, want[i].M) {
				t.Fatalf("message %d is of shard %d", i, m.Shard)
			}
		}
	})
	eventually(t, "clocks are compared", func() (ok bool) {
		a.locked(func() { ok = a.clocks[2] == Pong{WallMillis: 4711, Eligible: true, Stopping: true} })
		return ok
	})
	if l := a.net.Links(); len(l) != 1 || l[0].Node != 2 || !l[0].Up || l[0].LastHeard == 0 || l[0].Addr != b.addr || l[0].Refused != "" {
		t.Errorf("links: %+v", l)
	}
}

// A message to nobody is dropped, and raft is told of those that it must send
// again.
func TestRaftWithoutALink(t *testing.T) {
	a := newBroker(t, 1, nil)
	a.net.SendRaft(2, []Message{{7, appOf(1, 2, nil)}, {8, heartbeatOf(1, 2)}})
	a.net.SetPeers([]Peer{{Node: 2, StoreID: storeOf(2), Addr: "127.0.0.1:1"}})
	a.net.SendRaft(2, []Message{{9, appOf(1, 2, nil)}, {10, heartbeatOf(1, 2)}})
	if !slices.Equal(a.dropped, []uint64{7, 9}) {
		t.Errorf("dropped: %v", a.dropped)
	}
}

// Heartbeats go before entries, and entries keep their order; what exceeds the
// queue is dropped, entries first.
func TestRaftQueue(t *testing.T) {
	q := newRaftQueue(8 << 10)
	q.setUp(true)
	var dropped []uint64
	for shard := range uint64(20) {
		dropped = append(dropped, q.add([]Message{{shard, appOf(1, 2, make([]byte, 800))}})...)
	}
	if len(dropped) != 12 || dropped[0] != 8 {
		t.Errorf("dropped: %v", dropped)
	}
	beats := 0
	for range 100 {
		before := q.waiting()
		if d := q.add([]Message{{99, heartbeatOf(1, 2)}}); len(d) != 0 {
			t.Errorf("a heartbeat is reported as %v", d)
		}
		if q.waiting() > before {
			beats++
		}
	}
	if q.waiting() > 9<<10 || beats < 8 || beats == 100 {
		t.Errorf("%d bytes wait, %d heartbeats", q.waiting(), beats)
	}
	b, err := q.take(nil)
	if err != nil {
		t.Fatal(err)
	}
	ms, err := decodeMessages(b)
	if err != nil || len(ms) != beats+8 {
		t.Fatalf("%d messages, %v", len(ms), err)
	}
	for i, m := range ms {
		want := uint64(99)
		if i >= beats {
			want = uint64(i - beats)
		}
		if m.Shard != want {
			t.Errorf("message %d is of shard %d, want %d", i, m.Shard, want)
		}
	}
	if q.waiting() != 0 {
		t.Errorf("%d bytes wait", q.waiting())
	}
	q.add([]Message{{3, appOf(1, 2, nil)}, {2, appOf(1, 2, nil)}, {3, appOf(1, 2, nil)}, {4, heartbeatOf(1, 2)}})
	if d := q.setUp(false); !slices.Equal(d, []uint64{2, 3}) || q.waiting() != 0 {
		t.Errorf("at the end of a link %v is dropped, %d bytes wait", d, q.waiting())
	}
}

// Two peers' streams encode the same entries at once, as raft shares them.
func TestEntriesAreShared(t *testing.T) {
	entries := appOf(1, 2, []byte("shared")).GetEntries()
	var all sync.WaitGroup
	for to := uint64(2); to <= 3; to++ {
		all.Go(func() {
			for range 200 {
				m := &raftpb.Message{Type: raftpb.MsgApp.Enum(), To: proto.Uint64(to), Entries: entries}
				if _, err := appendMessage(nil, Message{1, m}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
}

// A link that breaks, and a peer that restarts at another address, are found
// again; raft hears of each change.
func TestReconnects(t *testing.T) {
	wire := newWire()
	a := newBroker(t, 1, func(o *Options) { o.Dial = wire.dial })
	b := newBroker(t, 2, nil)
	meet(t, a, b)
	wire.cut()
	eventually(t, "the link is up again", func() (ok bool) {
		a.locked(func() { ok = slices.Equal(a.ups[2], []bool{true, false, true}) })
		return ok
	})
	a.awaitLink(2)

	ctx, cancel := timeout(time.Second)
	defer cancel()
	if err := b.net.Shutdown(ctx); err != nil {
		t.Error(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	again := serve(t, 2, ln, nil)
	again.locked(func() { again.id.Instance, again.id.Starts = "another", 2 })
	again.net.SetPeers([]Peer{a.peer()})
	eventually(t, "node 2 is dialled at the address of its hello", func() bool { return a.net.Links()[0].Addr == again.addr })
	eventually(t, "it is the new one that is linked", func() (ok bool) {
		again.locked(func() { ok = again.clocks[1].WallMillis != 0 })
		return ok
	})
	a.awaitLink(2)
	a.net.SetPeers([]Peer{{Node: 2, StoreID: storeOf(2), Addr: b.addr}})
	if l := a.net.Links(); l[0].Addr != again.addr || !l[0].Up {
		t.Errorf("what SetPeers said before goes before the hello: %+v", l[0])
	}
	a.net.SetPeers(nil)
	if l := a.net.Links(); len(l) != 0 {
		t.Errorf("links that nobody wants: %+v", l)
	}
}

// A peer that takes nothing any more, though its connection stands, is noticed
// within two seconds, and found again when the network heals.
func TestSilenceIsNoticed(t *testing.T) {
	wire := newWire()
	a := newBroker(t, 1, func(o *Options) { o.Dial = wire.dial })
	b := newBroker(t, 2, nil)
	meet(t, a, b)
	wire.hold()
	began := time.Now()
	eventually(t, "the link is down", func() bool { return !a.net.Links()[0].Up })
	if took := time.Since(began); took > 4*time.Second { // twice what is promised: the machine is shared
		t.Errorf("it took %v", took)
	}
	wire.release()
	a.awaitLink(2)
}
