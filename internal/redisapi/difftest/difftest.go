// Package difftest proves that a RESP door answers as Redis 7.0.15 does: it
// starts a real redis-server and compares replies byte for byte, and it runs
// real client libraries. Both take any door: one over the model, or a broker.
package difftest

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/felix-go/felix/internal/resp"
)

// Run compares the door that dial connects to with a Redis that it starts, by
// written and by random sequences of commands, in RESP2 and RESP3. It empties
// the door's default cache, over and over. The door's clock must be real time.
// A missing redis-server fails the test.
func Run(t *testing.T, dial func() net.Conn) {
	redis := startRedis(t)
	used := map[string]bool{}
	for _, script := range scripts() {
		sequences, err := parseScript(script, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		for _, seq := range sequences {
			for i := range seq.steps {
				used[seq.steps[i].except] = true
			}
			for _, version := range []resp.Version{resp.RESP2, resp.RESP3} {
				t.Run(fmt.Sprintf("%s/resp%d", seq.name, version), func(t *testing.T) {
					runSequence(t, dial, redis, seq, version)
				})
			}
		}
	}
	for _, e := range exceptions {
		if !used[e.name] {
			t.Errorf("the exception %q is in the list and in no script: take it out", e.name)
		}
	}
	t.Run("Commands", func(t *testing.T) { runCommands(t, dial, redis) })
	t.Run("Raw", func(t *testing.T) { runRaw(t, dial, redis) })
	t.Run("Random", func(t *testing.T) { runRandom(t, dial, redis) })
	t.Run("Transactions", func(t *testing.T) { runTransactions(t, dial, redis) })
	t.Run("Scan", func(t *testing.T) { runScan(t, dial, redis) })
	t.Run("Sparse", func(t *testing.T) { runSparse(t, dial, redis) })
}

// peer is a connection to one of the two servers.
type peer struct {
	t    *testing.T
	name string
	conn net.Conn
	in   *bufio.Reader
}

func connect(t *testing.T, name string, dial func() net.Conn) *peer {
	t.Helper()
	conn := dial()
	t.Cleanup(func() { conn.Close() })
	return &peer{t: t, name: name, conn: conn, in: bufio.NewReader(conn)}
}

func (p *peer) send(b []byte) {
	p.t.Helper()
	p.conn.SetDeadline(time.Now().Add(replyTimeout))
	if _, err := p.conn.Write(b); err != nil {
		p.t.Fatalf("%s: writing: %v", p.name, err)
	}
}

func (p *peer) read(what string) reply {
	p.t.Helper()
	r, err := readReply(p.in)
	if err != nil {
		p.t.Fatalf("%s: the reply to %s: %v (read %q)", p.name, what, err, r.raw)
	}
	return r
}

// do sends a command and reads its reply.
func (p *peer) do(args ...string) reply {
	p.t.Helper()
	words := make([][]byte, len(args))
	for i, arg := range args {
		words[i] = []byte(arg)
	}
	p.send(encode(words))
	return p.read(fmt.Sprint(args))
}

// start makes both databases empty and switches to the protocol version.
func start(t *testing.T, dial, redis func() net.Conn, version resp.Version) (felix, real *peer) {
	t.Helper()
	felix, real = connect(t, "felix", dial), connect(t, "redis", redis)
	for _, p := range []*peer{felix, real} {
		if r := p.do("FLUSHALL"); string(r.raw) != resp.OK {
			t.Fatalf("%s: FLUSHALL: %q", p.name, r.raw)
		}
		if version == resp.RESP3 {
			if r := p.do("HELLO", "3"); r.kind() != '%' {
				t.Fatalf("%s: HELLO 3: %q", p.name, r.raw)
			}
		}
	}
	return felix, real
}

// runSequence runs the sequence on both: in RESP2 command by command, in RESP3
// pipelined up to the next wait.
func runSequence(t *testing.T, dial, redis func() net.Conn, seq sequence, version resp.Version) {
	felix, real := start(t, dial, redis, version)
	var waiting []step
	flush := func() {
		if len(waiting) == 0 {
			return
		}
		var b []byte
		for i := range waiting {
			b = append(b, encode(waiting[i].args)...)
		}
		felix.send(b)
		real.send(b)
		for _, st := range waiting {
			if !st.none {
				compare(t, st, felix.read(st.text), real.read(st.text))
			}
		}
		waiting = waiting[:0]
	}
	for _, st := range seq.steps {
		if st.wait > 0 {
			flush()
			time.Sleep(st.wait) // the script says so: for expiries
		}
		if len(st.args) > 0 {
			waiting = append(waiting, st)
		}
		if version == resp.RESP2 {
			flush()
		}
	}
	flush()
	// Nothing may be left over: the answer to one more command comes next.
	if t.Failed() {
		return
	}
	end := step{text: "the end", args: [][]byte{[]byte("ECHO"), []byte("the end")}, near: -1}
	if lastStep := seq.steps[len(seq.steps)-1]; !lastStep.none && lastStep.text != "QUIT" {
		waiting = append(waiting, end)
		flush()
	}
}

// compare reports where the replies differ more than the step allows.
func compare(t *testing.T, st step, ours, theirs reply) {
	t.Helper()
	same := bytes.Equal(ours.raw, theirs.raw)
	switch {
	case st.except != "":
		same = true
	case st.near >= 0:
		a, okA := ours.integer()
		b, okB := theirs.integer()
		same = okA && okB && max(a-b, b-a) <= st.near
	case st.kind:
		same = ours.kind() == theirs.kind() && len(ours.parts) == len(theirs.parts)
	case st.sort:
		same = bytes.Equal(ours.sorted(), theirs.sorted())
	}
	if !same {
		t.Errorf("%s\nfelix %q\nredis %q", st.text, ours.raw, theirs.raw)
	}
}

// runRaw sends bytes that end the connection, and compares all that comes back.
func runRaw(t *testing.T, dial, redis func() net.Conn) {
	for name, input := range rawInputs() {
		t.Run(name, func(t *testing.T) {
			answer := func(server string, dial func() net.Conn) string {
				p := connect(t, server, dial)
				// A server may refuse, and close, before it has read all.
				p.conn.SetDeadline(time.Now().Add(replyTimeout))
				if _, err := p.conn.Write([]byte(input)); err != nil && !errors.Is(err, syscall.EPIPE) && !errors.Is(err, syscall.ECONNRESET) {
					t.Fatalf("%s: writing: %v", server, err)
				}
				all, err := io.ReadAll(p.in)
				// A server that closes with input unread resets.
				if err != nil && !errors.Is(err, syscall.ECONNRESET) {
					t.Fatalf("%s: after %q: %v", server, all, err)
				}
				return string(all)
			}
			if ours, theirs := answer("felix", dial), answer("redis", redis); ours != theirs {
				t.Errorf("%.200q\nfelix %q\nredis %q", input, ours, theirs)
			}
		})
	}
}

// runScan reads all keys by SCAN, which the servers step through differently.
func runScan(t *testing.T, dial, redis func() net.Conn) {
	felix, real := start(t, dial, redis, resp.RESP2)
	const keys = 2500
	for i := range keys {
		key := fmt.Sprintf("key:%d:%d", i%7, i)
		felix.send(encode([][]byte{[]byte("SET"), []byte(key), []byte("v")}))
		real.send(encode([][]byte{[]byte("SET"), []byte(key), []byte("v")}))
		felix.read(key)
		real.read(key)
	}
	for _, options := range [][]string{
		{}, {"COUNT", "1000"}, {"MATCH", "key:3:*"}, {"MATCH", "*9", "COUNT", "77"}, {"COUNT", "100000"},
		{"MATCH", "key:[12]:?5*"}, {"TYPE", "string", "COUNT", "500"}, {"TYPE", "list", "COUNT", "500"}, {"MATCH", "key:3:3"},
	} {
		compareScan(felix, real, options)
	}
}

// compareScan compares the keys of a whole SCAN: Redis may give one twice, Felix
// does not.
func compareScan(felix, real *peer, options []string) {
	felix.t.Helper()
	ours, theirs := scanAll(felix, options), scanAll(real, options)
	if len(ours) != len(theirs) {
		felix.t.Errorf("SCAN %v found %d keys, Redis %d", options, len(ours), len(theirs))
	}
	for key, times := range ours {
		if times != 1 || theirs[key] == 0 {
			felix.t.Errorf("SCAN %v found %s %d times, Redis %d times", options, key, times, theirs[key])
		}
	}
}

// runSparse lists few keys among many that were deleted just now.
func runSparse(t *testing.T, dial, redis func() net.Conn) {
	felix, real := start(t, dial, redis, resp.RESP2)
	const keys = 2500
	for _, p := range []*peer{felix, real} {
		for _, tag := range []string{"{t}", ""} { // on one shard, and on all
			for _, name := range []string{"MSET", "DEL"} {
				args := [][]byte{[]byte(name)}
				for i := range keys {
					args = append(args, fmt.Appendf(nil, "%s%06d", tag, i))
					if name == "MSET" {
						args = append(args, []byte("1"))
					}
				}
				p.send(encode(args))
				p.read(name)
			}
		}
		p.do("MSET", "{t}001000 left", "1", "{t}zzz", "text", "001000 left", "text", "zzz", "2")
	}
	for _, pattern := range []string{"*", "{t}*", "0*", "*left", "z*", "none*"} {
		ours, theirs := felix.do("KEYS", pattern), real.do("KEYS", pattern)
		if !bytes.Equal(ours.sorted(), theirs.sorted()) {
			t.Errorf("KEYS %s\nfelix %q\nredis %q", pattern, ours.raw, theirs.raw)
		}
		for _, count := range []string{"1", "10", "10000"} {
			compareScan(felix, real, []string{"MATCH", pattern, "COUNT", count})
		}
	}
}

// scanAll is how often a whole SCAN gives each key.
func scanAll(p *peer, options []string) map[string]int {
	p.t.Helper()
	found := map[string]int{}
	cursor := "0"
	for {
		r := p.do(append([]string{"SCAN", cursor}, options...)...)
		if len(r.parts) != 2 {
			p.t.Fatalf("%s: SCAN %s %v: %q", p.name, cursor, options, r.raw)
		}
		for _, key := range r.parts[1].parts {
			found[string(key.raw)]++
		}
		_, rest, _ := bytes.Cut(r.parts[0].raw, []byte("\r\n"))
		if cursor = string(bytes.TrimSpace(rest)); cursor == "0" {
			return found
		}
	}
}
