package crashtest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/client"
)

const (
	// chaosFor is how long faults are made where FELIX_CHAOS_DURATION does not say.
	chaosFor = 30 * time.Second
	// answersWithin is how soon a cluster answers normally once all faults are over.
	answersWithin = 10 * time.Second
	// clientTimeout is how long a client waits for an answer: a broker that can give
	// none says so after a second.
	clientTimeout = 2 * time.Second
	// looseCache is a leader cache, beside the default one.
	looseCache = "loose"
	// settlesWithin bounds what still comes and goes after the faults: replicas of
	// brokers that were removed are copied to others, one by one.
	settlesWithin = 2 * time.Minute
)

// TestChaos is `make chaos`: three real brokers (or FELIX_CHAOS_NODES) with all that
// the nemesis does to them, under load through all their doors. After it the
// cluster answers again, an order explains what clients were told, sums are exact,
// and the replicas of each shard are the same, record by record. FELIX_CHAOS_SEED
// makes the same faults again, as far as time allows.
func TestChaos(t *testing.T) { inNetwork(t, buildWithKnobs, chaos) }

func chaos(t *testing.T, binary string) {
	duration, seed := chaosFor, rand.Uint64()
	var err error
	if s := os.Getenv("FELIX_CHAOS_DURATION"); s != "" {
		if duration, err = time.ParseDuration(s); err != nil {
			t.Fatalf("FELIX_CHAOS_DURATION: %v", err)
		}
	}
	if s := os.Getenv("FELIX_CHAOS_SEED"); s != "" {
		if seed, err = strconv.ParseUint(s, 10, 64); err != nil {
			t.Fatalf("FELIX_CHAOS_SEED: %v", err)
		}
	}
	reads := []string{"fence", "lease"}[seed%2]
	t.Logf("seed %d: %v of faults, reads by %s", seed, duration, reads)
	dir := t.TempDir()
	c := newCluster(t, binary, number(t, "FELIX_CHAOS_NODES", 3), "--insecure", "--request-timeout", "1s", "--checkpoint-interval", "500ms", "--reads", reads)
	c.network()
	w := newWires(t, seed)
	for _, m := range c.members {
		w.lead(m)
	}
	n := newNemesis(t, c, w, seed, dir)
	t.Cleanup(func() { // when all brokers have ended
		if t.Failed() {
			n.keep()
		}
		for _, v := range n.victims {
			v.disk.unmount()
		}
	})
	for _, v := range n.victims {
		v.run()
	}
	for _, m := range c.members {
		m.ready()
	}
	c.create(felix.DefaultCache, felix.CacheSettings{Shards: 4})
	c.create(looseCache, felix.CacheSettings{Shards: 2, Consistency: felix.Leader})
	l := n.load()
	began := c.terms()
	n.begin()
	n.sleep(duration)
	n.heal()
	n.answers(l.exact, time.Now())
	shards := n.settle(settlesWithin)
	l.check(n.present())
	t.Logf("%v of faults: %s; owners changed %d times", duration, n.told(), sumOfTerms(shards)-began)
	n.settle(settlesWithin)
	n.compare()
}

func sumOfTerms(shards []felix.ShardInfo) (sum uint64) {
	for _, s := range shards {
		sum += s.Term
	}
	return sum
}

// loads are the clients of a cluster under attack.
type loads struct {
	traffic      *traffic
	exact, loose *registers
}

// load lets clients work through all doors of all members, those that come later
// too.
func (n *nemesis) load() *loads {
	l := &loads{newTraffic(n.t), newRegisters(n.t, felix.DefaultCache, clientTimeout), newRegisters(n.t, looseCache, clientTimeout)}
	const think = 2 * time.Millisecond // brokers that are never idle would prove less on a small machine
	l.traffic.timeout, l.traffic.think = clientTimeout, think
	l.exact.pause, l.loose.pause, l.loose.loses = think, think, true
	through := func(m *member) {
		l.traffic.through(2, m)
		l.exact.through(openRedis, m, m, m)
		l.exact.through(openHTTP, m)
		l.loose.through(openRedis, m)
	}
	for _, m := range n.c.members {
		through(m)
	}
	n.joined = func(v *victim) { through(v.member) }
	return l
}

