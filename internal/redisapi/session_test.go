package redisapi_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"runtime"
	"strings"
	"testing"
	"weak"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/netloop"
	"github.com/felix-go/felix/internal/redisapi"
)

// fake is a service with one cache, which the test answers for.
type fake struct {
	felix.Service
	opened int
	err    error // of Cache
	cache  *fakeCache
}

func (f *fake) Cache(_ context.Context, scope felix.Scope) (felix.Cache, error) {
	f.opened++
	if f.err != nil {
		return nil, f.err
	}
	return f.cache, nil
}

type fakeCache struct {
	felix.Cache
	reply func(op *felix.Op) felix.Reply
	// onSubmit is told of every batch; nil is nobody.
	onSubmit func(b *felix.Batch)
	scanned  int
	onPage   func(*felix.ScanPage) // nil, or told of every page
	keys     []string              // sorted
	gone     map[string]bool       // of keys: takes a place in its page, and is not shown
	err      error                 // of Scan, Count and Clear
}

func (c *fakeCache) Submit(b *felix.Batch) {
	if c.onSubmit != nil {
		c.onSubmit(b)
	}
	part := make([]int32, len(b.Ops))
	for i := range b.Ops {
		part[i] = int32(i)
		b.Replies[i] = c.reply(&b.Ops[i])
	}
	b.Done.OpsDone(b, part)
}

func (c *fakeCache) Scan(_ context.Context, req felix.ScanRequest) (felix.ScanPage, error) {
	c.scanned++
	var (
		page   felix.ScanPage
		looked int
	)
	for _, key := range c.keys {
		if !strings.HasPrefix(key, string(req.Prefix)) || key <= string(req.After) {
			continue
		}
		if looked == req.Limit {
			page.More = true
			break
		}
		looked++
		page.Next = []byte(key)
		if !c.gone[key] {
			page.Items = append(page.Items, felix.ScanItem{Key: []byte(key)})
		}
	}
	if !page.More {
		page.Next = nil
	}
	if c.onPage != nil {
		c.onPage(&page)
	}
	return page, c.err
}

func (c *fakeCache) Count(context.Context) (felix.RecordCount, error) {
	return felix.RecordCount{Keys: int64(len(c.keys))}, c.err
}

func (c *fakeCache) Clear(context.Context) error { return c.err }

func newFake() *fake {
	return &fake{cache: &fakeCache{reply: func(op *felix.Op) felix.Reply {
		return felix.Reply{Applied: true, Int: op.Int}
	}}}
}

// talk sends lines to a new session and gives all that it answers.
type talk struct {
	t       *testing.T
	session netloop.Session
	closed  bool
}

func newTalk(t *testing.T, h netloop.Handler) *talk {
	s := h.NewSession(&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1234})
	t.Cleanup(s.Closed)
	return &talk{t: t, session: s}
}

func (k *talk) say(lines ...string) string {
	k.t.Helper()
	in := []byte(strings.Join(lines, "\r\n") + "\r\n")
	var out []byte
	for len(in) > 0 && !k.closed {
		used, answer, stop := turn(context.Background(), k.session, in)
		if used == 0 {
			k.t.Fatalf("%q was left, nothing used", in)
		}
		in, out, k.closed = in[used:], append(out, answer...), stop
	}
	return string(out)
}

func (k *talk) expect(want string, lines ...string) {
	k.t.Helper()
	if got := k.say(lines...); got != want {
		k.t.Errorf("%q: %q, want %q", lines, got, want)
	}
}

