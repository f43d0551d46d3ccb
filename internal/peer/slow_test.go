package peer

import (
	"io"
	"net"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/peer/peerv1"
)

func heapBytes() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// TestSlowPeerIsBounded: a peer that reads next to nothing costs what its queues
// may hold, and no more; callers are told so at once, and raft what it must send
// again.
func TestSlowPeerIsBounded(t *testing.T) {
	const limit = 4 << 20
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b := serve(t, 2, slowListener{Listener: ln, bytes: 200, every: 200 * time.Millisecond}, nil)
	a := newBroker(t, 1, func(o *Options) { o.RaftQueueBytes, o.ForwardQueueBytes = limit, limit })
	a.net.SetPeers([]Peer{b.peer()})
	a.awaitLink(2)
	before := heapBytes()
	var told, refused atomic.Int64
	var all sync.WaitGroup
	value := make([]byte, 64<<10)
	most := LinkInfo{}
	for i := range 2000 {
		all.Add(1)
		a.net.Forward(2, &Call{Batch: &felix.Batch{Ops: []felix.Op{{Kind: felix.Set, Key: []byte("k"), Value: value}},
			Replies: make([]felix.Reply, 1)}, Positions: []int32{0}, Deadline: a.net.o.Mono() + time.Second, Done: func(c *Call) {
			told.Add(1)
			if c.Outcome == Answered && c.Err != nil && c.Err.Code == felix.ResourceExhausted {
				refused.Add(1)
			}
			all.Done()
		}})
		a.net.SendRaft(2, []Message{{uint64(i), appOf(1, 2, make([]byte, 64<<10))}, {uint64(i), heartbeatOf(1, 2)}})
		l := a.net.Links()[0]
		most.RaftBytes, most.ForwardBytes = max(most.RaftBytes, l.RaftBytes), max(most.ForwardBytes, l.ForwardBytes)
	}
	if grown := heapBytes() - before; grown > 6*limit { // two queues, and what buffers of HTTP/2 and frames hold
		t.Errorf("the heap has grown by %d MB", grown>>20)
	}
	if most.RaftBytes > limit*9/8 || most.ForwardBytes > limit || most.RaftBytes < limit/2 || most.ForwardBytes < limit/2 {
		t.Errorf("%d and %d bytes waited", most.RaftBytes, most.ForwardBytes)
	}
	a.locked(func() {
		if len(a.dropped) < 1000 || !slices.Contains(a.dropped, 1999) {
			t.Errorf("raft heard of %d drops", len(a.dropped))
		}
	})
	if refused.Load() < 1000 {
		t.Errorf("%d calls were refused at once", refused.Load())
	}
	all.Wait()
	if told.Load() != 2000 {
		t.Errorf("%d calls were told", told.Load())
	}
}

// Answers wait for a peer that does not read them up to a limit, then reads are
// refused; what may have changed something ends the link, since it must not be
// told to be refused.
func TestAnswersAreBounded(t *testing.T) {
	const limit = 1 << 20
	l := newLink(1, limit)
	ended := make(chan struct{})
	l.overflow = func() { close(ended) }
	value := make([]byte, 100<<10)
	answer := func(kind felix.Kind, seq uint64) {
		c := &Call{seq: seq, Batch: &felix.Batch{Ops: []felix.Op{{Kind: kind}}, Replies: []felix.Reply{{Value: value}}}, Positions: []int32{0}, open: true}
		l.open++
		l.Answer(c)
	}
	for seq := range uint64(30) {
		answer(felix.Get, seq)
	}
	if l.pending > limit+4096 {
		t.Errorf("%d bytes wait", l.pending)
	}
	refused := 0
	var spare []byte
	for {
		frame, _ := l.next(spare)
		if spare = frame; len(frame) == 0 {
			break
		}
		d := decoder{b: frame}
		for len(d.b) > 0 {
			_, body := d.nextAnswer()
			c := &Call{Batch: &felix.Batch{Replies: make([]felix.Reply, 1)}, Positions: []int32{0}}
			if err := decodeAnswer(body, c); err != nil {
				t.Fatal(err)
			}
			if c.Err != nil && c.Err.Code == felix.ResourceExhausted {
				refused++
			}
		}
	}
	if refused != 20 || l.pending != 0 {
		t.Errorf("%d of 30 reads were refused, %d bytes wait", refused, l.pending)
	}
	select {
	case <-ended:
		t.Fatal("reads have ended the link")
	default:
	}
	for seq := range uint64(12) {
		answer(felix.Delete, seq)
	}
	<-ended
}

