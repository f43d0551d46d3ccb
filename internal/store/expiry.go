package store

import (
	"bytes"
	"errors"
	"slices"
	"sync"

	"github.com/cockroachdb/pebble/v2"

	"github.com/felix-go/felix/internal/record"
)

const (
	// staleBatch is how many outdated hints of a shard are remembered for its
	// next checkpoint. When there are more they are removed at once, so that
	// sweeping never has to pass over more than this many again.
	staleBatch = 1024
	// repeatMillis is after how much shard time a sweep tells keys again that
	// it has told before, in case their deletion did not come about.
	repeatMillis = 60_000
	// valueHeaderBytes is at least what precedes the bytes of a stored value:
	// enough to read its expiry without copying the value.
	valueHeaderBytes = 1 + 10 + 10
)

// sweep is what is known about a shard's expiry hints.
type sweep struct {
	// generation is a new number after every change of the shard on disk. What
	// was read under another one must not be acted upon.
	generation uint64
	// stale are hints that match no record on disk, in the present
	// generation. Removing one of them is safe until the generation changes:
	// only a change of the shard can give a record that expiry again.
	stale [][]byte
	// resume is the hint to go on from: those below it were told, or are in
	// stale, in this generation.
	resume []byte
	// startMillis is the shard time at which the pass over the hints began.
	startMillis int64
}

type sweeps struct {
	mu     sync.Mutex
	shards map[uint64]*sweep
	last   uint64 // the newest generation of any shard
}

// begin tells where a pass at nowMillis goes on, and in which generation. isNew
// says that nothing was known about the shard.
func (s *sweeps) begin(shard uint64, nowMillis int64) (from []byte, generation uint64, isNew bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.shards[shard]
	if isNew = w == nil; isNew {
		s.last++
		w = &sweep{generation: s.last}
		s.shards[shard] = w
	}
	if w.resume == nil || nowMillis < w.startMillis || nowMillis-w.startMillis >= repeatMillis {
		w.resume, w.startMillis = firstHint(shard), nowMillis
	}
	return w.resume, w.generation, isNew
}

// end keeps what a pass has found, unless the shard has changed since begin.
// full says that the stale hints should be removed now.
func (s *sweeps) end(shard, generation uint64, resume []byte, stale [][]byte) (full bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.shards[shard]
	if w == nil || w.generation != generation {
		return false
	}
	if bytes.Compare(resume, w.resume) > 0 {
		w.resume = resume
	}
	w.stale = append(w.stale, stale...)
	return len(w.stale) >= staleBatch
}

// forget is for a shard that is not on disk.
func (s *sweeps) forget(shard uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.shards, shard)
}

// staleOf are the shard's outdated hints, sorted. DB.writing is held, and must
// be until the change that removes them is on disk.
func (s *sweeps) staleOf(shard uint64) [][]byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.shards[shard]
	if w == nil {
		return nil
	}
	stale := slices.Clone(w.stale) // a pass may append meanwhile
	slices.SortFunc(stale, bytes.Compare)
	return slices.CompactFunc(stale, bytes.Equal) // two passes may find the same
}

// changed begins a new generation of the shards after their change is on
// disk. What passes have found while it was written is doubtful and forgotten.
func (s *sweeps) changed(parts []Checkpoint) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range parts {
		delete(s.shards, parts[i].Shard)
	}
}

// Expired tells keys whose counter or value on disk has expired at shard time
// nowMillis, and expired ids: at most limit (at least 1) together, and whether to
// ask again at once for more (there may be more even if there are none). A key of
// which both have expired may come twice. The memory may hold something newer; the caller has
// to look before it deletes.
//
// It costs as much as there is due: a key is told once until the shard's next
// checkpoint, and again then or after a minute of shard time if it is still on
// disk. Hints that no longer match their record are removed on the way, in the
// shard's next checkpoint or, when they are many, at once.
func (db *DB) Expired(shard uint64, nowMillis int64, limit int) (keys [][]byte, ids []record.IDKey, more bool, err error) {
	from, generation, isNew := db.sweeps.begin(shard, nowMillis)
	if isNew {
		// Looked at after begin: a shard that is dropped meanwhile is forgotten
		// here or by its drop.
		if _, exists, err := db.Applied(shard); err != nil || !exists {
			db.sweeps.forget(shard)
			return nil, nil, false, err
		}
	}
	end := firstHint(shard)
	if nowMillis > 0 {
		end = record.AppendExpiryKey(nil, shard, nowMillis+1, 0, nil)
		end = end[:len(end)-1] // without a class: above all hints of nowMillis, below all later ones
	}
	if bytes.Compare(from, end) >= 0 {
		return nil, nil, false, db.failure()
	}
	p := pass{db: db, shard: shard, limit: max(limit, 1)}
	resume, more, err := p.run(from, end)
	if err != nil {
		return nil, nil, false, err
	}
	if db.sweeps.end(shard, generation, resume, p.stale) {
		if err := db.removeStale(shard); err != nil {
			return nil, nil, false, err
		}
	}
	return p.keys, p.ids, more, nil
}