func TestErrors(t *testing.T) {
	var logged bytes.Buffer
	f := newFake()
	h := redisapi.New(f, redisapi.Options{Logger: slog.New(slog.NewTextHandler(&logged, nil))})
	k := newTalk(t, h)
	for _, test := range []struct {
		err  *felix.Error
		line string
		want string
	}{
		{felix.ErrNotInteger, "INCR k", "-ERR value is not an integer or out of range\r\n"},
		{felix.ErrOverflow, "INCR k", "-ERR increment or decrement would overflow\r\n"},
		{felix.ErrInvalidExpire, "SET k v EX 5", "-ERR invalid expire time in 'set' command\r\n"},
		{felix.ErrInvalidExpire, "PEXPIRE k 5", "-ERR invalid expire time in 'pexpire' command\r\n"},
		{felix.Errorf(felix.InvalidArgument, "bad"), "GET k", "-ERR bad\r\n"},
		{felix.Errorf(felix.Unauthenticated, "who"), "GET k", "-NOAUTH who\r\n"},
		{felix.Errorf(felix.PermissionDenied, "no"), "GET k", "-NOPERM no\r\n"},
		{felix.Errorf(felix.OutOfRange, "too large"), "INCR k", "-ERR too large\r\n"},
		{felix.Errorf(felix.ResourceExhausted, "busy"), "MGET k l", "-TRYAGAIN busy\r\n"},
		{felix.Errorf(felix.Unavailable, "no owner"), "DEL k l", "-CLUSTERDOWN no owner\r\n"},
		{felix.Errorf(felix.OutcomeUnknown, "lost"), "MSET k v l w", "-UNKNOWN lost\r\n"},
		{felix.Errorf(felix.Internal, "secret"), "GET k", "-ERR internal error\r\n"},
		{felix.Errorf(felix.InvalidArgument, "a\r\nb"), "GET k", "-ERR a  b\r\n"},
	} {
		f.cache.reply = func(*felix.Op) felix.Reply { return felix.Reply{Err: test.err} }
		k.expect(test.want, test.line)
	}
	if !strings.Contains(logged.String(), "secret") || strings.Contains(logged.String(), "busy") {
		t.Errorf("the log is %q, want the internal error alone", logged.String())
	}
	for _, code := range felix.Codes() {
		f.cache.err = felix.Errorf(code, "text")
		for _, line := range []string{"DBSIZE", "FLUSHDB", "SCAN 0", "KEYS *", "INFO"} {
			if line == "INFO" && (code == felix.CacheNotFound || code == felix.Unavailable) {
				continue
			}
			if got := k.say(line); !strings.HasPrefix(got, "-"+code.Info().RESP+" ") {
				t.Errorf("%s on %v: %q", line, code, got)
			}
		}
	}
	f.cache.err = errors.New("secret")
	k.expect("-ERR internal error\r\n", "DBSIZE")
}

func TestSomeKeysChanged(t *testing.T) {
	f := newFake()
	k := newTalk(t, redisapi.New(f, redisapi.Options{}))
	f.cache.reply = func(op *felix.Op) felix.Reply {
		if string(op.Key) == "bad" {
			return felix.Reply{Err: felix.Errorf(felix.Unavailable, "no owner")}
		}
		return felix.Reply{Applied: true}
	}
	want := "-UNKNOWN the command took effect on some of its keys only: CLUSTERDOWN no owner\r\n"
	k.expect(want, "MSET a 1 bad 2")
	k.expect(want, "DEL bad a")
	k.expect("-CLUSTERDOWN no owner\r\n", "DEL bad bad", "")
	k.expect("-CLUSTERDOWN no owner\r\n", "MGET a bad")
	k.expect(":0\r\n+OK\r\n", "EXISTS a", "MSET a 1")
	// An open outcome is never shown as a refusal.
	f.cache.reply = func(op *felix.Op) felix.Reply {
		if string(op.Key) == "open" {
			return felix.Reply{Err: felix.Errorf(felix.OutcomeUnknown, "lost")}
		}
		return felix.Reply{Err: felix.Errorf(felix.Unavailable, "no owner")}
	}
	k.expect("-UNKNOWN lost\r\n", "DEL refused open refused")
}

func TestLargeKnownRepliesEndTheTurn(t *testing.T) {
	h := redisapi.New(newFake(), redisapi.Options{})
	s := h.NewSession(nil)
	defer s.Closed()
	in := bytes.Repeat([]byte("COMMAND\r\n"), 10_000)
	var tn netloop.Turn
	used := s.Parse(in, &tn)
	if out, _ := s.Reply(nil, nil); used == 0 || used == len(in) || len(out) > 2<<20 {
		t.Errorf("one turn used %d of %d bytes and answered %d", used, len(in), len(out))
	}
}

