package crashtest

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/client"
)

// nemesis does everything to a cluster that it has to bear, several things at the
// same time. Each kind of fault has a lane of its own, where one fault follows the
// other; which they are, whom they hit and how long they take comes from the seed,
// and what the moment makes of it does not.
type nemesis struct {
	t     *testing.T
	c     *cluster
	w     *wires
	seed  uint64
	start time.Time
	size  int // members that the cluster shall have
	// dir has a directory for each member, with a disk of its own.
	dir   string
	stop  chan struct{} // closed when the faults are to end
	lanes sync.WaitGroup
	// joined is told of a member that is new.
	joined func(*victim)

	mu       sync.Mutex
	victims  []*victim
	schedule []string
	counts   map[string]int
	asked    map[*broker]bool // to end
}

// victim is a member as the nemesis knows it.
type victim struct {
	*member
	n    *nemesis
	disk *disk
	busy bool // guarded by n.mu: a lane plays with its process
	// mayGo says that the cluster was asked to remove it; guarded by n.mu.
	mayGo bool
	// draining is the same for a drain.
	draining bool

	mu      sync.Mutex
	skew    int64     // milliseconds
	brokers []*broker // one after the other
	filled  bool      // the disk was full while the last of them ran
}

// diskSize is that of each member: what an hour of this load takes, and more.
const diskSize = "512m"

func newNemesis(t *testing.T, c *cluster, w *wires, seed uint64, dir string) *nemesis {
	n := &nemesis{t: t, c: c, w: w, seed: seed, start: time.Now(), size: len(c.members), dir: dir, stop: make(chan struct{}),
		counts: map[string]int{}, asked: map[*broker]bool{}, joined: func(*victim) {}}
	for _, m := range c.members {
		n.adopt(m)
	}
	return n
}

// adopt gives the member a disk.
func (n *nemesis) adopt(m *member) *victim {
	dir := filepath.Join(n.dir, fmt.Sprint("node-", m.id))
	if err := os.Mkdir(dir, 0o755); err != nil {
		n.t.Fatal(err)
	}
	v := &victim{member: m, n: n, disk: mountAt(n.t, dir, diskSize)}
	m.dir = filepath.Join(dir, "data")
	n.mu.Lock()
	n.victims = append(n.victims, v)
	n.mu.Unlock()
	return v
}

// note takes down what is done, and counts it.
func (n *nemesis) note(kind, format string, args ...any) {
	line := fmt.Sprintf("%8.3f s: %s: %s", time.Since(n.start).Seconds(), kind, fmt.Sprintf(format, args...))
	n.t.Log(line)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.schedule = append(n.schedule, line)
	n.counts[kind]++
}

// present are the members that the cluster was not asked to remove.
func (n *nemesis) present() (all []*victim) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, v := range n.victims {
		if !v.removed.Load() {
			all = append(all, v)
		}
	}
	return all
}

// sleep lets time pass, and says whether the faults go on.
func (n *nemesis) sleep(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-n.stop:
		return false
	}
}

// between is a random duration.
func between(rng *rand.Rand, least, most time.Duration) time.Duration {
	return least + time.Duration(rng.Int64N(int64(most-least)))
}

// lane has faults follow each other, with pauses of up to gap.
func (n *nemesis) lane(number uint64, gap time.Duration, faults ...func(*rand.Rand)) {
	rng := rand.New(rand.NewPCG(n.seed, number))
	n.lanes.Go(func() {
		for n.sleep(between(rng, gap/10, gap)) {
			faults[rng.IntN(len(faults))](rng)
		}
	})
}

// begin lets all lanes run. The cluster is to be hurt, and yet to answer most of the
// time: what is never acknowledged cannot be lost.
func (n *nemesis) begin() {
	n.lane(1, 4*time.Second, n.kill, n.kill, n.pause, n.restart, n.full)
	n.lane(2, 20*time.Second, n.kill, n.pause, n.restart)
	n.lane(3, 3*time.Second, n.part, n.deafen, n.isolate, n.isolate, n.silence, n.lose)
	n.lane(4, 6*time.Second, n.delay, n.delayOne, n.cut)
	n.lane(5, 4*time.Second, n.skewed)
	n.lane(6, 6*time.Second, n.slowDisk)
	n.lane(7, 8*time.Second, n.drain, n.replace, n.rolling)
}

