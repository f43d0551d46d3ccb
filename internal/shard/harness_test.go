package shard

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/cryptotest"
	"time"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/record"
	"github.com/felix-go/felix/internal/store"
)

// The harness runs the replicas of one shard in one goroutine. Nothing moves
// unless the test says so: messages wait in the network, appends wait to be
// durable, loads wait to be answered, and time stands still.

const (
	testElectionTicks = 10
	wallStart         = 1_800_000_000_000
	longWait          = time.Hour
)

// memLog is what is durable of a replica's log.
type memLog struct {
	*raft.MemoryStorage
	conf   *raftpb.ConfState
	source func() (*raftpb.Snapshot, error)
}

func (l *memLog) Snapshot() (*raftpb.Snapshot, error) { return l.source() }

func (l *memLog) SetConfState(conf *raftpb.ConfState) { l.conf = conf }

func (l *memLog) InitialState() (*raftpb.HardState, *raftpb.ConfState, error) {
	hard, _, err := l.MemoryStorage.InitialState()
	return hard, l.conf, err
}

// refuser is a logger that ends the test where Raft would end the process.
type refuser struct{}

func (refuser) Debug(...any)              {}
func (refuser) Debugf(string, ...any)     {}
func (refuser) Info(...any)               {}
func (refuser) Infof(string, ...any)      {}
func (refuser) Warning(...any)            {}
func (refuser) Warningf(string, ...any)   {}
func (refuser) Error(v ...any)            { panic(fmt.Sprint(v...)) }
func (refuser) Errorf(f string, v ...any) { panic(fmt.Sprintf(f, v...)) }
func (refuser) Fatal(v ...any)            { panic(fmt.Sprint(v...)) }
func (refuser) Fatalf(f string, v ...any) { panic(fmt.Sprintf(f, v...)) }
func (refuser) Panic(v ...any)            { panic(fmt.Sprint(v...)) }
func (refuser) Panicf(f string, v ...any) { panic(fmt.Sprintf(f, v...)) }

// replica is one replica with its disk.
type replica struct {
	c      *cluster
	id     uint64
	*Shard        // nil while it is down
	paused *Shard // instead, while its process does not run
	log    *memLog
	budget *store.Budget

	db        map[string]record.Cell // checkpoints
	dbApplied record.Applied
	wanted    bool              // a checkpoint, for a snapshot
	staged    map[uint64]*state // snapshots that have come, by index

	out      Output
	appends  []Append // in order, not durable yet
	loads    []Load
	returned []*Request // until it leads, or knows no leader
	hold     bool       // run makes nothing durable
	slow     bool       // run installs no snapshot
	stuck    bool       // run answers no loads
	skew     int64
}

// state is what a DB holds of the shard, as a snapshot carries it.
type state struct {
	db      map[string]record.Cell
	applied record.Applied
}

// call is a request of a client.
type call struct {
	*Request
	on   *replica
	done bool
	lost bool // the replica crashed first
}

func (k *call) reply(i int) felix.Reply { return k.Batch.Replies[i] }

// cluster is the replicas of a shard and the network between them.
type cluster struct {
	t     testing.TB
	nodes []*replica
	net   []*raftpb.Message
	cut   map[uint64]bool            // what it sends and gets is lost
	block func(*raftpb.Message) bool // what stays in the network; nil is nothing
	mono  time.Duration
	calls map[*Request]*call
	cfg   Config // of every replica, as far as it is the same

	changed func(*replica) // told of Output.Changed; may be nil
	pause   func(*replica) // called between Advance and Confirm; may be nil
	// forward sends a request that came back on, or says that it cannot; may be
	// nil.
	forward func(*replica, *Request) bool
	// snapshots are those that were sent; their Data is the position here.
	snapshots []*state
	// power says whether the power is cut after this step of an install; nil
	// is never.
	power func(r *replica, step int) bool
}

