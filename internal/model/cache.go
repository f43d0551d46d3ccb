package model

import (
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/felix-go/felix"
)

// cache implements felix.Cache. Service.mu guards it.
type cache struct {
	s        *Service
	scope    felix.Scope
	settings felix.CacheSettings
	created  int64
	deleted  bool

	// A key's counter and value are unrelated, so they live apart.
	counters map[string]rec
	values   map[string]rec

	ids map[string]outcome // by key and id

	scans int // how many pages were read, see cutShort

	number  uint64        // which of the service's caches it is, ever
	changes []change      // all there ever were
	changed chan struct{} // closed, and another made, when there is news
}

// rec is one record.
type rec struct {
	kind    felix.RecordKind
	sum     int64  // of a counter
	bytes   []byte // of a value; never changed
	expiry  int64  // 0 means never
	version uint64
}

// Scope implements felix.Cache.
func (c *cache) Scope() felix.Scope { return c.scope }

// Submit implements felix.Cache: one part with every operation, told before it
// returns.
func (c *cache) Submit(b *felix.Batch) {
	if len(b.Ops) == 0 {
		return
	}
	part := make([]int32, len(b.Ops))
	c.s.mu.Lock()
	for i := range b.Ops {
		part[i] = int32(i)
		if c.deleted {
			b.Replies[i] = felix.Reply{Err: notFound(c.scope)}
		} else if g := groupOf(b, i); g == nil {
			c.noting(b.Ops[i:i+1], func() { b.Replies[i] = c.evalOnce(&b.Ops[i]) })
		} else if int(g.From) == i {
			c.noting(b.Ops[g.From:g.To], func() { c.evalGroup(b, g) })
		}
	}
	c.s.mu.Unlock()
	b.Done.OpsDone(b, part)
}

// Scan implements felix.Cache.
func (c *cache) Scan(_ context.Context, req felix.ScanRequest) (felix.ScanPage, error) {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	if c.deleted {
		return felix.ScanPage{}, notFound(c.scope)
	}
	if req.Limit < 1 || req.Limit > felix.MaxScanPage {
		return felix.ScanPage{}, felix.Errorf(felix.InvalidArgument, "a page of %d items: it has 1 to %d", req.Limit, felix.MaxScanPage)
	}
	if req.View > felix.ViewRedis {
		return felix.ScanPage{}, felix.Errorf(felix.InvalidArgument, "view %d is not known", req.View)
	}
	page := felix.ScanPage{NowMillis: c.s.now()}
	for _, key := range c.keys() {
		c.dropExpired(key, page.NowMillis)
		if !strings.HasPrefix(key, string(req.Prefix)) || req.After != nil && key <= string(req.After) {
			continue
		}
		seen := c.see(req.View, key)
		if seen.kind == felix.NoRecord {
			continue
		}
		if len(page.Items) == req.Limit {
			page.More = true
			page.Next = slices.Clone(page.Items[req.Limit-1].Key)
			break
		}
		if req.KeysOnly {
			seen.bytes = nil
		}
		page.Items = append(page.Items, felix.ScanItem{
			Key: []byte(key), Kind: seen.kind, Int: seen.sum, Value: slices.Clone(seen.bytes),
			ExpiresAtMillis: seen.expiry, Version: seen.version,
		})
	}
	c.cutShort(req, &page)
	return page, nil
}

// cutShort makes every fourth page empty, and every fourth of only half its
// items, as pages may be where records were deleted: whoever takes the end of a
// page for the end of the list, or counts on full pages, is found out. The
// pages between are whole, so that two in a row get on.
func (c *cache) cutShort(req felix.ScanRequest, page *felix.ScanPage) {
	c.scans++
	if len(page.Items) == 0 {
		return
	}
	switch c.scans % 4 {
	case 1:
		// The least key that may be in the page: nothing is left out if the
		// first item is above it.
		least := max(string(req.After)+"\x00", string(req.Prefix))
		if least < string(page.Items[0].Key) && len(least) <= felix.MaxKeyBytes {
			page.Items, page.More, page.Next = nil, true, []byte(least)
		}
	case 3:
		page.Items = page.Items[:(len(page.Items)+1)/2]
		page.More, page.Next = true, slices.Clone(page.Items[len(page.Items)-1].Key)
	}
}

// keys lists every key in byte order, once.
func (c *cache) keys() []string {
	all := slices.Collect(maps.Keys(c.counters))
	all = slices.AppendSeq(all, maps.Keys(c.values))
	slices.Sort(all)
	return slices.Compact(all)
}

// Count implements felix.Cache. Expired records are never counted.
func (c *cache) Count(context.Context) (felix.RecordCount, error) {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	if c.deleted {
		return felix.RecordCount{}, notFound(c.scope)
	}
	return c.count(), nil
}

func (c *cache) count() felix.RecordCount {
	now := c.s.now()
	for _, key := range c.keys() {
		c.dropExpired(key, now)
	}
	return felix.RecordCount{
		Counters: int64(len(c.counters)), Values: int64(len(c.values)), Keys: int64(len(c.keys())),
	}
}

// Clear implements felix.Cache.
func (c *cache) Clear(context.Context) error {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	if c.deleted {
		return notFound(c.scope)
	}
	c.clear()
	c.note(change{cleared: true})
	return nil
}

func (c *cache) clear() {
	c.counters, c.values, c.ids = map[string]rec{}, map[string]rec{}, map[string]outcome{}
}

func (c *cache) info() felix.CacheInfo {
	return felix.CacheInfo{
		Scope: c.scope, CacheSettings: c.settings, Replicas: 1, CreatedAtMillis: c.created, Counts: c.count(),
	}
}
