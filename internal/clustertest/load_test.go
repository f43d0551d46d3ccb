package clustertest

import (
	"context"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/felix-go/felix"
)

// keys is how many counters the clients of a load add to.
const keys = 40

// pause is how long a client waits between two operations: brokers that are never
// idle would prove less on a small machine.
const pause = time.Millisecond

// hotAdds is how many adds a hot key gets: each of another power of two, so that
// a sum tells which adds are in it.
const hotAdds = 62

// load is clients that add to the counters of a cache through some brokers, and
// all that they were told.
type load struct {
	c     *cluster
	cache string
	ids   []uint64 // nodes that are asked
	nodes map[uint64]*node
	stop  atomic.Bool
	done  sync.WaitGroup
	// refused is told of every operation that failed; nil lets all of the errors
	// pass that a broker may answer in a cluster.
	refused func(id uint64, op felix.Op, err *felix.Error)
	start   time.Time

	mu             sync.Mutex
	acked, unknown [keys]int64
	answered       int64
	failed         map[felix.Code]int64
	slowest        time.Duration
	history        []porcupine.Operation
	hot            int // the current hot key
	hotUsed        int
}

// startLoad lets clients work on a cache, through the nodes in turn.
func (c *cluster) startLoad(cache string, clients int, ids ...uint64) *load {
	l := &load{c: c, cache: cache, ids: ids, nodes: map[uint64]*node{}, start: time.Now(), failed: map[felix.Code]int64{}}
	for _, id := range ids {
		l.nodes[id] = c.node(id)
	}
	l.run(clients)
	c.t.Cleanup(l.end) // also where the test fails
	return l
}

func (l *load) run(clients int) {
	for n := range clients {
		l.done.Go(func() {
			rng := rand.New(rand.NewPCG(rand.Uint64(), uint64(n)))
			for turn := n; !l.stop.Load(); turn++ {
				id := l.ids[turn%len(l.ids)]
				if turn%4 == 0 {
					l.touchHot(rng, n, id)
				} else {
					l.add(rng, id)
				}
				time.Sleep(pause)
			}
		})
	}
}

// end stops the clients and waits for them.
func (l *load) end() {
	l.stop.Store(true)
	l.done.Wait()
}

// count is how many operations were answered.
func (l *load) count() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.answered
}

// advance waits until so many more operations were answered.
func (l *load) advance(more int64) {
	l.c.t.Helper()
	want := l.count() + more
	eventually(l.c.t, "the load goes on", func() error {
		if n := l.count(); n < want {
			return fmt.Errorf("%d of %d were answered; errors %v", n, want, l.errors())
		}
		return nil
	})
}

func (l *load) errors() map[felix.Code]int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.failed)
}

