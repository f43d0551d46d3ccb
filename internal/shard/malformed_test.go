package shard

import (
	"encoding/binary"
	"testing"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"

	"github.com/felix-go/felix"
)

// entriesOf makes entries of a term, with these indexes.
func entriesOf(term uint64, indexes ...uint64) (all []*raftpb.Entry) {
	for _, index := range indexes {
		all = append(all, &raftpb.Entry{Index: new(index), Term: new(term)})
	}
	return all
}

func contextOf(round uint64) []byte { return binary.LittleEndian.AppendUint64(nil, round) }

// What no replica sends changes nothing, and Raft does not panic of it. That what
// they do send is not taken for it, all the other tests show.
//
// Broken: any case in malformed and badEntries, either half of asked
// (malformed.go); malformed in StepPeer (shard.go).
func TestMalformedMessagesAreDropped(t *testing.T) {
	c, a := led(t, 3, felix.Quorum)
	follower := c.nodes[1]
	a.ops(add("k", 1), get("k"))
	c.run()
	last, term := a.lastIndex, a.term
	newer := raftpb.EntryType(9)
	odd := entriesOf(term, last+1)
	odd[0].Type = &newer
	app := func(index uint64, entries []*raftpb.Entry) *raftpb.Message {
		return &raftpb.Message{Type: raftpb.MsgApp.Enum(), From: new(a.id), Index: new(index), LogTerm: new(term), Entries: entries, Commit: new(last)}
	}
	for name, v := range map[string]struct {
		to *replica
		m  *raftpb.Message
	}{
		"of nobody":               {follower, &raftpb.Message{Type: raftpb.MsgApp.Enum(), Index: new(last), LogTerm: new(term)}},
		"of itself":               {follower, &raftpb.Message{Type: raftpb.MsgHeartbeat.Enum(), From: new(follower.id)}},
		"of a thread":             {follower, &raftpb.Message{Type: raftpb.MsgHeartbeat.Enum(), From: new(uint64(raft.LocalAppendThread))}},
		"of the owner itself":     {a, &raftpb.Message{Type: raftpb.MsgAppResp.Enum(), From: new(a.id), Index: new(last)}},
		"of no term":              {follower, &raftpb.Message{Type: raftpb.MsgHeartbeat.Enum(), From: new(uint64(3)), Term: new(uint64(0))}},
		"with a gap":              {follower, app(last, entriesOf(term, last+1, last+3))},
		"with a gap before":       {follower, app(last, entriesOf(term, last+2))},
		"from 0":                  {follower, app(0, entriesOf(term, 0, 1))},
		"of a term to come":       {follower, app(last, entriesOf(term+1, last+1))},
		"of a term before":        {follower, app(last, entriesOf(term-1, last+1))},
		"of decreasing terms":     {follower, app(last, append(entriesOf(term, last+1), entriesOf(term-1, last+2)...))},
		"of a type to come":       {follower, app(last, odd)},
		"what was not sent":       {a, &raftpb.Message{Type: raftpb.MsgAppResp.Enum(), From: new(uint64(2)), Index: new(last + 1)}},
		"a short context":         {a, &raftpb.Message{Type: raftpb.MsgHeartbeatResp.Enum(), From: new(uint64(2)), Context: []byte{1, 2, 3}}},
		"a round that is to come": {a, &raftpb.Message{Type: raftpb.MsgHeartbeatResp.Enum(), From: new(uint64(2)), Context: contextOf(a.rounds + 1)}},
	} {
		if v.m.Term == nil {
			v.m.Term = new(term)
		}
		v.m.To = new(v.to.id)
		why := v.to.malformed(v.m)
		if why == "" {
			t.Errorf("%s: nothing is wrong with it", name)
			continue
		}
		v.to.StepPeer(v.m)
		c.run()
	}
	if a.rounds == 0 {
		t.Error("no round was begun")
	}
	for _, r := range c.nodes {
		if status := r.Status(); status.Lead != a.id || status.Term != term || status.LastIndex != last || status.Commit != last {
			t.Errorf("replica %d: %+v; the last entry was %d of term %d", r.id, status, last, term)
		}
	}
	for _, p := range a.Status().Progress {
		if p.Match != last {
			t.Errorf("replica %d has entries up to %d, of %d", p.RaftID, p.Match, last)
		}
	}
	k := a.ops(add("k", 1), get("k"))
	c.run()
	k.want("the shard goes on", 1, 2, 0)
}
