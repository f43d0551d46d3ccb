package redisapi

import (
	"context"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/netloop"
	"github.com/felix-go/felix/internal/resp"
)

func parsePing(s *session, cmd *command, args [][]byte, _ *netloop.Turn) outcome {
	if len(args) > 2 {
		return s.fail(cmd, arityError(cmd))
	}
	return s.reply(cmd, func(b []byte, _ resp.Version) []byte {
		if len(args) == 2 {
			return resp.AppendBulk(b, args[1])
		}
		return resp.AppendSimple(b, "PONG")
	})
}

func parseEcho(s *session, cmd *command, args [][]byte, _ *netloop.Turn) outcome {
	return s.reply(cmd, func(b []byte, _ resp.Version) []byte { return resp.AppendBulk(b, args[1]) })
}

func parseQuit(s *session, cmd *command, _ [][]byte, t *netloop.Turn) outcome {
	s.ok(cmd)
	s.closed, t.Close = true, true
	return last
}

func parseReset(s *session, cmd *command, _ [][]byte, _ *netloop.Turn) outcome {
	s.resetState()
	// The cache may have changed: operations must not follow in this turn.
	s.reply(cmd, func(b []byte, _ resp.Version) []byte { return resp.AppendSimple(b, "RESET") })
	return last
}

func parseSelect(s *session, cmd *command, args [][]byte, _ *netloop.Turn) outcome {
	id, ok := resp.ParseInt(args[1])
	switch {
	case !ok:
		return s.fail(cmd, msgNotInteger)
	case id < math.MinInt32 || id > math.MaxInt32:
		return s.fail(cmd, "ERR value is out of range, value must between -2147483648 and 2147483647")
	case id != 0:
		return s.fail(cmd, "ERR DB index is out of range")
	}
	return s.ok(cmd)
}

// parseScope reads the user name of AUTH: tenant/namespace/cache, or Redis's
// "default" for where a connection starts.
func parseScope(user []byte) (felix.Scope, bool) {
	if string(user) == "default" {
		return defaultScope(), true
	}
	parts := strings.Split(string(user), "/")
	if len(parts) != 3 {
		return felix.Scope{}, false
	}
	scope := felix.Scope{Tenant: parts[0], Namespace: parts[1], Cache: parts[2]}
	return scope, scope.Validate() == nil
}

// authenticate selects the scope that the user name says. Authentication is
// off: any token will do. On refusal nothing has changed.
func (s *session) authenticate(ctx context.Context, cmd *command, user []byte) (refusal string) {
	scope, ok := parseScope(user)
	if !ok {
		return "WRONGPASS the user name is not tenant/namespace/cache, nor default"
	}
	cache, err := s.h.service.Cache(ctx, scope)
	if err != nil {
		return s.h.errorText(cmd, scope, felix.AsError(err))
	}
	s.scope, s.cache = scope, cache
	s.endTransaction() // what was watched was in another cache
	name := string(user)
	s.describe(func(a *about) { a.user = name })
	return ""
}

func parseAuth(s *session, cmd *command, args [][]byte, t *netloop.Turn) outcome {
	if len(args) > 3 {
		return s.fail(cmd, msgSyntax)
	}
	if len(args) == 2 {
		return s.fail(cmd, "ERR AUTH <password> called without any password configured for the default user. "+
			"Are you sure your configuration is correct?")
	}
	if len(s.requests) > 0 {
		return postponed // which are of the scope of before
	}
	if s.authenticate(s.h.atOnce, cmd, args[1]) == "" {
		s.ok(cmd)
		return last
	}
	return s.runSlow(t, cmd, func(ctx context.Context, b []byte) []byte {
		if refusal := s.authenticate(ctx, cmd, args[1]); refusal != "" {
			return resp.AppendError(b, refusal)
		}
		return append(b, resp.OK...)
	})
}

// parseHello is slow only if it authenticates and that cannot be done at once.
func parseHello(s *session, cmd *command, args [][]byte, t *netloop.Turn) outcome {
	for i, word := range args {
		if i < 2 || !equalFold(word, "auth") {
			continue
		}
		if len(s.requests) > 0 {
			return postponed // which are of the scope of before
		}
		if answer := s.hello(s.h.atOnce, cmd, nil, args); answer[0] != '-' {
			s.reply(cmd, func(b []byte, _ resp.Version) []byte { return append(b, answer...) })
			return last
		}
		return s.runSlow(t, cmd, func(ctx context.Context, b []byte) []byte { return s.hello(ctx, cmd, b, args) })
	}
	return s.reply(cmd, func(b []byte, _ resp.Version) []byte { return s.hello(context.Background(), cmd, b, args) })
}

