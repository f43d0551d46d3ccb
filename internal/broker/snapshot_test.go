package broker

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"github.com/felix-go/felix/internal/raftlog"
	"github.com/felix-go/felix/internal/record"
	"github.com/felix-go/felix/internal/store"
)

func encodedConf(t testing.TB, conf *raftpb.ConfState) []byte {
	t.Helper()
	b, err := proto.Marshal(conf)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestSnapshotSource(t *testing.T) {
	old, now := encodedConf(t, &raftpb.ConfState{Voters: []uint64{1}}), encodedConf(t, &raftpb.ConfState{Voters: []uint64{1}, Learners: []uint64{2}})
	flushed, applied, asked := record.Applied{Index: 7, Term: 3, ConfState: old}, record.Applied{Index: 9, Term: 3, ConfState: now}, 0
	s := snapshotSource{flushed: func() record.Applied { return flushed }, applied: func() record.Applied { return applied }, checkpoint: func() { asked++ }}
	if snap, err := s.snapshot(); !errors.Is(err, raft.ErrSnapshotTemporarilyUnavailable) || asked != 1 {
		t.Fatalf("a snapshot from before the new replica: %v, %v; %d checkpoints were asked for", snap, err, asked)
	}
	flushed.Index, flushed.ConfState = 8, now
	snap, err := s.snapshot()
	if m := snap.GetMetadata(); err != nil || asked != 1 || m.GetIndex() != 8 || m.GetTerm() != 3 || !slices.Equal(m.GetConfState().GetLearners(), []uint64{2}) {
		t.Fatalf("%v, %v; %d checkpoints were asked for", snap, err, asked)
	}
	flushed.Index = 10 // what was given stays
	if m := snap.GetMetadata(); m.GetIndex() != 8 {
		t.Fatalf("the snapshot became %v", m)
	}
	flushed.ConfState, applied.ConfState = []byte{0xff}, []byte{0xff}
	if snap, err := s.snapshot(); err == nil {
		t.Fatalf("a configuration that is none: %v", snap)
	}
}

// offer is the message and the state of a snapshot for replica 3.
func offer(t testing.TB) (*raftpb.Message, record.Applied) {
	conf := &raftpb.ConfState{Voters: []uint64{1, 2}, Learners: []uint64{3}}
	a := record.Applied{Index: 40, Term: 5, Counts: record.Counts{Counters: 1, Keys: 1}, ConfState: encodedConf(t, conf)}
	older := &raftpb.Snapshot{Metadata: &raftpb.SnapshotMetadata{Index: new(uint64(30)), Term: new(uint64(4)), ConfState: conf}}
	own := &raftpb.Message{Type: raftpb.MsgSnap.Enum(), From: new(uint64(1)), To: new(uint64(3)), Term: new(uint64(6)), Snapshot: older}
	m, err := snapshotMessage(own, a)
	if err != nil || own.GetSnapshot().GetMetadata().GetIndex() != 30 {
		t.Fatalf("%v; Raft's own became %v", err, own)
	}
	return m, a
}

func TestOfferedSnapshot(t *testing.T) {
	m, a := offer(t)
	got, err := offeredSnapshot(m, record.AppendApplied(nil, a), record.Replica{RaftID: 3})
	if err != nil || got.Index != 40 || m.GetSnapshot().GetMetadata().GetIndex() != 40 || m.GetTo() != 3 || m.GetTerm() != 6 {
		t.Fatalf("%+v, %v; %v", got, err, m)
	}
	if _, err := snapshotMessage(m, record.Applied{Index: 39, Term: 5, ConfState: a.ConfState}); err == nil {
		t.Fatal("a snapshot went back behind what was promised")
	}
	for name, spoil := range map[string]func(m *raftpb.Message, a *record.Applied){
		"another message":      func(m *raftpb.Message, _ *record.Applied) { m.Type = raftpb.MsgApp.Enum() },
		"no snapshot":          func(m *raftpb.Message, _ *record.Applied) { m.Snapshot = nil },
		"with data":            func(m *raftpb.Message, _ *record.Applied) { m.Snapshot.Data = []byte("x") },
		"another index":        func(_ *raftpb.Message, a *record.Applied) { a.Index++ },
		"another term":         func(_ *raftpb.Message, a *record.Applied) { a.Term-- },
		"another replica":      func(m *raftpb.Message, _ *record.Applied) { m.To = new(uint64(4)) },
		"a term that is over":  func(m *raftpb.Message, _ *record.Applied) { m.Term = new(uint64(4)) },
		"a bad configuration":  func(_ *raftpb.Message, a *record.Applied) { a.ConfState = []byte{0xff} },
		"not in configuration": conf(t, &raftpb.ConfState{Voters: []uint64{1, 2}}),
		"voter and learner":    conf(t, &raftpb.ConfState{Voters: []uint64{1, 3}, Learners: []uint64{3}}),
		"voter twice":          conf(t, &raftpb.ConfState{Voters: []uint64{1, 3, 3}}),
		"replica 0":            conf(t, &raftpb.ConfState{Voters: []uint64{0, 3}}),
		"learner next":         conf(t, &raftpb.ConfState{Voters: []uint64{3}, LearnersNext: []uint64{5}}),
		"no entry":             func(m *raftpb.Message, a *record.Applied) { a.Index = 0; *m.Snapshot.Metadata.Index = 0 },
		"no term":              func(m *raftpb.Message, a *record.Applied) { a.Term = 0; *m.Snapshot.Metadata.Term = 0 },
	} {
		t.Run(name, func(t *testing.T) {
			m, a := offer(t)
			spoil(m, &a)
			if _, err := offeredSnapshot(m, record.AppendApplied(nil, a), record.Replica{RaftID: 3}); !errors.Is(err, store.ErrBadSnapshot) {
				t.Errorf("accepted: %v", err)
			}
		})
	}
	if _, err := offeredSnapshot(m, []byte("x"), record.Replica{RaftID: 3}); !errors.Is(err, store.ErrBadSnapshot) {
		t.Errorf("accepted: %v", err)
	}
	joint := conf(t, &raftpb.ConfState{Voters: []uint64{1, 2}, VotersOutgoing: []uint64{2, 3}, LearnersNext: []uint64{3}, AutoLeave: new(true)})
	if joint(m, &a); len(a.ConfState) == 0 {
		t.Fatal("no configuration")
	}
	if _, err := offeredSnapshot(m, record.AppendApplied(nil, a), record.Replica{RaftID: 3}); err != nil {
		t.Errorf("a joint configuration: %v", err)
	}
}

// conf gives the message and the state another configuration.
func conf(t *testing.T, c *raftpb.ConfState) func(*raftpb.Message, *record.Applied) {
	return func(m *raftpb.Message, a *record.Applied) {
		a.ConfState = encodedConf(t, c)
		m.Snapshot.Metadata.ConfState = c
	}
}

// TestSnapshotProgress: a line every five seconds, and one at the end.
func TestSnapshotProgress(t *testing.T) {
	var lines bytes.Buffer
	p := newSnapshotProgress(slog.New(slog.NewTextHandler(&lines, nil)), "sending", 3<<20, time.Minute)
	for second := range time.Duration(12) {
		p.add(100, time.Minute+second*time.Second)
	}
	p.add(1, time.Minute+11*time.Second)
	p.end(nil, time.Minute+13*time.Second)
	p.end(errors.New("boom"), time.Minute+14*time.Second)
	got := strings.Split(strings.TrimSpace(lines.String()), "\n")
	for i, want := range []string{
		`level=INFO msg="sending a snapshot" bytes=600 stored_bytes=3145728 seconds=5`,
		`level=INFO msg="sending a snapshot" bytes=1100 stored_bytes=3145728 seconds=10`,
		`level=INFO msg="sending a snapshot ended" bytes=1201 seconds=13`,
		`level=WARN msg="sending a snapshot failed" bytes=1201 seconds=14 error=boom`,
	} {
		if i >= len(got) || !strings.HasSuffix(got[i], want) {
			t.Errorf("line %d of %q; want %q", i, got, want)
		}
	}
	if len(got) != 4 || p.bytes.Load() != 1201 {
		t.Errorf("%d bytes; %q", p.bytes.Load(), got)
	}
}

// plain is a reader and an install that are slices.
type plain struct {
	records  [][2]string
	at       int
	finished bool
}

func (p *plain) Next() (key, value []byte, ok bool, err error) {
	if p.at == len(p.records) {
		return nil, nil, false, nil
	}
	p.at++
	return []byte(p.records[p.at-1][0]), []byte(p.records[p.at-1][1]), true, nil
}

func (p *plain) Add(key, value []byte) error {
	p.records = append(p.records, [2]string{string(key), string(value)})
	return nil
}

func (p *plain) Finish() error { p.finished = true; return nil }

// TestSnapshotChunks: whatever the records, they come out as they went in, in
// chunks that are whole, fit the buffer where one record does, and are not
// smaller than they must be.
func TestSnapshotChunks(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		from, buf := &plain{}, make([]byte, 1+rng.IntN(400))
		for range rng.IntN(30) {
			from.records = append(from.records, [2]string{strings.Repeat("k", 1+rng.IntN(200)), strings.Repeat("v", rng.IntN(200))})
		}
		to, chunks := &plain{}, &snapshotChunks{from: from}
		sizes := []int{}
		err := receiveSnapshot(to, func() ([]byte, error) {
			chunk, err := chunks.next(buf)
			sizes = append(sizes, len(chunk))
			if one := (&plain{}); err == nil && len(chunk) > len(buf) {
				if err := receiveSnapshot(one, once(chunk)); err != nil || len(one.records) != 1 {
					t.Fatalf("a chunk of %d bytes for a buffer of %d has %d records", len(chunk), len(buf), len(one.records))
				}
			}
			return chunk, err
		})
		if err != nil || !to.finished || !slices.Equal(from.records, to.records) {
			t.Fatalf("%v: %q became %q", err, from.records, to.records)
		}
		for i := 0; i+2 < len(sizes); i++ { // the last one is io.EOF's
			if sizes[i]+sizes[i+1]+3*5 <= len(buf) {
				t.Fatalf("chunks of %v bytes for a buffer of %d", sizes, len(buf))
			}
		}
	}
}

