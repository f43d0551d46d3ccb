package redisapi

import (
	"math"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/netloop"
	"github.com/felix-go/felix/internal/resp"
)

// The options that INCREX has and SET and GETEX do not have.
const (
	optByInt option = 1 << (iota + 9)
	optByFloat
	optLower
	optUpper
	optSaturate
	optIfNoExpiry
)

// increxOption is one option of INCREX: its name, the word that follows it, and
// what must not stand before it, apart from itself.
type increxOption struct {
	name    string
	bit     option
	value   increxWord
	exclude option
}

// increxWord says which word of an INCREX is which.
type increxWord uint8

const (
	wordNone increxWord = iota
	wordBy
	wordLower
	wordUpper
	wordExpiry
	increxWords
)

var increxOptions = [...]increxOption{
	{"byint", optByInt, wordBy, optByFloat},
	{"byfloat", optByFloat, wordBy, optByInt},
	{"lbound", optLower, wordLower, 0},
	{"ubound", optUpper, wordUpper, 0},
	{"saturate", optSaturate, wordNone, 0},
	{"ex", optEX, wordExpiry, optExpiry | optPersist},
	{"px", optPX, wordExpiry, optExpiry | optPersist},
	{"exat", optEXAT, wordExpiry, optExpiry | optPersist},
	{"pxat", optPXAT, wordExpiry, optExpiry | optPersist},
	{"persist", optPersist, wordNone, optExpiry | optIfNoExpiry},
	{"enx", optIfNoExpiry, wordNone, optPersist},
}

// parseIncrexOptions reads what follows the key; words are indexed by increxWord.
// Not ok is a syntax error.
func parseIncrexOptions(args [][]byte) (opts option, words [increxWords][]byte, ok bool) {
next:
	for i := 0; i < len(args); i++ {
		for _, o := range &increxOptions {
			if !equalFold(args[i], o.name) {
				continue
			}
			if opts&(o.bit|o.exclude) != 0 {
				return 0, words, false
			}
			opts |= o.bit
			if o.value != wordNone {
				i++
				if i == len(args) {
					return 0, words, false
				}
				words[o.value] = args[i]
			}
			continue next
		}
		return 0, words, false
	}
	return opts, words, true
}

// parseIncrex is INCREX of Redis 8.8, but for BYFLOAT: counters are integers.
func parseIncrex(s *session, cmd *command, args [][]byte, t *netloop.Turn) outcome {
	opts, words, ok := parseIncrexOptions(args[2:])
	switch {
	case !ok:
		return s.fail(cmd, msgSyntax)
	case opts&optIfNoExpiry != 0 && opts&optExpiry == 0:
		return s.fail(cmd, "ERR ENX flag requires an expiration")
	case opts&optByFloat != 0:
		return s.fail(cmd, "ERR BYFLOAT is not supported")
	}
	delta, bounds := int64(1), felix.Bounds{Min: math.MinInt64, Max: math.MaxInt64, Saturate: opts&optSaturate != 0}
	for _, n := range [...]struct {
		word []byte
		into *int64
		what string
	}{
		{words[wordBy], &delta, "Increment"},
		{words[wordLower], &bounds.Min, "LBOUND"},
		{words[wordUpper], &bounds.Max, "UBOUND"},
	} {
		if n.word == nil {
			continue
		}
		if *n.into, ok = resp.ParseInt(n.word); !ok {
			return s.fail(cmd, "ERR "+n.what+" is not an integer or out of range")
		}
	}
	if bounds.Min > bounds.Max {
		return s.fail(cmd, "ERR LBOUND can't be greater than UBOUND")
	}
	var (
		millis int64
		ttl    felix.TTL
		bad    expiryError
	)
	if opts&optExpiry != 0 {
		if millis, ttl, bad = positiveExpiry(words[wordExpiry], opts); bad != expiryOK {
			return s.failExpiry(cmd, bad)
		}
	}
	op := s.op(t, cmd, felix.Add, args[1], renderChange)
	op.Int, op.Bounds, op.TTL, op.ExpiryMillis = delta, &bounds, ttl, millis
	switch {
	case opts&optPersist != 0:
		op.TTL = felix.TTLClear
	case opts&optIfNoExpiry != 0 && ttl == felix.TTLIn:
		op.TTL = felix.TTLInIfNone
	case opts&optIfNoExpiry != 0:
		op.TTL = felix.TTLAtIfNone
	}
	return done
}

// increxCommands is what Redis 8.8 has brought.
func increxCommands() []*command {
	return []*command{{
		name: "increx", arity: -2, flags: flagWrite | flagDenyOOM | flagFast, group: "string", since: "8.8.0",
		usage: "key [BYINT increment] [LBOUND lowerbound] [UBOUND upperbound] [SATURATE] " +
			"[EX seconds|PX milliseconds|EXAT unix-seconds|PXAT unix-milliseconds|PERSIST] [ENX]",
		summary: "Add a number within bounds and set the expiry: the sum, and what was added",
		felix: "As in Redis 8.8, without BYFLOAT. Out of bounds (64 bits are one) it is `[sum, 0]` and nothing changes, or with SATURATE " +
			"the bound is reached; ENX keeps an expiry that is there.",
		complexity: "O(1)",
		categories: "string",
		keys:       keySpec{first: 1, last: 1, step: 1, flags: "RW access update"},
		needsCache: true,
		parse:      parseIncrex,
	}}
}
