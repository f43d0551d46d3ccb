package broker

import (
	"testing"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/peer"
	"github.com/felix-go/felix/internal/placement"
	"github.com/felix-go/felix/internal/record"
)

// answered takes the answers of calls.
type answered chan *peer.Call

func (a answered) Answer(calls ...*peer.Call) {
	for _, c := range calls {
		a <- c
	}
}

// TestStrayReplicaKeepsNoRequests: a replica on this broker that no owner speaks
// to does not keep requests that others can answer, neither one that is in no
// configuration yet nor one that was removed and does not know; and who asks it is
// sent on.
//
// Broken: strays in turn, or setAsks with this broker's own node (route.go);
// Strays (shard.go).
func TestStrayReplicaKeepsNoRequests(t *testing.T) {
	t.Parallel()
	for name, state := range map[string]func(b *Broker, s placement.Shard) error{
		"in no configuration": func(b *Broker, _ placement.Shard) error {
			return b.db.SetReplicas(map[uint64]record.Replica{sharedShard: {RaftID: 104, Consistency: byte(felix.Quorum)}})
		},
		"removed": func(b *Broker, s placement.Shard) error {
			s.Initial = append(s.Initial[:3:3], 104)
			return b.bootstrap(felix.Quorum, s)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, brokers, caches := openByHand(t, 4, func(*Options) {})
			mustDo(t, caches[0], add("k", 1))
			s := sharedPlacement(4)
			s.Replicas = append(s.Replicas, placement.Replica{Raft: 104, Node: 4, Want: placement.Voter})
			s.Prefer = 4 // it is asked first
			b := brokers[3]
			if err := state(b, s); err != nil {
				t.Fatal(err)
			}
			if _, err := b.openReplica(b.routeOf(sharedShard), 0); err != nil {
				t.Fatal(err)
			}
			b.guide(&s)
			b.routeOf(sharedShard).setOwner(0)
			if r := mustDo(t, caches[3], add("k", 1)); r[0].Int != 2 {
				t.Errorf("the sum is %d", r[0].Int)
			}
			told := make(answered, 1)
			b.takeCalls(told, []*peer.Call{{Kind: peer.CallCount, Shard: sharedShard, Deadline: b.mono() + b.opts.RequestTimeout}})
			if c := <-told; c.Outcome != peer.NotOwner {
				t.Errorf("who asks it is told %+v", c)
			}
		})
	}
}