// once answers one chunk.
func once(chunk []byte) func() ([]byte, error) {
	done := false
	return func() ([]byte, error) {
		if done {
			return nil, io.EOF
		}
		done = true
		return chunk, nil
	}
}

func TestReceiveSnapshotStops(t *testing.T) {
	boom := errors.New("boom")
	if err := receiveSnapshot(&plain{}, func() ([]byte, error) { return nil, boom }); !errors.Is(err, boom) {
		t.Errorf("a stream that breaks: %v", err)
	}
	whole := appendChunkRecord(nil, []byte("key"), []byte("value"))
	for n := 1; n < len(whole); n++ {
		to := &plain{}
		if err := receiveSnapshot(to, once(whole[:n])); !errors.Is(err, store.ErrBadSnapshot) || to.finished {
			t.Errorf("a chunk cut to %d bytes: %v", n, err)
		}
	}
	failing := &snapshotChunks{from: failingReader{boom}}
	if _, err := failing.next(make([]byte, 10)); !errors.Is(err, boom) {
		t.Errorf("a reader that fails: %v", err)
	}
}

type failingReader struct{ err error }

func (r failingReader) Next() ([]byte, []byte, bool, error) { return nil, nil, false, r.err }

func FuzzReceiveSnapshot(f *testing.F) {
	f.Add(appendChunkRecord(appendChunkRecord(nil, []byte("ca"), []byte("1")), []byte("cb"), nil))
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01})
	f.Fuzz(func(t *testing.T, chunk []byte) {
		to := &plain{}
		if err := receiveSnapshot(to, once(chunk)); err != nil {
			if !errors.Is(err, store.ErrBadSnapshot) || to.finished {
				t.Fatal(err)
			}
			return
		}
		again := &plain{}
		if err := receiveSnapshot(again, once(packed(to.records))); err != nil || !slices.Equal(again.records, to.records) {
			t.Fatalf("%q became %q, %v", to.records, again.records, err)
		}
	})
}

