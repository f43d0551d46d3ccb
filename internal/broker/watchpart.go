package broker

import (
	"bytes"
	"context"
	"sort"

	"go.etcd.io/raft/v3/raftpb"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/feed"
	"github.com/felix-go/felix/internal/shard"
)

// watchPart is a watch of one shard. It tells the state by pages of the local
// replica; reads changes from the log until it has caught up; and then listens to
// the feed. It belongs to the goroutine that calls Next, but for what says so.
type watchPart struct {
	w     *watcher
	n     int // the shard's number in the cache
	feed  *shardFeed
	queue *feed.Queue

	from   uint64 // feed.mu guards this and joined: what the feed told of entries before is not for this part
	joined bool

	confirmed uint64 // the owner's log was so long when the watch began
	// pos is what has been told, and read the next entry to read while the part
	// does not listen.
	pos       feed.Position
	read      uint64
	following bool // it listened when it was looked at last
	// pages are where the pages of the state end, in order, and of which entry
	// each is. A change that its key's page has seen is not told.
	pages []statePage

	pending []*feed.Change // read and not told
}

// statePage is a page of the state: the keys up to last, nil is to the end, as of
// the entry at index.
type statePage struct {
	last  []byte
	index uint64
}

// watchPageItems is how many records a page of the state has.
const watchPageItems = 1000

// restart makes the part begin at what is confirmed.
func (p *watchPart) restart() {
	p.feed.leave(p)
	p.queue.Drop()
	p.pending, p.pages, p.following = nil, nil, false
	p.pos = feed.Position{Index: p.confirmed + 1}
	p.read = p.pos.Index
}

// holds says whether the changes after a position can be told: it is not in the
// future, as one of a forged token, and the log has them. If it has, reading goes
// on there.
func (p *watchPart) holds(pos feed.Position) bool {
	first, err := p.feed.r.log.FirstIndex()
	if err != nil || pos.Index < first || pos.Index > p.confirmed+1 {
		return false
	}
	p.read = pos.Index
	return true
}

// free gives back what the part holds.
func (p *watchPart) free() {
	p.feed.leave(p)
	p.queue.Drop()
	p.feed.users.Add(-1)
}

// scan tells one page of the state, and, after the last one, the changes up to
// where all pages are of. It says when that is done.
func (p *watchPart) scan(ctx context.Context) (done bool, err error) {
	if n := len(p.pages); n > 0 && p.pages[n-1].last == nil {
		return p.settle()
	}
	if err := p.feed.reaches(ctx, p.confirmed); err != nil {
		return false, err
	}
	r, err := p.page(ctx)
	if err != nil {
		return false, err
	}
	defer p.w.c.b.letGo(r)
	now := p.w.c.b.now().WallMillis
	exact := p.w.req.Key != nil
	for _, item := range r.Scanned.Items {
		if exact && !bytes.Equal(item.Key, p.w.req.Key) {
			break // a longer key: there is no such record
		}
		if item.ExpiresAtMillis != 0 && item.ExpiresAtMillis <= now {
			continue
		}
		p.w.put(felix.WatchEvent{Kind: felix.WatchPut, Key: item.Key, Int: item.Int, Value: item.Value,
			ExpiresAtMillis: item.ExpiresAtMillis, Version: item.Version, Token: beginToken})
	}
	page := statePage{index: r.Index}
	if r.Scanned.More && !exact {
		page.last = r.Scanned.Next
	}
	if p.pages = append(p.pages, page); len(p.pages) == 1 {
		p.pos, p.read = feed.Position{Index: r.Index + 1}, r.Index+1
	}
	return false, nil
}

// page reads the next page of the local replica.
func (p *watchPart) page(ctx context.Context) (*shard.Request, error) {
	b := p.w.c.b
	scan := felix.ScanRequest{View: p.w.req.View, Prefix: p.w.req.Prefix, Limit: watchPageItems}
	if p.w.req.Key != nil {
		scan.Prefix, scan.Limit = p.w.req.Key, 1
	}
	if n := len(p.pages); n > 0 {
		scan.After = p.pages[n-1].last
	}
	r := &shard.Request{Kind: shard.LocalScan, Scan: scan, MaxPageBytes: felix.MaxScanPageBytes / len(p.w.c.shards),
		Bytes: opOverheadBytes, Deadline: b.deadline(ctx), Finished: newFinished()}
	if err := b.reserve(r.Bytes, b.opts.InflightBytes); err != nil {
		return nil, err
	}
	b.submit(p.feed.r, r)
	if err := await(ctx, r); err != nil {
		b.letGo(r)
		return nil, err
	}
	return r, nil
}

