package redisapi

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/netloop"
	"github.com/felix-go/felix/internal/resp"
)

// Bounds of one turn, so that a pipeline cannot make the broker hold any amount
// of replies: what does not fit is answered in the next turn.
const (
	// maxTurnOps bounds the operations that one turn asks for. A single
	// command is bounded by felix.MaxBatchItems.
	maxTurnOps = 10_000
	// maxTurnValues bounds the operations whose replies carry values, each of
	// at most felix.MaxValueBytes. Until they are answered the turn holds on to
	// the values, which are the store's own.
	maxTurnValues = 256
	// maxReplyBytes bounds the reply to one command (MGET, KEYS).
	maxReplyBytes = 256 << 20
	// maxKnownBytes is where a turn takes no more requests because of replies
	// that need no operation, some of which (COMMAND, CLIENT LIST) are large.
	maxKnownBytes = 1 << 20
	// retainedRequests is how many requests' memory a session keeps between
	// turns.
	retainedRequests = 1024
	// retainedBytes is the same for replies that need no operation.
	retainedBytes = 16 << 10
)

// session is the state of one connection. Its loop calls one method at a time;
// a slow function runs while no method does. Only the fields marked shared are
// used from other goroutines.
type session struct {
	h       *Handler
	id      int64
	remote  string
	created time.Time

	parser  resp.Parser
	version resp.Version
	scope   felix.Scope
	cache   felix.Cache // nil: ask the service at the next command that needs it
	openErr error       // why it did not have the cache, for the request that was put off

	// The turn: its requests in order, the bytes of those whose reply is known,
	// and how far it is answered.

	requests []request
	known    []byte
	slow     []byte // the reply of the slow request
	values   int    // operations of the turn whose replies carry values
	answered progress
	closed   bool // the connection is to be closed: nothing more is answered

	// Counting calls: the run of equal commands that is not in Handler.counts
	// yet.

	run     *command
	runCall uint64

	// CLIENT REPLY: off until ON; skip is for the request being parsed,
	// skipNext for the one after it.

	off, skip, skipNext bool
	tracking            bool
	uncached            int // 1 while the request after a refused CLIENT CACHING is parsed
	tx                  transaction
	watching            []*watch // of the turn: whose versions will come, in order

	shared shared
}

// shared is what other sessions see in CLIENT LIST, and do in CLIENT KILL.
type shared struct {
	about  atomic.Pointer[about]
	last   atomic.Pointer[command]
	active atomic.Int64 // Unix seconds of the last turn
	multi  atomic.Int64 // commands in its transaction, and 1; 0 is no transaction
	killed atomic.Bool
}

// about is replaced as a whole when anything in it changes.
type about struct {
	name, user           string
	libName, libVersion  string
	version              resp.Version
	noEvict, hasTracking bool
}

// request is one request of a turn, waiting for its reply.
type request struct {
	cmd     *command
	render  render
	version resp.Version // may change within a turn
	silent  bool         // CLIENT REPLY OFF or SKIP
	ops     int          // how many of the turn's operations are for it
	nested  int          // of an EXEC: how many of the requests after it are its commands
	bytes   int          // how many of the known bytes are for it
}

var _ netloop.Session = (*session)(nil)

// defaultScope is where a connection starts.
func defaultScope() felix.Scope {
	return felix.Scope{Tenant: felix.DefaultTenant, Namespace: felix.DefaultNamespace, Cache: felix.DefaultCache}
}

// resetState is how a connection starts, and what RESET goes back to. Whether
// RESET itself is skipped (CLIENT REPLY SKIP) is decided already.
func (s *session) resetState() {
	s.version = resp.RESP2
	s.scope, s.cache = defaultScope(), nil
	s.off, s.skipNext, s.tracking = false, false, false
	s.endTransaction()
	s.shared.about.Store(&about{user: "default", version: resp.RESP2})
}

// describe changes what others see of the session.
func (s *session) describe(change func(*about)) {
	a := *s.shared.about.Load()
	change(&a)
	s.shared.about.Store(&a)
}

// Parse implements netloop.Session.
func (s *session) Parse(in []byte, t *netloop.Turn) (used int) {
	if s.closed || s.shared.killed.Load() {
		s.closed, t.Close = true, true
		return len(in)
	}
	before, cache := len(t.Ops), s.cache // RESET may end the turn
	for len(t.Ops)-before < maxTurnOps && s.values < maxTurnValues && len(s.known) < maxKnownBytes {
		n, err := s.parser.Next(in[used:])
		if err != nil {
			s.fail(s.h.table.unknown, err.Error())
			s.closed, t.Close = true, true
			used = len(in)
			break
		}
		if n == 0 {
			t.Need = s.parser.Need
			break
		}
		o := done
		if args := s.parser.Args; len(args) > 0 {
			if o = s.dispatch(args, t); o == postponed {
				break
			}
			if cache == nil {
				cache = s.cache // it was opened for this request
			}
		}
		s.skip, s.skipNext = s.skipNext, false // also by a request of nothing
		used += n
		if o == last {
			break
		}
	}
	if len(t.Ops) > before {
		t.Cache = cache
	}
	if len(s.requests) > 0 {
		s.shared.last.Store(s.requests[len(s.requests)-1].cmd)
		s.shared.active.Store(s.h.now().Unix())
	}
	return used
}

