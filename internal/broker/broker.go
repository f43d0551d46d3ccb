// Package broker runs the shards of one process: it routes operations to them,
// drives their step functions, makes their log entries durable together, loads
// and checkpoints their records, and keeps the metadata of caches. It
// implements felix.Service.
//
// Who owns what: a worker goroutine owns its shards and their tables; the
// committer owns writing to the log; the checkpointer decides about
// checkpoints and writes them; loaders read the state store. They pass
// messages; no lock is held across a disk sync.
package broker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/peer"
	"github.com/felix-go/felix/internal/raftlog"
	"github.com/felix-go/felix/internal/record"
	"github.com/felix-go/felix/internal/shard"
	"github.com/felix-go/felix/internal/store"
)

// Options configure a broker. Zero values mean the defaults.
type Options struct {
	Dir    string // the data directory; made if missing
	FS     vfs.FS // nil is the disk
	NodeID uint64 // which node the broker is: the one that the directory is of, or 1, if 0
	Logger *slog.Logger
	// Fatal is told why the process must end: a failed disk, damaged data. It
	// must not return in production; nothing is acknowledged after it.
	Fatal func(error)
	// Wall is the wall clock in Unix milliseconds; nil is the system's.
	Wall func() int64

	Workers         int           // goroutines that run shards; 0 is by GOMAXPROCS
	RecordBytes     int64         // bound on records held in memory
	BlockCacheBytes int64         // bound on the state store's block cache
	InflightBytes   int64         // bound on operations that wait or are in flight: what needs more is always refused
	RequestTimeout  time.Duration // of operations without a deadline
	TickInterval    time.Duration // of Raft's logical clock
	CheckpointEvery time.Duration // how long a change may stay out of the state store
	CheckpointBytes int64         // log bytes of a shard that ask for a checkpoint
	CheckpointDirty int           // dirty entries of a shard that do
	MaxDirtyBytes   int64         // bound on records that are not in the state store yet; at it, writes wait
	MaxLogBytes     int64         // bound on the logs of all shards, which a restart replays; at it, writes wait
	SweepEvery      time.Duration // how often expired records are looked for
	CompareEvery    time.Duration // how often replicas that have moved are compared with others
	HashStatesEvery time.Duration // how often the states of a shard's replicas are compared
	metaTimeout     time.Duration // these four only tests set
	coverAfter      time.Duration
	byHand          bool                  // once it is open, the broker does nothing that its metadata wants
	net             func(*Broker) network // the others of a broker; nil: none, or those that Cluster tells of
	Cluster         ClusterOptions
	// ReplicationIsTarget lets a cache ask for more replicas than there are
	// brokers; otherwise that is refused.
	ReplicationIsTarget bool
	OnSync              func(time.Duration) // told how long each sync of the log took
	OnCheckpointStep    func(time.Duration) // told how long each slice of a checkpoint held up a worker
}

// ClusterOptions say how a broker finds the others. The zero value is a broker
// that stays alone.
type ClusterOptions struct {
	// Listener is where other brokers reach this one. Open takes it over. nil: no
	// other broker ever does.
	Listener net.Listener
	// Peers are the peer addresses of the brokers that form a new cluster, by
	// their node ids, this one's among them. Join are those of brokers whose
	// cluster a new broker joins. Neither counts once the directory belongs to a
	// cluster.
	Peers map[uint64]string
	Join  []string
	// Advertise is what others are told of this broker's listeners; an empty
	// PeerAddr is the Listener's.
	Advertise Addresses
	Version   string // of this build, for people
	TLS       *peer.TLS
	// Reads is how reads of quorum caches are confirmed: "fence", which empty is,
	// too, or "lease".
	Reads          string
	ReplaceAfter   time.Duration // a broker that was away for so long is replaced; 0 is 5 minutes
	MaxClockOffset time.Duration // from most others: beyond it, a broker does not lead; 0 is 500 ms
	GiveBackAfter  time.Duration // a broker is there again for so long before it gets its shards back; 0 is 5 seconds
	// Dial makes connections to peers; nil is a net.Dialer. Tests break networks here.
	Dial func(ctx context.Context, node uint64, addr string) (net.Conn, error)
	// OnStep is told of each step of a change of the cluster, for tests to crash
	// the broker at. Nil is not told.
	OnStep func(step string)
}

// Addresses are host:port of a broker's doors, as others reach them.
type Addresses struct {
	Peer, HTTP, RESP string
}

