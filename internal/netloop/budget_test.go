package netloop

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// A session that answers in parts is asked for the next when the client has
// taken the last, and its turn's replies stay as they are until then, although
// the batch that they came in is used again.
func TestAnswersInParts(t *testing.T) {
	onBoth(t, func(t *testing.T, portable bool) {
		r := start(t, Options{Loops: 1, Portable: portable}, maxPace, &asyncCache{})
		slow, other := r.dial(), r.dial()
		const n = 60
		var in []byte
		var want strings.Builder
		for i := range n {
			key := fmt.Sprint(i, strings.Repeat("k", 300_000)) // more than one part; together more than the kernel takes
			in = append(in, cmd("GET", key)...)
			want.WriteString(bulk(key))
		}
		in = append(in, cmd("INCR", "end")...)
		want.WriteString(num(1))
		go slow.send(in)
		eventually(t, "some answers", func() bool { return r.s.Stats().BytesOut > 1<<20 })
		for i := range 500 {
			other.send(cmd("INCR", "k"))
			other.want(num(i + 1))
		}
		slow.want(want.String())
		slow.send(cmd("PING"))
		slow.want("+PONG\r\n")
		eventually(t, "nothing to be owed", func() bool { return r.s.Stats().Unsent == 0 })
	})
}

// A client that takes nothing of its answers is closed after a while; one that
// takes them slowly is not.
func TestStallTimeout(t *testing.T) {
	onBoth(t, func(t *testing.T, portable bool) {
		r := start(t, Options{Loops: 2, Portable: portable, StallTimeout: 200 * time.Millisecond}, maxPace, &inlineCache{})
		const n, size = 40, 500_000 // far more than the kernel buffers
		stuck, slow := r.dial(), r.dial()
		for range n {
			stuck.send(cmd("FILL", fmt.Sprint(size)))
			slow.send(cmd("FILL", fmt.Sprint(size)))
		}
		text := bulk(strings.Repeat("x", size))
		for range n {
			slow.want(text)
			time.Sleep(20 * time.Millisecond) // time passes: 800 ms in all
		}
		slow.send(cmd("PING"))
		slow.want("+PONG\r\n")
		eventually(t, "the other one to be closed", func() bool { return r.s.Stats().Connections == 1 })
		if got := r.s.Stats().Unsent; got != 0 {
			t.Errorf("%d bytes are still counted as unsent", got)
		}
	})
}

// Clients that do not read cannot hold up a stop, nor make it fail.
func TestShutdownOfStalledClients(t *testing.T) {
	onBoth(t, func(t *testing.T, portable bool) {
		r := start(t, Options{Portable: portable, StallTimeout: 300 * time.Millisecond}, maxPace, &inlineCache{})
		for range 4 {
			c := r.dial()
			for range 40 {
				c.send(cmd("FILL", "500000"))
			}
		}
		eventually(t, "answers", func() bool { return r.s.Stats().BytesOut > 0 })
		r.stop() // which fails the test if it is cut short
	})
}

// partRequest is a GET with a long key, without its last byte.
func partRequest(size int) []byte {
	whole := cmd("GET", strings.Repeat("k", size))
	return whole[:len(whole)-1]
}

// Requests that come in part hold no more memory than there is for them; small
// requests of others are served; and all of them are when the rest comes.
func TestInputIsBounded(t *testing.T) {
	onBoth(t, func(t *testing.T, portable bool) {
		const size, conns, share = 300_000, 30, 2 << 20
		r := start(t, Options{Loops: 1, Portable: portable, MemoryBytes: 2 * share, MaxRequestBytes: 1 << 20, MaxPipelineBytes: 64 << 10,
			StallTimeout: time.Hour}, maxPace, &inlineCache{})
		var all []*client
		finish := make(chan struct{})
		for range conns {
			c := r.dial()
			go func() {
				c.send(partRequest(size))
				<-finish
				c.send([]byte("\n"))
			}()
			all = append(all, c)
		}
		other := r.dial()
		eventually(t, "the memory to be used up", func() bool { return r.s.Stats().BytesIn > share/8 })
		for i := range 300 {
			other.send(cmd("INCR", "k"), cmd("GET", strings.Repeat("k", 1000)))
			other.want(num(i+1) + bulk(strings.Repeat("k", 1000)))
		}
		const most = share + 1<<20 + conns*smallInput + 300*1200
		if in := r.s.Stats().BytesIn; in > most {
			t.Errorf("%d bytes were read, want at most %d", in, most)
		}
		close(finish)
		for _, c := range all {
			c.want(bulk(strings.Repeat("k", size)))
		}
	})
}

// A request that stays in part while others wait for memory is given up.
func TestInputIsUnblocked(t *testing.T) {
	onBoth(t, func(t *testing.T, portable bool) {
		const size = 900_000
		r := start(t, Options{Loops: 1, Portable: portable, MemoryBytes: 1, MaxRequestBytes: 1 << 20, MaxPipelineBytes: 64 << 10,
			StallTimeout: 100 * time.Millisecond}, maxPace, &inlineCache{})
		for range 6 {
			c := r.dial()
			go func() { _, _ = c.Write(partRequest(size)) }() // fails when it is closed
		}
		eventually(t, "the memory to be used up", func() bool { return r.s.Stats().BytesIn > 1<<20 })
		c := r.dial()
		c.send(cmd("GET", strings.Repeat("k", size)))
		c.want(bulk(strings.Repeat("k", size)))
		if got := r.s.Stats().Connections; got >= 7 {
			t.Error("nobody was closed: the test shows nothing")
		}
	})
}