func TestInfoWithoutTheCache(t *testing.T) {
	f := newFake()
	f.err = felix.Errorf(felix.CacheNotFound, "x")
	k := newTalk(t, redisapi.New(f, redisapi.Options{Version: "1.2.3"}))
	got := k.say("INFO")
	for _, want := range []string{"redis_version:7.0.15\r\n", "felix_version:1.2.3\r\n", "redis_mode:standalone\r\n", "loading:0\r\n", "role:master\r\n", "cluster_enabled:0\r\n"} {
		if !strings.Contains(got, want) {
			t.Errorf("INFO has no %q:\n%s", want, got)
		}
	}
}

// TestInputIsLetGo: an idle session does not hold the memory of its last turn.
func TestInputIsLetGo(t *testing.T) {
	s := redisapi.New(newFake(), redisapi.Options{}).NewSession(nil)
	defer s.Closed()
	turn(context.Background(), s, []byte("INCR k\r\n"))
	input := func() weak.Pointer[byte] {
		in := append(bytes.Repeat([]byte("\r\n"), 100_000), "INCR k\r\n"...)
		turn(context.Background(), s, in)
		return weak.Make(&in[0])
	}()
	runtime.GC()
	if input.Value() != nil {
		t.Error("the input of the last turn is still in memory")
	}
}

// FuzzSession: whatever comes in, every request is parsed and answered.
func FuzzSession(f *testing.F) {
	for _, seed := range []string{"SET k v EX 5 NX GET\r\n", "*2\r\n$3\r\nGET\r\n$1\r\nk\r\n", "HELLO 3 AUTH a/b/c t SETNAME x\r\n",
		"CLIENT KILL ID 7 SKIPME no\r\n", "SCAN 0 MATCH [a COUNT 3\r\nKEYS *\r\n", "COMMAND GETKEYSANDFLAGS SET a b\r\n", "MULTI\r\nINCR k\r\nEXEC\r\n", "CLIENT REPLY SKIP\r\nGETEX k PX\r\n"} {
		f.Add([]byte(seed))
	}
	h := redisapi.New(newFake(), redisapi.Options{})
	ctx, cancel := context.WithCancel(context.Background())
	cancel() // slow requests must not wait
	f.Fuzz(func(t *testing.T, in []byte) {
		s := h.NewSession(nil)
		defer s.Closed()
		for len(in) > 0 {
			var tn netloop.Turn
			used := s.Parse(in, &tn)
			if tn.Slow != nil {
				if len(tn.Ops) > 0 {
					t.Fatal("a slow request is not alone")
				}
				tn.Slow(ctx)
			}
			var out []byte
			for left, replies := 1, make([]felix.Reply, len(tn.Ops)); left > 0; {
				var part []byte
				part, left = s.Reply(nil, replies)
				out = append(out, part...)
			}
			if len(out) > 0 && !bytes.HasSuffix(out, []byte("\r\n")) {
				t.Fatalf("answered %q", out)
			}
			if in = in[used:]; used == 0 || tn.Close {
				return
			}
		}
	})
}

func TestKeysAreCheckedBeforeAnyIsChanged(t *testing.T) {
	f := newFake()
	changed := 0
	f.cache.reply = func(*felix.Op) felix.Reply { changed++; return felix.Reply{Applied: true} }
	k := newTalk(t, redisapi.New(f, redisapi.Options{}))
	for _, line := range []string{`MSET a 1 "" 2`, `DEL a ""`, "DEL a " + strings.Repeat("k", felix.MaxKeyBytes+1)[:60_000] + strings.Repeat("x", 5_000) + strings.Repeat("y", 600)} {
		if got := k.say(line); !strings.HasPrefix(got, "-ERR") {
			t.Errorf("%.40s: %q", line, got)
		}
	}
	many := "*10002\r\n$3\r\nDEL\r\n" + strings.Repeat("$1\r\nk\r\n", 10_001)
	if got := k.say(strings.TrimSuffix(many, "\r\n")); !strings.HasPrefix(got, "-ERR the command has 10001 keys") {
		t.Errorf("10,001 keys: %q", got)
	}
	if changed != 0 {
		t.Errorf("%d operations were submitted", changed)
	}
}

