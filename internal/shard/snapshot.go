package shard

import (
	"fmt"

	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"github.com/felix-go/felix/internal/record"
)

// A replica whose log another one cannot continue gets a snapshot: StepPeer
// takes it, an Append carries it, the runner makes the state durable and the log
// begin after it, calls Installed, and then hands in the Append's Responses.

// beginInstall notes that Raft has taken a snapshot. What it still wanted
// applied is in there; above all a configuration change of those must not be
// made in the snapshot's configuration, which Raft goes by already.
func (s *Shard) beginInstall(snapshot *raftpb.SnapshotMetadata) error {
	s.installing, s.lastIndex = snapshot.GetIndex(), snapshot.GetIndex()
	void := s.unapplied
	s.unapplied = nil
	for _, m := range void {
		for _, response := range m.GetResponses() {
			if err := s.Step(response); err != nil {
				return err
			}
		}
	}
	return nil
}

// Installed says that the snapshot of an Append is the shard's state in the DB,
// which ends with applied. The next thing to hand in is the Append's Responses.
func (s *Shard) Installed(applied record.Applied) error {
	conf := &raftpb.ConfState{}
	if err := proto.Unmarshal(applied.ConfState, conf); err != nil {
		return fmt.Errorf("shard %d: the Raft configuration of a snapshot cannot be read: %w", s.cfg.ID, err)
	}
	s.table.Install(applied)
	s.forgetLoads()
	s.setConf(conf)
	if applied.Index >= s.installing { // no newer one has come meanwhile
		s.installing = 0
	}
	return nil
}

// lookLocal answers the local scans. While a snapshot is being installed the
// table and the DB may not be of one index.
func (s *Shard) lookLocal(out *Output) {
	if s.installing != 0 {
		return
	}
	local := s.local
	s.local = nil
	for _, r := range local {
		r.Index = s.table.Applied().Index
		s.look(r, out)
	}
}