// check ends the load and checks all that was told.
func (l *loads) check(present []*victim) {
	l.traffic.t.Helper()
	var members []*member
	var exact, loose []door
	for _, v := range present {
		members = append(members, v.member)
		exact = append(exact, openRedis(l.exact, v.member), openHTTP(l.exact, v.member))
		loose = append(loose, openRedis(l.loose, v.member))
	}
	l.traffic.check(members...)
	l.exact.check(exact...)
	l.loose.check(loose...)
	for _, d := range append(exact, loose...) {
		d.close()
	}
}

// answers waits until every door of every member answers for keys of all shards,
// and checks how long after the end of the faults that is.
func (n *nemesis) answers(r *registers, healed time.Time) {
	n.t.Helper()
	within := answersWithin
	if !measured() {
		within *= 3 // others use the machine, too: a broker alone may take seconds to start
	}
	var all sync.WaitGroup
	for _, v := range n.present() {
		for _, open := range []func(*registers, *member) door{openRedis, openHTTP} {
			all.Go(func() {
				d := open(r, v.member)
				defer d.close()
				for k := range 32 { // of four shards
					for last := error(nil); ; {
						_, err := d.do(deed{verb: add, key: fmt.Sprint("healed:", k), arg: 1})
						if err == nil {
							if took := time.Since(healed); last != nil && took > answersWithin/2 {
								n.t.Logf("node %d answers after %v; before that: %v", v.id, took, last)
							}
							break
						}
						last = err
						if time.Since(healed) > within {
							n.t.Errorf("%v after the faults node %d answers: %v", time.Since(healed), v.id, err)
							return
						}
						time.Sleep(10 * time.Millisecond)
					}
				}
			})
		}
	}
	all.Wait()
	if n.t.Failed() {
		n.dump()
	}
	n.t.Logf("all doors answer %v after the faults", time.Since(healed))
}

// dump has all brokers end and write into their logs what they are at.
func (n *nemesis) dump() {
	n.t.Helper()
	for _, v := range n.present() {
		n.end(v, syscall.SIGQUIT)
	}
	n.t.Fatal("the logs that are kept have the stacks of all brokers")
}

// compare ends all brokers at the same time, when all replicas have everything, and
// compares what they have.
func (n *nemesis) compare() {
	n.t.Helper()
	var shards []felix.ShardInfo
	for at, deadline := "", time.Now().Add(patience); ; time.Sleep(time.Second) {
		before := at
		err := n.ask(rand.New(rand.NewPCG(n.seed, 97)), patience, func(ctx context.Context, c *client.Client) (err error) {
			shards, err = n.settled(ctx, c)
			return err
		})
		if err != nil || time.Now().After(deadline) {
			n.t.Fatalf("the cluster does not come to rest: %v; %s", err, at)
		}
		if at = positions(shards); at == before { // and nobody has written for a second
			break
		}
	}
	dirs := map[uint64]string{}
	for _, v := range n.present() {
		dirs[v.id] = v.dir
		b := v.now()
		n.mu.Lock()
		n.asked[b] = true
		n.mu.Unlock()
		_ = b.cmd.Process.Signal(syscall.SIGSTOP) // the same moment for all
	}
	for _, v := range n.present() {
		n.end(v, syscall.SIGKILL)
	}
	compareReplicas(n.t, shards, dirs)
}

// positions are how far all replicas are.
func positions(shards []felix.ShardInfo) string {
	var all strings.Builder
	for _, s := range shards {
		for _, r := range s.Replicas {
			fmt.Fprintf(&all, "%d/%d: %d of %d ", s.ID, r.Node, r.Match, s.Commit)
		}
	}
	return all.String()
}