// newCluster makes n voters; seed is for Raft's election timeouts.
func newCluster(t *testing.T, n int, consistency felix.Consistency, seed uint64) *cluster {
	cryptotest.SetGlobalRandom(t, seed)
	c := &cluster{t: t, cut: map[uint64]bool{}, calls: map[*Request]*call{}, cfg: Config{
		ID: 9, Consistency: consistency, Logger: refuser{}, ElectionTicks: testElectionTicks, HeartbeatTicks: 1,
		MaxInflightBytes: 1 << 20, MaxEntryBytes: 64 << 10, MaxApplyBytes: 1 << 20,
		Room: func(int64) bool { return true }}}
	conf := &raftpb.ConfState{}
	for id := range uint64(n) {
		conf.Voters = append(conf.Voters, id+1)
	}
	encoded, err := proto.Marshal(conf)
	if err != nil {
		t.Fatal(err)
	}
	for range conf.GetVoters() {
		r := c.add()
		r.dbApplied = record.Applied{Index: 1, Term: 1, ConfState: encoded}
		r.begin(r.dbApplied)
		r.start()
	}
	return c
}

// add makes a replica that has nothing, and is not started.
func (c *cluster) add() *replica {
	r := &replica{c: c, id: uint64(len(c.nodes)) + 1, log: &memLog{MemoryStorage: raft.NewMemoryStorage()},
		db: map[string]record.Cell{}, staged: map[uint64]*state{}, budget: &store.Budget{MaxBytes: 1 << 30}}
	r.log.source = r.snapshot
	c.nodes = append(c.nodes, r)
	return r
}

// begin makes the log begin after a state.
func (r *replica) begin(a record.Applied) {
	hard, _, err := r.log.InitialState()
	r.c.must(err)
	hard = &raftpb.HardState{Term: new(max(a.Term, hard.GetTerm())), Vote: new(hard.GetVote()), Commit: new(a.Index)}
	r.c.must(r.log.ApplySnapshot(&raftpb.Snapshot{Metadata: metadata(a)}))
	r.c.must(r.log.SetHardState(hard))
}

func metadata(a record.Applied) *raftpb.SnapshotMetadata {
	conf := &raftpb.ConfState{}
	if err := proto.Unmarshal(a.ConfState, conf); err != nil {
		panic(err)
	}
	return &raftpb.SnapshotMetadata{Index: new(a.Index), Term: new(a.Term), ConfState: conf}
}

// snapshot is what Raft asks a leader for: the last checkpoint, unless the
// configuration has changed since.
func (r *replica) snapshot() (*raftpb.Snapshot, error) {
	if !bytes.Equal(r.dbApplied.ConfState, r.table.Applied().ConfState) {
		r.wanted = true
		return nil, raft.ErrSnapshotTemporarilyUnavailable
	}
	return &raftpb.Snapshot{Metadata: metadata(r.dbApplied)}, nil
}

func (c *cluster) must(err error) {
	if err != nil {
		c.t.Helper()
		c.t.Fatal(err)
	}
}

// start makes the replica from its disk, as after a restart.
func (r *replica) start() {
	cfg := r.c.cfg
	hard, _, err := r.log.InitialState()
	r.c.must(err)
	// Design.md section 5, "Restart order".
	if term, err := r.log.Term(r.dbApplied.Index); err != nil || term != r.dbApplied.Term {
		r.begin(r.dbApplied)
	} else if hard.GetCommit() < r.dbApplied.Index {
		hard.Commit = new(r.dbApplied.Index)
		r.c.must(r.log.SetHardState(hard))
	}
	cfg.RaftID, cfg.Log, cfg.Table = r.id, r.log, store.NewTable(r.dbApplied, r.budget)
	s, err := New(cfg)
	r.c.must(err)
	r.Shard = s
}

// crash loses what is not durable, and what clients wait for.
func (r *replica) crash() {
	r.table.Release()
	r.Shard, r.appends, r.loads, r.returned, r.wanted = nil, nil, nil, nil, false
	clear(r.staged)
	for _, k := range r.c.calls {
		k.lost = k.lost || k.on == r && !k.done
	}
}

func (r *replica) now() Now {
	return Now{WallMillis: wallStart + r.c.mono.Milliseconds() + r.skew, Mono: r.c.mono}
}

// advance lets the replica work at the present time.
func (r *replica) advance() {
	if r.Shard == nil {
		return
	}
	r.resubmit()
	r.c.must(r.Advance(r.now(), &r.out))
	if r.Leased() {
		if r.c.pause != nil {
			r.c.pause(r)
		}
		r.Confirm(r.now(), &r.out)
	}
	r.take()
	if r.wanted {
		r.wanted = false
		r.checkpoint()
	}
}

