package redisapi

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/netloop"
	"github.com/felix-go/felix/internal/resp"
)

// transaction is what a connection has between MULTI and EXEC, and the keys that it
// watches. EXEC makes one felix.Group of all: a Check for each watched key, then the
// operations of the commands. So the keys must be of one shard.
//
// A command is parsed, for its options, when EXEC comes, as Redis does: what is
// wrong with it then is its answer in the array, and the others go on.
type transaction struct {
	open    bool
	failed  bool // a command could not be queued: EXEC says so
	queue   []queued
	watches []*watch
	held    int64 // bytes of these, in Handler.queued
}

// queued is a command that waits for EXEC. Its arguments are its own.
type queued struct {
	cmd  *command
	args [][]byte
}

// watch is a watched key, and what WATCH has seen: the version that a change of
// the key would change, 0 if there was no key.
type watch struct {
	key     []byte
	version uint64
	err     *felix.Error // why it could not be read
}

const (
	msgQueued      = "+QUEUED\r\n"
	msgNullArray   = "*-1\r\n"
	msgCrossSlot   = "CROSSSLOT Keys in request don't hash to the same slot"
	msgExecAborted = "EXECABORT Transaction discarded because of previous errors."
)

// commandMemory and argMemory are what a queued command and each of its arguments
// take beside their bytes.
const commandMemory, argMemory = 64, 24

// transactionCommands are those about transactions.
func transactionCommands() []*command {
	const always = flagNoScript | flagLoading | flagStale | flagFast | flagAllowBusy
	return []*command{
		{
			name: "multi", arity: 1, flags: always, group: "transactions", since: "1.2.0",
			summary:    "Begin a transaction",
			felix:      "Commands on keys can be queued, and ECHO, PING, SELECT, TIME, UNWATCH, CLIENT ID and CLIENT GETNAME. Others are refused, and EXEC then answers `EXECABORT`.",
			complexity: "O(1)",
			categories: "transaction",
			unqueued:   true,
			parse:      parseMulti,
		},
		{
			name: "exec", arity: 1, flags: flagNoScript | flagLoading | flagStale | flagSkipSlowlog, group: "transactions", since: "1.2.0",
			summary:    "Do what was queued, at one moment",
			felix:      "All keys, the watched ones too, must share a shard, as those with the same {tag} do: otherwise `CROSSSLOT`, and nothing is applied. At most 10,000 operations, which write at most 4 MiB.",
			categories: "transaction",
			unqueued:   true,
			parse:      parseExec,
		},
		{
			name: "discard", arity: 1, flags: always, group: "transactions", since: "2.0.0",
			summary:    "End a transaction without doing anything",
			categories: "transaction",
			unqueued:   true,
			parse:      parseDiscard,
		},
		{
			name: "watch", arity: -2, flags: always, group: "transactions", since: "2.2.0",
			usage:      "key [key ...]",
			summary:    "Let the next transaction be done only if the keys have not changed",
			felix:      "A key that did not exist and does not exist at EXEC has not changed, whatever was in between, nor one whose expiry was set to what it was.",
			categories: "transaction",
			keys:       keySpec{first: 1, last: -1, step: 1, flags: "RO"},
			needsCache: true,
			unqueued:   true,
			parse:      parseWatch,
		},
		{
			name: "unwatch", arity: 1, flags: always, group: "transactions", since: "2.2.0",
			summary:    "Forget the watched keys",
			felix:      "AUTH forgets them, too.",
			complexity: "O(1)",
			categories: "transaction",
			queued:     true,
			parse:      parseUnwatch,
		},
	}
}

// refuse answers a request that is not parsed at all. A transaction that it is
// in has then failed; an EXEC that is wrong ends it all the same.
func (s *session) refuse(cmd *command, refusal string) outcome {
	switch {
	case cmd.name == "exec":
		s.endTransaction()
		refusal = "EXECABORT Transaction discarded because of: " + strings.TrimPrefix(refusal, "ERR ")
	case s.tx.open:
		s.tx.failed = true
	}
	return s.fail(cmd, refusal)
}

