package redisapi

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/felix-go/felix/internal/netloop"
	"github.com/felix-go/felix/internal/resp"
)

func sortSessions(list []*session) {
	slices.SortFunc(list, func(a, b *session) int { return cmp.Compare(a.id, b.id) })
}

func parseClientID(s *session, cmd *command, _ [][]byte, _ *netloop.Turn) outcome {
	return s.reply(cmd, func(b []byte, _ resp.Version) []byte { return resp.AppendInt(b, s.id) })
}

func parseClientGetname(s *session, cmd *command, _ [][]byte, _ *netloop.Turn) outcome {
	name := s.shared.about.Load().name
	return s.reply(cmd, func(b []byte, v resp.Version) []byte {
		if name == "" {
			return resp.AppendNull(b, v)
		}
		return resp.AppendBulkString(b, name)
	})
}

func parseClientSetname(s *session, cmd *command, args [][]byte, _ *netloop.Turn) outcome {
	if refusal := s.setName(args[2]); refusal != "" {
		return s.fail(cmd, refusal)
	}
	return s.ok(cmd)
}

// parseClientSetinfo is of Redis 7.2; libraries send it whatever the version.
func parseClientSetinfo(s *session, cmd *command, args [][]byte, _ *netloop.Turn) outcome {
	value := string(args[3])
	switch {
	case equalFold(args[2], "lib-name"):
		if !printable(args[3]) {
			return s.fail(cmd, "ERR lib-name cannot contain spaces, newlines or special characters.")
		}
		s.describe(func(a *about) { a.libName = value })
	case equalFold(args[2], "lib-ver"):
		if !printable(args[3]) {
			return s.fail(cmd, "ERR lib-ver cannot contain spaces, newlines or special characters.")
		}
		s.describe(func(a *about) { a.libVersion = value })
	default:
		return s.fail(cmd, "ERR Unrecognized option '"+string(shown(args[2], shownBytes))+"'")
	}
	return s.ok(cmd)
}

func parseClientInfo(s *session, cmd *command, _ [][]byte, _ *netloop.Turn) outcome {
	s.shared.last.Store(cmd)
	return s.reply(cmd, func(b []byte, v resp.Version) []byte {
		return resp.AppendVerbatim(b, v, s.appendInfo(nil))
	})
}

// appendInfo appends the session's line of CLIENT LIST. It may be called from
// another session.
func (s *session) appendInfo(b []byte) []byte {
	a := s.shared.about.Load()
	now, flags, last := s.h.now(), "", "NULL"
	if a.hasTracking {
		flags += "t"
	}
	if a.noEvict {
		flags += "e"
	}
	multi := s.shared.multi.Load() - 1
	if multi >= 0 {
		flags += "x"
	}
	if flags == "" {
		flags = "N"
	}
	if cmd := s.shared.last.Load(); cmd != nil {
		last = cmd.name
	}
	idle := int64(0)
	if active := s.shared.active.Load(); active != 0 {
		idle = max(now.Unix()-active, 0)
	}
	return fmt.Appendf(b, "id=%d addr=%s laddr= fd=0 name=%s age=%d idle=%d flags=%s db=0 sub=0 psub=0 ssub=0 multi=%d "+
		"qbuf=0 qbuf-free=0 argv-mem=0 multi-mem=0 rbs=0 rbp=0 obl=0 oll=0 omem=0 tot-mem=0 events=r cmd=%s user=%s redir=-1 "+
		"resp=%d lib-name=%s lib-ver=%s\n",
		s.id, s.remote, a.name, int64(now.Sub(s.created).Seconds()), idle, flags, multi, last, a.user,
		a.version, a.libName, a.libVersion)
}

// clientType says whether the name is a client type of Redis, and whether
// clients here are of it: all are normal.
func clientType(name []byte) (normal, known bool) {
	switch {
	case equalFold(name, "normal"):
		return true, true
	case equalFold(name, "master"), equalFold(name, "replica"), equalFold(name, "slave"), equalFold(name, "pubsub"):
		return false, true
	}
	return false, false
}

func unknownType(name []byte) string {
	return "ERR Unknown client type '" + string(shown(name, len(name))) + "'"
}