func packed(records [][2]string) (chunk []byte) {
	for _, r := range records {
		chunk = appendChunkRecord(chunk, []byte(r[0]), []byte(r[1]))
	}
	return chunk
}

// TestInstallOrder cuts the power at every moment of an installation: what is
// found then is the state of before or that of the snapshot, log and state fit
// each other, and no vote that was synced is forgotten.
func TestInstallOrder(t *testing.T) {
	for _, percent := range []int{0, 50, 100} {
		t.Run(fmt.Sprint(percent, " percent of the unsynced kept"), func(t *testing.T) {
			mem := vfs.NewCrashableMem()
			c := &installCrash{t: t, mem: mem, percent: percent, rng: rand.New(rand.NewPCG(uint64(percent), 3))}
			c.fs = &diskFS{FS: mem, before: func(op diskOp) error { c.cut("before " + op.class()); return nil },
				after: func(op diskOp) { c.cut("after " + op.class()) }}
			c.run()
			steps := map[string]int{}
			for _, cut := range c.cuts {
				steps[c.check(cut)]++
			}
			if steps["before"] < 3 || steps["between"] < 3 || steps["after"] < 3 {
				t.Errorf("power cuts left %v", steps)
			}
			t.Logf("%d power cuts left %v", len(c.cuts), steps)
		})
	}
}

