package redisapi

import (
	"bytes"
	"context"
	"fmt"
	"runtime"
	"runtime/metrics"
	"slices"
	"strings"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/netloop"
	"github.com/felix-go/felix/internal/resp"
)

// infoSection is one section of INFO.
type infoSection struct {
	name      string
	title     string
	byDefault bool
	write     func(ctx context.Context, s *session, b []byte) ([]byte, error)
}

func infoSections() []infoSection {
	return []infoSection{
		{"server", "Server", true, infoServer},
		{"clients", "Clients", true, infoClients},
		{"memory", "Memory", true, infoMemory},
		{"persistence", "Persistence", true, fixedInfo("loading:0\r\nasync_loading:0\r\naof_enabled:1\r\naof_last_write_status:ok\r\n")},
		{"stats", "Stats", true, infoStats},
		{"replication", "Replication", true, fixedInfo("role:master\r\nconnected_slaves:0\r\nmaster_failover_state:no-failover\r\n")},
		{"modules", "Modules", true, fixedInfo("")},
		{"commandstats", "Commandstats", false, infoCommands},
		{"errorstats", "Errorstats", true, fixedInfo("")},
		{"cluster", "Cluster", true, fixedInfo("cluster_enabled:0\r\n")},
		{"keyspace", "Keyspace", true, infoKeyspace},
	}
}

func fixedInfo(text string) func(context.Context, *session, []byte) ([]byte, error) {
	return func(_ context.Context, _ *session, b []byte) ([]byte, error) { return append(b, text...), nil }
}

func infoServer(_ context.Context, s *session, b []byte) ([]byte, error) {
	h := s.h
	up := int64(h.now().Sub(h.started).Seconds())
	return fmt.Appendf(b, "redis_version:%s\r\nfelix_version:%s\r\nredis_mode:standalone\r\nos:%s\r\narch_bits:%d\r\n"+
		"process_id:%d\r\nrun_id:%s\r\ntcp_port:%d\r\nserver_time_usec:%d\r\nuptime_in_seconds:%d\r\nuptime_in_days:%d\r\n",
		RedisVersion, h.options.Version, runtime.GOOS+" "+runtime.GOARCH, 32<<(^uint(0)>>63),
		h.pid, h.runID, h.options.ServerPort, h.now().UnixMicro(), up, up/86400), nil
}

func infoClients(_ context.Context, s *session, b []byte) ([]byte, error) {
	connected, tracking := 0, 0
	s.h.each(func(other *session) {
		connected++
		if other.shared.about.Load().hasTracking {
			tracking++
		}
	})
	return fmt.Appendf(b, "connected_clients:%d\r\nmaxclients:%d\r\nblocked_clients:0\r\ntracking_clients:%d\r\n",
		connected, s.h.options.MaxConnections, tracking), nil
}

func infoMemory(_ context.Context, _ *session, b []byte) ([]byte, error) {
	sample := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}, {Name: "/memory/classes/total:bytes"}}
	metrics.Read(sample)
	used, total := sample[0].Value.Uint64(), sample[1].Value.Uint64()
	return fmt.Appendf(b, "used_memory:%d\r\nused_memory_human:%.2fM\r\nused_memory_rss:%d\r\nmaxmemory:0\r\n"+
		"maxmemory_human:0B\r\nmaxmemory_policy:noeviction\r\n", used, float64(used)/(1<<20), total), nil
}

func infoStats(_ context.Context, s *session, b []byte) ([]byte, error) {
	commands, failed := uint64(0), uint64(0)
	s.h.CommandCounts(func(_ string, calls, errors uint64) {
		commands += calls
		failed += errors
	})
	return fmt.Appendf(b, "total_connections_received:%d\r\ntotal_commands_processed:%d\r\ntotal_error_replies:%d\r\n",
		s.h.accepted.Load(), commands, failed), nil
}

