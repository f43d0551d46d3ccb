package broker

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/confchange"
	"go.etcd.io/raft/v3/raftpb"
	"go.etcd.io/raft/v3/tracker"
	"google.golang.org/protobuf/proto"

	"github.com/felix-go/felix/internal/raftlog"
	"github.com/felix-go/felix/internal/record"
	"github.com/felix-go/felix/internal/store"
)

// A replica whose log another one cannot continue any more is sent a snapshot:
// the records of the shard as the state store has them at one moment, in chunks.
// A chunk is any number of whole records, each
//
//	uvarint length, key | uvarint length, value
//
// where key is what follows the shard id in the key of the state store, in their
// order there, over all chunks.

// snapshotMetadata is what Raft has to know of a snapshot as of a.
func snapshotMetadata(a record.Applied) (*raftpb.SnapshotMetadata, error) {
	conf := &raftpb.ConfState{}
	if err := proto.Unmarshal(a.ConfState, conf); err != nil {
		return nil, fmt.Errorf("a Raft configuration cannot be read: %w", err)
	}
	return &raftpb.SnapshotMetadata{ConfState: conf, Index: &a.Index, Term: &a.Term}, nil
}

// snapshotSource is where Raft asks for a snapshot when it finds that a replica
// needs one. It gets the metadata alone; the records are read when they are
// sent, and may then be newer.
type snapshotSource struct {
	flushed    func() record.Applied // what the state store has
	applied    func() record.Applied
	checkpoint func() // asks for one
}

// snapshot implements the source of a raftlog.Shard. Raft gives no snapshot to a
// replica that is not in its configuration, so one from before a replica came is
// no use; Raft asks again soon.
func (s snapshotSource) snapshot() (*raftpb.Snapshot, error) {
	flushed := s.flushed()
	if !bytes.Equal(flushed.ConfState, s.applied().ConfState) {
		s.checkpoint()
		return nil, raft.ErrSnapshotTemporarilyUnavailable
	}
	metadata, err := snapshotMetadata(flushed)
	if err != nil {
		return nil, err
	}
	return &raftpb.Snapshot{Metadata: metadata}, nil
}

// snapshotMessage is the message that announces a snapshot as of a in place of
// the one that Raft made, which may be older.
func snapshotMessage(m *raftpb.Message, a record.Applied) (*raftpb.Message, error) {
	metadata, err := snapshotMetadata(a)
	if err != nil {
		return nil, err
	}
	if wanted := m.GetSnapshot().GetMetadata().GetIndex(); a.Index < wanted {
		return nil, fmt.Errorf("the state store has entry %d, a snapshot of entry %d was promised", a.Index, wanted)
	}
	m = proto.Clone(m).(*raftpb.Message)
	m.Snapshot = &raftpb.Snapshot{Metadata: metadata}
	return m, nil
}

// recordReader is a store.SnapshotReader.
type recordReader interface {
	Next() (key, value []byte, ok bool, err error)
}

// snapshotChunks packs records into chunks.
type snapshotChunks struct {
	from       recordReader
	key, value []byte // read, not packed yet; nil if there is none
}

// next fills buf with records and answers the chunk. One that is larger than buf
// gets a chunk of its own. After the last one the error is io.EOF.
func (s *snapshotChunks) next(buf []byte) ([]byte, error) {
	chunk := buf[:0]
	for {
		if s.key == nil {
			key, value, ok, err := s.from.Next()
			if err != nil {
				return nil, err
			}
			if !ok && len(chunk) == 0 {
				return nil, io.EOF
			}
			if !ok {
				return chunk, nil
			}
			s.key, s.value = key, value
		}
		if len(chunk) > 0 && len(chunk)+recordChunkBytes(s.key, s.value) > len(buf) {
			return chunk, nil
		}
		chunk = appendChunkRecord(chunk, s.key, s.value)
		s.key, s.value = nil, nil
	}
}

// recordChunkBytes is at least what a record takes in a chunk.
func recordChunkBytes(key, value []byte) int {
	return len(key) + len(value) + 2*binary.MaxVarintLen32
}

func appendChunkRecord(b, key, value []byte) []byte {
	b = append(binary.AppendUvarint(b, uint64(len(key))), key...)
	return append(binary.AppendUvarint(b, uint64(len(value))), value...)
}

// readChunkRecord reads what appendChunkRecord wrote; key and value alias b.
func readChunkRecord(b []byte) (key, value, rest []byte, err error) {
	key, b, err = readChunkBytes(b)
	if err == nil {
		value, b, err = readChunkBytes(b)
	}
	return key, value, b, err
}

func readChunkBytes(b []byte) (field, rest []byte, err error) {
	n, size := binary.Uvarint(b)
	if size <= 0 || n > uint64(len(b)-size) {
		return nil, nil, fmt.Errorf("%w: a chunk ends within a record", store.ErrBadSnapshot)
	}
	b = b[size:]
	return b[:n:n], b[n:], nil
}

