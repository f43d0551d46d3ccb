package crashtest

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"math/rand/v2"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/client"
)

const (
	// liveRegisters is how many keys of each kind are in use at a time: few enough
	// that clients meet.
	liveRegisters = 4
	// maxTouches and maxLost bound what has to be ordered of one key, and how many
	// of it may be of unknown outcome. maxBits is how often a counter of bits is
	// added to.
	maxTouches = 40
	maxLost    = 5
	maxBits    = 60
	// judgeWithin bounds how long an order is looked for, for all keys at once.
	judgeWithin = 5 * time.Minute
)

// registers are clients that do everything that a door offers with counters, on
// keys that others come for after some time, and what they were told.
type registers struct {
	t       *testing.T
	cache   string
	start   time.Time
	timeout time.Duration // about how long clients wait for an answer
	pause   time.Duration // between two operations of a client
	stop    atomic.Bool
	done    sync.WaitGroup

	// loses says that the cache is one that may lose acknowledged changes: then only
	// bits are added, and all that is checked is that nothing else is there.
	loses bool

	mu       sync.Mutex
	keys     []*register
	live     map[string]*register
	clients  int
	outcomes map[string]int
}

// register is a key, and all that was done with it.
type register struct {
	key  string
	bits bool // only adds, each of another power of two, and reads
	// asked and lost count operations, and those of unknown outcome.
	asked, lost int
	must, may   int64 // bits: acknowledged, and of unknown outcome
	touches     []porcupine.Operation
}

// verb is what is done.
type verb string

const (
	get    verb = "get"
	add    verb = "add"
	set    verb = "set"
	setNew verb = "set if there is none"
	setOld verb = "set if there is one"
	del    verb = "delete"
	take   verb = "get and delete"
)

// deed is an operation; known says whether its outcome is.
type deed struct {
	verb  verb
	key   string
	arg   int64
	known bool
}

// told is an answer: whether there was a counter, or of a set whether it was done,
// and the sum if the verb tells it.
type told struct {
	found bool
	sum   int64
}

// counterState is a counter, or none.
type counterState struct {
	is  bool
	sum int64
}

// counters is the sequential specification of one.
var counters = porcupine.Model{
	Init: func() any { return counterState{} },
	Step: func(state, in, out any) (bool, any) { return state.(counterState).step(in.(deed), out.(told)) },
	DescribeOperation: func(in, out any) string {
		return fmt.Sprintf("%+v: %+v", in, out)
	},
}

func (s counterState) step(d deed, t told) (bool, any) {
	next := s
	switch d.verb {
	case get:
		return t == told{s.is, s.sum}, s
	case add:
		next = counterState{true, s.sum + d.arg}
		return !d.known || t.sum == next.sum, next
	case set:
		return true, counterState{true, d.arg}
	case setNew, setOld:
		does := s.is == (d.verb == setOld)
		if does {
			next = counterState{true, d.arg}
		}
		return !d.known || t.found == does, next
	case del:
		return !d.known || t.found == s.is, counterState{}
	case take:
		return !d.known || t == told{s.is, s.sum}, counterState{}
	}
	return false, s
}

// newRegisters makes clients of a cache, of whom none is at work yet.
func newRegisters(t *testing.T, cache string, timeout time.Duration) *registers {
	return &registers{t: t, cache: cache, start: time.Now(), timeout: timeout, live: map[string]*register{}, outcomes: map[string]int{}}
}

// through lets a client work through a door of each of the members.
func (r *registers) through(open func(*registers, *member) door, members ...*member) {
	for _, m := range members {
		r.mu.Lock()
		r.clients++
		id := r.clients
		r.mu.Unlock()
		r.done.Go(func() {
			d := open(r, m)
			defer d.close()
			rng := rand.New(rand.NewPCG(rand.Uint64(), uint64(id)))
			for !r.stop.Load() && !m.removed.Load() {
				r.touch(rng, id, d)
				time.Sleep(r.pause)
			}
		})
	}
}

// choose is the next operation of a client, on one of the keys in use.
func (r *registers) choose(rng *rand.Rand, verbs []verb) (*register, deed) {
	r.mu.Lock()
	defer r.mu.Unlock()
	only := r.loses || rng.IntN(3) == 0
	slot := fmt.Sprint(only, rng.IntN(liveRegisters))
	k := r.live[slot]
	if k == nil || k.lost >= maxLost || !only && k.asked >= maxTouches || k.asked >= maxBits {
		k = &register{key: fmt.Sprint("register:", len(r.keys)), bits: only}
		r.keys = append(r.keys, k)
		r.live[slot] = k
	}
	d := deed{verb: verbs[rng.IntN(len(verbs))], key: k.key, arg: 1 + rng.Int64N(1000)}
	if only {
		d.verb, d.arg = get, 0
		if rng.IntN(4) > 0 {
			d.verb, d.arg = add, 1<<k.asked
		}
	}
	if d.verb != get || !only {
		k.asked++
	}
	return k, d
}

