package limit

import (
	"testing"
)

// stepped is a limiter with a state, stored, that is about half used.
func stepped(t testing.TB, p Policy, now int64) (*Limiter, []byte) {
	l := made(t, p)
	s := State{}
	for range p.Limit / 2 {
		_, s = l.Check(s, 1, now)
	}
	return l, AppendState(make([]byte, 0, 64), s)
}

// alloced are the policies whose checks cost no memory.
var alloced = []Policy{
	{Algorithm: FixedWindow, Limit: 1000, PeriodMillis: aMinute},
	{Algorithm: FixedWindow, Limit: 1000, Unit: Day, Zone: "Europe/Berlin"},
	{Algorithm: SlidingCounter, Limit: 1000, PeriodMillis: aMinute},
	{Algorithm: TokenBucket, Limit: 1000, PeriodMillis: aMinute},
}

// Reading a state, deciding and writing the state costs no memory; so does
// everything of a log and of holds but charging them.
func TestChecksDoNotAllocate(t *testing.T) {
	const now = 1_780_000_000_000
	run := func(what string, p Policy, cost int64) {
		l, stored := stepped(t, p, now)
		out := make([]byte, 0, MaxStateBytes)
		n := testing.AllocsPerRun(100, func() {
			s, err := ParseState(stored)
			if err != nil {
				t.Fatal(err)
			}
			_, s = l.Check(s, cost, now+1)
			out = AppendState(out[:0], s)
		})
		if n != 0 {
			t.Errorf("%s, %s %s: %v allocations", what, p.Algorithm, p.Unit, n)
		}
	}
	for _, p := range alloced {
		run("charged", p, 1)
		run("denied", p, 501)
		run("given back", p, -1)
		run("peeked", p, 0)
	}
	for _, p := range []Policy{{Algorithm: SlidingLog, Limit: 1000, PeriodMillis: aMinute}, {Algorithm: Concurrency, Limit: 1000, PeriodMillis: aMinute}} {
		run("denied", p, 1001)
		run("peeked", p, 0)
	}
	n := testing.AllocsPerRun(100, func() {
		p, err := ThrottlePolicy(15, 30, 60)
		if err != nil {
			t.Fatal(err)
		}
		l, err := New(p, nil)
		if err != nil {
			t.Fatal(err)
		}
		d, _ := l.Check(State{}, 1, now)
		if Throttle(d)[0] != 0 {
			t.Fatal(d)
		}
	})
	if n != 0 {
		t.Errorf("a policy that comes with its request: %v allocations", n)
	}
}

func BenchmarkCheck(b *testing.B) {
	for _, p := range append([]Policy{{Algorithm: SlidingLog, Limit: 100, PeriodMillis: aMinute}}, alloced...) {
		b.Run(p.Algorithm.String()+"/"+p.Unit.String(), func(b *testing.B) {
			l, stored := stepped(b, p, 1_780_000_000_000)
			out := make([]byte, 0, MaxStateBytes)
			now := int64(1_780_000_000_000)
			b.ReportAllocs()
			for b.Loop() {
				s, err := ParseState(stored)
				if err != nil {
					b.Fatal(err)
				}
				now++
				_, s = l.Check(s, 1, now)
				out = AppendState(out[:0], s)
			}
		})
	}
}

func BenchmarkThrottle(b *testing.B) {
	b.ReportAllocs()
	now, s := int64(1_780_000_000_000), State{}
	for b.Loop() {
		p, err := ThrottlePolicy(15, 30, 60)
		if err != nil {
			b.Fatal(err)
		}
		l, err := New(p, nil)
		if err != nil {
			b.Fatal(err)
		}
		now++
		_, s = l.Check(s, 1, now)
	}
}
