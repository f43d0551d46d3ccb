package peer

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/peer/peerv1"
	"github.com/felix-go/felix/internal/peer/peerv1/peerv1connect"
)

// What is asked before a broker is a member needs no handshake, and answers what
// the other side says, errors too.
func TestCaller(t *testing.T) {
	a, b := newBroker(t, 1, nil), newBroker(t, 2, nil)
	ctx, cancel := timeout(patience)
	defer cancel()
	c := a.net.Caller(b.addr)
	if p, err := c.Probe(ctx); err != nil || p != (ProbeInfo{2, storeOf(2), "cluster", true, "digest"}) {
		t.Errorf("Probe: %+v, %v", p, err)
	}
	adoption := Adoption{ClusterID: "cluster", Founders: []Peer{{Node: 1, StoreID: "s1", Addr: "h:1"}, {Node: 2, StoreID: "s2", Addr: "h:2"}}}
	if err := c.Adopt(ctx, adoption); err != nil || !reflect.DeepEqual(b.adopted, adoption) {
		t.Errorf("Adopt: %+v, %v", b.adopted, err)
	}
	if err := c.Form(ctx, "cluster"); err != nil {
		t.Errorf("Form: %v", err)
	}
	var r *Refusal
	if err := c.Form(ctx, "other"); !errors.As(err, &r) || r.Reason != ReasonCluster || r.Message != "another cluster" {
		t.Errorf("Form of another cluster: %v", err)
	}
	join := JoinRequest{Node: 4, StoreID: "s4", PeerAddr: "p", HTTPAddr: "h", RESPAddr: "r", Version: "v", Features: []string{"f", "g"}}
	reply, err := c.Join(ctx, join)
	want := JoinReply{ClusterID: "cluster", MetaRaftID: 8, Nodes: []Peer{{Node: 1, StoreID: "store1", Addr: "h1:1"}, {Node: 2, StoreID: "store2", Addr: "h2:2"}}}
	if err != nil || !reflect.DeepEqual(b.joined, join) || !reflect.DeepEqual(reply, want) {
		t.Errorf("Join: %+v, %+v, %v", b.joined, reply, err)
	}
	join.Node = 1
	if _, err := c.Join(ctx, join); felix.AsError(err).Code != felix.AlreadyExists || felix.AsError(err).Message != "node 1 exists" {
		t.Errorf("Join of one that exists: %v", err)
	}
	if _, err := a.net.Caller("127.0.0.1:1").Probe(ctx); felix.AsError(err).Code != felix.Unavailable {
		t.Errorf("Probe of nobody: %v", err)
	}
}