// pick is a member whose process nobody plays with, to play with it; nil if there
// is none.
func (n *nemesis) pick(rng *rand.Rand) *victim {
	n.mu.Lock()
	defer n.mu.Unlock()
	var free []*victim
	for _, v := range n.victims {
		if !v.busy && !v.removed.Load() {
			free = append(free, v)
		}
	}
	if len(free) == 0 {
		return nil
	}
	v := free[rng.IntN(len(free))]
	v.busy = true
	return v
}

func (n *nemesis) release(v *victim) {
	n.mu.Lock()
	defer n.mu.Unlock()
	v.busy = false
}

// any are some members in random order.
func (n *nemesis) any(rng *rand.Rand) []*victim {
	all := n.present()
	rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all
}

// run starts the member's process, with the clock that it has.
func (v *victim) run() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.env = []string{fmt.Sprint("FELIX_TEST_SKEW=", v.skew)}
	cmd := v.command()
	knobs, err := cmd.StdinPipe()
	if err != nil {
		v.n.t.Fatal(err)
	}
	v.knobs, v.filled = knobs, false
	v.b = run(v.n.t, cmd)
	v.brokers = append(v.brokers, v.b)
	go v.n.watch(v, v.b)
}

// now is the broker that runs, or was the last to run.
func (v *victim) now() *broker {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.b
}

// ended says whether that one has ended.
func (v *victim) ended() bool {
	select {
	case <-v.now().ended:
		return true
	default:
		return false
	}
}

const wasRemoved = "was removed from this cluster"

// watch complains of a broker that ends without being asked.
func (n *nemesis) watch(v *victim, b *broker) {
	<-b.ended
	n.mu.Lock()
	asked, mayGo := n.asked[b], v.mayGo
	n.mu.Unlock()
	v.mu.Lock()
	filled := v.filled
	v.mu.Unlock()
	switch text := b.text(); {
	case asked:
	case filled && strings.Contains(text, noSpace):
		n.note("ended", "node %d, its disk is full", v.id)
	case mayGo && strings.Contains(text, wasRemoved):
		v.removed.Store(true)
		n.note("ended", "node %d, it was removed", v.id)
	default:
		n.t.Errorf("node %d has ended, and nobody has asked it to:\n%s", v.id, text)
	}
}

// end has the process end by a signal.
func (n *nemesis) end(v *victim, with syscall.Signal) *broker {
	b := v.now()
	n.mu.Lock()
	n.asked[b] = true
	n.mu.Unlock()
	_ = b.cmd.Process.Signal(with) // it may have ended
	b.wait()
	return b
}

// playWith calls play with a member's process, unless that is not there.
func (n *nemesis) playWith(rng *rand.Rand, play func(v *victim)) {
	v := n.pick(rng)
	if v == nil {
		return
	}
	defer n.release(v)
	if !v.ended() {
		play(v)
	}
	if v.ended() && !v.gone() {
		v.run()
	}
}

// gone says whether the member has ended because it was removed.
func (v *victim) gone() bool { return strings.Contains(v.now().text(), wasRemoved) }

func (n *nemesis) kill(rng *rand.Rand) {
	n.playWith(rng, func(v *victim) {
		down := between(rng, 0, 2*time.Second)
		n.note("kill", "node %d, for %v", v.id, down)
		n.end(v, syscall.SIGKILL)
		n.sleep(down)
	})
}

func (n *nemesis) pause(rng *rand.Rand) {
	n.playWith(rng, func(v *victim) {
		span, b := between(rng, 50*time.Millisecond, 3*time.Second), v.now()
		n.note("pause", "node %d, for %v", v.id, span)
		_ = b.cmd.Process.Signal(syscall.SIGSTOP) // it may have ended
		n.sleep(span)
		_ = b.cmd.Process.Signal(syscall.SIGCONT) // it may have ended
	})
}

func (n *nemesis) restart(rng *rand.Rand) {
	n.playWith(rng, func(v *victim) {
		n.note("restart", "node %d", v.id)
		n.terminate(v)
	})
}

