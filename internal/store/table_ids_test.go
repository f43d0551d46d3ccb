package store

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/record"
)

// idLife drives the ids of an owner's and a follower's table, each with a disk of
// its own, beside counters under the very bytes of their keys.
type idLife struct {
	t      *testing.T
	rng    *rand.Rand
	tables [2]*Table // owner, follower
	disks  [2]*DB
	budget *Budget
	ids    []record.IDKey
	want   map[record.IDKey]record.Cell
	index  uint64
	loaded int

	counters map[record.IDKey]bool // whose counter there is
}

const idShard = 7

func idCell(n int64, expiry int64, version uint64) record.Cell {
	outcome := record.AppendOutcome(nil, record.Fingerprint{1}, []felix.Reply{{Applied: true, Int: n}})
	return record.Cell{Has: record.HasValue, Value: outcome, ValueExpiry: expiry, ValueVer: version}
}

func (l *idLife) must(err error) {
	l.t.Helper()
	if err != nil {
		l.t.Fatal(err)
	}
}

// find looks an id up in a table, and loads it if need be.
func (l *idLife) find(i int, id record.IDKey) Ref {
	ref, presence := l.tables[i].FindID(id)
	if presence != Unloaded {
		return ref
	}
	l.loaded++
	var c record.Cell
	ref = l.tables[i].MarkLoadingID(ref, id)
	l.must(l.disks[i].LoadID(idShard, id, &c))
	l.tables[i].Loaded(ref, l.tables[i].Generation(), &c)
	return ref
}

// entry has the owner make, replace and delete some, and both apply that.
func (l *idLife) entry() {
	base := uint64(1+l.index) << 20
	owner := l.tables[0]
	var touched []Touch
	var change record.Counts
	payload := []byte{}
	for range 1 + l.rng.IntN(5) {
		id := l.ids[l.rng.IntN(len(l.ids))]
		ref := l.find(0, id)
		var before record.Cell
		if inflight, _ := owner.Newest(ref, &before); inflight == l.index+1 {
			continue
		}
		var after record.Cell
		if l.rng.IntN(3) > 0 {
			after = idCell(l.rng.Int64N(100), 1+l.rng.Int64N(1000), base)
		} else if !before.Exists() {
			continue
		}
		ref, first := owner.StageID(ref, id, &after, l.index+1, base)
		if !first {
			l.t.Fatal("an id was staged twice")
		}
		touched = append(touched, Touch{Ref: ref, Writes: 1})
		change.Add(record.IDChange(before.Has, after.Has))
		if l.want[id] = after; !after.Exists() {
			delete(l.want, id)
		}
	}
	// A counter whose key is an id's.
	id := l.ids[l.rng.IntN(len(l.ids))]
	payload = record.AppendHeader(payload, record.Header{Base: base, Change: change})
	for _, t := range touched {
		payload, _ = owner.AppendWrites(payload, t.Ref, base)
	}
	l.index++
	l.must(owner.Apply(l.index, 1, payload, touched))
	l.must(l.tables[1].Apply(l.index, 1, payload, nil))
	change = record.Counts{}
	if !l.counters[id] {
		l.counters[id], change = true, record.Counts{Counters: 1, Keys: 1}
	}
	for _, table := range l.tables {
		counter := record.AppendPutCounter(record.AppendHeader(nil, record.Header{Base: base, Change: change}), id[:], 1, 0, 9)
		l.must(table.Apply(l.index+1, 1, counter, nil))
	}
	l.index++
}

func (l *idLife) checkpoint(i int) {
	c := l.tables[i].BeginCheckpoint()
	l.tables[i].CaptureSlice(c, 1<<30)
	c.Checkpoint.Shard = idShard
	l.must(l.disks[i].WriteCheckpoint(c.Checkpoint))
	l.tables[i].FinishSlice(c, 1<<30)
}

func (l *idLife) check() {
	for i, table := range l.tables {
		if n := table.Counts(); n.IDs != int64(len(l.want)) {
			l.t.Fatalf("table %d counts %d ids, want %d", i, n.IDs, len(l.want))
		}
		for _, id := range l.ids {
			var got record.Cell
			table.Newest(l.find(i, id), &got)
			if want := l.want[id]; !sameCell(got, want) {
				l.t.Fatalf("table %d has %+v under %x, want %+v", i, got, id, want)
			}
		}
		table.Trim(1 << 16)
		if items, _, _ := table.Overlay(nil, nil, 1000); len(items) > len(l.ids) {
			l.t.Fatalf("%d items in an overlay of %d counters", len(items), len(l.ids))
		} else {
			for _, item := range items {
				if item.Cell.Has&record.HasValue != 0 {
					l.t.Fatalf("an id is listed: %+v", item.Cell)
				}
			}
		}
	}
}

