package netloop

import (
	"context"
	"testing"
	"time"
)

// hour is longer than any test.
const hour = "3600000"

// A Wait holds no slot of the slow work, however many there are; it ends when
// its time is up, or the server shuts down, which it does not hold up.
func TestWaits(t *testing.T) {
	onBoth(t, func(t *testing.T, portable bool) {
		r := start(t, Options{Portable: portable, MaxSlow: 1}, maxPace, &inlineCache{})
		var waiting []*client
		for range 100 {
			c := r.dial()
			c.send(cmd("INCR", "k"), cmd("WAIT", hour), cmd("PING"))
			if line, err := c.r.ReadString('\n'); err != nil || line[0] != ':' {
				t.Fatalf("got %q, %v", line, err)
			}
			waiting = append(waiting, c)
		}
		short := r.dial()
		began := time.Now()
		short.send(cmd("WAIT", "30"), cmd("SLOW", "1"))
		short.want("+WAITED\r\n+SLEPT\r\n")
		if d := time.Since(began); d < 30*time.Millisecond {
			t.Errorf("a wait of 30 ms took %v", d)
		}
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := r.s.Shutdown(ctx); err != nil {
			t.Errorf("Shutdown: %v", err)
		}
		for _, c := range waiting {
			c.want("+WAITED\r\n+PONG\r\n") // both had been read
			c.wantEnd()
		}
	})
}

// A Wait that begins when the server is shutting down, or when the client has
// closed its side already, ends at once.
func TestLateWaits(t *testing.T) {
	onBoth(t, func(t *testing.T, portable bool) {
		cache := &gateCache{}
		r := start(t, Options{Portable: portable}, maxPace, cache)
		half := r.dial()
		half.send(cmd("SLOW", "20"), cmd("WAIT", hour), cmd("PING"))
		if !portable { // which does not look
			_ = half.CloseWrite()
			half.want("+SLEPT\r\n+WAITED\r\n+PONG\r\n")
			half.wantEnd()
		}
		c := r.dial()
		c.send(cmd("INCR", "s"), cmd("WAIT", hour), cmd("PING"))
		eventually(t, "the operation", func() bool { return cache.heldOps() == 1 })
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			r.stop()
		}()
		eventually(t, "Shutdown to begin", func() bool { return r.s.isStopping() })
		cache.open()
		c.want(num(1) + "+WAITED\r\n+PONG\r\n")
		c.wantEnd()
		<-ended
	})
}