// terminate ends the process as a service manager does. One that has said nothing
// yet has just been started, and does not listen to signals either.
func (n *nemesis) terminate(v *victim) {
	b := n.end(v, syscall.SIGTERM)
	if code, text := b.cmd.ProcessState.ExitCode(), b.text(); code != 0 && text != "" && !strings.Contains(text, wasRemoved) {
		n.t.Errorf("node %d: after SIGTERM the exit status is %d:\n%s", v.id, code, text)
	}
}

// rolling restarts all, one after the other.
func (n *nemesis) rolling(rng *rand.Rand) {
	for range n.present() {
		n.playWith(rng, func(v *victim) {
			n.note("rolling restart", "node %d", v.id)
			n.terminate(v)
		})
		if !n.sleep(time.Second) {
			return
		}
	}
}

// full takes all room on the disk away. The broker ends when it finds out.
func (n *nemesis) full(rng *rand.Rand) {
	n.playWith(rng, func(v *victim) {
		n.note("full disk", "node %d", v.id)
		v.mu.Lock()
		v.filled = true
		v.mu.Unlock()
		release := v.disk.fill(rng.Int64N(64 << 10))
		select {
		case <-v.now().ended:
		case <-time.After(3 * time.Second):
		}
		release()
	})
}

// part takes two members apart.
func (n *nemesis) part(rng *rand.Rand) {
	all, span := n.any(rng), between(rng, 300*time.Millisecond, 3*time.Second)
	n.note("partition", "%d and %d, for %v", all[0].id, all[1].id, span)
	all[0].drop(all[1].member, "")
	all[1].drop(all[0].member, "")
	n.whole(span)
}

// deafen keeps a member from hearing another one.
func (n *nemesis) deafen(rng *rand.Rand) {
	all, span := n.any(rng), between(rng, 300*time.Millisecond, 3*time.Second)
	n.note("one-way partition", "%d does not hear %d, for %v", all[0].id, all[1].id, span)
	all[0].drop(all[1].member, "")
	n.whole(span)
}

// isolate takes a member apart from all others.
func (n *nemesis) isolate(rng *rand.Rand) {
	all, span := n.any(rng), between(rng, 300*time.Millisecond, 3*time.Second)
	n.note("isolated", "%d, for %v", all[0].id, span)
	for _, o := range all[1:] {
		all[0].drop(o.member, "")
		o.drop(all[0].member, "")
	}
	n.whole(span)
}

// silence keeps all others from hearing a member.
func (n *nemesis) silence(rng *rand.Rand) {
	all, span := n.any(rng), between(rng, 300*time.Millisecond, 3*time.Second)
	n.note("one-way partition", "nobody hears %d, for %v", all[0].id, span)
	for _, o := range all[1:] {
		o.drop(all[0].member, "")
	}
	n.whole(span)
}

// lose loses packets at random.
func (n *nemesis) lose(rng *rand.Rand) {
	all, span, share := n.any(rng), between(rng, 300*time.Millisecond, 3*time.Second), 0.02+0.3*rng.Float64()
	n.note("packet loss", "%.2f of all packets, for %v", share, span)
	for _, a := range all {
		for _, b := range all {
			if a != b {
				a.drop(b.member, fmt.Sprintf("-m statistic --mode random --probability %.3f", share))
			}
		}
	}
	n.whole(span)
}

// whole makes the network whole after some time.
func (n *nemesis) whole(after time.Duration) {
	n.sleep(after)
	n.mu.Lock()
	all := slices.Clone(n.victims)
	n.mu.Unlock()
	for _, v := range all {
		v.hear()
	}
}

// delay makes everything between brokers late.
func (n *nemesis) delay(rng *rand.Rand) {
	all, span := n.any(rng), between(rng, time.Second, 5*time.Second)
	d := delay{between(rng, 0, 60*time.Millisecond), between(rng, time.Millisecond, 100*time.Millisecond)}
	n.note("delay", "everywhere, %v and up to %v more, for %v", d.atLeast, d.spread, span)
	for _, a := range all {
		for _, b := range all {
			n.w.slow(a.member, b.member, d)
		}
	}
	n.sleep(span)
	n.w.calm()
}

// delayOne makes what one member sends late, for some of the others more so than
// an election takes.
func (n *nemesis) delayOne(rng *rand.Rand) {
	all, span := n.any(rng), between(rng, time.Second, 5*time.Second)
	d := delay{between(rng, 0, 500*time.Millisecond), between(rng, time.Millisecond, time.Second)}
	n.note("delay", "of what %d sends, %v and up to %v more, for %v", all[0].id, d.atLeast, d.spread, span)
	for _, o := range all[1:] {
		n.w.slow(all[0].member, o.member, d)
	}
	n.sleep(span)
	n.w.calm()
}

