package netloop

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/felix-go/felix"
)

// arrived waits until the server's kernel has all that c has sent.
func (c *client) arrived() {
	c.t.Helper()
	raw, err := c.SyscallConn()
	if err != nil {
		c.t.Fatal(err)
	}
	eventually(c.t, "the bytes to arrive", func() bool {
		left := 1
		_ = raw.Control(func(fd uintptr) { left, err = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ) })
		return err == nil && left == 0
	})
}

// While the disk is busy with a loop's operations, requests gather and become
// one batch when a sync ends.
func TestPacingGathers(t *testing.T) {
	for name, end := range map[string]func(*gateCache, *fakePacer){
		"until a sync ends":  func(_ *gateCache, p *fakePacer) { p.synced() },
		"until a completion": func(c *gateCache, _ *fakePacer) { c.open() },
	} {
		t.Run(name, func(t *testing.T) {
			cache, pacer := &gateCache{}, &fakePacer{recent: time.Hour}
			r := start(t, Options{Loops: 1, Pacer: pacer}, time.Hour, cache)
			const n = 20
			first := r.dial()
			var rest []*client
			for range n {
				c := r.dial()
				c.send(cmd("PING"))
				c.want("+PONG\r\n")
				rest = append(rest, c)
			}
			pacer.busy.Store(true)
			rest[0].send(cmd("PING")) // nothing of the loop's own is on its way to the disk
			rest[0].want("+PONG\r\n")
			first.send(cmd("INCR", "s"))
			eventually(t, "the loop to pace", func() bool { return r.s.Stats().Ops == 1 && loopParked(r.s) })
			for i := range rest {
				rest[i].send(cmd("INCR", "k"))
				rest[i].arrived()
			}
			if got := r.s.Stats(); got.Ops != 1 || !loopParked(r.s) {
				t.Errorf("the loop did not wait: %+v", got)
			}
			pacer.busy.Store(false)
			end(cache, pacer)
			for _, c := range rest {
				if line, err := c.r.ReadString('\n'); err != nil || line[0] != ':' {
					t.Errorf("got %q, %v", line, err)
				}
			}
			cache.open()
			first.want(num(1))
			cache.gate.Lock()
			defer cache.gate.Unlock()
			if len(cache.sizes) != 2 || cache.sizes[1] != n {
				t.Errorf("the batches had %v operations, want 1 and %d", cache.sizes, n)
			}
		})
	}
}

func loopParked(s *Server) bool {
	l := s.drv.(*loops).all[0]
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.waiting == parked
}

// Pacing ends by itself: after the recent sync's time, and after maxPace
// whatever the pacer says.
func TestPacingIsBounded(t *testing.T) {
	for name, recent := range map[string]time.Duration{"by the recent sync": time.Millisecond, "by maxPace": time.Hour, "no sync yet": 0} {
		t.Run(name, func(t *testing.T) {
			cache, pacer := &gateCache{}, &fakePacer{recent: recent}
			bound := time.Hour // if recent is the bound
			if recent == time.Hour {
				bound = maxPace
			}
			r := start(t, Options{Loops: 1, Pacer: pacer}, bound, cache)
			pacer.busy.Store(true)
			first, other := r.dial(), r.dial()
			first.send(cmd("INCR", "s"))
			eventually(t, "the operation", func() bool { return cache.heldOps() == 1 })
			for i := range 20 {
				other.send(cmd("INCR", "k"))
				other.want(num(i + 1))
			}
			if recent > 0 && r.s.Stats().Paced == 0 {
				t.Error("the loop never paced")
			}
			cache.open()
			first.want(num(1))
		})
	}
}

// Slow work ends when its client is gone for good, not when the client has
// only shut its side.
func TestSlowWorkOfGoneClient(t *testing.T) {
	r := start(t, Options{Loops: 1}, maxPace, &inlineCache{})
	half, gone := r.dial(), r.dial()
	half.send(cmd("SLOW", "100"))
	_ = half.CloseWrite()
	gone.send(cmd("HANG"))
	eventually(t, "both", func() bool { return r.h.slow.Load() == 2 })
	gone.reset()
	eventually(t, "the work to end", func() bool { return r.h.hungUp.Load() == 1 })
	half.want("+SLEPT\r\n")
	half.wantEnd()
}

