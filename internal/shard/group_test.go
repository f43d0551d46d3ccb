package shard

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/record"
)

// Each test of groups says which line it misses when that is broken (each was
// broken once).

// group submits operations as one group, and lets the replica work on them.
func (r *replica) group(all bool, ops ...felix.Op) *call {
	q := opsRequest(ops...)
	q.Batch.Groups = []felix.Group{{To: int32(len(ops)), AllOrNothing: all}}
	k := r.submit(q)
	r.advance()
	return k
}

func check(key string, cond felix.If) felix.Op {
	return felix.Op{Kind: felix.Check, Key: []byte(key), If: cond}
}

func put(key, value string) felix.Op {
	return felix.Op{Kind: felix.Set, View: felix.ViewValue, Key: []byte(key), Value: []byte(value)}
}

// wantAborted fails the test unless all operations but the failed one are aborted.
func (k *call) wantAborted(what string, failed int) {
	k.on.c.t.Helper()
	if !k.done {
		k.on.c.t.Fatalf("%s: no reply", what)
	}
	for i := range k.Batch.Replies {
		if r := k.reply(i); r.Aborted != (i != failed) || r.Applied {
			k.on.c.t.Fatalf("%s, operation %d: %+v", what, i, r)
		}
	}
}

// A group that is stopped leaves nothing: not in the entry, nor in the table, nor
// in the versions, whatever else is in the same entry. Broken: the copy of the
// cell in copyCells (group.go), made a look-up for each operation, with a Stage
// after each.
func TestGroupStoppedLeavesNothing(t *testing.T) {
	c, a := led(t, 3, felix.Quorum)
	first := a.ops(add("k", 5), put("k", "old"))
	c.run()
	first.want("first", 0, 5, 0)
	index, version := a.lastIndex, a.nextVersion
	k := a.group(true, add("k", 1), put("k", "new"), add("fresh", 1), check("fresh", felix.IfAbsent), add("k", 1))
	c.run()
	k.wantAborted("alone", 3)
	if a.lastIndex != index || a.nextVersion != version {
		t.Errorf("a group that was stopped moved the log from %d to %d, the versions from %d to %d", index, a.lastIndex, version, a.nextVersion)
	}
	if ref, _ := a.table.Find([]byte("fresh")); ref != 0 {
		t.Error("a group that was stopped has made an entry of the table")
	}
	// Among others, in one entry.
	q := opsRequest(add("k", 10), add("k", 1), add("fresh", 1), add("k", 1<<62), add("k", 1<<62), add("k", 100), get("fresh"))
	q.Batch.Groups = []felix.Group{{From: 1, To: 5, AllOrNothing: true}}
	k = a.submit(q)
	c.run()
	for i, sum := range []int64{15, 0, 0, 0, 0, 115, 0} {
		if i != 4 {
			k.want("among others", i, sum, 0)
		}
		if r := k.reply(i); r.Aborted != (i >= 1 && i <= 3) {
			t.Errorf("among others, operation %d: %+v", i, r)
		}
	}
	k.want("what stops it", 4, 0, felix.OutOfRange)
	if a.lastIndex != index+1 || k.reply(5).Version != k.reply(0).Version+1 {
		t.Errorf("log at %d after %d, versions %d and %d", a.lastIndex, index, k.reply(0).Version, k.reply(5).Version)
	}
	if k.reply(6).Found != felix.NoRecord {
		t.Errorf("fresh is there: %+v", k.reply(6))
	}
	c.sameState()
}