// enqueue keeps a command for EXEC.
func (s *session) enqueue(cmd *command, args [][]byte) outcome {
	if !cmd.needsCache && !cmd.queued {
		name := strings.ToUpper(strings.ReplaceAll(cmd.name, "|", " "))
		return s.refuse(cmd, "ERR "+name+" is not supported inside a transaction: send it without MULTI")
	}
	size := commandMemory
	for _, arg := range args {
		size += len(arg) + argMemory
	}
	if refusal := s.holdBytes(int64(size)); refusal != "" {
		return s.refuse(cmd, refusal)
	}
	own := make([][]byte, len(args))
	for i, arg := range args {
		own[i] = bytes.Clone(arg)
	}
	s.tx.queue = append(s.tx.queue, queued{cmd, own})
	s.shared.multi.Store(int64(len(s.tx.queue)) + 1)
	// It is counted when it is executed.
	s.requests = append(s.requests, request{cmd: cmd, render: renderKnown, version: s.version, silent: s.off || s.skip, bytes: len(msgQueued)})
	s.known = append(s.known, msgQueued...)
	return done
}

// holdBytes takes room for what waits for EXEC.
func (s *session) holdBytes(n int64) (refusal string) {
	if s.tx.held+n > felix.MaxTransactionBytes {
		return fmt.Sprintf("ERR the transaction and its watched keys have more than %d bytes", felix.MaxTransactionBytes)
	}
	if s.h.queued.Add(n) > felix.MaxTransactionsBytes {
		s.h.queued.Add(-n)
		return felix.ResourceExhausted.Info().RESP + " the transactions of all connections take as much memory as the broker allows; nothing was applied, try again a little later"
	}
	s.tx.held += n
	return ""
}

// endTransaction forgets the queue and the watched keys.
func (s *session) endTransaction() {
	s.h.queued.Add(-s.tx.held)
	s.tx = transaction{}
	s.shared.multi.Store(0)
}

func parseMulti(s *session, cmd *command, _ [][]byte, _ *netloop.Turn) outcome {
	if s.tx.open {
		return s.fail(cmd, "ERR MULTI calls can not be nested")
	}
	// A client may not look whether CLIENT CACHING was refused (rueidis does not),
	// and would keep what the transaction reads although nobody invalidates it.
	s.tx.open, s.tx.failed = true, s.uncached > 0
	s.shared.multi.Store(1)
	return s.ok(cmd)
}

func parseDiscard(s *session, cmd *command, _ [][]byte, _ *netloop.Turn) outcome {
	if !s.tx.open {
		return s.fail(cmd, "ERR DISCARD without MULTI")
	}
	s.endTransaction()
	return s.ok(cmd)
}

// parseWatch reads the keys' versions, by operations whose replies watched notes.
func parseWatch(s *session, cmd *command, args [][]byte, t *netloop.Turn) outcome {
	if s.tx.open {
		return s.fail(cmd, "ERR WATCH inside MULTI is not allowed")
	}
	known := map[string]bool{}
	for _, w := range s.tx.watches {
		known[string(w.key)] = true
	}
	var added []*watch
	size := 0
	for _, key := range args[1:] {
		if !known[string(key)] {
			known[string(key)] = true
			added = append(added, &watch{key: bytes.Clone(key)})
			size += len(key) + commandMemory
		}
	}
	if len(known) > felix.MaxBatchItems {
		return s.fail(cmd, fmt.Sprintf("ERR at most %d keys can be watched", felix.MaxBatchItems))
	}
	if refusal := s.holdBytes(int64(size)); refusal != "" {
		return s.fail(cmd, refusal)
	}
	s.tx.watches = append(s.tx.watches, added...)
	s.watching = append(s.watching, added...)
	for _, w := range added {
		appendOp(t, felix.Get, w.key).NoValue = true
	}
	if len(added) == 0 {
		return s.ok(cmd)
	}
	s.add(cmd, renderWatch, len(added))
	return done
}

// watched notes what a WATCH has read, and answers it.
func (s *session) watched(b []byte, r *request, replies []felix.Reply) []byte {
	for i := range replies {
		w := s.watching[i]
		w.version, w.err = replies[i].Version, replies[i].Err
	}
	s.watching = s.watching[len(replies):]
	if err, _ := firstError(replies); err != nil {
		return resp.AppendError(b, s.errorText(r.cmd, err))
	}
	return append(b, resp.OK...)
}

