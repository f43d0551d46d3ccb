package redisapi

import (
	"fmt"
	"math"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/netloop"
	"github.com/felix-go/felix/internal/resp"
)

// option is the set of options that SET and GETEX were given.
type option uint16

const (
	optNX option = 1 << iota
	optXX
	optGet
	optEX
	optPX
	optEXAT
	optPXAT
	optKeepTTL
	optPersist

	optExpiry = optEX | optPX | optEXAT | optPXAT
)

// optionRule is one option: its name, where it may stand, and what must not
// stand before it.
type optionRule struct {
	name    string
	bit     option
	forGet  bool // GETEX has it
	forSet  bool // SET has it
	exclude option
}

// optionRules are those of Redis's parseExtendedStringArgumentsOrReply.
var optionRules = [...]optionRule{
	{"nx", optNX, false, true, optXX},
	{"xx", optXX, false, true, optNX},
	{"get", optGet, false, true, 0},
	{"keepttl", optKeepTTL, false, true, optExpiry | optPersist},
	{"persist", optPersist, true, false, optExpiry | optKeepTTL},
	{"ex", optEX, true, true, (optExpiry &^ optEX) | optKeepTTL | optPersist},
	{"px", optPX, true, true, (optExpiry &^ optPX) | optKeepTTL | optPersist},
	{"exat", optEXAT, true, true, (optExpiry &^ optEXAT) | optKeepTTL | optPersist},
	{"pxat", optPXAT, true, true, (optExpiry &^ optPXAT) | optKeepTTL | optPersist},
}

// parseOptions reads the options of SET (isSet) or GETEX; expiry is the word
// after the last expiry option. Not ok is a syntax error.
func parseOptions(words [][]byte, isSet bool) (opts option, expiry []byte, ok bool) {
next:
	for i := 0; i < len(words); i++ {
		for _, rule := range &optionRules {
			if !equalFold(words[i], rule.name) {
				continue
			}
			allowed := isSet && rule.forSet || !isSet && rule.forGet
			if !allowed || opts&rule.exclude != 0 {
				return 0, nil, false
			}
			opts |= rule.bit
			if rule.bit&optExpiry != 0 {
				i++
				if i == len(words) {
					return 0, nil, false
				}
				expiry = words[i]
			}
			continue next
		}
		return 0, nil, false
	}
	return opts, expiry, true
}

// expiryError says what is wrong with an expiry.
type expiryError uint8

const (
	expiryOK expiryError = iota
	expiryNotInteger
	expiryInvalid
)

// positiveExpiry reads the expiry of a SET or GETEX in milliseconds.
func positiveExpiry(word []byte, opts option) (millis int64, ttl felix.TTL, bad expiryError) {
	millis, ok := resp.ParseInt(word)
	if !ok {
		return 0, 0, expiryNotInteger
	}
	unit := int64(1)
	if opts&(optEX|optEXAT) != 0 {
		unit = 1000
	}
	// Both ends are checked before the product, which would wrap around.
	if millis <= 0 || millis > felix.MaxExpiryMillis/unit {
		return 0, 0, expiryInvalid
	}
	millis *= unit
	if opts&(optEX|optPX) != 0 {
		return millis, felix.TTLIn, expiryOK
	}
	return millis, felix.TTLAt, expiryOK
}

// failExpiry answers with what is wrong with an expiry.
func (s *session) failExpiry(cmd *command, bad expiryError) outcome {
	if bad == expiryNotInteger {
		return s.fail(cmd, msgNotInteger)
	}
	return s.fail(cmd, invalidExpire(cmd))
}

func parseGet(s *session, cmd *command, args [][]byte, t *netloop.Turn) outcome {
	s.op(t, cmd, felix.Get, args[1], renderValue)
	return done
}

func parseStrlen(s *session, cmd *command, args [][]byte, t *netloop.Turn) outcome {
	s.op(t, cmd, felix.Get, args[1], renderLength)
	return done
}

func parseSet(s *session, cmd *command, args [][]byte, t *netloop.Turn) outcome {
	var (
		opts   option
		millis int64
		ttl    felix.TTL
	)
	if len(args) > 3 {
		var (
			word []byte
			ok   bool
			bad  expiryError
		)
		if opts, word, ok = parseOptions(args[3:], true); !ok {
			return s.fail(cmd, msgSyntax)
		}
		if opts&optExpiry != 0 {
			if millis, ttl, bad = positiveExpiry(word, opts); bad != expiryOK {
				return s.failExpiry(cmd, bad)
			}
		}
	}
	how := renderOK
	switch {
	case opts&optGet != 0:
		how = renderValue
	case opts&(optNX|optXX) != 0:
		how = renderIfApplied
	}
	op := s.op(t, cmd, felix.Set, args[1], how)
	op.Value, op.TTL, op.ExpiryMillis = args[2], ttl, millis
	op.ReturnOld = opts&optGet != 0
	switch {
	case opts&optNX != 0:
		op.If = felix.IfAbsent
	case opts&optXX != 0:
		op.If = felix.IfPresent
	}
	if opts&optKeepTTL != 0 {
		op.TTL = felix.TTLKeep
	}
	return done
}

// setKeyFlags is what a SET does with its key, for COMMAND GETKEYSANDFLAGS.
func setKeyFlags(args [][]byte) string {
	for _, word := range args[min(3, len(args)):] {
		if equalFold(word, "get") {
			return "RW access update"
		}
	}
	return "OW update"
}