// cut ends connections, in the middle of what they carry.
func (n *nemesis) cut(rng *rand.Rand) {
	all := n.any(rng)
	n.note("cut", "%d connections between %d and %d", n.w.cut(all[0].member, all[1].member), all[0].id, all[1].id)
}

// skewed makes a clock wrong, by little, so that nobody minds, or by much. It is one
// at a time: which of two clocks is right, nobody can know.
func (n *nemesis) skewed(rng *rand.Rand) {
	v, span := n.any(rng)[0], between(rng, time.Second, 6*time.Second)
	by := between(rng, 50*time.Millisecond, 400*time.Millisecond)
	switch rng.IntN(4) {
	case 0:
		by = between(rng, time.Second, time.Hour)
	case 1:
		by = between(rng, time.Hour, 365*24*time.Hour)
	}
	if rng.IntN(2) == 0 {
		by = -by
	}
	n.note("clock", "node %d by %v, for %v", v.id, by, span)
	v.setSkew(by.Milliseconds())
	n.sleep(span)
	v.setSkew(0)
}

func (v *victim) setSkew(millis int64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.skew = millis
	v.turn("skew", millis)
}

// slowDisk makes each sync of a member late.
func (n *nemesis) slowDisk(rng *rand.Rand) {
	v, span, by := n.any(rng)[0], between(rng, time.Second, 5*time.Second), between(rng, 5*time.Millisecond, 150*time.Millisecond)
	n.note("slow disk", "node %d: each sync takes %v more, for %v", v.id, by, span)
	v.setSync(by)
	n.sleep(span)
	v.setSync(0)
}

// setSync ends with the process, too.
func (v *victim) setSync(by time.Duration) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.turn("sync", by.Milliseconds())
}

