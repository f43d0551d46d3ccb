package daemon

import (
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// loader adds to one counter over one connection, pipelined, until the
// connection ends.
type loader struct {
	key    string
	sent   int64
	last   int64  // the newest sum that was acknowledged
	broken string // how the connection ended, if not between replies
}

// pipeline is how many commands a loader has under way.
const pipeline = 32

func (l *loader) run(t *testing.T, addr string, started func()) {
	c := dial(t, addr)
	one := request("INCR", l.key)
	batch := []byte(strings.Repeat(one, pipeline))
	for {
		if _, err := c.Write(batch); err != nil {
			break // the replies tell what came of it
		}
		l.sent += pipeline
		for range pipeline {
			if !l.reply(c) {
				return
			}
		}
		started()
	}
	for l.reply(c) {
	}
}

// reply reads one reply and says whether there was one.
func (l *loader) reply(c *conn) bool {
	line, err := c.in.ReadString('\n')
	if err != nil {
		if !errors.Is(err, io.EOF) || line != "" {
			l.broken = fmt.Sprintf("%v after %q", err, line)
		}
		return false
	}
	var n int64
	if _, err := fmt.Sscanf(line, ":%d\r\n", &n); err != nil || n != l.last+1 {
		l.broken = fmt.Sprintf("reply %q after %d", line, l.last)
		return false
	}
	l.last = n
	return true
}

// underLoad starts pipelined connections and answers when all have had
// replies; wait waits for them to end.
func underLoad(t *testing.T, addr string, connections int) (loaders []*loader, wait func()) {
	t.Helper()
	var ended, started sync.WaitGroup
	started.Add(connections)
	for i := range connections {
		l := &loader{key: fmt.Sprint("load-", i)}
		loaders = append(loaders, l)
		ended.Go(func() {
			once := sync.OnceFunc(started.Done)
			defer once()
			l.run(t, addr, once)
		})
	}
	started.Wait()
	return loaders, ended.Wait
}

// A stop under load: what was read is answered, connections end between
// replies, every answer is durable and nothing that was not answered counts.
func TestStopUnderLoad(t *testing.T) {
	dir := t.TempDir()
	for round := range 2 {
		p := dev(t, dir)
		if c := dial(t, p.resp); c.call(t, "FLUSHDB") != "+OK" {
			t.Fatal("FLUSHDB failed")
		}
		loaders, wait := underLoad(t, p.resp, 20)
		p.stop()
		wait()
		for _, want := range []string{`"broker is stopping"`, `"broker has stopped"`} {
			if strings.Count(p.log(), want) != 1 {
				t.Errorf("the log does not say %s once:\n%s", want, p.log())
			}
		}
		p = dev(t, dir)
		c := dial(t, p.resp)
		for _, l := range loaders {
			if l.broken != "" {
				t.Errorf("round %d, %s ended with %s", round, l.key, l.broken)
			}
			if l.last == 0 {
				t.Errorf("round %d, %s had no reply: the test shows nothing", round, l.key)
			}
			if got, want := c.call(t, "INCRBY", l.key, "0"), fmt.Sprint(":", l.last); got != want {
				t.Errorf("round %d, %s is %s after the restart, the last answer was %s (%d were sent)", round, l.key, got, want, l.sent)
			}
		}
		p.stop()
	}
}

// kill -9 under load: every answer is there, and no more than was sent.
func TestKillUnderLoad(t *testing.T) {
	dir := t.TempDir()
	p := dev(t, dir, "--checkpoint-interval", "200ms")
	for round := range 4 {
		c := dial(t, p.resp)
		c.call(t, "FLUSHDB")
		loaders, wait := underLoad(t, p.resp, 8)
		time.Sleep(time.Duration(round) * 70 * time.Millisecond) // across a checkpoint
		p.signal(syscall.SIGKILL)
		wait()
		<-p.ended
		p = dev(t, dir, "--checkpoint-interval", "200ms")
		c = dial(t, p.resp)
		for _, l := range loaders {
			if got := number(t, c.call(t, "INCRBY", l.key, "0")); got < l.last || got > l.sent {
				t.Errorf("round %d, %s is %d after the kill: %d were acknowledged and %d sent", round, l.key, got, l.last, l.sent)
			}
		}
	}
}

// A restart keeps counters, values, expiries and caches; readiness follows it.
func TestRestartKeepsEverything(t *testing.T) {
	dir := t.TempDir()
	p := serve(t, dir)
	makeCache(t, p)
	c := dial(t, p.resp)
	c.call(t, "INCRBY", "counter", "-41")
	c.call(t, "SET", "value", "text")
	c.call(t, "SET", "short", "1", "EX", "1000")
	p.stop()
	p = serve(t, dir)
	ready(t, p)
	c = dial(t, p.resp)
	if got := c.call(t, "INCR", "counter"); got != ":-40" {
		t.Errorf("the counter: %s", got)
	}
	if got := c.call(t, "STRLEN", "value"); got != ":4" {
		t.Errorf("the value: %s", got)
	}
	if ttl := number(t, c.call(t, "TTL", "short")); ttl < 900 || ttl > 1000 {
		t.Errorf("the time to live: %d", ttl)
	}
}

// SIGINT is SIGTERM.
func TestInterruptStops(t *testing.T) {
	p := dev(t, t.TempDir())
	p.signal(syscall.SIGINT)
	if status := p.wait(); status != 0 {
		t.Errorf("exit status %d", status)
	}
}

// A stop that takes long can be cut short by a second signal; nothing
// acknowledged is lost by that.
func TestSecondSignalEndsAtOnce(t *testing.T) {
	dir := t.TempDir()
	p := dev(t, dir, "--stop-timeout", "1h")
	acknowledged := number(t, dial(t, p.resp).call(t, "INCR", "k"))
	// A request whose body does not come keeps the HTTP door open.
	slow := dial(t, p.http)
	if _, err := io.WriteString(slow, "POST /felix.v1.CounterService/Add HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{"); err != nil {
		t.Fatal(err)
	}
	get(t, p, "/livez") // accepted after the slow one
	p.signal(syscall.SIGTERM)
	reached(t, p, "the stop to begin", func() bool { return strings.Contains(p.log(), "broker is stopping") })
	select {
	case <-p.ended:
		t.Fatalf("the stop did not wait for the request; the log:\n%s", p.log())
	case <-time.After(300 * time.Millisecond):
	}
	p.signal(syscall.SIGTERM)
	if status := p.wait(); status != -int(syscall.SIGTERM) {
		t.Errorf("exit status %d, want death by SIGTERM", status)
	}
	if got := number(t, dial(t, dev(t, dir).resp).call(t, "INCR", "k")); got != acknowledged+1 {
		t.Errorf("INCR after the second signal: %d", got)
	}
}

// A stop is not held up by clients that wait, nor by one that does not read.
func TestStopWithWaitingClients(t *testing.T) {
	p := dev(t, t.TempDir())
	big := strings.Repeat("v", 1<<20)
	deaf := dial(t, p.resp)
	deaf.call(t, "SET", "big", big)
	if _, err := io.WriteString(deaf, strings.Repeat(request("GET", "big"), 30)); err != nil {
		t.Fatal(err)
	}
	var waiting []*conn
	for range 65 { // one more than there are slots for slow work
		c := dial(t, p.resp)
		if _, err := io.WriteString(c, request("WAIT", "1", "0")); err != nil {
			t.Fatal(err)
		}
		waiting = append(waiting, c)
	}
	if got := dial(t, p.resp).call(t, "DBSIZE"); got != ":1" {
		t.Errorf("DBSIZE beside them: %s", got)
	}
	began := time.Now()
	p.stop()
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("the stop took %v", took)
	}
	for _, c := range waiting {
		if line, err := c.in.ReadString('\n'); err != nil || line != ":0\r\n" {
			t.Errorf("a waiting client got %q, %v", line, err)
		}
	}
}