func parseClientList(s *session, cmd *command, args [][]byte, _ *netloop.Turn) outcome {
	wanted := map[int64]bool{}
	all := true
	switch {
	case len(args) == 4 && equalFold(args[2], "type"):
		normal, known := clientType(args[3])
		if !known {
			return s.fail(cmd, unknownType(args[3]))
		}
		all = normal
	case len(args) > 3 && equalFold(args[2], "id"):
		all = false
		for _, word := range args[3:] {
			id, ok := resp.ParseInt(word)
			if !ok {
				return s.fail(cmd, "ERR Invalid client ID")
			}
			wanted[id] = true
		}
	case len(args) != 2:
		return s.fail(cmd, msgSyntax)
	}
	s.shared.last.Store(cmd)
	var text []byte
	s.h.each(func(other *session) {
		if all || wanted[other.id] {
			text = other.appendInfo(text)
		}
	})
	return s.reply(cmd, func(b []byte, v resp.Version) []byte { return resp.AppendVerbatim(b, v, text) })
}

// killFilter says which connections a CLIENT KILL means.
type killFilter struct {
	id     int64  // 0 is any
	addr   string // "" is any
	user   string // "" is any
	none   bool   // a type, or an address of ours, that no connection has
	skipMe bool
}

func (f *killFilter) means(s *session) bool {
	return !f.none && (f.id == 0 || f.id == s.id) && (f.addr == "" || f.addr == s.remote) &&
		(f.user == "" || f.user == s.shared.about.Load().user)
}

func parseKillFilter(words [][]byte) (f killFilter, refusal string) {
	if len(words) == 1 { // the old form, which may mean oneself
		return killFilter{addr: string(words[0])}, ""
	}
	f.skipMe = true
	for ; len(words) > 0; words = words[2:] {
		if len(words) < 2 {
			return f, msgSyntax
		}
		switch value := words[1]; {
		case equalFold(words[0], "id"):
			id, ok := resp.ParseInt(value)
			if !ok || id < 1 {
				return f, "ERR client-id should be greater than 0"
			}
			f.id = id
		case equalFold(words[0], "type"):
			normal, known := clientType(value)
			if !known {
				return f, unknownType(value)
			}
			f.none = f.none || !normal
		case equalFold(words[0], "addr"):
			f.addr = string(value)
		case equalFold(words[0], "laddr"):
			f.none = true
		case equalFold(words[0], "user"):
			if _, ok := parseScope(value); !ok {
				return f, "ERR No such user '" + string(shown(value, len(value))) + "'"
			}
			f.user = string(value)
		case equalFold(words[0], "skipme"):
			f.skipMe = equalFold(value, "yes")
			if !f.skipMe && !equalFold(value, "no") {
				return f, msgSyntax
			}
		default:
			return f, msgSyntax
		}
	}
	return f, ""
}

// parseClientKill: a killed connection executes nothing more; it is closed when
// it sends its next request.
func parseClientKill(s *session, cmd *command, args [][]byte, t *netloop.Turn) outcome {
	filter, refusal := parseKillFilter(args[2:])
	if refusal != "" {
		return s.fail(cmd, refusal)
	}
	killed, self := int64(0), false
	s.h.each(func(other *session) {
		if !filter.means(other) || other == s && filter.skipMe || other.shared.killed.Load() {
			return
		}
		killed++
		if other == s {
			self = true
		} else {
			other.shared.killed.Store(true)
		}
	})
	switch {
	case len(args) > 3:
		s.reply(cmd, func(b []byte, _ resp.Version) []byte { return resp.AppendInt(b, killed) })
	case killed == 0:
		s.fail(cmd, "ERR No such client")
	default:
		s.ok(cmd)
	}
	if self {
		s.closed, t.Close = true, true
		return last
	}
	return done
}

func parseClientReply(s *session, cmd *command, args [][]byte, _ *netloop.Turn) outcome {
	switch {
	case equalFold(args[2], "on"):
		s.off, s.skip = false, false
		return s.ok(cmd)
	case equalFold(args[2], "off"):
		s.off = true
	case equalFold(args[2], "skip"):
		s.skipNext = !s.off
	default:
		return s.fail(cmd, msgSyntax)
	}
	s.add(cmd, renderKnown, 0)
	return done
}