// touch does an operation and takes down what came of it.
func (r *registers) touch(rng *rand.Rand, client int, through door) {
	k, d := r.choose(rng, through.verbs())
	called := time.Since(r.start)
	t, err := through.do(d)
	returned := time.Since(r.start)
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil && err.Code != felix.Unavailable && err.Code != felix.ResourceExhausted && err.Code != felix.OutcomeUnknown {
		r.t.Errorf("%+v: %v", d, err)
	}
	switch {
	case err == nil:
		r.outcomes["answered"]++
		d.known = true
		if k.bits {
			k.must |= d.arg
		}
	case !err.MayBeApplied() || d.verb == get:
		r.outcomes["not applied"]++
		return // what it would have done must never be seen
	default:
		r.outcomes["unknown"]++
		k.lost++
		if k.bits {
			k.may |= d.arg
		}
		returned = math.MaxInt64
	}
	k.touches = append(k.touches, porcupine.Operation{ClientId: client, Input: d, Call: int64(called), Output: t, Return: int64(returned)})
}

// check ends the clients, reads every key through one of the doors, and looks for
// an order that explains all that was told.
func (r *registers) check(doors ...door) {
	r.t.Helper()
	r.stop.Store(true)
	r.done.Wait()
	tooLong, gone, deadline := 0, 0, time.Now().Add(judgeWithin)
	for i, k := range r.keys {
		sum := r.read(k, doors[i%len(doors)])
		if lost := k.must &^ sum; k.bits && (lost != 0 && !r.loses || sum&^(k.must|k.may) != 0) {
			r.t.Errorf("%s is %#x: %#x was acknowledged, and %#x more may be applied", k.key, sum, k.must, k.may)
		}
		if r.loses {
			gone += bits.OnesCount64(uint64(k.must &^ sum))
			continue
		}
		switch porcupine.CheckOperationsTimeout(counters, k.seen(), max(time.Second, time.Until(deadline))) {
		case porcupine.Unknown:
			tooLong++
		case porcupine.Illegal:
			var text strings.Builder
			for _, o := range k.touches {
				fmt.Fprintf(&text, "\n  %v to %v: %s", time.Duration(o.Call), time.Duration(o.Return), counters.DescribeOperation(o.Input, o.Output))
			}
			r.t.Errorf("%s: no order explains this:%s", k.key, text.String())
		}
	}
	if tooLong > len(r.keys)/100 {
		r.t.Errorf("of %d of %d keys no order was found in time, nor that there is none", tooLong, len(r.keys))
	}
	if r.outcomes["answered"] == 0 {
		r.t.Error("no operation was ever answered: nothing was tested")
	}
	r.t.Logf("cache %s: %v on %d keys, %d of them undecided; %d lost", r.cache, r.outcomes, len(r.keys), tooLong, gone)
}

// seen is the history without the bits of unknown outcome that nobody ever saw:
// those that were applied at all, were applied after everything else.
func (k *register) seen() (history []porcupine.Operation) {
	all := int64(0)
	for _, o := range k.touches {
		if o.Input.(deed).known {
			all |= o.Output.(told).sum
		}
	}
	for i, o := range k.touches {
		if d := o.Input.(deed); d.known || !k.bits || d.arg&all != 0 {
			o.ClientId = i // an operation of unknown outcome goes on beside its client's next
			history = append(history, o)
		}
	}
	return history
}

// read reads a key, with patience.
func (r *registers) read(k *register, through door) int64 {
	r.t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		d := deed{verb: get, key: k.key, known: true}
		called := time.Since(r.start)
		t, err := through.do(d)
		if err == nil {
			k.touches = append(k.touches, porcupine.Operation{Input: d, Call: int64(called), Output: t, Return: int64(time.Since(r.start))})
			return t.sum
		}
		if time.Now().After(deadline) {
			r.t.Fatalf("%s cannot be read: %v", k.key, err)
		}
	}
}

// door is how a client speaks with a broker.
type door interface {
	verbs() []verb
	// do tells by the error's MayBeApplied whether the operation may be applied.
	do(deed) (told, *felix.Error)
	close()
}

// redisDoor is a connection to a broker's Redis door, made again when it breaks.
type redisDoor struct {
	r       *registers
	m       *member
	c       *conn
	timeout time.Duration
}