// send does operations through a node. The answers of a broker that crashed
// meanwhile are worth nothing: its disk may be from before them. ok is false if
// there is no broker to ask.
func (l *load) send(id uint64, ops ...felix.Op) (replies []felix.Reply, ok bool) {
	i := l.nodes[id].current()
	if i == nil || i.opened.Load() == nil {
		return nil, false
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	began := time.Now()
	done := make(chan struct{})
	var err error
	go func() {
		defer close(done)
		var cache felix.Cache
		if cache, err = i.opened.Load().Cache(ctx, scopeOf(l.cache)); err == nil {
			replies, err = felix.Do(ctx, cache, ops...)
		}
	}()
	select {
	case <-done:
	case <-i.gone:
		cancel()
		<-done
	}
	if i.dead.Load() {
		replies, err = nil, felix.Errorf(felix.OutcomeUnknown, "the broker has crashed")
	}
	if err != nil {
		replies = make([]felix.Reply, len(ops))
		for k := range replies {
			replies[k].Err = felix.AsError(err)
		}
	}
	l.note(id, ops, replies, time.Since(began))
	return replies, true
}

// note counts answers, and looks at errors.
func (l *load) note(id uint64, ops []felix.Op, replies []felix.Reply, took time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for k, r := range replies {
		if r.Err == nil {
			l.answered++
			l.slowest = max(l.slowest, took)
			continue
		}
		l.failed[r.Err.Code]++
		if l.refused != nil {
			l.refused(id, ops[k], r.Err)
			continue
		}
		switch r.Err.Code {
		case felix.Unavailable, felix.OutcomeUnknown, felix.ResourceExhausted:
		default:
			l.c.t.Errorf("node %d: %v", id, r.Err)
		}
	}
}

// add adds to some counters in one batch.
func (l *load) add(rng *rand.Rand, id uint64) {
	var ops []felix.Op
	some := rng.Perm(keys)[:1+rng.IntN(4)]
	for _, k := range some {
		ops = append(ops, felix.Op{Kind: felix.Add, Key: keyOf(k), Int: 1})
	}
	replies, ok := l.send(id, ops...)
	if !ok {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for n, k := range some {
		if err := replies[n].Err; err == nil {
			l.acked[k]++
		} else if err.MayBeApplied() {
			l.unknown[k]++
		}
	}
}

// keyOf is the counter number k.
func keyOf(k int) []byte { return fmt.Appendf(nil, "key/%d", k) }

// hotOp is an operation on a hot key.
type hotOp struct {
	key  int
	bit  int64 // 0 is a get
	done bool  // false: the outcome is unknown
}

func hotKey(k int) []byte { return fmt.Appendf(nil, "hot/%d", k) }

// touchHot adds to the current hot key, or reads it.
func (l *load) touchHot(rng *rand.Rand, client int, id uint64) {
	in := hotOp{done: true}
	l.mu.Lock()
	if l.hotUsed == hotAdds {
		l.hot, l.hotUsed = l.hot+1, 0
	}
	in.key = l.hot
	if rng.IntN(2) == 0 {
		in.bit = 1 << l.hotUsed
		l.hotUsed++
	}
	l.mu.Unlock()
	op := felix.Op{Kind: felix.Get, Key: hotKey(in.key)}
	if in.bit != 0 {
		op.Kind, op.Int = felix.Add, in.bit
	}
	called := time.Since(l.start)
	replies, ok := l.send(id, op)
	if !ok || replies[0].Err != nil && (in.bit == 0 || !replies[0].Err.MayBeApplied()) {
		return // it says nothing
	}
	o := porcupine.Operation{ClientId: client, Input: in, Call: int64(called), Output: replies[0].Int, Return: int64(time.Since(l.start))}
	if replies[0].Err != nil {
		in.done = false
		o.Input, o.Return = in, math.MaxInt64
	}
	l.mu.Lock()
	l.history = append(l.history, o)
	l.mu.Unlock()
}

// sums is the sequential counter.
var sums = porcupine.Model{
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		byKey := map[int][]porcupine.Operation{}
		for _, o := range history {
			key := o.Input.(hotOp).key
			byKey[key] = append(byKey[key], o)
		}
		return slices.Collect(maps.Values(byKey))
	},
	Init: func() any { return int64(0) },
	Step: func(state, in, out any) (bool, any) {
		i, sum := in.(hotOp), state.(int64)+in.(hotOp).bit
		return !i.done || out.(int64) == sum, sum
	},
	DescribeOperation: func(in, out any) string { return fmt.Sprintf("%+v: %v", in, out) },
}

// seen is the history without the adds of unknown outcome that nobody ever saw:
// those that were applied at all, were applied after everything else.
func (l *load) seen() (history []porcupine.Operation) {
	told := map[int]int64{}
	for _, o := range l.history {
		if in := o.Input.(hotOp); in.done {
			told[in.key] |= o.Output.(int64)
		}
	}
	for n, o := range l.history {
		if in := o.Input.(hotOp); in.done || in.bit&told[in.key] != 0 {
			o.ClientId = n // an operation of unknown outcome goes on beside its client's next
			history = append(history, o)
		}
	}
	return history
}

// check ends the load and compares what its clients were told with what each of
// the nodes says: no add is lost, and none is there twice.
func (l *load) check(ids ...uint64) {
	t := l.c.t
	t.Helper()
	l.end()
	for _, id := range ids {
		for k := range keys {
			sum := l.read(id, keyOf(k))
			if sum < l.acked[k] || sum > l.acked[k]+l.unknown[k] {
				t.Errorf("node %d: %s is %d; %d adds were answered, and %d more may be applied", id, keyOf(k), sum, l.acked[k], l.unknown[k])
			}
			l.acked[k], l.unknown[k] = sum, 0 // the others have to say the same
		}
		for k := range l.hot + 1 {
			called := time.Since(l.start)
			sum := l.read(id, hotKey(k))
			l.history = append(l.history, porcupine.Operation{Input: hotOp{key: k, done: true}, Call: int64(called), Output: sum, Return: int64(time.Since(l.start))})
		}
	}
	if result := porcupine.CheckOperationsTimeout(sums, l.seen(), 20*time.Second); result != porcupine.Ok {
		t.Errorf("linearizable: %v", result)
	}
	if l.answered == 0 {
		t.Error("no operation was ever answered: nothing was tested")
	}
	t.Logf("%d answered, the slowest after %v; errors %v", l.answered, l.slowest, l.failed)
}

// read gets a counter, 0 if there is none, through a node, with patience.
func (l *load) read(id uint64, key []byte) (sum int64) {
	l.c.t.Helper()
	cache := l.c.cache(id, l.cache)
	eventually(l.c.t, fmt.Sprintf("node %d reads %s", id, key), func() error {
		r := doOne(cache, felix.Op{Kind: felix.Get, Key: key})
		sum = r.Int
		if r.Err != nil {
			return r.Err
		}
		return nil
	})
	return sum
}

// doOne does one operation; that it cannot be asked is an error of the reply.
func doOne(cache felix.Cache, op felix.Op) felix.Reply {
	replies, err := felix.Do(context.Background(), cache, op)
	if err != nil {
		return felix.Reply{Err: felix.AsError(err)}
	}
	return replies[0]
}

// must does operations that may not fail.
func must(t *testing.T, cache felix.Cache, ops ...felix.Op) []felix.Reply {
	t.Helper()
	replies, err := felix.Do(context.Background(), cache, ops...)
	if err != nil {
		t.Fatal(err)
	}
	for k, r := range replies {
		if r.Err != nil {
			t.Fatalf("%v of %q: %v", ops[k].Kind, ops[k].Key, r.Err)
		}
	}
	return replies
}
