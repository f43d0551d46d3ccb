package crashtest

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// trafficKeys is how many counters the clients of a cluster add to.
const trafficKeys = 8

// touch is an INCR or GET that was answered.
type touch struct {
	began, ended time.Duration
	value        int64
	add          bool
}

// traffic is clients of Redis doors that add 1 to counters and read them, and all
// that they were told.
type traffic struct {
	t     *testing.T
	start time.Time
	stop  atomic.Bool
	done  sync.WaitGroup
	// strict makes every failure one of the test.
	strict bool
	// timeout is how long a client waits for an answer before it hangs up.
	timeout time.Duration
	// think is how long a client waits after an answer.
	think time.Duration

	mu      sync.Mutex
	touches [trafficKeys][]touch
	unknown [trafficKeys]int64
	errors  map[string]int
	paused  map[*member]bool
	busy    map[*member]int // clients that wait for an answer of it
}

func newTraffic(t *testing.T) *traffic {
	return &traffic{t: t, start: time.Now(), timeout: 10 * time.Second, errors: map[string]int{}, paused: map[*member]bool{}, busy: map[*member]int{}}
}

// through lets clients work through each of the members.
func (y *traffic) through(clients int, members ...*member) {
	for _, m := range members {
		for range clients {
			y.done.Go(func() { y.client(m) })
		}
	}
}

// pause stops the clients of a member, and returns when none waits for it.
func (y *traffic) pause(m *member) {
	for deadline := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		y.mu.Lock()
		y.paused[m] = true
		busy := y.busy[m]
		y.mu.Unlock()
		if busy == 0 {
			return
		}
		if time.Now().After(deadline) {
			y.t.Fatalf("the clients of node %d do not end", m.id)
		}
	}
}

func (y *traffic) resume(m *member) {
	y.mu.Lock()
	defer y.mu.Unlock()
	delete(y.paused, m)
}

// enter says whether a client may ask the member.
func (y *traffic) enter(m *member) bool {
	y.mu.Lock()
	defer y.mu.Unlock()
	if y.paused[m] {
		return false
	}
	y.busy[m]++
	return true
}

func (y *traffic) leave(m *member) {
	y.mu.Lock()
	defer y.mu.Unlock()
	y.busy[m]--
}

// client asks a member, until the end.
func (y *traffic) client(m *member) {
	var c *conn
	defer func() {
		if c != nil {
			_ = c.Close() // there is nobody to tell
		}
	}()
	for !y.stop.Load() && !m.removed.Load() {
		if !y.enter(m) {
			if c != nil {
				_ = c.Close() // the member stops
				c = nil
			}
			time.Sleep(time.Millisecond)
			continue
		}
		if c == nil {
			tcp, err := net.DialTimeout("tcp", m.resp, time.Second)
			if err != nil {
				y.failed("dial: " + err.Error())
				y.leave(m)
				time.Sleep(5 * time.Millisecond)
				continue
			}
			c = newConn(tcp)
		}
		if !y.ask(c) {
			_ = c.Close() // it is of no more use
			c = nil
		}
		y.leave(m)
		time.Sleep(y.think)
	}
}

func (y *traffic) failed(what string) {
	y.mu.Lock()
	y.errors[strings.SplitN(what, " ", 2)[0]]++
	y.mu.Unlock()
	if y.strict {
		y.t.Errorf("after %v: %s", time.Since(y.start), what)
	}
}

// ask adds to a counter, or reads one, and says whether the connection is still
// of use.
func (y *traffic) ask(c *conn) bool { return y.askFor(c, rand.IntN(trafficKeys), rand.IntN(4) != 0) }

// askFor is ask with a certain counter.
func (y *traffic) askFor(c *conn, key int, add bool) bool {
	command := []string{"GET", fmt.Sprint("traffic:", key)}
	if add {
		command[0] = "INCR"
	}
	began := time.Since(y.start)
	_ = c.SetDeadline(time.Now().Add(y.timeout)) // what fails then, does so below
	text, refused, err := c.do(command...)
	ended := time.Since(y.start)
	switch word, _, _ := strings.Cut(text, " "); {
	case err != nil:
		y.failed("connection: " + err.Error())
	case !refused:
		value, err := strconv.ParseInt(text, 10, 64)
		if text == "(nil)" {
			value, err = 0, nil
		}
		if err != nil {
			y.t.Errorf("%q was answered %q", command, text)
		}
		y.mu.Lock()
		y.touches[key] = append(y.touches[key], touch{began, ended, value, add})
		y.mu.Unlock()
		return true
	case word == "CLUSTERDOWN" || word == "TRYAGAIN":
		y.failed(text)
		time.Sleep(time.Millisecond)
		return true // not applied
	case word == "UNKNOWN":
		y.failed(text)
	default:
		y.t.Errorf("%q was answered %q", command, text)
	}
	if add {
		y.mu.Lock()
		y.unknown[key]++
		y.mu.Unlock()
	}
	return err == nil
}

