package netloop

import (
	"errors"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"github.com/felix-go/felix/internal/invariant"
)

const (
	minEvents = 128  // asked for in one epoll_wait; doubled when they do not suffice
	maxEvents = 8192 // so many ready connections make one batch at most
	// wakeSlot is the event data of the loop's eventfd.
	wakeSlot = -1
)

// waiting says what the loop's goroutine is doing, and so how to wake it.
type waiting uint8

const (
	awake   waiting = iota // it will look at the news by itself
	parked                 // in park: wake it through loop.unpark
	polling                // asleep until sockets are ready: wake it through the eventfd
)

// loop is one event loop: one epoll set and one goroutine.
//
// Sockets are registered once, edge-triggered: the loop remembers which may
// have input, so that a connection whose turn is under way, or whose answers
// are not taken, costs nothing until it is looked at again.
type loop struct {
	engine
	bufs    pool
	pacer   Pacer
	epfd    int
	wakefd  int // eventfd, edge-triggered: it is never read
	sleeper *sleeper
	events  []unix.EpollEvent
	nready  int // events filled by the last wait

	conns     []*conn // by slot; nil are free
	freeSlots []int32
	socks     int // connections with a socket
	lingers   int // of those, lingering ones
	ready     []*conn
	stalled   []*conn // not read from until there is memory

	inputShare    int   // what bufs may lend before connections are stalled
	favoured      *conn // was let go on although there is no memory, or nil
	favouredSince int64 // when it was

	debtors int // connections with unsent answers
	unsent  int // the memory of those, the loop's part of srv.stats.unsent

	now       int64 // monotonic nanoseconds since base, as of this iteration
	base      time.Time
	nextSweep int64
	quiet     bool // draining has been seen: nothing is read any more
	fresh     bool // operations have been submitted since the broker was let run
	paced     bool // since the last poll requests have been given time to gather

	timer  *time.Timer   // for park
	unpark chan struct{} // holds at most one token, sent when waiting leaves parked

	// Guarded by engine.mu:
	waiting  waiting
	synced   bool     // a sync has ended since pace looked
	inbox    []socket // accepted, not yet registered
	draining bool
	forced   bool
	// overdrawn: answers hold too much memory, those of all loops together.
	overdrawn bool
	gone      bool // the descriptors are closed: nobody may wake the loop
	ended     chan struct{}
}

func newLoop(s *Server) (*loop, error) {
	l := &loop{
		pacer: s.opts.Pacer, epfd: -1, wakefd: -1, inputShare: s.inputShare(s.opts.Loops),
		events: make([]unix.EpollEvent, minEvents),
		base:   time.Now(),
		timer:  time.NewTimer(time.Hour),
		unpark: make(chan struct{}, 1),
		ended:  make(chan struct{}),
	}
	if err := l.open(); err != nil {
		l.close()
		return nil, err
	}
	l.timer.Stop()
	l.engine.init(s, l, &l.bufs)
	return l, nil
}

// open makes the loop's descriptors; after an error close closes those there are.
func (l *loop) open() (err error) {
	if l.epfd, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return err
	}
	if l.wakefd, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return err
	}
	ev := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLET, Fd: wakeSlot}
	if err = unix.EpollCtl(l.epfd, unix.EPOLL_CTL_ADD, l.wakefd, &ev); err != nil {
		return err
	}
	l.sleeper, err = newSleeper(l.epfd, l.look)
	return err
}

func (l *loop) close() {
	if l.sleeper != nil {
		l.sleeper.close()
	}
	for _, fd := range []int{l.wakefd, l.epfd} {
		if fd >= 0 {
			_ = unix.Close(fd) // nothing is written through it
		}
	}
}

// run is the loop. Each iteration first hands out what is finished, so that
// clients have their answers before they are asked for more; then lets
// requests gather while the disk is busy; then reads what there is.
func (l *loop) run() {
	if l.pacer != nil {
		defer l.pacer.OnSynced(l.onSynced)()
	}
	defer close(l.ended)
	for {
		l.collect()
		l.takeOrders()
		l.fresh = l.submit() || l.fresh
		l.publish()
		if l.over() {
			return
		}
		if l.pace() {
			continue
		}
		l.relieve()
		l.poll()
		l.sweep()
		l.readReady()
		l.fresh = l.submit()
	}
}

// pace gives requests time to gather while the disk is busy with operations of
// this loop, once for each poll: until a completion or the end of a sync, at
// most for as long as syncs take. It says whether it did (or found completions
// on the way), after which the loop collects first.
func (l *loop) pace() bool {
	if l.outstanding == 0 {
		l.fresh = false
		return false
	}
	if l.fresh {
		l.fresh = false
		// The cache has woken its goroutines; let them run here rather than on
		// a thread that has to be woken for it.
		runtime.Gosched()
		if l.hasNews() {
			return true
		}
	}
	if l.paced || l.pacer == nil {
		return false
	}
	l.mu.Lock()
	l.synced = false
	l.mu.Unlock()
	if !l.pacer.Busy() {
		return false
	}
	bound := min(l.pacer.RecentSync(), l.srv.maxPace)
	if bound <= 0 {
		return false
	}
	l.paced = true
	l.stats.paced++
	l.park(bound)
	return true
}

func (l *loop) hasNews() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.newsLocked()
}