// offeredSnapshot checks the message that announces a snapshot, and what comes
// with it, before anything of it is received. A peer must not be able to make
// Raft panic, or a replica wait for a snapshot that Raft then drops.
func offeredSnapshot(m *raftpb.Message, encoded []byte, replica record.Replica) (record.Applied, error) {
	applied, err := record.ReadApplied(encoded)
	if err != nil {
		return record.Applied{}, fmt.Errorf("%w: %w", store.ErrBadSnapshot, err)
	}
	want, err := snapshotMetadata(applied)
	if err != nil {
		return record.Applied{}, fmt.Errorf("%w: %w", store.ErrBadSnapshot, err)
	}
	conf := want.GetConfState()
	switch {
	case m.GetType() != raftpb.MsgSnap || len(m.GetSnapshot().GetData()) > 0 || !proto.Equal(m.GetSnapshot().GetMetadata(), want):
		err = errors.New("the message and the state that it announces contradict each other")
	case m.GetTo() != replica.RaftID:
		err = fmt.Errorf("it is for replica %d, this is replica %d", m.GetTo(), replica.RaftID)
	case applied.Index == 0 || applied.Term == 0 || applied.Term > m.GetTerm():
		err = fmt.Errorf("it ends with entry %d of term %d, in term %d", applied.Index, applied.Term, m.GetTerm())
	default:
		err = checkConf(conf, replica.RaftID)
	}
	if err != nil {
		return record.Applied{}, fmt.Errorf("%w: %w", store.ErrBadSnapshot, err)
	}
	return applied, nil
}

// checkConf says why Raft could not go on from a configuration.
func checkConf(conf *raftpb.ConfState, raftID uint64) error {
	progress := tracker.MakeProgressTracker(1, 0)
	config, replicas, err := confchange.Restore(confchange.Changer{Tracker: progress}, conf)
	if err == nil {
		progress.Config, progress.Progress = config, replicas
		err = conf.Equivalent(progress.ConfState())
	}
	if err != nil {
		return fmt.Errorf("its Raft configuration is none: %w", err)
	}
	if replicas[raftID] == nil {
		return fmt.Errorf("replica %d is not in its Raft configuration", raftID)
	}
	return nil
}

// snapshotInstall is a store.Install.
type snapshotInstall interface {
	Add(key, value []byte) error
	Finish() error
}

// receiveSnapshot adds the records of all chunks until next answers io.EOF. The
// caller aborts the install if there is an error; what the sender got wrong
// wraps store.ErrBadSnapshot.
func receiveSnapshot(install snapshotInstall, next func() ([]byte, error)) error {
	for {
		chunk, err := next()
		if errors.Is(err, io.EOF) {
			return install.Finish()
		}
		if err != nil {
			return err
		}
		for len(chunk) > 0 {
			var key, value []byte
			if key, value, chunk, err = readChunkRecord(chunk); err != nil {
				return err
			}
			if err := install.Add(key, value); err != nil {
				return err
			}
		}
	}
}

// snapshotProgress counts a snapshot's bytes, sent or received, and tells of
// them in the log.
type snapshotProgress struct {
	log         *slog.Logger
	what        string
	stored      int64 // what it takes on the sender's disk, compressed
	began, told time.Duration
	bytes       atomic.Int64 // for whoever asks
}

// snapshotTold is how often the log tells of a snapshot that is under way.
const snapshotTold = 5 * time.Second

func newSnapshotProgress(log *slog.Logger, what string, stored int64, now time.Duration) *snapshotProgress {
	return &snapshotProgress{log: log, what: what, stored: stored, began: now, told: now}
}

func (p *snapshotProgress) add(bytes int, now time.Duration) {
	n := p.bytes.Add(int64(bytes))
	if now-p.told >= snapshotTold {
		p.told = now
		p.log.Info(p.what+" a snapshot", "bytes", n, "stored_bytes", p.stored, "seconds", int((now - p.began).Seconds()))
	}
}

func (p *snapshotProgress) end(err error, now time.Duration) {
	level, how, more := slog.LevelInfo, " a snapshot ended", []any(nil)
	if err != nil {
		level, how, more = slog.LevelWarn, " a snapshot failed", []any{"error", err}
	}
	p.log.Log(context.Background(), level, p.what+how,
		append([]any{"bytes", p.bytes.Load(), "seconds", int((now - p.began).Seconds())}, more...)...)
}

// installation is a snapshot that Raft has accepted, on its way into log and
// state. The order is what no crash may come between the wrong way round:
//
//  1. announce, synced: term and vote, and that a snapshot is to come. The
//     state is still the one before, and so is the commit index.
//  2. the state becomes the snapshot's, atomically (store.Install).
//  3. settle, synced: the log begins where the snapshot ends.
//
// After 1 a crash leaves what was there before. After 2 it leaves a log that
// ends before the state does, which PrepareRestart mends because of 1. Only
// after 3 may anybody be told that the replica has the snapshot.
type installation struct {
	log      *raftlog.Shard
	snapshot raftlog.Reset // where it ends
	// hard and entries came with the snapshot; entries are those after it.
	hard    *raftpb.HardState
	entries []*raftpb.Entry
}

// announce is the first step, for the committer.
func (i *installation) announce() raftlog.Append {
	return raftlog.Append{Shard: i.log, Install: &i.snapshot, HardState: i.hard, Sync: true}
}

func (i *installation) settle() raftlog.Append {
	return raftlog.Append{Shard: i.log, Reset: &i.snapshot, HardState: i.hard, Entries: i.entries, Sync: true}
}

// run is the other two steps; the first one is on disk. While the state changes,
// writing is held, so that no checkpoint of what was before comes after it: the
// caller has abandoned the one that was being captured. commit makes an append
// durable; the log takes no other appends of this shard until run returns.
func (i *installation) run(state interface{ Commit() error }, writing sync.Locker, commit func(raftlog.Append) error) error {
	writing.Lock()
	err := state.Commit()
	writing.Unlock()
	if err != nil {
		return err
	}
	return commit(i.settle())
}
