package broker

import (
	"math"
	"testing"
	"time"
)

const (
	testBound = 500 * time.Millisecond
	year      = int64(365 * 24 * time.Hour / time.Millisecond)
	wall0     = int64(1_800_000_000_000)
)

// clockTest is a clock whose system's clock and those of its peers are off by so
// many milliseconds.
type clockTest struct {
	*wallClock
	t     *testing.T
	mono  time.Duration
	skew  int64
	peers map[uint64]int64
}

func newClockTest(t *testing.T, peers map[uint64]int64) *clockTest {
	c := &clockTest{wallClock: newWallClock(testBound), t: t, peers: peers}
	c.meet()
	return c
}

// meet tells the clock who the peers are.
func (c *clockTest) meet() {
	var nodes []uint64
	for node := range c.peers {
		nodes = append(nodes, node)
	}
	c.SetPeers(nodes, c.mono)
}

func (c *clockTest) system() int64 { return wall0 + c.mono.Milliseconds() + c.skew }

// compare asks the peers for their time, which takes 2 ms.
func (c *clockTest) compare() {
	sent := c.mono
	c.mono += 2 * time.Millisecond
	for node, skew := range c.peers {
		c.Observe(node, wall0+(sent+time.Millisecond).Milliseconds()+skew, sent, c.mono)
	}
}

// off is how far the given time is from the right one, in milliseconds.
func (c *clockTest) off() int64 { return c.Now(c.system(), c.mono) - wall0 - c.mono.Milliseconds() }

func (c *clockTest) wantOff(what string, want int64) {
	c.t.Helper()
	if got := c.off(); got != want {
		c.t.Errorf("%s: the time is off by %d ms, want %d", what, got, want)
	}
}

func (c *clockTest) wantEligible(what string, want bool) {
	c.t.Helper()
	if ok, why := c.Eligible(c.system(), c.mono); ok != want || ok != (why == "") {
		c.t.Errorf("%s: eligible %v, want %v: %q", what, ok, want, why)
	}
}

// Broken: `c.peers != nil` in Now, `c.peers == nil` in Eligible.
func TestClockOfABrokerAloneIsTheSystems(t *testing.T) {
	c := newClockTest(t, nil)
	for _, skew := range []int64{0, year, -year, 0} {
		c.mono += time.Second
		c.skew = skew
		c.wantOff("alone", skew)
		c.wantEligible("alone", true)
	}
}

// Broken: the comparison in Now; `known == 0` there; `c.stepped` as the moment
// after which comparisons count; `stepped < 0`.
func TestClockHoldsAStepBack(t *testing.T) {
	for _, step := range []int64{year, -year, 501, -501} {
		c := newClockTest(t, map[uint64]int64{2: 10, 3: -10})
		c.compare()
		c.wantOff("before", 0)
		c.mono += 10 * time.Second
		c.skew = step
		c.wantOff("a step, and old comparisons", 0)
		c.compare()
		for range 3 {
			c.mono += time.Second
			c.wantOff("a step away from the others", 0)
		}
		c.wantEligible("its time is that of the others", true)
		c.peers = map[uint64]int64{2: step + 10, 3: step - 10} // all were wrong, and are mended
		c.mono += time.Second
		c.wantOff("a step, and no new comparison", 0)
		c.compare()
		c.wantOff("a step that the others have made, too", step)
		c.skew = step + 300
		c.mono += time.Millisecond
		c.wantOff("a small step", step+300)
	}
}

// Broken: `c.stepped = -1` when the time is believed again (Now).
func TestClockStepsTwice(t *testing.T) {
	c := newClockTest(t, map[uint64]int64{2: 0})
	c.wantOff("at first", 0)
	c.skew = 1000
	c.mono += time.Second
	c.wantOff("a step", 0)
	c.skew = 0
	c.wantOff("back again", 0)
	c.peers[2] = 5000
	c.compare()
	c.mono += time.Second
	c.skew = 5000
	c.wantOff("a step since the comparison", 0)
}

