package broker

import (
	"fmt"
	"slices"
	"sync"
	"time"
)

const (
	// clockMemory is for how long a comparison with a peer's clock counts.
	clockMemory = 10 * time.Minute
	// clockPatience is how long a broker that has peers waits for a first
	// comparison before it may own shards.
	clockPatience = 2 * time.Second
)

// notCompared is why a broker may not own shards before it knows more.
const notCompared = "its clock has not been compared with another broker's yet"

// wallClock is the wall clock as shards are given it, watched by those of the
// other brokers. It goes by the system's as long as that moves as time does. A
// step of the system's clock is held back, and time goes on without it, until the
// others say that the new time is right; so that no operation is ever evaluated
// at a time that only this broker believes in. It is safe for concurrent use.
type wallClock struct {
	bound time.Duration // how far apart clocks may be

	mu    sync.Mutex
	peers map[uint64]*peerClock // nil where there is no other broker
	since time.Duration         // since when there are others

	// at and wall are the last time that was given: both clocks at that moment.
	given bool
	at    time.Duration
	wall  int64
	// stepped says when the system's clock was first seen to have stepped away;
	// negative is not.
	stepped time.Duration
}

// peerClock is the last comparison with a peer.
type peerClock struct {
	known bool
	at    time.Duration // when, on our monotonic clock
	// zero is the peer's wall clock when our monotonic clock was 0: a step of
	// our own wall clock changes nothing about it.
	zero int64
}

func newWallClock(bound time.Duration) *wallClock { return &wallClock{bound: bound, stepped: -1} }

// SetPeers says which other brokers there are.
func (c *wallClock) SetPeers(nodes []uint64, mono time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(nodes) == 0 {
		c.peers = nil
		return
	}
	before := c.peers
	if before == nil {
		c.since = mono
	}
	c.peers = make(map[uint64]*peerClock, len(nodes))
	for _, node := range nodes {
		if c.peers[node] = before[node]; c.peers[node] == nil {
			c.peers[node] = &peerClock{}
		}
	}
}

// Observe notes that a peer's wall clock was peerWall at some moment between two
// of our monotonic clock. Where these are far apart it says too little.
func (c *wallClock) Observe(node uint64, peerWall int64, sent, received time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p := c.peers[node]; p != nil && received-sent <= c.bound {
		middle := sent + (received-sent)/2
		*p = peerClock{known: true, at: received, zero: peerWall - middle.Milliseconds()}
	}
}

// Ahead is how far a peer's clock is ahead of the system's, 0 if that is not known.
func (c *wallClock) Ahead(node uint64, system int64, mono time.Duration) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.peers[node]
	if p == nil || !p.known || mono-p.at > clockMemory {
		return 0
	}
	return time.Duration(p.zero+mono.Milliseconds()-system) * time.Millisecond
}

// Offset is how far the system's clock is ahead of the median of those of the
// peers, 0 if none of these is known.
func (c *wallClock) Offset(system int64, mono time.Duration) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	var ahead []int64
	for _, p := range c.peers {
		if p.known && mono-p.at <= clockMemory {
			ahead = append(ahead, system-(p.zero+mono.Milliseconds()))
		}
	}
	if len(ahead) == 0 {
		return 0
	}
	slices.Sort(ahead)
	low, high := ahead[(len(ahead)-1)/2], ahead[len(ahead)/2]
	return time.Duration(low+(high-low)/2) * time.Millisecond
}

// Now is the time for shards, in Unix milliseconds, where the system's clock
// says system.
func (c *wallClock) Now(system int64, mono time.Duration) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	believed := c.believed(system, mono)
	if c.peers != nil && distance(system, believed) > c.bound {
		if c.stepped < 0 {
			c.stepped = mono
		}
		if known, far := c.compare(system, mono, c.stepped); known == 0 || 2*far >= known {
			return believed
		}
	}
	c.given, c.at, c.wall, c.stepped = true, mono, system, -1
	return system
}

// believed is what the time is if the last one that was given was right.
func (c *wallClock) believed(system int64, mono time.Duration) int64 {
	if !c.given {
		return system
	}
	return c.wall + (mono - c.at).Milliseconds()
}

// Eligible says whether the broker may own shards, or why not: its time must not
// be far from that of most others, whichever of them is right.
func (c *wallClock) Eligible(system int64, mono time.Duration) (ok bool, why string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.peers == nil {
		return true, ""
	}
	known, far := c.compare(c.believed(system, mono), mono, -1)
	switch {
	case known == 0 && mono-c.since < clockPatience:
		return false, notCompared
	case 2*far > known:
		return false, fmt.Sprintf("its clock is more than %v away from those of %d of %d other brokers", c.bound, far, known)
	}
	return true, ""
}

// compare counts the peers whose clock was compared after the moment, and those
// of them that are far from wall.
func (c *wallClock) compare(wall int64, mono, after time.Duration) (known, far int) {
	for _, p := range c.peers {
		if !p.known || p.at <= after || mono-p.at > clockMemory {
			continue
		}
		known++
		if distance(wall, p.zero+mono.Milliseconds()) > c.bound {
			far++
		}
	}
	return known, far
}

// distance is how far apart two Unix times in milliseconds are, or a day: a peer
// may say anything.
func distance(a, b int64) time.Duration {
	const day = int64(24 * time.Hour / time.Millisecond)
	d := max(a, b) - min(a, b)
	if d < 0 || d > day {
		d = day
	}
	return time.Duration(d) * time.Millisecond
}
