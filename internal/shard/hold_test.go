package shard

import (
	"fmt"
	"testing"
	"time"

	"github.com/felix-go/felix"
)

// TestHeldWritesWait: while writes are held, they wait and everything else goes
// on; after it they are evaluated, before what came later.
func TestHeldWritesWait(t *testing.T) {
	c, owner := led(t, 1, felix.Quorum)
	owner.ops(add("a", 1), add("b", 1))
	c.run()
	owner.Hold(true, false)
	write := owner.ops(add("a", 10))
	mixed := owner.ops(get("a"), add("a", 100)) // in order: the read waits too
	read := owner.ops(get("a"))
	sweep := opsRequest(felix.Op{Kind: felix.Delete, Key: []byte("b")})
	sweep.Kind = Sweep
	swept := owner.submit(sweep)
	counted := owner.submit(&Request{Kind: Count})
	scanned := owner.submit(&Request{Kind: Scan, Scan: felix.ScanRequest{Limit: 10}})
	c.run()
	write.waits("a held write")
	mixed.waits("a request that also writes")
	read.want("a read beside it", 0, 1, 0)
	if !swept.done || !counted.done || !scanned.done {
		t.Errorf("sweep %v, count %v, scan %v: not all go on", swept.done, counted.done, scanned.done)
	}
	owner.Hold(false, false)
	last := owner.ops(add("a", 1000))
	c.run()
	write.want("the held write", 0, 11, 0)
	mixed.want("the read after it", 0, 11, 0)
	mixed.want("the write after it", 1, 111, 0)
	last.want("the one that came last", 0, 1111, 0)
}

// TestAHeldClearGoesOn: it makes room.
func TestAHeldClearGoesOn(t *testing.T) {
	c, owner := led(t, 1, felix.Quorum)
	owner.ops(add("a", 1))
	c.run()
	owner.Hold(true, false)
	write := owner.ops(add("a", 10))
	cleared := owner.submit(&Request{Kind: Clear})
	c.run()
	if write.waits("a held write"); !cleared.done || cleared.Err != nil {
		t.Fatalf("the clear: done %v, %v", cleared.done, cleared.Err)
	}
	owner.Hold(false, false)
	c.run()
	write.want("the held write", 0, 10, 0)
}

// TestARequestThatWasBegunIsFinished: holding its rest would make what it did
// outcome_unknown.
func TestARequestThatWasBegunIsFinished(t *testing.T) {
	c, owner := led(t, 1, felix.Quorum)
	owner.cfg.MaxEntryBytes, owner.cfg.MaxInflightBytes = 1, 1
	begun := owner.ops(add("a", 1), add("a", 1), add("b", 1))
	begun.waits("one that needs three entries")
	owner.Hold(true, false)
	c.run()
	begun.want("its end", 2, 1, 0)
}

// TestADeadlineUnderBackpressure: what an owner could not take up in time is
// refused with a time to come back; what has no owner is unavailable.
func TestADeadlineUnderBackpressure(t *testing.T) {
	for _, test := range []struct {
		name  string
		press func(c *cluster, owner *replica)
		code  felix.Code
	}{
		{"held", func(_ *cluster, owner *replica) { owner.Hold(true, false) }, felix.ResourceExhausted},
		{"too much in flight", func(_ *cluster, owner *replica) {
			owner.Shard.cfg.MaxInflightBytes = 1
			owner.hold = true
			owner.ops(add("first", 1))
		}, felix.ResourceExhausted},
		{"no owner", func(c *cluster, owner *replica) {
			c.cut[owner.id] = true
			c.tick(3 * testElectionTicks)
		}, felix.Unavailable},
	} {
		t.Run(test.name, func(t *testing.T) {
			c, owner := led(t, 3, felix.Quorum)
			test.press(c, owner)
			q := opsRequest(add("a", 1))
			q.Deadline = c.mono + time.Second
			late := owner.submit(q)
			owner.advance()
			late.waits("before its deadline")
			c.mono += time.Second
			owner.advance()
			late.want("after it", 0, 0, test.code)
			if late.reply(0).Err.RetryAfter <= 0 {
				t.Error("nothing says when to come back")
			}
		})
	}
}