// answered is how many operations were.
func (y *traffic) answered() (n int) {
	y.mu.Lock()
	defer y.mu.Unlock()
	for k := range y.touches {
		n += len(y.touches[k])
	}
	return n
}

// failures is how many were not.
func (y *traffic) failures() (n int) {
	y.mu.Lock()
	defer y.mu.Unlock()
	for _, times := range y.errors {
		n += times
	}
	return n
}

// advance waits until so many more operations were answered.
func (y *traffic) advance(more int) {
	y.t.Helper()
	want := y.answered() + more
	for deadline := time.Now().Add(patience); y.answered() < want; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			n := y.answered()
			y.mu.Lock()
			defer y.mu.Unlock()
			y.t.Fatalf("only %d of %d operations were answered; errors %v", n, want, y.errors)
		}
	}
}

// firstAfter waits for an operation that was begun after the moment and
// answered, and says how long after it that was.
func (y *traffic) firstAfter(moment time.Duration) time.Duration {
	y.t.Helper()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		first := time.Duration(0)
		y.mu.Lock()
		for k := range y.touches {
			for i := len(y.touches[k]) - 1; i >= 0 && y.touches[k][i].ended > moment; i-- {
				if o := y.touches[k][i]; o.began > moment && (first == 0 || o.ended < first) {
					first = o.ended
				}
			}
		}
		y.mu.Unlock()
		if first != 0 {
			return first - moment
		}
	}
	y.t.Fatal("no operation is answered any more")
	return 0
}

// check ends the clients, reads every counter through each member, and compares
// all with what the clients were told.
func (y *traffic) check(members ...*member) {
	y.t.Helper()
	y.stop.Store(true)
	y.done.Wait()
	for _, m := range members {
		c, err := dial(m.resp)
		if err != nil {
			y.t.Fatal(err)
		}
		for k := range trafficKeys {
			y.read(m, c, k)
		}
		if err := c.Close(); err != nil {
			y.t.Error(err)
		}
	}
	for k := range trafficKeys {
		y.checkOrder(k)
	}
	if y.answered() == 0 {
		y.t.Error("no operation was ever answered: nothing was tested")
	}
	y.t.Logf("%d answered; errors %v", y.answered(), y.errors)
}

// read gets a counter, with patience.
func (y *traffic) read(m *member, c *conn, key int) {
	y.t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		began := time.Since(y.start)
		text, refused, err := c.do("GET", fmt.Sprint("traffic:", key))
		if err == nil && !refused {
			value, _ := strconv.ParseInt(text, 10, 64) // 0 is right for none
			y.touches[key] = append(y.touches[key], touch{began, time.Since(y.start), value, false})
			return
		}
		if err != nil || time.Now().After(deadline) {
			y.t.Fatalf("node %d: GET: %q %v", m.id, text, err)
		}
	}
}

// checkOrder checks that the answers of a counter are those of one that only
// grows by ones, each told to one client: that is linearizable if no operation
// that began after another one's end was told less.
func (y *traffic) checkOrder(key int) {
	y.t.Helper()
	all := y.touches[key]
	told, adds := map[int64]int{}, int64(0)
	for _, o := range all {
		if o.add {
			told[o.value]++
			adds++
		}
	}
	for value, times := range maps.All(told) {
		if times > 1 {
			y.t.Errorf("counter %d: %d adds were told %d", key, times, value)
		}
	}
	last := all[len(all)-1].value
	if last < adds || last > adds+y.unknown[key] {
		y.t.Errorf("counter %d is %d; %d adds were answered, and %d more may be applied", key, last, adds, y.unknown[key])
	}
	byEnd := slices.SortedFunc(slices.Values(all), func(a, b touch) int { return cmp.Compare(a.ended, b.ended) })
	slices.SortFunc(all, func(a, b touch) int { return cmp.Compare(a.began, b.began) })
	most, next := int64(-1), 0 // of those that had ended
	for _, o := range all {
		for ; next < len(byEnd) && byEnd[next].ended < o.began; next++ {
			most = max(most, byEnd[next].value)
		}
		if o.value < most || o.add && o.value == most {
			y.t.Errorf("counter %d: %+v began after another operation had been told %d", key, o, most)
			return
		}
	}
}
