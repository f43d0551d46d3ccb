package sim

import (
	"bytes"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/record"
	"github.com/felix-go/felix/internal/shard"
)

const (
	// sweepEvery is how often an owner deletes what has expired.
	sweepEvery = 300 * time.Millisecond
	// sweepKeys is how many keys at once.
	sweepKeys = 4
)

// sweep deletes what has expired in the shards that the node owns, as its wall
// clock and its disk say; the shard looks again.
func (n *node) sweep() {
	wall := n.time().WallMillis
	for _, r := range slices.Clone(n.replicas) {
		if n.w.healed || !r.shard.Owns() || r.stalled {
			continue
		}
		q := &shard.Request{Kind: shard.Sweep, Batch: &felix.Batch{}, Tag: sweeping{}, Deadline: n.time().Mono + callTimeout}
		for _, key := range slices.Sorted(maps.Keys(r.db.cells)) {
			c := r.db.cells[key]
			if expired := func(at int64) bool { return at != 0 && at <= wall }; len(q.Positions) < sweepKeys && (expired(c.CounterExpiry) || expired(c.ValueExpiry)) {
				q.Positions = append(q.Positions, int32(len(q.Batch.Ops)))
				q.Batch.Ops = append(q.Batch.Ops, felix.Op{Kind: felix.Delete, Key: []byte(key)})
			}
		}
		if len(q.Positions) > 0 {
			n.w.count("sweeps")
			q.Batch.Replies = make([]felix.Reply, len(q.Positions))
			r.shard.Submit(q)
			r.advance()
		}
	}
	n.after(sweepEvery, n.sweep)
}

// sweeping waits for a sweep: nobody does.
type sweeping struct{}

func (sweeping) done(*shard.Request)     {}
func (sweeping) returned(*shard.Request) {}

// page is a page of what the disk and, over it, memory has: as store.Cursor makes
// one.
func (s *state) page(q *shard.Request) (page felix.ScanPage) {
	cells := map[string]record.Cell{}
	for key, c := range s.cells {
		if !q.DiskVoid && strings.HasPrefix(key, string(q.Scan.Prefix)) && key > string(q.Scan.After) {
			cells[key] = c
		}
	}
	for _, o := range q.Overlay {
		cells[string(o.Key)] = o.Cell
	}
	last := ""
	if q.Cut {
		last = string(q.Overlay[len(q.Overlay)-1].Key)
	}
	for _, key := range slices.Sorted(maps.Keys(cells)) {
		if page.More = len(page.Items) == q.Scan.Limit || q.Cut && key > last; page.More {
			break
		}
		c := cells[key]
		if item, ok := visible(&c, &q.Scan, q.NowMillis); ok {
			item.Key = []byte(key)
			page.Items = append(page.Items, item)
		}
	}
	if page.More = page.More || q.Cut; page.More && len(page.Items) > 0 {
		page.Next = page.Items[len(page.Items)-1].Key
	} else if page.More {
		page.Next = []byte(last)
	}
	return page
}

// visible is what a scan shows of a cell.
func visible(c *record.Cell, q *felix.ScanRequest, now int64) (item felix.ScanItem, ok bool) {
	live := func(has record.Has, expiry int64) bool { return c.Has&has != 0 && (expiry == 0 || expiry > now) }
	switch {
	case q.View != felix.ViewValue && live(record.HasCounter, c.CounterExpiry):
		return felix.ScanItem{Kind: felix.CounterRecord, Int: c.Sum, ExpiresAtMillis: c.CounterExpiry, Version: c.CounterVer}, true
	case q.View != felix.ViewCounter && live(record.HasValue, c.ValueExpiry):
		item = felix.ScanItem{Kind: felix.ValueRecord, Value: bytes.Clone(c.Value), ExpiresAtMillis: c.ValueExpiry, Version: c.ValueVer}
		if q.KeysOnly {
			item.Value = nil
		}
		return item, true
	}
	return item, false
}