// hello does what HELLO asks, option by option as Redis does.
func (s *session) hello(ctx context.Context, cmd *command, b []byte, args [][]byte) []byte {
	version := int64(s.version)
	if len(args) > 1 {
		var ok bool
		if version, ok = resp.ParseInt(args[1]); !ok {
			return resp.AppendError(b, "ERR Protocol version is not an integer or out of range")
		}
		if version != int64(resp.RESP2) && version != int64(resp.RESP3) {
			return resp.AppendError(b, "NOPROTO unsupported protocol version")
		}
	}
	for i := 2; i < len(args); i++ {
		more := len(args) - 1 - i
		switch {
		case equalFold(args[i], "auth") && more >= 2:
			if refusal := s.authenticate(ctx, cmd, args[i+1]); refusal != "" {
				return resp.AppendError(b, refusal)
			}
			i += 2
		case equalFold(args[i], "setname") && more >= 1:
			if refusal := s.setName(args[i+1]); refusal != "" {
				return resp.AppendError(b, refusal)
			}
			i++
		default:
			return resp.AppendError(b, "ERR Syntax error in HELLO option '"+string(shown(args[i], len(args[i])))+"'")
		}
	}
	s.version = resp.Version(version)
	s.describe(func(a *about) { a.version = s.version })
	b = resp.AppendMap(b, s.version, 7)
	b = resp.AppendBulkString(b, "server")
	b = resp.AppendBulkString(b, "redis")
	b = resp.AppendBulkString(b, "version")
	b = resp.AppendBulkString(b, RedisVersion)
	b = resp.AppendBulkString(b, "proto")
	b = resp.AppendInt(b, version)
	b = resp.AppendBulkString(b, "id")
	b = resp.AppendInt(b, s.id)
	b = resp.AppendBulkString(b, "mode")
	b = resp.AppendBulkString(b, "standalone")
	b = resp.AppendBulkString(b, "role")
	b = resp.AppendBulkString(b, "master")
	b = resp.AppendBulkString(b, "modules")
	return resp.AppendArray(b, 0)
}

// printable says whether a name of a client or library has only the characters
// that CLIENT LIST can show.
func printable(name []byte) bool {
	for _, c := range name {
		if c < '!' || c > '~' {
			return false
		}
	}
	return true
}

func (s *session) setName(name []byte) (refusal string) {
	if !printable(name) {
		return "ERR Client names cannot contain spaces, newlines or special characters."
	}
	text := string(name)
	s.describe(func(a *about) { a.name = text })
	return ""
}

// parseWait: there are no Redis replicas to acknowledge anything, so WAIT for
// any ends when its time is up, as on a Redis without replicas, or the client
// has closed its side.
func parseWait(s *session, cmd *command, args [][]byte, t *netloop.Turn) outcome {
	replicas, ok := resp.ParseInt(args[1])
	if !ok {
		return s.fail(cmd, msgNotInteger)
	}
	millis, ok := resp.ParseInt(args[2])
	if !ok {
		return s.fail(cmd, "ERR timeout is not an integer or out of range")
	}
	if millis < 0 {
		return s.fail(cmd, "ERR timeout is negative")
	}
	if replicas <= 0 {
		return s.reply(cmd, func(b []byte, _ resp.Version) []byte { return resp.AppendInt(b, 0) })
	}
	if len(s.requests) > 0 {
		return postponed
	}
	s.reply(cmd, func(b []byte, _ resp.Version) []byte { return resp.AppendInt(b, 0) })
	t.Wait = math.MaxInt64
	if millis > 0 {
		t.Wait = time.Duration(min(millis, math.MaxInt64/int64(time.Millisecond))) * time.Millisecond
	}
	return last
}

func parseTime(s *session, cmd *command, _ [][]byte, _ *netloop.Turn) outcome {
	now := s.h.now()
	return s.reply(cmd, func(b []byte, _ resp.Version) []byte {
		b = resp.AppendArray(b, 2)
		b = resp.AppendBulkInt(b, now.Unix())
		return resp.AppendBulkInt(b, int64(now.Nanosecond()/1000))
	})
}

// parseCluster: every subcommand that Redis knows answers so when cluster mode
// is off, which tells clients to use this as one server.
func parseCluster(s *session, cmd *command, _ [][]byte, _ *netloop.Turn) outcome {
	return s.fail(cmd, "ERR This instance has cluster support disabled")
}

// parseNever is for containers, which are nothing without a subcommand: their
// arity refuses that.
func parseNever(s *session, cmd *command, _ [][]byte, _ *netloop.Turn) outcome {
	return s.fail(cmd, arityError(cmd))
}

// parseHelp answers with the container's subcommands.
func parseHelp(s *session, cmd *command, _ [][]byte, _ *netloop.Turn) outcome {
	container := s.h.table.find([]byte(strings.TrimSuffix(cmd.name, "|help")))
	return s.reply(cmd, func(b []byte, _ resp.Version) []byte {
		lines := []string{strings.ToUpper(container.name) + " <subcommand> [<arg> [value] [opt] ...]. Subcommands are:"}
		for _, sub := range container.subs {
			if sub != cmd {
				lines = append(lines, strings.TrimSpace(strings.ToUpper(sub.base)+" "+sub.usage), "    "+sub.summary+".")
			}
		}
		lines = append(lines, "HELP", "    Print this help.")
		b = resp.AppendArray(b, len(lines))
		for _, line := range lines {
			b = resp.AppendSimple(b, line)
		}
		return b
	})
}

func itoa(n int64) string { return strconv.FormatInt(n, 10) }
