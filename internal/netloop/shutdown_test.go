package netloop

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"
)

// Shutdown answers everything that was read, also what was not parsed yet, and
// closes idle connections at once; nobody sees a reset.
func TestShutdownAnswersWhatWasRead(t *testing.T) {
	onBoth(t, func(t *testing.T, portable bool) {
		cache := &gateCache{}
		r := start(t, Options{Portable: portable}, maxPace, cache)
		idle, busy, slow := r.dial(), r.dial(), r.dial()
		idle.send(cmd("PING"))
		idle.want("+PONG\r\n")
		busy.send(cmd("INCR", "s"), cmd("SLOW", "5"), cmd("INCR", "s"), cmd("FILL", "1000000"), []byte("*2\r\n$4"))
		slow.send(cmd("SLOW", "50"))
		eventually(t, "the operation", func() bool { return cache.heldOps() == 1 && r.h.slow.Load() == 1 })

		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		down := make(chan error, 1)
		go func() { down <- r.s.Shutdown(ctx) }()
		idle.wantEnd()
		if _, err := net.Dial("tcp", r.s.Addr().String()); err == nil {
			t.Error("a connection was accepted during Shutdown")
		}
		select {
		case err := <-down:
			t.Fatalf("Shutdown did not wait for an operation under way: %v", err)
		default:
		}
		cache.open()
		slow.want("+SLEPT\r\n")
		slow.wantEnd()
		busy.want(num(1) + "+SLEPT\r\n" + num(2) + bulk(strings.Repeat("x", 1000000)))
		busy.wantEnd()
		if err := <-down; err != nil {
			t.Error(err)
		}
	})
}

// Clients that never stop sending see whole answers and an end, not a reset,
// and every operation that was evaluated is answered.
func TestShutdownUnderLoad(t *testing.T) {
	onBoth(t, func(t *testing.T, portable bool) {
		cache := &asyncCache{}
		r := start(t, Options{Loops: 2, Portable: portable}, maxPace, cache)
		const conns = 8
		answered := make(chan int, conns)
		for i := range conns {
			c := r.dial()
			go func() {
				for j := 0; ; j++ {
					if _, err := c.Write(cmd("INCR", fmt.Sprint(i))); err != nil {
						return
					}
				}
			}()
			go func() {
				n := 0
				for {
					line, err := c.r.ReadString('\n')
					if err != nil {
						if line != "" {
							t.Errorf("an answer was cut off: %q, %v", line, err)
						}
						break
					}
					if line != num(n+1) {
						t.Errorf("got %q after %d answers", line, n)
					}
					n++
				}
				answered <- n
			}()
		}
		eventually(t, "some traffic", func() bool { return r.s.Stats().Ops > 2000 })
		r.stop()
		total := 0
		for range conns {
			total += <-answered
		}
		if st := r.s.Stats(); uint64(total) > st.Ops {
			t.Errorf("%d answers to %d operations", total, st.Ops)
		}
	})
}

// When its context ends first, Shutdown cuts connections off, ends slow work,
// and says so; operations under way finish afterwards, with their memory kept.
func TestShutdownCutOff(t *testing.T) {
	onBoth(t, func(t *testing.T, portable bool) {
		cache := &gateCache{}
		r := start(t, Options{Portable: portable}, maxPace, cache)
		r.cutOff = true
		held, hung := r.dial(), r.dial()
		held.send(cmd("INCR", "s-kept"))
		hung.send(cmd("HANG"))
		eventually(t, "both to be under way", func() bool { return cache.heldOps() == 1 && r.h.slow.Load() == 1 })
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Millisecond)
		defer cancel()
		err := r.s.Shutdown(ctx)
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "2 connections") {
			t.Errorf("Shutdown answered %v", err)
		}
		if _, err := held.r.ReadByte(); err == nil {
			t.Error("an answer came from nowhere")
		}
		eventually(t, "slow work to end", func() bool { return r.h.hungUp.Load() == 1 && r.h.slow.Load() == 0 })
		if err := r.s.Shutdown(context.Background()); err != nil {
			t.Errorf("a second Shutdown answered %v", err)
		}
		eventually(t, "the session of the slow work to be closed", func() bool { return r.h.closed.Load() == 1 })
		cache.gate.Lock()
		if string(cache.keys[0]) != "s-kept" {
			t.Errorf("the key of an operation under way became %q", cache.keys[0])
		}
		cache.gate.Unlock()
		cache.open()
		eventually(t, "the other session to be closed", func() bool { return r.h.closed.Load() == 2 })
	})
}

// A server that never served can be shut down.
func TestShutdownUnserved(t *testing.T) {
	onBoth(t, func(t *testing.T, portable bool) {
		s, err := Listen("tcp", "127.0.0.1:0", Options{Handler: &miniHandler{}, Portable: portable})
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
		if err := s.Serve(); err != nil {
			t.Errorf("Serve after Shutdown answered %v", err)
		}
		eventually(t, "the goroutines to end", func() bool { return netloopGoroutines() == 0 })
	})
}
