package store

import (
	"encoding/binary"

	"github.com/cespare/xxhash/v2"

	"github.com/felix-go/felix/internal/record"
)

// CaptureAt asks the table for a checkpoint that begins exactly when the entry at
// index is the last one applied, so that what is on disk then can be compared with
// what other replicas have as of it. It is for TakeCapture. Only the last request
// counts; it says false if that can come to nothing any more: the index has
// passed, or a checkpoint is under way. One that is under way only when the
// index comes is in the way, too.
func (t *Table) CaptureAt(index uint64) bool {
	switch {
	case index > t.applied.Index:
		t.captureAt = index
		return true
	case index == t.applied.Index && index > 0:
		return t.captureNow()
	}
	return false
}

func (t *Table) captureNow() bool {
	t.captureAt = 0
	if t.checkpoint != nil {
		return false
	}
	t.agreed = t.BeginCheckpoint()
	return true
}

// TakeCapture is the checkpoint that CaptureAt has asked for, once it has begun;
// nil otherwise. It has to be asked for after every step that applies entries, or
// calls CaptureAt: whoever begins checkpoints does not know of it otherwise.
func (t *Table) TakeCapture() *Capture {
	c := t.agreed
	t.agreed = nil
	return c
}

// CaptureIndex is the index for which CaptureAt waits, or 0.
func (t *Table) CaptureIndex() uint64 { return t.captureAt }

// Hash is a hash over the state that the reader tells: the records and what the
// Applied record says of them, but not expiry hints, of which some may be outdated,
// nor the chain and the configuration, which are not made of them. It is
// the same on all replicas as of one index, whatever each holds in memory. pace is
// called now and then with how many bytes were read since, and may end it.
//
// The bytes are those that are stored. A build that stores a record in another form
// than others do must tell its hashes as of another kind.
func (s *SnapshotReader) Hash(pace func(bytes int) error) (uint64, error) {
	const paceBytes = 256 << 10
	a := s.applied
	a.Chain, a.ConfState = record.Chain{}, nil
	d := xxhash.New()
	b := record.AppendApplied(nil, a)
	unpaced := 0
	for {
		d.Write(b)
		key, value, ok, err := s.Next()
		if err == nil && (unpaced >= paceBytes || !ok) {
			err = pace(unpaced)
			unpaced = 0
		}
		if err != nil || !ok {
			return d.Sum64(), err
		}
		unpaced += len(key) + len(value)
		b = b[:0]
		if record.Class(key[0]) == record.ExpiryClass {
			continue
		}
		b = append(binary.AppendUvarint(b, uint64(len(key))), key...)
		b = append(binary.AppendUvarint(b, uint64(len(value))), value...)
	}
}
