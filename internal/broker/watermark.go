package broker

import (
	"context"
	"sync"
)

// watermark is a number that only grows, and can be waited for.
type watermark struct {
	mu    sync.Mutex
	value uint64
	grown chan struct{} // closed when it grows; nil while nobody waits
}

// raise makes the number at least to.
func (w *watermark) raise(to uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if to <= w.value {
		return
	}
	w.value = to
	if w.grown != nil {
		close(w.grown)
		w.grown = nil
	}
}

// load is the number.
func (w *watermark) load() uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.value
}

// await waits until the number is at least at, or ctx ends.
func (w *watermark) await(ctx context.Context, at uint64) error {
	for {
		w.mu.Lock()
		if w.value >= at {
			w.mu.Unlock()
			return nil
		}
		if w.grown == nil {
			w.grown = make(chan struct{})
		}
		grown := w.grown
		w.mu.Unlock()
		select {
		case <-grown:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
