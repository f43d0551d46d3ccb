package netloop

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

// loops is the driver of Linux: a few event loops that share the connections.
type loops struct {
	srv    *Server
	file   *os.File        // the listening socket again, for accept
	raw    syscall.RawConn // of file
	tcp    bool
	all    []*loop
	next   atomic.Uint32
	allEnd chan struct{}
}

// newDriver answers event loops for a listening socket, and the portable
// driver for anything else.
func newDriver(s *Server) (driver, error) {
	var sock interface{ File() (*os.File, error) }
	tcp := false
	switch ln := s.ln.(type) {
	case *net.TCPListener:
		sock, tcp = ln, true
	case *net.UnixListener:
		sock = ln
	}
	if sock == nil || s.opts.Portable {
		return newPortable(s), nil
	}
	d := &loops{srv: s, tcp: tcp, allEnd: make(chan struct{})}
	if err := d.open(sock); err != nil {
		return nil, fmt.Errorf("netloop: making an event loop: %w", err)
	}
	var wg sync.WaitGroup
	for _, l := range d.all {
		wg.Go(l.run)
	}
	go func() {
		wg.Wait()
		close(d.allEnd)
	}()
	return d, nil
}

// open makes the descriptors, or none.
func (d *loops) open(sock interface{ File() (*os.File, error) }) (err error) {
	// A net.Listener hands out neither raw descriptors nor a way to wait for
	// one; a second descriptor of the same socket does both.
	if d.file, err = sock.File(); err != nil {
		return err
	}
	if d.raw, err = d.file.SyscallConn(); err != nil {
		_ = d.file.Close() // the reason is err
		return err
	}
	for range d.srv.opts.Loops {
		l, err := newLoop(d.srv)
		if err != nil {
			_ = d.file.Close() // the reason is err
			for _, made := range d.all {
				made.close()
			}
			return err
		}
		d.all = append(d.all, l)
	}
	return nil
}

// accept takes the descriptor straight from the kernel, past Go's poller,
// which would otherwise be told of every packet too. Only the listener itself
// waits in Go's poller.
func (d *loops) accept() (socket, error) {
	for {
		var fd int
		var sa unix.Sockaddr
		var err error
		waitErr := d.raw.Read(func(lfd uintptr) bool {
			fd, sa, err = unix.Accept4(int(lfd), unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
			return !errors.Is(err, unix.EAGAIN)
		})
		switch {
		case waitErr != nil:
			return socket{}, waitErr
		case err == nil:
			if d.tcp {
				// Answers are written whole: waiting for more would only delay them.
				_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1) // fails only if the client has gone
				_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1)
			}
			return socket{fd: fd, remote: toAddr(sa)}, nil
		case errors.Is(err, unix.EINTR), errors.Is(err, unix.ECONNABORTED), errors.Is(err, unix.EPROTO):
			// the client has gone already
		default:
			return socket{}, err
		}
	}
}

// start gives the connection to the next loop.
func (d *loops) start(s socket) {
	l := d.all[int(d.next.Add(1)-1)%len(d.all)]
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.gone {
		l.discard(s)
		return
	}
	l.inbox = append(l.inbox, s)
	l.wakeLocked()
}

func (d *loops) refuse(s socket, msg []byte) {
	_, _ = unix.Write(s.fd, msg) // best effort: the client is turned away either way
	_ = unix.Shutdown(s.fd, unix.SHUT_WR)
	var sink [4096]byte
	_, _ = unix.Read(s.fd, sink[:]) // unread input would turn the close into a reset
	_ = unix.Close(s.fd)
}

func (d *loops) drain() {
	_ = d.file.Close() // ends accept
	for _, l := range d.all {
		l.order(func() { l.draining = true })
	}
}

func (d *loops) force() {
	for _, l := range d.all {
		l.order(func() { l.forced = true })
	}
}

func (d *loops) done() <-chan struct{} { return d.allEnd }

func toAddr(sa unix.Sockaddr) net.Addr {
	switch a := sa.(type) {
	case *unix.SockaddrInet4:
		return &net.TCPAddr{IP: append(net.IP(nil), a.Addr[:]...), Port: a.Port}
	case *unix.SockaddrInet6:
		return &net.TCPAddr{IP: append(net.IP(nil), a.Addr[:]...), Port: a.Port}
	case *unix.SockaddrUnix:
		return &net.UnixAddr{Name: a.Name, Net: "unix"}
	}
	return nil
}

// peerOf is the address at the other end of a socket, or nil.
func peerOf(fd int) net.Addr {
	sa, err := unix.Getpeername(fd)
	if err != nil {
		return nil
	}
	return toAddr(sa)
}
