package broker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/peer"
)

// How often a broker that waits for a cluster asks the others, how long it waits
// for an answer, and how often it tells whom it waits for.
const (
	minEntryPause = 50 * time.Millisecond
	maxEntryPause = time.Second
	probeTimeout  = 2 * time.Second
	tellEvery     = 5 * time.Second
)

const needsListener = "a broker of a cluster needs a listener for the others"

// begin counts the start, and says which node the broker is.
func (b *Broker) begin() (uint64, error) {
	if why := b.opts.cannotEnter(b.dir.id()); why != "" {
		return 0, errors.New(why)
	}
	if err := b.dir.begin(b.opts.NodeID); err != nil {
		return 0, err
	}
	return cmp.Or(b.dir.id().NodeID, b.opts.NodeID, firstNode), nil
}

// cannotEnter says why a broker with these options cannot come into a cluster,
// or nothing. One that is in a cluster stays in it, whatever they say.
func (o *Options) cannotEnter(id identity) string {
	c := &o.Cluster
	_, among := c.Peers[o.NodeID]
	switch {
	case id.Formed || id.Format < dataFormat:
		return ""
	case len(c.Peers) > 0 && len(c.Join) > 0:
		return "--peers and --join: a new broker forms a cluster with those of --peers, or joins the one of --join, not both"
	case id.ClusterID != "" && len(c.Peers) == 0:
		return fmt.Sprintf("data directory %s: the cluster that it was to form with others was never formed: give the same --peers again, or start on an empty one", o.Dir)
	case len(c.Peers) == 0 && len(c.Join) == 0:
		return ""
	case o.NodeID == 0 && len(c.Join) > 0:
		return "--join needs a --node-id: choose one that no broker of the cluster has or had"
	case o.NodeID == 0:
		return "--peers needs a --node-id: which of them this broker is"
	case !among && len(c.Peers) > 0:
		return fmt.Sprintf("--peers %s does not have node %d, which this broker is", peersText(c.Peers), o.NodeID)
	case c.Listener == nil:
		return needsListener
	}
	return cannotDial(c)
}

// cannotDial says which of the addresses to ask is none.
func cannotDial(c *ClusterOptions) string {
	seen := map[string]bool{}
	for _, id := range slices.Sorted(maps.Keys(c.Peers)) {
		addr := c.Peers[id]
		if id == 0 || id > maxNodeID {
			return fmt.Sprintf("--peers: node id %d: it is 1 to %d", id, uint64(maxNodeID))
		}
		if !isAddress(addr) || seen[addr] {
			return fmt.Sprintf("--peers: node %d needs a host:port of its own, not %q", id, addr)
		}
		seen[addr] = true
	}
	for _, addr := range c.Join {
		if !isAddress(addr) {
			return fmt.Sprintf("--join needs a host:port, not %q", addr)
		}
	}
	return ""
}

// isAddress says whether others can dial addr.
func isAddress(addr string) bool {
	host, port, err := net.SplitHostPort(addr)
	ip := net.ParseIP(host)
	return err == nil && host != "" && port != "" && port != "0" && (ip == nil || !ip.IsUnspecified())
}

// misleads says that a broker tells others to reach it at an address that is their
// own machine's, given where they are.
func misleads(node uint64, own string, others ...string) error {
	if !isLocal(own) {
		return nil
	}
	for _, other := range others {
		if other != "" && !isLocal(other) {
			return felix.Errorf(felix.InvalidArgument, "node %d tells others to reach it at %s, which for the one at %s is its own machine: give --peer-addr or --advertise-peer-addr", node, own, other)
		}
	}
	return nil
}

// isLocal says whether an address is of use on its own machine only.
func isLocal(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	ip := net.ParseIP(host)
	return err == nil && (host == "localhost" || ip != nil && ip.IsLoopback())
}

// peersText is a list of brokers as --peers has it, in the order of their ids.
func peersText(peers map[uint64]string) string {
	var all []string
	for _, id := range slices.Sorted(maps.Keys(peers)) {
		all = append(all, fmt.Sprintf("%d=%s", id, peers[id]))
	}
	return strings.Join(all, ",")
}