// Members ask about shards and metadata; brokers of other clusters may not.
func TestMembersAsk(t *testing.T) {
	a, b := newBroker(t, 1, nil), newBroker(t, 2, nil)
	a.net.SetPeers([]Peer{b.peer()})
	ctx, cancel := timeout(patience)
	defer cancel()
	if s, err := a.net.Status(ctx, 2); err != nil || len(s.GetShards()) != 1 || s.GetShards()[0].GetShard() != 5 {
		t.Errorf("Status: %v, %v", s, err)
	}
	if err := a.net.AwaitMeta(ctx, 2, 5); err != nil {
		t.Errorf("AwaitMeta: %v", err)
	}
	short, stop := timeout(50 * time.Millisecond)
	defer stop()
	if err := a.net.AwaitMeta(short, 2, 0); felix.AsError(err).Code != felix.Unavailable {
		t.Errorf("AwaitMeta of what does not come: %v", err)
	}
	most := make([]*peerv1.ReplicaHashes, MaxCompared)
	for i := range most {
		point := &peerv1.HashPoint{Index: math.MaxUint64, Hash: math.MaxUint64 - 1}
		most[i] = &peerv1.ReplicaHashes{Shard: math.MaxUint64 - uint64(i), RaftId: math.MaxUint64, ChainBase: math.MaxUint64,
			HashStateAt: math.MaxUint64, Chain: slices.Repeat([]*peerv1.HashPoint{point}, 5), States: slices.Repeat([]*peerv1.HashPoint{point}, 3)}
	}
	if got, err := a.net.Compare(ctx, 2, most); err != nil || len(got) != len(most) || got[9].GetShard() != most[9].GetShard() ||
		got[9].GetChain()[4].GetHash() != math.MaxUint64 || got[9].GetStates()[2].GetHash() != math.MaxUint64 {
		t.Errorf("Compare: %v, %v", got, err)
	}
	a.locked(func() { a.id.ClusterID = "other" })
	var r *Refusal
	if _, err := a.net.Status(ctx, 2); !errors.As(err, &r) || r.Reason != ReasonCluster {
		t.Errorf("Status from another cluster: %v", err)
	}
	if err := a.net.AwaitMeta(ctx, 2, 5); !errors.As(err, &r) || r.Reason != ReasonCluster {
		t.Errorf("AwaitMeta from another cluster: %v", err)
	}
	if _, err := a.net.Compare(ctx, 2, most); !errors.As(err, &r) || r.Reason != ReasonCluster {
		t.Errorf("Compare from another cluster: %v", err)
	}
	if _, err := a.net.Compare(ctx, 3, most); felix.AsError(err).Code != felix.Unavailable {
		t.Errorf("Compare with nobody: %v", err)
	}
	if _, err := a.net.Status(ctx, 3); felix.AsError(err).Code != felix.Unavailable {
		t.Errorf("Status of nobody: %v", err)
	}
}

// snapshotOf makes the header of a snapshot and the next of its chunks.
func snapshotOf(chunks [][]byte) (SnapshotHeader, func([]byte) ([]byte, error)) {
	h := SnapshotHeader{Shard: 6, Applied: []byte("applied"), EstimatedBytes: 1234,
		Message: &raftpb.Message{Type: raftpb.MsgSnap.Enum(), Term: proto.Uint64(3)}}
	return h, func(buf []byte) ([]byte, error) {
		if len(chunks) == 0 {
			return nil, io.EOF
		}
		n := copy(buf, chunks[0])
		chunks = chunks[1:]
		return buf[:n], nil
	}
}

func TestSnapshot(t *testing.T) {
	a, b := newBroker(t, 1, nil), newBroker(t, 2, nil)
	a.net.SetPeers([]Peer{b.peer()})
	r := rand.New(rand.NewPCG(1, 1))
	var want [][]byte
	for i := range 40 {
		chunk := bytes.Repeat([]byte{byte(r.Uint32())}, SnapshotChunkBytes)
		want = append(want, chunk[:len(chunk)-i])
	}
	h, next := snapshotOf(want)
	ctx, cancel := timeout(patience)
	defer cancel()
	if err := a.net.SendSnapshot(ctx, 2, h, next); err != nil {
		t.Fatal(err)
	}
	if b.header.Shard != 6 || string(b.header.Applied) != "applied" || b.header.EstimatedBytes != 1234 || !proto.Equal(b.header.Message, h.Message) {
		t.Errorf("the header came as %+v", b.header)
	}
	if !reflect.DeepEqual(b.chunks, want) {
		t.Errorf("%d chunks came, not the same", len(b.chunks))
	}
	h, next = snapshotOf(nil)
	if err := a.net.SendSnapshot(ctx, 2, h, next); err != nil {
		t.Errorf("one without records: %v", err)
	}
}