// A group's writes are one entry: a crash leaves all of it or nothing. Broken: the
// `s.entry.bytes+bytes > s.cfg.MaxEntryBytes` of evaluateGroup (group.go), with the
// group staged as far as there is room.
func TestGroupIsOneEntry(t *testing.T) {
	c, a := led(t, 3, felix.Quorum)
	a.cfg.MaxEntryBytes = 200
	q := opsRequest(put("pad", strings.Repeat("x", 120)))
	var ops []felix.Op
	for i := range 20 {
		ops = append(ops, add(fmt.Sprintf("k%d", i%10), 1))
	}
	q.Batch.Ops = append(append(q.Batch.Ops, ops...), add("k0", 1))
	q.Batch.Replies = make([]felix.Reply, len(q.Batch.Ops))
	for i := range q.Batch.Ops[1:] {
		q.Positions = append(q.Positions, int32(i+1))
	}
	q.Batch.Groups = []felix.Group{{From: 1, To: 21}}
	before := a.lastIndex
	k := a.submit(q)
	c.run()
	for i := range ops {
		k.want("in the group", i+1, int64(i/10+1), 0)
	}
	k.want("after the group", 21, 3, 0)
	var writes []int
	for i := before + 1; i <= a.lastIndex; i++ {
		entries, err := a.log.Entries(i, i+1, 1<<30)
		c.must(err)
		r, err := record.ReadEntry(entries[0].GetData())
		c.must(err)
		n := 0
		for w := (record.Write{}); r.More(); n++ {
			c.must(r.Next(&w))
		}
		writes = append(writes, n)
	}
	if fmt.Sprint(writes) != "[1 10 1]" {
		t.Errorf("the entries have %v writes", writes)
	}
	c.sameState()
}

// A group too large for any entry is refused, and so is one that the entry has no
// room for only put off. Broken: `bytes > felix.MaxGroupBytes` (group.go).
func TestGroupTooLarge(t *testing.T) {
	c, a := led(t, 1, felix.Quorum)
	large := strings.Repeat("x", felix.MaxValueBytes)
	k := a.group(false, put("a", large), put("b", large), put("c", large), put("d", large), add("e", 1))
	c.run()
	for i := range 5 {
		k.want("too large", i, 0, felix.ResourceExhausted)
	}
	k = a.group(false, put("a", large), put("b", large), add("e", 1))
	c.run()
	k.want("not too large", 2, 1, 0)
}

// Rule 2: a refused proposal takes the whole group with it. Broken: `s.entry.touched
// = append(…)` in stageGroup (group.go).
func TestRule2GroupInARefusedProposal(t *testing.T) {
	c, a := led(t, 3, felix.Quorum)
	k := a.ops(add("k", 1))
	c.run()
	k.want("first add", 0, 1, 0)
	c.stall(a, 2)
	refused := a.group(true, add("k", 10), add("other", 1), get("k"))
	for i := range 3 {
		refused.want("refused group", i, 0, felix.Unavailable)
	}
	c.net = nil
	c.tick(testElectionTicks + 1)
	k = a.ops(get("k"), get("other"))
	c.run()
	k.want("afterwards", 0, 1, 0)
	if k.reply(1).Found != felix.NoRecord {
		t.Errorf("a part of a refused group is there: %+v", k.reply(1))
	}
	c.sameState()
}

// Rule 3: a group is answered when its entry is committed, and a lost one is
// unknown where it changes something. Broken: `r.wrote(…)` in evaluateGroup.
func TestRule3Group(t *testing.T) {
	c, a := led(t, 3, felix.Quorum)
	for _, r := range c.nodes {
		r.hold = true
	}
	k := a.group(true, add("k", 1), get("k"), add("l", 1))
	c.run()
	k.waits("a group on no disk")
	c.cut[a.id] = true
	for _, r := range c.nodes {
		r.hold = false
	}
	c.elect(c.nodes[1])
	c.cut[a.id] = false
	c.tick(3)
	k.want("add of a lost group", 0, 0, felix.OutcomeUnknown)
	k.want("get of a lost group", 1, 0, felix.Unavailable)
	k.want("add of a lost group", 2, 0, felix.OutcomeUnknown)
}