// A broker that waits for others is stopped like one that serves.
func TestStopWhileWaitingForOthers(t *testing.T) {
	nobody, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = nobody.Close() }()
	p := launch(t, append(serveArgs(t.TempDir()), "--node-id", "1", "--peers", "1=127.0.0.1:1,2="+nobody.Addr().String())...)
	reached(t, p, "it waits", func() bool { return strings.Contains(p.log(), "waiting to form the cluster") })
	p.stop()
	if !strings.Contains(p.log(), "stopped before the broker was up") {
		t.Errorf("the log:\n%s", p.log())
	}
}

// A stop that takes longer than it may is forced, and says so.
func TestStopTimeout(t *testing.T) {
	p := dev(t, t.TempDir(), "--stop-timeout", "100ms")
	slow := dial(t, p.http)
	if _, err := io.WriteString(slow, "POST /felix.v1.CounterService/Add HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{"); err != nil {
		t.Fatal(err)
	}
	dial(t, p.resp).call(t, "PING")
	get(t, p, "/livez") // accepted after the slow one
	p.signal(syscall.SIGTERM)
	if status := p.wait(); status != exitFail || !strings.Contains(p.log(), "the stop was not clean; nothing acknowledged is lost") {
		t.Errorf("exit status %d; the log:\n%s", status, p.log())
	}
}

// reached waits until something is so.
func reached(t *testing.T, p *process, what string, so func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !so(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain for %s; the log:\n%s", what, p.log())
		}
	}
}

// ready waits until every shard has an owner, which comes a moment after the
// start.
func ready(t *testing.T, p *process) {
	t.Helper()
	reached(t, p, "/readyz", func() bool {
		status, _ := get(t, p, "/readyz")
		return status == 200
	})
}

func scrape(t *testing.T, p *process) string {
	t.Helper()
	status, body := get(t, p, "/metrics")
	if status != 200 {
		t.Fatalf("/metrics: %d %s", status, body)
	}
	return body
}