// parseUnwatch does nothing in a transaction, whose end forgets the keys anyway.
func parseUnwatch(s *session, cmd *command, _ [][]byte, _ *netloop.Turn) outcome {
	if !s.tx.open {
		s.endTransaction()
	}
	return s.ok(cmd)
}

// parseExec makes operations of what was queued.
func parseExec(s *session, cmd *command, _ [][]byte, t *netloop.Turn) outcome {
	switch {
	case !s.tx.open:
		return s.fail(cmd, "ERR EXEC without MULTI")
	case s.tx.failed:
		s.endTransaction()
		return s.fail(cmd, msgExecAborted)
	case len(s.watching) > 0:
		return postponed // until it is known what the keys were
	case s.tx.needsCache() && s.cache == nil && !s.openNow():
		o := s.openFirst(cmd, t)
		if o != postponed {
			s.endTransaction()
		}
		return o
	}
	for _, w := range s.tx.watches {
		if w.err != nil {
			s.endTransaction()
			return s.fail(cmd, "EXECABORT Transaction discarded because a watched key could not be read: "+w.err.Message)
		}
	}
	first, from, known, values := len(s.requests), len(t.Ops), len(s.known), s.values
	s.add(cmd, renderExec, len(s.tx.watches))
	for _, w := range s.tx.watches {
		op := appendOp(t, felix.Check, w.key)
		op.NoValue = true
		if op.If = felix.IfAbsent; w.version != 0 {
			op.If, op.Version = felix.IfVersion, w.version
		}
	}
	for _, q := range s.tx.queue {
		if q.cmd.parse(s, q.cmd, q.args, t); len(t.Ops)-from > felix.MaxBatchItems {
			clear(t.Ops[from:])
			t.Ops, s.requests, s.known, s.values = t.Ops[:from], s.requests[:first], s.known[:known], values
			s.endTransaction()
			return s.fail(cmd, fmt.Sprintf("ERR the transaction has more than %d operations: nothing was applied", felix.MaxBatchItems))
		}
	}
	s.requests[first].nested = len(s.requests) - first - 1
	if len(t.Ops)-from > 1 {
		t.Groups = append(t.Groups, felix.Group{From: int32(from), To: int32(len(t.Ops))})
	}
	s.endTransaction()
	return done
}

func (tx *transaction) needsCache() bool {
	if len(tx.watches) > 0 {
		return true
	}
	for _, q := range tx.queue {
		if q.cmd.needsCache {
			return true
		}
	}
	return false
}

// answerExec begins the answer to an EXEC, whose elements are those of the requests
// after it; or, if nothing was applied, answers all of it.
func (s *session) answerExec(out []byte, r *request, replies []felix.Reply) []byte {
	at := &s.answered
	inside := s.requests[at.requests+1 : at.requests+1+r.nested]
	ops, bytes := r.ops, 0
	for i := range inside {
		ops += inside[i].ops
		bytes += inside[i].bytes
	}
	all := replies[at.replies : at.replies+ops]
	switch err := wholeError(all); {
	case err == felix.ErrCrossShard:
		out = resp.AppendError(out, msgCrossSlot)
	case err != nil:
		out = resp.AppendError(out, s.errorText(r.cmd, err))
	case !stopped(all, r.ops):
		out = resp.AppendArray(out, r.nested)
		at.requests++
		at.replies += r.ops
		return out
	case r.version == resp.RESP3:
		out = resp.AppendNull(out, r.version)
	default:
		out = append(out, msgNullArray...)
	}
	at.requests += 1 + r.nested
	at.replies += ops
	at.known += bytes
	return out
}

// stopped says whether a watched key has changed: the first of the operations look
// at them.
func stopped(replies []felix.Reply, checks int) bool {
	for i := range replies {
		if replies[i].Aborted || i < checks && !replies[i].Applied {
			return true
		}
	}
	return false
}

// wholeError is an error of the group as a whole, and of no command; one that
// leaves the outcome open before others.
func wholeError(replies []felix.Reply) (worst *felix.Error) {
	for i := range replies {
		switch e := replies[i].Err; {
		case e == nil || e != felix.ErrCrossShard && (e.Code == felix.InvalidArgument || e.Code == felix.OutOfRange || e.Code == felix.IDReused):
		case worst == nil || e.MayBeApplied() && !worst.MayBeApplied():
			worst = e
		}
	}
	return worst
}