// dispatch finds the command and lets it parse its arguments.
func (s *session) dispatch(args [][]byte, t *netloop.Turn) outcome {
	s.uncached = max(0, s.uncached-1)
	cmd, refusal := s.h.table.lookUp(args)
	if cmd == s.h.table.unknown && (equalFold(args[0], "host:") || equalFold(args[0], "post")) {
		// A browser was made to talk to this port: as Redis, hang up.
		s.closed, t.Close = true, true
		return last
	}
	if refusal != "" {
		return s.refuse(cmd, refusal)
	}
	if s.tx.open && !cmd.unqueued {
		return s.enqueue(cmd, args)
	}
	if cmd.needsCache && s.cache == nil && !s.openNow() {
		return s.openFirst(cmd, t)
	}
	return cmd.parse(s, cmd, args, t)
}

// add puts a request into the turn.
func (s *session) add(cmd *command, r render, ops int) {
	s.requests = append(s.requests, request{
		cmd: cmd, render: r, version: s.version, silent: s.off || s.skip, ops: ops,
	})
	if cmd != s.run {
		s.flushCounts()
		s.run = cmd
	}
	s.runCall++
}

func (s *session) flushCounts() {
	if s.runCall > 0 {
		s.h.counts[s.run.index].calls.Add(s.runCall)
		s.runCall = 0
	}
}

// op adds a request of one operation on the key and gives the operation to be
// filled in.
func (s *session) op(t *netloop.Turn, cmd *command, kind felix.Kind, key []byte, r render) *felix.Op {
	s.add(cmd, r, 1)
	if r.hasValue() {
		s.values++
	}
	op := appendOp(t, kind, key)
	op.NoValue = !r.hasValue()
	return op
}

func appendOp(t *netloop.Turn, kind felix.Kind, key []byte) *felix.Op {
	t.Ops = append(t.Ops, felix.Op{})
	op := &t.Ops[len(t.Ops)-1]
	op.Kind, op.View, op.Key = kind, felix.ViewRedis, key
	return op
}

// reply adds a request whose reply is known: f appends it.
func (s *session) reply(cmd *command, f func(b []byte, v resp.Version) []byte) outcome {
	s.add(cmd, renderKnown, 0)
	before := len(s.known)
	s.known = f(s.known, s.version)
	s.requests[len(s.requests)-1].bytes = len(s.known) - before
	return done
}

// ok adds a request that is answered with OK.
func (s *session) ok(cmd *command) outcome {
	return s.reply(cmd, func(b []byte, _ resp.Version) []byte { return append(b, resp.OK...) })
}

// fail adds a request that is answered with an error; its text begins with the
// error's code, as in "ERR syntax error".
func (s *session) fail(cmd *command, text string) outcome {
	return s.reply(cmd, func(b []byte, _ resp.Version) []byte { return resp.AppendError(b, text) })
}

// runSlow makes the request the turn's only one, with f appending its reply,
// or postpones it.
func (s *session) runSlow(t *netloop.Turn, cmd *command, f func(ctx context.Context, b []byte) []byte) outcome {
	if len(s.requests) > 0 {
		return postponed
	}
	s.add(cmd, renderSlow, 0)
	t.Slow = func(ctx context.Context) {
		s.slow = f(ctx, s.slow[:0])
	}
	return last
}

// openNow opens the connection's cache if that takes no waiting, as a rule.
func (s *session) openNow() bool {
	_, err := s.open(s.h.atOnce)
	return err == nil
}

// openFirst opens the connection's cache on a goroutine of its own; then the
// request is parsed again. It is answered with an error if that did not help.
func (s *session) openFirst(cmd *command, t *netloop.Turn) outcome {
	if len(s.requests) > 0 {
		return postponed
	}
	if err := s.openErr; err != nil {
		s.openErr = nil
		return s.fail(cmd, s.errorText(cmd, felix.AsError(err)))
	}
	t.Slow = func(ctx context.Context) { _, s.openErr = s.open(ctx) }
	return postponed
}

// open is the connection's cache; the service is asked if there is none yet, or
// the last one is gone.
func (s *session) open(ctx context.Context) (felix.Cache, error) {
	if s.cache == nil {
		cache, err := s.h.service.Cache(ctx, s.scope)
		if err != nil {
			return nil, err
		}
		s.cache = cache
	}
	return s.cache, nil
}

// Closed implements netloop.Session.
func (s *session) Closed() {
	s.flushCounts()
	s.endTransaction()
	s.h.mu.Lock()
	delete(s.h.sessions, s.id)
	s.h.mu.Unlock()
}
