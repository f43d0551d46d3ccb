// Package model is the simplest felix.Service that keeps the promises of the
// vocabulary: maps behind one mutex, in memory, one process. It is for tests
// only: a door is tested in front of it, and it is the reference that random
// tests compare the broker and the engine with. It shares no code with
// internal/engine and is written to be obviously right, not fast.
package model

import (
	"cmp"
	"context"
	"slices"
	"sync"

	"github.com/felix-go/felix"
)

// Service implements felix.Service. It is a cluster of one broker whose every
// operation finishes before the call returns; contexts and deadlines are never
// looked at.
type Service struct {
	mu      sync.Mutex
	now     func() int64
	caches  map[felix.Scope]*cache
	version uint64 // of the last write in any cache; only grows
	made    uint64 // caches, ever
}

var _ felix.Service = (*Service)(nil)

// New makes a service without caches. now is its clock, in Unix milliseconds;
// it must be positive and never go back.
func New(now func() int64) *Service {
	return &Service{now: now, caches: map[felix.Scope]*cache{}}
}

// SetClock replaces the clock.
func (s *Service) SetClock(now func() int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now = now
	for _, c := range s.caches {
		c.wake() // something may have expired
	}
}

// SetNow stops the clock at this time, in Unix milliseconds.
func (s *Service) SetNow(unixMillis int64) { s.SetClock(func() int64 { return unixMillis }) }

// CreateCache implements felix.Service.
func (s *Service) CreateCache(_ context.Context, scope felix.Scope, settings felix.CacheSettings) (felix.CacheInfo, bool, string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := scope.Validate(); err != nil {
		return felix.CacheInfo{}, false, "", err
	}
	settings, err := complete(settings)
	if err != nil {
		return felix.CacheInfo{}, false, "", err
	}
	if c := s.caches[scope]; c != nil {
		if c.settings != settings {
			return felix.CacheInfo{}, false, "", felix.Errorf(felix.AlreadyExists,
				"cache %s exists with other settings (%+v): delete it first, or use its settings", scope, c.settings)
		}
		return c.info(), false, warning(settings.Replication), nil
	}
	if err := s.room(settings.Shards); err != nil {
		return felix.CacheInfo{}, false, "", err
	}
	s.made++
	c := &cache{s: s, scope: scope, settings: settings, created: s.now(), number: s.made, changed: make(chan struct{})}
	c.clear()
	s.caches[scope] = c
	return c.info(), true, warning(settings.Replication), nil
}

// complete fills in the defaults of a cluster of one and checks the bounds.
func complete(settings felix.CacheSettings) (felix.CacheSettings, error) {
	if settings.Shards == 0 {
		settings.Shards = felix.DefaultShards
	}
	if settings.Replication == 0 {
		settings.Replication = 1
	}
	if settings.MaxIDs == 0 {
		settings.MaxIDs = felix.DefaultMaxIDs
	}
	if err := checkMaxIDs(settings.MaxIDs); err != nil {
		return settings, err
	}
	if settings.Shards < 1 || settings.Shards > felix.MaxShardsPerCache {
		return settings, felix.Errorf(felix.InvalidArgument, "%d shards: a cache has 1 to %d", settings.Shards, felix.MaxShardsPerCache)
	}
	if settings.Consistency > felix.Leader {
		return settings, felix.Errorf(felix.InvalidArgument, "consistency %d: it is quorum or leader", settings.Consistency)
	}
	return settings, checkReplication(settings.Replication)
}

func checkReplication(replication int) error {
	if replication < 1 || replication > felix.MaxReplication {
		return felix.Errorf(felix.InvalidArgument, "replication %d: it is 1 to %d", replication, felix.MaxReplication)
	}
	return nil
}

func warning(replication int) string {
	if replication > 1 {
		return "there is one broker: replicas are missing until others join"
	}
	return ""
}

// room checks the bounds on all caches together.
func (s *Service) room(shards int) error {
	total := shards
	for _, c := range s.caches {
		total += c.settings.Shards
	}
	if len(s.caches) >= felix.MaxCaches || total > felix.MaxShards {
		return felix.Errorf(felix.ResourceExhausted, "no room for another cache of %d shards: delete one first", shards)
	}
	return nil
}

// find is the open cache, or an error. The mutex is held.
func (s *Service) find(scope felix.Scope) (*cache, error) {
	if err := scope.Validate(); err != nil {
		return nil, err
	}
	if c := s.caches[scope]; c != nil {
		return c, nil
	}
	return nil, notFound(scope)
}

func notFound(scope felix.Scope) *felix.Error {
	return felix.Errorf(felix.CacheNotFound, "no such cache: %s; create it first", scope)
}

// Caches implements felix.Service.
func (s *Service) Caches(_ context.Context, tenant, namespace string) ([]felix.CacheInfo, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if tenant != "" {
		if err := felix.ValidateName("tenant", tenant); err != nil {
			return nil, err
		}
	}
	if namespace != "" {
		if err := felix.ValidateName("namespace", namespace); err != nil {
			return nil, err
		}
	}
	var infos []felix.CacheInfo
	for scope, c := range s.caches {
		if (tenant == "" || tenant == scope.Tenant) && (namespace == "" || namespace == scope.Namespace) {
			infos = append(infos, c.info())
		}
	}
	slices.SortFunc(infos, func(a, b felix.CacheInfo) int {
		return cmp.Or(cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Cache, b.Cache))
	})
	return infos, nil
}

// CacheInfo implements felix.Service.
func (s *Service) CacheInfo(_ context.Context, scope felix.Scope) (felix.CacheInfo, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c, err := s.find(scope)
	if err != nil {
		return felix.CacheInfo{}, err
	}
	return c.info(), nil
}

// SetReplication implements felix.Service.
func (s *Service) SetReplication(_ context.Context, scope felix.Scope, replication int) (felix.CacheInfo, string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c, err := s.find(scope)
	if err != nil {
		return felix.CacheInfo{}, "", err
	}
	if err := checkReplication(replication); err != nil {
		return felix.CacheInfo{}, "", err
	}
	c.settings.Replication = replication
	return c.info(), warning(replication), nil
}

// SetMaxIDs implements felix.Service.
func (s *Service) SetMaxIDs(_ context.Context, scope felix.Scope, maxIDs int64) (felix.CacheInfo, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c, err := s.find(scope)
	if err != nil {
		return felix.CacheInfo{}, err
	}
	if err := checkMaxIDs(maxIDs); err != nil {
		return felix.CacheInfo{}, err
	}
	c.settings.MaxIDs = maxIDs
	return c.info(), nil
}

// DeleteCache implements felix.Service.
func (s *Service) DeleteCache(_ context.Context, scope felix.Scope) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	c, err := s.find(scope)
	if err != nil {
		return err
	}
	c.deleted = true
	c.wake()
	delete(s.caches, scope)
	return nil
}

// Cache implements felix.Service.
func (s *Service) Cache(_ context.Context, scope felix.Scope) (felix.Cache, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c, err := s.find(scope)
	if err != nil {
		return nil, err
	}
	return c, nil
}
