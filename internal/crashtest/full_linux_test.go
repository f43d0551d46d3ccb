package crashtest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
)

// insideNamespace tells the test binary that it was started in a mount
// namespace of its own.
const insideNamespace = "FELIX_CRASHTEST_NAMESPACE"

// TestDiskFull runs brokers on a small file system that is filled by the
// broker's own data, by somebody else's file under load, and before the start:
// the process ends with one line and status 1, and once there is room again
// everything acknowledged is there.
//
// The file system is a tmpfs in a mount namespace of its own, which vanishes
// with the process: so the test runs in a copy of itself.
func TestDiskFull(t *testing.T) {
	if os.Getenv(insideNamespace) != "" {
		fillDisk(t)
		return
	}
	out, err := inNamespace(syscall.CLONE_NEWNS)
	if errors.Is(err, syscall.EPERM) { // not root
		out, err = inNamespace(syscall.CLONE_NEWNS | syscall.CLONE_NEWUSER)
	}
	t.Logf("%s", out)
	if err != nil {
		t.Fatalf("in a mount namespace (which root, or a kernel with user namespaces, can make): %v", err)
	}
}

func inNamespace(flags uintptr) ([]byte, error) {
	cmd := exec.Command(os.Args[0], "-test.run=^TestDiskFull$", "-test.v", "-test.timeout=5m")
	cmd.Env = append(os.Environ(), insideNamespace+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: flags, Pdeathsig: syscall.SIGKILL}
	if flags&syscall.CLONE_NEWUSER != 0 {
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
	}
	return cmd.CombinedOutput()
}

// disk is a mounted tmpfs.
type disk struct {
	t   *testing.T
	dir string
}

func mount(t *testing.T, size string) *disk {
	t.Helper()
	if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		t.Fatalf("making mounts private: %v", err)
	}
	d := mountAt(t, t.TempDir(), size)
	t.Cleanup(d.unmount)
	return d
}

// mountAt mounts one on a directory.
func mountAt(t *testing.T, dir, size string) *disk {
	t.Helper()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size="+size); err != nil {
		t.Fatalf("mounting a tmpfs: %v", err)
	}
	return &disk{t: t, dir: dir}
}

func (d *disk) unmount() {
	if err := syscall.Unmount(d.dir, syscall.MNT_DETACH); err != nil {
		d.t.Error(err)
	}
}

func (d *disk) resize(size string) {
	d.t.Helper()
	if err := syscall.Mount("tmpfs", d.dir, "tmpfs", syscall.MS_REMOUNT, "size="+size); err != nil {
		d.t.Fatalf("growing the tmpfs: %v", err)
	}
}

func (d *disk) free() int64 {
	var s syscall.Statfs_t
	if err := syscall.Statfs(d.dir, &s); err != nil {
		d.t.Fatal(err)
	}
	return int64(s.Bavail) * s.Bsize
}

// fill takes all room but leave bytes with a file of its own, which release
// removes.
func (d *disk) fill(leave int64) (release func()) {
	d.t.Helper()
	name := filepath.Join(d.dir, "somebody-else")
	f, err := os.Create(name)
	if err != nil {
		d.t.Fatal(err)
	}
	// Whoever writes meanwhile may have taken some of what was free: then there
	// is less.
	for has := int64(0); err == nil; {
		room := d.free() - leave
		if room <= 0 {
			break
		}
		if err = syscall.Fallocate(int(f.Fd()), 0, has, room); errors.Is(err, syscall.ENOSPC) {
			err = nil
			continue
		}
		has += room
	}
	if err := errors.Join(err, f.Close()); err != nil {
		d.t.Fatal(err)
	}
	return func() {
		if err := os.Remove(name); err != nil {
			d.t.Error(err)
		}
	}
}

const fullClients = 4

// written is what one client knows: the counter that it alone adds to, and the
// values that it has set.
type written struct {
	name               string
	answered, unknown  int64
	values             int // val/0 to val/(values-1) were acknowledged
	valueBytes, rounds int
}

func (w *written) value(i int) string {
	return strings.Repeat(fmt.Sprint(w.name, "/", i, ";"), w.valueBytes/8)
}

