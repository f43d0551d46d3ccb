package broker

import (
	"bytes"
	"context"
	"slices"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/shard"
	"github.com/felix-go/felix/internal/store"
)

const (
	// minScanPart is the least number of keys that a shard is asked for, if
	// the page has as many: keys do not spread evenly.
	minScanPart = 64
	// scanItemBytes is what an item costs in memory beyond its key and value.
	scanItemBytes = 104
	// maxPageReaders bounds the pages of shards that are read from the state
	// store at once: what they read is in no budget until it is read.
	maxPageReaders = 16
)

// Scan implements felix.Cache: a page of every shard, merged. What the shards
// answer is held in memory until then, so it takes room among the operations in
// flight.
func (c *cache) Scan(ctx context.Context, req felix.ScanRequest) (felix.ScanPage, error) {
	if req.Limit < 1 || req.Limit > felix.MaxScanPage {
		return felix.ScanPage{}, felix.Errorf(felix.InvalidArgument, "a page of %d items: it has 1 to %d", req.Limit, felix.MaxScanPage)
	}
	if req.View > felix.ViewRedis {
		return felix.ScanPage{}, felix.Errorf(felix.InvalidArgument, "view %d is not known", req.View)
	}
	part, shards := req, len(c.shards)
	part.Limit = scanPart(req.Limit, shards)
	if !c.b.room(c.shards[0].id, int64(shards)*opOverheadBytes) {
		return felix.ScanPage{}, errTooMuch
	}
	all, err := c.broadcast(ctx, func() *shard.Request {
		return &shard.Request{Kind: shard.Scan, Scan: part, MaxPageBytes: felix.MaxScanPageBytes / shards, Bytes: opOverheadBytes}
	})
	if err != nil {
		c.b.inflight.Add(-int64(shards) * opOverheadBytes)
		return felix.ScanPage{}, err
	}
	defer func() {
		for _, r := range all {
			c.b.letGo(r)
		}
	}()
	for _, r := range all {
		if err := await(ctx, r); err != nil {
			return felix.ScanPage{}, err
		}
	}
	return mergePages(all, req.Limit), nil
}

// scanPart is how many keys to ask each shard for: about twice its share. If
// they do not spread evenly, the page is shorter.
func scanPart(limit, shards int) int { return min(limit, max(2*limit/shards, minScanPart)) }

// mergePages is one page of those of all shards: of at most limit items and,
// up to the last item, felix.MaxScanPageBytes.
func mergePages(all []*shard.Request, limit int) felix.ScanPage {
	page := felix.ScanPage{}
	var bound []byte // keys above it may be missing
	for _, r := range all {
		result := r.Scanned
		page.NowMillis = max(page.NowMillis, r.NowMillis)
		page.Items = append(page.Items, result.Items...)
		if result.More && (bound == nil || bytes.Compare(result.Next, bound) < 0) {
			bound = result.Next
		}
	}
	page.More, page.Next = bound != nil, bound
	slices.SortFunc(page.Items, func(a, b felix.ScanItem) int { return bytes.Compare(a.Key, b.Key) })
	size := 0
	for i, item := range page.Items {
		if bound != nil && bytes.Compare(item.Key, bound) > 0 {
			page.Items = page.Items[:i]
			break
		}
		size += len(item.Key) + len(item.Value)
		if n := i + 1; n < len(page.Items) && (n == limit || size >= felix.MaxScanPageBytes) {
			page.Items, page.More, page.Next = page.Items[:n], true, item.Key
			break
		}
	}
	page.Items = slices.Clone(page.Items) // the rest may be as large again
	return page
}

// noShard is an id that no shard has: the state store holds nothing of it.
const noShard = 0

// startScan pins the state store for a scan that its shard has got ready, and
// merges on a goroutine of its own. It is called on the worker's goroutine.
func (b *Broker) startScan(r *shard.Request) {
	id := r.ShardID
	if r.DiskVoid {
		id = noShard
	}
	cursor, err := b.db.Cursor(id, r.Scan.Prefix, r.Scan.After)
	if err != nil {
		b.opts.Fatal(err)
		return
	}
	b.readers.Add(1)
	go func() {
		defer b.readers.Done()
		b.pagers <- struct{}{}
		defer func() { <-b.pagers }()
		b.readPage(r, cursor)
	}()
}

func (b *Broker) readPage(r *shard.Request, cursor *store.Cursor) {
	items, more, err := cursor.Page(store.PageRequest{View: r.Scan.View, KeysOnly: r.Scan.KeysOnly, NowMillis: r.NowMillis,
		Limit: r.Scan.Limit, MaxBytes: r.MaxPageBytes, Overlay: r.Overlay, Cut: r.Cut})
	if err != nil {
		b.opts.Fatal(err)
		return
	}
	r.Scanned = felix.ScanPage{Items: items, More: more}
	switch {
	case !more:
	case len(items) > 0:
		r.Scanned.Next = items[len(items)-1].Key
	default: // everything up to the overlay's end is deleted or expired
		r.Scanned.Next = r.Overlay[len(r.Overlay)-1].Key
	}
	r.Overlay = nil
	b.holdPage(r)
	b.finish(r)
}

// holdPage takes room for a page that was read, or refuses the request.
func (b *Broker) holdPage(r *shard.Request) {
	bytes := int64(0)
	for _, item := range r.Scanned.Items {
		bytes += int64(len(item.Key) + len(item.Value) + scanItemBytes)
	}
	if b.room(r.ShardID, bytes) {
		r.Bytes += bytes
	} else {
		r.Scanned, r.Err = felix.ScanPage{}, errTooMuch
	}
}

// letGo is called twice for a Scan: when it is finished, and when its caller has
// taken the result, or is gone. After both its memory is free.
func (b *Broker) letGo(r *shard.Request) {
	if r.LetGo.Add(1) == 2 {
		b.inflight.Add(-r.Bytes)
	}
}
