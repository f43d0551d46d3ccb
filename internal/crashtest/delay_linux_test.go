package crashtest

import (
	"context"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/felix-go/felix"
)

// TestDelayedPeers has brokers that are far from each other: every message is up
// to 100 ms late, another time in every connection, so that calls, Raft's messages
// and what comes back overtake each other. Owners stay owners, and as long as
// they do, no request fails; what clients are told stays true when connections
// are cut under way, and when an owner is killed.
func TestDelayedPeers(t *testing.T) { inNetwork(t, build, delayed) }

// far is the delay: a message and its answer take 100 to 200 ms, of the 500 to
// 1000 ms after which a follower that hears nothing wants to be the owner.
var far = delay{atLeast: 50 * time.Millisecond, spread: 50 * time.Millisecond}

func delayed(t *testing.T, binary string) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	c := newCluster(t, binary, 3, "--insecure")
	c.network()
	w := newWires(t, seed)
	for _, m := range c.members {
		w.lead(m)
	}
	c.form(felix.CacheSettings{Shards: 4})
	if w.carried() == 0 {
		t.Fatal("no connection goes through the wires: nothing is tested")
	}
	y := newTraffic(t)
	y.through(8, c.members...)
	y.advance(200)
	before := c.terms()
	for _, m := range c.members {
		for _, o := range m.others() {
			w.slow(m, o, far)
		}
	}
	failed := y.failures()
	moment := time.Now()
	y.advance(400)
	if span := 3*time.Second - time.Since(moment); span > 0 { // a follower's patience, several times
		time.Sleep(span)
	}
	elections := c.terms() - before
	t.Logf("for %v everything between brokers was late: %d owners changed, %d requests failed", time.Since(moment), elections, y.failures()-failed)
	// None should; but this machine may have kept a process waiting. In a storm
	// each of the five shards changes its owner every second.
	if elections > 5 {
		t.Errorf("the owners of five shards changed %d times", elections)
	}
	if elections == 0 && y.failures() != failed {
		t.Errorf("no owner has changed, and yet requests failed: %v", y.errors)
	}
	for range 3 {
		for _, m := range c.members {
			w.cut(m, m.others()[0])
		}
		y.advance(50)
	}
	owner := c.owner()
	owner.b.kill()
	y.advance(100)
	owner.start()
	owner.ready()
	w.calm()
	y.advance(200)
	y.check(c.members...)
}

// terms is how often, at most, shards got another owner.
func (c *cluster) terms() (sum uint64) {
	c.t.Helper()
	shards, err := c.members[0].admin().Shards(context.Background())
	if err != nil {
		c.t.Fatal(err)
	}
	for _, s := range shards {
		sum += s.Term
	}
	return sum
}
