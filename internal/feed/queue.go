package feed

import (
	"sync"
	"sync/atomic"

	"github.com/felix-go/felix"
)

// Budget bounds the memory of all queues together. It is safe for concurrent use.
type Budget struct {
	Max     int64
	used    atomic.Int64
	skipped atomic.Uint64
}

// UsedBytes is what the queues hold.
func (b *Budget) UsedBytes() int64 { return b.used.Load() }

// Skipped is how many changes were left out, since newer ones of their keys had
// come before they were taken.
func (b *Budget) Skipped() uint64 { return b.skipped.Load() }

// Item is a change in a queue.
type Item struct {
	*Change
	// Skipped says that older changes of the key were left out.
	Skipped bool
	// Behind is where the changes end of which some may have been left out by the
	// time that this one was taken; 0 if there were none.
	Behind uint64
}

// Queue holds changes until their watcher takes them: bounded, and when it is
// full only the latest of each key. It is safe for concurrent use.
type Queue struct {
	budget *Budget

	mu     sync.Mutex
	items  []Item
	bytes  int64
	behind uint64 // the last entry of the changes that were there when some were left out
}

// NewQueue makes a queue.
func NewQueue(budget *Budget) *Queue { return &Queue{budget: budget} }

// Push adds a change, the newest one. It says false if even the latest changes of
// the keys are too many: then the queue is empty, and what was in it has to be
// read again.
func (q *Queue) Push(c *Change) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if c.Clear { // nothing before it counts any more
		q.drop()
	}
	q.add(Item{Change: c})
	if q.fits(1) {
		return true
	}
	q.coalesce()
	// Half of it must be free, or the next change would have it done again.
	if q.fits(2) || len(q.items) == 1 && q.budget.used.Load() <= q.budget.Max {
		return true
	}
	q.drop()
	return false
}

// fits says whether the queue is within one part-th of its bounds.
func (q *Queue) fits(part int) bool {
	return len(q.items) <= felix.MaxWatchQueueEvents/part && q.bytes <= felix.MaxWatchQueueBytes/int64(part) &&
		q.budget.used.Load() <= q.budget.Max
}

func (q *Queue) add(item Item) {
	q.items = append(q.items, item)
	q.bytes += item.bytes()
	q.budget.used.Add(item.bytes())
}

// coalesce keeps the latest change of each key.
func (q *Queue) coalesce() {
	latest := map[string]int{} // by key, where it is
	for i := range q.items {
		latest[string(q.items[i].Event.Key)] = i
	}
	left := map[string]bool{} // keys of which some were left out
	kept := q.items[:0]
	q.behind = q.items[len(q.items)-1].Index
	for i, item := range q.items {
		key := string(item.Event.Key)
		if latest[key] != i {
			left[key] = true
			q.bytes -= item.bytes()
			q.budget.used.Add(-item.bytes())
			q.budget.skipped.Add(1)
			continue
		}
		item.Skipped = item.Skipped || left[key]
		kept = append(kept, item)
	}
	clear(q.items[len(kept):])
	q.items = kept
}

// Pop takes the oldest change.
func (q *Queue) Pop() (item Item, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.items) == 0 {
		return Item{}, false
	}
	item = q.items[0]
	q.items[0] = Item{}
	if q.items = q.items[1:]; len(q.items) == 0 {
		q.items = nil
	}
	q.bytes -= item.bytes()
	q.budget.used.Add(-item.bytes())
	if q.behind > item.Index {
		item.Behind = q.behind
	}
	return item, true
}

// Len is how many changes wait.
func (q *Queue) Len() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.items)
}

// Drop empties the queue.
func (q *Queue) Drop() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.drop()
}

func (q *Queue) drop() {
	q.budget.used.Add(-q.bytes)
	q.items, q.bytes = nil, 0
}
