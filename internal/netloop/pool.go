package netloop

import "sync"

const (
	// minBuffer is what a connection begins with: a few dozen counter requests.
	// One that sends more at a time soon has larger ones (conn.hint).
	minBuffer = 1 << 10
	// bufferStep is the ratio between the pool's sizes: growing copies at most
	// a third of a request again.
	bufferStep = 4
	// bufferSizes is how many sizes are pooled: 1 KB to 1 MB.
	bufferSizes = 6
	// maxPooledBytes bounds what a pool keeps for the next burst.
	maxPooledBytes = 16 << 20
)

// pool keeps input buffers, so that only connections with something to do hold
// one. The lock is never contended in an event loop; the portable driver
// shares one pool.
type pool struct {
	mu   sync.Mutex
	free [bufferSizes][][]byte
	held int // bytes in free, at most maxPooledBytes
	lent int // bytes given out and not given back
}

// get answers a buffer of at least n bytes; its length is its capacity. What
// is in it is arbitrary.
func (p *pool) get(n int) []byte {
	size := minBuffer
	for k := range p.free {
		if n <= size {
			return p.take(k, size)
		}
		size *= bufferStep
	}
	p.mu.Lock()
	p.lent += n
	p.mu.Unlock()
	return make([]byte, n)
}

func (p *pool) take(k, size int) []byte {
	p.mu.Lock()
	p.lent += size
	if last := len(p.free[k]) - 1; last >= 0 {
		b := p.free[k][last]
		p.free[k][last] = nil
		p.free[k] = p.free[k][:last]
		p.held -= size
		p.mu.Unlock()
		return b
	}
	p.mu.Unlock()
	return make([]byte, size)
}

// inUse is what has been given out and not given back.
func (p *pool) inUse() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.lent
}

// put takes a buffer back. Nothing may point into it any more.
func (p *pool) put(b []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lent -= len(b)
	size := minBuffer
	for k := range p.free {
		if len(b) == size {
			if p.held+size <= maxPooledBytes {
				p.free[k] = append(p.free[k], b)
				p.held += size
			}
			return
		}
		size *= bufferStep
	}
}