func infoCommands(_ context.Context, s *session, b []byte) ([]byte, error) {
	s.h.CommandCounts(func(name string, calls, failed uint64) {
		b = fmt.Appendf(b, "cmdstat_%s:calls=%d,usec=0,usec_per_call=0.00,rejected_calls=0,failed_calls=%d\r\n", name, calls, failed)
	})
	return b, nil
}

func infoKeyspace(ctx context.Context, s *session, b []byte) ([]byte, error) {
	counts, err := s.count(ctx)
	if err != nil {
		// The rest of INFO is as true without the cache.
		if code := felix.AsError(err).Code; code == felix.CacheNotFound || code == felix.Unavailable {
			return b, nil
		}
		return b, err
	}
	if counts.Keys == 0 {
		return b, nil
	}
	return fmt.Appendf(b, "db0:keys=%d,expires=0,avg_ttl=0\r\n", counts.Keys), nil
}

func parseInfo(s *session, cmd *command, args [][]byte, t *netloop.Turn) outcome {
	wanted := func(section infoSection) bool {
		if len(args) == 1 {
			return section.byDefault
		}
		return slices.ContainsFunc(args[1:], func(word []byte) bool {
			return equalFold(word, "all") || equalFold(word, "everything") ||
				equalFold(word, "default") && section.byDefault || equalFold(word, section.name)
		})
	}
	return s.runSlow(t, cmd, func(ctx context.Context, b []byte) []byte {
		var text []byte
		for _, section := range infoSections() {
			if !wanted(section) {
				continue
			}
			if len(text) > 0 {
				text = append(text, "\r\n"...)
			}
			text = append(append(append(text, "# "...), section.title...), "\r\n"...)
			var err error
			if text, err = section.write(ctx, s, text); err != nil {
				return resp.AppendError(b, s.errorText(cmd, felix.AsError(err)))
			}
		}
		return resp.AppendVerbatim(b, s.version, text)
	})
}

// configParameter is one that CONFIG GET shows: those that clients ask for.
type configParameter struct{ name, value string }

func (h *Handler) configParameters() []configParameter {
	return []configParameter{
		{"appendfsync", "always"}, {"appendonly", "yes"}, {"cluster-enabled", "no"}, {"databases", "1"},
		{"maxclients", itoa(int64(h.options.MaxConnections))}, {"maxmemory", "0"}, {"maxmemory-policy", "noeviction"},
		{"notify-keyspace-events", ""}, {"port", itoa(int64(h.options.ServerPort))},
		{"proto-max-bulk-len", itoa(resp.MaxBulkBytes)}, {"save", ""}, {"timeout", "0"},
	}
}

func parseConfigGet(s *session, cmd *command, args [][]byte, _ *netloop.Turn) outcome {
	var found []configParameter
	for _, parameter := range s.h.configParameters() {
		at := slices.IndexFunc(args[2:], func(pattern []byte) bool { return glob(pattern, []byte(parameter.name), true) })
		if at < 0 {
			continue
		}
		if word := args[2+at]; len(word) == len(parameter.name) && !bytes.ContainsAny(word, "[*?") {
			parameter.name = string(word) // as it was asked for, like Redis
		}
		found = append(found, parameter)
	}
	return s.reply(cmd, func(b []byte, v resp.Version) []byte {
		b = resp.AppendMap(b, v, len(found))
		for _, parameter := range found {
			b = resp.AppendBulkString(b, parameter.name)
			b = resp.AppendBulkString(b, parameter.value)
		}
		return b
	})
}

func parseCommand(s *session, cmd *command, _ [][]byte, _ *netloop.Turn) outcome {
	return s.reply(cmd, func(b []byte, v resp.Version) []byte {
		b = resp.AppendArray(b, len(s.h.table.commands))
		for _, c := range s.h.table.commands {
			b = appendCommandInfo(b, v, c)
		}
		return b
	})
}

