package redisapi

import (
	"strings"

	"github.com/felix-go/felix/internal/netloop"
	"github.com/felix-go/felix/internal/resp"
)

// transaction is where a connection stands between MULTI and EXEC. There are no
// transactions, and a client may have sent a whole one before it reads the first
// answer: so none of its commands must be applied, or a transaction that failed
// would have counted all the same. MULTI is answered as Redis does, and every
// command after it refused as one that Redis cannot queue: clients know what to
// make of that, and then end the transaction themselves. After an error to MULTI
// many would not, and their connection would refuse every command from then on.
type transaction uint8

const (
	noTransaction      transaction = iota
	openTransaction                // MULTI, and no other command yet
	abortedTransaction             // a command has been refused: EXEC says so
)

const msgNoTransactions = "ERR transactions are not supported: nothing of this one is applied; send the commands without MULTI"

// transactionCommands are those about transactions.
func transactionCommands() []*command {
	const always = flagNoScript | flagLoading | flagStale | flagFast | flagAllowBusy
	return []*command{
		{
			name: "multi", arity: 1, flags: always, group: "transactions", since: "1.2.0",
			summary:    "Begin a transaction, which can only be ended",
			felix:      "Every command up to EXEC or DISCARD is refused, and not applied.",
			complexity: "O(1)",
			categories: "transaction",
			unqueued:   true,
			parse:      parseMulti,
		},
		{
			name: "exec", arity: 1, flags: flagNoScript | flagLoading | flagStale | flagSkipSlowlog, group: "transactions", since: "1.2.0",
			summary:    "End a transaction",
			felix:      "Answers `EXECABORT`: nothing of it was applied.",
			categories: "transaction",
			unqueued:   true,
			parse:      parseExec,
		},
		{
			name: "discard", arity: 1, flags: always, group: "transactions", since: "2.0.0",
			summary:    "End a transaction",
			categories: "transaction",
			unqueued:   true,
			parse:      parseDiscard,
		},
		{
			name: "watch", arity: -2, flags: always, group: "transactions", since: "2.2.0",
			usage:      "key [key ...]",
			summary:    "Make a transaction depend on keys",
			felix:      "Refused.",
			categories: "transaction",
			keys:       keySpec{first: 1, last: -1, step: 1, flags: "RO"},
			unqueued:   true,
			parse:      parseWatch,
		},
		{
			name: "unwatch", arity: 1, flags: always, group: "transactions", since: "2.2.0",
			summary:    "Forget the watched keys, of which there are none",
			complexity: "O(1)",
			categories: "transaction",
			parse:      func(s *session, cmd *command, _ [][]byte, _ *netloop.Turn) outcome { return s.ok(cmd) },
		},
	}
}

// refuse answers a request that is not parsed at all. A transaction that it is
// in has then failed; an EXEC that is wrong ends it all the same.
func (s *session) refuse(cmd *command, refusal string) outcome {
	switch {
	case cmd.name == "exec":
		s.transaction = noTransaction
		refusal = "EXECABORT Transaction discarded because of: " + strings.TrimPrefix(refusal, "ERR ")
	case s.transaction == openTransaction:
		s.transaction = abortedTransaction
	}
	return s.fail(cmd, refusal)
}

func parseMulti(s *session, cmd *command, _ [][]byte, _ *netloop.Turn) outcome {
	if s.transaction != noTransaction {
		return s.fail(cmd, "ERR MULTI calls can not be nested")
	}
	s.transaction = openTransaction
	return s.ok(cmd)
}

func parseExec(s *session, cmd *command, _ [][]byte, _ *netloop.Turn) outcome {
	was := s.transaction
	s.transaction = noTransaction
	switch was {
	case noTransaction:
		return s.fail(cmd, "ERR EXEC without MULTI")
	case abortedTransaction:
		return s.fail(cmd, "EXECABORT Transaction discarded because of previous errors.")
	}
	return s.reply(cmd, func(b []byte, _ resp.Version) []byte { return resp.AppendArray(b, 0) })
}

func parseDiscard(s *session, cmd *command, _ [][]byte, _ *netloop.Turn) outcome {
	if s.transaction == noTransaction {
		return s.fail(cmd, "ERR DISCARD without MULTI")
	}
	s.transaction = noTransaction
	return s.ok(cmd)
}

func parseWatch(s *session, cmd *command, _ [][]byte, _ *netloop.Turn) outcome {
	if s.transaction != noTransaction {
		return s.fail(cmd, "ERR WATCH inside MULTI is not allowed")
	}
	return s.fail(cmd, "ERR transactions are not supported: no key is watched")
}
