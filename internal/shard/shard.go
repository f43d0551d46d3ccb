// Package shard is one replicated state machine as a step function: events and
// a time go in; log appends, messages, record loads and finished requests come
// out. It starts no goroutine and reads no clock, random source or file; a
// runner (internal/broker) drives it, and so does the simulation.
//
// The owner (the Raft leader) evaluates operations on the newest state, which
// is the applied state under what is in flight, and proposes the resulting
// record writes; a reply waits until all that it saw or wrote is committed.
// The numbered rules in the comments are those of design.md section 3.
package shard

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/invariant"
	"github.com/felix-go/felix/internal/store"
)

// Log is the shard's Raft log as the shard needs it; reads only, since appends
// go out through Output.
type Log interface {
	raft.Storage
	// SetConfState sets the membership that InitialState answers with.
	SetConfState(*raftpb.ConfState)
	// Compact drops the entries up to index; the error is raft.ErrUnavailable
	// where the log does not reach it.
	Compact(index uint64) error
}

// Now is the time of a step, from the runner.
type Now struct {
	WallMillis int64         // Unix time; may jump
	Mono       time.Duration // since some start; never goes back
}

// Config describes a replica.
type Config struct {
	ID          uint64 // of the shard, unique in the cluster, never reused
	RaftID      uint64 // of this replica, never reused
	Consistency felix.Consistency
	Log         Log
	Table       *store.Table // as of the DB's Applied; the log reaches it
	Logger      raft.Logger
	// ElectionTicks and HeartbeatTicks are in calls of Tick.
	ElectionTicks  int
	HeartbeatTicks int
	// MaxInflightBytes bounds what is evaluated and not applied, and what waits
	// for somebody to be elected.
	MaxInflightBytes int64
	// MaxEntryBytes is about how large an entry may grow before the next one
	// is begun.
	MaxEntryBytes int
	// MaxApplyBytes is about how much of the log one step applies, so that a
	// replay does not keep the runner from everything else.
	MaxApplyBytes int
	// Room asks for memory for what a request has read, and says whether there
	// is so much. It is asked seldom, and Request.Bytes says how much was taken.
	Room func(bytes int64) bool
	// Reads is how reads of a quorum cache are confirmed. LeaseFor is how long a
	// leader can rely on what a majority has heard of it: less than the shortest
	// time that ElectionTicks of a follower may take, on the slowest clock.
	Reads    ReadMode
	LeaseFor time.Duration
	// SilentTicks is for how long the replica neither votes nor campaigns, since
	// it may have heard of a leader just before it was started: as many as the
	// others' ElectionTicks, 0 for a shard that has just been made.
	SilentTicks int
	// Runner is what the runner wants to find again with an Append.
	Runner any
}

// Output is what a step wants done. The runner empties it between steps.
type Output struct {
	Appends  []Append          // in order
	Messages []*raftpb.Message // to other replicas; may go out at once
	Loads    []Load            // read from the DB, then hand to Loaded
	Scans    []*Request        // ready for a DB cursor, which must be opened before the next step
	Done     []*Request        // finished
	// Returned are requests of which nothing was evaluated, because another
	// replica leads the shard, or may: see Lead and Strays.
	Returned []*Request
	Changed  []*Shard // its leader, term, ownership or configuration may have changed
}

// Append is log data to make durable. When it is (for Sync: on disk; otherwise
// merely written), the Responses go to Step of this shard or to the peers that
// they name. Appends of one shard are handled in order.
type Append struct {
	Shard     *Shard
	Entries   []*raftpb.Entry
	HardState *raftpb.HardState
	// Snapshot, if it is not nil, is of a state that takes the place of this
	// replica's, and of its log: see Installed.
	Snapshot  *raftpb.SnapshotMetadata
	Sync      bool
	Own       bool // made while this replica led the shard
	Responses []*raftpb.Message
}

// Load is a record to read from the DB.
type Load struct {
	Shard      *Shard
	Ref        store.Ref
	Generation uint64
	Key        []byte
	ID         bool // the record of an id, whose record.IDKey Key is
}

// proposal is an entry that this owner proposed and that is not applied yet.
type proposal struct {
	index   uint64
	bytes   int64         // of the payload
	touched []store.Touch // of the payload's writes; nil for a ClearShard
	ids     int64         // how many it makes more
	clear   bool
	born    time.Duration
}

