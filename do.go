package felix

import (
	"context"
	"sync/atomic"
)

// Do submits operations to a cache and waits for all their replies. It is the
// plain way in for doors that have a goroutine per request. When ctx ends
// first, its error tells whether a mutation was among the operations
// (outcome_unknown) or not (unavailable); the memory of ops then stays in use
// until the cache has finished with it, so it must not be reused.
func Do(ctx context.Context, cache Cache, ops ...Op) ([]Reply, error) {
	return DoGroups(ctx, cache, ops, nil)
}

// DoGroups is Do with Batch.Groups.
func DoGroups(ctx context.Context, cache Cache, ops []Op, groups []Group) ([]Reply, error) {
	w := &waiter{done: make(chan struct{})}
	w.left.Store(int32(len(ops)))
	if len(ops) == 0 {
		return nil, nil
	}
	b := &Batch{Ops: ops, Groups: groups, Replies: make([]Reply, len(ops)), Done: w}
	if deadline, ok := ctx.Deadline(); ok {
		b.Deadline = deadline
	}
	mutates := false
	for i := range ops {
		mutates = mutates || ops[i].Mutates()
	}
	cache.Submit(b)
	select {
	case <-w.done:
		return b.Replies, nil
	case <-ctx.Done():
		select {
		case <-w.done: // both have come: the answer is worth more
			return b.Replies, nil
		default:
		}
		if mutates {
			return nil, Errorf(OutcomeUnknown, "the request ended before its answer came: %v", context.Cause(ctx))
		}
		return nil, Errorf(Unavailable, "the request ended before its answer came: %v", context.Cause(ctx))
	}
}

type waiter struct {
	left atomic.Int32
	done chan struct{}
}

// OpsDone implements Completer.
func (w *waiter) OpsDone(_ *Batch, part []int32) {
	if w.left.Add(-int32(len(part))) == 0 {
		close(w.done)
	}
}