// Rules 4 and 5: a group that is stopped, or only reads, is a read: it writes
// nothing, waits for what it saw, and for a majority to confirm the owner. Broken:
// `r.dep = max(…)` and `s.needFence(r)` in sawGroup (group.go), each.
func TestRule5StoppedGroupIsARead(t *testing.T) {
	for name, ops := range map[string][]felix.Op{
		"stopped": {add("k", 1), add("other", 1), check("k", felix.IfAbsent)},
		"reading": {get("k"), get("other"), check("k", felix.IfPresent)},
	} {
		t.Run(name, func(t *testing.T) {
			c, a := led(t, 3, felix.Quorum)
			for _, r := range c.nodes {
				r.hold = true
			}
			write := a.ops(add("k", 1))
			index := a.lastIndex
			read := a.group(true, ops...)
			c.run() // heartbeats confirm the owner
			if a.fenceDone == 0 {
				t.Fatal("no round was confirmed")
			}
			read.waits("what it saw is not committed")
			for _, r := range c.nodes {
				r.hold = false
			}
			c.run()
			write.want("the add", 0, 1, 0)
			if !read.done || a.lastIndex != index {
				t.Errorf("the log moved to %d after %d; answered %v", a.lastIndex, index, read.done)
			}
			// And a deposed owner answers none.
			c.cut[a.id] = true
			read = a.group(true, ops...)
			c.run()
			read.waits("an owner without a majority")
			c.elect(c.nodes[1])
			c.cut[a.id] = false
			c.tick(3)
			for i := range ops {
				read.want("by a deposed owner", i, 0, felix.Unavailable)
			}
		})
	}
}

// A leader cache answers a group when the owner has ordered it, as anything else.
func TestGroupOfALeaderCache(t *testing.T) {
	c, a := led(t, 3, felix.Leader)
	for _, r := range c.nodes {
		r.hold = true
	}
	k := a.group(true, add("k", 1), add("l", 2))
	k.want("at once", 1, 2, 0)
	stopped := a.group(true, add("k", 1), check("l", felix.IfAbsent))
	stopped.wantAborted("at once", 1)
	c.mono += 2 * felix.LeaderTail
	late := a.group(true, add("k", 1))
	late.waits("the tail is too old")
	for _, r := range c.nodes {
		r.hold = false
	}
	c.run()
	late.want("once it is on a majority", 0, 2, 0)
}

// Rule 6: what is in flight of a group is not applied, and a snapshot, a scan and a
// count see all of it or nothing.
func TestRule6GroupInFlight(t *testing.T) {
	c, a := led(t, 3, felix.Quorum)
	for _, r := range c.nodes {
		r.hold = true
	}
	k := a.group(true, add("a", 1), add("b", 1), put("a", "v"))
	c.run()
	k.waits("on no disk")
	if n := a.table.Counts(); n.Keys != 0 || a.table.DirtyEntries() != 0 {
		t.Errorf("applied: %+v, dirty %d", n, a.table.DirtyEntries())
	}
	for _, r := range c.nodes {
		r.hold = false
	}
	c.run()
	if n := a.table.Counts(); n != (record.Counts{Counters: 2, Values: 1, Keys: 2}) {
		t.Errorf("applied: %+v", n)
	}
	c.sameState()
}

// cold puts records on the disk of all replicas, and nothing into their tables.
func (c *cluster) cold(keys ...string) {
	for _, r := range c.nodes {
		k := r
		for _, key := range keys {
			k.db[key] = record.Cell{Has: record.HasCounter, Sum: 100, CounterVer: 1}
			k.dbApplied.Counts.Add(record.Counts{Counters: 1, Keys: 1})
		}
		r.crash()
		r.start()
	}
	c.run()
	c.elect(c.nodes[0])
}