type installCut struct {
	where     string
	fs        *vfs.MemFS
	announced bool // the vote must be there
	settled   bool // the snapshot must be there
}

type installCrash struct {
	t       *testing.T
	fs      *diskFS
	mem     *vfs.MemFS
	percent int
	rng     *rand.Rand

	mu                        sync.Mutex
	armed, announced, settled bool
	cuts                      []installCut
}

func (c *installCrash) cut(where string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.armed {
		return
	}
	c.fs.reuse.Lock()
	defer c.fs.reuse.Unlock()
	c.cuts = append(c.cuts, installCut{where: where, announced: c.announced, settled: c.settled,
		fs: c.mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: c.percent, RNG: c.rng})})
}

func (c *installCrash) open(fs vfs.FS) (*raftlog.Log, *store.DB, *raftlog.Shard) {
	c.t.Helper()
	fatal := func(err error) { c.t.Errorf("fatal: %v", err) }
	log, err := raftlog.Open("d/log", raftlog.Options{FS: fs, Fatal: fatal})
	if err != nil {
		c.t.Fatal(err)
	}
	db, err := store.Open("d/state", store.Options{FS: fs, Fatal: fatal, FileBytes: 100})
	if err != nil {
		c.t.Fatal(err)
	}
	shard, err := log.Shard(7)
	if err != nil {
		c.t.Fatal(err)
	}
	return log, db, shard
}

// run has a replica with entries 2 to 12 of term 1, of which 10 are flushed,
// install a snapshot up to entry 40.
func (c *installCrash) run() {
	log, db, shard := c.open(c.fs)
	c.must(errors.Join(syncDir(c.fs, "d"), syncDir(c.fs, "")))
	counter := record.Cell{Has: record.HasCounter, Sum: 10}
	err := db.WriteCheckpoint(store.Checkpoint{Shard: 7, Applied: record.Applied{Index: 10, Term: 1, Counts: record.Counts{Counters: 1, Keys: 1}},
		Replica: &record.Replica{RaftID: 3}, Records: []store.CheckpointRecord{{Key: []byte("sum"), Cell: counter}, {Key: []byte("old"), Cell: counter}}})
	c.must(err)
	c.must(log.Commit([]raftlog.Append{{Shard: shard, Reset: &raftlog.Reset{Index: 1, Term: 1}, Entries: someEntries(2, 12, 1),
		HardState: hardState(4, 1, 12), Sync: true}}))
	m, a := offer(c.t)
	c.mu.Lock()
	c.armed = true
	c.mu.Unlock()
	install, err := db.BeginInstall(7, a, record.Replica{RaftID: 3})
	c.must(err)
	counter.Sum = 40
	c.must(receiveSnapshot(install, once(appendChunkRecord(nil, []byte("csum"), record.AppendCounter(nil, &counter)))))
	meta := m.GetSnapshot().GetMetadata()
	i := installation{log: shard, snapshot: raftlog.Reset{Index: meta.GetIndex(), Term: meta.GetTerm()},
		hard: hardState(6, 2, 40), entries: someEntries(41, 42, 6)}
	c.must(log.Commit([]raftlog.Append{i.announce()}))
	c.note(&c.announced)
	var writing sync.Mutex
	c.must(i.run(heldCommit{c.t, &writing, install}, &writing, func(a raftlog.Append) error {
		if !writing.TryLock() {
			c.t.Error("checkpoints wait for the log")
		} else {
			writing.Unlock()
		}
		return log.Commit([]raftlog.Append{a})
	}))
	c.note(&c.settled)
	c.must(errors.Join(db.Close(), log.Close()))
	c.cut("at the end")
}