// Shard is one replica. It is not safe for concurrent use.
type Shard struct {
	cfg   Config
	node  *raft.RawNode
	table *store.Table
	now   Now
	clock clock

	leader  bool
	lead    uint64 // the leader's Raft id, as far as this replica knows; 0 is none
	term    uint64 // current Raft term
	changed bool   // for Output.Changed
	conf    *raftpb.ConfState
	alone   bool // this replica is the only voter: nobody else can lead
	// confIndex is the last entry with a change that this leader proposed.
	confIndex  uint64
	retryTicks int  // see stepConf
	eligible   bool // see SetEligible
	campaigns  bool // see SetCampaigns
	silent     int  // ticks until the replica may vote
	leaderless int  // ticks since it knew a leader
	handover   handover
	installing uint64 // the last index of the snapshot under way; 0 is none
	// firstOwn is the index of this leader's first entry of its term, 0
	// before that is in the log. Nothing is evaluated until it is applied
	// (rule 1).
	firstOwn    uint64
	lastIndex   uint64 // of the log, counting what is not durable yet
	commit      uint64
	nextVersion uint64 // the lowest version that this owner has not given; 0 until it evaluates
	ceilingFrom uint64 // index of the entry that last raised the clock's ceiling

	submitted uint64     // requests, ever
	seen      uint64     // of these, by the last step
	queue     []*Request // not evaluated, in order
	held      []*Request // not evaluated and older than queue; see Hold
	waiting   []*Request // evaluated, not answered
	local     []*Request // local scans that wait
	loads     map[store.Ref]*pendingLoad
	proposals []proposal // in index order: evaluated, not applied
	inflight  int64      // bytes of proposals
	entry     entry      // being built; empty between steps
	payload   []byte     // of the newest proposal; used again, since Raft copies it
	ids       ids
	refs      []store.Ref
	hashes    []uint64        // scratch of findAll, as groupRefs
	groupRefs []store.Ref     // of the group whose turn it is
	touches   [][]store.Touch // to use again
	// groupCells and so on are scratch of evaluateGroup.
	groupCells               []groupCell
	groupIndex, groupBuckets []int

	holdWrites, holdReplay bool  // see Hold
	aside                  aside // which requests held has
	// unapplied are Raft's orders to apply committed entries, in order;
	// applyLeft is how many bytes of them this step may still apply.
	unapplied []*raftpb.Message
	applyLeft int

	rounds       uint64 // that this leader has begun, as Raft counts them
	fenceSeq     uint64 // of the last round begun
	fenceDone    uint64 // of the last round confirmed
	fencePending bool
	fenceWanted  bool
	fenceBegan   time.Duration // when the last round was begun, on Now.Mono
	lease        lease
	leased       bool // some of waiting rest on it

	stats Stats
}

type pendingLoad struct {
	waiters []*Request
}

// Stats counts what the shard did since it was made.
type Stats struct {
	Operations uint64
	Entries    uint64 // proposed
	EntryBytes uint64
	Applied    uint64 // entries
}

// New makes a replica from its log and table, which agree (design.md section
// 5, "Restart order"). One that begins with neither takes part once it has a
// snapshot: its log ends at entry 0 and everybody else's begins after entry 1,
// so that no append fits it.
func New(cfg Config) (*Shard, error) {
	applied := cfg.Table.Applied()
	conf := &raftpb.ConfState{}
	if err := proto.Unmarshal(applied.ConfState, conf); err != nil {
		return nil, fmt.Errorf("shard %d: its Raft configuration cannot be read: %w", cfg.ID, err)
	}
	cfg.Log.SetConfState(conf)
	last, err := cfg.Log.LastIndex()
	if err != nil {
		return nil, fmt.Errorf("shard %d: reading its log: %w", cfg.ID, err)
	}
	node, err := newNode(&cfg, applied.Index)
	if err != nil {
		return nil, fmt.Errorf("shard %d: %w", cfg.ID, err)
	}
	s := &Shard{cfg: cfg, node: node, table: cfg.Table, lastIndex: last, commit: applied.Index,
		loads: map[store.Ref]*pendingLoad{}, eligible: true, campaigns: true, silent: cfg.SilentTicks, ids: ids{most: math.MaxInt64}}
	s.term = node.BasicStatus().GetTerm()
	if s.setConf(conf); s.alone {
		// Nobody else can lead: do not wait for the election timeout.
		if err := node.Campaign(); err != nil {
			return nil, fmt.Errorf("shard %d: %w", cfg.ID, err)
		}
	}
	return s, nil
}

