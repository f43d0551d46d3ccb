package netloop

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/felix-go/felix"
)

// miniHandler serves a few commands of the Redis protocol:
//
//	PING          answered by the session
//	FILL n        answered by the session with n bytes
//	INCR key      an operation on cache 0
//	INCRIN i key  an operation on cache i
//	GET key       the key itself, through a Get
//	WAIT ms       a wait
//	SLOW ms       slow work
//	HANG          slow work that ends with its context
//	QUIT          closes after +OK
type miniHandler struct {
	caches []felix.Cache
	closed atomic.Int64 // sessions closed
	opened atomic.Int64
	slow   atomic.Int64 // slow work under way
	slowHi atomic.Int64 // the most of it at the same time
	hungUp atomic.Int64 // HANGs whose context ended
	verify bool         // sessions check that their input stays as it is
}

func (h *miniHandler) NewSession(net.Addr) Session {
	h.opened.Add(1)
	return &miniSession{h: h, verify: h.verify}
}

func (h *miniHandler) TooMany() []byte { return []byte("-ERR max number of clients reached\r\n") }

type answer struct {
	text []byte // or, if nil, that of the next operation
}

type miniSession struct {
	h       *miniHandler
	answers []answer
	args    [][]byte
	closed  bool
	told    int         // of answers: appended already
	next    int         // of the turn's replies: used already
	inTurn  atomic.Bool // catches calls at the same time
	seen    []byte      // the turn's input, to compare with at Reply
	check   []byte      // a copy of it
	verify  bool
}

func (s *miniSession) Parse(in []byte, t *Turn) int {
	if s.closed || !s.inTurn.CompareAndSwap(false, true) {
		panic("a session's methods overlap")
	}
	defer s.inTurn.Store(false)
	if len(in) == 0 {
		panic("Parse of nothing")
	}
	s.answers, s.told, s.next = s.answers[:0], 0, 0
	used := 0
	for {
		n, need := s.command(in[used:])
		if n == 0 {
			t.Need = need
			break
		}
		if n < 0 {
			s.say("-ERR protocol error\r\n")
			t.Close = true
			used = len(in)
			break
		}
		stop, taken := s.do(t)
		if taken {
			used += n
		}
		if stop {
			break
		}
	}
	if s.verify {
		s.seen, s.check = in[:used], append(s.check[:0], in[:used]...)
	}
	return used
}

func (s *miniSession) say(text string) { s.answers = append(s.answers, answer{text: []byte(text)}) }

func (s *miniSession) op(t *Turn, cache int, op felix.Op) bool {
	c := s.h.caches[cache]
	if t.Cache != nil && t.Cache != c {
		return false
	}
	t.Cache = c
	t.Ops = append(t.Ops, op)
	s.answers = append(s.answers, answer{})
	return true
}

// do says whether the turn ends and whether the command was taken.
func (s *miniSession) do(t *Turn) (stop, taken bool) {
	switch string(s.args[0]) {
	case "INCR":
		taken := s.op(t, 0, felix.Op{Kind: felix.Add, View: felix.ViewRedis, Key: s.args[1], Int: 1})
		return !taken, taken
	case "INCRIN":
		taken := s.op(t, int(s.args[1][0]-'0'), felix.Op{Kind: felix.Add, Key: s.args[2], Int: 1})
		return !taken, taken
	case "GET":
		taken := s.op(t, 0, felix.Op{Kind: felix.Get, Key: s.args[1]})
		return !taken, taken
	case "PING":
		s.answers = append(s.answers, answer{text: pong})
	case "FILL":
		n, _ := strconv.Atoi(string(s.args[1]))
		s.answers = append(s.answers, answer{text: fmt.Appendf(nil, "$%d\r\n%s\r\n", n, bytes.Repeat([]byte("x"), n))})
	case "SLOW", "HANG":
		if len(s.answers) > 0 {
			return true, false
		}
		t.Slow = s.slowWork(string(s.args[0]), s.args)
		return true, true
	case "WAIT":
		if len(s.answers) > 0 {
			return true, false
		}
		s.say("+WAITED\r\n")
		ms, _ := strconv.Atoi(string(s.args[1]))
		t.Wait = time.Duration(ms) * time.Millisecond
		return true, true
	case "QUIT":
		s.say("+OK\r\n")
		t.Close = true
		return true, true
	case "COMMAND", "CONFIG":
		s.say("*0\r\n")
	default:
		s.say("-ERR unknown\r\n")
	}
	return false, true
}

var pong = []byte("+PONG\r\n")