func openRedis(r *registers, m *member) door { return &redisDoor{r: r, m: m, timeout: r.patience()} }

// patience is how long a client waits for an answer. Some are impatient: one that
// asks again soon finds a broker that sleeps, or that wakes up, in many states.
func (r *registers) patience() time.Duration {
	return r.timeout/8 + time.Duration(rand.Int64N(int64(r.timeout)))
}

func (*redisDoor) verbs() []verb {
	return []verb{get, get, get, add, add, set, setNew, setOld, del, take}
}

func (d *redisDoor) close() {
	if d.c != nil {
		_ = d.c.Close() // there is nobody to tell
		d.c = nil
	}
}

// connect makes the connection, and selects the cache.
func (d *redisDoor) connect() *felix.Error {
	if d.c != nil {
		return nil
	}
	tcp, err := net.DialTimeout("tcp", d.m.resp, time.Second)
	if err != nil {
		time.Sleep(10 * time.Millisecond) // it is down
		return felix.Errorf(felix.Unavailable, "%v", err)
	}
	_ = tcp.SetDeadline(time.Now().Add(d.timeout)) // what fails then, does so below
	d.c = newConn(tcp)
	text, refused, err := d.c.do("AUTH", fmt.Sprintf("%s/%s/%s", felix.DefaultTenant, felix.DefaultNamespace, d.r.cache), "anyone")
	if err != nil || refused {
		d.close()
		return felix.Errorf(felix.Unavailable, "AUTH: %s %v", text, err)
	}
	return nil
}

func (d *redisDoor) do(a deed) (told, *felix.Error) {
	if err := d.connect(); err != nil {
		return told{}, err
	}
	arg := strconv.FormatInt(a.arg, 10)
	command := map[verb][]string{get: {"GET", a.key}, add: {"INCRBY", a.key, arg}, set: {"SET", a.key, arg}, setNew: {"SET", a.key, arg, "NX"},
		setOld: {"SET", a.key, arg, "XX"}, del: {"DEL", a.key}, take: {"GETDEL", a.key}}[a.verb]
	_ = d.c.SetDeadline(time.Now().Add(d.timeout)) // the same
	text, refused, err := d.c.do(command...)
	if err != nil {
		d.close()
		return told{}, felix.Errorf(felix.OutcomeUnknown, "%v", err)
	}
	if refused {
		code := felix.Internal // none that a client should see here
		switch word, _, _ := strings.Cut(text, " "); word {
		case "CLUSTERDOWN":
			code = felix.Unavailable
		case "TRYAGAIN":
			code = felix.ResourceExhausted
		case "UNKNOWN":
			code = felix.OutcomeUnknown
		}
		return told{}, felix.Errorf(code, "%s", text)
	}
	if text == "(nil)" {
		return told{}, nil
	}
	sum, err := strconv.ParseInt(text, 10, 64)
	switch {
	case a.verb == del:
		return told{found: sum == 1}, nil
	case text == "OK":
		return told{found: true}, nil
	case err != nil:
		d.r.t.Errorf("%q was answered %q", command, text)
	}
	return told{true, sum}, nil
}

// httpDoor is the Go client, of one broker.
type httpDoor struct {
	r *registers
	c *client.Client
}

func openHTTP(r *registers, m *member) door {
	c, err := client.New(client.Options{Brokers: []string{m.http}, Timeout: r.patience()})
	if err != nil {
		r.t.Fatal(err)
	}
	return &httpDoor{r, c}
}

func (*httpDoor) verbs() []verb { return []verb{get, get, add, set, del} }

func (d *httpDoor) close() { d.c.Close() }

func (d *httpDoor) do(a deed) (t told, _ *felix.Error) {
	ctx, err := context.Background(), error(nil)
	const tenant, namespace = felix.DefaultTenant, felix.DefaultNamespace
	t.found = true
	switch a.verb {
	case get:
		var c client.Counter
		c, t.found, err = d.c.CounterGet(ctx, tenant, namespace, d.r.cache, a.key)
		t.sum = c.Value
	case add:
		t.sum, err = d.c.CounterAdd(ctx, tenant, namespace, d.r.cache, a.key, a.arg)
	case set:
		err = d.c.CounterSet(ctx, tenant, namespace, d.r.cache, a.key, a.arg)
	case del:
		t.found, err = d.c.CounterDelete(ctx, tenant, namespace, d.r.cache, a.key)
	}
	if err == nil {
		return t, nil
	}
	var e *felix.Error
	if !errors.As(err, &e) {
		d.r.t.Errorf("%+v: an error without a code: %v", a, err)
		e = felix.Errorf(felix.OutcomeUnknown, "%v", err)
	}
	return told{}, e
}