// write adds and sets until the connection breaks or rounds are over.
func (w *written) write(t *testing.T, addr string) {
	c, err := dial(addr)
	if err != nil {
		return
	}
	defer c.Close()
	for i := 0; w.rounds == 0 || i < w.rounds; i++ {
		const depth = 8
		w.unknown += depth
		for range depth {
			if err := c.send("INCR", "count/"+w.name); err != nil {
				return
			}
		}
		if w.valueBytes > 0 {
			if err := c.send("SET", fmt.Sprint("val/", w.name, "/", w.values), w.value(w.values)); err != nil {
				return
			}
		}
		for range depth {
			if _, refused, err := c.reply(); err != nil || refused {
				return
			}
			w.answered, w.unknown = w.answered+1, w.unknown-1
		}
		if w.valueBytes > 0 {
			if _, refused, err := c.reply(); err != nil || refused {
				return
			}
			w.values++
		}
	}
}

// check compares what a broker says with what the client knows.
func (w *written) check(t *testing.T, addr string) {
	t.Helper()
	if err := w.compare(t, addr); err != nil {
		t.Errorf("client %s: %v", w.name, err)
	}
}

// compare is check, and answers why the broker could not be asked all.
func (w *written) compare(t *testing.T, addr string) error {
	t.Helper()
	c, err := dial(addr)
	if err != nil {
		return err
	}
	defer c.Close()
	text, _, err := c.do("INCRBY", "count/"+w.name, "0")
	if err != nil {
		return err
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < w.answered || n > w.answered+w.unknown {
		t.Errorf("count/%s is %q; %d adds were answered, %d were not", w.name, text, w.answered, w.unknown)
	}
	w.answered, w.unknown = n, 0
	for i := range w.values {
		text, _, err := c.do("GET", fmt.Sprint("val/", w.name, "/", i))
		if err != nil {
			return err
		}
		if text != w.value(i) {
			t.Errorf("val/%s/%d is %.20q", w.name, i, text)
		}
	}
	return nil
}

func all(writers []*written, f func(*written)) {
	var wait sync.WaitGroup
	for _, w := range writers {
		wait.Go(func() { f(w) })
	}
	wait.Wait()
}

const noSpace = "no space left on device"

func fillDisk(t *testing.T) {
	d := mount(t, "70m")
	binary := build(t)
	data := filepath.Join(d.dir, "data")
	var writers []*written
	for i := range fullClients {
		writers = append(writers, &written{name: strconv.Itoa(i), valueBytes: 40_000})
	}

	b := launch(t, binary, data)
	addr := b.serves()
	all(writers, func(w *written) { w.write(t, addr) })
	b.failed(noSpace)
	t.Logf("filled by its own data: %s", b.text()[max(0, len(b.text())-300):])

	// Full as it is, it may start or not, but says why.
	b = launch(t, binary, data)
	if addr := b.serves(); addr == "" {
		b.failed(noSpace)
	}
	b.kill()
	d.resize("300m")
	b = launch(t, binary, data)
	addr = b.serves()
	all(writers, func(w *written) { w.check(t, addr) })

	// Somebody else's file, under load.
	var release func()
	filled := make(chan struct{})
	go func() {
		defer close(filled)
		release = d.fill(rand.Int64N(1 << 20))
	}()
	all(writers, func(w *written) { w.write(t, addr) })
	<-filled
	b.failed(noSpace)
	release()

	// Before the start, with less and less room.
	// One that starts may find out later, when it tidies up on the disk.
	for _, leave := range []int64{0, 4 << 10, 200 << 10, 2 << 20, 20 << 20} {
		release := d.fill(leave)
		b = launch(t, binary, data)
		serves := false
		if addr := b.serves(); addr != "" {
			var ended atomic.Bool
			all(writers, func(w *written) {
				if w.compare(t, addr) != nil {
					ended.Store(true)
				}
			})
			serves = !ended.Load()
		}
		if !serves {
			t.Logf("%d bytes of room: %s", leave, b.text())
			b.failed(noSpace)
		}
		b.kill()
		release()
	}
	b = launch(t, binary, data)
	addr = b.serves()
	for _, w := range writers {
		w.rounds = 20
	}
	all(writers, func(w *written) { w.check(t, addr); w.write(t, addr); w.check(t, addr) })
	b.stop()
}
