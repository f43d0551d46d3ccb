package redisapi_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/redisapi"
)

// transactionFake answers what a real cache would, and keeps what it was asked.
func transactionFake() (*fake, *[]felix.Op) {
	f := newFake()
	asked := &[]felix.Op{}
	f.cache.reply = func(op *felix.Op) felix.Reply {
		*asked = append(*asked, *op)
		return felix.Reply{Applied: true, Int: op.Int}
	}
	return f, asked
}

const execAbort = "-EXECABORT Transaction discarded because of previous errors.\r\n"

// What cannot be queued fails the transaction, whether it comes in one packet or
// command by command, and nothing of it is applied. Broken: `s.tx.failed = true` in
// refuse (transaction.go).
func TestWhatCannotBeQueued(t *testing.T) {
	f, asked := transactionFake()
	k := newTalk(t, redisapi.New(f, redisapi.Options{}))
	for _, line := range []string{"FLUSHALL", "AUTH default/default/stats x", "HELLO 3", "CLIENT REPLY OFF", "CLIENT SETNAME x", "KEYS *", "SCAN 0",
		"INFO", "DBSIZE", "WAIT 0 0", "COMMAND", "CONFIG GET save", "CLIENT KILL ID 7", "CLIENT TRACKING ON OPTIN"} {
		name := strings.TrimSpace(strings.Join(strings.Fields(line)[:1], " "))
		if name == "CLIENT" || name == "CONFIG" {
			name = strings.Join(strings.Fields(line)[:2], " ")
		}
		want := "+OK\r\n+QUEUED\r\n-ERR " + name + " is not supported inside a transaction: send it without MULTI\r\n+QUEUED\r\n" + execAbort
		whole := []string{"MULTI", "INCR a", line, "INCR a", "EXEC"}
		k.expect(want, whole...)
		got := ""
		for _, part := range whole {
			got += k.say(part)
		}
		if got != want {
			t.Errorf("command by command: %q, want %q", got, want)
		}
	}
	if len(*asked) != 0 {
		t.Errorf("%d operations were submitted", len(*asked))
	}
	k.expect("+OK\r\n+QUEUED\r\n*1\r\n:1\r\n", "MULTI", "INCR a", "EXEC")
}

// An answer of the cache to the group as a whole is EXEC's, the one that leaves
// the outcome open before others; one to an operation is the command's. Broken:
// wholeError (transaction.go): MayBeApplied, ErrCrossShard.
func TestExecErrors(t *testing.T) {
	f := newFake()
	answers := map[string]felix.Reply{}
	f.cache.reply = func(op *felix.Op) felix.Reply { return answers[string(op.Key)] }
	k := newTalk(t, redisapi.New(f, redisapi.Options{}))
	unavailable := felix.Reply{Err: &felix.Error{Code: felix.Unavailable, Message: "nobody"}}
	unknown := felix.Reply{Err: &felix.Error{Code: felix.OutcomeUnknown, Message: "perhaps"}}
	exhausted := felix.Reply{Err: &felix.Error{Code: felix.ResourceExhausted, Message: "full"}}
	for _, c := range []struct {
		a, b felix.Reply
		want string
	}{
		{felix.Reply{Int: 1}, felix.Reply{Int: 2}, "*2\r\n:1\r\n:2\r\n"},
		{felix.Reply{Err: felix.ErrCrossShard}, felix.Reply{Err: felix.ErrCrossShard}, "-CROSSSLOT Keys in request don't hash to the same slot\r\n"},
		{unavailable, unavailable, "-CLUSTERDOWN nobody\r\n"},
		{unavailable, unknown, "-UNKNOWN perhaps\r\n"},
		{exhausted, exhausted, "-TRYAGAIN full\r\n"},
		{felix.Reply{Err: felix.ErrOverflow}, felix.Reply{Int: 5}, "*2\r\n-ERR increment or decrement would overflow\r\n:5\r\n"},
		{felix.Reply{Aborted: true}, felix.Reply{Aborted: true}, "*-1\r\n"},
	} {
		answers["a"], answers["b"] = c.a, c.b
		k.expect("+OK\r\n+QUEUED\r\n+QUEUED\r\n"+c.want+"+PONG\r\n", "MULTI", "INCR a", "INCR b", "EXEC", "PING")
	}
	// A watched key that cannot be read is not one that has not changed.
	answers["a"] = unavailable
	k.expect("-CLUSTERDOWN nobody\r\n+OK\r\n+QUEUED\r\n-EXECABORT Transaction discarded because a watched key could not be read: nobody\r\n",
		"WATCH a", "MULTI", "INCR b", "EXEC")
}

