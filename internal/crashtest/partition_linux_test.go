package crashtest

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/felix-go/felix"
)

// TestPartitions takes the network between brokers apart: each from each, one way
// only, one from both others, and with packets that are lost at random. Whatever
// clients are told is true, and when the network is whole again all is well.
func TestPartitions(t *testing.T) { inNetwork(t, build, partition) }

// partition is the test, inside the namespaces.
func partition(t *testing.T, binary string) {
	c := newCluster(t, binary, 3, "--insecure", "--request-timeout", "2s")
	c.network()
	c.form(felix.CacheSettings{Shards: 4})
	y := newTraffic(t)
	y.through(3, c.members...)
	y.advance(500)
	const split, whole = 1500 * time.Millisecond, 500 * time.Millisecond
	for range number(t, "FELIX_PARTITION_ROUNDS", 1) {
		order := rand.Perm(len(c.members))
		m, next := c.members[order[0]], c.members[order[1]]
		for _, s := range []struct {
			name string
			cut  func()
		}{
			{fmt.Sprintf("%d and %d apart", m.id, next.id), func() { m.drop(next, ""); next.drop(m, "") }},
			{fmt.Sprintf("%d does not hear %d", m.id, next.id), func() { m.drop(next, "") }},
			{fmt.Sprintf("%d does not hear %d", next.id, m.id), func() { next.drop(m, "") }},
			{fmt.Sprintf("%d alone", m.id), func() {
				for _, o := range m.others() {
					m.drop(o, "")
					o.drop(m, "")
				}
			}},
			{fmt.Sprintf("%d hears nobody", m.id), func() {
				for _, o := range m.others() {
					m.drop(o, "")
				}
			}},
			{"a third of all packets is lost", func() {
				for _, a := range c.members {
					for _, b := range a.others() {
						a.drop(b, "-m statistic --mode random --probability 0.3")
					}
				}
			}},
		} {
			s.cut()
			time.Sleep(split)
			n := y.answered()
			c.heal()
			time.Sleep(whole)
			t.Logf("%v: %s: %d answered by then", time.Since(y.start).Round(time.Millisecond), s.name, n)
		}
	}
	y.advance(500)
	y.check(c.members...)
}
