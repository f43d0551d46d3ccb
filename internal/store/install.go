package store

import (
	"bytes"
	"errors"
	"fmt"

	felix "github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/invariant"
	"github.com/felix-go/felix/internal/record"
)

// ErrBadSnapshot is wrapped by the errors of an Install that was given what
// cannot be the records of a shard. The DB is as it was.
var ErrBadSnapshot = errors.New("not a snapshot of a shard")

// Install is a shard's state that is being received, to take the place of what
// the DB has of the shard. It is written to files of its own as it comes, beside
// everything else that happens, and happens at Commit, as one edit of the
// manifest: there is no moment at which a part of it is the shard's state, and
// none at which the shard has no state. It belongs to one goroutine at a time.
type Install struct {
	db      *DB
	w       *sstWriter
	shard   uint64
	applied record.Applied
	replica record.Replica

	last       []byte // the key of the record before
	hasReplica bool   // the replica record is written
	counters   int64
	values     int64
	ids        int64
	state      installState
}

type installState uint8

const (
	installAdding installState = iota
	installBad                 // a record was refused, or the disk failed
	installFinished
	installEnded // committed or aborted
)

// BeginInstall begins to receive the state of a shard as of a, for the replica
// r of this broker. It ends with Commit or Abort. Any error is fatal for the DB.
func (db *DB) BeginInstall(shard uint64, a record.Applied, r record.Replica) (*Install, error) {
	if err := db.failure(); err != nil {
		return nil, err
	}
	i := &Install{db: db, w: db.newSSTWriter(), shard: shard, applied: a, replica: r}
	err := i.w.clear(shard)
	if err == nil {
		err = i.w.applied(shard, a)
	}
	if err != nil {
		return nil, i.fail(err)
	}
	return i, nil
}

// Add takes the next record: what follows the shard id in its key, and its
// value. Records come as a SnapshotReader tells them, in the order of their
// keys. It keeps nothing of either. An error that wraps ErrBadSnapshot refuses
// the whole snapshot, which must be aborted; any other is fatal for the DB.
func (i *Install) Add(key, value []byte) error {
	invariant.Check(i.state <= installBad, "a record was added to a snapshot that is complete")
	i.w.key = append(record.AppendShard(i.w.key[:0], i.shard), key...)
	if err := i.check(key, value); err != nil {
		return i.refuse(err)
	}
	i.last = append(i.last[:0], key...)
	if err := i.add(record.Class(key[0]), value); err != nil {
		return i.fail(err)
	}
	return nil
}

// add writes the record whose key is in w.key.
func (i *Install) add(class record.Class, value []byte) error {
	if class > record.ReplicaClass && !i.hasReplica {
		if err := i.addReplica(); err != nil {
			return err
		}
		i.w.key = append(record.AppendShard(i.w.key[:0], i.shard), i.last...)
	}
	i.w.val = append(i.w.val[:0], value...)
	return i.w.set()
}

func (i *Install) addReplica() error {
	i.hasReplica = true
	return i.w.replica(i.shard, i.replica)
}

// check says what is wrong with a record whose whole key is in w.key. What is
// stored is read back without suspicion, and a peer may be wrong.
func (i *Install) check(key, value []byte) error {
	if i.state == installBad {
		return errors.New("a record before was refused")
	}
	if bytes.Compare(key, i.last) <= 0 {
		return fmt.Errorf("key %.40q does not come after %.40q", key, i.last)
	}
	var c record.Cell
	user := key[1:]
	var err error
	switch class := record.Class(key[0]); class {
	case record.CounterClass:
		i.counters++
		err = record.ReadCounter(value, &c)
	case record.ValueClass:
		i.values++
		err = record.ReadValue(value[:min(len(value), valueHeaderBytes)], &c) // not the value itself: it would be copied
	case record.IDClass:
		i.ids++
		err = checkID(user, value)
	case record.ExpiryClass:
		if _, _, user, err = record.ParseExpiryKey(i.w.key); err == nil && len(value) > 0 {
			err = fmt.Errorf("an expiry hint has a value of %d bytes", len(value))
		}
	default:
		err = fmt.Errorf("a record has class %q", class)
	}
	if err == nil && (len(user) == 0 || len(user) > felix.MaxKeyBytes) {
		err = fmt.Errorf("a record has a key of %d bytes", len(user))
	}
	return err
}

// checkID says what is wrong with the record of an id.
func checkID(key, value []byte) error {
	var c record.Cell
	if len(key) != record.IDKeyBytes {
		return fmt.Errorf("an id has a key of %d bytes", len(key))
	}
	if err := record.ReadValue(value, &c); err != nil {
		return err
	}
	return record.CheckOutcome(c.Value)
}

// Finish ends the records: all that there are were added. What is left to
// Commit is short. An error is as from Add.
func (i *Install) Finish() error {
	invariant.Check(i.state <= installBad, "a snapshot was finished twice")
	if i.state == installBad {
		return i.refuse(errors.New("a record before was refused"))
	}
	if n := i.applied.Counts; n.Counters != i.counters || n.Values != i.values || n.IDs != i.ids {
		return i.refuse(fmt.Errorf("it has %d counters, %d values and %d ids, and says that they are %d, %d and %d",
			i.counters, i.values, i.ids, n.Counters, n.Values, n.IDs))
	}
	if !i.hasReplica {
		if err := i.addReplica(); err != nil {
			return i.fail(err)
		}
	}
	err := i.w.endClear(i.w.clearEnd)
	if err == nil {
		err = i.w.finish()
	}
	if err != nil {
		return i.fail(err)
	}
	i.state = installFinished
	return nil
}

// Commit makes the snapshot the state of the shard, in place of all that the DB
// has of it. It is atomic, and durable when it returns; an error is fatal for
// the DB. Finish has to come before.
func (i *Install) Commit() error {
	invariant.Check(i.state == installFinished, "a snapshot was installed that is not complete")
	i.state = installEnded
	db := i.db
	db.writing.Lock()
	defer db.writing.Unlock()
	if err := db.awaitLevel0(); err != nil {
		return err
	}
	if err := db.ingest(i.w); err != nil {
		return db.fail("installing a snapshot", err)
	}
	db.sweeps.changed([]Checkpoint{{Shard: i.shard}})
	return nil
}

// Abort gives the snapshot up and removes its files; the DB is as it was. After
// Commit it does nothing. Files that an error leaves are removed by Open.
func (i *Install) Abort() error {
	if i.state == installEnded {
		return nil
	}
	i.state = installEnded
	err := i.w.abandon()
	for _, path := range i.w.paths {
		err = errors.Join(err, i.db.fs.Remove(path))
	}
	if err != nil {
		return fmt.Errorf("state store %s: giving up a snapshot: %w", i.db.dir, err)
	}
	return nil
}

func (i *Install) refuse(err error) error {
	i.state = installBad
	return fmt.Errorf("%w: shard %d: %w", ErrBadSnapshot, i.shard, err)
}

// fail gives up after the disk did. The file that was being written is closed;
// what the DB says first is the reason.
func (i *Install) fail(err error) error {
	i.state = installBad
	return i.db.fail("receiving a snapshot", errors.Join(err, i.w.abandon()))
}