// enter makes the broker a member of a cluster, if it is none yet: of one of its
// own, of the one that it forms with others, or of the one that it joins.
func (b *Broker) enter(ctx context.Context) error {
	switch id := b.dir.id(); {
	case id.Format < dataFormat:
		return nil // migrating it does that
	case id.Formed:
		return b.comeBack(ctx)
	case len(b.opts.Cluster.Peers) > 0:
		return (&formation{b: b, peers: b.opts.Cluster.Peers, first: slices.Min(slices.Collect(maps.Keys(b.opts.Cluster.Peers)))}).run(ctx)
	case len(b.opts.Cluster.Join) > 0:
		return b.joinCluster(ctx)
	}
	return b.dir.change(func(id *identity) error {
		var err error
		*id, err = id.alone(b.node)
		return err
	})
}

// formation is how brokers that were all started with the same --peers become a
// cluster. The one with the lowest id waits until all of them answer and belong
// to none, mints the cluster's id, and has it adopted by all, durably. Only then
// it says that the cluster is formed, which is what lets a broker vote: so if
// anybody votes all know of the cluster, and those of them whose directories are
// wiped later cannot form a second one without meeting the others.
//
// Every step can be repeated. What another broker can still change is waited for;
// what it cannot ends the formation with an error.
type formation struct {
	b     *Broker
	peers map[uint64]string
	first uint64 // the lowest id
	told  time.Duration
}

// probed is a broker of --peers, and what it says of itself.
type probed struct {
	peer.ProbeInfo
	node uint64 // which it should be
	addr string
	err  error
}

func (a *probed) String() string { return fmt.Sprintf("node %d at %s", a.node, a.addr) }

func (f *formation) run(ctx context.Context) error {
	pause := minEntryPause
	for {
		waits, err := f.round(ctx)
		if err != nil {
			return inDir(f.b.opts.Dir, err)
		}
		if f.b.dir.id().Formed {
			f.b.opts.Logger.Info("the cluster is formed", "cluster_id", f.b.dir.id().ClusterID, "brokers", peersText(f.peers))
			return nil
		}
		if err := f.b.pauseEntry(ctx, &pause, &f.told, "waiting to form the cluster", waits); err != nil {
			return err
		}
	}
}

// pauseEntry tells, now and then, what a broker that is no member yet waits for,
// and waits a little, unless another broker has made it one.
func (b *Broker) pauseEntry(ctx context.Context, pause, told *time.Duration, what string, waits []string) error {
	list := strings.Join(waits, "; ")
	if now := b.mono(); *told == 0 || now-*told >= tellEvery {
		*told = now
		b.opts.Logger.Warn(what, "for", list)
	}
	timer := time.NewTimer(*pause)
	defer timer.Stop()
	*pause = min(2**pause, maxEntryPause)
	select {
	case <-timer.C:
	case <-b.entered:
	case <-ctx.Done():
		return fmt.Errorf("%s for %s: %w", what, list, context.Cause(ctx))
	}
	return nil
}

// round goes as far as it can, and says what is waited for.
func (f *formation) round(ctx context.Context) (waits []string, err error) {
	answers := f.probe(ctx)
	// Read after they were asked: whoever has answered that a cluster is formed
	// did so after all founders had adopted it. Who has not is none of them.
	id := f.b.dir.id()
	stores := map[string]uint64{id.StoreID: f.b.node}
	for i := range answers {
		a := &answers[i]
		if err := f.foreign(&id, a); err != nil {
			return nil, err
		}
		if a.err == nil && a.Formed {
			return nil, f.b.formed(ctx, a.ClusterID)
		}
		if why := f.unfit(a, stores); why != "" {
			waits = append(waits, why)
		}
	}
	if f.b.node != f.first {
		return append(waits, fmt.Sprintf("node %d, which begins the cluster", f.first)), nil
	}
	if len(waits) > 0 {
		return waits, nil
	}
	return f.lead(ctx, answers)
}

// probe asks all others who they are.
func (f *formation) probe(ctx context.Context) []probed {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	var all []probed
	for _, id := range slices.Sorted(maps.Keys(f.peers)) {
		if id != f.b.node {
			all = append(all, probed{node: id, addr: f.peers[id]})
		}
	}
	askAll(all, func(a *probed) { a.ProbeInfo, a.err = f.b.caller(a.addr).Probe(ctx) })
	return all
}

// askAll runs do for all of them at once.
func askAll(all []probed, do func(*probed)) {
	done := make(chan struct{})
	for i := range all {
		go func() { do(&all[i]); done <- struct{}{} }()
	}
	for range all {
		<-done
	}
}

