package difftest

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/felix-go/felix/internal/resp"
)

// A script is text: sequences of commands, one a line, apart by blank lines. A
// sequence begins with a line "# name". Words are quoted as on Redis's inline
// protocol. Every sequence starts on a new connection and an empty database.
//
// Before a command may stand how its replies are compared, otherwise it is byte
// for byte:
//
//	@sort       the order of the parts means nothing
//	@near:N     integers, at most N apart
//	@kind       only the first byte, and the number of parts
//	@none       neither server answers
//	@except:X   not at all, for the reason that exceptions gives for X
//	@sleep:N    no command: wait N milliseconds
//
// In a word, $NOW+N and $NOWMS+N are N after the time at which the sequence
// started, in Unix seconds and milliseconds; $LONG+N is N bytes.

// step is a line of a script.
type step struct {
	text   string
	args   [][]byte // nil: only wait
	wait   time.Duration
	sort   bool
	kind   bool
	none   bool
	near   int64 // -1: exact
	except string
}

// sequence is a part of a script.
type sequence struct {
	name  string
	steps []step
}

// exception is a stated difference between Felix and Redis.
type exception struct{ name, reason string }

// exceptions is the one list of differences that the scripts leave out. Every
// one is in use, and scripts name no other.
var exceptions = []exception{
	{"empty-key", "Redis allows the empty key, Felix refuses it (design.md section 7)"},
	{"long-key", "Redis keys may be 512 MB, Felix keys 65,535 bytes"},
	{"far-expiry", "Redis accepts expiries up to 2^63 ms, Felix up to 2^61 ms"},
	{"newer-client", "CLIENT SETINFO and NO-TOUCH are of Redis 7.2; libraries send them all the same"},
	{"scopes", "the user of AUTH names a cache"},
	{"cursor", "Redis takes any number for a cursor, Felix only those it gave"},
	{"cursor-syntax", "Redis reads cursors with strtoul, signs included"},
	{"no-caching", "client-side caching is refused, except for what promises nothing"},
	{"subset", "Felix has fewer commands, subcommands, settings and fields"},
	{"unqueued", "Redis queues any command after MULTI, Felix those on keys and a few others"},
	{"many-keys", "Redis takes any number of keys, Felix 10,000 a command"},
	{"identity", "ids, addresses, times and versions of the server"},
}

func isException(name string) bool {
	return slices.ContainsFunc(exceptions, func(e exception) bool { return e.name == name })
}

// parseScript reads a script; now is what $NOW means.
func parseScript(script string, now time.Time) ([]sequence, error) {
	var sequences []sequence
	for _, line := range strings.Split(script, "\n") {
		line = strings.TrimSpace(line)
		switch {
		case line == "":
		case strings.HasPrefix(line, "# "):
			sequences = append(sequences, sequence{name: line[2:]})
		case len(sequences) == 0:
			return nil, fmt.Errorf("%q stands before the first # name", line)
		default:
			st, err := parseStep(line, now)
			if err != nil {
				return nil, err
			}
			last := &sequences[len(sequences)-1]
			last.steps = append(last.steps, st)
		}
	}
	return sequences, nil
}

func parseStep(line string, now time.Time) (step, error) {
	st := step{text: line, near: -1}
	rest := line
	for strings.HasPrefix(rest, "@") {
		directive, after, _ := strings.Cut(rest, " ")
		rest = strings.TrimSpace(after)
		name, value, _ := strings.Cut(directive[1:], ":")
		switch name {
		case "sort":
			st.sort = true
		case "kind":
			st.kind = true
		case "none":
			st.none = true
		case "except":
			if st.except = value; !isException(value) {
				return st, fmt.Errorf("%q: the exception is not in the list", line)
			}
		case "near", "sleep":
			n, err := strconv.ParseInt(value, 10, 64)
			if err != nil {
				return st, fmt.Errorf("%q: %w", line, err)
			}
			if name == "near" {
				st.near = n
			} else {
				st.wait = time.Duration(n) * time.Millisecond
			}
		default:
			return st, fmt.Errorf("%q: no directive @%s", line, name)
		}
	}
	args, ok := resp.SplitArgs(nil, []byte(rest))
	if !ok || len(args) == 0 && st.wait == 0 {
		return st, fmt.Errorf("%q is no command", line)
	}
	for i, arg := range args {
		args[i] = expand(arg, now)
	}
	st.args = args
	return st, nil
}

// expand puts times in.
func expand(arg []byte, now time.Time) []byte {
	text := string(arg)
	if size, ok := strings.CutPrefix(text, "$LONG+"); ok {
		n, err := strconv.Atoi(size)
		if err != nil {
			return arg
		}
		return bytes.Repeat([]byte("x"), n)
	}
	base := now.UnixMilli()
	offset, ok := strings.CutPrefix(text, "$NOWMS+")
	if !ok {
		if offset, ok = strings.CutPrefix(text, "$NOW+"); !ok {
			return arg
		}
		base = now.Unix()
	}
	n, err := strconv.ParseInt(offset, 10, 64)
	if err != nil {
		return arg
	}
	return strconv.AppendInt(nil, base+n, 10)
}

// encode is the command as a multibulk request.
func encode(args [][]byte) []byte {
	b := resp.AppendArray(nil, len(args))
	for _, arg := range args {
		b = resp.AppendBulk(b, arg)
	}
	return b
}
