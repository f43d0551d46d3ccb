package broker

import (
	"fmt"
	"maps"
	"slices"

	"go.etcd.io/raft/v3/raftpb"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/peer"
)

// delivery is a Raft message from another broker.
type delivery struct {
	shard uint64
	from  uint64 // node
	m     *raftpb.Message
}

// takeMessages gives Raft messages of another broker to the workers.
func (b *Broker) takeMessages(from uint64, ms []peer.Message) {
	for _, w := range b.workers {
		w.takeMessages(from, ms)
	}
}

// takeMessages queues those that belong to the worker's shards. Beyond a bound
// entries are dropped, as the network might: Raft sends them again.
func (w *worker) takeMessages(from uint64, ms []peer.Message) {
	any := false
	w.mu.Lock()
	for _, m := range ms {
		if w.b.workerOf(m.Shard) != w || w.stopping {
			continue
		}
		bytes := entryBytes(m.M)
		if bytes > 0 && w.inbox.messageBytes+bytes > felix.MaxPeerQueueBytes {
			continue
		}
		w.inbox.messageBytes += bytes
		w.inbox.messages = append(w.inbox.messages, delivery{m.Shard, from, m.M})
		any = true
	}
	w.mu.Unlock()
	if any {
		w.signal()
	}
}

func entryBytes(m *raftpb.Message) (bytes int64) {
	for _, e := range m.GetEntries() {
		bytes += int64(len(e.GetData()) + entryMemory)
	}
	return bytes
}

// entryMemory is what an entry takes in memory beside its data.
const entryMemory = 96

// maxHeardOf is how many replicas of a shard may be known for one that only sends
// a message to be added. There are a few; the metadata tells of them sooner or
// later, and Raft ids that a peer makes up must not fill the memory.
const maxHeardOf = 64

// deliver hands a message to its replica. Whoever sends for a replica can be
// sent to as well, also before the metadata says where that is. Snapshots come
// with their records, on a way of their own.
func (w *worker) deliver(d *delivery) {
	r := w.replicas[d.shard]
	if r == nil || d.m.GetTo() != r.raftID || d.m.GetType() == raftpb.MsgSnap {
		return
	}
	if len(*r.nodes.Load()) < maxHeardOf && r.learn(d.m.GetFrom(), d.from) && d.m.GetFrom() == r.shard.Lead() {
		w.ledBy(r)
	}
	r.shard.StepPeer(d.m)
	w.activate(r)
}

// learn notes at which node a replica of the shard is, and says whether that is
// news. It runs on the worker.
func (r *replica) learn(raftID, node uint64) bool {
	nodes := *r.nodes.Load()
	if nodes[raftID] == node || raftID == 0 || raftID == r.raftID {
		return false
	}
	nodes = maps.Clone(nodes)
	nodes[raftID] = node
	r.nodes.Store(&nodes)
	return true
}

// nodeOf is the node of one of the shard's replicas, 0 if it is not known.
func (r *replica) nodeOf(raftID uint64) uint64 { return (*r.nodes.Load())[raftID] }

// ledBy notes who leads the replica's shard.
func (w *worker) ledBy(r *replica) {
	node := r.nodeOf(r.shard.Lead())
	r.setPart()
	r.lead.Store(node)
	r.route.setOwner(node)
}

// outbox gathers Raft messages by the nodes that they go to.
type outbox struct {
	byNode map[uint64][]peer.Message
}

// add takes messages of one of the replica's shards to others. One whose node is
// not known is dropped, as the network might. Snapshots are not for it.
func (o *outbox) add(r *replica, ms []*raftpb.Message) {
	for _, m := range ms {
		if m.GetTo() == r.raftID || m.GetType() == raftpb.MsgSnap {
			continue
		}
		node := r.nodeOf(m.GetTo())
		if node == 0 || node == r.route.b.node {
			continue
		}
		if o.byNode == nil {
			o.byNode = map[uint64][]peer.Message{}
		}
		o.byNode[node] = append(o.byNode[node], peer.Message{Shard: r.id, M: m})
	}
}

// send sends all.
func (o *outbox) send(n network) {
	for node, ms := range o.byNode {
		if len(ms) == 0 {
			continue
		}
		n.SendRaft(node, ms)
		clear(ms)
		o.byNode[node] = ms[:0]
	}
}

// droppedMessages tells the shards that entries for their replicas at a node were
// lost, so that Raft looks where these are.
func (b *Broker) droppedMessages(node uint64, shards []uint64) {
	for _, w := range b.workers {
		var own []uint64
		for _, id := range shards {
			if b.workerOf(id) == w {
				own = append(own, id)
			}
		}
		if len(own) > 0 {
			w.call(func() { w.unreachable(node, own) })
		}
	}
}

func (w *worker) unreachable(node uint64, shards []uint64) {
	for _, id := range shards {
		if r := w.replicas[id]; r != nil {
			w.unreached(r, node)
		}
	}
}

// lostNode tells all shards that what was on its way to a node may be lost.
func (b *Broker) lostNode(node uint64) {
	for _, w := range b.workers {
		w.call(func() {
			for _, r := range w.replicas {
				w.unreached(r, node)
			}
		})
	}
}

// unreached tells a replica that entries for the one at a node were lost.
func (w *worker) unreached(r *replica, node uint64) {
	for raftID, at := range *r.nodes.Load() {
		if at == node {
			r.shard.Unreachable(raftID)
			w.activate(r)
		}
	}
}

// replicaPart is which part a replica takes in its shard.
type replicaPart uint32

const (
	voterPart   replicaPart = iota
	learnerPart             // has no vote; it gets everything
	emptyPart               // has no state yet
)

// setPart notes which part the replica takes, and whether requests may wait in it.
// It runs on the worker, once that has the replica.
func (r *replica) setPart() {
	part := voterPart
	switch conf := r.shard.Status().Conf; {
	case r.shard.Table().Applied().Index == 0:
		part = emptyPart
	case !slices.Contains(conf.GetVoters(), r.raftID) && !slices.Contains(conf.GetVotersOutgoing(), r.raftID):
		part = learnerPart
	}
	r.part.Store(uint32(part))
	r.strays.Store(r.shard.Strays())
}

// ready says what the replica waits for, or nil.
func (r *replica) ready() error {
	lead := r.lead.Load()
	switch part := replicaPart(r.part.Load()); {
	case part == emptyPart:
		return fmt.Errorf("shard %d: its replica here waits for a snapshot", r.id)
	case part == learnerPart && lead == 0:
		return fmt.Errorf("shard %d: its replica here, which does not vote, has not heard from an owner yet", r.id)
	case lead == 0, lead == r.route.b.node && !r.owns.Load():
		return fmt.Errorf("shard %d has no owner yet", r.id)
	}
	return nil
}
