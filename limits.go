package felix

import "time"

// Every limit of Felix stands here, with its unit in its name and its reason
// beside it. A request beyond one of them gets a clear error, never silence.
const (
	// MaxNameBytes bounds tenant, namespace and cache names: a DNS label, so
	// that a name can become part of a host name.
	MaxNameBytes = 63
	// MaxKeyBytes bounds a key: its length fits two bytes in every format.
	MaxKeyBytes = 65_535
	// MaxValueBytes bounds a value: larger ones would hold up everything that
	// shares their shard's log.
	MaxValueBytes = 1 << 20
	// MaxBatchItems bounds the operations of one API request, so that one
	// request cannot occupy a shard for longer than about ten milliseconds.
	MaxBatchItems = 10_000
	// MaxGroupBytes bounds what an atomic group writes, keys and values together:
	// it is one log entry, which holds up everything that shares its shard's log,
	// as the largest value does.
	MaxGroupBytes = 4 << 20
	// MaxIDBytes bounds an idempotency id: room for a UUID or a hash in text, and
	// for who made it.
	MaxIDBytes = 128
	// DefaultIDRetention and MaxIDRetention are how long an idempotency id is
	// remembered, by default and at most: each costs a record on disk until then.
	DefaultIDRetention = 24 * time.Hour
	MaxIDRetention     = 7 * 24 * time.Hour
	// DefaultMaxIDs is how many idempotency ids a cache may remember: hundreds a
	// second for the default retention, a gigabyte of disk on each replica.
	// MaxIDsPerCache bounds the setting.
	DefaultMaxIDs  = 10_000_000
	MaxIDsPerCache = 1_000_000_000
	// MaxScanPage bounds the items of one page, for the same reason.
	MaxScanPage = 10_000
	// MaxScanPageBytes ends a page early, and before it the part of a shard, so
	// that a scan over large values takes bounded memory.
	MaxScanPageBytes = 4 << 20
	// SlotCount is Redis Cluster's, so that its {tags} keep their meaning.
	SlotCount = 16_384
	// MaxShardsPerCache keeps at least 64 slots in a shard and the cost of an
	// idle cache small.
	MaxShardsPerCache = 256
	// DefaultShards is enough to use several cores, cheap when idle.
	DefaultShards = 4
	// MaxReplication bounds the replicas of a shard: beyond seven, each adds
	// cost and hardly any safety.
	MaxReplication = 7
	// MaxCaches bounds the caches of a cluster: brokers keep all in memory.
	MaxCaches = 10_000
	// MaxShards bounds the shards of all caches of one broker: each costs
	// memory and a Raft group even when idle.
	MaxShards = 4_096

	// MaxNodes bounds the brokers of a cluster: each speaks with every other.
	MaxNodes = 64

	// MaxConnections is the default bound on the connections of each door, the
	// Redis one and the HTTP one: past it a client is told so and closed. It is
	// a setting.
	MaxConnections = 20_000
	// MaxPipelineBytes bounds what one connection may have read and not yet
	// answered: beyond it the broker stops reading from that connection. A
	// request larger than this (the largest legal one is a value with its
	// key) is still read whole.
	MaxPipelineBytes = 1 << 20
	// MaxHTTPBodyBytes bounds the body of an HTTP request, as sent and as
	// unpacked. The largest legal one is a key of MaxKeyBytes whose every byte
	// JSON writes as six, or a value of MaxValueBytes in base64; this is twice
	// that.
	MaxHTTPBodyBytes = 3 << 20
	// MaxHTTPHeaderBytes bounds the head of an HTTP request; the API needs a
	// few hundred.
	MaxHTTPHeaderBytes = 32 << 10
	// MaxHTTPStreams bounds the requests at once on one HTTP/2 connection,
	// which costs nothing but its share: clients let more wait, or open another.
	MaxHTTPStreams = 250
	// MaxHTTPRefusals bounds the connections beyond MaxConnections that are
	// told so at the same time; more wait to be accepted. Each takes a moment.
	MaxHTTPRefusals = 64
	// MaxHTTPBytes bounds the memory of HTTP requests under way and of their
	// answers that are not read yet: thousands of ordinary requests, dozens of
	// the largest. Beyond it new ones are refused as resource_exhausted.
	MaxHTTPBytes = 128 << 20
	// HTTPRequestBytes is what a request is taken to hold of that beside its
	// body and answer: stack, buffers and heads of a goroutine of net/http.
	HTTPRequestBytes = 16 << 10
	// MaxHTTPDecoding bounds the requests that are unpacked and decoded at the
	// same time; the next wait. It is more than there are cores, mostly, and a
	// thousandth of a body unpacks to MaxHTTPBodyBytes.
	MaxHTTPDecoding = 32
	// MaxHTTPBatches is the same for batches, whose items take up to fifty times
	// their encoded size.
	MaxHTTPBatches = 4
	// MaxHTTPListing bounds the HTTP requests that gather a page of a list at
	// the same time; the next wait. Each may gather MaxScanPageBytes and an
	// item a shard.
	MaxHTTPListing = 8
	// MaxHTTPScrapes bounds the requests of /metrics at once; each makes a
	// text of some hundred kilobytes.
	MaxHTTPScrapes = 8
	// HTTPHeaderTimeout, HTTPBodyTimeout and HTTPAnswerTimeout bound how long
	// an HTTP client may take to send the head and the body of a request and to
	// read its answer, so that slow ones cannot hold memory, connections or a
	// stop of the broker: together with RequestTimeout they stay below the time
	// that a stop may take by default.
	HTTPHeaderTimeout = 5 * time.Second
	HTTPBodyTimeout   = 8 * time.Second
	HTTPAnswerTimeout = 10 * time.Second
	// HTTPIdleTimeout is how long a connection without a request is kept;
	// longer than the 60 and 90 seconds after which common proxies and Go's
	// client give theirs up, so that it is not the server that hangs up first.
	HTTPIdleTimeout = 120 * time.Second

	// MaxTransactionBytes bounds what a Redis connection has queued since MULTI,
	// and the keys that it watches: twice what the largest transaction may write.
	MaxTransactionBytes = 8 << 20
	// MaxTransactionsBytes bounds that of all connections together: a client may
	// take as long as it likes to send EXEC.
	MaxTransactionsBytes = 128 << 20
	// MaxConnectionBytes is the default bound on the memory of all connections
	// of the RESP door together, since each alone may be within its own bounds
	// and all of them not. One half is for input that is not answered yet:
	// beyond it, connections with more than a few KB of it are not read from.
	// The other half is for answers that clients do not take: beyond it, the
	// connections that owe most are closed. It is a setting.
	MaxConnectionBytes = 512 << 20
	// MaxInflightShardBytes bounds what a shard has evaluated and not yet
	// committed, and what waits in a replica for an election, since all of it is held
	// in memory, of which other shards need some, too.
	MaxInflightShardBytes = 16 << 20
	// MaxInflightBrokerBytes bounds the operations that wait or are in flight
	// in the whole broker. Beyond it new ones are refused as
	// resource_exhausted. It is a setting.
	MaxInflightBrokerBytes = 256 << 20

	// MaxPeerQueueBytes bounds what waits to be sent to one other broker, Raft
	// messages and forwarded operations apart: a peer that is slow or silent
	// costs no more memory than this.
	MaxPeerQueueBytes = 64 << 20
	// MaxSnapshotStreams bounds the snapshots that a broker sends, and those that
	// it receives, at a time: each keeps disk, network and files busy.
	MaxSnapshotStreams = 2

	// MaxWatchers bounds the watches of a broker: each costs a queue and mostly a
	// connection, of which there are no more.
	MaxWatchers = 20_000
	// MaxWatchQueueEvents and MaxWatchQueueBytes bound what waits for a watcher
	// that does not take it: a burst of changes, or one value of the largest size
	// with its key. Beyond them only the latest change of each key is kept.
	MaxWatchQueueEvents = 1024
	MaxWatchQueueBytes  = 2 << 20
	// MaxWatchBrokerBytes bounds the same for all watchers of a broker.
	MaxWatchBrokerBytes = 256 << 20
	// MaxWatchTokenBytes bounds a resume token: three numbers of at most ten bytes
	// for each shard of the largest cache, and what they belong to.
	MaxWatchTokenBytes = MaxShardsPerCache*3*10 + 64
	// WatchRetention is how long a broker goes on keeping log for the watchers of
	// a shard after the last one has left, so that it can come back, and
	// WatchRetentionBytes how much of it, for each shard that is watched.
	WatchRetention      = time.Minute
	WatchRetentionBytes = 4 << 20

	// RequestTimeout is how long an operation waits by default for an owner
	// or a majority before it is refused. It is a setting.
	RequestTimeout = 5 * time.Second
	// StallTimeout is how long a Redis client may take nothing of the answers
	// that wait for it before its connection is closed: they are held in
	// memory. It also bounds how long connections are held back for want of
	// memory for input before the one that holds most of it is closed.
	StallTimeout = 30 * time.Second
	// LeaderTail bounds how old an entry of a leader cache may grow without
	// being on a majority before its owner stops acknowledging.
	LeaderTail = 100 * time.Millisecond
	// MaxExpiryMillis bounds a time to live and an expiry time, so that sums of
	// two of them cannot overflow.
	MaxExpiryMillis = 1 << 61
)