// TestIDs: what a table and the disk below it know of ids is what was written,
// whatever was checkpointed, evicted and started anew, on owners and followers;
// and is never mixed with records under the same bytes.
func TestIDs(t *testing.T) {
	for seed := range uint64(4) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			l := &idLife{t: t, rng: rand.New(rand.NewPCG(seed, 3)), budget: &Budget{MaxBytes: int64(seed%2) << 20},
				want: map[record.IDKey]record.Cell{}, index: 1, counters: map[record.IDKey]bool{}}
			for i := range l.tables {
				l.tables[i], l.disks[i] = NewTable(appliedAt(1), l.budget), openMem(t, vfs.NewMem(), Options{})
				defer closeDB(t, l.disks[i])
			}
			var digest record.Digest
			for i := range 30 {
				l.ids = append(l.ids, digest.Key([]byte("k"), fmt.Append(nil, i)))
			}
			for step := range 120 {
				l.entry()
				switch i := l.rng.IntN(2); l.rng.IntN(12) {
				case 0:
					l.checkpoint(i)
				case 1: // restart
					l.checkpoint(i)
					applied, _, err := l.disks[i].Applied(idShard)
					l.must(err)
					l.tables[i].Release()
					l.tables[i] = NewTable(applied, l.budget)
				}
				if step%10 == 0 {
					l.check()
				}
			}
			l.check()
			if seed == 0 && l.loaded < 50 {
				t.Errorf("only %d ids had to be loaded", l.loaded)
			}
			l.checkDisk()
		})
	}
}

// checkDisk sends the follower's disk as a snapshot, and sweeps it.
func (l *idLife) checkDisk() {
	l.checkpoint(1)
	s, err := l.disks[1].OpenSnapshot(idShard)
	l.must(err)
	to := openMem(l.t, vfs.NewMem(), Options{})
	defer closeDB(l.t, to)
	install, err := to.BeginInstall(idShard, s.Applied(), record.Replica{RaftID: 3})
	l.must(err)
	for {
		key, value, ok, err := s.Next()
		if l.must(err); !ok {
			break
		}
		l.must(install.Add(key, value))
	}
	s.Close()
	l.must(install.Finish())
	l.must(install.Commit())
	for _, id := range l.ids {
		var got record.Cell
		l.must(to.LoadID(idShard, id, &got))
		if want := l.want[id]; !sameCell(got, want) {
			l.t.Fatalf("after a snapshot there is %+v under %x, want %+v", got, id, want)
		}
	}
	keys, ids, _, err := to.Expired(idShard, 500, 1000)
	l.must(err)
	due := 0
	for _, c := range l.want {
		if c.ValueExpiry <= 500 {
			due++
		}
	}
	if len(keys) != 0 || len(ids) != due || due == 0 {
		l.t.Errorf("%d keys and %d ids have expired, want %d ids", len(keys), len(ids), due)
	}
	for _, id := range ids {
		if l.want[id].ValueExpiry > 500 || l.want[id].ValueExpiry == 0 {
			l.t.Errorf("%x is told as expired: %+v", id, l.want[id])
		}
	}
}

// TestInstallRefusesBadIDs: what cannot be the record of an id is no snapshot.
func TestInstallRefusesBadIDs(t *testing.T) {
	good := idCell(1, 5, 9)
	key := append([]byte{byte(record.IDClass)}, bytes.Repeat([]byte("k"), record.IDKeyBytes)...)
	cut := good
	cut.Value = cut.Value[:5]
	for name, c := range map[string]struct {
		key  []byte
		cell record.Cell
		n    int64
	}{
		"a short key": {key[:9], good, 1}, "no outcome": {key, cut, 1}, "another number": {key, good, 2}, "right": {key, good, 1},
	} {
		db := openMem(t, vfs.NewMem(), Options{})
		i, err := db.BeginInstall(idShard, record.Applied{Index: 9, Term: 1, Counts: record.Counts{IDs: c.n}}, record.Replica{RaftID: 2})
		if err != nil {
			t.Fatal(err)
		}
		if err = i.Add(c.key, record.AppendValue(nil, &c.cell)); err == nil {
			err = i.Finish()
		}
		if (err == nil) != (name == "right") {
			t.Errorf("%s: %v", name, err)
		}
		if err := i.Abort(); err != nil {
			t.Error(err)
		}
		closeDB(t, db)
	}
}