// foreign says why the broker can never be in a cluster with the one that has
// answered.
func (f *formation) foreign(id *identity, a *probed) error {
	self := f.b.node
	switch {
	case a.err != nil || a.ClusterID == "" || a.ClusterID == id.ClusterID:
		return nil
	case a.Formed && id.ClusterID == "":
		return fmt.Errorf("%s is in a cluster already, where node %d is known with another data directory, or not at all: "+
			"if that directory was lost or copied, run `felixctl node rm %d`; then start with --join %s instead of --peers, and a new --node-id", a, self, self, a.addr)
	case id.ClusterID != "":
		return fmt.Errorf("%s belongs to the cluster %s, node %d to %s, which was never formed: start on an empty directory", a, a.ClusterID, self, id.ClusterID)
	case self == f.first:
		return fmt.Errorf("%s has begun to form the cluster %s, which node %d, its first, does not know: "+
			"if its brokers never served, empty the directories of all of them and start them again", a, a.ClusterID, self)
	}
	return nil // the formation is under way
}

// unfit says what has to change with another broker before there can be a cluster
// with it. stores are those of the brokers before it.
func (f *formation) unfit(a *probed, stores map[string]uint64) string {
	mine := peersText(f.peers)
	switch other, copied := stores[a.StoreID]; {
	case a.err != nil:
		return fmt.Sprintf("%s: %v", a, a.err)
	case a.Node != a.node:
		return fmt.Sprintf("%s: that is the address of node %d", a, a.Node)
	case copied:
		return fmt.Sprintf("%s: its data directory is a copy of that of node %d, or the other way round: give it an empty one", a, other)
	case a.Digest == "":
		return fmt.Sprintf("%s: it was started without --peers", a)
	case a.Digest != mine:
		return fmt.Sprintf("%s: it was started with --peers %s, node %d with --peers %s: give all the same", a, a.Digest, f.b.node, mine)
	}
	stores[a.StoreID] = a.node
	return ""
}

// lead forms the cluster with the others, who have all answered.
func (f *formation) lead(ctx context.Context, answers []probed) (waits []string, err error) {
	if err := f.mint(answers); err != nil {
		return nil, err
	}
	id := f.b.dir.id()
	askAll(answers, func(a *probed) {
		ctx, cancel := context.WithTimeout(ctx, probeTimeout)
		defer cancel()
		a.err = f.b.caller(a.addr).Adopt(ctx, peer.Adoption{ClusterID: id.ClusterID, Founders: peersOf(id.Founders)})
	})
	for i := range answers {
		a := &answers[i]
		var refused *peer.Refusal
		if errors.As(a.err, &refused) {
			return nil, fmt.Errorf("%s: %w", a, refused)
		} else if a.err != nil {
			waits = append(waits, fmt.Sprintf("%s: %v", a, a.err))
		}
	}
	if len(waits) > 0 {
		return waits, nil
	}
	f.b.opts.Cluster.OnStep("form-all-adopted")
	if err := f.b.formed(ctx, id.ClusterID); err != nil {
		return nil, err
	}
	// Whoever does not hear of it finds out by asking.
	askAll(answers, func(a *probed) {
		ctx, cancel := context.WithTimeout(ctx, probeTimeout)
		defer cancel()
		a.err = f.b.caller(a.addr).Form(ctx, id.ClusterID)
	})
	return nil, nil
}

// mint makes the cluster's id, once, of the brokers that have answered. Their
// addresses may be others than when it was made.
func (f *formation) mint(answers []probed) error {
	founders := []founder{{ID: f.b.node, StoreID: f.b.dir.id().StoreID, PeerAddr: f.peers[f.b.node]}}
	for i := range answers {
		founders = append(founders, founder{ID: answers[i].node, StoreID: answers[i].StoreID, PeerAddr: answers[i].addr})
	}
	slices.SortFunc(founders, func(a, b founder) int { return cmp.Compare(a.ID, b.ID) })
	isNew := false
	err := f.b.dir.change(func(id *identity) error {
		if isNew = id.ClusterID == ""; !isNew {
			return id.found(founders)
		}
		cluster, err := randomID()
		id.ClusterID, id.NodeID, id.Founders = cluster, f.b.node, founders
		return err
	})
	if err == nil && isNew {
		f.b.opts.Cluster.OnStep("form-minted")
	}
	return err
}