func parseCommandCount(s *session, cmd *command, _ [][]byte, _ *netloop.Turn) outcome {
	return s.reply(cmd, func(b []byte, _ resp.Version) []byte {
		return resp.AppendInt(b, int64(len(s.h.table.commands)))
	})
}

func parseCommandInfo(s *session, cmd *command, args [][]byte, t *netloop.Turn) outcome {
	if len(args) == 2 {
		return parseCommand(s, cmd, args, t)
	}
	return s.reply(cmd, func(b []byte, v resp.Version) []byte {
		b = resp.AppendArray(b, len(args)-2)
		for _, name := range args[2:] {
			if c := s.h.table.findFull(name); c != nil {
				b = appendCommandInfo(b, v, c)
			} else {
				b = resp.AppendNull(b, v)
			}
		}
		return b
	})
}

func parseCommandDocs(s *session, cmd *command, args [][]byte, _ *netloop.Turn) outcome {
	list := s.h.table.commands
	if len(args) > 2 {
		list = nil
		for _, name := range args[2:] {
			if c := s.h.table.findFull(name); c != nil {
				list = append(list, c)
			}
		}
	}
	return s.reply(cmd, func(b []byte, v resp.Version) []byte {
		b = resp.AppendMap(b, v, len(list))
		for _, c := range list {
			b = resp.AppendBulkString(b, c.name)
			b = appendCommandDocs(b, v, c)
		}
		return b
	})
}

// parseCommandList: COMMAND LIST [FILTERBY MODULE m|ACLCAT c|PATTERN p].
func parseCommandList(s *session, cmd *command, args [][]byte, _ *netloop.Turn) outcome {
	match := func(*command) bool { return true }
	if len(args) > 2 {
		if len(args) != 5 || !equalFold(args[2], "filterby") {
			return s.fail(cmd, msgSyntax)
		}
		value := args[4]
		switch {
		case equalFold(args[3], "module"):
			match = func(*command) bool { return false }
		case equalFold(args[3], "aclcat"):
			match = func(c *command) bool { return slices.Contains(c.aclCategories(), strings.ToLower(string(value))) }
		case equalFold(args[3], "pattern"):
			match = func(c *command) bool { return glob(value, []byte(c.name), true) }
		default:
			return s.fail(cmd, msgSyntax)
		}
	}
	var names []string
	for _, c := range s.h.table.all {
		if c != s.h.table.unknown && match(c) {
			names = append(names, c.name)
		}
	}
	return s.reply(cmd, func(b []byte, _ resp.Version) []byte {
		b = resp.AppendArray(b, len(names))
		for _, name := range names {
			b = resp.AppendBulkString(b, name)
		}
		return b
	})
}

// parseCommandGetkeys is GETKEYS and GETKEYSANDFLAGS.
func parseCommandGetkeys(withFlags bool) parseFunc {
	return func(s *session, cmd *command, args [][]byte, _ *netloop.Turn) outcome {
		words := args[2:]
		c := s.h.table.find(words[0])
		if c != nil && c.subs != nil && len(words) > 1 {
			c = c.sub(words[1])
		}
		switch {
		case c == nil:
			return s.fail(cmd, "ERR Invalid command specified")
		case c.keys.first == 0:
			return s.fail(cmd, "ERR The command has no key arguments")
		case !c.arityOK(len(words)):
			return s.fail(cmd, "ERR Invalid number of arguments specified for command")
		}
		var at []int
		flags := c.keys.flags
		if c.keys.flagsOf != nil {
			flags = c.keys.flagsOf(words)
		}
		c.keys.eachKey(words, func(i int) { at = append(at, i) })
		return s.reply(cmd, func(b []byte, v resp.Version) []byte {
			b = resp.AppendArray(b, len(at))
			for _, i := range at {
				if withFlags {
					b = resp.AppendArray(b, 2)
				}
				b = resp.AppendBulk(b, words[i])
				if withFlags {
					b = appendWords(b, v, strings.Fields(flags))
				}
			}
			return b
		})
	}
}