func (c *installCrash) note(step *bool) {
	c.mu.Lock()
	*step = true
	c.mu.Unlock()
	c.cut("after a step")
}

func (c *installCrash) must(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatal(err)
	}
}

// check starts on what a power cut has left, and answers between which steps it
// was.
func (c *installCrash) check(cut installCut) string {
	c.t.Helper()
	log, db, shard := c.open(cut.fs)
	defer func() { c.must(errors.Join(db.Close(), log.Close())) }()
	applied, _, err := db.Applied(7)
	c.must(err)
	replica, ok, err := db.Replica(7)
	if err != nil || !ok || replica.RaftID != 3 {
		c.t.Fatalf("%s: the replica is %+v, %v", cut.where, replica, err)
	}
	last, _ := shard.LastIndex()
	step := "before"
	if applied.Index == 40 {
		step = "between"
		if last >= 40 {
			step = "after"
		}
	}
	var sum, old record.Cell
	c.must(errors.Join(db.Load(7, []byte("sum"), &sum), db.Load(7, []byte("old"), &old)))
	if uint64(sum.Sum) != applied.Index || old.Exists() != (applied.Index == 10) || cut.settled && step != "after" {
		c.t.Fatalf("%s: %+v and %+v at entry %d, log up to %d", cut.where, sum, old, applied.Index, last)
	}
	if err := shard.PrepareRestart(applied.Index, applied.Term); err != nil {
		c.t.Fatalf("%s, state at %d, log up to %d: %v", cut.where, applied.Index, last, err)
	}
	term, vote, commit := shard.HardState()
	if cut.announced && (term != 6 || vote != 2) || commit < applied.Index || commit > max(applied.Index, last) {
		c.t.Fatalf("%s: hard state is %d, %d, %d with the state at %d", cut.where, term, vote, commit, applied.Index)
	}
	shard.SetConfState(&raftpb.ConfState{Voters: []uint64{1, 2, 3}})
	_, err = raft.NewRawNode(&raft.Config{ID: 3, Applied: applied.Index, Storage: shard, ElectionTick: 10, HeartbeatTick: 1,
		MaxSizePerMsg: 1, MaxInflightMsgs: 1, AsyncStorageWrites: true,
		Logger: raftLogger{slog.New(slog.DiscardHandler)}})
	c.must(err)
	return step
}

func someEntries(from, to, term uint64) (entries []*raftpb.Entry) {
	for i := from; i <= to; i++ {
		entries = append(entries, &raftpb.Entry{Index: new(i), Term: new(term), Data: bytes.Repeat([]byte("x"), 10)})
	}
	return entries
}

func hardState(term, vote, commit uint64) *raftpb.HardState {
	return &raftpb.HardState{Term: new(term), Vote: new(vote), Commit: new(commit)}
}

// TestInstallFails: what is not in the state must not begin the log.
func TestInstallFails(t *testing.T) {
	boom := errors.New("boom")
	i := installation{}
	err := i.run(failingCommit{boom}, &sync.Mutex{}, func(raftlog.Append) error { t.Error("the log was reset"); return nil })
	if !errors.Is(err, boom) {
		t.Errorf("%v", err)
	}
}

// heldCommit sees that no checkpoint is written while the state changes.
type heldCommit struct {
	t       *testing.T
	writing *sync.Mutex
	install *store.Install
}

func (h heldCommit) Commit() error {
	if h.writing.TryLock() {
		h.writing.Unlock()
		h.t.Error("a checkpoint could be written while a snapshot is installed")
	}
	return h.install.Commit()
}

type failingCommit struct{ err error }

func (f failingCommit) Commit() error { return f.err }