// resubmit is what a runner without peers does with requests that it was
// given back.
func (r *replica) resubmit() {
	r.returned = slices.DeleteFunc(r.returned, func(q *Request) bool {
		switch {
		case q.Deadline <= r.c.mono:
			r.fail(q, errNoOwner, &r.out)
		case r.leader || r.lead == raft.None:
			r.Submit(q)
		default:
			return r.c.forward != nil && r.c.forward(r, q)
		}
		return true
	})
}

// take does with the output what a runner does.
func (r *replica) take() {
	o := &r.out
	r.appends = append(r.appends, o.Appends...)
	for _, m := range o.Messages {
		if m.GetType() == raftpb.MsgSnap { // the newest checkpoint, which may be newer than Raft knows
			m.Snapshot = &raftpb.Snapshot{Metadata: metadata(r.dbApplied), Data: []byte(fmt.Sprint(len(r.c.snapshots)))}
			r.c.snapshots = append(r.c.snapshots, &state{maps.Clone(r.db), r.dbApplied})
		}
		r.c.send(m)
	}
	for _, q := range o.Returned {
		if q.next != 0 {
			r.c.t.Fatalf("a request comes back of which %d operations were evaluated", q.next)
		}
	}
	r.returned = append(r.returned, o.Returned...)
	if len(o.Changed) > 0 && r.c.changed != nil {
		r.c.changed(r)
	}
	r.loads = append(r.loads, o.Loads...)
	for _, s := range o.Scans {
		r.scan(s)
	}
	for _, d := range append(o.Done, o.Scans...) {
		k := r.c.calls[d]
		if k == nil || k.done {
			r.c.t.Fatalf("a request was answered that nobody waits for: %+v", d)
		}
		k.done = true
	}
	*o = Output{}
}

// scan merges the overlay with the disk.
func (r *replica) scan(s *Request) {
	merged := maps.Clone(r.db)
	if s.DiskVoid {
		clear(merged)
	}
	for _, item := range s.Overlay {
		merged[string(item.Key)] = item.Cell
	}
	s.Scanned.Items = nil
	for _, key := range slices.Sorted(maps.Keys(merged)) {
		if cell := merged[key]; cell.Has&record.HasCounter != 0 && strings.HasPrefix(key, string(s.Scan.Prefix)) {
			s.Scanned.Items = append(s.Scanned.Items, felix.ScanItem{Key: []byte(key), Int: cell.Sum, Version: cell.CounterVer})
		}
	}
}

// send puts a message into the network, as bytes: nothing is shared.
func (c *cluster) send(m *raftpb.Message) {
	if c.cut[m.GetFrom()] || c.cut[m.GetTo()] {
		c.sent(m, false)
		return
	}
	c.net = append(c.net, proto.Clone(m).(*raftpb.Message))
}

// lose loses the message at i.
func (c *cluster) lose(i int) {
	m := c.net[i]
	c.net = slices.Delete(c.net, i, i+1)
	c.sent(m, false)
}

// sent tells the sender of a snapshot what became of it.
func (c *cluster) sent(m *raftpb.Message, ok bool) {
	from := c.nodes[m.GetFrom()-1]
	if s := cmp.Or(from.Shard, from.paused); m.GetType() == raftpb.MsgSnap && s != nil {
		s.SnapshotSent(m.GetTo(), ok)
	}
}

// deliver hands over the message at i and lets its receiver work.
func (c *cluster) deliver(i int) {
	m := c.net[i]
	to := c.nodes[m.GetTo()-1]
	if to.Shard == nil || c.cut[m.GetFrom()] || c.cut[m.GetTo()] {
		c.lose(i)
		return
	}
	c.net = slices.Delete(c.net, i, i+1)
	if m.GetType() == raftpb.MsgSnap {
		i, err := strconv.Atoi(string(m.GetSnapshot().GetData()))
		c.must(err)
		to.staged[m.GetSnapshot().GetMetadata().GetIndex()] = c.snapshots[i]
	}
	c.sent(m, true)
	to.StepPeer(m)
	to.advance()
}