func parseSetnx(s *session, cmd *command, args [][]byte, t *netloop.Turn) outcome {
	op := s.op(t, cmd, felix.Set, args[1], renderApplied)
	op.Value, op.If = args[2], felix.IfAbsent
	return done
}

func parseSetex(s *session, cmd *command, args [][]byte, t *netloop.Turn) outcome {
	unit := optEX
	if cmd.name == "psetex" {
		unit = optPX
	}
	millis, ttl, bad := positiveExpiry(args[2], unit)
	if bad != expiryOK {
		return s.failExpiry(cmd, bad)
	}
	op := s.op(t, cmd, felix.Set, args[1], renderOK)
	op.Value, op.TTL, op.ExpiryMillis = args[3], ttl, millis
	return done
}

func parseGetset(s *session, cmd *command, args [][]byte, t *netloop.Turn) outcome {
	op := s.op(t, cmd, felix.Set, args[1], renderValue)
	op.Value, op.ReturnOld = args[2], true
	return done
}

func parseGetdel(s *session, cmd *command, args [][]byte, t *netloop.Turn) outcome {
	s.op(t, cmd, felix.Delete, args[1], renderValue).ReturnOld = true
	return done
}

// parseGetex: Redis looks at the expiry only if the key exists, so that a bad
// one becomes a Get whose reply is null or the error.
func parseGetex(s *session, cmd *command, args [][]byte, t *netloop.Turn) outcome {
	opts, word, ok := parseOptions(args[2:], false)
	if !ok {
		return s.fail(cmd, msgSyntax)
	}
	switch {
	case opts&optExpiry != 0:
		millis, ttl, bad := positiveExpiry(word, opts)
		switch bad {
		case expiryNotInteger:
			s.op(t, cmd, felix.Get, args[1], renderBadInt)
			return done
		case expiryInvalid:
			s.op(t, cmd, felix.Get, args[1], renderBadExpire)
			return done
		}
		op := s.op(t, cmd, felix.Expire, args[1], renderValue)
		op.TTL, op.ExpiryMillis, op.ReturnOld = ttl, millis, true
	case opts&optPersist != 0:
		op := s.op(t, cmd, felix.Expire, args[1], renderValue)
		op.TTL, op.ReturnOld = felix.TTLClear, true
	default:
		s.op(t, cmd, felix.Get, args[1], renderValue)
	}
	return done
}

func parseIncr(s *session, cmd *command, args [][]byte, t *netloop.Turn) outcome {
	s.op(t, cmd, felix.Add, args[1], renderInt).Int = 1
	return done
}

func parseDecr(s *session, cmd *command, args [][]byte, t *netloop.Turn) outcome {
	s.op(t, cmd, felix.Add, args[1], renderInt).Int = -1
	return done
}

func parseIncrby(s *session, cmd *command, args [][]byte, t *netloop.Turn) outcome {
	delta, ok := resp.ParseInt(args[2])
	if !ok {
		return s.fail(cmd, msgNotInteger)
	}
	s.op(t, cmd, felix.Add, args[1], renderInt).Int = delta
	return done
}

func parseDecrby(s *session, cmd *command, args [][]byte, t *netloop.Turn) outcome {
	delta, ok := resp.ParseInt(args[2])
	if !ok {
		return s.fail(cmd, msgNotInteger)
	}
	if delta == math.MinInt64 {
		return s.fail(cmd, "ERR decrement would overflow")
	}
	s.op(t, cmd, felix.Add, args[1], renderInt).Int = -delta
	return done
}

// parseMset makes one operation per key; those on different shards are not one
// atomic change.
func parseMset(s *session, cmd *command, args [][]byte, t *netloop.Turn) outcome {
	if len(args)%2 == 0 {
		return s.fail(cmd, arityError(cmd))
	}
	if refusal := checkKeys(args[1:], 2); refusal != "" {
		return s.fail(cmd, refusal)
	}
	s.add(cmd, renderOK, (len(args)-1)/2)
	for i := 1; i < len(args); i += 2 {
		appendOp(t, felix.Set, args[i]).Value = args[i+1]
	}
	return done
}

func parseMget(s *session, cmd *command, args [][]byte, t *netloop.Turn) outcome {
	s.values += len(args) - 1
	return s.eachKey(t, cmd, args, felix.Get, renderValues)
}

// eachKey makes one operation for each argument.
func (s *session) eachKey(t *netloop.Turn, cmd *command, args [][]byte, kind felix.Kind, r render) outcome {
	if refusal := checkKeys(args[1:], 1); refusal != "" {
		return s.fail(cmd, refusal)
	}
	s.add(cmd, r, len(args)-1)
	for _, key := range args[1:] {
		appendOp(t, kind, key).NoValue = r != renderValues
	}
	return done
}

// checkKeys refuses a command on several keys as a whole if it would be refused
// for one of them; step is from key to key.
func checkKeys(words [][]byte, step int) (refusal string) {
	if n := len(words) / step; n > felix.MaxBatchItems {
		return fmt.Sprintf("ERR the command has %d keys, at most %d are allowed: send it in parts", n, felix.MaxBatchItems)
	}
	for i := 0; i < len(words); i += step {
		if err := felix.ValidateKey(words[i]); err != nil {
			return err.Code.Info().RESP + " " + err.Message
		}
	}
	return ""
}
