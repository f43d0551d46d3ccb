package peer

import (
	"sync"
	"time"

	"github.com/felix-go/felix"
)

// forwarder is the calling side of the calls to one peer. It outlives the streams
// that carry them.
//
// A call is encoded under the lock, in the same critical section that moves it
// from queue to sent; whoever finishes a call takes it out of one of the two
// under the lock first. So a call that is told NotSent or Expired is in no frame,
// and one whose memory is given back to its caller is read by nobody.
type forwarder struct {
	mono  func() time.Duration
	limit int64
	count sent

	mu        sync.Mutex
	up        bool   // there is a stream
	protocol  uint32 // of the stream
	queue     []*Call
	queued    int64 // bytes of queue
	sent      map[uint64]*Call
	last      uint64        // number of the call sent last on this stream
	wake      chan struct{} // of the stream's sender; one token
	onDrained func()        // when nothing is left, nil if nobody waits for it
}

func newForwarder(mono func() time.Duration, limit int64) *forwarder {
	return &forwarder{mono: mono, limit: limit, sent: map[uint64]*Call{}, wake: make(chan struct{}, 1)}
}

var errQueueFull = &felix.Error{Code: felix.ResourceExhausted,
	Message:    "too much waits to be sent to the broker that owns the key; nothing was applied, try again a little later",
	RetryAfter: 100 * time.Millisecond}

// errOlderPeer is for calls that the owner's build could not read.
var errOlderPeer = felix.Errorf(felix.Unavailable,
	"the broker that owns the key runs an older build, which does not know this operation; nothing was applied: update that broker")

// add queues a call, or tells at once why not.
func (f *forwarder) add(c *Call) {
	c.bytes = callBytes(c)
	f.mu.Lock()
	up, full := f.up, f.queued+c.bytes > f.limit
	if up && !full {
		f.queue = append(f.queue, c)
		f.queued += c.bytes
	}
	f.mu.Unlock()
	switch {
	case !up:
		tell([]*Call{c}, NotSent)
	case full:
		c.Err = errQueueFull
		tell([]*Call{c}, Answered)
	default:
		signal(f.wake)
	}
}

// signal leaves a token in a channel of one.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// open begins a stream of this protocol version.
func (f *forwarder) open(protocol uint32) {
	f.mu.Lock()
	f.up, f.last, f.protocol = true, 0, protocol
	f.mu.Unlock()
}

// take encodes what waits, up to a frame, behind b.
func (f *forwarder) take(b []byte) []byte {
	var expired, foreign []*Call
	f.mu.Lock()
	now, before := f.mono(), f.last
	for f.up && len(f.queue) > 0 && len(b) < frameBytes {
		c := f.queue[0]
		f.queue[0] = nil
		f.queue = f.queue[1:]
		f.queued -= c.bytes
		if c.Deadline <= now {
			expired = append(expired, c)
			continue
		}
		if protocolOf(c) > f.protocol {
			c.Err = errOlderPeer
			foreign = append(foreign, c)
			continue
		}
		f.last++
		c.seq = f.last
		b = appendCall(b, c, c.Deadline-now)
		f.sent[c.seq] = c
	}
	f.count.frame(int(f.last - before))
	f.unlock()
	tell(expired, Expired)
	tell(foreign, Answered)
	return b
}

// unlock gives the lock back, and says so if nothing is left.
func (f *forwarder) unlock() {
	drained := f.onDrained
	if len(f.queue) > 0 || len(f.sent) > 0 {
		drained = nil
	}
	f.mu.Unlock()
	if drained != nil {
		drained()
	}
}

// answers reads a frame of answers. Those of calls that were told already, since
// their deadline was long past, are for nobody.
func (f *forwarder) answers(b []byte) error {
	d := decoder{b: b}
	for len(d.b) > 0 {
		seq, body := d.nextAnswer()
		if d.bad {
			return errMalformed
		}
		f.mu.Lock()
		c, valid := f.sent[seq], seq <= f.last
		delete(f.sent, seq)
		f.unlock()
		switch {
		case !valid:
			return errMalformed
		case c == nil:
		default:
			if err := decodeAnswer(body, c); err != nil {
				c.Err = nil
				tell([]*Call{c}, Lost)
				return err
			}
			c.Done(c)
		}
	}
	return nil
}

// expire tells of calls that have waited too long.
func (f *forwarder) expire() {
	var expired, lost []*Call
	f.mu.Lock()
	now := f.mono()
	kept := f.queue[:0]
	for _, c := range f.queue {
		if c.Deadline > now {
			kept = append(kept, c)
			continue
		}
		f.queued -= c.bytes
		expired = append(expired, c)
	}
	clear(f.queue[len(kept):])
	f.queue = kept
	for seq, c := range f.sent {
		if c.Deadline+lostGrace <= now {
			delete(f.sent, seq)
			lost = append(lost, c)
		}
	}
	f.unlock()
	tell(expired, Expired)
	tell(lost, Lost)
}

// close ends the stream: nothing is taken any more. Calls up to looked may have
// been seen by the other side; those above, which it has promised never to look
// at, and those that wait, were not sent.
func (f *forwarder) close(looked uint64) {
	var lost []*Call
	f.mu.Lock()
	f.up = false
	unsent := f.queue
	f.queue, f.queued = nil, 0
	for seq, c := range f.sent {
		if seq > looked {
			unsent = append(unsent, c)
		} else {
			lost = append(lost, c)
		}
	}
	clear(f.sent)
	f.unlock()
	tell(unsent, NotSent)
	tell(lost, Lost)
}

// waiting is the bytes that wait to be sent.
func (f *forwarder) waiting() int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.queued
}

// whenDrained calls drained whenever nothing is left, and now if that is so.
func (f *forwarder) whenDrained(drained func()) {
	f.mu.Lock()
	f.onDrained = drained
	f.unlock()
}

// idle says whether nothing waits and nothing is on its way.
func (f *forwarder) idle() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.queue) == 0 && len(f.sent) == 0
}
