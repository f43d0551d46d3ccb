package crashtest

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.etcd.io/raft/v3/raftpb"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/raftlog"
	"github.com/felix-go/felix/internal/record"
	"github.com/felix-go/felix/internal/store"
)

// stopped is the log and the state of a broker that does not run, read from a copy.
type stopped struct {
	t    *testing.T
	node uint64
	log  *raftlog.Log
	db   *store.DB
}

// openStopped copies a data directory and opens the copy.
func openStopped(t *testing.T, node uint64, dir string) *stopped {
	t.Helper()
	to := t.TempDir()
	for _, part := range []string{"log", "state"} {
		if err := os.CopyFS(filepath.Join(to, part), os.DirFS(filepath.Join(dir, part))); err != nil {
			t.Fatal(err)
		}
	}
	s := &stopped{t: t, node: node}
	fatal := func(err error) { panic(fmt.Sprintf("node %d: %v", node, err)) }
	var err error
	if s.log, err = raftlog.Open(filepath.Join(to, "log"), raftlog.Options{Fatal: fatal, WALPrefillFiles: -1}); err != nil {
		t.Fatal(err)
	}
	if s.db, err = store.Open(filepath.Join(to, "state"), store.Options{Fatal: fatal}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.log.Close(); err != nil {
			t.Error(err)
		}
		if err := s.db.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// committed is how far the log is known here to be committed.
func (s *stopped) committed(shard uint64) uint64 {
	s.t.Helper()
	a, _, err := s.db.Applied(shard)
	if err != nil {
		s.t.Fatal(err)
	}
	l, err := s.log.Shard(shard)
	if err != nil {
		s.t.Fatal(err)
	}
	_, _, commit := l.HardState()
	return max(a.Index, commit)
}

// contents is what a replica has.
type contents struct {
	applied record.Applied
	entries map[uint64]string // that the log still has, by index
	records map[string]string
}

// contents is what the replica has once everything up to the index is applied, as
// a broker that starts would do it.
func (s *stopped) contents(shard, index uint64) (c contents, err error) {
	a, ok, err := s.db.Applied(shard)
	if err != nil || !ok {
		return c, fmt.Errorf("its state: there %v, %w", ok, err)
	}
	l, err := s.log.Shard(shard)
	if err != nil {
		return c, err
	}
	if err := l.PrepareRestart(a.Index, a.Term); err != nil {
		return c, err
	}
	table := store.NewTable(a, &store.Budget{})
	defer table.Release()
	if c.entries, err = replay(l, table, index); err != nil {
		return c, err
	}
	capture := table.BeginCheckpoint()
	for !table.CaptureSlice(capture, 1<<20) {
	}
	capture.Checkpoint.Shard = shard
	if err := s.db.WriteCheckpoint(capture.Checkpoint); err != nil {
		return c, err
	}
	for !table.FinishSlice(capture, 1<<20) {
	}
	c.applied = table.Applied()
	c.applied.ConfState = nil // as of the last snapshot or change, which brokers need not note at the same time
	c.records, err = s.records(shard)
	return c, err
}

// replay applies what the log has up to an index, and answers all that it has up
// to there.
func replay(l *raftlog.Shard, table *store.Table, index uint64) (map[uint64]string, error) {
	first, err := l.FirstIndex()
	if err != nil {
		return nil, err
	}
	all := map[uint64]string{}
	for first <= index {
		entries, err := l.Entries(first, index+1, 1<<20)
		if err != nil {
			return nil, fmt.Errorf("the log from %d to %d: %w", first, index, err)
		}
		for _, e := range entries {
			at := e.GetIndex()
			all[at] = fmt.Sprint(e.GetType(), " of term ", e.GetTerm(), ": ", string(e.GetData()))
			switch {
			case at <= table.Applied().Index:
			case e.GetType() == raftpb.EntryNormal:
				if err := table.Apply(at, e.GetTerm(), e.GetData(), nil); err != nil {
					return nil, err
				}
			default:
				table.SkipTo(at, e.GetTerm(), byte(e.GetType()), e.GetData(), nil)
			}
		}
		first += uint64(len(entries))
	}
	if at := table.Applied().Index; at != index {
		return nil, fmt.Errorf("it has applied %d, and not %d", at, index)
	}
	return all, nil
}

// records are all of the replica, but for hints, which may be outdated.
func (s *stopped) records(shard uint64) (map[string]string, error) {
	all := map[string]string{}
	r, err := s.db.OpenSnapshot(shard)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	for {
		key, value, ok, err := r.Next()
		if err != nil || !ok {
			return all, err
		}
		if record.Class(key[0]) != record.ExpiryClass {
			all[string(key)] = string(bytes.Clone(value))
		}
	}
}

// compareReplicas compares the replicas of all shards, entry by entry and record
// by record. The brokers were at rest before they ended: every replica has
// everything.
func compareReplicas(t *testing.T, shards []felix.ShardInfo, dirs map[uint64]string) {
	t.Helper()
	nodes := map[uint64]*stopped{}
	for id, dir := range dirs {
		nodes[id] = openStopped(t, id, dir)
	}
	records := 0
	for _, s := range shards {
		index := uint64(0)
		for _, r := range s.Replicas {
			index = max(index, nodes[r.Node].committed(s.ID))
		}
		all := map[uint64]contents{}
		for _, r := range s.Replicas {
			c, err := nodes[r.Node].contents(s.ID, index)
			if err != nil {
				t.Errorf("shard %d on node %d: %v", s.ID, r.Node, err)
				continue
			}
			all[r.Node] = c
			records += len(c.records)
		}
		for _, diff := range differences(all) {
			t.Errorf("shard %d at entry %d: %s", s.ID, index, diff)
		}
	}
	t.Logf("%d shards compared, %d records", len(shards), records)
	if records == 0 {
		t.Error("there is no record: nothing was compared")
	}
}

// differences are those between what replicas have that should have the same.
func differences(all map[uint64]contents) (found []string) {
	var first uint64
	for id := range all {
		if first == 0 || id < first {
			first = id
		}
	}
	for id, c := range all {
		one := all[first]
		complain := func(format string, args ...any) {
			found = append(found, fmt.Sprintf("nodes %d and %d: ", first, id)+fmt.Sprintf(format, args...))
		}
		a, b := one.applied, c.applied
		if a.Chain.Base != b.Chain.Base { // sums of other entries
			a.Chain, b.Chain = record.Chain{}, record.Chain{}
		}
		if a, b := fmt.Sprintf("%+v", a), fmt.Sprintf("%+v", b); a != b {
			complain("the state is %s and %s", a, b)
		}
		for at, e := range c.entries {
			if other, there := one.entries[at]; there && e != other {
				complain("entry %d is %q and %q", at, other, e)
			}
		}
		for key, value := range c.records {
			if other, there := one.records[key]; !there || other != value {
				complain("record %q is %q and %q", key, other, value)
			}
		}
		for key, value := range one.records {
			if _, there := c.records[key]; !there {
				complain("record %q is %q and not there", key, value)
			}
		}
	}
	slices.SortFunc(found, strings.Compare)
	return found
}

// TestDifferencesAreFound: replicas that differ in an entry, a record or what is
// applied are told, and equal ones are not.
func TestDifferencesAreFound(t *testing.T) {
	same := func() contents {
		return contents{record.Applied{Index: 7, Term: 2, Chain: record.Chain{Base: 1, Sum: 33}}, map[uint64]string{6: "a", 7: "b"}, map[string]string{"ck": "1", "cl": "2"}}
	}
	shorter := same() // a log may begin later, and so may a chain
	delete(shorter.entries, 6)
	shorter.applied.Chain = record.Chain{Base: 6, Sum: 99}
	if found := differences(map[uint64]contents{1: same(), 2: shorter, 3: same()}); len(found) != 0 {
		t.Errorf("equal replicas differ: %q", found)
	}
	for name, change := range map[string]func(*contents){
		"an entry":        func(c *contents) { c.entries[7] = "c" },
		"a record":        func(c *contents) { c.records["ck"] = "3" },
		"one less":        func(c *contents) { delete(c.records, "cl") },
		"one more":        func(c *contents) { c.records["cm"] = "3" },
		"what is applied": func(c *contents) { c.applied.Ceiling = 1 },
		"the chain":       func(c *contents) { c.applied.Chain.Sum++ },
	} {
		other := same()
		change(&other)
		if found := differences(map[uint64]contents{1: same(), 2: other}); len(found) != 1 {
			t.Errorf("%s: %q", name, found)
		}
	}
}