// ask asks the members in turn, until one says yes, for some time.
func (n *nemesis) ask(rng *rand.Rand, patience time.Duration, what func(context.Context, *client.Client) error) (err error) {
	for deadline := time.Now().Add(patience); ; {
		v := n.any(rng)[0]
		c, cerr := client.New(client.Options{Brokers: []string{v.http}, Timeout: 3 * time.Second})
		if cerr != nil {
			return cerr
		}
		err = what(context.Background(), c)
		c.Close()
		if err == nil || time.Now().After(deadline) {
			return err
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// drain empties a member, and lets it have replicas again.
func (n *nemesis) drain(rng *rand.Rand) {
	v, span := n.any(rng)[0], between(rng, time.Second, 6*time.Second)
	n.setDraining(v, true)
	err := n.ask(rng, 5*time.Second, func(ctx context.Context, c *client.Client) error {
		_, err := c.NodeDrain(ctx, v.id, true)
		return err
	})
	n.note("drain", "node %d, for %v: error %v", v.id, span, err)
	n.sleep(span)
	n.undrain(rng, v)
}

func (n *nemesis) setDraining(v *victim, is bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	v.draining = is
}

// undrain ends a drain, if it can.
func (n *nemesis) undrain(rng *rand.Rand, v *victim) {
	err := n.ask(rng, 5*time.Second, func(ctx context.Context, c *client.Client) error {
		_, err := c.NodeDrain(ctx, v.id, false)
		return err
	})
	n.note("drain ends", "node %d: error %v", v.id, err)
	n.setDraining(v, err != nil)
}

// replace has a new member join, and another one removed, dead or alive.
func (n *nemesis) replace(rng *rand.Rand) {
	if len(n.present()) > n.size+1 {
		n.drain(rng) // the last one is still there
		return
	}
	n.join()
	old := n.pick(rng)
	if old == nil {
		return
	}
	defer n.release(old)
	dead := rng.IntN(2) == 0 && !old.ended()
	if dead {
		n.end(old, syscall.SIGKILL)
	}
	n.mu.Lock()
	old.mayGo = true
	n.mu.Unlock()
	err := n.ask(rng, 10*time.Second, func(ctx context.Context, c *client.Client) error {
		_, err := c.NodeRemove(ctx, old.id)
		return err
	})
	n.note("remove", "node %d, dead: %v: error %v", old.id, dead, err)
	if err == nil {
		old.removed.Store(true)
	} else if old.ended() && !old.gone() {
		old.run()
	}
}

// join adds a member to the cluster.
func (n *nemesis) join() {
	var seeds []string
	for _, v := range n.present() {
		seeds = append(seeds, v.peer)
	}
	n.mu.Lock()
	m := &member{c: n.c, id: uint64(len(n.victims) + 1), join: strings.Join(seeds, ",")}
	n.c.members = append(n.c.members, m)
	n.mu.Unlock()
	m.plug()
	n.w.lead(m)
	v := n.adopt(m)
	n.note("join", "node %d", m.id)
	v.run()
	n.joined(v)
}

// heal ends all faults.
func (n *nemesis) heal() {
	close(n.stop)
	n.lanes.Wait()
	for _, v := range n.present() {
		if v.ended() && !v.gone() {
			v.run()
		}
		n.mu.Lock()
		draining := v.draining
		n.mu.Unlock()
		if draining {
			n.lanes.Go(func() { n.undrain(rand.New(rand.NewPCG(n.seed, 100+v.id)), v) })
		}
	}
	n.whole(0)
	n.w.calm()
}

// settled says what is still to be done before every replica has everything and
// nobody is to come or go.
func (n *nemesis) settled(ctx context.Context, c *client.Client) ([]felix.ShardInfo, error) {
	nodes, err := c.Nodes(ctx)
	if err != nil {
		return nil, err
	}
	for _, node := range nodes {
		if node.State != felix.NodeActive && node.State != felix.NodeRemoved || node.State == felix.NodeActive && !node.Up {
			return nil, fmt.Errorf("node %d is %s, up %v: %s", node.ID, node.State, node.Up, node.Waiting)
		}
	}
	shards, err := c.Shards(ctx)
	if err != nil {
		return nil, err
	}
	for _, s := range shards {
		for _, r := range s.Replicas {
			if r.Want != r.Have || r.Lag != 0 || !r.Active || r.Snapshot != nil || s.Owner == 0 {
				return nil, fmt.Errorf("shard %d, owned by %d: %+v", s.ID, s.Owner, r)
			}
		}
	}
	return shards, nil
}

// settle waits for that.
func (n *nemesis) settle(within time.Duration) (shards []felix.ShardInfo) {
	n.t.Helper()
	rng := rand.New(rand.NewPCG(n.seed, 98))
	err := n.ask(rng, within, func(ctx context.Context, c *client.Client) (err error) {
		shards, err = n.settled(ctx, c)
		return err
	})
	if err != nil {
		n.t.Fatalf("after %v it is not settled: %v", within, err)
	}
	return shards
}

// keep writes what is needed to look into a failure to a directory that stays.
func (n *nemesis) keep() {
	dir, err := os.MkdirTemp(os.Getenv("FELIX_CHAOS_KEEP"), fmt.Sprintf("felix-chaos-%d-", n.seed))
	if err != nil {
		n.t.Errorf("nothing is kept: %v", err)
		return
	}
	for _, v := range n.victims {
		to := filepath.Join(dir, fmt.Sprint("node-", v.id))
		if err := os.CopyFS(to, os.DirFS(v.disk.dir)); err != nil {
			n.t.Errorf("keeping %s: %v", to, err)
		}
		for i, b := range v.brokers {
			if err := os.WriteFile(filepath.Join(to, fmt.Sprintf("log-%d.txt", i+1)), []byte(b.text()), 0o644); err != nil {
				n.t.Errorf("keeping a log: %v", err)
			}
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "schedule.txt"), []byte(strings.Join(n.schedule, "\n")+"\n"), 0o644); err != nil {
		n.t.Errorf("keeping the schedule: %v", err)
	}
	n.t.Logf("seed %d; logs, data and the schedule are in %s; the schedule:\n%s", n.seed, dir, strings.Join(n.schedule, "\n"))
}

// told is how often each fault was made.
func (n *nemesis) told() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	var all []string
	for _, kind := range slices.Sorted(maps.Keys(n.counts)) {
		all = append(all, fmt.Sprintf("%s %d", kind, n.counts[kind]))
	}
	return strings.Join(all, ", ")
}
