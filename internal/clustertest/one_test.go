package clustertest

import (
	"testing"

	"github.com/felix-go/felix"
)

// TestOneBroker proves the harness: a broker alone crashes and stops under load,
// and everything that was answered is there.
func TestOneBroker(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1, nil)
	c.create(1, "main", felix.CacheSettings{Shards: 2, Replication: 1})
	l := c.startLoad("main", 4, 1)
	for range 3 {
		l.advance(200)
		c.crash(1)
		c.start(1)
		l.advance(200)
		c.stop(1)
		c.start(1)
	}
	l.advance(100)
	l.check(1)
	if l.errors()[felix.OutcomeUnknown] == 0 {
		t.Error("no outcome was ever unknown: the crashes hit nothing")
	}
}