// parseClientFlag makes the parse function of an ON|OFF setting that has no
// effect here but in CLIENT LIST.
func parseClientFlag(set func(a *about, on bool)) parseFunc {
	return func(s *session, cmd *command, args [][]byte, _ *netloop.Turn) outcome {
		on := equalFold(args[2], "on")
		if !on && !equalFold(args[2], "off") {
			return s.fail(cmd, msgSyntax)
		}
		s.describe(func(a *about) { set(a, on) })
		return s.ok(cmd)
	}
}

// parseClientTracking accepts what promises nothing: OFF, and ON OPTIN, under
// which keys are tracked only after CLIENT CACHING YES, which is refused.
// Clients that can cache send ON OPTIN on every connection.
func parseClientTracking(s *session, cmd *command, args [][]byte, _ *netloop.Turn) outcome {
	optIn := false
	for _, word := range args[3:] {
		switch {
		case equalFold(word, "optin"):
			optIn = true
		case equalFold(word, "noloop"):
		case equalFold(word, "bcast"), equalFold(word, "optout"), equalFold(word, "prefix"), equalFold(word, "redirect"):
			return s.fail(cmd, msgNoTracking)
		default:
			return s.fail(cmd, msgSyntax)
		}
	}
	switch {
	case equalFold(args[2], "off"):
		s.tracking = false
	case !equalFold(args[2], "on"):
		return s.fail(cmd, msgSyntax)
	case !optIn:
		return s.fail(cmd, msgNoTracking)
	default:
		s.tracking = true
	}
	s.describe(func(a *about) { a.hasTracking = s.tracking })
	return s.ok(cmd)
}

const msgNoTracking = "ERR client-side caching is not supported: nothing would be invalidated; turn it off in the client"

func parseClientCaching(s *session, cmd *command, _ [][]byte, _ *netloop.Turn) outcome {
	if !s.tracking {
		return s.fail(cmd, "ERR CLIENT CACHING can be called only when the client is in tracking mode with OPTIN or OPTOUT mode enabled")
	}
	s.uncached = 2
	return s.fail(cmd, msgNoTracking)
}

func parseClientTrackinginfo(s *session, cmd *command, _ [][]byte, _ *netloop.Turn) outcome {
	flags, redirect := []string{"off"}, int64(-1)
	if s.tracking {
		flags, redirect = []string{"on", "optin"}, 0
	}
	return s.reply(cmd, func(b []byte, v resp.Version) []byte {
		b = resp.AppendMap(b, v, 3)
		b = resp.AppendBulkString(b, "flags")
		b = resp.AppendSet(b, v, len(flags))
		for _, flag := range flags {
			b = resp.AppendBulkString(b, flag)
		}
		b = resp.AppendBulkString(b, "redirect")
		b = resp.AppendInt(b, redirect)
		b = resp.AppendBulkString(b, "prefixes")
		return resp.AppendArray(b, 0)
	})
}

func parseClientGetredir(s *session, cmd *command, _ [][]byte, _ *netloop.Turn) outcome {
	redirect := int64(-1)
	if s.tracking {
		redirect = 0
	}
	return s.reply(cmd, func(b []byte, _ resp.Version) []byte { return resp.AppendInt(b, redirect) })
}

// parseClientUnblock: no connection is ever blocked in a way it could end.
func parseClientUnblock(s *session, cmd *command, args [][]byte, _ *netloop.Turn) outcome {
	if len(args) > 4 {
		return s.fail(cmd, "ERR unknown subcommand or wrong number of arguments for '"+
			string(shown(args[1], shownBytes))+"'. Try CLIENT HELP.")
	}
	if len(args) == 4 && !equalFold(args[3], "timeout") && !equalFold(args[3], "error") {
		return s.fail(cmd, "ERR CLIENT UNBLOCK reason should be TIMEOUT or ERROR")
	}
	if _, ok := resp.ParseInt(args[2]); !ok {
		return s.fail(cmd, msgNotInteger)
	}
	return s.reply(cmd, func(b []byte, _ resp.Version) []byte { return resp.AppendInt(b, 0) })
}