// What a client has sent and Felix has not read when it closes does not cost
// the client the answers to what was read.
func TestShutdownDoesNotReset(t *testing.T) {
	onBoth(t, func(t *testing.T, portable bool) {
		cache := &gateCache{}
		r := start(t, Options{Portable: portable}, maxPace, cache)
		c := r.dial()
		c.send(cmd("INCR", "s"))
		eventually(t, "the operation", func() bool { return cache.heldOps() == 1 })
		c.send(cmd("INCR", "unread"), cmd("INCR", "unread"))
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			r.stop()
		}()
		eventually(t, "Shutdown to begin", func() bool { return draining(r.s) })
		cache.open()
		c.want(num(1))
		c.wantEnd()
		<-ended
		if ops := r.s.Stats().Ops; ops != 1 {
			t.Errorf("%d operations were read after Shutdown began", ops-1)
		}
	})
}

func draining(s *Server) bool {
	switch d := s.drv.(type) {
	case *portable:
		return d.isDraining()
	case *loops:
		for _, l := range d.all {
			l.mu.Lock()
			draining := l.draining
			l.mu.Unlock()
			if !draining {
				return false
			}
		}
	}
	return true
}

// countingHandler is a slog handler that counts.
type countingHandler struct {
	slog.Handler
	n    atomic.Int64
	last atomic.Value
}

func (h *countingHandler) Enabled(context.Context, slog.Level) bool { return true }
func (h *countingHandler) Handle(_ context.Context, r slog.Record) error {
	h.n.Add(1)
	h.last.Store(r.Message)
	return nil
}

// Without descriptors the server waits, says why, does not spin, and goes on
// when there are some again.
func TestAcceptWithoutDescriptors(t *testing.T) {
	onBoth(t, func(t *testing.T, portable bool) {
		logged := &countingHandler{}
		r := start(t, Options{Portable: portable, Logger: slog.New(logged)}, maxPace, &inlineCache{})
		warm := r.dial()
		warm.send(cmd("PING"))
		warm.want("+PONG\r\n")
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = unix.Close(fd) }()
		var was, low unix.Rlimit
		if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
			t.Fatal(err)
		}
		low = was
		low.Cur = 0 // new descriptors are refused, open ones stay
		if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: low.Cur, Max: low.Max}); err != nil {
			t.Fatal(err)
		}
		restore := func() {
			if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: was.Cur, Max: was.Max}); err != nil {
				t.Error(err)
			}
		}
		sa, _ := unix.Getpeername(fdOf(t, warm))
		err = unix.Connect(fd, sa)
		eventuallyOr(t, restore, "the log", func() bool { return logged.n.Load() > 0 })
		began := time.Now()
		warm.send(cmd("PING"))
		warm.want("+PONG\r\n")
		time.Sleep(100 * time.Millisecond) // time passes: a server that spins logs thousands
		n, d := logged.n.Load(), time.Since(began)
		restore()
		if err != nil {
			t.Fatal(err)
		}
		if most := 6 + int64(d/(50*time.Millisecond)); n > most {
			t.Errorf("%d attempts in %v", n, d)
		}
		if text, _ := logged.last.Load().(string); !strings.Contains(text, "ulimit -n") {
			t.Errorf("the log does not tell what to do: %q", text)
		}
		_, _ = unix.Write(fd, cmd("PING"))
		buf := make([]byte, 7)
		if n, err := unix.Read(fd, buf); err != nil || string(buf[:n]) != "+PONG\r\n" {
			t.Errorf("got %q, %v", buf, err)
		}
	})
}

func fdOf(t *testing.T, c *client) (fd int) {
	raw, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if err := raw.Control(func(f uintptr) { fd = int(f) }); err != nil {
		t.Fatal(err)
	}
	return fd
}

func eventuallyOr(t *testing.T, undo func(), what string, ok func() bool) {
	t.Helper()
	done := false
	defer func() {
		if !done {
			undo()
		}
	}()
	eventually(t, what, ok)
	done = true
}