// While too many answers wait, no more calls are taken from the peer.
func TestCallsWaitForAnswers(t *testing.T) {
	l := newLink(1, 1000)
	c := &Call{Kind: CallScan, seq: 1}
	c.Page.Next = make([]byte, 600)
	l.take([]*Call{c})
	l.Answer(c)
	taken := make(chan []*Call)
	go func() { taken <- l.take([]*Call{{Kind: CallCount, seq: 2}}) }()
	select {
	case <-taken:
		t.Fatal("a call was taken")
	case <-time.After(20 * time.Millisecond):
	}
	frame, _ := l.next(nil)
	l.next(frame)
	if got := <-taken; len(got) != 1 {
		t.Errorf("%d calls were taken", len(got))
	}
	c = &Call{Kind: CallScan, seq: 3}
	c.Page.Next = make([]byte, 600)
	l.take([]*Call{c})
	l.Answer(c)
	go func() { taken <- l.take([]*Call{{Kind: CallCount, seq: 4}}) }()
	l.close()
	if got := <-taken; len(got) != 0 {
		t.Errorf("a link that has ended takes %d calls", len(got))
	}
}

// TestReaderHearsOfABrokenStream: when a stream can be sent nothing any more, or
// more waits for it than it takes, the reader that waits for answers to be sent
// ends as well, and nothing is kept.
//
// Broken: close in exchange (service.go); Broadcast in end, or end in add
// (inbound.go).
func TestReaderHearsOfABrokenStream(t *testing.T) {
	for name, overflow := range map[string]bool{"nothing can be sent": false, "too much waits": true} {
		t.Run(name, func(t *testing.T) {
			b := newBroker(t, 1, nil)
			mine, _ := net.Pipe()
			in := &inbound{kind: forwardStream, conn: mine, calls: newLink(2, 1000)}
			in.calls.overflow = in.cut
			var held *Call
			b.forward = func(from *Link, calls []*Call) {
				held = calls[0]
				calls[1].Page.Next = make([]byte, 600)
				from.Answer(calls[1])
			}
			frames, third, sent := 0, make(chan struct{}), make(chan struct{})
			receive := func() (*peerv1.ForwardFrame, error) {
				if frames++; frames > 2 {
					close(third)
					_, err := mine.Read(make([]byte, 1))
					return nil, err
				}
				var calls []byte
				for i := range 2 {
					calls = appendCall(calls, &Call{Kind: CallScan, Shard: 1, seq: uint64(frames*2 + i - 1), Scan: felix.ScanRequest{Limit: 1}}, time.Second)
				}
				return &peerv1.ForwardFrame{Kind: &peerv1.ForwardFrame_Calls{Calls: calls}}, nil
			}
			ended := make(chan error, 1)
			s := &service{b.net}
			go func() {
				ended <- s.exchange(t.Context(), in, receive, func(*peerv1.ForwardFrame) error { <-sent; return io.ErrClosedPipe })
			}()
			eventually(t, "the reader waits for answers to be sent", func() bool {
				in.calls.mu.Lock()
				defer in.calls.mu.Unlock()
				return in.calls.pending > in.calls.limit/2
			})
			if overflow { // while a frame is being sent
				held.Kind, held.Positions = CallOps, []int32{0}
				held.Batch = &felix.Batch{Ops: []felix.Op{{Kind: felix.Delete}}, Replies: []felix.Reply{{Value: make([]byte, 900)}}}
				in.calls.Answer(held)
			} else {
				close(sent)
			}
			select {
			case <-third:
			case <-time.After(patience):
				t.Fatal("the reader waits for ever")
			}
			if overflow {
				close(sent)
			}
			if err := <-ended; err == nil {
				t.Error("it ended by itself")
			}
			if len(in.calls.frames)+len(in.calls.current) > 0 {
				t.Error("answers are kept")
			}
		})
	}
}
