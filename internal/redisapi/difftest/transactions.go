package difftest

import (
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/felix-go/felix/internal/resp"
)

const randomTransactions = 150

// runTransactions sends random transactions on keys of one shard, with watched keys
// that are changed or not, by the connection itself or by another one, in one
// write or command by command.
func runTransactions(t *testing.T, dial, redis func() net.Conn) {
	for range randomRuns / 2 {
		seed := rand.Uint64()
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			g := generator{rng: rand.New(rand.NewPCG(seed, 0)), now: time.Now(), one: true}
			version := resp.RESP2 + resp.Version(g.rng.IntN(2))
			felix, real := start(t, dial, redis, version)
			otherFelix, otherReal := connect(t, "felix", dial), connect(t, "redis", redis)
			for n := 0; n < randomTransactions && !t.Failed(); n++ {
				var before []step
				if g.rng.IntN(2) == 0 {
					before = append(before, command("WATCH", g.key(), g.key()))
				}
				meanwhile := g.rng.IntN(4)
				if meanwhile == 1 {
					before = append(before, g.change())
				}
				both(t, felix, real, g.rng.IntN(2) == 0, before)
				if meanwhile == 2 {
					both(t, otherFelix, otherReal, true, []step{g.change()})
				}
				both(t, felix, real, g.rng.IntN(2) == 0, g.transaction())
			}
			if t.Failed() {
				t.Logf("seed %d fails", seed)
			}
		})
	}
}

func command(args ...string) step {
	st := step{text: fmt.Sprintf("%q", args), near: -1}
	for _, arg := range args {
		st.args = append(st.args, []byte(arg))
	}
	return st
}

// both sends steps to both servers, in one write or one by one.
func both(t *testing.T, felix, real *peer, piped bool, steps []step) {
	t.Helper()
	var b []byte
	for i, st := range steps {
		b = append(b, encode(st.args)...)
		if piped && i < len(steps)-1 {
			continue
		}
		felix.send(b)
		real.send(b)
		b = nil
		if !piped {
			compare(t, st, felix.read(st.text), real.read(st.text))
		}
	}
	for _, st := range steps {
		if piped {
			compare(t, st, felix.read(st.text), real.read(st.text))
		}
	}
}

// change is a command that changes a key or not. (None that deletes, or that only
// changes an expiry: there Felix looks at what is, and Redis at what was done.)
func (g *generator) change() step {
	switch g.rng.IntN(5) {
	case 0:
		return command("GET", g.key())
	case 1:
		return command("SETNX", g.key(), g.value())
	case 2:
		return command("INCRBY", g.key(), g.delta())
	case 3:
		return command("MSET", g.key(), g.value(), g.key(), g.value())
	}
	return command("SET", g.key(), g.value())
}

// transaction is MULTI with some commands, and mostly EXEC.
func (g *generator) transaction() []step {
	steps := []step{command("MULTI")}
	for range g.rng.IntN(8) {
		args := g.write()
		switch g.rng.IntN(12) {
		case 0, 1, 2:
			args = g.read()
		case 3, 4:
			args = g.expire()
		case 5:
			args = pick(g, []string{"PING"}, []string{"ECHO", "x"}, []string{"UNWATCH"}, []string{"MULTI"}, []string{"WATCH", g.key()})
		case 6:
			if g.rng.IntN(4) == 0 {
				args = pick(g, []string{"NOSUCH"}, []string{"GET"}, []string{"SET", g.key()})
			}
		}
		steps = append(steps, command(args...))
	}
	end := "EXEC"
	if g.rng.IntN(8) == 0 {
		end = "DISCARD"
	}
	steps = append(steps, command(end))
	for i := range steps {
		steps[i].text = strings.Join([]string{steps[i].text, "in a transaction"}, " ")
	}
	return steps
}
