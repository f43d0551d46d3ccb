package shard

import (
	"time"

	"github.com/felix-go/felix"
)

// ReadMode says how an owner makes sure, before it answers a read, that it still
// is the owner.
type ReadMode uint8

const (
	// Fences asks a majority, once for all reads that wait.
	Fences ReadMode = iota
	// Leases relies on what a majority has promised: for an election timeout
	// after it has heard of the leader it elects no other.
	Leases
)

// lease is the time in which no other replica can become leader. It is counted
// from before the heartbeats were sent that a majority has answered, on a clock
// that never goes back, and it is looked at after evaluating: see Confirm.
type lease struct {
	until time.Duration // on Now.Mono; 0 is none
	used  time.Duration // when a read last relied on it, or would have
	// barred says that in this term there is none any more. The message that
	// tells a replica to take over makes the others break their promise, and may
	// be on its way for long after the transfer was given up.
	barred bool
}

// leaseIdle is how long a lease is kept up after the last read.
const leaseIdle = time.Second

func (l *lease) bar() { l.until, l.barred = 0, true }

// leases says whether this leader answers reads by its lease.
func (s *Shard) leases() bool { return s.cfg.Reads == Leases && !s.lease.barred }

// needFence makes a request wait for a round of confirmed leadership that
// begins from now on (rule 4), or for Confirm if there is a lease. A sole voter
// needs none, and on a leader cache reads are the owner's word; but a Barrier is
// there to make sure who the owner is.
func (s *Shard) needFence(r *Request) {
	if s.alone || s.cfg.Consistency != felix.Quorum && r.Kind != Barrier {
		return
	}
	if s.leases() {
		s.lease.used = s.now.Mono
		if s.now.Mono < s.lease.until {
			r.leased, s.leased = true, true
			return
		}
	}
	r.fence = s.fenceSeq + 1
	s.fenceWanted = true
}

// renew says whether it is time for a round that only keeps the lease up.
func (s *Shard) renew() bool {
	now := s.now.Mono
	return s.leases() && s.lease.used > 0 && now-s.lease.used < leaseIdle && now-s.fenceBegan >= s.cfg.LeaseFor/4
}

// renewed is called when a majority has answered the round under way.
func (s *Shard) renewed() {
	if s.leases() {
		s.lease.until = max(s.lease.until, s.fenceBegan+s.cfg.LeaseFor)
	}
}

// Leased says that Confirm has something to do.
func (s *Shard) Leased() bool { return s.leased }

// Confirm answers the reads that rest on the lease. The time must have been read
// after Advance, which evaluated them: a lease that holds now held then, however
// long the process was paused in between; and a pause from now on only delays
// answers that are right. Without a lease they wait for a fence, and
// Unfinished says so.
func (s *Shard) Confirm(now Now, out *Output) {
	if !s.leased {
		return
	}
	s.leased = false
	holds := now.Mono < s.lease.until
	for _, r := range s.waiting {
		if !r.leased {
			continue
		}
		r.leased = false
		if !holds {
			r.fence = s.fenceSeq + 1
			s.fenceWanted = true
		}
	}
	s.release(out)
}

// SetReads changes Config.Reads.
func (s *Shard) SetReads(mode ReadMode) {
	s.cfg.Reads = mode
	s.lease.until = 0
}
