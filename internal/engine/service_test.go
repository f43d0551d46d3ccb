package engine_test

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/engine"
	"github.com/felix-go/felix/internal/model"
	"github.com/felix-go/felix/internal/record"
	"github.com/felix-go/felix/internal/servicetest"
)

// TestConformance runs the whole suite on a service whose records are evaluated
// by the engine, and checks the engine's own promises at every operation.
func TestConformance(t *testing.T) {
	servicetest.Run(t, func(t *testing.T) felix.Service {
		s := &service{Service: model.New(func() int64 { return time.Now().UnixMilli() }), caches: map[felix.Cache]*cache{}, t: t}
		s.SetNow(time.Now().UnixMilli())
		return s
	})
}

// service is the model's service with the engine's records: the model manages
// which caches there are.
type service struct {
	*model.Service
	t *testing.T

	mu     sync.Mutex
	now    int64
	caches map[felix.Cache]*cache // by the model's cache
}

// Ungrouped implements servicetest.Ungrouped: a group is the shard's affair.
func (s *service) Ungrouped() {}

// Unwatched implements servicetest.Unwatched: the model would watch its own records.
func (s *service) Unwatched() {}

func (s *service) SetNow(unixMillis int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now = unixMillis
	s.Service.SetNow(unixMillis)
}

func (s *service) Cache(ctx context.Context, scope felix.Scope) (felix.Cache, error) {
	of, err := s.Service.Cache(ctx, scope)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.caches[of]
	if c == nil {
		c = &cache{Cache: of, s: s, cells: map[string]record.Cell{}, ids: map[record.IDKey]record.Cell{}}
		s.caches[of] = c
	}
	return c, nil
}

func (s *service) CacheInfo(ctx context.Context, scope felix.Scope) (felix.CacheInfo, error) {
	info, err := s.Service.CacheInfo(ctx, scope)
	if err != nil {
		return info, err
	}
	c, err := s.Cache(ctx, scope)
	if err != nil {
		return info, err
	}
	info.Counts, err = c.Count(ctx)
	return info, err
}

// cache keeps cells and evaluates with the engine. The model's cache, which
// stays empty, knows whether it was deleted.
type cache struct {
	felix.Cache
	s       *service
	cells   map[string]record.Cell
	ids     map[record.IDKey]record.Cell
	version uint64
}

func (c *cache) gone() *felix.Error {
	_, err := c.Cache.Count(context.Background())
	return felix.AsError(err)
}

func (c *cache) Submit(b *felix.Batch) {
	if len(b.Ops) == 0 {
		return
	}
	part := make([]int32, len(b.Ops))
	c.s.mu.Lock()
	err := c.gone()
	for i := range b.Ops {
		part[i] = int32(i)
		b.Replies[i] = felix.Reply{Err: err, Int: 77} // must be overwritten
		if err != nil {
			b.Replies[i] = felix.Reply{Err: err}
		} else if b.Replies[i].Err = engine.Validate(&b.Ops[i]); b.Replies[i].Err != nil {
			b.Replies[i].Int = 0
		} else {
			c.evalOnce(&b.Ops[i], &b.Replies[i])
		}
	}
	c.s.mu.Unlock()
	b.Done.OpsDone(b, part)
}

// evalOnce keeps what an operation with an id was answered, as a shard does.
func (c *cache) evalOnce(op *felix.Op, r *felix.Reply) {
	if op.Once == nil {
		c.eval(op, r)
		return
	}
	var d record.Digest
	key, print := d.Key(op.Key, op.Once.ID), d.Fingerprint([]felix.Op{*op})
	cell, most := c.ids[key], c.settings(c.s.t).MaxIDs
	switch {
	case cell.Value != nil && cell.ValueExpiry > c.s.now:
		*r = felix.Reply{Err: felix.ErrIDReused}
		if kept, err := record.OutcomeFingerprint(cell.Value); err != nil || kept == print {
			replies := []felix.Reply{{}}
			if err := record.ReadOutcome(cell.Value, replies); err != nil {
				c.s.t.Error(err)
			}
			*r = replies[0]
		}
	case cell.Value == nil && int64(len(c.ids)) >= most:
		*r = felix.Reply{Err: felix.Errorf(felix.ResourceExhausted, "%d ids", most)}
	default:
		c.eval(op, r)
		retention := cmp.Or(op.Once.RetentionMillis, felix.DefaultIDRetention.Milliseconds())
		c.ids[key] = record.Cell{Value: record.AppendOutcome(nil, print, []felix.Reply{*r}), ValueExpiry: c.s.now + retention}
	}
}

func (c *cache) settings(t *testing.T) felix.CacheSettings {
	info, err := c.s.Service.CacheInfo(context.Background(), c.Scope())
	if err != nil {
		t.Error(err)
	}
	return info.CacheSettings
}

