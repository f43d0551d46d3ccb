package redisapi

import (
	"fmt"
	"strings"
)

// Docs is docs/redis.md, from the table of commands.
func Docs() string {
	var b strings.Builder
	b.WriteString(docsHead)
	var groups []string
	rows := map[string][]*command{}
	for _, cmd := range newTable().commands {
		if rows[cmd.group] == nil {
			groups = append(groups, cmd.group)
		}
		rows[cmd.group] = append(rows[cmd.group], cmd)
	}
	for _, group := range groups {
		fmt.Fprintf(&b, "\n## %s\n\n| command | what it does | notes |\n|---|---|---|\n", strings.ToUpper(group[:1])+group[1:])
		for _, cmd := range rows[group] {
			writeRows(&b, cmd)
		}
	}
	return b.String()
}

// writeRows writes the command, or its subcommands; those of CLUSTER are all
// the same.
func writeRows(b *strings.Builder, cmd *command) {
	if len(cmd.subs) == 0 || cmd.name == "command" || cmd.name == "cluster" {
		writeRow(b, cmd)
	}
	if cmd.name == "cluster" {
		return
	}
	for _, sub := range cmd.subs {
		writeRow(b, sub)
	}
}

func writeRow(b *strings.Builder, cmd *command) {
	syntax := strings.TrimSpace(strings.ToUpper(strings.ReplaceAll(cmd.name, "|", " ")) + " " + cmd.usage)
	fmt.Fprintf(b, "| `%s` | %s | %s |\n", strings.ReplaceAll(syntax, "|", "\\|"), cmd.summary, cmd.felix)
}

const docsHead = `# Redis protocol

<!-- Generated from the command table: go test ./internal/redisapi -run TestDocs -update -->

Felix speaks RESP2 and RESP3 (after ` + "`HELLO 3`" + `). Replies, errors and edge cases are those of Redis 7.0.15; a differential
test compares them byte for byte with a real one. INCREX is that of Redis 8.8, as its documentation and its tests
have it. Counters and values appear as one keyspace of strings: a canonical
64-bit integer is the counter of that key, any other string its value.

A connection starts in the cache ` + "`default/default/default`" + `. ` + "`AUTH tenant/namespace/cache token`" + ` or
` + "`HELLO 3 AUTH tenant/namespace/cache token`" + ` selects another.

Where Felix differs from Redis:

- The empty key is refused. Keys have at most 65,535 bytes, values 1 MiB, a request 16 MiB, a command 10,000 keys.
- Expiries reach to 2^61 milliseconds, not 2^63.
- There is one database, 0.
- MSET, DEL and UNLINK of keys on different shards are not one atomic step; the error ` + "`UNKNOWN`" + ` says when only some
  of the keys were changed. Keys with the same {tag} share a shard.
- SCAN cursors are those that Felix gave, for the same cache, and are forgotten after many others or a restart.
- The keys of a transaction, watched ones included, must share a shard, as those with the same {tag} do (and all of a cache
  with one shard): otherwise EXEC answers ` + "`CROSSSLOT`" + `, and nothing is applied. It has at most 10,000 operations, and writes at most
  4 MiB. Not every command can be queued (see MULTI); one that cannot is refused at once, and EXEC answers ` + "`EXECABORT`" + `, as in Redis
  after a command with an error. Whether a watched key has changed is told by its version: one that did not exist and does
  not exist at EXEC has not changed.
- An EXEC that answers ` + "`UNKNOWN`" + ` may have been applied, as a whole; after any other error nothing was.
- Pub/sub, scripts and other data types do not exist: ` + "`ERR unknown command`" + `.
- Errors of Felix's own: ` + "`TRYAGAIN`" + ` (not applied, try again), ` + "`CLUSTERDOWN`" + ` (not applied, no owner or majority) and
  ` + "`UNKNOWN`" + ` (may have been applied).

A client that sends a command again after a broken connection can count it twice; switch that off where counts must be
exact (go-redis: ` + "`MaxRetries: -1`" + `).
`
