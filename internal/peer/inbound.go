package peer

import (
	"sync"
	"time"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/invariant"
)

var errAnswersFull = &felix.Error{Code: felix.ResourceExhausted,
	Message:    "more answers wait for the broker that asked than it takes; nothing was applied, try again a little later",
	RetryAfter: 100 * time.Millisecond}

// Link is a peer that has sent calls: where their answers go.
type Link struct {
	// Node is the peer.
	Node uint64

	limit     int64
	onDrained func()
	count     *sent // of answers

	mu       sync.Mutex
	changed  *sync.Cond // of pending and closed
	open     int        // calls that the Handler has not answered
	taken    uint64     // number of the last call given to the Handler or refused
	frames   [][]byte   // full ones, waiting for the sender
	current  []byte     // the frame that answers are added to
	inside   int        // answers in current
	pending  int64      // bytes of frames and current, and of what is being sent
	leaving  bool       // no more calls are looked at
	closed   bool       // the stream has ended
	draining bool       // calls are refused
	wake     chan struct{}
	overflow func() // ends the stream
}

func newLink(node uint64, limit int64) *Link {
	l := &Link{Node: node, limit: limit, wake: make(chan struct{}, 1), count: new(sent)}
	l.changed = sync.NewCond(&l.mu)
	return l
}

// take registers the calls of a frame and answers those that the Handler is to
// be given: none if this broker is leaving. It waits while more answers wait for
// the peer than it may let pile up, so that its own queue fills, not ours.
func (l *Link) take(calls []*Call) []*Call {
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.pending > l.limit/2 && !l.closed && !l.leaving {
		l.changed.Wait()
	}
	switch {
	case l.closed || l.leaving:
		return nil // not answered: after a goodbye the peer knows
	case l.draining:
		for _, c := range calls {
			c.Outcome = NotOwner
			l.add(c)
		}
		l.taken = calls[len(calls)-1].seq
		signal(l.wake)
		return nil
	}
	l.taken = calls[len(calls)-1].seq
	l.open += len(calls)
	for _, c := range calls {
		c.open = true
	}
	return calls
}

// Answer sends the answers of calls: their results, Err or NotOwner. Each call
// is answered once, from any goroutine, and its replies' memory is not needed
// afterwards. It does not block.
func (l *Link) Answer(calls ...*Call) {
	l.mu.Lock()
	for _, c := range calls {
		if !c.open {
			l.mu.Unlock()
			invariant.Fail("call %d of node %d was answered twice", c.seq, l.Node)
		}
		c.open = false
		l.add(c)
	}
	l.open -= len(calls)
	idle := l.open == 0
	l.mu.Unlock()
	signal(l.wake)
	if idle && l.onDrained != nil {
		l.onDrained()
	}
}

// add encodes an answer. Too much for the peer's pace is refused where nothing
// was changed; otherwise the stream ends, and the peer knows that it does not
// know.
func (l *Link) add(c *Call) {
	if l.closed {
		return
	}
	if size := answerBytes(c); l.pending > 0 && l.pending+size > l.limit || size > maxFrameBytes-frameBytes {
		if c.mutates() {
			l.end() // who waits in take must hear of it, for nobody may send any more
			l.overflow()
			return
		}
		c.Outcome, c.Err = Answered, errAnswersFull
	}
	before := len(l.current)
	l.current = appendAnswer(l.current, c)
	l.pending += int64(len(l.current) - before)
	l.inside++
	if len(l.current) >= frameBytes {
		l.frames = append(l.frames, l.full())
	}
}

// next takes a frame to be sent, nil if there is none. spare is the one before,
// which has been sent. last says that all has been sent, and no more will come.
func (l *Link) next(spare []byte) (frame []byte, last bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(spare) > 0 {
		l.pending -= int64(len(spare))
		l.changed.Broadcast()
	}
	if len(l.frames) > 0 {
		frame = l.frames[0]
		l.frames = l.frames[1:]
		return frame, false
	}
	if len(l.current) > 0 {
		frame = l.full()
		l.current = reuse(spare)
		return frame, false
	}
	return nil, l.leaving && l.open == 0
}

// full takes the frame that answers are added to; mu is held.
func (l *Link) full() []byte {
	frame := l.current
	l.count.frame(l.inside)
	l.current, l.inside = nil, 0
	return frame
}

// reuse empties a buffer that is not too large to be kept.
func reuse(b []byte) []byte {
	if cap(b) > 4*frameBytes {
		return nil
	}
	return b[:0]
}

// drain makes the link refuse calls as not the owner's.
func (l *Link) drain() {
	l.mu.Lock()
	l.draining = true
	l.mu.Unlock()
}

// leave makes the link look at no more calls and say goodbye, once what it has
// taken is answered.
func (l *Link) leave() {
	l.mu.Lock()
	l.leaving = true
	l.mu.Unlock()
	l.changed.Broadcast()
	signal(l.wake)
}

// close ends the link: answers go nowhere.
func (l *Link) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.end()
}

// end is close with mu held.
func (l *Link) end() {
	l.closed = true
	l.frames, l.current = nil, nil
	l.changed.Broadcast()
}

// idle says whether all calls are answered.
func (l *Link) idle() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.open == 0
}

// lastTaken is the number of the last call that was looked at.
func (l *Link) lastTaken() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.taken
}