// A snapshot that breaks off, at either end, is an error at both, and is never
// taken for a whole one.
func TestSnapshotFails(t *testing.T) {
	a, b := newBroker(t, 1, nil), newBroker(t, 2, nil)
	a.net.SetPeers([]Peer{b.peer()})
	ctx, cancel := timeout(patience)
	defer cancel()
	h, _ := snapshotOf(nil)
	chunks := 0
	err := a.net.SendSnapshot(ctx, 2, h, func(buf []byte) ([]byte, error) {
		if chunks++; chunks > 3 {
			return nil, errors.New("the disk is gone")
		}
		return buf, nil
	})
	if err == nil || !strings.Contains(err.Error(), "the disk is gone") {
		t.Errorf("the sender's error: %v", err)
	}
	b.locked(func() { b.snapErr = errors.New("no such replica") })
	// The receiver says so while the sender is still sending.
	err = a.net.SendSnapshot(ctx, 2, h, func(buf []byte) ([]byte, error) { return buf, nil })
	if err == nil || !strings.Contains(err.Error(), "no such replica") {
		t.Errorf("the receiver's error: %v", err)
	}
	gone, stop := context.WithCancel(ctx)
	b.locked(func() { b.snapErr = nil })
	err = a.net.SendSnapshot(gone, 2, h, func(buf []byte) ([]byte, error) {
		stop()
		return buf, nil
	})
	if err == nil {
		t.Error("one that was given up was taken")
	}
	if err := a.net.SendSnapshot(ctx, 3, h, nil); felix.AsError(err).Code != felix.Unavailable {
		t.Errorf("to nobody: %v", err)
	}
}

// No more than two go out, and two come in, at a time.
func TestSnapshotsAreFew(t *testing.T) {
	a, b, c := newBroker(t, 1, nil), newBroker(t, 2, nil), newBroker(t, 3, nil)
	a.net.SetPeers([]Peer{c.peer()})
	b.net.SetPeers([]Peer{c.peer()})
	c.stall = make(chan struct{})
	ctx, cancel := timeout(patience)
	defer cancel()
	sent := make(chan error, felix.MaxSnapshotStreams)
	send := func(from *broker) error {
		h, next := snapshotOf([][]byte{[]byte("x")})
		return from.net.SendSnapshot(ctx, 3, h, next)
	}
	for range felix.MaxSnapshotStreams {
		go func() { sent <- send(a) }()
	}
	eventually(t, "two snapshots are on their way", func() bool { return len(c.net.taking) == felix.MaxSnapshotStreams })
	if err := send(a); felix.AsError(err) != errSnapshotsBusy {
		t.Errorf("a third one from the same broker: %v", err)
	}
	if err := send(b); felix.AsError(err).Code != felix.ResourceExhausted {
		t.Errorf("a third one from another broker: %v", err)
	}
	close(c.stall)
	for range felix.MaxSnapshotStreams {
		if err := <-sent; err != nil {
			t.Error(err)
		}
	}
	if err := send(b); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}

// What was damaged on its way, lost or left out is noticed.
func TestDamagedSnapshot(t *testing.T) {
	chunk := func(crc uint32) *peerv1.SnapshotFrame {
		return &peerv1.SnapshotFrame{Kind: &peerv1.SnapshotFrame_Chunk{Chunk: &peerv1.SnapshotChunk{Data: []byte("data"), Crc32C: crc}}}
	}
	end := func(chunks uint64) *peerv1.SnapshotFrame {
		return &peerv1.SnapshotFrame{Kind: &peerv1.SnapshotFrame_End{End: &peerv1.SnapshotEnd{Chunks: chunks}}}
	}
	good := crcOf([]byte("data"))
	for name, v := range map[string]struct {
		frames []*peerv1.SnapshotFrame
		says   string
	}{
		"whole":       {[]*peerv1.SnapshotFrame{chunk(good), chunk(good), end(2)}, "EOF"},
		"damaged":     {[]*peerv1.SnapshotFrame{chunk(good), chunk(good + 1), end(2)}, "chunk 1 of the snapshot is damaged"},
		"one missing": {[]*peerv1.SnapshotFrame{chunk(good), end(2)}, "has 2 chunks, 1 have come"},
		"no end":      {[]*peerv1.SnapshotFrame{chunk(good)}, "broke off after 1 chunks: unexpected EOF"},
		"no chunk":    {[]*peerv1.SnapshotFrame{{}}, "consists of chunks"},
	} {
		stall := time.NewTimer(time.Hour)
		r := &chunkReader{stall: stall, receive: func() (*peerv1.SnapshotFrame, error) {
			if len(v.frames) == 0 {
				return nil, io.EOF
			}
			f := v.frames[0]
			v.frames = v.frames[1:]
			return f, nil
		}}
		var err error
		for err == nil {
			_, err = r.next()
		}
		if !strings.Contains(err.Error(), v.says) || (err == io.EOF) != (name == "whole") {
			t.Errorf("%s: %v", name, err)
		}
		if _, again := r.next(); again != err {
			t.Errorf("%s: first %v, then %v", name, err, again)
		}
	}
}