func TestCacheIsAskedForAgain(t *testing.T) {
	f := newFake()
	k := newTalk(t, redisapi.New(f, redisapi.Options{}))
	k.expect("+PONG\r\n", "PING")
	if f.opened != 0 {
		t.Errorf("PING opened the cache")
	}
	k.expect(":1\r\n:1\r\n:1\r\n", "INCR k", "INCR k", "INCR k")
	if f.opened != 1 {
		t.Errorf("opened %d times, want once", f.opened)
	}
	// The cache is deleted: the turn fails, and the next asks again.
	gone := f.cache.reply
	f.cache.reply = func(*felix.Op) felix.Reply {
		return felix.Reply{Err: felix.Errorf(felix.CacheNotFound, "x")}
	}
	const lost = "-ERR no such cache default/default/default\r\n"
	k.expect(lost+lost, "INCR k", "GET k")
	f.cache.reply = gone
	k.expect(":1\r\n:1\r\n", "INCR k", "INCR k")
	if f.opened != 2 {
		t.Errorf("opened %d times, want twice", f.opened)
	}
	// It is not there at all: every command asks, and says so.
	f.cache.reply = func(*felix.Op) felix.Reply { return felix.Reply{Err: felix.Errorf(felix.CacheNotFound, "x")} }
	f.err = felix.Errorf(felix.CacheNotFound, "x")
	k.expect(lost+lost+lost, "INCR k", "MSET a 1 b 2", "DBSIZE")
	f.err, f.cache.reply = nil, gone
	k.expect(":1\r\n", "INCR k")
}

func TestScopes(t *testing.T) {
	service := newService(t)
	k := newTalk(t, redisapi.New(service, redisapi.Options{}))
	k.expect(":1\r\n", "INCR n")
	k.expect("+OK\r\n:1\r\n:2\r\n", "AUTH default/default/stats any", "INCR n", "INCR n")
	k.expect("-ERR no such cache default/default/none\r\n:3\r\n", "AUTH default/default/none x", "INCR n")
	for _, user := range []string{"x", "a/b", "a/b/c/d", "A/b/c", "//", "default/default/", "tenant/name space/cache"} {
		got := k.say(fmt.Sprintf("AUTH %q x", user))
		if !strings.HasPrefix(got, "-WRONGPASS the user name is not tenant/namespace/cache") {
			t.Errorf("AUTH %s: %q", user, got)
		}
	}
	k.expect(":4\r\n", "INCR n")
	k.expect("+OK\r\n:2\r\n", "AUTH default x", "INCR n")
	if got := k.say("HELLO 3 AUTH default/default/stats t SETNAME me", "INCR n", "CLIENT GETNAME", "GET none"); !strings.HasPrefix(got, "%7\r\n") || !strings.HasSuffix(got, ":5\r\n$2\r\nme\r\n_\r\n") {
		t.Errorf("HELLO: %q", got)
	}
	k.expect("-ERR no such cache default/default/none\r\n_\r\n", "HELLO 2 AUTH default/default/none x", "GET none")
	// RESET in a pipeline: what stands before it goes to the cache of then.
	k.expect(":6\r\n+RESET\r\n:3\r\n$-1\r\n", "INCR n", "RESET", "INCR n", "GET none")
	// SCAN cursors are of a cache.
	for i := range 30 {
		k.say(fmt.Sprintf("SET key:%d v", i))
	}
	got := k.say("SCAN 0 COUNT 5")
	cursor := strings.Split(got, "\r\n")[2]
	k.expect("+OK\r\n-ERR unknown cursor: it is of another cache, or was forgotten; start again with SCAN 0\r\n",
		"AUTH default/default/stats x", "SCAN "+cursor)
}

