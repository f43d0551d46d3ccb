package redisapi_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/netloop"
	"github.com/felix-go/felix/internal/redisapi"
)

// serveDoor runs a door on a free port until the test ends.
func serveDoor(t *testing.T, service felix.Service, opts netloop.Options) (server *netloop.Server, dial func() net.Conn) {
	t.Helper()
	opts.Handler, opts.MaxRequestBytes = redisapi.New(service, redisapi.Options{}), redisapi.MaxRequestBytes
	server, err := netloop.Listen("tcp", "127.0.0.1:0", opts)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve() }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if err := server.Shutdown(ctx); err != nil {
			t.Errorf("Shutdown: %v", err)
		}
		if err := <-served; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	return server, func() net.Conn {
		t.Helper()
		c, err := net.Dial("tcp", server.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		if err := c.SetDeadline(time.Now().Add(60 * time.Second)); err != nil {
			t.Fatal(err)
		}
		return c
	}
}

// expect reads exactly these bytes.
func expect(t *testing.T, r io.Reader, want string) {
	t.Helper()
	got := make([]byte, len(want))
	if n, err := io.ReadFull(r, got); err != nil || string(got) != want {
		t.Errorf("got %.80q (%d bytes, %v), want %.80q (%d bytes)", got[:n], n, err, want, len(want))
	}
}

// holdingCache answers nothing until as many operations as it waits for have
// come.
type holdingCache struct {
	felix.Cache
	mu      sync.Mutex
	waits   int
	ops     int
	batches []*felix.Batch
}

func (c *holdingCache) Submit(b *felix.Batch) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ops += len(b.Ops)
	c.batches = append(c.batches, b)
	if c.ops < c.waits {
		return
	}
	for _, b := range c.batches {
		part := make([]int32, len(b.Ops))
		for i := range part {
			part[i] = int32(i)
			b.Replies[i] = felix.Reply{Applied: true, Int: 1}
		}
		b.Done.OpsDone(b, part)
	}
	c.batches = nil
}

type oneCache struct {
	felix.Service
	cache felix.Cache
}

func (s oneCache) Cache(context.Context, felix.Scope) (felix.Cache, error) { return s.cache, nil }

// The first operations of new connections share a sync like any others: none
// of them waits for another's.
func TestFirstOperationsGather(t *testing.T) {
	const conns = 400
	cache := &holdingCache{waits: conns}
	_, dial := serveDoor(t, oneCache{cache: cache}, netloop.Options{})
	var all []net.Conn
	for range conns {
		c := dial()
		if _, err := c.Write([]byte("INCR k\r\n")); err != nil {
			t.Fatal(err)
		}
		all = append(all, c)
	}
	for _, c := range all {
		if expect(t, c, ":1\r\n"); t.Failed() {
			return
		}
	}
}

// More WAITs than there are slots for slow work leave the door as it was.
func TestWaitHoldsNothing(t *testing.T) {
	server, dial := serveDoor(t, newService(t), netloop.Options{})
	const conns = 100
	var waiting []net.Conn
	for range conns {
		c := dial()
		if _, err := c.Write([]byte("INCR n\r\nWAIT 1 0\r\n")); err != nil {
			t.Fatal(err)
		}
		if line, err := bufio.NewReaderSize(c, 16).ReadString('\n'); err != nil || line[0] != ':' {
			t.Fatalf("got %q, %v", line, err)
		}
		waiting = append(waiting, c)
	}
	c := dial()
	if _, err := c.Write([]byte("INCR n\r\nDBSIZE\r\nWAIT 1 20\r\nWAIT 0 0\r\n")); err != nil {
		t.Fatal(err)
	}
	expect(t, c, fmt.Sprintf(":%d\r\n:1\r\n:0\r\n:0\r\n", conns+1))
	if runtime.GOOS != "linux" {
		return // where it is not seen that a client has closed
	}
	for _, c := range waiting {
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}
	for end := time.Now().Add(20 * time.Second); server.Stats().Connections != 1; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d connections of clients that have closed are open", server.Stats().Connections-1)
		}
	}
}

// hungCache counts until it is released.
type hungCache struct {
	*fakeCache
	counting, release chan struct{}
}

func (c hungCache) Count(context.Context) (felix.RecordCount, error) {
	close(c.counting)
	<-c.release
	return felix.RecordCount{Keys: 7}, nil
}