// Whatever a peer sends in place of a snapshot's frames: what is taken has the
// checksums that it came with and is all of it, or there is an error for good.
func FuzzChunks(f *testing.F) {
	frame := func(x *peerv1.SnapshotFrame) []byte {
		b, err := proto.Marshal(x)
		if err != nil {
			f.Fatal(err)
		}
		return append(binary.AppendUvarint(nil, uint64(len(b))), b...)
	}
	chunk := frame(&peerv1.SnapshotFrame{Kind: &peerv1.SnapshotFrame_Chunk{Chunk: &peerv1.SnapshotChunk{Data: []byte("data"), Crc32C: crcOf([]byte("data"))}}})
	end := frame(&peerv1.SnapshotFrame{Kind: &peerv1.SnapshotFrame_End{End: &peerv1.SnapshotEnd{Chunks: 2}}})
	f.Add(slices.Concat(chunk, chunk, end))
	f.Add(slices.Concat(chunk, end))
	f.Add(frame(&peerv1.SnapshotFrame{Kind: &peerv1.SnapshotFrame_Chunk{Chunk: &peerv1.SnapshotChunk{Data: []byte("data"), Crc32C: 1}}}))
	f.Add(slices.Concat(chunk, frame(&peerv1.SnapshotFrame{})))
	f.Fuzz(func(t *testing.T, b []byte) {
		d := decoder{b: b}
		var last *peerv1.SnapshotFrame
		r := &chunkReader{stall: time.NewTimer(time.Hour), progress: func(uint64) error { return nil }, receive: func() (*peerv1.SnapshotFrame, error) {
			last = &peerv1.SnapshotFrame{}
			body := d.bytes()
			if d.bad {
				return nil, io.EOF
			}
			return last, proto.Unmarshal(body, last)
		}}
		n := uint64(0)
		for {
			data, err := r.next()
			if err != nil {
				if _, again := r.next(); again != err || err == io.EOF && last.GetEnd().GetChunks() != n {
					t.Fatalf("%d chunks, then %v, then %v", n, err, again)
				}
				return
			}
			if n++; crcOf(data) != last.GetChunk().GetCrc32C() {
				t.Fatalf("chunk %d is damaged, and taken", n)
			}
		}
	})
}

// TestQuestionsAreSmall: anybody may ask, so that what they send is bounded.
//
// Broken: boundQuestions; hurryQuestions (network.go).
func TestQuestionsAreSmall(t *testing.T) {
	a, b := newBroker(t, 1, nil), newBroker(t, 2, nil)
	ctx, cancel := timeout(patience)
	defer cancel()
	if _, err := a.net.Caller(b.addr).Join(ctx, JoinRequest{Node: 3, Version: strings.Repeat("x", maxQuestionBytes/2)}); err != nil {
		t.Errorf("half of it: %v", err)
	}
	if _, err := a.net.Caller(b.addr).Join(ctx, JoinRequest{Node: 3, Version: strings.Repeat("x", maxQuestionBytes)}); err == nil {
		t.Error("more than that is read")
	}
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	transport := &http.Transport{Protocols: protocols}
	defer transport.CloseIdleConnections()
	slow, end := io.Pipe() // it never comes
	defer end.Close()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+b.addr+peerv1connect.PeerServiceProbeProcedure, slow)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/grpc")
	response, err := transport.RoundTrip(request)
	if err != nil {
		t.Fatalf("a question that does not come: %v", err)
	}
	defer response.Body.Close()
	if _, err := io.Copy(io.Discard, response.Body); ctx.Err() != nil {
		t.Errorf("a question that does not come is waited for: %v", err)
	}
}
