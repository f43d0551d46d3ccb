package client_test

import (
	"io"
	"net"
	"sync"
	"testing"
)

// relay passes connections on to a broker, and can close all of them, as a
// broker that restarts does.
type relay struct {
	address string
	mu      sync.Mutex
	conns   []net.Conn
	wg      sync.WaitGroup
}

func startRelay(t *testing.T, to string) *relay {
	t.Helper()
	listener := listen(t)
	r := &relay{address: listener.Addr().String()}
	r.wg.Go(func() {
		for {
			in, err := listener.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", to)
			if err != nil {
				_ = in.Close()
				continue
			}
			r.mu.Lock()
			r.conns = append(r.conns, in, out)
			r.mu.Unlock()
			r.wg.Go(func() { pass(out, in) })
			r.wg.Go(func() { pass(in, out) })
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		r.hangUp()
		r.wg.Wait()
	})
	return r
}

func pass(to, from net.Conn) {
	_, _ = io.Copy(to, from) // ends when either side is closed
	_ = to.Close()
	_ = from.Close()
}

func (r *relay) hangUp() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.conns {
		_ = c.Close()
	}
	r.conns = nil
}