// eval evaluates on a copy of the cell and checks what the engine promises
// about cells, versions and the clock.
func (c *cache) eval(op *felix.Op, r *felix.Reply) {
	t, key := c.s.t, string(op.Key)
	before := c.cells[key]
	cell, clock := before, &countingClock{now: c.s.now}
	c.version++
	changed := engine.Eval(op, &cell, c.version, clock, r)
	if same := sameCell(before, cell); changed == same {
		t.Errorf("%+v on %+v: changed is %v, the cell is %+v", op, before, changed, cell)
	}
	if !wellFormed(cell) {
		t.Errorf("%+v on %+v leaves the malformed cell %+v", op, before, cell)
	}
	if op.View == felix.ViewCounter && !sameCell(valueOf(before), valueOf(cell)) || op.View == felix.ViewValue && !sameCell(counterOf(before), counterOf(cell)) {
		t.Errorf("%+v on %+v changes what it does not see: %+v", op, before, cell)
	}
	for _, rec := range [][2]record.Cell{{counterOf(before), counterOf(cell)}, {valueOf(before), valueOf(cell)}} {
		if !sameCell(rec[0], rec[1]) && rec[1].Exists() && rec[1].CounterVer+rec[1].ValueVer != c.version {
			t.Errorf("%+v on %+v wrote a record with another version than %d: %+v", op, before, c.version, cell)
		}
	}
	timed := op.TTL >= felix.TTLIn
	expiring := op.View != felix.ViewValue && before.CounterExpiry != 0 || op.View != felix.ViewCounter && before.ValueExpiry != 0
	if clock.asked > 0 && !timed && !expiring || clock.asked > 1 {
		t.Errorf("%+v on %+v asked the clock %d times", op, before, clock.asked)
	}
	if cell.Exists() {
		c.cells[key] = cell
	} else {
		delete(c.cells, key)
	}
}

type countingClock struct {
	now   int64
	asked int
}

func (c *countingClock) Now() int64 { c.asked++; return c.now }

func sameCell(a, b record.Cell) bool {
	return a.Has == b.Has && a.Sum == b.Sum && a.CounterExpiry == b.CounterExpiry && a.CounterVer == b.CounterVer &&
		slices.Equal(a.Value, b.Value) && a.ValueExpiry == b.ValueExpiry && a.ValueVer == b.ValueVer
}

func counterOf(c record.Cell) record.Cell { c.DropValue(); return c }

func valueOf(c record.Cell) record.Cell { c.DropCounter(); return c }

// wellFormed: fields of a record that the cell does not have are zero, and a
// record has a version and an expiry that can be stored.
func wellFormed(c record.Cell) bool {
	counter := c.Sum == 0 && c.CounterExpiry == 0 && c.CounterVer == 0
	if c.Has&record.HasCounter != 0 {
		counter = c.CounterVer != 0 && c.CounterExpiry >= 0 && c.CounterExpiry <= felix.MaxExpiryMillis
	}
	value := c.Value == nil && c.ValueExpiry == 0 && c.ValueVer == 0
	if c.Has&record.HasValue != 0 {
		value = c.Value != nil && c.ValueVer != 0 && c.ValueExpiry >= 0 && c.ValueExpiry <= felix.MaxExpiryMillis
	}
	return counter && value
}

// sweep drops what has expired everywhere. The service's mutex is held.
func (c *cache) sweep() {
	for key, cell := range c.cells {
		before := cell
		if changed := engine.Sweep(&cell, c.s.now); changed == sameCell(before, cell) || !wellFormed(cell) {
			c.s.t.Errorf("sweep of %+v at %d: changed %v, %+v", before, c.s.now, changed, cell)
		}
		if c.cells[key] = cell; !cell.Exists() {
			delete(c.cells, key)
		}
	}
}

func (c *cache) Count(context.Context) (felix.RecordCount, error) {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	if err := c.gone(); err != nil {
		return felix.RecordCount{}, err
	}
	c.sweep()
	var counts record.Counts
	for _, cell := range c.cells {
		counts.Add(record.CountChange(0, cell.Has))
	}
	return felix.RecordCount{Counters: counts.Counters, Values: counts.Values, Keys: counts.Keys}, nil
}

func (c *cache) Clear(context.Context) error {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	if err := c.gone(); err != nil {
		return err
	}
	clear(c.cells)
	clear(c.ids)
	return nil
}

func (c *cache) Scan(ctx context.Context, req felix.ScanRequest) (felix.ScanPage, error) {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	if page, err := c.Cache.Scan(ctx, req); err != nil { // deleted, or a bad request
		return page, err
	}
	c.sweep()
	page := felix.ScanPage{NowMillis: c.s.now}
	for _, key := range slices.SortedFunc(maps.Keys(c.cells), cmp.Compare[string]) {
		cell := c.cells[key]
		var r felix.Reply
		engine.Eval(&felix.Op{Kind: felix.Get, View: req.View, Key: []byte(key), NoValue: req.KeysOnly}, &cell, 0, &countingClock{now: c.s.now}, &r)
		if r.Found == felix.NoRecord || !strings.HasPrefix(key, string(req.Prefix)) || key <= string(req.After) {
			continue
		}
		if len(page.Items) == req.Limit {
			page.More, page.Next = true, page.Items[req.Limit-1].Key
			break
		}
		if r.Found == felix.ValueRecord {
			r.Int = 0 // with KeysOnly its length
		}
		page.Items = append(page.Items, felix.ScanItem{Key: []byte(key), Kind: r.Found, Int: r.Int,
			Value: slices.Clone(r.Value), ExpiresAtMillis: r.ExpiresAtMillis, Version: r.Version})
	}
	return page, nil
}
