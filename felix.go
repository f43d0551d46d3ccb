// Package felix is the vocabulary of Felix, the counter and rate-limit service:
// addresses, operations and their replies, error codes, limits, and the Service
// that a broker offers and every door (RESP, HTTP, the command line) speaks to.
//
// It depends on nothing, decides nothing and holds no state. Doors translate
// their protocol into these words; the broker answers in them.
package felix

import (
	"context"
	"time"
)

// Default names: `felix dev` creates them, and a RESP connection starts there.
const (
	DefaultTenant    = "default"
	DefaultNamespace = "default"
	DefaultCache     = "default"
	// StatsCache is the second cache `felix dev` creates.
	StatsCache = "stats"
)

// Scope is the address of a cache. A tenant or namespace exists as long as a
// cache exists in it.
type Scope struct {
	Tenant    string // [a-z0-9][a-z0-9._-]{0,62}
	Namespace string // the same
	Cache     string // the same
}

// String is tenant/namespace/cache.
func (s Scope) String() string { return s.Tenant + "/" + s.Namespace + "/" + s.Cache }

// Validate answers an invalid_argument error that names the first part of the
// address that is not a legal name, or nil.
func (s Scope) Validate() error {
	if err := ValidateName("tenant", s.Tenant); err != nil {
		return err
	}
	if err := ValidateName("namespace", s.Namespace); err != nil {
		return err
	}
	return ValidateName("cache", s.Cache)
}

// ValidateName checks a tenant, namespace or cache name; what says which, for
// the message. The error is invalid_argument.
func ValidateName(what, name string) error {
	if name == "" {
		return Errorf(InvalidArgument, "the %s name is empty", what)
	}
	if len(name) > MaxNameBytes {
		return Errorf(InvalidArgument, "the %s name has %d bytes, at most %d are allowed", what, len(name), MaxNameBytes)
	}
	for i := range len(name) {
		c := name[i]
		alnum := c >= 'a' && c <= 'z' || c >= '0' && c <= '9'
		if !alnum && (i == 0 || c != '.' && c != '_' && c != '-') {
			return Errorf(InvalidArgument,
				"the %s name %q has %q at position %d: names are a-z, 0-9, then also '.', '_' and '-'", what, name, c, i+1)
		}
	}
	return nil
}

// ValidateKey checks that a key has 1 to MaxKeyBytes bytes; any bytes are
// allowed. The error is invalid_argument.
func ValidateKey(key []byte) *Error {
	if len(key) == 0 {
		return errEmptyKey
	}
	if len(key) > MaxKeyBytes {
		return errLongKey
	}
	return nil
}

var (
	errEmptyKey = Errorf(InvalidArgument, "the key is empty")
	errLongKey  = Errorf(InvalidArgument, "the key has more than %d bytes", MaxKeyBytes)
)

// Consistency of a cache, fixed when it is created. The zero value is Quorum.
type Consistency uint8

const (
	// Quorum acknowledges a write when a majority of the shard's replicas
	// have it on disk.
	Quorum Consistency = iota
	// Leader acknowledges a write when the owner has ordered it; losing the
	// owner can lose the last 100 ms.
	Leader
)

// String is the name that users type: "quorum" or "leader".
func (c Consistency) String() string {
	if c == Leader {
		return "leader"
	}
	return "quorum"
}

// ParseConsistency reads the name that users type; empty means Quorum. The
// error is invalid_argument.
func ParseConsistency(s string) (Consistency, error) {
	switch s {
	case "", "quorum":
		return Quorum, nil
	case "leader":
		return Leader, nil
	}
	return 0, Errorf(InvalidArgument, "consistency %q: it is quorum or leader", s)
}

// CacheSettings is what a cache is created with.
type CacheSettings struct {
	Shards      int // 1 to MaxShardsPerCache; 0 means DefaultShards
	Replication int // replicas of each shard, the target; 0 means what the cluster has, at most 3
	Consistency Consistency
	MaxIDs      int64 // idempotency ids that it may remember, 1 to MaxIDsPerCache; 0 means DefaultMaxIDs
}

// CacheInfo is a cache as it is.
type CacheInfo struct {
	Scope
	CacheSettings               // as stored: nothing is zero
	Replicas        int         // how many replicas a shard has now; below Replication where brokers are missing
	CreatedAtMillis int64       // Unix time
	Counts          RecordCount // from the shards' owners
	// CountsUnknown says that not all of these answered in a moment, for one has no
	// majority, say: Counts is zero then.
	CountsUnknown bool
}

// RecordCount says how many records there are. Expired records count until
// they are swept.
type RecordCount struct {
	Counters int64
	Values   int64
	Keys     int64 // distinct keys: one that has both a counter and a value counts once
}