// reaches waits until the replica has applied the entry at index.
func (f *shardFeed) reaches(ctx context.Context, index uint64) error {
	if why := f.why(); why != nil {
		return why
	}
	ctx, cancel := context.WithTimeout(ctx, f.b.opts.RequestTimeout)
	defer cancel()
	stop := context.AfterFunc(f.b.watches.ended, cancel)
	defer stop()
	if err := f.applied.await(ctx, index); err != nil {
		return errFeedBehind
	}
	return nil
}

// settle tells the changes up to where all pages are of.
func (p *watchPart) settle() (done bool, err error) {
	last := uint64(0)
	for _, page := range p.pages {
		last = max(last, page.index)
	}
	if p.read > last {
		p.pages = nil
		return true, nil
	}
	if err := p.readLog(last); err != nil {
		return false, err
	}
	for _, c := range p.pending {
		if c.Clear {
			return false, errLostLog
		}
		e := c.Event
		e.Token = beginToken
		p.w.put(e)
	}
	p.pending = nil
	p.pos = feed.Position{Index: p.read}
	return false, nil
}

// seen says whether the page that a change's key is in has seen it.
func (p *watchPart) seen(c *feed.Change) bool {
	i := sort.Search(len(p.pages), func(i int) bool {
		return p.pages[i].last == nil || bytes.Compare(p.pages[i].last, c.Event.Key) >= 0
	})
	return i < len(p.pages) && c.Index <= p.pages[i].index
}

// take tells the next change, if there is one. The error is errLostLog if there
// may be one that cannot be read.
func (p *watchPart) take() (found bool, err error) {
	if len(p.pending) > 0 {
		c := p.pending[0]
		p.pending = p.pending[1:]
		skipped := c.Index <= p.pos.Behind
		return true, p.tell(feed.Item{Change: c, Skipped: skipped})
	}
	if item, ok := p.queue.Pop(); ok {
		return true, p.tell(item)
	}
	if why := p.feed.why(); why != nil {
		return false, why
	}
	if p.following && p.feed.listening(p) {
		return false, nil
	}
	return p.catchUp()
}

// catchUp reads what the feed has told others, and then listens to it. It says
// whether to go on at once.
func (p *watchPart) catchUp() (again bool, err error) {
	if p.following { // it was told too much: what it has not taken is read again
		p.following, p.read = false, p.pos.Index
	}
	if applied := p.feed.applied.load(); p.read <= applied {
		if err := p.readLog(applied); err != nil {
			return false, err
		}
	}
	// At once, and not when what was read has been told: it would never catch up.
	p.following = p.feed.join(p, p.read)
	if len(p.pending) == 0 && p.pos.Index < p.read {
		p.pos.Index, p.pos.Writes = p.read, 0
	}
	return !p.following || len(p.pending) > 0, nil
}

// tell tells a change of the log.
func (p *watchPart) tell(item feed.Item) error {
	if item.Clear {
		return errLostLog
	}
	p.pos = p.pos.After(item)
	e := item.Event
	e.Skipped = item.Skipped
	e.Token = p.w.token()
	p.w.put(e)
	return nil
}

// readLog reads changes into pending, up to an entry that is applied.
func (p *watchPart) readLog(to uint64) error {
	entries, err := p.feed.entries(p.read, to)
	if err != nil {
		return err
	}
	wants := func(view felix.View, key []byte) bool { return view == p.w.req.View && p.w.req.Wants(key) }
	for _, e := range entries {
		if e.GetType() == raftpb.EntryNormal {
			err := feed.Read(e.GetIndex(), e.GetData(), wants, func(c *feed.Change) {
				if !p.pos.Told(c) && !p.seen(c) {
					p.pending = append(p.pending, c)
				}
			})
			p.w.c.b.checkEntry(p.feed.r.id, e, err)
		}
		p.read = e.GetIndex() + 1
	}
	return nil
}
