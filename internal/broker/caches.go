package broker

import (
	"context"
	"time"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/placement"
	"github.com/felix-go/felix/internal/shard"
)

// cacheAt is a cache that this broker knows, or nil.
func (b *Broker) cacheAt(scope felix.Scope) *cache {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return b.caches[scope]
}

// find finds a cache. One that this broker knows costs nothing; that there is none
// with a name only the metadata's owner can say.
func (b *Broker) find(ctx context.Context, scope felix.Scope) (*cache, error) {
	if err := scope.Validate(); err != nil {
		return nil, err
	}
	if c := b.cacheAt(scope); c != nil {
		return c, nil
	}
	m, err := b.readCache(ctx, scope)
	if err != nil {
		return nil, err
	}
	return b.know(m), nil
}

// know makes a cache known as m says, unless what is known of it is newer, and
// answers it. Of two caches that had the same name, the one with the newer record
// came after the other was deleted.
func (b *Broker) know(m *cacheMeta) *cache {
	b.mu.Lock()
	c := b.caches[m.scope()]
	if c != nil && c.meta.version >= m.version {
		b.mu.Unlock()
		return c
	}
	old := c
	if c == nil || c.meta.Shards[0].ID != m.Shards[0].ID {
		c = b.newCache(m)
		b.caches[c.scope] = c
	} else {
		old = nil
	}
	c.meta = m
	b.mu.Unlock()
	if old != nil {
		b.forget(old)
	}
	b.boundIDs(m)
	for i := range m.Shards {
		b.guide(&m.Shards[i])
	}
	return c
}

// newCache makes a cache. mu is held.
func (b *Broker) newCache(m *cacheMeta) *cache {
	c := &cache{b: b, scope: m.scope(), meta: m}
	for _, id := range m.shardIDs() {
		c.shards = append(c.shards, b.addRouteLocked(id, len(m.Shards)))
	}
	return c
}

// forget stops to serve a cache that is gone, or may be. Its shards and their data
// are the reconciler's business.
func (b *Broker) forget(c *cache) {
	c.gone.Store(true)
	b.mu.Lock()
	if b.caches[c.scope] == c {
		delete(b.caches, c.scope)
	}
	b.mu.Unlock()
	b.poke()
}

// countPatience is how long a description of caches waits for their shards to
// count. They do so at once, unless they have no owner or no majority.
const countPatience = time.Second

// describe is a cache as it is, its counts included if its shards tell them soon.
func (b *Broker) describe(ctx context.Context, c *cache) (felix.CacheInfo, error) {
	infos, err := b.describeAll(ctx, []*cache{c})
	if err == nil && len(infos) == 0 {
		err = errCacheGone
	}
	if err != nil {
		return felix.CacheInfo{}, err
	}
	return infos[0], nil
}

// describeAll does the same with several caches, which are all asked at the same
// time. Those that are gone are left out.
func (b *Broker) describeAll(ctx context.Context, caches []*cache) (infos []felix.CacheInfo, err error) {
	patience := countPatience
	if deadline, is := ctx.Deadline(); is {
		patience = min(patience, time.Until(deadline)/2) // whoever asks shall have an answer
	}
	counting, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	asked := make([][]*shard.Request, len(caches))
	for i, c := range caches {
		asked[i], _ = c.broadcast(counting, countRequest) // nil if it is gone
	}
	for i, c := range caches {
		counts, err := sumOf(counting, asked[i])
		switch {
		case ctx.Err() != nil:
			return nil, felix.Errorf(felix.Unavailable, "the request ended before its answer came: %v", context.Cause(ctx))
		case asked[i] == nil, err != nil && felix.AsError(err).Code == felix.CacheNotFound:
			continue
		}
		info := b.info(c, counts)
		info.CountsUnknown = err != nil
		infos = append(infos, info)
	}
	return infos, nil
}

func (b *Broker) info(c *cache, counts felix.RecordCount) felix.CacheInfo {
	b.mu.RLock()
	m := c.meta
	b.mu.RUnlock()
	consistency, _ := felix.ParseConsistency(m.Consistency) // was checked
	return felix.CacheInfo{Scope: c.scope, Replicas: m.replicas(), CreatedAtMillis: m.CreatedAtMillis, Counts: counts,
		CacheSettings: felix.CacheSettings{Shards: len(m.Shards), Replication: m.Replication, Consistency: consistency, MaxIDs: m.maxIDs()}}
}

// replicas are how many replicas every shard has at least.
func (m *cacheMeta) replicas() int {
	least := felix.MaxReplication
	for i := range m.Shards {
		n := 0
		for _, r := range m.Shards[i].Replicas {
			if r.Have == placement.Voter {
				n++
			}
		}
		least = min(least, n)
	}
	return least
}