func (s *miniSession) slowWork(name string, args [][]byte) func(context.Context) {
	s.say("+SLEPT\r\n")
	d := time.Hour
	if name == "SLOW" {
		ms, _ := strconv.Atoi(string(args[1]))
		d = time.Duration(ms) * time.Millisecond
	}
	return func(ctx context.Context) {
		now := s.h.slow.Add(1)
		for hi := s.h.slowHi.Load(); now > hi && !s.h.slowHi.CompareAndSwap(hi, now); hi = s.h.slowHi.Load() {
		}
		defer s.h.slow.Add(-1)
		t := time.NewTimer(d)
		defer t.Stop()
		select {
		case <-t.C:
		case <-ctx.Done():
			s.h.hungUp.Add(1)
		}
	}
}

func (s *miniSession) Reply(out []byte, replies []felix.Reply) (_ []byte, left int) {
	if s.closed || !s.inTurn.CompareAndSwap(false, true) {
		panic("a session's methods overlap")
	}
	defer s.inTurn.Store(false)
	if s.verify && !bytes.Equal(s.seen, s.check) {
		panic("the input of a turn changed before its Reply")
	}
	for ; s.told < len(s.answers); s.told++ {
		if len(out) >= AnswerBytes {
			return out, s.left(replies)
		}
		if a := s.answers[s.told]; a.text != nil {
			out = append(out, a.text...)
			continue
		}
		r := &replies[s.next]
		s.next++
		switch {
		case r.Err != nil:
			out = append(append(append(out, '-'), r.Err.Message...), "\r\n"...)
		case r.Value != nil:
			out = append(strconv.AppendInt(append(out, '$'), int64(len(r.Value)), 10), "\r\n"...)
			out = append(append(out, r.Value...), "\r\n"...)
		default:
			out = append(strconv.AppendInt(append(out, ':'), r.Int, 10), "\r\n"...)
		}
	}
	if s.next != len(replies) {
		panic("replies of another turn")
	}
	return out, 0
}

// left is how much is still to be said.
func (s *miniSession) left(replies []felix.Reply) int {
	n := 1
	for _, a := range s.answers[s.told:] {
		n += len(a.text)
	}
	for i := range replies[s.next:] {
		n += len(replies[s.next+i].Value)
	}
	return n
}

func (s *miniSession) Closed() {
	if s.closed || s.inTurn.Load() {
		panic("closed twice, or during a call")
	}
	s.closed = true
	s.h.closed.Add(1)
}

// command reads one RESP array into args: its length, 0 if it is not whole (and
// how long it will be, if known), -1 if it is none.
func (s *miniSession) command(in []byte) (n, need int) {
	s.args = s.args[:0]
	if len(in) == 0 {
		return 0, 0
	}
	if in[0] != '*' {
		return -1, 0
	}
	count, at := number(in, 1)
	if at == 0 {
		return 0, 0
	}
	for range count {
		if at >= len(in) {
			return 0, 0
		}
		size, from := number(in, at+1)
		if from == 0 {
			return 0, 0
		}
		at = from + size + 2
		if at > len(in) {
			return 0, at
		}
		s.args = append(s.args, in[from:from+size:from+size])
	}
	return at, 0
}

func number(in []byte, at int) (v, next int) {
	for ; at < len(in); at++ {
		if in[at] == '\r' {
			if at+1 < len(in) {
				return v, at + 2
			}
			return 0, 0
		}
		v = v*10 + int(in[at]-'0')
	}
	return 0, 0
}

// cmd is a command as a client sends it.
func cmd(args ...string) []byte {
	out := fmt.Appendf(nil, "*%d\r\n", len(args))
	for _, a := range args {
		out = fmt.Appendf(out, "$%d\r\n%s\r\n", len(a), a)
	}
	return out
}

// counters under a lock: what every fake cache evaluates on.
type table struct {
	mu sync.Mutex
	m  map[string]int64
}

func (t *table) eval(b *felix.Batch, part []int32) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.m == nil {
		t.m = make(map[string]int64)
	}
	for _, i := range part {
		op := &b.Ops[i]
		if op.Kind == felix.Get {
			b.Replies[i] = felix.Reply{Value: bytes.Clone(op.Key)}
			continue
		}
		v := t.m[string(op.Key)] + op.Int
		t.m[string(op.Key)] = v
		b.Replies[i] = felix.Reply{Applied: true, Int: v}
	}
}

// noScan is the rest of felix.Cache.
type noScan struct{}

func (noScan) Scope() felix.Scope { return felix.Scope{} }
func (noScan) Scan(context.Context, felix.ScanRequest) (felix.ScanPage, error) {
	return felix.ScanPage{}, nil
}
func (noScan) Count(context.Context) (felix.RecordCount, error) { return felix.RecordCount{}, nil }
func (noScan) Clear(context.Context) error                      { return nil }
func (noScan) Watch(context.Context, felix.WatchRequest) (felix.Watcher, error) {
	return nil, felix.Errorf(felix.Unavailable, "nothing is watched here")
}
