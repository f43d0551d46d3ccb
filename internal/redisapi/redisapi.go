// Package redisapi is the RESP door: it turns Redis commands into operations on
// a felix.Cache and their replies into those of Redis 7.0.15. Counters and
// values are shown as one Redis keyspace (felix.ViewRedis). One table of
// commands drives dispatch, arity errors, COMMAND and docs/redis.md.
//
// The door decides nothing: what a command means for a key, the engine says.
// docs/redis.md lists the commands and where they differ from Redis.
package redisapi

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"log/slog"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/netloop"
	"github.com/felix-go/felix/internal/resp"
)

// RedisVersion is the version whose behaviour clients find here, and which they
// are told.
const RedisVersion = "7.0.15"

// Options of a Handler. Every zero value is usable.
type Options struct {
	// Logger gets internal errors, which clients are not shown. nil drops them.
	Logger *slog.Logger
	// Version of Felix, for INFO.
	Version string
	// Now is the wall clock, for TIME, INFO and ages; nil is time.Now. No
	// expiry is computed from it.
	Now func() time.Time
	// ServerPort is the TCP port, for INFO and CONFIG GET.
	ServerPort int
	// MaxConnections is the door's bound, for INFO and CONFIG GET; 0 is
	// felix.MaxConnections.
	MaxConnections int
}

// MaxRequestBytes is what the connection loop must let a request grow to, so
// that one that is too long is refused here, in Redis's words: the parser's
// bound, and the line that breaks it.
const MaxRequestBytes = resp.MaxRequestBytes + resp.MaxLineBytes

// Handler makes sessions. It is safe for concurrent use.
type Handler struct {
	service felix.Service
	options Options
	log     *slog.Logger
	now     func() time.Time
	table   *table
	cursors *cursors
	counts  []count // by command.index
	runID   string
	started time.Time
	pid     int
	atOnce  context.Context // has ended: for calls that must not wait

	nextID   atomic.Int64
	accepted atomic.Int64 // connections, ever
	queued   atomic.Int64 // bytes that transactions hold: at most felix.MaxTransactionsBytes

	mu       sync.Mutex
	sessions map[int64]*session // guarded by mu
}

// count is how often a command was called.
type count struct{ calls, failed atomic.Uint64 }

var _ netloop.Handler = (*Handler)(nil)

// New makes the door to a service.
func New(service felix.Service, opts Options) *Handler {
	h := &Handler{
		service: service, options: opts, log: opts.Logger, now: opts.Now,
		table: newTable(), cursors: newCursors(), sessions: make(map[int64]*session), pid: os.Getpid(),
	}
	if h.log == nil {
		h.log = slog.New(slog.DiscardHandler)
	}
	if h.now == nil {
		h.now = time.Now
	}
	if h.options.MaxConnections == 0 {
		h.options.MaxConnections = felix.MaxConnections
	}
	var ended context.CancelFunc
	h.atOnce, ended = context.WithCancel(context.Background())
	ended()
	h.counts = make([]count, len(h.table.all))
	h.started = h.now()
	var id [20]byte
	rand.Read(id[:]) // never fails
	h.runID = hex.EncodeToString(id[:])
	return h
}

// NewSession implements netloop.Handler.
func (h *Handler) NewSession(remote net.Addr) netloop.Session {
	s := &session{h: h, id: h.nextID.Add(1), remote: "", created: h.now()}
	if remote != nil {
		s.remote = remote.String()
	}
	h.accepted.Add(1)
	s.resetState()
	h.mu.Lock()
	h.sessions[s.id] = s
	h.mu.Unlock()
	return s
}

// TooMany implements netloop.Handler, in Redis's words.
func (h *Handler) TooMany() []byte { return []byte("-ERR max number of clients reached\r\n") }

// CommandCounts calls f for every command that was called: its name (of a
// subcommand "container|name"; "unknown" stands for all names there are none
// of, so the set of names is bounded), how often, and how often the reply was
// an error.
func (h *Handler) CommandCounts(f func(name string, calls, failed uint64)) {
	for i := range h.counts {
		if calls := h.counts[i].calls.Load(); calls > 0 {
			f(h.table.all[i].name, calls, h.counts[i].failed.Load())
		}
	}
}

// each calls f for the sessions in the order of their ids.
func (h *Handler) each(f func(*session)) {
	h.mu.Lock()
	list := make([]*session, 0, len(h.sessions))
	for _, s := range h.sessions {
		list = append(list, s)
	}
	h.mu.Unlock()
	sortSessions(list)
	for _, s := range list {
		f(s)
	}
}