// TestReplayInSteps: a step applies a bounded part of the log, between two of
// them a checkpoint can be taken, and a replica whose replay is held waits for
// that.
func TestReplayInSteps(t *testing.T) {
	const entries = 20
	c, owner := led(t, 1, felix.Quorum)
	for i := range entries {
		owner.ops(add(fmt.Sprint("k", i), 1))
		c.run()
	}
	owner.crash()
	c.cfg.MaxApplyBytes = 1
	owner.start()
	steps := 0
	for ; !owner.Owns() && steps < 10*entries; steps++ {
		before := owner.table.Applied().Index
		owner.advance()
		if n := owner.table.Applied().Index - before; n > 1 {
			t.Fatalf("a step applied %d entries", n)
		}
		if steps == entries/2 {
			owner.Hold(false, true)
			at := owner.table.Applied().Index
			c.run()
			if owner.Unfinished() || owner.table.Applied().Index != at {
				t.Fatal("a replay that is held goes on")
			}
			owner.checkpoint()
			owner.Hold(false, false)
		}
		for len(owner.appends) > 0 && !owner.Unfinished() {
			owner.sync()
		}
	}
	if steps < entries {
		t.Errorf("the replay took %d steps", steps)
	}
	if owner.dbApplied.Index < 5 || owner.dbApplied.Index > entries {
		t.Errorf("the checkpoint in the middle is of entry %d", owner.dbApplied.Index)
	}
	for i := range entries {
		k := owner.ops(add(fmt.Sprint("k", i), 1))
		c.run()
		k.want("after the replay", 0, 2, 0)
	}
}

// TestValuesInRepliesTakeRoom: a request takes room for the values that its
// replies carry, and no more is given than there is; what finds none is refused
// without having happened, and lengths need none.
func TestValuesInRepliesTakeRoom(t *testing.T) {
	const bound, size, keys = 100_000, 10_000, 20
	c, owner := led(t, 1, felix.Quorum)
	left := int64(bound)
	owner.Shard.cfg.Room = func(bytes int64) bool {
		if bytes > left {
			return false
		}
		left -= bytes
		return true
	}
	var set, read, replace, length []felix.Op
	for i := range keys {
		op := felix.Op{Kind: felix.Set, View: felix.ViewValue, Key: fmt.Append(nil, i), Value: make([]byte, size)}
		set = append(set, op)
		op.ReturnOld, op.Value = true, []byte("new")
		replace = append(replace, op)
		op.Kind, op.ReturnOld, op.Value = felix.Get, false, nil
		read = append(read, op)
		op.NoValue = true
		length = append(length, op)
	}
	owner.ops(set...)
	c.run()
	for _, test := range []struct {
		name   string
		ops    []felix.Op
		values int
	}{{"get", read, bound / size}, {"length", length, 0}, {"get and set", replace, bound / size}} {
		left = bound
		k := owner.ops(test.ops...)
		c.run()
		values, refused := 0, 0
		for i := range test.ops {
			switch r := k.reply(i); {
			case r.Err != nil && r.Err.Code == felix.ResourceExhausted && r.Err.RetryAfter > 0:
				refused++
			case len(r.Value) == size:
				values++
			case test.values > 0 || r.Int != size:
				t.Fatalf("%s: %+v", test.name, r)
			}
		}
		if values != test.values || test.values > 0 && refused != keys-values || k.Bytes != bound-left {
			t.Errorf("%s: %d values, %d were refused; %d bytes are charged, %d were taken", test.name, values, refused, k.Bytes, bound-left)
		}
	}
	left = bound
	k := owner.ops(length...)
	c.run()
	for i := range length {
		if want := int64(map[bool]int{true: 3, false: size}[i < bound/size]); k.reply(i).Int != want {
			t.Errorf("value %d has %d bytes, want %d: a refused set is none", i, k.reply(i).Int, want)
		}
	}
}

// TestADeadlineThatHasPassed: it says nothing about the shard.
func TestADeadlineThatHasPassed(t *testing.T) {
	c, owner := led(t, 1, felix.Quorum)
	q := opsRequest(add("a", 1))
	q.Deadline = -time.Second
	k := owner.submit(q)
	c.run()
	k.want("past its deadline", 0, 0, felix.Unavailable)
}