// Service is what a broker offers to its doors. Every error is an *Error.
type Service interface {
	// CreateCache makes a cache and waits until it can be used. Creating it
	// again with the same settings succeeds with created false; with other
	// settings it is already_exists. warning is a sentence for the user, as
	// when fewer brokers exist than the replication asks for, or empty.
	CreateCache(ctx context.Context, scope Scope, settings CacheSettings) (info CacheInfo, created bool, warning string, err error)
	// Caches lists the caches of a tenant's namespace in name order; an empty
	// tenant or namespace means all of them. A cache that cannot be used holds up
	// the list for a moment only: its counts are unknown.
	Caches(ctx context.Context, tenant, namespace string) ([]CacheInfo, error)
	// CacheInfo is cache_not_found where there is none.
	CacheInfo(ctx context.Context, scope Scope) (CacheInfo, error)
	// SetReplication changes the number of replicas, online.
	SetReplication(ctx context.Context, scope Scope, replication int) (info CacheInfo, warning string, err error)
	// SetMaxIDs changes how many idempotency ids a cache may remember. One that
	// has more forgets none, but takes no new ones.
	SetMaxIDs(ctx context.Context, scope Scope, maxIDs int64) (CacheInfo, error)
	// DeleteCache removes the cache and everything in it.
	DeleteCache(ctx context.Context, scope Scope) error
	// Cache finds a cache to work with, or is cache_not_found.
	Cache(ctx context.Context, scope Scope) (Cache, error)
}

// Cache is an open cache: the handle that operations go through. It is safe
// for concurrent use. After the cache was deleted every operation answers
// cache_not_found; a door then asks the Service again, because one of the same
// name may have been made since.
type Cache interface {
	// Scope is the cache's address.
	Scope() Scope
	// Submit starts the batch's operations and returns at once. See Batch.
	Submit(b *Batch)
	// Scan lists one page of keys in byte order. It is linearizable per shard:
	// each shard's part is its state at one moment after the call began.
	Scan(ctx context.Context, req ScanRequest) (ScanPage, error)
	// Count counts records.
	Count(ctx context.Context) (RecordCount, error)
	// Clear deletes every counter and value, and forgets every idempotency id: as
	// a cache that has just been made. It is atomic per shard.
	Clear(ctx context.Context) error
	// Watch begins to tell changes; the watch goes on until it is closed, not
	// until ctx ends. Errors: invalid_argument, for a Resume too that is no token
	// or of another watch; resource_exhausted beyond MaxWatchers; unavailable.
	Watch(ctx context.Context, req WatchRequest) (Watcher, error)
}

// Batch is a group of operations for one cache, submitted in one call; the
// hot path of every door. Operations on one shard are evaluated in the order
// of Ops; operations on different shards run side by side.
//
// From Submit until the operation's reply has been handed to Done, the Ops and
// the memory of their keys and values belong to the cache.
type Batch struct {
	Ops     []Op
	Replies []Reply // made by the caller, as long as Ops; filled by the cache
	// Deadline is when an operation stops waiting: one that was not evaluated
	// becomes unavailable (or resource_exhausted, if its shard was behind with
	// its work), one that was logged but not acknowledged becomes
	// outcome_unknown. Zero means the broker's request timeout.
	Deadline time.Time
	// Ends are where the parts of the batch end, ascending, the last at the end
	// of Ops: of different connections, say. When there is no room for all of
	// it, a part is refused as a whole, and only it. nil is one part.
	Ends []int32
	// Groups are the runs of Ops that are evaluated as one, ascending, not
	// overlapping, each within one part.
	Groups []Group
	// Done is told of finished operations.
	Done Completer
}

// Completer receives the operations of a batch as they finish.
type Completer interface {
	// OpsDone says that b.Replies[i] is filled for every i in part. Every
	// operation is told exactly once, those of one shard together, except that
	// illegal ones may be told apart, at once. It is called from the broker's own goroutines (or from inside Submit), so it
	// must not block, nor submit; part is only valid during the call.
	OpsDone(b *Batch, part []int32)
}

// ScanRequest asks for one page of a cache's keys.
type ScanRequest struct {
	View   View   // which records: counters, values, or Redis keys
	Prefix []byte // only keys that begin so; empty means all
	After  []byte // only keys above this one, in byte order; nil means from the start
	Limit  int    // 1 to MaxScanPage items
	// KeysOnly leaves the bytes of values out: the items' Value is nil.
	KeysOnly bool
}

// ScanPage is one page.
type ScanPage struct {
	Items []ScanItem // in byte order of Key
	More  bool       // whether there may be more keys
	// Next is the After of the next page, set if More is. It is not always
	// the last item's key: a page may be short, or even empty, where many
	// records were deleted.
	Next []byte
	// NowMillis is the shard time that ExpiresAtMillis is to be read against.
	NowMillis int64
}

// ScanItem is one record. The memory is the reader's own.
type ScanItem struct {
	Key             []byte
	Kind            RecordKind
	Int             int64  // a counter's sum
	Value           []byte // a value's bytes
	ExpiresAtMillis int64  // shard time; 0 means never
	Version         uint64
}
