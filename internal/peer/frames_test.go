package peer

import (
	"sync"
	"testing"
	"time"
)

// TestFramesAreShared: what waits while a frame is on its way goes together in the
// next, messages of all shards and calls of all callers, and what is answered
// together is in one frame of answers.
func TestFramesAreShared(t *testing.T) {
	const many, few = 2000, 8
	wire := newWire()
	a := newBroker(t, 1, func(o *Options) { o.Dial = wire.dial })
	b := newBroker(t, 2, nil)
	b.forward = newAdder().forward
	meet(t, a, b)
	wire.hold()
	var told sync.WaitGroup
	told.Add(many)
	for n := range many {
		a.net.Forward(2, addCall(n, a.net.o.Mono()+time.Minute, func(c *Call) {
			if c.Outcome != Answered || c.Err != nil {
				t.Errorf("call %d: %+v", n, c)
			}
			told.Done()
		}))
		a.net.SendRaft(2, []Message{{uint64(n), heartbeatOf(1, 2)}, {uint64(n), appOf(1, 2, nil)}})
	}
	wire.release()
	told.Wait()
	eventually(t, "all messages have come", func() (all bool) {
		b.locked(func() { all = len(b.messages) == 2*many })
		return all
	})
	sent, answered := a.net.Links()[0], b.net.Links()[0].Answers
	for what, s := range map[string]struct {
		Sent
		items uint64
	}{"calls": {sent.Calls, many}, "answers": {answered, many}, "messages": {sent.Raft, 2 * many}} {
		if s.Items != s.items || s.Frames == 0 || s.Frames > few {
			t.Errorf("%d %s went in %d frames; want %d in no more than %d", s.Items, what, s.Frames, s.items, few)
		}
	}
}