func TestTurns(t *testing.T) {
	h := redisapi.New(newFake(), redisapi.Options{})
	s := h.NewSession(nil)
	defer s.Closed()
	turn(context.Background(), s, []byte("INCR k\r\n")) // opens the cache

	// A slow request is left until it is alone.
	in := []byte("INCR k\r\nPING\r\nDBSIZE\r\nINCR k\r\n")
	var tn netloop.Turn
	used := s.Parse(in, &tn)
	if used != len("INCR k\r\nPING\r\n") || len(tn.Ops) != 1 || tn.Slow != nil || tn.Cache == nil {
		t.Fatalf("first turn: %d used, %d operations", used, len(tn.Ops))
	}
	s.Reply(nil, []felix.Reply{{Int: 1}})
	tn = netloop.Turn{}
	in = in[used:]
	if used = s.Parse(in, &tn); used != len("DBSIZE\r\n") || len(tn.Ops) != 0 || tn.Slow == nil {
		t.Fatalf("second turn: %d used, %d operations", used, len(tn.Ops))
	}
	tn.Slow(context.Background())
	if got, _ := s.Reply([]byte("before"), nil); string(got) != "before:0\r\n" {
		t.Errorf("second reply %q", got)
	}
	// Other sessions' operations stay where they are.
	other := felix.Op{Key: []byte("other")}
	tn = netloop.Turn{Ops: []felix.Op{other}}
	if s.Parse(in[used:], &tn); len(tn.Ops) != 2 || string(tn.Ops[0].Key) != "other" || string(tn.Ops[1].Key) != "k" {
		t.Fatalf("third turn: %v", tn.Ops)
	}
	s.Reply(nil, []felix.Reply{{Int: 2}})
	// Only operations that carry values are held to a small number.
	gets := bytes.Repeat([]byte("GET k\r\n"), 1000)
	tn = netloop.Turn{}
	if used = s.Parse(gets, &tn); len(tn.Ops) != 256 || used != 256*len("GET k\r\n") {
		t.Errorf("a turn of %d GETs", len(tn.Ops))
	}
	s.Reply(nil, make([]felix.Reply, 256))
	tn = netloop.Turn{}
	if s.Parse(bytes.Repeat([]byte("INCR k\r\n"), 1000), &tn); len(tn.Ops) != 1000 {
		t.Errorf("a turn of %d INCRs", len(tn.Ops))
	}
	s.Reply(nil, make([]felix.Reply, 1000))
	// A request in pieces, and how much it needs.
	tn = netloop.Turn{}
	part := []byte("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$5000\r\nab")
	if used = s.Parse(part, &tn); used != 0 || tn.Need != len(part)-2+5002 {
		t.Errorf("a part: %d used, %d needed", used, tn.Need)
	}
	s.Reply(nil, nil)
	// After a protocol error there is nothing more.
	whole := append(part, bytes.Repeat([]byte("x"), 4998)...)
	whole = append(whole, "\r\n*1\r\n!\r\nPING\r\n"...)
	tn = netloop.Turn{}
	if used = s.Parse(whole, &tn); used != len(whole) || len(tn.Ops) != 1 || !tn.Close {
		t.Errorf("an error: %d of %d used, close %v", used, len(whole), tn.Close)
	}
	if got, _ := s.Reply(nil, make([]felix.Reply, 1)); string(got) != "+OK\r\n-ERR Protocol error: expected '$', got '!'\r\n" {
		t.Errorf("an error: %q", got)
	}
	tn = netloop.Turn{}
	if s.Parse([]byte("INCR k\r\n"), &tn); len(tn.Ops) != 0 || !tn.Close {
		t.Error("a closed session went on")
	}
}

