package broker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/record"
)

const (
	// openPoll is how often a broker that opens looks at the metadata if nothing
	// wakes it.
	openPoll = 50 * time.Millisecond
	// confirmPatience is for how long a broker that opens tries to learn what has
	// changed while it was away. Without a majority for the metadata it goes on
	// with what it knows: its shards may have theirs.
	confirmPatience = 3 * time.Second
)

// openShards opens every replica that the disk holds, which asks nobody, the
// metadata's first, and waits until that tells of the cluster. From then on the
// broker does what the metadata wants of it.
func (b *Broker) openShards(ctx context.Context) error {
	onDisk, err := b.db.Shards()
	if err != nil {
		return err
	}
	if err := b.openMeta(onDisk); err != nil {
		return err
	}
	if b.opts.Cluster.Listener == nil || b.dir.id().Format < dataFormat { // nobody else is waited for
		timed, cancel := context.WithTimeout(ctx, metaTimeout)
		defer cancel()
		ctx = timed
	}
	if b.dir.id().Format < dataFormat {
		if err := b.migrate(ctx); err != nil {
			return inDir(b.opts.Dir, err)
		}
	}
	if err := b.meetOthers(ctx); err != nil {
		return inDir(b.opts.Dir, err)
	}
	if err := b.openOthers(onDisk); err != nil {
		return err
	}
	v, err := b.awaitCluster(ctx)
	if err != nil {
		return inDir(b.opts.Dir, err)
	}
	id := b.dir.id()
	if err := v.belongsTo(&id); err != nil {
		return inDir(b.opts.Dir, err)
	}
	if err := cmp.Or(b.isNoStranger(v), b.misleadsNobody(v)); err != nil {
		return inDir(b.opts.Dir, err)
	}
	if err := b.dropLeftovers(onDisk); err != nil {
		return err
	}
	if err := b.firstRound(ctx, v); err != nil {
		return inDir(b.opts.Dir, err)
	}
	if !b.opts.byHand {
		close(b.rec.begin)
	}
	return nil
}

// openMeta opens the metadata's replica.
func (b *Broker) openMeta(onDisk []uint64) error {
	isNew, err := b.prepareMeta(onDisk)
	if err != nil {
		return err
	}
	silent := electionTicks
	if isNew {
		silent = 0
	}
	r, err := b.openReplica(b.addRoute(metaShard, 1), silent)
	if err != nil {
		return err
	}
	if founders := b.dir.id().Founders; len(founders) > 0 {
		s := metaPlacement(founders)
		r.teach(&s)
		if isNew && s.Prefer == b.node {
			b.campaignFor(metaShard)
		}
	}
	b.meta = &cache{b: b, shards: []*route{r.route}}
	return nil
}

// prepareMeta sees to it that the meta shard can be opened: one of the first
// brokers makes its first state, once, and isNew says so. If that is gone later,
// so is what was decided since, and perhaps acknowledged.
func (b *Broker) prepareMeta(onDisk []uint64) (isNew bool, err error) {
	id := b.dir.id()
	switch there := slices.Contains(onDisk, metaShard); {
	case !there && (id.Bootstrapped || len(onDisk) > 0 || len(id.Founders) == 0):
		return false, dirErrorf(b.opts.Dir, "the metadata is missing: the directory is damaged, restore it")
	case !there:
		if err := b.bootstrap(felix.Quorum, metaPlacement(id.Founders)); err != nil {
			return false, err
		}
		b.opts.Cluster.OnStep("meta-bootstrapped")
	case id.Format < dataFormat: // made by a build that did not note it
		return false, b.db.SetReplicas(map[uint64]record.Replica{metaShard: {RaftID: 1, Consistency: byte(felix.Quorum)}})
	}
	if id.Bootstrapped {
		return false, nil
	}
	// Nothing was said by this replica yet: before this it is never started.
	return true, b.dir.change(func(id *identity) error { id.Bootstrapped = true; return nil })
}

// meetOthers makes the brokers known that the metadata here tells of, as it is on
// disk, before there is a shard of theirs: nothing is to be evaluated, or found to
// have expired, by a clock that was not compared with theirs. The metadata's own
// shard knows no expiry.
func (b *Broker) meetOthers(ctx context.Context) error {
	v, err := b.readView(ctx)
	if err != nil {
		return fmt.Errorf("reading the metadata: %w", err)
	}
	if v.cluster != nil {
		b.followPeers(v)
	}
	return nil
}

// openOthers opens the replicas of all other shards.
func (b *Broker) openOthers(onDisk []uint64) error {
	for _, id := range onDisk {
		if id == metaShard {
			continue
		}
		if _, is, err := b.db.Replica(id); err != nil {
			return err
		} else if !is {
			continue
		}
		if _, err := b.openReplica(b.addRoute(id, 1), electionTicks); err != nil {
			return err
		}
	}
	return nil
}

// dropLeftovers removes what the disk holds of shards of which this broker has no
// replica: what a crash has left of one that was dropped.
func (b *Broker) dropLeftovers(onDisk []uint64) error {
	inLog, err := b.log.Shards()
	if err != nil {
		return err
	}
	left := slices.DeleteFunc(append(inLog, onDisk...), func(id uint64) bool { return b.replicaOf(id) != nil })
	slices.Sort(left)
	return b.dropData(slices.Compact(left))
}