// sync makes the oldest append durable.
func (r *replica) sync() {
	a := r.appends[0]
	r.appends = r.appends[1:]
	if a.Snapshot != nil && !r.install(&a) {
		r.crash()
		return
	}
	if len(a.Entries) > 0 {
		entries := make([]*raftpb.Entry, len(a.Entries))
		for i, e := range a.Entries {
			entries[i] = proto.Clone(e).(*raftpb.Entry)
		}
		r.c.must(r.log.Append(entries))
	}
	if a.HardState != nil {
		r.c.must(r.log.SetHardState(a.HardState))
	}
	for _, m := range a.Responses {
		if m.GetTo() == r.id {
			r.c.must(r.Step(m))
		} else {
			r.c.send(m)
		}
	}
	r.advance()
}

// install makes a snapshot durable, in the steps of a runner, until the power
// is cut.
func (r *replica) install(a *Append) bool {
	cut := func(step int) bool { return r.c.power != nil && r.c.power(r, step) }
	hard, _, err := r.log.InitialState()
	r.c.must(err)
	if a.HardState != nil {
		r.c.must(r.log.SetHardState(&raftpb.HardState{Term: a.HardState.Term, Vote: a.HardState.Vote, Commit: new(hard.GetCommit())}))
	}
	if cut(1) {
		return false
	}
	s := r.staged[a.Snapshot.GetIndex()]
	r.db, r.dbApplied = maps.Clone(s.db), s.applied
	if cut(2) {
		return false
	}
	r.begin(s.applied)
	if cut(3) {
		return false
	}
	r.c.must(r.Installed(s.applied))
	return true
}

// load answers the oldest load.
func (r *replica) load() {
	l := r.loads[0]
	r.loads = r.loads[1:]
	cell := r.db[dbKey(l.Key, l.ID)]
	r.Loaded(l, &cell)
	r.advance()
}

// run lets everything happen that can, in order, until nothing can.
func (c *cluster) run() {
	for range 100_000 {
		if !c.runOne() {
			return
		}
	}
	c.t.Fatal("the cluster does not come to rest")
}

func (c *cluster) runOne() bool {
	for _, r := range c.nodes {
		if r.advance(); r.Shard != nil && r.Unfinished() {
			return true
		}
	}
	for _, r := range c.nodes {
		if !r.hold && len(r.appends) > 0 && (r.appends[0].Snapshot == nil || !r.slow) {
			r.sync()
			return true
		}
		if !r.stuck && len(r.loads) > 0 {
			r.load()
			return true
		}
	}
	for i, m := range c.net {
		if c.block == nil || !c.block(m) {
			c.deliver(i)
			return true
		}
	}
	return false
}

// tick moves Raft's clock, and time with it, and lets things happen.
func (c *cluster) tick(n int) {
	for range n {
		c.mono += 100 * time.Millisecond
		for _, r := range c.nodes {
			if r.Shard != nil {
				r.Tick()
			}
		}
		c.run()
	}
}

// elect makes r the leader, whatever the others have heard.
func (c *cluster) elect(r *replica) {
	c.t.Helper()
	status := r.node.BasicStatus()
	if status.GetTerm() > 1 {
		c.must(r.Step(&raftpb.Message{Type: raftpb.MsgTimeoutNow.Enum(), To: new(r.id), From: new(r.id%uint64(len(c.nodes)) + 1), Term: new(status.GetTerm())}))
	} else {
		c.must(r.node.Campaign())
	}
	c.run()
	if !r.leader {
		c.t.Fatalf("replica %d was not elected", r.id)
	}
}

// submit hands a request to the replica; it works when something happens.
func (r *replica) submit(q *Request) *call {
	if q.Deadline == 0 {
		q.Deadline = r.c.mono + longWait
	}
	k := &call{Request: q, on: r}
	r.c.calls[q] = k
	r.Submit(q)
	return k
}

// ops submits operations and lets the replica work on them.
func (r *replica) ops(ops ...felix.Op) *call {
	k := r.submit(opsRequest(ops...))
	r.advance()
	return k
}

