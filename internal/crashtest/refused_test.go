package crashtest

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/felix-go/felix"
)

// TestLostDirectoryIsRefused: a broker whose directory was lost is told what to
// do, by itself or with another one, and the cluster goes on.
func TestLostDirectoryIsRefused(t *testing.T) {
	c := startCluster(t, build(t), 3, felix.CacheSettings{Shards: 1})
	y := newTraffic(t)
	y.through(2, c.members[0])
	lost := c.members[2]
	lost.b.stop()
	if err := os.RemoveAll(lost.dir); err != nil {
		t.Fatal(err)
	}
	lost.start()
	lost.b.failed(fmt.Sprintf("felixctl node rm %d", lost.id))
	y.advance(200)
	y.check(c.members[:2]...)
}

// TestTwoOfThreeWipedFormNoCluster: brokers that were wiped and started with the
// same --peers do not become another cluster, whether the third is there or not.
func TestTwoOfThreeWipedFormNoCluster(t *testing.T) {
	binary := build(t)
	for _, third := range []bool{true, false} {
		t.Run(fmt.Sprint("the third is up: ", third), func(t *testing.T) {
			c := startCluster(t, binary, 3, felix.CacheSettings{Shards: 1})
			for _, m := range c.members {
				if m.id != 2 || !third {
					m.b.stop()
				}
			}
			wiped := []*member{c.members[0], c.members[2]}
			for _, m := range wiped {
				if err := os.RemoveAll(m.dir); err != nil {
					t.Fatal(err)
				}
				m.start()
			}
			if third {
				for _, m := range wiped {
					m.b.failed(fmt.Sprintf("felixctl node rm %d", m.id))
				}
				return
			}
			for _, m := range wiped { // they wait for it
				select {
				case addr := <-m.b.up:
					t.Errorf("node %d serves, at %s, on an empty directory:\n%s", m.id, addr, m.b.text())
				case <-m.b.ended:
					t.Errorf("node %d has ended:\n%s", m.id, m.b.text())
				case <-time.After(2 * time.Second):
				}
				if text := m.b.text(); !strings.Contains(text, "node 2 at "+c.members[1].peer) {
					t.Errorf("node %d does not say whom it waits for:\n%s", m.id, text)
				}
			}
		})
	}
}

// TestCopiedDirectoryIsRefused: a copy of a broker's directory cannot act beside
// it.
func TestCopiedDirectoryIsRefused(t *testing.T) {
	c := startCluster(t, build(t), 3, felix.CacheSettings{Shards: 1})
	y := newTraffic(t)
	y.through(2, c.members...)
	y.advance(200)
	original := c.members[1]
	y.pause(original)
	original.b.stop() // a consistent copy can only be made of a directory at rest
	addrs := freeAddrs(t, 3)
	copied := &member{c: c, id: original.id, dir: original.dir + "-copy", peer: addrs[0], resp: addrs[1], http: addrs[2]}
	if err := os.CopyFS(copied.dir, os.DirFS(original.dir)); err != nil {
		t.Fatal(err)
	}
	original.start()
	original.ready()
	y.resume(original)
	copied.start()
	copied.b.failed("another process", "an old copy")
	y.advance(200)
	y.check(c.members...)
}