func newNode(cfg *Config, applied uint64) (*raft.RawNode, error) {
	return raft.NewRawNode(&raft.Config{
		ID:                        cfg.RaftID,
		ElectionTick:              cfg.ElectionTicks,
		HeartbeatTick:             cfg.HeartbeatTicks,
		Storage:                   cfg.Log,
		Applied:                   applied,
		AsyncStorageWrites:        true,
		MaxSizePerMsg:             1 << 20,
		MaxCommittedSizePerReady:  uint64(cfg.MaxApplyBytes),
		MaxUncommittedEntriesSize: math.MaxUint64, // rule 2: bounded before evaluating
		MaxInflightMsgs:           64,
		MaxInflightBytes:          4 << 20,
		CheckQuorum:               true,
		PreVote:                   true,
		DisableProposalForwarding: true, // rule 1
		StepDownOnRemoval:         true,
		Logger:                    cfg.Logger,
	})
}

// ID is the shard's id.
func (s *Shard) ID() uint64 { return s.cfg.ID }

// Table is the shard's table, for the runner to take checkpoints of between
// steps.
func (s *Shard) Table() *store.Table { return s.table }

// Stats is what the shard did so far.
func (s *Shard) Stats() Stats { return s.stats }

// Owns says whether this replica is the owner and evaluates operations.
func (s *Shard) Owns() bool { return s.mayEvaluate() && s.eligible && s.handover.to == 0 }

// mayEvaluate is rule 1: the state is not the newest before the leader's own
// first entry is applied.
func (s *Shard) mayEvaluate() bool {
	return s.leader && s.firstOwn != 0 && s.table.Applied().Index >= s.firstOwn
}

// Leader says whether this replica is the Raft leader, which it is before it
// Owns the shard.
func (s *Shard) Leader() bool { return s.leader }

// Lead is the Raft id of the leader that this replica knows of, 0 is none.
func (s *Shard) Lead() uint64 { return s.lead }

// Strays says that requests should not wait here for a leader, for this replica
// may never hear of one, though others do: it has no vote, as before its shard has
// taken it in, or has found no leader for some time, as when it was removed and
// does not know. A change is seen in Output.Changed.
func (s *Shard) Strays() bool {
	return !s.leader && s.lead == raft.None && (!s.votes() || s.leaderless >= s.patience())
}

// Owned says whether the replica knows the shard's leader, or is it.
func (s *Shard) Owned() bool { return s.leader || s.lead != raft.None }

// patience is for how many ticks a voter waits for an election.
func (s *Shard) patience() int { return 2 * s.cfg.ElectionTicks }

func (s *Shard) votes() bool {
	return slices.Contains(s.conf.GetVoters(), s.cfg.RaftID) || slices.Contains(s.conf.GetVotersOutgoing(), s.cfg.RaftID)
}

// countLeaderless is for each tick.
func (s *Shard) countLeaderless() {
	if s.Owned() {
		return
	}
	if s.leaderless++; s.leaderless == s.patience() {
		s.changed = true
	}
}

// Runner is Config.Runner.
func (s *Shard) Runner() any { return s.cfg.Runner }

// Consistency is the cache's.
func (s *Shard) Consistency() felix.Consistency { return s.cfg.Consistency }

// Log is the shard's log.
func (s *Shard) Log() Log { return s.cfg.Log }

// Compact drops the log up to index, which a durable checkpoint covers.
func (s *Shard) Compact(index uint64) error { return s.cfg.Log.Compact(index) }

// Submit queues a request. It comes back through Output.Done, Scans or Returned.
func (s *Shard) Submit(r *Request) {
	r.reset()
	r.ShardID = s.cfg.ID
	s.submitted++
	r.number = s.submitted
	s.enqueue(r)
}

func (s *Shard) enqueue(r *Request) {
	if r.Kind == LocalScan {
		s.local = append(s.local, r)
	} else {
		s.queue = append(s.queue, r)
	}
}

// Step hands in the response of an Append to this replica itself. A message that
// Raft has no use for is dropped.
func (s *Shard) Step(m *raftpb.Message) error {
	err := s.node.Step(m)
	if err == nil || errors.Is(err, raft.ErrProposalDropped) || errors.Is(err, raft.ErrStepPeerNotFound) {
		return nil
	}
	return fmt.Errorf("shard %d: Raft message %v: %w", s.cfg.ID, m.GetType(), err)
}

