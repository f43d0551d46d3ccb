package broker

import (
	"context"
	"fmt"
	"time"

	"github.com/felix-go/felix/internal/shard"
)

// modes are what goes for all replicas of the broker alike. They are set before
// the workers are told, and each of these looks at them when it takes a replica,
// so that none is missed.

// watchEvery is how often the broker looks at its clock and at what the cluster
// has finalized, when nothing happens.
const watchEvery = 250 * time.Millisecond

// Ways to confirm reads, for ClusterOptions.Reads.
const (
	readsFence = "fence"
	readsLease = "lease"
)

func (o *ClusterOptions) check() error {
	switch o.Reads {
	case "", readsFence, readsLease:
		return nil
	}
	return fmt.Errorf("reads %q: they are confirmed by a %q or a %q", o.Reads, readsFence, readsLease)
}

// watch keeps the modes of the replicas in line with the clock and the metadata.
func (b *Broker) watch(ctx context.Context) {
	ticks := time.NewTicker(watchEvery)
	defer ticks.Stop()
	for {
		b.look()
		select {
		case <-b.watchWake:
		case <-ticks.C:
		case <-ctx.Done():
			return
		}
	}
}

// watchSoon has watch look now.
func (b *Broker) watchSoon() {
	select {
	case b.watchWake <- struct{}{}:
	default:
	}
}

// look brings the modes in line.
func (b *Broker) look() {
	b.lookMu.Lock()
	defer b.lookMu.Unlock()
	eligible, why := b.clock.Eligible(b.opts.Wall(), b.mono())
	if before := b.ineligible.Swap(&why); *before != why {
		b.logEligible(why)
	}
	reads := uint32(b.readMode())
	changed := b.eligible.Swap(eligible) != eligible
	if changed = b.reads.Swap(reads) != reads || changed; changed {
		b.spreadModes()
	}
	if !eligible {
		b.handOverAll(b.fitNodes())
	}
}

func (b *Broker) logEligible(why string) {
	switch why {
	case "":
		b.opts.Logger.Info("this broker may own shards: its clock agrees with those of the others")
	case notCompared:
		b.opts.Logger.Info("this broker may not own shards yet", "why", why)
	default:
		b.opts.Logger.Warn("this broker may not own shards", "why", why)
	}
}

// readMode is how reads of quorum caches are confirmed: by fences, for which other
// builds need know nothing of them, unless leases were asked for. They rest on a
// clock that mono is only then.
func (b *Broker) readMode() shard.ReadMode {
	if b.opts.Cluster.Reads == readsLease {
		return shard.Leases
	}
	return shard.Fences
}

// spreadModes tells all workers of the modes.
func (b *Broker) spreadModes() {
	for _, w := range b.workers {
		w.call(func() {
			for _, r := range w.replicas {
				w.applyModes(r)
			}
		})
	}
}

// applyModes tells a replica of the modes. It runs on the worker.
func (w *worker) applyModes(r *replica) {
	r.shard.SetEligible(w.b.eligible.Load())
	r.shard.SetCampaigns(!w.b.stopping.Load())
	r.shard.SetReads(shard.ReadMode(w.b.reads.Load()))
	if n := r.route.maxIDs.Load(); n > 0 { // the cache is known
		r.shard.SetMaxIDs(n)
	}
	w.activate(r)
}
