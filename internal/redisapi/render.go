package redisapi

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/netloop"
	"github.com/felix-go/felix/internal/resp"
)

// render says how the replies of a request's operations are shown.
type render uint8

const (
	renderKnown     render = iota // the bytes are known since Parse
	renderSlow                    // the slow function has them
	renderInt                     // Add's sum
	renderChange                  // Add's sum and what it has added
	renderOK                      // OK if every operation has no error
	renderIfApplied               // OK if applied, otherwise null
	renderApplied                 // how many were applied
	renderFound                   // how many found something
	renderValue                   // what was found, or null
	renderValues                  // the same of all, as an array
	renderLength                  // the length of what was found
	renderType                    // string or none
	renderTTL                     // the rest of life in seconds
	renderPTTL                    // … in milliseconds
	renderExpireAt                // the expiry in Unix seconds
	renderPExpireAt               // … in Unix milliseconds
	renderWatch                   // OK, when the session has noted what was read
	renderExec                    // what was done, or why not: see answerExec

	// GETEX looks at its expiry only if the key exists: these are its errors.
	renderBadInt    // null, or the expiry is no integer
	renderBadExpire // null, or the expiry is invalid
)

// hasValue says that the reply carries a value.
func (r render) hasValue() bool { return r == renderValue }

const (
	msgNotInteger = "ERR value is not an integer or out of range"
	msgSyntax     = "ERR syntax error"
)

// render appends the reply to a request made of operations.
func (s *session) render(b []byte, r *request, replies []felix.Reply) []byte {
	if r.ops == 1 && replies[0].Err == nil {
		return one(b, r, &replies[0])
	}
	if err, mixed := firstError(replies); err != nil {
		text := s.errorText(r.cmd, err)
		if mixed && r.cmd.flags&flagWrite != 0 {
			text = felix.OutcomeUnknown.Info().RESP + " the command took effect on some of its keys only: " + text
		}
		return resp.AppendError(b, text)
	}
	switch r.render {
	case renderApplied, renderFound:
		n := int64(0)
		for i := range replies {
			n += counted(r.render, &replies[i])
		}
		return resp.AppendInt(b, n)
	}
	return append(b, resp.OK...)
}

// one shows the reply of a single operation that has no error.
func one(b []byte, r *request, reply *felix.Reply) []byte {
	switch r.render {
	case renderInt:
		return resp.AppendInt(b, reply.Int)
	case renderChange:
		return resp.AppendInt(resp.AppendInt(resp.AppendArray(b, 2), reply.Int), reply.Delta)
	case renderValue:
		return appendFound(b, r.version, reply)
	case renderIfApplied:
		if !reply.Applied {
			return resp.AppendNull(b, r.version)
		}
	case renderApplied, renderFound:
		return resp.AppendInt(b, counted(r.render, reply))
	case renderLength:
		if reply.Found == felix.ValueRecord {
			return resp.AppendInt(b, reply.Int) // its length: felix.Op.NoValue
		}
		return resp.AppendInt(b, int64(foundBytes(reply)))
	case renderType:
		if reply.Found == felix.NoRecord {
			return resp.AppendSimple(b, "none")
		}
		return resp.AppendSimple(b, "string")
	case renderTTL, renderPTTL, renderExpireAt, renderPExpireAt:
		return resp.AppendInt(b, lifetime(r.render, reply))
	case renderBadInt, renderBadExpire:
		if reply.Found == felix.NoRecord {
			return resp.AppendNull(b, r.version)
		}
		if r.render == renderBadInt {
			return resp.AppendError(b, msgNotInteger)
		}
		return resp.AppendError(b, invalidExpire(r.cmd))
	}
	return append(b, resp.OK...)
}

// counted is what the reply adds to a number of keys.
func counted(r render, reply *felix.Reply) int64 {
	if r == renderApplied && reply.Applied || r == renderFound && reply.Found != felix.NoRecord {
		return 1
	}
	return 0
}

// firstError finds the error that the replies of one request are answered with:
// one of those that leave the outcome open, otherwise the first. mixed says that
// others have none.
func firstError(replies []felix.Reply) (err *felix.Error, mixed bool) {
	for i := range replies {
		switch e := replies[i].Err; {
		case e == nil:
			mixed = true
		case err == nil || e.MayBeApplied() && !err.MayBeApplied():
			err = e
		}
	}
	return err, mixed
}

// appendFound shows the record that was found as a string, or null.
func appendFound(b []byte, v resp.Version, reply *felix.Reply) []byte {
	switch reply.Found {
	case felix.CounterRecord:
		return resp.AppendBulkInt(b, reply.Int)
	case felix.ValueRecord:
		return resp.AppendBulk(b, reply.Value)
	}
	return resp.AppendNull(b, v)
}

