package broker

import (
	"context"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/placement"
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

func (b *Broker) describe(ctx context.Context, c *cache) (felix.CacheInfo, error) {
	counts, err := c.Count(ctx)
	return b.info(c, counts), err
}

func (b *Broker) info(c *cache, counts felix.RecordCount) felix.CacheInfo {
	b.mu.RLock()
	m := c.meta
	b.mu.RUnlock()
	consistency, _ := felix.ParseConsistency(m.Consistency) // was checked
	return felix.CacheInfo{Scope: c.scope, Replicas: m.replicas(), CreatedAtMillis: m.CreatedAtMillis, Counts: counts,
		CacheSettings: felix.CacheSettings{Shards: len(m.Shards), Replication: m.Replication, Consistency: consistency}}
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
