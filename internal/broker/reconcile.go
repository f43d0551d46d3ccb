package broker

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"time"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/peer"
	"github.com/felix-go/felix/internal/placement"
	"github.com/felix-go/felix/internal/record"
	"github.com/felix-go/felix/internal/shard"
)

const (
	// reconcileEvery is how often the broker looks at the metadata when nothing
	// happens, and reconcilePause how long it rests after a look: what comes
	// meanwhile is looked at together.
	reconcileEvery = 500 * time.Millisecond
	reconcilePause = 5 * time.Millisecond
	// confirmTimeout bounds how long a look waits for the metadata's owner.
	confirmTimeout = 2 * time.Second
	// campaignPause is when the preferred owner of a new shard asks for it again,
	// since the others may not have made their replicas yet; then it doubles, for
	// asking again ends an election that is under way. After campaignFor Raft's
	// own timeouts do.
	campaignPause = 100 * time.Millisecond
	campaignFor   = 3 * time.Second
)

// reconciler is what the goroutine knows that makes the broker what the metadata
// wants it to be. It compares states and never follows changes one by one, so
// that it does not matter what it has missed.
//
// What it makes or removes on disk rests on a confirmed view: a replica that was
// removed must not come back empty because a broker has read old metadata.
type reconciler struct {
	wake  chan struct{} // capacity 1
	begin chan struct{} // closed when the broker is open
	acted watermark     // the index of the metadata that has been acted on

	// The goroutine's, and before begin Open's:
	followed   *view
	peers      []peer.Peer
	introduced bool // the broker's own record says what it is
	campaigns  map[uint64]campaign
}

// campaign is a new shard that this broker should own and nobody owns yet.
type campaign struct {
	next, pause, until time.Duration
}

func newReconciler() reconciler {
	return reconciler{wake: make(chan struct{}, 1), begin: make(chan struct{}), campaigns: map[uint64]campaign{}}
}

// poke has the broker look again at what the metadata wants of it. It may be
// called from anywhere, and often.
func (b *Broker) poke() {
	select {
	case b.rec.wake <- struct{}{}:
	default:
	}
}

// awaitMeta waits until the broker has acted on the metadata up to index.
func (b *Broker) awaitMeta(ctx context.Context, index uint64) error {
	if err := b.rec.acted.await(ctx, index); err != nil {
		return felix.Errorf(felix.Unavailable, "node %d has not acted on the metadata yet: %v", b.node, err)
	}
	return nil
}

// reconcile is the reconciler's goroutine.
func (b *Broker) reconcile(ctx context.Context) {
	select {
	case <-b.rec.begin:
	case <-ctx.Done():
		return
	}
	timer := time.NewTimer(reconcileEvery)
	defer timer.Stop()
	for {
		every := reconcileEvery
		if len(b.rec.campaigns) > 0 {
			every = campaignPause
		}
		timer.Reset(every)
		select {
		case <-b.rec.wake:
		case <-timer.C:
		case <-ctx.Done():
			return
		}
		if err := b.round(ctx); err != nil && ctx.Err() == nil {
			b.opts.Fatal(err)
			return
		}
		timer.Reset(reconcilePause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			return
		}
	}
}

// round is one look at the metadata, and what follows from it. An error means
// that the broker cannot go on.
func (b *Broker) round(ctx context.Context) error {
	reading, cancel := context.WithTimeout(ctx, confirmTimeout)
	defer cancel()
	v, err := b.readView(reading)
	if err != nil {
		b.mustRead(err)
		b.opts.Logger.Debug("the metadata cannot be read", "err", err)
		return nil // next time
	}
	if err := b.follow(v); err != nil {
		return err
	}
	odd := b.strangers(v)
	if b.rec.introduced && odd.none() && len(b.surplus(v)) == 0 && len(b.lacking(v)) == 0 {
		b.rec.acted.raise(v.index)
	} else if confirmed, err := b.confirmedView(reading); err != nil {
		b.opts.Logger.Debug("the metadata cannot be confirmed", "err", err)
	} else {
		v = confirmed
		if err := b.conform(v, odd); err != nil {
			return err
		}
		if err := b.introduce(reading, v); err != nil {
			return err
		}
	}
	b.stepShards(ctx, v)
	return nil
}

// stepShards goes on with what is done step by step: it asks for new shards,
// changes the replicas of those that this broker owns, hands them to the brokers
// that should own them, and places all, if it owns the metadata.
func (b *Broker) stepShards(ctx context.Context, v *view) {
	b.campaignForNew()
	b.stepConfs(ctx, v)
	b.giveBack()
	if r := b.replicaOf(metaShard); r != nil && r.owns.Load() {
		b.drive(ctx, v)
	}
}

// follow makes known what the view tells: brokers, caches, and where the shards
// are. What is not in it any more stays, since it may be older than what is known
// from elsewhere.
func (b *Broker) follow(v *view) error {
	if v == b.rec.followed || v.cluster == nil {
		return nil
	}
	b.followPeers(v)
	b.guide(&v.cluster.Shard)
	for _, m := range v.caches {
		if err := b.sameLevel(m); err != nil {
			return err
		}
		b.know(m)
	}
	b.rec.followed = v
	if b.links != nil {
		b.links.net.Recheck()
	}
	b.watchSoon() // features may have been finalized
	return nil
}

