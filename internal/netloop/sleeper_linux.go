package netloop

import (
	"errors"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/felix-go/felix/internal/invariant"
)

// sleeper lets a loop wait for its epoll set in Go's own poller, so that no
// thread and none of GOMAXPROCS is held meanwhile: a goroutine blocked in
// epoll_wait keeps its processor until the runtime's monitor takes it away,
// which on two cores delays the very goroutines that make the next replies.
//
// Go's poller would be told of every packet for the set, also while the loop is
// busy and does not ask. So between the two stands an outer set which contains
// the loop's set only while the loop sleeps. Measured at 50 connections x 1, CPU
// per request relative to blocking in epoll_wait: 0.93, and 1.18 without the
// outer set; at 1 x 1: 0.87 and 0.90.
type sleeper struct {
	inner int      // the loop's epoll set
	outer *os.File // the outer set, in Go's poller
	fd    int      // of outer
	raw   syscall.RawConn
	look  func(uintptr) bool // looks at the inner set: true ends the sleep
	timed bool               // outer has a deadline
}

// newSleeper makes a sleeper for the set inner; look says whether it has
// something.
func newSleeper(inner int, look func() bool) (*sleeper, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, err
	}
	if err = unix.SetNonblock(fd, true); err == nil { // else os.NewFile would not poll it
		err = unix.EpollCtl(fd, unix.EPOLL_CTL_ADD, inner, &unix.EpollEvent{})
	}
	if err != nil {
		_ = unix.Close(fd) // the reason is err
		return nil, err
	}
	s := &sleeper{inner: inner, fd: fd, outer: os.NewFile(uintptr(fd), "epoll"),
		look: func(uintptr) bool { return look() }}
	if s.raw, err = s.outer.SyscallConn(); err == nil {
		err = s.outer.SetReadDeadline(time.Time{}) // fails if Go does not poll it
	}
	if err != nil {
		_ = s.outer.Close() // the reason is err
		return nil, err
	}
	return s, nil
}

// sleep returns when look answers true, or after d; a negative d is for ever.
func (s *sleeper) sleep(d time.Duration) {
	if d >= 0 || s.timed {
		s.timed = d >= 0
		var until time.Time
		if s.timed {
			until = time.Now().Add(d)
		}
		err := s.outer.SetReadDeadline(until)
		invariant.Check(err == nil, "the event loop cannot set its alarm: %v", err)
	}
	s.contain(unix.EPOLLIN)
	err := s.raw.Read(s.look)
	invariant.Check(err == nil || errors.Is(err, os.ErrDeadlineExceeded), "the event loop cannot wait: %v", err)
	s.contain(0)
}

// contain says which of the inner set's events the outer set is told of.
func (s *sleeper) contain(events uint32) {
	err := unix.EpollCtl(s.fd, unix.EPOLL_CTL_MOD, s.inner, &unix.EpollEvent{Events: events})
	invariant.Check(err == nil, "epoll_ctl failed on the event loop's own set: %v", err)
}

func (s *sleeper) close() { _ = s.outer.Close() } // nothing is written through it