// found gives the founders the addresses that they have now. That they are the
// same ones is what the cluster rests on.
func (id *identity) found(now []founder) error {
	same := slices.EqualFunc(id.Founders, now, func(a, b founder) bool { return a.ID == b.ID && a.StoreID == b.StoreID })
	if !same {
		return &peer.Refusal{Reason: peer.ReasonStore, Message: fmt.Sprintf("the cluster %s, which was never formed, was begun by brokers with other ids or other data directories: "+
			"empty the directories of all of them and start them again", id.ClusterID)}
	}
	id.Founders = now
	return nil
}

// probe says who the broker is.
func (b *Broker) probe(context.Context) (peer.ProbeInfo, error) {
	id := b.dir.id()
	if id.Format < dataFormat {
		return peer.ProbeInfo{}, errMigrating
	}
	return peer.ProbeInfo{Node: b.node, StoreID: id.StoreID, ClusterID: id.ClusterID, Formed: id.Formed, Digest: peersText(b.opts.Cluster.Peers)}, nil
}

// errMigrating is the answer of a broker that is about to be a cluster of one.
var errMigrating = felix.Errorf(felix.Unavailable, "the broker's data directory is being migrated")

// adopt makes a cluster that is being formed the broker's own, durably. It may
// not vote in it before it is formed.
func (b *Broker) adopt(_ context.Context, a peer.Adoption) error {
	founders := make([]founder, 0, len(a.Founders))
	addrs := map[uint64]string{}
	for _, p := range a.Founders {
		founders = append(founders, founder{ID: p.Node, StoreID: p.StoreID, PeerAddr: p.Addr})
		addrs[p.Node] = p.Addr
	}
	slices.SortFunc(founders, func(a, b founder) int { return cmp.Compare(a.ID, b.ID) })
	isNew := false
	err := b.dir.change(func(id *identity) error {
		if err := b.mayAdopt(id, a.ClusterID, founders); err != nil || id.Formed {
			return err
		}
		if theirs, mine := peersText(addrs), peersText(b.opts.Cluster.Peers); theirs != mine {
			return felix.Errorf(felix.InvalidArgument, "the cluster is formed by %s, node %d was started with --peers %s: give all the same", theirs, b.node, mine)
		}
		if isNew = id.ClusterID == ""; !isNew {
			return id.found(founders)
		}
		id.ClusterID, id.NodeID, id.Founders = a.ClusterID, b.node, founders
		return nil
	})
	if err == nil && isNew {
		b.opts.Cluster.OnStep("form-adopted")
	}
	return err
}

// mayAdopt refuses a cluster that can never be the broker's.
func (b *Broker) mayAdopt(id *identity, cluster string, founders []founder) error {
	if id.Format < dataFormat {
		return errMigrating
	}
	if id.ClusterID != "" && id.ClusterID != cluster {
		return &peer.Refusal{Reason: peer.ReasonCluster, Message: fmt.Sprintf("node %d belongs to the cluster %s already", b.node, id.ClusterID)}
	}
	self := slices.IndexFunc(founders, func(f founder) bool { return f.ID == b.node })
	if cluster == "" || self < 0 {
		return felix.Errorf(felix.InvalidArgument, "node %d is not among the founders", b.node)
	}
	if founders[self].StoreID != id.StoreID {
		return &peer.Refusal{Reason: peer.ReasonStore, Message: fmt.Sprintf("node %d has another data directory than when the cluster %s was begun: "+
			"if its brokers never served, empty the directories of all of them and start them again", b.node, cluster)}
	}
	return nil
}

// formed lets the broker vote: all founders have adopted the cluster.
func (b *Broker) formed(_ context.Context, cluster string) error {
	isNew := false
	err := b.dir.change(func(id *identity) error {
		if cluster == "" || id.ClusterID != cluster {
			return &peer.Refusal{Reason: peer.ReasonCluster, Message: fmt.Sprintf("node %d is of the cluster %q, not of %q", b.node, id.ClusterID, cluster)}
		}
		isNew = !id.Formed
		id.Formed = true
		return nil
	})
	if err != nil || !isNew {
		return err
	}
	b.opts.Cluster.OnStep("form-started")
	select {
	case b.entered <- struct{}{}:
	default: // it was told already
	}
	return nil
}