// StepPeer hands in a message from another replica. One that Raft has no use
// for, or that is malformed, is dropped, as the network might. That goes for
// proposals and reads, too: they are never forwarded (rule 1).
func (s *Shard) StepPeer(m *raftpb.Message) {
	if why := s.malformed(m); why != "" {
		s.cfg.Logger.Warningf("a %v of replica %d is dropped: %s", m.GetType(), m.GetFrom(), why)
		return
	}
	switch m.GetType() {
	case raftpb.MsgApp, raftpb.MsgSnap, raftpb.MsgHeartbeat:
	case raftpb.MsgAppResp, raftpb.MsgHeartbeatResp, raftpb.MsgVoteResp, raftpb.MsgPreVoteResp:
		if !s.asks() {
			return
		}
	case raftpb.MsgVote, raftpb.MsgPreVote:
		if s.silent > 0 && !transfers(m) {
			return
		}
	case raftpb.MsgTimeoutNow:
		if !s.eligible || !s.campaigns {
			return
		}
	default:
		return
	}
	_ = s.node.Step(m) // the errors are of messages that do not fit
}

// asks says whether this replica may have asked for a response. Raft looks at the
// term of any, and one that comes late, of a higher term, would make a follower
// forget its leader, and break the promise to it on which a lease rests.
func (s *Shard) asks() bool { return s.leader || s.node.BasicStatus().RaftState != raft.StateFollower }

// Tick moves Raft's logical clock, and says whether there is now something for
// Advance to do.
func (s *Shard) Tick() (busy bool) {
	s.node.Tick()
	s.silent = max(0, s.silent-1)
	s.handover.ticks = max(0, s.handover.ticks-1)
	s.retryTicks = max(0, s.retryTicks-1)
	s.countLeaderless()
	return s.Busy()
}

// Busy says whether there is something for Advance to do, beside what was handed
// in.
func (s *Shard) Busy() bool {
	return s.changed || s.handover.to != 0 || s.leader && len(s.conf.GetVotersOutgoing()) > 0 || s.node.HasReady() || s.Unfinished() || len(s.queue)+len(s.held)+len(s.waiting)+len(s.local) > 0
}

// Advance does all that can be done at this time, or as much of it as is enough
// for one step: see Unfinished.
func (s *Shard) Advance(now Now, out *Output) error {
	s.now = now
	s.applyLeft = s.cfg.MaxApplyBytes
	s.expire(out)
	if err := s.handleReady(out); err != nil {
		return err
	}
	s.returnQueue(out)
	s.boundQueue(out)
	for s.evaluate(out) {
		if err := s.handleReady(out); err != nil {
			return err
		}
	}
	s.startFence()
	if err := s.handleReady(out); err != nil {
		return err
	}
	s.lookLocal(out)
	s.release(out)
	left := s.stepConf()
	if s.stepHandover() || left {
		if err := s.handleReady(out); err != nil {
			return err
		}
	}
	s.seen = s.submitted
	s.table.TrimStep()
	if s.changed {
		s.changed = false
		out.Changed = append(out.Changed, s)
	}
	return nil
}

// returnQueue gives back what was not evaluated when somebody else leads, or may
// (Strays): the runner knows where to send it. What was evaluated in part is never given back,
// or it might be applied twice: loseLeadership has failed it.
func (s *Shard) returnQueue(out *Output) {
	if s.leader || s.lead == raft.None && !s.Strays() {
		return
	}
	s.queue = append(s.held, s.queue...)
	s.held = nil
	for _, r := range s.queue {
		invariant.Check(r.next == 0, "shard %d: a request was evaluated by a replica that does not lead", s.cfg.ID)
		s.unpin(r)
		out.Returned = append(out.Returned, r)
	}
	clear(s.queue)
	s.queue = s.queue[:0]
}

// Close fails every request that is under way with err, or without one returns
// those of which nothing was evaluated. The shard must not be used afterwards.
func (s *Shard) Close(err *felix.Error, out *Output) {
	s.loseLeadership(out)
	for _, l := range s.loads {
		for _, r := range l.waiters {
			if r.loading > 0 {
				r.loading = 0
				s.enqueue(r)
			}
		}
	}
	s.loads = nil
	s.queue = append(s.queue, s.held...)
	s.held = nil
	inOrder(s.queue)
	for _, r := range s.queue {
		if err == nil {
			out.Returned = append(out.Returned, r)
		} else {
			s.fail(r, err, out)
		}
	}
	s.queue = nil
	for _, r := range s.local {
		s.fail(r, cmp.Or(err, errNoOwner), out)
	}
	s.local = nil
	s.table.Release()
}
