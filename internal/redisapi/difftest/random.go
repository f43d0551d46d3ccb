package difftest

import (
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/felix-go/felix/internal/resp"
)

const (
	randomRuns  = 6
	randomSteps = 1500
)

// runRandom sends random commands on few keys, in pipelines of random lengths.
// The seed is in the name of a run that fails; SeedOf runs one again.
func runRandom(t *testing.T, dial, redis func() net.Conn) {
	for range randomRuns {
		runSeed(t, dial, redis, rand.Uint64())
	}
}

// runSeed runs the random sequence of the seed.
func runSeed(t *testing.T, dial, redis func() net.Conn, seed uint64) {
	t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
		g := generator{rng: rand.New(rand.NewPCG(seed, 0)), now: time.Now()}
		version := resp.RESP2 + resp.Version(g.rng.IntN(2))
		felix, real := start(t, dial, redis, version)
		for sent := 0; sent < randomSteps && !t.Failed(); {
			var (
				steps []step
				b     []byte
			)
			for range 1 + g.rng.IntN(40) {
				st := g.step()
				steps = append(steps, st)
				b = append(b, encode(st.args)...)
			}
			felix.send(b)
			real.send(b)
			for _, st := range steps {
				compare(t, st, felix.read(st.text), real.read(st.text))
			}
			sent += len(steps)
		}
		if t.Failed() {
			t.Logf("seed %d fails", seed)
		}
	})
}

// generator makes random commands. Times to live are either over at once or
// long, so that the two servers need not agree on the moment.
type generator struct {
	rng *rand.Rand
	now time.Time
	one bool // shard: all keys have one {tag}
}

func pick[T any](g *generator, from ...T) T { return from[g.rng.IntN(len(from))] }

func (g *generator) key() string {
	if g.one {
		return pick(g, "{t}a", "{t}b", "{t}c", "{t}\x00\r\n")
	}
	return pick(g, "a", "b", "c", "{t}d", "{t}e", "f:1", "f:2", "g\x00\r\n")
}

func (g *generator) value() string {
	switch g.rng.IntN(4) {
	case 0:
		return strconv.Itoa(g.rng.IntN(2000) - 1000)
	case 1:
		return pick(g, "", "0", "-0", "+1", "01", " 1", "1 ", "1.5", "-", "9223372036854775807", "-9223372036854775808",
			"9223372036854775808", "-9223372036854775809", "00", "-1", "99999999999999999999")
	case 2:
		return pick(g, "text", "a\r\nb", "\x00\xff", strings.Repeat("long", 3000))
	}
	return g.delta()
}

func (g *generator) delta() string {
	return pick(g, "1", "-1", "0", "7", "-13", "9223372036854775807", "-9223372036854775808", "9000000000000000000",
		"-9000000000000000000", "x", "1.0", "", "12")
}

// seconds is a relative time to live: long, over, or wrong.
func (g *generator) seconds() string {
	return pick(g, "1000", "100000", "5000", "0", "-1", "-5000", "x", "9223372036854775807", "-9223372036854775808", "1.5", "",
		g.hugeNegative())
}

// hugeNegative is one of 16 to 18 digits: times a thousand, some of them wrap
// around to a small positive number.
func (g *generator) hugeNegative() string {
	return pick(g, "-9223372036854776", "-18446744073709551", "-27670116110564327", strconv.FormatInt(-1e15-g.rng.Int64N(1e17), 10))
}

// at is a point in time in Unix seconds: far in the future, past, or wrong.
func (g *generator) at() string {
	now := g.now.Unix()
	return pick(g, strconv.FormatInt(now+10000, 10), strconv.FormatInt(now+20000, 10), strconv.FormatInt(now-5, 10), "1", "0", "-7", "x",
		"9223372036854775807", g.hugeNegative())
}

func (g *generator) atMillis() string {
	switch at := g.at(); len(at) {
	case 10:
		return at + "000"
	case 19: // Redis goes that far (exception far-expiry)
		return "x"
	default:
		return at
	}
}