func (o *Options) setDefaults() {
	set(&o.FS, vfs.Default)
	set(&o.Workers, max(1, runtime.GOMAXPROCS(0)/4))
	set(&o.RecordBytes, 512<<20)
	set(&o.BlockCacheBytes, 64<<20)
	set(&o.InflightBytes, int64(felix.MaxInflightBrokerBytes))
	set(&o.RequestTimeout, felix.RequestTimeout)
	set(&o.TickInterval, 50*time.Millisecond)
	set(&o.CheckpointEvery, 15*time.Second)
	set(&o.CheckpointBytes, 64<<20)
	set(&o.CheckpointDirty, 256<<10)
	set(&o.MaxDirtyBytes, max(o.RecordBytes, minDirtyBytes))
	set(&o.MaxLogBytes, 1<<30)
	set(&o.SweepEvery, time.Second)
	set(&o.CompareEvery, 5*time.Second)
	set(&o.HashStatesEvery, 4*time.Hour)
	set(&o.metaTimeout, metaTimeout)
	set(&o.coverAfter, coverAfter)
	set(&o.Cluster.ReplaceAfter, 5*time.Minute)
	set(&o.Cluster.MaxClockOffset, 500*time.Millisecond)
	set(&o.Cluster.GiveBackAfter, 5*time.Second)
	if o.Cluster.OnStep == nil {
		o.Cluster.OnStep = func(string) {}
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Wall == nil {
		o.Wall = func() int64 { return time.Now().UnixMilli() }
	}
	if o.Fatal == nil {
		o.Fatal = func(err error) { panic(err) }
	}
	if o.OnSync == nil {
		o.OnSync = func(time.Duration) {}
	}
	if o.OnCheckpointStep == nil {
		o.OnCheckpointStep = func(time.Duration) {}
	}
}

func set[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// Broker is a running broker. It is safe for concurrent use.
type Broker struct {
	opts      Options
	dir       *dataDir
	log       *raftlog.Log
	db        *store.DB
	budget    *store.Budget
	start     time.Time
	bootStart time.Duration // the same on bootTime, where mono goes by that
	node      uint64        // this broker's
	net       network       // the others
	links     *links        // to them; nil where there is no listener
	clock     *wallClock
	entered   chan struct{}   // holds a token once others have made the broker a member
	running   context.Context // ends when the broker begins to stop
	router    *router
	resolver  *resolver
	workers   []*worker
	committer *committer
	pacer     pacer
	traffic   traffic
	inflight  atomic.Int64 // bytes of operations submitted and not answered
	watches   watches

	mu       sync.RWMutex // guards caches, replicas and routes
	caches   map[felix.Scope]*cache
	replicas map[uint64]*replica
	routes   map[uint64]*route // by shard
	meta     *cache
	metaMu   sync.Mutex // serializes changes of the metadata on this broker

	rec         reconciler
	viewMu      sync.Mutex           // held while the metadata is read
	seen        atomic.Pointer[view] // as it was read last
	metaApplied watermark            // how far the metadata's log is applied here

	stopping     atomic.Bool            // HandOver was called
	lookMu       sync.Mutex             // serializes changes of what follows
	eligible     atomic.Bool            // the clock lets this broker own shards
	ineligible   atomic.Pointer[string] // why it does not, or empty
	reads        atomic.Uint32          // the shard.ReadMode of quorum caches
	watchWake    chan struct{}          // capacity 1
	nextGiveBack time.Duration          // the reconciler's

	stop       context.CancelFunc
	background sync.WaitGroup // checkpointer, sweeper, equality, router, resolver, watch, reconciler
	readers    sync.WaitGroup // of the state store, started by workers
	loaders    chan struct{}  // holds a token for each of them that loads records
	sending    chan struct{}  // the same, for snapshots
	pagers     chan struct{}  // the same, for pages of scans
	checkpoint *checkpointer
	equality   *equality
	confs      confs     // the reconciler's
	driver     driver    // the same
	failed     sync.Once // told Options.Fatal
}

// replica is a shard as the broker knows it.
type replica struct {
	shard  *shard.Shard // its worker's
	log    *raftlog.Shard
	worker *worker
	id     uint64
	raftID uint64
	route  *route
	// nodes says where the shard's replicas are, by Raft id. The map is never
	// changed, but replaced, by the worker.
	nodes atomic.Pointer[map[uint64]uint64]

	// The worker's:
	active  bool // in worker.active
	owed    int  // ticks that its clock stands behind: see worker.tickShard
	closed  bool
	why     *felix.Error // closed: what requests fail with; nil: others may evaluate them
	capture *captureJob
	flushed record.Applied // what the state store has
	savedAt time.Duration
	// wantCheckpoint says that a snapshot is needed of what is applied.
	wantCheckpoint bool
	feed           *shardFeed               // tells those who watch the shard; nil: nobody does, or did lately
	incoming       *incoming                // the snapshot that is on its way into it
	heard          map[uint64]time.Duration // when the leader last knew that a replica, by Raft id, was there

	// For others to see:
	owns      atomic.Bool
	lead      atomic.Uint64 // node that leads the shard, 0 if it is not known
	part      atomic.Uint32 // a replicaPart
	strays    atomic.Bool   // see shard.Shard
	operation atomic.Uint64 // Stats.Operations, for metrics
	applied   atomic.Uint64 // index of the last entry
	transfers transfers
}

// Open starts a broker on its data directory, which is made if it does not
// exist. It returns when every shard is open; ownership follows at once. A new
// broker of a cluster first forms it with the others, or joins it, for which it
// waits until ctx ends.
func Open(ctx context.Context, o Options) (_ *Broker, err error) {
	o.setDefaults()
	b := &Broker{opts: o, start: time.Now(), net: noPeers{}, router: newRouter(), resolver: newResolver(), rec: newReconciler(),
		clock: newWallClock(o.Cluster.MaxClockOffset), watchWake: make(chan struct{}, 1), entered: make(chan struct{}, 1),
		caches: map[felix.Scope]*cache{}, replicas: map[uint64]*replica{}, routes: map[uint64]*route{},
		budget: &store.Budget{MaxBytes: o.RecordBytes}, watches: newWatches()}
	fatal := o.Fatal
	if o.Cluster.Reads == readsLease {
		b.bootStart, _ = bootTime()
	}
	b.eligible.Store(true)
	b.ineligible.Store(new(string))
	// Who comes second waits, for ever if Fatal ends the process: in between,
	// nobody goes on with a disk that has failed.
	b.opts.Fatal = func(err error) { b.failed.Do(func() { fatal(err) }) }
	o.FS = &dirSyncFS{FS: o.FS, failed: func(err error) { b.opts.Fatal(inDir(o.Dir, err)) }}
	defer func() {
		if err != nil {
			b.closeStorage()
			if o.Cluster.Listener != nil {
				_ = o.Cluster.Listener.Close() // it may be closed already
			}
		}
	}()
	if err = o.Cluster.check(); err != nil {
		return nil, err
	}
	if b.dir, err = openDataDir(o.FS, o.Dir); err != nil {
		return nil, err
	}
	if b.node, err = b.begin(); err != nil {
		return nil, err
	}
	if b.log, err = raftlog.Open(b.dir.path("log"), raftlog.Options{FS: o.FS, Logger: o.Logger, Fatal: b.opts.Fatal}); err != nil {
		return nil, err
	}
	if b.db, err = store.Open(b.dir.path("state"), store.Options{FS: o.FS, Logger: o.Logger, Fatal: b.opts.Fatal,
		CacheBytes: o.BlockCacheBytes}); err != nil {
		return nil, err
	}
	if err := syncDir(o.FS, o.Dir); err != nil { // log and state stand in it, before anything rests on them
		return nil, dirErrorf(o.Dir, "it cannot be synced: %w", err)
	}
	b.build()
	if err = b.makeLinks(); err != nil {
		return nil, err
	}
	b.run()
	if err := b.join(ctx); err != nil {
		return nil, errors.Join(err, b.closeLinks(ctx), b.halt())
	}
	return b, nil
}

// join makes the broker a part of its cluster.
func (b *Broker) join(ctx context.Context) error {
	if err := b.openLinks(); err != nil {
		return err
	}
	if err := b.enter(ctx); err != nil {
		return err
	}
	b.meetFounders() // who they are was not known before
	return b.openShards(ctx)
}

// build makes the parts of the broker that its goroutines share.
func (b *Broker) build() {
	b.committer = newCommitter(b)
	b.checkpoint, b.equality = newCheckpointer(b), newEquality(b)
	b.loaders, b.pagers = make(chan struct{}, maxLoaders), make(chan struct{}, maxPageReaders)
	b.sending = make(chan struct{}, felix.MaxSnapshotStreams)
	for range b.opts.Workers {
		b.workers = append(b.workers, newWorker(b))
	}
	if b.opts.net != nil {
		b.net = b.opts.net(b)
	}
}

// run starts the goroutines.
func (b *Broker) run() {
	ctx, stop := context.WithCancel(context.Background())
	b.running, b.stop = ctx, stop
	context.AfterFunc(ctx, b.watches.stop)
	for _, w := range b.workers {
		go w.run()
	}
	go b.committer.run()
	b.background.Go(func() { b.router.run(ctx.Done(), b.mono) })
	b.background.Go(func() { b.resolve(ctx) })
	b.background.Go(func() { b.reconcile(ctx) })
	b.background.Go(func() { b.watch(ctx) })
	b.background.Go(func() { b.checkpoint.run(ctx) })
	b.background.Go(func() { b.sweep(ctx) })
	b.background.Go(func() { b.equality.run(ctx) })
}

// closeGrace is how long Close waits, after its time is up, for what it has cut
// short to end.
const closeGrace = time.Second

// Close answers what is under way, writes a last checkpoint so that the next
// start has nothing to replay, and closes the files. The doors must be closed
// before. When ctx ends it gives up the checkpoint; and if the disk then does
// not let go of it either, Close leaves everything as it is and says so: the
// process has to end. What was acknowledged is in the log, and a checkpoint is
// written whole or not at all.
func (b *Broker) Close(ctx context.Context) error {
	closed := make(chan error, 1)
	go func() { closed <- b.close(ctx) }()
	select {
	case err := <-closed:
		return err
	case <-ctx.Done():
	}
	grace := time.NewTimer(closeGrace)
	defer grace.Stop()
	select {
	case err := <-closed:
		return err
	case <-grace.C:
		return dirErrorf(b.opts.Dir, "the disk is too slow to close it in time; nothing that was acknowledged is lost")
	}
}

func (b *Broker) close(ctx context.Context) error {
	err := b.closeLinks(ctx)
	b.stop()
	b.background.Wait()
	err = errors.Join(err, b.checkpoint.all(ctx))
	return errors.Join(err, b.halt(), b.closeStorage())
}

// halt stops the goroutines that run shards; operations under way are failed.
func (b *Broker) halt() error {
	b.stop()
	b.background.Wait()
	for _, w := range b.workers {
		w.close()
	}
	b.readers.Wait()
	b.committer.close()
	return nil
}

func (b *Broker) closeStorage() error {
	var errs []error
	if b.db != nil {
		errs = append(errs, b.db.Close())
	}
	if b.log != nil {
		errs = append(errs, b.log.Close())
	}
	if b.dir != nil {
		errs = append(errs, b.dir.close())
	}
	return errors.Join(errs...)
}

// now is the time of a step.
func (b *Broker) now() shard.Now {
	mono := b.mono()
	return shard.Now{WallMillis: b.clock.Now(b.opts.Wall(), mono), Mono: mono}
}

// mono is the clock of all deadlines and leases; it begins with the broker. Where
// leases were asked for, it goes on while the machine is suspended: others do not
// wait for it. To ask that clock takes a system call, which is not worth it
// otherwise.
func (b *Broker) mono() time.Duration {
	if b.bootStart != 0 {
		if t, ok := bootTime(); ok {
			return t - b.bootStart
		}
	}
	return time.Since(b.start)
}

// monoAt is mono at a moment.
func (b *Broker) monoAt(t time.Time) time.Duration {
	if b.bootStart != 0 {
		return b.mono() + time.Until(t)
	}
	return t.Sub(b.start)
}

// Ready says whether this broker takes its part in serving, nil, or why not; for
// /readyz.
func (b *Broker) Ready() error {
	switch {
	case b.stopping.Load():
		return errors.New("the broker is stopping")
	case b.view().cluster == nil:
		return errors.New("the cluster's metadata has not been read yet")
	case !b.eligible.Load():
		return fmt.Errorf("this broker may not own shards: %s", *b.ineligible.Load())
	}
	b.mu.RLock()
	defer b.mu.RUnlock()
	for _, r := range b.replicas {
		if err := r.ready(); err != nil {
			return err
		}
	}
	return nil
}

// StoreID is the data directory's random identity.
func (b *Broker) StoreID() string { return b.dir.id().StoreID }