// Broken: `2*far > known` in Eligible; `2*far >= known` in Now.
func TestClockEligible(t *testing.T) {
	for _, test := range []struct {
		peers map[uint64]int64
		want  bool
	}{
		{map[uint64]int64{2: 499}, true},
		{map[uint64]int64{2: -502}, false},
		{map[uint64]int64{2: year}, false},
		{map[uint64]int64{2: math.MaxInt64 / 2}, false},
		{map[uint64]int64{2: year, 3: 0}, true}, // not more than half
		{map[uint64]int64{2: year, 3: -year}, false},
		{map[uint64]int64{2: year, 3: year, 4: 0}, false},
		{map[uint64]int64{2: year, 3: 0, 4: 0}, true},
	} {
		c := newClockTest(t, test.peers)
		c.off()
		c.compare()
		if ok, why := c.Eligible(c.system(), c.mono); ok != test.want {
			t.Errorf("%v: eligible %v, %s", test.peers, ok, why)
		}
	}
	if d := distance(math.MaxInt64, math.MinInt64); d < testBound {
		t.Errorf("the farthest that there is: %v", d)
	}
	c := newClockTest(t, map[uint64]int64{2: year, 3: 0})
	c.wantOff("at first", 0)
	c.mono += time.Second
	c.skew = year
	c.wantOff("a step", 0)
	c.compare()
	c.wantOff("a step that only half of the others have made", 0)
}

// Broken: clockPatience, clockMemory; `received-sent <= c.bound` in Observe;
// since in SetPeers.
func TestClockComparesWhatItCan(t *testing.T) {
	c := newClockTest(t, nil)
	c.mono = time.Minute
	c.peers = map[uint64]int64{2: year}
	c.meet()
	c.wantEligible("no comparison yet", false)
	c.mono += clockPatience
	c.wantEligible("nobody answers", true)
	c.compare()
	c.wantEligible("far away", false)
	c.mono += clockMemory + 1
	c.wantEligible("it is too long ago", true)

	sent := c.mono
	c.mono += testBound + 1
	c.Observe(2, wall0+year, sent, c.mono)
	c.wantEligible("that took too long", true)
	c.Observe(9, wall0+year, c.mono, c.mono)
	c.wantEligible("a stranger", true)

	c.compare()
	c.peers = map[uint64]int64{2: year, 3: 0}
	c.meet()
	c.wantEligible("a peer keeps what is known when another comes", false)
	c.peers = map[uint64]int64{3: 0}
	c.meet()
	c.wantEligible("the others are gone", true)
}

// Broken: the middle of the exchange in Observe, or its sign.
func TestClockComparesTheMiddle(t *testing.T) {
	c := newClockTest(t, map[uint64]int64{2: 0})
	c.off()
	for _, test := range []struct {
		off  int64
		want bool
	}{{500, true}, {501, false}, {-500, true}, {-501, false}} {
		sent := c.mono
		c.mono += 400 * time.Millisecond
		c.off()
		c.Observe(2, wall0+(sent+200*time.Millisecond).Milliseconds()+test.off, sent, c.mono)
		if ok, why := c.Eligible(c.system(), c.mono); ok != test.want {
			t.Errorf("off by %d ms: eligible %v, %s", test.off, ok, why)
		}
	}
}

// TestAhead: a peer's clock is ahead by what it showed, however long ago.
func TestAhead(t *testing.T) {
	t.Parallel()
	c := newWallClock(time.Second)
	c.SetPeers([]uint64{2}, 0)
	if c.Ahead(2, 1000, 0) != 0 || c.Ahead(3, 1000, 0) != 0 {
		t.Error("a clock that was not compared is ahead")
	}
	c.Observe(2, 5000, time.Second, time.Second)
	if got := c.Ahead(2, 6500, 3*time.Second); got != 500*time.Millisecond {
		t.Errorf("ahead by %v", got)
	}
	if got := c.Ahead(2, 6500+clockMemory.Milliseconds(), 3*time.Second+clockMemory); got != 0 {
		t.Errorf("ahead by %v, as it was long ago", got)
	}
}

// Broken: the sort in Offset; `known` there; high as ahead[len(ahead)-1].
func TestOffset(t *testing.T) {
	c := newClockTest(t, map[uint64]int64{2: 0, 3: 300, 4: year})
	want := func(what string, millis int64) {
		t.Helper()
		if got := c.Offset(c.system(), c.mono).Milliseconds(); got != millis {
			t.Errorf("%s: it is %d ms ahead, want %d", what, got, millis)
		}
	}
	want("nobody was asked", 0)
	c.compare()
	want("the middle one of three", -300)
	c.skew = 1000
	want("a second later", 700)
	c.peers = map[uint64]int64{2: 0, 3: 300}
	c.meet()
	want("between two", 850)
	c.mono += clockMemory + time.Second
	want("long ago", 0)
	c.peers = nil
	c.meet()
	want("alone", 0)
}
