// Package sim runs a cluster of simulated brokers in one goroutine: the shipped
// step function, tables and codecs, and the shipped rules of placement, on a
// network, disks and clocks that are made up. Everything comes from one seed,
// Raft's election timeouts included, so a run that fails can be had again.
//
// What is simulated is what a broker does around its shards (internal/broker):
// it gathers appends into syncs, loads records, writes checkpoints, sends and
// installs snapshots, forwards requests, makes and drops replicas. The real
// broker, the real log and Pebble are proven by other tests: see docs/testing.md.
package sim

import (
	"container/heap"
	crand "crypto/rand"
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"sync"
	"time"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/placement"
)

// Options say what to do beside running.
type Options struct {
	// Trace keeps what happened, to be read. The Hash of it is always made.
	Trace bool
	// Leases makes it a run about who may answer reads, whatever the seed says.
	Leases bool
}

// Result is how a run went.
type Result struct {
	Seed     uint64
	Hash     uint64         // of all that happened, in order
	Failures []string       // what must not have happened
	Trace    []string       // with Options.Trace
	Stats    map[string]int // how often what happened
}

// running makes runs take turns. Raft draws its election timeouts from
// crypto/rand.Reader, of which there is one in a process.
var running sync.Mutex

// Run simulates what the seed says.
func Run(seed uint64, o Options) *Result {
	running.Lock()
	defer running.Unlock()
	before := crand.Reader
	defer func() { crand.Reader = before }()
	source := [32]byte{}
	for i := range 8 {
		source[i] = byte(seed >> (8 * i))
	}
	crand.Reader = rand.NewChaCha8(source)
	w := newWorld(seed, o)
	w.guarded(func() {
		w.begin()
		w.runUntil(w.faultsEnd)
		w.heal()
		w.judge()
	})
	return &w.result
}

// guarded turns a panic of what is simulated, as of a broken invariant, into a
// failure.
func (w *world) guarded(do func()) {
	defer func() {
		switch p := recover().(type) {
		case nil, failed:
		default:
			w.note("panic")
			w.result.Failures = append(w.result.Failures, fmt.Sprintf("%v\n%s", p, debug.Stack()))
		}
	}()
	do()
}

// failed is what a run panics with that has failed: it is over.
type failed struct{}

// event is something that will happen.
type event struct {
	at    time.Duration
	order uint64 // of those at the same time
	do    func()
}

type events []event

func (e events) Len() int { return len(e) }
func (e events) Less(i, j int) bool {
	return e[i].at < e[j].at || e[i].at == e[j].at && e[i].order < e[j].order
}
func (e events) Swap(i, j int) { e[i], e[j] = e[j], e[i] }

// Push is heap.Interface's.
func (e *events) Push(x any) { *e = append(*e, x.(event)) }

// Pop is heap.Interface's.
func (e *events) Pop() any {
	last := len(*e) - 1
	x := (*e)[last]
	(*e)[last] = event{}
	*e = (*e)[:last]
	return x
}

// world is a run.
type world struct {
	opts   Options
	rng    *rand.Rand
	result Result

	now       time.Duration // true time: nobody's clock
	order     uint64
	events    events
	faultsEnd time.Duration
	healed    bool
	lullUntil time.Duration // nobody writes

	profile profile
	nodes   []*node
	shards  []*group
	meta    placement.Shard // the metadata's, of which nothing else is simulated
	net     network
	clients []*client
	history history
}

func newWorld(seed uint64, o Options) *world {
	w := &world{opts: o, rng: rand.New(rand.NewPCG(seed, 0xfe11)),
		result: Result{Seed: seed, Hash: 14695981039346656037, Stats: map[string]int{}}}
	w.profile = drawProfile(w.rng, o.Leases)
	return w
}

// after lets something happen, some time from now.
func (w *world) after(d time.Duration, do func()) {
	w.order++
	heap.Push(&w.events, event{w.now + d, w.order, do})
}

// runUntil lets happen what happens until then.
func (w *world) runUntil(end time.Duration) {
	for len(w.events) > 0 && w.events[0].at <= end {
		e := heap.Pop(&w.events).(event)
		w.now = e.at
		e.do()
	}
	w.now = end
}

// stamp is a moment of the history, unlike any other.
func (w *world) stamp() int64 {
	w.order++
	return int64(w.order)
}

// note notes what happens, for the hash and the trace. The format says what, the
// numbers with whom.
func (w *world) note(format string, numbers ...uint64) {
	const prime = 1099511628211
	h := w.result.Hash
	for i := range len(format) {
		h = (h ^ uint64(format[i])) * prime
	}
	for _, n := range append(numbers, uint64(w.now)) {
		for range 8 {
			h = (h ^ n&0xff) * prime
			n >>= 8
		}
	}
	w.result.Hash = h
	if w.opts.Trace {
		args := make([]any, len(numbers))
		for i, n := range numbers {
			args[i] = int64(n)
		}
		w.result.Trace = append(w.result.Trace, fmt.Sprintf("%9.3f ms  ", float64(w.now.Microseconds())/1000)+fmt.Sprintf(format, args...))
	}
}

// tell explains an operation to who reads the trace.
func (w *world) tell(op *felix.Op) {
	if w.opts.Trace {
		w.result.Trace = append(w.result.Trace, "                "+describe(op))
	}
}

// fail ends the run: something happened that must not.
func (w *world) fail(format string, args ...any) {
	w.complain(format, args...)
	panic(failed{})
}

// complain is fail of a check after which others may still be made.
func (w *world) complain(format string, args ...any) {
	w.note("FAILURE")
	w.result.Failures = append(w.result.Failures, fmt.Sprintf(format, args...))
}

func (w *world) must(err error) {
	if err != nil {
		w.fail("%v", err)
	}
}

func (w *world) count(what string) { w.result.Stats[what]++ }

// one says yes once in n times.
func (w *world) one(n int) bool { return w.rng.IntN(n) == 0 }

// between draws a duration.
func (w *world) between(from, to time.Duration) time.Duration {
	return from + time.Duration(w.rng.Int64N(int64(to-from)+1))
}