func opsRequest(ops ...felix.Op) *Request {
	q := &Request{Batch: &felix.Batch{Ops: ops, Replies: make([]felix.Reply, len(ops))}}
	for i := range ops {
		q.Positions = append(q.Positions, int32(i))
	}
	return q
}

func add(key string, delta int64) felix.Op {
	return felix.Op{Kind: felix.Add, Key: []byte(key), Int: delta}
}

func get(key string) felix.Op { return felix.Op{Kind: felix.Get, Key: []byte(key)} }

// addTimed adds 1 to a counter that expires, so that the answer tells the time.
func addTimed(key string) felix.Op {
	return felix.Op{Kind: felix.Add, Key: []byte(key), Int: 1, TTL: felix.TTLIn, ExpiryMillis: 1 << 50}
}

// checkpoint writes the dirty records to the replica's disk.
func (r *replica) checkpoint() {
	t := r.table
	capture := t.BeginCheckpoint()
	t.CaptureSlice(capture, 1<<30)
	p := &capture.Checkpoint
	if p.Clear {
		clear(r.db)
	}
	for i := range p.Records {
		rec := &p.Records[i]
		cell := r.db[string(rec.Key)]
		if rec.OnDisk&record.HasCounter != 0 || rec.Cell.Has&record.HasCounter != 0 {
			cell.DropCounter()
			if rec.Cell.Has&record.HasCounter != 0 {
				cell.Has |= record.HasCounter
				cell.Sum, cell.CounterExpiry, cell.CounterVer = rec.Cell.Sum, rec.Cell.CounterExpiry, rec.Cell.CounterVer
			}
		}
		if rec.OnDisk&record.HasValue != 0 || rec.Cell.Has&record.HasValue != 0 {
			cell.DropValue()
			if rec.Cell.Has&record.HasValue != 0 {
				cell.Has |= record.HasValue
				cell.Value, cell.ValueExpiry, cell.ValueVer = bytes.Clone(rec.Cell.Value), rec.Cell.ValueExpiry, rec.Cell.ValueVer
			}
		}
		delete(r.db, string(rec.Key))
		if cell.Exists() {
			r.db[string(rec.Key)] = cell
		}
	}
	for i := range p.IDs {
		key := dbKey(p.IDs[i].Key, true)
		if r.db[key] = p.IDs[i].Cell; !p.IDs[i].Cell.Exists() {
			delete(r.db, key)
		}
	}
	r.dbApplied = p.Applied
	t.FinishSlice(capture, 1<<30)
}

// dbKey is where the replica's disk has a key, or an id.
func dbKey(key []byte, id bool) string {
	if id {
		return "id/" + string(key)
	}
	return string(key)
}

// want fails the test unless the call is answered as said: a sum, or a code.
func (k *call) want(what string, i int, sum int64, code felix.Code) {
	k.on.c.t.Helper()
	if !k.done {
		k.on.c.t.Fatalf("%s: no reply", what)
	}
	got := k.reply(i)
	switch {
	case code == 0 && got.Err != nil:
		k.on.c.t.Fatalf("%s: %v, want %d", what, got.Err, sum)
	case code == 0 && got.Int != sum:
		k.on.c.t.Fatalf("%s: %d, want %d", what, got.Int, sum)
	case code != 0 && (got.Err == nil || got.Err.Code != code):
		k.on.c.t.Fatalf("%s: %+v, want %v", what, got, code)
	}
}

// waits fails the test if there is a reply.
func (k *call) waits(what string) {
	k.on.c.t.Helper()
	if k.done {
		k.on.c.t.Fatalf("%s: there is a reply, %+v", what, k.Batch)
	}
}

// types blocks messages of these kinds.
func types(blocked ...raftpb.MessageType) func(*raftpb.Message) bool {
	return func(m *raftpb.Message) bool { return slices.Contains(blocked, m.GetType()) }
}

// led makes a cluster whose first replica is the owner.
func led(t *testing.T, n int, consistency felix.Consistency) (*cluster, *replica) {
	t.Helper()
	c := newCluster(t, n, consistency, 1)
	c.run()
	owner := c.nodes[0]
	if n > 1 {
		c.elect(owner)
	}
	if !owner.Owns() {
		t.Fatal("the leader does not own the shard")
	}
	return c, owner
}