// A group is evaluated when all its records are in memory, and keeps those that it
// has until the last has come, however little memory there is. Broken: pin in
// findAll (evaluate.go); Pin's flag in Trim (table_apply.go); wholeGroups in findAll.
func TestGroupWaitsForAllItsRecords(t *testing.T) {
	c := newCluster(t, 1, felix.Quorum, 1)
	a := c.nodes[0]
	a.budget.MaxBytes = 1
	var keys []string
	for i := range 40 {
		keys = append(keys, fmt.Sprintf("k%02d", i))
	}
	c.cold(append(keys, "elsewhere")...)
	a.stuck = true
	ops := []felix.Op{add("elsewhere", 1)}
	for _, key := range keys {
		ops = append(ops, add(key, 1))
	}
	q := opsRequest(append(ops, add("k00", 1))...)
	q.Batch.Groups = []felix.Group{{From: 1, To: int32(len(keys)) + 1, AllOrNothing: true}}
	k := a.submit(q)
	for c.run(); len(a.loads) > 0; c.run() {
		a.load() // one at a time, each with evictions after it
		if q.next > 1 && len(a.loads) > 0 {
			t.Fatalf("%d operations were evaluated with %d loads under way", q.next, len(a.loads))
		}
		if c.mono += time.Millisecond; c.mono > time.Second {
			t.Fatal("the group loads its records for ever")
		}
	}
	for i := range ops {
		k.want("cold", i, 101, 0)
	}
	k.want("after the group", len(ops), 102, 0)
	if len(q.pins.refs) != 0 {
		t.Error("entries are still pinned")
	}
}

// What a waiting group keeps in memory is bounded, and let go however the group
// ends. Broken: roomForPins in findAll (evaluate.go); unpin in fail (request.go),
// in returnQueue (shard.go), in evaluateGroup and in roomForPins (group.go), each.
func TestGroupLetsGo(t *testing.T) {
	for name, end := range map[string]func(c *cluster, a *replica, k *call){
		"evaluated": func(c *cluster, a *replica, k *call) {
			c.run()
			k.want("in time", 2, 101, 0)
		},
		"late": func(c *cluster, a *replica, k *call) {
			c.mono += 2 * longWait
			c.run()
			k.want("late", 0, 0, felix.ResourceExhausted)
		},
		"no room": func(c *cluster, a *replica, k *call) {
			a.cfg.Room = func(int64) bool { return false }
			c.run()
			k.want("no room", 2, 0, felix.ResourceExhausted)
		},
		"returned": func(c *cluster, a *replica, k *call) {
			a.stuck = true
			c.cut[a.id] = true
			c.elect(c.nodes[1])
			c.cut[a.id] = false
			c.tick(3)
			a.stuck = false
			c.run()
			k.waits("returned")
			if len(a.returned) != 1 {
				c.t.Fatal("the group was not returned")
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, 3, felix.Quorum, 1)
			a := c.nodes[0]
			c.cold("a", "b", "c", "rest")
			for key, cell := range a.db {
				cell.Has, cell.Value, cell.ValueVer = cell.Has|record.HasValue, []byte(strings.Repeat("x", 1000)), 1
				a.db[key] = cell
			}
			a.stuck = true
			k := a.group(true, add("a", 1), add("b", 1), add("c", 1))
			c.run()
			if len(k.pins.refs) != 3 {
				t.Fatalf("%d entries are pinned", len(k.pins.refs))
			}
			a.stuck = false
			end(c, a, k)
			if len(k.pins.refs) != 0 {
				t.Errorf("%d entries are still pinned", len(k.pins.refs))
			}
			for c.run(); a.table.DirtyEntries() > 0; {
				a.checkpoint()
			}
			a.budget.MaxBytes = 1
			for range 100 {
				a.table.Trim(1000)
			}
			for _, key := range []string{"a", "b", "c"} {
				if ref, _ := a.table.Find([]byte(key)); ref != 0 {
					t.Errorf("%s cannot be evicted", key)
				}
			}
		})
	}
}

// A request of another broker or connection overtakes a group that waits for
// loads, and the group sees what it did.
func TestGroupSeesWhatOvertookIt(t *testing.T) {
	c := newCluster(t, 1, felix.Quorum, 1)
	a := c.nodes[0]
	c.cold("cold")
	a.stuck = true
	k := a.group(true, add("warm", 1), add("cold", 1))
	c.run()
	other := a.ops(put("warm", "x"), felix.Op{Kind: felix.Set, Key: []byte("warm"), Int: 50})
	a.stuck = false
	c.run()
	k.want("on what the other made", 0, 51, 0)
	k.want("cold", 1, 101, 0)
	if !other.reply(1).Applied {
		t.Errorf("the other: %+v", other.reply(1))
	}
}