// New connections find their cache, also another one, although all slots for
// slow work are taken.
func TestConnectingNeedsNoSlot(t *testing.T) {
	cache := hungCache{newFake().cache, make(chan struct{}), make(chan struct{})}
	_, dial := serveDoor(t, oneCache{cache: cache}, netloop.Options{MaxSlow: 1})
	hung := dial()
	if _, err := hung.Write([]byte("DBSIZE\r\n")); err != nil {
		t.Fatal(err)
	}
	<-cache.counting
	c := dial()
	if _, err := c.Write([]byte("INCR k\r\nAUTH default/default/stats x\r\nINCR k\r\nHELLO 3 AUTH default x\r\nINCR k\r\nQUIT\r\n")); err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(c)
	if err != nil || !strings.HasPrefix(string(got), ":1\r\n+OK\r\n:1\r\n%7\r\n") || !strings.HasSuffix(string(got), ":1\r\n+OK\r\n") {
		t.Errorf("got %q, %v", got, err)
	}
	close(cache.release)
	expect(t, hung, ":7\r\n")
}

// Clients that ask for large values and read nothing cost little memory.
func TestUnreadAnswersCostLittle(t *testing.T) {
	f := newFake()
	value := bytes.Repeat([]byte("v"), felix.MaxValueBytes)
	f.cache.reply = func(*felix.Op) felix.Reply { return felix.Reply{Found: felix.ValueRecord, Value: value} }
	server, dial := serveDoor(t, f, netloop.Options{MemoryBytes: 1 << 40})
	const conns, gets = 20, 256
	before := heap()
	for range conns {
		if _, err := dial().Write(bytes.Repeat([]byte("GET big\r\n"), gets)); err != nil {
			t.Fatal(err)
		}
	}
	for end := time.Now().Add(20 * time.Second); server.Stats().Unsent < conns*(gets-16)<<20; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d bytes are unsent, fewer than were asked for", server.Stats().Unsent)
		}
	}
	const most = conns * 4 << 20
	if got := heap() - before; got > most {
		t.Errorf("%d connections that read nothing cost %d bytes, want at most %d", conns, got, most)
	}
	runtime.KeepAlive(value)
}

func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// An answer that is made in parts is the same as one that is not, and counts
// as one.
func TestAnswersInParts(t *testing.T) {
	f := newFake()
	value := strings.Repeat("v", 50_000)
	f.cache.reply = func(op *felix.Op) felix.Reply {
		switch op.Key[0] {
		case 'n':
			return felix.Reply{}
		case 'c':
			return felix.Reply{Found: felix.CounterRecord, Int: 7}
		case 'e':
			return felix.Reply{Err: felix.Errorf(felix.Unavailable, "no owner")}
		}
		return felix.Reply{Found: felix.ValueRecord, Value: []byte(value)}
	}
	for i := range 100_000 {
		f.cache.keys = append(f.cache.keys, fmt.Sprintf("-%06d", i))
	}
	h := redisapi.New(f, redisapi.Options{})
	k := newTalk(t, h)
	bulk := fmt.Sprintf("$%d\r\n%s\r\n", len(value), value)
	for _, test := range []struct{ line, want string }{
		{"MGET v n v c v v v v", "*8\r\n" + bulk + "$-1\r\n" + bulk + "$1\r\n7\r\n" + strings.Repeat(bulk, 4)},
		{"MGET v v v v e v", "-CLUSTERDOWN no owner\r\n"},
		{"MGET v", "*1\r\n" + bulk},
		{"ECHO " + value[:40_000], "$40000\r\n" + value[:40_000] + "\r\n"},
	} {
		k.expect(strings.Repeat(test.want+"+PONG\r\n", 10), strings.Repeat(test.line+"\r\nPING\r\n", 9)+test.line+"\r\nPING")
	}
	// Keys that begin with '-' are no errors, wherever a part begins.
	got := k.say("KEYS *")
	if want := "*100000\r\n"; !strings.HasPrefix(got, want) || len(got) != len(want)+100_000*len("$7\r\n-000000\r\n") {
		t.Errorf("KEYS answered %d bytes: %.40q", len(got), got)
	}
	// What is not to be answered is not, nor its parts.
	k.expect("+PONG\r\n", "CLIENT REPLY SKIP", "MGET v v v v v v v v v v", "PING")
	h.CommandCounts(func(name string, calls, failed uint64) {
		if want := map[string]uint64{"mget": 10}[name]; failed != want {
			t.Errorf("%s failed %d times, want %d", name, failed, want)
		}
	})
}
