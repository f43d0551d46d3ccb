package peer

import (
	"encoding/binary"
	"slices"
	"sync"

	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"
)

// raftQueue is what waits to be sent to one peer. Raft bears that any message is
// lost, but not that memory grows: beyond the limit MsgApps are dropped, the
// newest first, and beyond an eighth more everything.
//
// MsgApps of a shard keep their order, for a gap costs raft a round trip. All
// else (heartbeats, votes, acknowledgements) goes before them, so that no
// heartbeat waits behind entries.
type raftQueue struct {
	limit int64
	wake  chan struct{} // one token
	sent  sent

	mu     sync.Mutex
	up     bool
	urgent []queuedMessage
	bulk   []queuedMessage
	bytes  int64
}

type queuedMessage struct {
	Message
	bytes int64
}

func newRaftQueue(limit int64) *raftQueue {
	return &raftQueue{limit: limit, wake: make(chan struct{}, 1)}
}

// messageBytes is about what a message holds in memory.
func messageBytes(m *raftpb.Message) int64 {
	n := 128 + len(m.GetContext())
	for _, e := range m.GetEntries() {
		n += 96 + len(e.GetData())
	}
	return int64(n)
}

// add queues messages. dropped are the shards of MsgApps that were not.
func (q *raftQueue) add(ms []Message) (dropped []uint64) {
	q.mu.Lock()
	for _, m := range ms {
		isApp := m.M.GetType() == raftpb.MsgApp
		size, limit := messageBytes(m.M), q.limit
		if !isApp {
			limit += q.limit / 8
		}
		switch {
		case !q.up || q.bytes+size > limit:
			if isApp {
				dropped = append(dropped, m.Shard)
			}
			continue
		case isApp:
			q.bulk = append(q.bulk, queuedMessage{m, size})
		default:
			q.urgent = append(q.urgent, queuedMessage{m, size})
		}
		q.bytes += size
	}
	q.mu.Unlock()
	signal(q.wake)
	return dropped
}

// take encodes what waits, up to a frame, behind b.
func (q *raftQueue) take(b []byte) ([]byte, error) {
	q.mu.Lock()
	size := 0
	urgent := cut(&q.urgent, &size)
	bulk := cut(&q.bulk, &size)
	q.bytes -= int64(size)
	q.mu.Unlock()
	q.sent.frame(len(urgent) + len(bulk))
	var err error
	for _, list := range [][]queuedMessage{urgent, bulk} {
		for _, m := range list {
			if b, err = appendMessage(b, m.Message); err != nil {
				return nil, err
			}
		}
		clear(list) // the array may live on behind the queue
	}
	return b, nil
}

// cut takes messages off the front of a list until a frame has size bytes.
func cut(list *[]queuedMessage, size *int) []queuedMessage {
	n := 0
	for n < len(*list) && *size < frameBytes {
		*size += int((*list)[n].bytes)
		n++
	}
	taken := (*list)[:n:n]
	*list = (*list)[n:]
	return taken
}

// appendMessage encodes one message. Entries are shared with other readers, which
// protobuf allows: what it notes in them is atomic.
func appendMessage(b []byte, m Message) ([]byte, error) {
	b = binary.AppendUvarint(b, m.Shard)
	b = binary.AppendUvarint(b, uint64(proto.Size(m.M)))
	return proto.MarshalOptions{UseCachedSize: true}.MarshalAppend(b, m.M)
}

// decodeMessages reads a batch. The messages' memory is their own.
func decodeMessages(b []byte) ([]Message, error) {
	d := decoder{b: b}
	var ms []Message
	for len(d.b) > 0 {
		m := Message{Shard: d.uvarint(), M: &raftpb.Message{}}
		body := d.bytes()
		if d.bad {
			return nil, errMalformed
		}
		if err := proto.Unmarshal(body, m.M); err != nil {
			return nil, err
		}
		ms = append(ms, m)
	}
	return ms, nil
}

// setUp begins or ends a stream. What waits when it ends is dropped; dropped are
// the shards whose MsgApps were among it.
func (q *raftQueue) setUp(up bool) (dropped []uint64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.up = up
	for _, m := range q.bulk {
		dropped = append(dropped, m.Shard)
	}
	q.urgent, q.bulk, q.bytes = nil, nil, 0
	slices.Sort(dropped)
	return slices.Compact(dropped)
}

// waiting is the bytes that wait to be sent.
func (q *raftQueue) waiting() int64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.bytes
}