// An idle connection costs less than 10 KB, its client's side included, even
// after it has sent much.
func TestIdleMemory(t *testing.T) {
	onBoth(t, func(t *testing.T, portable bool) {
		r := startWith(t, &miniHandler{caches: []felix.Cache{&inlineCache{}}}, Options{Portable: portable}, maxPace)
		const n = 2000
		ping := cmd("PING")
		before := inUse()
		fds := make([]int, 0, n)
		defer func() {
			for _, fd := range fds {
				_ = unix.Close(fd)
			}
		}()
		sa, _ := unix.Getpeername(fdOf(t, r.dial()))
		big := cmd("GET", strings.Repeat("k", 100_000))
		for range n {
			fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				t.Fatal(err)
			}
			fds = append(fds, fd)
			if err := unix.Connect(fd, sa); err != nil {
				t.Fatal(err)
			}
			req := ping
			if len(fds)%10 == 0 {
				req = big
			}
			if _, err := unix.Write(fd, req); err != nil {
				t.Fatal(err)
			}
			want := 7
			if len(fds)%10 == 0 {
				want = 100_011
			}
			for buf := make([]byte, 64<<10); want > 0; {
				m, err := unix.Read(fd, buf[:min(want, len(buf))])
				if err != nil || m == 0 {
					t.Fatalf("read %d, %v", m, err)
				}
				want -= m
			}
		}
		eventually(t, "all", func() bool { return r.s.Stats().Connections == n+1 })
		const most = 10 << 10
		if per := (inUse() - before) / n; per > most {
			t.Errorf("an idle connection costs %d bytes, want at most %d", per, most)
		} else {
			t.Logf("an idle connection costs %d bytes", per) // 600; portable: 7,000
		}
	})
}

// inUse is what the heap and the stacks take.
func inUse() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}

// What comes in after the loop has looked and before it waits is not slept over.
func TestNoWakeIsLost(t *testing.T) {
	news := map[string]func(*loop){
		"a completion": func(l *loop) { l.finished = append(l.finished, &batch{}) },
		"slow work":    func(l *loop) { l.slowDone = append(l.slowDone, &conn{}) },
		"a connection": func(l *loop) { l.inbox = append(l.inbox, socket{}) },
		"a sync":       func(l *loop) { l.onSynced() },
		"a drain":      func(l *loop) { l.draining = true },
		"an overdraft": func(l *loop) { l.overdrawn = true },
	}
	waits := map[string]func(*loop){
		"park":  func(l *loop) { l.park(time.Hour) },
		"block": (*loop).block,
	}
	for what, come := range news {
		for where, wait := range waits {
			if where == "block" && what == "a sync" || where == "park" && (what == "a drain" || what == "an overdraft") {
				continue // is no reason to stop waiting there
			}
			t.Run(what+" before "+where, func(t *testing.T) {
				l, err := newLoop(&Server{opts: Options{}.withDefaults()})
				if err != nil {
					t.Fatal(err)
				}
				come(l)
				back := make(chan struct{})
				go func() {
					wait(l)
					close(back)
				}()
				select {
				case <-back:
					l.close()
				case <-time.After(10 * time.Second):
					t.Fatal("the loop sleeps")
				}
			})
		}
	}
}

// A client that closes as clients do, or crashes, ends its Wait: nothing of it
// is left.
func TestWaitOfGoneClient(t *testing.T) {
	r := start(t, Options{Loops: 1}, maxPace, &inlineCache{})
	for i := range 40 {
		c := r.dial()
		c.send(cmd("WAIT", hour))
		if i%2 == 0 {
			_ = c.Close()
		} else {
			c.arrived()
			c.reset()
		}
	}
	eventually(t, "the connections to be gone", func() bool { return r.s.Stats().Connections == 0 && r.h.closed.Load() == r.h.opened.Load() })
}

// Clients that do not read hold no more memory together than there is for them:
// those that owe most are closed, and others are served.
func TestUnsentIsBounded(t *testing.T) {
	for _, loops := range []int{1, 2} {
		t.Run(fmt.Sprint(loops, " loops"), func(t *testing.T) {
			const limit = 8 << 20
			r := start(t, Options{Loops: loops, MemoryBytes: 2 * limit}, maxPace, &inlineCache{})
			const conns, n, size = 30, 12, 500_000
			for range conns {
				c := r.dial()
				for range n {
					if _, err := c.Write(cmd("FILL", fmt.Sprint(size))); err != nil {
						break // closed already
					}
				}
				if got := r.s.Stats().Unsent; got > limit+n*size {
					t.Fatalf("answers hold %d bytes, want at most %d and one turn's", got, limit)
				}
			}
			eventually(t, "connections to be closed", func() bool { return r.s.Stats().Connections < conns })
			eventually(t, "the rest to be within bounds", func() bool { return r.s.Stats().Unsent <= limit })
			other := r.dial()
			for i := range 100 {
				other.send(cmd("INCR", "k"))
				other.want(num(i + 1))
			}
			if st := r.s.Stats(); st.Connections < 2 || st.Unsent == 0 {
				t.Errorf("none of the others is left: %+v", st)
			}
		})
	}
}