func (g *generator) word(s string) string {
	if g.rng.IntN(3) == 0 {
		return strings.ToLower(s)
	}
	return s
}

func (g *generator) expiryOption() []string {
	switch g.rng.IntN(5) {
	case 0:
		return []string{g.word("EX"), g.seconds()}
	case 1:
		return []string{g.word("PX"), g.seconds() + "000"}
	case 2:
		return []string{g.word("EXAT"), g.at()}
	case 3:
		return []string{g.word("PXAT"), g.atMillis()}
	}
	return nil
}

func (g *generator) options(from ...string) []string {
	var options []string
	for g.rng.IntN(2) == 0 {
		options = append(options, g.word(pick(g, from...)))
	}
	return options
}

// step makes a command.
func (g *generator) step() step {
	near, sorted := int64(-1), false
	args := g.write()
	switch g.rng.IntN(10) {
	case 0, 1, 2:
		args = g.read()
	case 3, 4:
		args = g.expire()
	case 5:
		args, near = []string{pick(g, "TTL", "EXPIRETIME"), g.key()}, 1
	case 6:
		args, near = []string{pick(g, "PTTL", "PEXPIRETIME"), g.key()}, 5000
	case 7:
		if g.rng.IntN(4) == 0 {
			args, sorted = pick(g, []string{"KEYS", "*"}, []string{"KEYS", "f:*"}, []string{"KEYS", "[a-c]"},
				[]string{"SCAN", "0", "COUNT", "1000"}, []string{"SCAN", "0", "MATCH", "{t}?", "COUNT", "1000"}), true
		}
	}
	st := step{text: fmt.Sprintf("%q", args), near: near, sort: sorted}
	for _, arg := range args {
		st.args = append(st.args, []byte(arg))
	}
	return st
}

func (g *generator) read() []string {
	switch g.rng.IntN(5) {
	case 0:
		return []string{"MGET", g.key(), g.key(), g.key()}
	case 1:
		return []string{"EXISTS", g.key(), g.key()}
	case 2:
		return []string{pick(g, "STRLEN", "TYPE", "PERSIST", "GETDEL"), g.key()}
	case 3:
		return append(append([]string{"GETEX", g.key()}, g.expiryOption()...), g.options("PERSIST")...)
	}
	return []string{g.word("GET"), g.key()}
}

func (g *generator) write() []string {
	switch g.rng.IntN(9) {
	case 0:
		args := append([]string{"SET", g.key(), g.value()}, g.options("NX", "XX", "GET", "KEEPTTL", "junk")...)
		return append(append(args, g.expiryOption()...), g.options("NX", "XX", "GET", "KEEPTTL")...)
	case 1:
		return []string{pick(g, "SETNX", "GETSET"), g.key(), g.value()}
	case 2:
		return []string{pick(g, "SETEX", "PSETEX"), g.key(), pick(g, "100000", "500000", "0", "-1", "x"), g.value()}
	case 3:
		return []string{"MSET", g.key(), g.value(), g.key(), g.value()}
	case 4:
		return []string{pick(g, "DEL", "UNLINK"), g.key(), g.key()}
	case 5, 6:
		return []string{pick(g, "INCRBY", "DECRBY"), g.key(), g.delta()}
	}
	return []string{g.word(pick(g, "INCR", "DECR")), g.key()}
}

// expire uses GT and LT only with points in time, which both servers compare
// alike.
func (g *generator) expire() []string {
	if g.rng.IntN(2) == 0 {
		name, at := "EXPIREAT", g.at()
		if g.rng.IntN(2) == 0 {
			name, at = "PEXPIREAT", g.atMillis()
		}
		return append([]string{name, g.key(), at}, g.options("NX", "XX", "GT", "LT", "no")...)
	}
	return append([]string{"EXPIRE", g.key(), g.seconds()}, g.options("NX", "XX")...)
}
