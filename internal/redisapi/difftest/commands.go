package difftest

import (
	"bytes"
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/felix-go/felix/internal/resp"
)

// newer are the commands that Redis 7.0.15 does not have (exception
// newer-client, and INCREX of 8.8).
var newer = []string{"client|setinfo", "client|no-touch", "increx"}

// runCommands compares what COMMAND says of every command that Felix has, and
// the answers to wrong numbers of arguments.
func runCommands(t *testing.T, dial, redis func() net.Conn) {
	for _, version := range []resp.Version{resp.RESP2, resp.RESP3} {
		felix, real := start(t, dial, redis, version)
		names := felix.do("COMMAND", "LIST").parts
		if len(names) < 60 {
			t.Fatalf("COMMAND LIST has %d names", len(names))
		}
		for _, part := range names {
			_, rest, _ := bytes.Cut(part.raw, []byte("\r\n"))
			name := strings.TrimSpace(string(rest))
			if slices.Contains(newer, name) {
				continue
			}
			ours, theirs := felix.do("COMMAND", "INFO", name), real.do("COMMAND", "INFO", name)
			if len(ours.parts) != 1 || len(ours.parts[0].parts) != 10 || len(theirs.parts[0].parts) != 10 {
				t.Fatalf("COMMAND INFO %s\nfelix %q\nredis %q", name, ours.raw, theirs.raw)
			}
			info, want := ours.parts[0].parts, theirs.parts[0].parts
			for i := range 9 { // the tenth is the subcommands, which differ (subset)
				if !bytes.Equal(info[i].raw, want[i].raw) {
					t.Errorf("COMMAND INFO %s, element %d\nfelix %q\nredis %q", name, i, info[i].raw, want[i].raw)
				}
			}
			arity, _ := info[1].integer()
			compareArity(felix, real, strings.Split(name, "|"), int(arity))
		}
	}
}

// compareArity sends too few and too many arguments.
func compareArity(felix, real *peer, words []string, arity int) {
	felix.t.Helper()
	least := max(arity, -arity)
	var wrong [][]string
	if least > len(words) {
		wrong = append(wrong, words)
	}
	if arity > 0 {
		more := slices.Clone(words)
		for len(more) <= arity {
			more = append(more, "x")
		}
		wrong = append(wrong, more)
	}
	for _, args := range wrong {
		if ours, theirs := felix.do(args...), real.do(args...); !bytes.Equal(ours.raw, theirs.raw) {
			felix.t.Errorf("%v\nfelix %q\nredis %q", args, ours.raw, theirs.raw)
		}
	}
}