// sameLevel says that a replica has another consistency than its cache.
func (b *Broker) sameLevel(m *cacheMeta) error {
	for _, id := range m.shardIDs() {
		if r := b.replicaOf(id); r != nil && r.shard.Consistency().String() != m.Consistency {
			return dirErrorf(b.opts.Dir, "shard %d has another consistency on disk than in the metadata: the directory is damaged, restore it", id)
		}
	}
	return nil
}

// followPeers speaks with the brokers that the view tells of, and has the clock
// compared with theirs.
func (b *Broker) followPeers(v *view) {
	if peers := v.peers(); !slices.Equal(peers, b.rec.peers) {
		b.setPeers(peers)
		b.rec.peers = peers
	}
}

// guide tells the shard's route and replica where its replicas are.
func (b *Broker) guide(s *placement.Shard) {
	if rt := b.routeOf(s.ID); rt != nil {
		rt.setAsks(asksOf(s))
	}
	if r := b.replicaOf(s.ID); r != nil {
		r.teach(s)
	}
}

// teach tells a replica where the others are.
func (r *replica) teach(s *placement.Shard) {
	replicas := slices.Clone(s.Replicas)
	r.worker.call(func() {
		news := false
		for _, p := range replicas {
			news = r.learn(p.Raft, p.Node) || news
		}
		if news && !r.closed {
			r.worker.ledBy(r)
		}
	})
}

// strangers are caches and routes that a view does not have. They are gone if a
// view that is confirmed afterwards does not have them either; otherwise they are
// newer than the first one.
type strangers struct {
	caches []*cache
	routes []*route
}

func (s *strangers) none() bool { return len(s.caches)+len(s.routes) == 0 }

func (b *Broker) strangers(v *view) (s strangers) {
	b.mu.RLock()
	defer b.mu.RUnlock()
	for scope, c := range b.caches {
		if v.caches[scope] == nil {
			s.caches = append(s.caches, c)
		}
	}
	for id, rt := range b.routes {
		if v.shards[id] == nil {
			s.routes = append(s.routes, rt)
		}
	}
	return s
}

// surplus are the replicas that this broker has and is not to have. One that is to
// go stays as long as its shard's owner says that it is there: its vote may be
// needed. The metadata's own stays in any case.
func (b *Broker) surplus(v *view) (all []*replica) {
	b.mu.RLock()
	defer b.mu.RUnlock()
	for id, r := range b.replicas {
		if id != metaShard && !v.places(id, r.raftID, b.node) {
			all = append(all, r)
		}
	}
	return all
}

// places says whether the shard has, or still has, this replica on the node.
func (v *view) places(shard, raft, node uint64) bool {
	s := v.shards[shard]
	return s != nil && slices.ContainsFunc(s.placement.Replicas, func(r placement.Replica) bool { return r.Raft == raft && r.Node == node })
}

// lacking are the shards of which this broker is to have a replica that it has
// not.
func (b *Broker) lacking(v *view) (all []*shardRef) {
	b.mu.RLock()
	defer b.mu.RUnlock()
	for id, s := range v.shards {
		if b.replicas[id] == nil && s.placement.ReplicaOn(b.node) != 0 {
			all = append(all, s)
		}
	}
	return all
}

// conform makes the broker what a confirmed view wants it to be. odd are the
// strangers to an earlier one.
func (b *Broker) conform(v *view, odd strangers) error {
	if err := b.follow(v); err != nil {
		return err
	}
	for _, c := range odd.caches {
		if v.caches[c.scope] == nil {
			b.forget(c)
		}
	}
	for _, rt := range odd.routes {
		if v.shards[rt.id] == nil {
			b.dropRoute(rt, errCacheGone)
		}
	}
	if err := b.dropReplicas(v, b.surplus(v)); err != nil {
		return err
	}
	if err := b.makeReplicas(b.lacking(v)); err != nil {
		return err
	}
	b.rec.acted.raise(v.index)
	return nil
}

// dropReplicas removes replicas that are not to be here any more, and all that the
// disk holds of them.
func (b *Broker) dropReplicas(v *view, all []*replica) error {
	var ids []uint64
	for _, r := range all {
		ids = append(ids, r.id)
		var why *felix.Error // nil: others may go on with what it has under way
		if v.shards[r.id] == nil {
			why = errCacheGone
		}
		b.release(r.route, why)
	}
	if len(ids) == 0 {
		return nil
	}
	slices.Sort(ids)
	b.opts.Cluster.OnStep("replicas-closed")
	if err := b.dropData(ids); err != nil {
		return err
	}
	b.opts.Logger.Info("replicas were removed", "shards", ids)
	b.opts.Cluster.OnStep("replicas-dropped")
	return nil
}