func TestKill(t *testing.T) {
	h := redisapi.New(newFake(), redisapi.Options{})
	a, b := newTalk(t, h), newTalk(t, h)
	b.say("CLIENT SETNAME b")
	id := strings.TrimSpace(strings.TrimPrefix(b.say("CLIENT ID"), ":"))
	if list := a.say("CLIENT LIST"); strings.Count(list, "id=") != 2 || !strings.Contains(list, "name=b ") {
		t.Errorf("CLIENT LIST: %q", list)
	}
	if list := a.say("CLIENT LIST ID " + id); strings.Count(list, "id=") != 1 || !strings.Contains(list, "id="+id+" ") {
		t.Errorf("CLIENT LIST ID: %q", list)
	}
	a.expect(":1\r\n:0\r\n", "CLIENT KILL ID "+id, "CLIENT KILL ID "+id)
	if b.expect("", "INCR k"); !b.closed {
		t.Error("a killed connection is still open")
	}
	if a.expect("+OK\r\n", "CLIENT KILL 127.0.0.1:1234"); !a.closed {
		t.Error("the connection that killed itself is still open")
	}
}

func TestCounts(t *testing.T) {
	h := redisapi.New(newFake(), redisapi.Options{})
	k := newTalk(t, h)
	k.say("INCR a", "INCR a", "INCR a", "GET a", "incr", "NOSUCH", "OTHER", "CLIENT ID", "DBSIZE", "DBSIZE x")
	got := map[string]string{}
	h.CommandCounts(func(name string, calls, failed uint64) { got[name] = fmt.Sprintf("%d/%d", calls, failed) })
	want := map[string]string{"incr": "4/1", "get": "1/0", "unknown": "2/2", "client|id": "1/0", "dbsize": "2/1"}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("counts %v, want %v", got, want)
	}
}

// manyReplies lets AllocsPerRun measure a session alone.
var manyReplies = make([]felix.Reply, 8)

func TestHotPathDoesNotAllocate(t *testing.T) {
	h := redisapi.New(newFake(), redisapi.Options{})
	s := h.NewSession(nil)
	defer s.Closed()
	turn(context.Background(), s, []byte("INCR k\r\n"))
	in := []byte("*2\r\n$4\r\nINCR\r\n$5\r\nkey:1\r\n*2\r\n$3\r\nget\r\n$5\r\nkey:1\r\n" +
		"*3\r\n$3\r\nSet\r\n$5\r\nkey:1\r\n$5\r\nvalue\r\n*3\r\n$6\r\nINCRBY\r\n$5\r\nkey:1\r\n$2\r\n17\r\n" +
		"*3\r\n$6\r\nDECRBY\r\n$5\r\nkey:1\r\n$2\r\n17\r\n*2\r\n$4\r\nDECR\r\n$5\r\nkey:1\r\n" +
		"*5\r\n$3\r\nSET\r\n$5\r\nkey:1\r\n$5\r\nvalue\r\n$2\r\nEX\r\n$2\r\n60\r\n*2\r\n$3\r\nTTL\r\n$5\r\nkey:1\r\n")
	tn := netloop.Turn{Ops: make([]felix.Op, 0, 16)}
	out := make([]byte, 0, 1024)
	allocs := testing.AllocsPerRun(1000, func() {
		tn = netloop.Turn{Ops: tn.Ops[:0]}
		if used := s.Parse(in, &tn); used != len(in) || len(tn.Ops) != 8 {
			t.Fatalf("%d of %d used, %d operations", used, len(in), len(tn.Ops))
		}
		out, _ = s.Reply(out[:0], manyReplies)
	})
	if allocs != 0 {
		t.Errorf("%v allocations in 8 commands", allocs)
	}
}

func BenchmarkIncr(b *testing.B) {
	h := redisapi.New(newFake(), redisapi.Options{})
	s := h.NewSession(nil)
	defer s.Closed()
	turn(context.Background(), s, []byte("INCR k\r\n"))
	in := bytes.Repeat([]byte("*2\r\n$4\r\nINCR\r\n$16\r\nkey:000000012345\r\n"), 64)
	replies := make([]felix.Reply, 64)
	for i := range replies {
		replies[i].Int = int64(i) * 1234567
	}
	tn := netloop.Turn{}
	var out []byte
	for i := 0; i < b.N; i += 64 {
		tn = netloop.Turn{Ops: tn.Ops[:0]}
		s.Parse(in, &tn)
		out, _ = s.Reply(out[:0], replies)
	}
	io.Discard.Write(out)
}