// isNoStranger refuses a broker that was started alone once, and so is a cluster
// of its own, and is now told of others that it shall have: it would serve beside
// them what they serve.
func (b *Broker) isNoStranger(v *view) error {
	c := &b.opts.Cluster
	if len(b.dir.id().Founders) != 1 || !v.alone(b.node) {
		return nil
	}
	const advice = "it was started without them once and is a cluster of its own: leave them out and have the others --join this one, or start on an empty directory"
	for _, id := range slices.Sorted(maps.Keys(c.Peers)) {
		if v.nodes[id] == nil {
			return fmt.Errorf("--peers has node %d, of which this directory's cluster knows nothing: %s", id, advice)
		}
	}
	if len(c.Join) > 0 {
		return fmt.Errorf("--join: %s", advice)
	}
	return nil
}

// misleadsNobody refuses an address that would replace one at which others reach
// this broker, and cannot.
func (b *Broker) misleadsNobody(v *view) error {
	if b.links == nil {
		return nil
	}
	var others []string
	for id, n := range v.nodes {
		if id != b.node && n.State != nodeRemoved {
			others = append(others, n.PeerAddr)
		}
	}
	return misleads(b.node, b.links.addr, others...)
}

// awaitCluster waits until this broker's replica of the metadata tells of the
// cluster, whose first records the first owner of it writes.
func (b *Broker) awaitCluster(ctx context.Context) (*view, error) {
	told, founders := b.mono(), b.dir.id().Founders
	poll := time.NewTicker(openPoll)
	defer poll.Stop()
	for {
		v, err := b.readView(ctx)
		var bad badMeta
		switch {
		case errors.As(err, &bad):
			return nil, fmt.Errorf("reading the metadata: %w", err)
		case err == nil && v.cluster != nil:
			return v, nil
		case err == nil && len(founders) > 0:
			b.setPeers(peersOf(founders)) // it does not say who the brokers are
			founders = nil
		}
		b.campaignForNew()
		if err := b.beginCluster(ctx); err != nil {
			return nil, fmt.Errorf("writing the metadata: %w", err)
		}
		if now := b.mono(); now-told >= tellEvery {
			told = now
			b.opts.Logger.Warn("waiting for the cluster's metadata", "for", b.metaWaitsFor())
		}
		select {
		case <-b.rec.wake:
		case <-poll.C:
		case <-ctx.Done():
			return nil, fmt.Errorf("waiting for the cluster's metadata, for %s: %w", b.metaWaitsFor(), context.Cause(ctx))
		}
	}
}

// metaWaitsFor says what the metadata waits for.
func (b *Broker) metaWaitsFor() string {
	var away []string
	for _, l := range b.Links() {
		if !l.Up {
			away = append(away, fmt.Sprintf("node %d at %s", l.Node, l.Addr))
		}
	}
	r := b.replicaOf(metaShard)
	switch lead := r.lead.Load(); {
	case lead != 0 && lead != b.node:
		return fmt.Sprintf("what its owner, node %d, sends", lead)
	case len(away) > 0:
		return strings.Join(away, ", ")
	}
	return "its owner"
}

// beginCluster has the owner of the metadata write the first records of a new
// cluster, and is nothing to anybody else. Whoever owns it next goes on if
// this fails.
func (b *Broker) beginCluster(ctx context.Context) error {
	r, id := b.replicaOf(metaShard), b.dir.id()
	if !r.owns.Load() || len(id.Founders) == 0 {
		return nil
	}
	patience := b.opts.RequestTimeout
	if len(id.Founders) == 1 {
		patience = b.opts.metaTimeout
	}
	writing, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	// What was read before it owned the metadata may lack the records that are
	// there: those of a directory that was migrated are others.
	if v, err := b.readConfirmed(writing); err != nil || v.cluster != nil {
		return nil // looked at again
	}
	ops, err := b.firstRecords(&id, true)
	if err != nil {
		return err
	}
	if err := b.metaWrite(writing, ops); err != nil && len(id.Founders) == 1 {
		return err
	} else if err != nil {
		b.opts.Logger.Warn("the first records of the cluster could not be written yet", "err", err)
	}
	return nil
}

// firstRound brings the broker in line with the metadata: as it is now, if it has
// an owner, or else as it was.
func (b *Broker) firstRound(ctx context.Context, v *view) error {
	patience := confirmPatience
	if v.alone(b.node) {
		patience = metaTimeout
	}
	patient, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := b.follow(v); err != nil {
		return err
	}
	odd := b.strangers(v)
	confirmed, err := b.readConfirmed(patient)
	if err == nil {
		if err = b.conform(confirmed, odd); err == nil {
			err = b.introduce(patient, confirmed)
		}
		return err
	}
	var bad badMeta
	if v.alone(b.node) || ctx.Err() != nil || errors.As(err, &bad) {
		return fmt.Errorf("reading the metadata: %w", err)
	}
	b.opts.Logger.Warn("the metadata has no owner yet: going on with what was known before", "err", err)
	return nil
}