// makeReplicas makes and opens this broker's replicas of shards. One of the first
// replicas of its shard begins with the state that all of these begin with; any
// other waits for a snapshot.
func (b *Broker) makeReplicas(refs []*shardRef) error {
	if len(refs) == 0 {
		return nil
	}
	first := map[felix.Consistency][]placement.Shard{}
	later := map[uint64]record.Replica{}
	for _, s := range refs {
		raft := s.placement.ReplicaOn(b.node)
		if level := s.consistency(); slices.Contains(s.placement.Initial, raft) {
			first[level] = append(first[level], *s.placement)
		} else {
			later[s.placement.ID] = record.Replica{RaftID: raft, Consistency: byte(level)}
		}
	}
	b.opts.Cluster.OnStep("replicas-wanted")
	for level, shards := range first {
		if err := b.bootstrap(level, shards...); err != nil {
			return err
		}
	}
	if len(later) > 0 {
		if err := b.db.SetReplicas(later); err != nil {
			return err
		}
	}
	b.opts.Cluster.OnStep("replicas-made")
	for _, s := range refs {
		if err := b.startReplica(s, later[s.placement.ID].RaftID == 0); err != nil {
			return err
		}
	}
	return nil
}

// startReplica opens a replica that was just made.
func (b *Broker) startReplica(s *shardRef, first bool) error {
	id, silent, shards := s.placement.ID, electionTicks, 1
	if first {
		silent = 0
	}
	if s.cache != nil {
		shards = len(s.cache.Shards)
	}
	r, err := b.openReplica(b.addRoute(id, shards), silent)
	if err != nil {
		return err
	}
	b.guide(s.placement)
	if first && s.placement.Prefer == b.node {
		b.campaignFor(id)
	}
	b.opts.Logger.Debug("a replica was made", "shard", id, "raft_id", r.raftID, "first", first)
	return nil
}

// campaignFor has a new shard asked for.
func (b *Broker) campaignFor(id uint64) {
	now := b.mono()
	b.rec.campaigns[id] = campaign{next: now, pause: campaignPause, until: now + campaignFor}
}

// campaignForNew asks for the new shards that this broker should own and nobody
// owns yet.
func (b *Broker) campaignForNew() {
	now := b.mono()
	for id, c := range b.rec.campaigns {
		r := b.replicaOf(id)
		if r == nil || r.lead.Load() != 0 || now > c.until {
			delete(b.rec.campaigns, id)
			continue
		}
		if now < c.next {
			continue
		}
		b.rec.campaigns[id] = campaign{next: now + c.pause, pause: 2 * c.pause, until: c.until}
		b.onWorker(r, func(s *shard.Shard) {
			if err := s.Campaign(); err != nil {
				b.opts.Fatal(fmt.Errorf("shard %d stopped: %w", id, err))
			}
		})
	}
}

// introduce sees to it that this broker's record in the metadata says what it is
// since it was started, and that its directory knows that this start is recorded.
// v is confirmed. An error means that the broker cannot go on.
func (b *Broker) introduce(ctx context.Context, v *view) error {
	n := v.nodes[b.node]
	if b.rec.introduced || n == nil {
		return nil // who it is, is for others to say
	}
	if err := b.passedBy(n); err != nil {
		return err
	}
	self := *n
	b.describeSelf(&self)
	this := peer.Start{Starts: self.Starts, Instance: self.Instance}
	err := b.dir.change(func(id *identity) error {
		if !slices.Contains(id.Recorded, this) {
			id.Recorded = append(slices.Clip(id.Recorded), this)
		}
		return nil
	})
	if err != nil {
		return err
	}
	var passed error
	err = b.updateNode(ctx, b.node, func(n *nodeMeta) bool {
		before := *n
		if passed = b.passedBy(n); passed != nil {
			return false
		}
		b.describeSelf(n)
		return !reflect.DeepEqual(&before, n)
	})
	if passed != nil {
		return passed
	}
	if err != nil {
		b.opts.Logger.Debug("this broker's own record cannot be written", "err", err)
		return nil // next time
	}
	b.rec.introduced = true
	return b.dir.change(func(id *identity) error { id.Recorded = []peer.Start{this}; return nil })
}

// passedBy says that the node has gone on without this broker's directory.
func (b *Broker) passedBy(n *nodeMeta) error {
	own := peer.Identity{Recorded: b.dir.id().Recorded}
	if b.links != nil {
		own = b.links.Self()
	}
	if m := n.member(); m.Passed(own) {
		return inDir(b.opts.Dir, peer.OldCopy(b.node))
	}
	return nil
}

// describeSelf fills in what the metadata has of this broker that may be another
// at each start.
func (b *Broker) describeSelf(n *nodeMeta) {
	o := &b.opts.Cluster
	n.Version, n.Features, n.Starts = o.Version, supportedFeatures(), b.dir.id().Starts
	n.PeerAddr, n.HTTPAddr, n.RESPAddr = o.Advertise.Peer, o.Advertise.HTTP, o.Advertise.RESP
	n.Instance = ""
	if b.links != nil {
		n.PeerAddr, n.Instance = b.links.addr, b.links.instance
	}
}
