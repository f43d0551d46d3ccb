package clustertest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/felix-go/felix"
)

// place is a step that a node's broker takes.
type place struct {
	node uint64
	step string
}

// steps notes every step that brokers take from now on.
func (c *cluster) steps() func() []place {
	var mu sync.Mutex
	var all []place // each once
	note := func(at *incarnation, step string) {
		mu.Lock()
		defer mu.Unlock()
		if p := (place{at.node.id, step}); !slices.Contains(all, p) {
			all = append(all, p)
		}
	}
	for _, n := range c.all() {
		n.step.Store(&note)
	}
	return func() []place {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(all)
	}
}

// trap crashes the first broker that comes to a step.
type trap struct {
	step    string
	crashed chan uint64 // gets its node

	mu   sync.Mutex
	shut bool // it has crashed one, or shall not any more
}

// trapAt sets a trap at the nodes.
func (c *cluster) trapAt(step string, nodes ...*node) *trap {
	r := &trap{step: step, crashed: make(chan uint64, 1)}
	f := func(at *incarnation, now string) {
		r.mu.Lock()
		defer r.mu.Unlock()
		if now == r.step && !r.shut {
			r.shut = true
			at.crash()
			r.crashed <- at.node.id
		}
	}
	for _, n := range nodes {
		n.step.Store(&f)
	}
	return r
}

// disarm lets brokers pass from now on.
func (r *trap) disarm() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.shut {
		r.shut = true
		close(r.crashed)
	}
}

// identity is what a node's felix.json says.
func (n *node) identity() (id struct {
	StoreID   string `json:"store_id"`
	ClusterID string `json:"cluster_id"`
	Formed    bool   `json:"formed"`
}) {
	n.c.t.Helper()
	n.mu.Lock()
	d := n.disk
	n.mu.Unlock()
	f, err := d.Open("data/felix.json")
	if err != nil {
		n.c.t.Fatal(err)
	}
	text, err := io.ReadAll(f)
	if err = errors.Join(err, f.Close(), json.Unmarshal(text, &id)); err != nil {
		n.c.t.Fatal(err)
	}
	return id
}

// oneCluster checks that all nodes belong to one.
func (c *cluster) oneCluster() {
	c.t.Helper()
	id := c.node(1).identity().ClusterID
	for _, n := range c.all() {
		if mine := n.identity(); mine.ClusterID != id || !mine.Formed || id == "" {
			c.t.Errorf("node %d is of the cluster %q, formed %v; node 1 of %q", n.id, mine.ClusterID, mine.Formed, id)
		}
	}
}

// TestFormationCrashes crashes each founder at each step of forming a cluster.
// Started again, they form one.
func TestFormationCrashes(t *testing.T) {
	t.Parallel()
	dry := newCluster(t, 3, nil)
	told := dry.steps()
	dry.start(1, 2, 3)
	dry.ready(1, 2, 3)
	places := told()
	t.Logf("%v", places)
	if len(places) < 6 {
		t.Errorf("only the steps %v were told", places)
	}
	for _, p := range places {
		t.Run(fmt.Sprintf("node %d at %s", p.node, p.step), func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, 3, nil)
			trap := c.trapAt(p.step, c.node(p.node))
			var all sync.WaitGroup
			all.Go(func() { // who is restarted is awaited below
				<-trap.crashed
				c.start(p.node)
			})
			c.start(1, 2, 3)
			all.Wait()
			c.ready(1, 2, 3)
			c.oneCluster()
			c.create(p.node, "main", felix.CacheSettings{})
			for _, id := range c.ids() {
				must(t, c.cache(id, "main"), felix.Op{Kind: felix.Add, Key: []byte("k"), Int: 1})
			}
		})
	}
}

// wipe makes a node's disk an empty one.
func (n *node) wipe() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.disk = newDisk(vfs.NewCrashableMem())
}

// startWithin starts brokers for so long, and answers what each ended with; nil
// is to serve.
func (c *cluster) startWithin(timeout time.Duration, ids ...uint64) map[uint64]error {
	errs := map[uint64]error{}
	var mu sync.Mutex
	var all sync.WaitGroup
	for _, id := range ids {
		all.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), timeout)
			defer cancel()
			err := c.node(id).open(ctx)
			mu.Lock()
			defer mu.Unlock()
			errs[id] = err
		})
	}
	all.Wait()
	return errs
}

// TestWipedFounders: brokers whose directories were lost after their cluster was
// formed cannot form another one, whether the one that is left is there or not.
func TestWipedFounders(t *testing.T) {
	for _, wiped := range [][]uint64{{1}, {3}, {1, 2}, {2, 3}, {1, 3}} {
		for _, rest := range []bool{true, false} {
			t.Run(fmt.Sprintf("wiped %v, the rest up %v", wiped, rest), func(t *testing.T) {
				t.Parallel()
				c := startCluster(t, 3, nil)
				c.create(1, "main", felix.CacheSettings{})
				must(t, c.cache(1, "main"), felix.Op{Kind: felix.Add, Key: []byte("k"), Int: 1})
				left := slices.DeleteFunc(c.ids(), func(id uint64) bool { return slices.Contains(wiped, id) })
				cluster := c.node(left[0]).identity().ClusterID
				for _, id := range c.ids() {
					if slices.Contains(wiped, id) || !rest {
						c.crash(id)
					}
				}
				for _, id := range wiped {
					c.node(id).wipe()
				}
				for id, err := range c.startWithin(2*time.Second, wiped...) {
					if err == nil {
						t.Errorf("node %d serves on an empty directory, as cluster %s; its cluster was %s", id, c.node(id).identity().ClusterID, cluster)
					} else if rest && !strings.Contains(err.Error(), fmt.Sprintf("felixctl node rm %d", id)) {
						t.Errorf("node %d: %v; it should say what to do", id, err)
					}
				}
				if len(left) == 2 && !rest {
					c.start(left...)
				}
				if len(left) == 2 {
					eventually(t, "the others serve", func() error {
						r := doOne(c.cache(left[0], "main"), felix.Op{Kind: felix.Get, Key: []byte("k")})
						if r.Err != nil || r.Int != 1 {
							return fmt.Errorf("%d, error %v", r.Int, r.Err)
						}
						return nil
					})
				}
			})
		}
	}
}