// The operations of a transaction are one group: a check for each watched key, once,
// then those of the commands in order. Broken: `t.Groups = append` in parseExec.
func TestExecIsOneGroup(t *testing.T) {
	f, asked := transactionFake()
	var groups [][]felix.Group
	f.cache.onSubmit = func(b *felix.Batch) { groups = append(groups, append([]felix.Group(nil), b.Groups...)) }
	f.cache.reply = func(op *felix.Op) felix.Reply {
		*asked = append(*asked, *op)
		return felix.Reply{Applied: true, Version: uint64(op.Key[0])}
	}
	k := newTalk(t, redisapi.New(f, redisapi.Options{}))
	k.say("WATCH a b a")
	groups, *asked = nil, nil
	k.say("PING\r\nGET x\r\nMULTI\r\nINCR c\r\nPING\r\nMGET d e\r\nEXEC\r\nGET y")
	if len(groups) != 1 || len(groups[0]) != 1 || groups[0][0] != (felix.Group{From: 1, To: 6}) {
		t.Fatalf("groups %+v", groups)
	}
	var got []string
	for _, op := range *asked {
		got = append(got, fmt.Sprint(op.Kind, op.If, op.Version, string(op.Key)))
	}
	want := fmt.Sprint([]string{fmt.Sprint(felix.Get, 0, 0, "x"), fmt.Sprint(felix.Check, felix.IfVersion, 'a', "a"), fmt.Sprint(felix.Check, felix.IfVersion, 'b', "b"),
		fmt.Sprint(felix.Add, 0, 0, "c"), fmt.Sprint(felix.Get, 0, 0, "d"), fmt.Sprint(felix.Get, 0, 0, "e"), fmt.Sprint(felix.Get, 0, 0, "y")})
	if fmt.Sprint(got) != want {
		t.Errorf("operations %v, want %v", got, want)
	}
}

// What transactions hold is bounded, for a connection and for all of them, and
// given back however they end. Broken: endTransaction in Closed (session.go).
func TestTransactionsAreBounded(t *testing.T) {
	f, asked := transactionFake()
	h := redisapi.New(f, redisapi.Options{})
	k := newTalk(t, h)
	large := "SET k " + strings.Repeat("x", 60_000)
	k.say("MULTI")
	refused := false
	for range 2*felix.MaxTransactionBytes/60_000 + 1 {
		got := k.say(large)
		refused = refused || strings.HasPrefix(got, "-ERR the transaction and its watched keys have more than")
	}
	if got := k.say("EXEC"); !refused || got != execAbort {
		t.Errorf("refused %v, EXEC: %q", refused, got)
	}
	many := make([]string, 0, felix.MaxBatchItems+3)
	many = append(many, "MULTI")
	for range felix.MaxBatchItems + 1 {
		many = append(many, "INCR k")
	}
	got := k.say(strings.Join(append(many, "EXEC"), "\r\n"))
	if !strings.HasSuffix(got, "+QUEUED\r\n-ERR the transaction has more than 10000 operations: nothing was applied\r\n") || len(*asked) != 0 {
		t.Errorf("10,001 commands: %.200q, %d operations", got[max(0, len(got)-200):], len(*asked))
	}
	var talks []*talk
	for n := 0; n*7_800_000 < felix.MaxTransactionsBytes; n++ {
		other := newTalk(t, h)
		other.say("MULTI")
		for range 128 {
			if got := other.say(large); got != "+QUEUED\r\n" && !strings.HasPrefix(got, "-TRYAGAIN") {
				t.Fatalf("connection %d: %q", n, got)
			}
		}
		talks = append(talks, other)
	}
	k.say("MULTI")
	tried := ""
	for range 128 {
		if got := k.say(large); got != "+QUEUED\r\n" {
			tried = got
		}
	}
	if !strings.HasPrefix(tried, "-TRYAGAIN") {
		t.Errorf("beyond what all may hold: %q", tried)
	}
	for i, other := range talks {
		switch i % 3 {
		case 0:
			other.say("DISCARD")
		case 1:
			other.say("RESET")
		default:
			other.session.Closed()
		}
	}
	k.expect(execAbort+"+OK\r\n+QUEUED\r\n*1\r\n+OK\r\n", "EXEC", "MULTI", large, "EXEC")
}

// After a refused CLIENT CACHING YES a transaction fails: rueidis sends the two
// together, does not look at the first, and keeps what it has read. Broken:
// `s.uncached > 0` in parseMulti.
func TestNothingIsCached(t *testing.T) {
	f, asked := transactionFake()
	k := newTalk(t, redisapi.New(f, redisapi.Options{}))
	k.say("CLIENT TRACKING ON OPTIN")
	got := k.say("CLIENT CACHING YES\r\nMULTI\r\nPTTL k\r\nGET k\r\nEXEC")
	if !strings.HasSuffix(got, execAbort) || len(*asked) != 0 {
		t.Errorf("%q, %d operations", got, len(*asked))
	}
	k.expect("+OK\r\n+QUEUED\r\n*1\r\n:1\r\n", "MULTI", "INCR k", "EXEC")
}