// foundBytes is the length of the record that was found, as a string.
func foundBytes(reply *felix.Reply) int {
	switch reply.Found {
	case felix.CounterRecord:
		var digits [20]byte
		return len(strconv.AppendInt(digits[:0], reply.Int, 10))
	case felix.ValueRecord:
		return len(reply.Value)
	}
	return 0
}

// renderValues appends what was found under several keys, from one of them on,
// as far as one answer at a time goes, and says where to go on.
func (s *session) renderValues(b []byte, r *request, replies []felix.Reply, from int) (_ []byte, next int) {
	if from == 0 {
		if err, _ := firstError(replies); err != nil {
			return resp.AppendError(b, s.errorText(r.cmd, err)), len(replies)
		}
		total := 0
		for i := range replies {
			total += foundBytes(&replies[i])
		}
		if total > maxReplyBytes {
			return resp.AppendError(b, fmt.Sprintf("ERR the values have %d bytes together, at most %d fit in one reply: ask for fewer keys",
				total, maxReplyBytes)), len(replies)
		}
		b = resp.AppendArray(b, len(replies))
	}
	for next = from; next < len(replies) && len(b) < netloop.AnswerBytes; next++ {
		b = appendFound(b, r.version, &replies[next])
	}
	return b, next
}

// lifetime is what TTL and its kin say: -2 without the key, -1 without expiry.
func lifetime(r render, reply *felix.Reply) int64 {
	if reply.Found == felix.NoRecord {
		return -2
	}
	if reply.ExpiresAtMillis == 0 {
		return -1
	}
	millis := reply.ExpiresAtMillis
	if r == renderTTL || r == renderPTTL {
		millis = max(millis-reply.NowMillis, 0)
	}
	if r == renderTTL || r == renderExpireAt {
		return (millis + 500) / 1000
	}
	return millis
}

// errorText is how an error of the connection's cache is shown. If the cache is
// gone, the next command asks the service for it again.
func (s *session) errorText(cmd *command, err *felix.Error) string {
	if err.Code == felix.CacheNotFound {
		s.cache = nil
	}
	return s.h.errorText(cmd, s.scope, err)
}

// errorText is how an error of the service is shown; what a client must not see
// is logged.
func (h *Handler) errorText(cmd *command, scope felix.Scope, err *felix.Error) string {
	switch err {
	case felix.ErrNotInteger:
		return msgNotInteger
	case felix.ErrOverflow:
		if cmd.name == "increx" { // its sum has bounds: what overflows is the way to one
			return "ERR applied increment would overflow"
		}
		return "ERR increment or decrement would overflow"
	case felix.ErrInvalidExpire:
		return invalidExpire(cmd)
	}
	word := err.Code.Info().RESP
	switch err.Code {
	case felix.CacheNotFound:
		return word + " no such cache " + scope.String()
	case felix.Internal:
		h.log.Error("a command failed", "door", "resp", "command", cmd.name, "scope", scope.String(), "error", err.Message)
		return word + " internal error"
	}
	return word + " " + err.Message
}

func invalidExpire(cmd *command) string {
	return "ERR invalid expire time in '" + cmd.name + "' command"
}

// arityError is Redis's answer to a wrong number of arguments.
func arityError(cmd *command) string {
	return "ERR wrong number of arguments for '" + cmd.name + "' command"
}

// shownBytes is how much of a client's words Redis repeats in an error.
const shownBytes = 128

// unknownCommand is Redis's answer to a command that it does not know.
func unknownCommand(args [][]byte) string {
	text := append([]byte("ERR unknown command '"), shown(args[0], shownBytes)...)
	text = append(text, "', with args beginning with: "...)
	start := len(text)
	for _, arg := range args[1:] {
		room := shownBytes - (len(text) - start)
		if room <= 0 {
			break
		}
		text = append(text, '\'')
		text = append(text, shown(arg, room)...)
		text = append(text, '\'', ' ')
	}
	return string(text)
}

// unknownSubcommand is Redis's answer to a subcommand that it does not know.
func unknownSubcommand(cmd *command, word []byte) string {
	return "ERR unknown subcommand '" + string(shown(word, shownBytes)) + "'. Try " + strings.ToUpper(cmd.name) + " HELP."
}

// shown is the part of a client's word that Redis repeats: at most limit bytes,
// and none from a zero byte on.
func shown(word []byte, limit int) []byte {
	word = word[:min(len(word), limit)]
	if zero := bytes.IndexByte(word, 0); zero >= 0 {
		word = word[:zero]
	}
	return word
}