// park waits for news, the end of a sync, or d, without occupying a thread.
func (l *loop) park(d time.Duration) {
	l.mu.Lock()
	if l.newsLocked() || l.synced || len(l.inbox) > 0 {
		l.mu.Unlock()
		return
	}
	l.waiting = parked
	l.mu.Unlock()
	l.timer.Reset(d)
	select {
	case <-l.unpark:
		l.timer.Stop()
	case <-l.timer.C:
		l.mu.Lock()
		if l.waiting != parked {
			<-l.unpark // sent with mu held
		}
		l.waiting = awake
		l.mu.Unlock()
	}
}

// poll finds the sockets that have something, and waits if there is nothing
// else to do.
func (l *loop) poll() {
	l.paced = false
	if !l.look() && len(l.ready) == 0 {
		if l.outstanding > 0 && l.pacer != nil && l.pacer.Busy() {
			return // run paces again: a parked loop is woken without a system call
		}
		l.block()
	}
	l.tick()
	n := l.nready
	for i := range l.events[:n] {
		l.note(&l.events[i])
	}
	if n == len(l.events) && n < maxEvents {
		l.events = make([]unix.EpollEvent, 2*n)
	}
}

// block waits for sockets or a wake-up.
func (l *loop) block() {
	l.mu.Lock()
	if l.newsLocked() || len(l.inbox) > 0 || l.draining != l.quiet || l.forced && l.socks > 0 || l.overdrawn {
		l.mu.Unlock()
		return
	}
	l.waiting = polling
	l.mu.Unlock()
	l.sleeper.sleep(l.untilSweep())
	l.mu.Lock()
	l.waiting = awake
	l.mu.Unlock()
}

// look asks the kernel, without waiting, which sockets have something, and
// says whether any has.
func (l *loop) look() bool {
	n, err := unix.EpollWait(l.epfd, l.events, 0)
	invariant.Check(err == nil || errors.Is(err, unix.EINTR), "epoll_wait failed: %v", err)
	l.nready = max(n, 0)
	return n > 0
}

// wakeLocked implements wire: it costs nothing while the loop is awake, a
// goroutine's wake-up while it is parked, and a system call only while it is
// asleep.
func (l *loop) wakeLocked() {
	switch l.waiting {
	case awake:
		return
	case parked:
		l.unpark <- struct{}{} // has room: sent only on leaving parked
	case polling:
		if !l.gone {
			one := [8]byte{1}
			_, _ = unix.Write(l.wakefd, one[:]) // cannot fail before 2^64 wake-ups
		}
	}
	l.waiting = awake
}

// onSynced ends a park; a loop that does anything else needs no telling.
func (l *loop) onSynced() {
	l.mu.Lock()
	l.synced = true
	if l.waiting == parked {
		l.wakeLocked()
	}
	l.mu.Unlock()
}

// order tells the loop something from another goroutine.
func (l *loop) order(change func()) {
	l.mu.Lock()
	change()
	l.wakeLocked()
	l.mu.Unlock()
}

// takeOrders registers new connections and begins to drain.
func (l *loop) takeOrders() {
	l.mu.Lock()
	inbox, draining, forced, overdrawn := l.inbox, l.draining, l.forced, l.overdrawn
	l.inbox, l.overdrawn = nil, false
	l.mu.Unlock()
	for _, s := range inbox {
		l.register(s)
	}
	if overdrawn {
		l.closeDebtors()
	}
	if draining && !l.quiet {
		l.quiet = true
		for _, c := range l.conns {
			switch {
			case c == nil:
			case c.waits:
				c.cancel()
			case c.lingering || !c.busy:
				l.settle(c)
			}
		}
	}
	if forced {
		for _, c := range l.conns {
			if c != nil {
				l.kill(c)
			}
		}
	}
}

// over says whether the loop has nothing left to do, for good, and then closes
// its descriptors.
func (l *loop) over() bool {
	if !l.quiet || l.socks > 0 || l.outstanding > 0 || l.slow > 0 {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.inbox) > 0 {
		return false
	}
	l.gone = true
	l.close()
	return true
}

// tick reads the clock, if anything depends on it.
func (l *loop) tick() {
	if l.timed() {
		l.now = int64(time.Since(l.base))
	}
}

// register takes an accepted connection in.
func (l *loop) register(s socket) {
	if l.quiet {
		l.discard(s)
		return
	}
	c := &conn{fd: s.fd}
	if last := len(l.freeSlots) - 1; last >= 0 {
		c.slot = l.freeSlots[last]
		l.freeSlots = l.freeSlots[:last]
	} else {
		c.slot = int32(len(l.conns))
		l.conns = append(l.conns, nil)
	}
	ev := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLRDHUP | unix.EPOLLET, Fd: c.slot}
	if err := unix.EpollCtl(l.epfd, unix.EPOLL_CTL_ADD, c.fd, &ev); err != nil {
		l.freeSlots = append(l.freeSlots, c.slot)
		l.srv.log.Warn("a connection was closed because the kernel cannot watch it; "+
			"raise fs.epoll.max_user_watches", "remote", addrText(s.remote), "error", err)
		l.discard(s)
		return
	}
	l.tick()
	c.active = l.now
	c.sess = l.srv.opts.Handler.NewSession(s.remote)
	l.conns[c.slot] = c
	l.socks++
}

func (l *loop) discard(s socket) {
	_ = unix.Close(s.fd) // nothing was read from it
	l.srv.stats.conns.Add(-1)
}