// pass is one walk over due hints.
type pass struct {
	db    *DB
	shard uint64
	limit int
	keys  [][]byte
	ids   []record.IDKey
	stale [][]byte
	key   []byte
}

// run walks from hint to hint until it has found enough. resume is above the
// last one visited. Hints and records are read as of one moment.
func (p *pass) run(from, end []byte) (resume []byte, more bool, err error) {
	it, err := p.db.iterate(from, end)
	if err != nil {
		return nil, false, err
	}
	records, err := it.Clone(pebble.CloneOptions{IterOptions: &loadOptions})
	if err != nil {
		return nil, false, p.db.fail("sweeping expired records", errors.Join(err, it.Close()))
	}
	resume = end
	for ok := it.First(); ok; ok = it.Next() {
		if len(p.keys)+len(p.ids) >= p.limit || len(p.stale) >= staleBatch {
			resume, more = bytes.Clone(it.Key()), true
			break
		}
		if err = p.visit(it.Key(), records); err != nil {
			break
		}
	}
	if err = errors.Join(err, it.Close(), records.Close()); err != nil {
		return nil, false, p.db.fail("sweeping expired records", err)
	}
	return resume, more, nil
}

// visit compares a hint with its record.
func (p *pass) visit(hintKey []byte, records *pebble.Iterator) error {
	expiry, class, key, err := record.ParseExpiryKey(hintKey)
	if err != nil {
		return err
	}
	p.key = record.AppendStateKey(p.key[:0], p.shard, class, key)
	matches := false
	if records.SeekPrefixGE(p.key) {
		if matches, err = expires(records.Value(), class, expiry); err != nil {
			return err
		}
	} else if err := records.Error(); err != nil {
		return err // not a record that is gone
	}
	switch {
	case matches && class == record.IDClass:
		p.ids = append(p.ids, record.IDKey(key))
	case matches:
		p.keys = append(p.keys, bytes.Clone(key))
	default:
		p.stale = append(p.stale, bytes.Clone(hintKey))
	}
	return nil
}

// expires says whether a stored record expires at just that time.
func expires(b []byte, class record.Class, expiry int64) (bool, error) {
	var c record.Cell
	if class == record.CounterClass {
		err := record.ReadCounter(b, &c)
		return c.CounterExpiry == expiry, err
	}
	err := record.ReadValue(b[:min(len(b), valueHeaderBytes)], &c)
	return c.ValueExpiry == expiry, err
}

// removeStale removes the shard's outdated hints now. Nothing else changes,
// so the generation stays and the pass goes on where it was.
func (db *DB) removeStale(shard uint64) error {
	db.writing.Lock()
	defer db.writing.Unlock()
	if err := db.awaitLevel0(); err != nil {
		return err
	}
	stale := db.sweeps.staleOf(shard)
	w := db.newSSTWriter()
	if err := w.part(&Checkpoint{Shard: shard}, false, stale); err != nil {
		return db.fail("removing expiry hints", errors.Join(err, w.abandon()))
	}
	if err := db.ingest(w); err != nil {
		return db.fail("removing expiry hints", err)
	}
	db.sweeps.removed(shard)
	db.stats.addStale(w.stale)
	return nil
}

// removed forgets the stale hints, which are gone from the disk. Those that
// another pass has added meanwhile are found again in a later one.
func (s *sweeps) removed(shard uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if w := s.shards[shard]; w != nil {
		w.stale = nil
	}
}

// firstHint is below every hint of the shard.
func firstHint(shard uint64) []byte {
	return append(record.AppendShard(nil, shard), byte(record.ExpiryClass))
}
