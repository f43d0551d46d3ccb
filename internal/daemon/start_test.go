package daemon

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/felix-go/felix/internal/cli/clitest"
)

// felixctl's scripts pass against a real broker.
func TestFelixctlScripts(t *testing.T) {
	clitest.Run(t, clitest.BrokerScripts(), dev(t, t.TempDir()).http)
}

func TestDevHasCachesAndSaysWhatToTry(t *testing.T) {
	dir := t.TempDir()
	p := dev(t, dir)
	for _, cache := range []string{"default", "stats"} {
		if status, body := post(t, p, "felix.v1.CacheService/Get", `{"cache":"`+cache+`"}`); status != 200 || !strings.Contains(body, `"quorum"`) {
			t.Errorf("cache %s: %d %s", cache, status, body)
		}
	}
	_, port, _ := net.SplitHostPort(p.resp)
	for _, want := range []string{
		"Its data is in " + dir,
		"Redis clients   " + p.resp + "\n",
		"HTTP and gRPC   http://" + p.http + "\n",
		"redis-cli -p " + port + " INCR page-views\n",
		"felixctl --brokers " + p.http + " counter add stats visits 1\n",
	} {
		if !strings.Contains(p.output(), want) {
			t.Errorf("the banner does not say %q:\n%s", want, p.output())
		}
	}
	if number(t, dial(t, p.resp).call(t, "INCR", "page-views")) != 1 {
		t.Error("what the banner says to try does not count")
	}
}

// --max-connections bounds the connections of each door, told in its words.
func TestMaxConnections(t *testing.T) {
	p := dev(t, t.TempDir(), "--max-connections", "1")
	redis := dial(t, p.resp)
	redis.call(t, "PING")
	if got, err := dial(t, p.resp).in.ReadString('\n'); err != nil || !strings.HasPrefix(got, "-ERR max number of clients") {
		t.Errorf("a second Redis connection: %q, %v", got, err)
	}
	if status, body := get(t, p, "/livez"); status != 200 { // kept open by the default client
		t.Fatalf("%d %s", status, body)
	}
	second := dial(t, p.http)
	if _, err := io.WriteString(second, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(second.in, nil)
	if err != nil {
		t.Fatal(err)
	}
	if resp.StatusCode != http.StatusTooManyRequests || resp.Header.Get("Felix-Error-Code") != "resource_exhausted" {
		t.Errorf("a second HTTP connection: %d, %v", resp.StatusCode, resp.Header)
	}
	_ = resp.Body.Close()
	redis.call(t, "PING") // both first ones are as they were
	if text := scrape(t, p); !strings.Contains(text, "felix_http_refused_total 1\n") {
		t.Error("the refusal was not counted")
	}
}

// What a newcomer is told to try works for every kind of listener.
func TestBannerOfEveryListener(t *testing.T) {
	for _, v := range []struct {
		resp, http string
		want       []string
	}{
		{"127.0.0.1:7379", "127.0.0.1:7380", []string{"clients   127.0.0.1:7379\n", "gRPC   http://127.0.0.1:7380\n",
			"  redis-cli -p 7379 INCR", "felixctl counter add", " http://127.0.0.1:7380/felix.v1"}},
		{"[::1]:7379", "[::1]:7380", []string{"clients   [::1]:7379\n", "gRPC   http://[::1]:7380\n",
			"  redis-cli -h ::1 -p 7379 INCR", "felixctl --brokers '[::1]:7380' counter add", " 'http://[::1]:7380/felix.v1.CounterService/Get'\n"}},
		{"[::]:7379", "0.0.0.0:7380", []string{"clients   127.0.0.1:7379\n", "gRPC   http://127.0.0.1:7380\n",
			"  redis-cli -p 7379 INCR", "felixctl counter add", " http://127.0.0.1:7380/felix.v1"}},
		{"10.0.0.7:1", "[fe80::1%eth0]:2", []string{"clients   10.0.0.7:1\n", "redis-cli -h 10.0.0.7 -p 1 INCR", "--brokers '[fe80::1%eth0]:2'"}},
	} {
		var b strings.Builder
		banner(&b, "dir", v.resp, v.http)
		for _, want := range v.want {
			if !strings.Contains(b.String(), want) {
				t.Errorf("%s, %s: the banner does not say %q:\n%s", v.resp, v.http, want, b.String())
			}
		}
	}
}

// A serve has no caches but those that are made, and prints nothing: its words
// are in the log.
func TestServeIsEmptyAndQuiet(t *testing.T) {
	p := serve(t, filepath.Join(t.TempDir(), "made", "with", "parents"))
	if status, body := post(t, p, "felix.v1.CacheService/List", `{}`); status != 200 || strings.Contains(body, `"default"`) {
		t.Errorf("caches: %d %s", status, body)
	}
	if got := dial(t, p.resp).call(t, "INCR", "k"); got != "-ERR no such cache" && !strings.HasPrefix(got, "-ERR no such cache") {
		t.Errorf("INCR without a cache: %q", got)
	}
	p.stop()
	if p.output() != "" {
		t.Errorf("standard output: %q", p.output())
	}
}

// serve knows how many brokers there are; dev takes the replication as a target.
func TestReplicationBeyondTheBrokers(t *testing.T) {
	const wide = `{"cache":"wide","replication":3}`
	if status, body := post(t, serve(t, t.TempDir()), "felix.v1.CacheService/Create", wide); status != 400 || !strings.Contains(body, "there is 1") {
		t.Errorf("serve: %d %s", status, body)
	}
	if status, body := post(t, dev(t, t.TempDir()), "felix.v1.CacheService/Create", wide); status != 200 || !strings.Contains(body, "replicas 1/3") {
		t.Errorf("dev: %d %s", status, body)
	}
}

func TestHealth(t *testing.T) {
	p := dev(t, t.TempDir())
	ready(t, p)
	for _, path := range []string{"/livez", "/readyz"} {
		if status, body := get(t, p, path); status != 200 || body != "ok\n" {
			t.Errorf("%s: %d %q", path, status, body)
		}
	}
}

func TestInsecureListensEverywhere(t *testing.T) {
	p := launch(t, "serve", "--data-dir", t.TempDir(), "--resp-addr", "127.0.0.1:0", "--http-addr", "[::]:0", "--peer-addr", "127.0.0.1:0", "--insecure", "--log-format", "json")
	<-p.up
	if p.http == "" {
		t.Fatalf("the broker does not start:\n%s", p.log())
	}
	_, port, err := net.SplitHostPort(p.http)
	if err != nil || port == "0" {
		t.Fatalf("HTTP address %q: %v", p.http, err)
	}
}

// A port that is taken is told of before the data directory is touched.
func TestPortInUse(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	addr := taken.Addr().String()
	for _, flag := range []string{"--resp-addr", "--http-addr", "--peer-addr"} {
		dir := filepath.Join(t.TempDir(), "data")
		args := append(serveArgs(dir), flag, addr)
		if got, want := refuses(t, exitFail, args...), flag+" "+addr+": bind: address already in use"; got != want {
			t.Errorf("%q, want %q", got, want)
		}
		if _, err := os.Stat(dir); !os.IsNotExist(err) {
			t.Errorf("the data directory was made: %v", err)
		}
	}
}

func TestDataDirInUse(t *testing.T) {
	dir := t.TempDir()
	p := serve(t, dir)
	if got := refuses(t, exitFail, serveArgs(dir)...); !strings.Contains(got, "data directory "+dir+": it is in use by another process") {
		t.Error(got)
	}
	makeCache(t, p) // the first one is not disturbed
	if n := number(t, dial(t, p.resp).call(t, "INCR", "k")); n != 1 {
		t.Errorf("INCR: %d", n)
	}
	p.stop()
	serve(t, dir) // and its end frees the directory
}

func TestDataDirThatCannotBe(t *testing.T) {
	file := writeFile(t, filepath.Join(t.TempDir(), "file"), "x")
	for name, v := range map[string]struct{ dir, want string }{
		"is a file":       {file, "it cannot be used"},
		"is below a file": {filepath.Join(file, "data"), "it cannot be made"},
		"is in /proc":     {"/proc/felix", "it cannot be made"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := refuses(t, exitFail, serveArgs(v.dir)...); !strings.HasPrefix(got, "data directory "+v.dir+": "+v.want) {
				t.Error(got)
			}
		})
	}
}

// tmpfs mounts a file system of so many bytes. As another user than root, the
// test is about nothing, and fails to say so.
func tmpfs(t *testing.T, options string) string {
	t.Helper()
	dir := t.TempDir()
	if err := syscall.Mount("felix-test", dir, "tmpfs", 0, options); err != nil {
		t.Fatalf("mounting a tmpfs (these tests run as root): %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func TestDataDirReadOnly(t *testing.T) {
	dir := tmpfs(t, "size=256m")
	serve(t, dir).stop()
	if err := syscall.Mount("", dir, "", syscall.MS_REMOUNT|syscall.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	if got := refuses(t, exitFail, serveArgs(dir)...); !strings.HasPrefix(got, "data directory "+dir+": it is not writable") {
		t.Error(got)
	}
}

// A disk that is full at the start ends the broker with the reason; so does one
// that fills up while it runs, and all that was acknowledged is there when there
// is room again.
func TestDiskFull(t *testing.T) {
	if got := refuses(t, exitFail, append(serveArgs(tmpfs(t, "size=16k")), "--log-level", "error")...); !strings.Contains(got, "no space left on device; make room and start again") {
		t.Error(got)
	}

	dir := tmpfs(t, "size=96m")
	p := serve(t, dir, "--checkpoint-interval", "1h")
	makeCache(t, p)
	c := dial(t, p.resp)
	value := strings.Repeat("x", 64<<10)
	acknowledged := 0
	for ; acknowledged < 10_000; acknowledged++ {
		if _, err := c.Write([]byte(request("SET", fmt.Sprint("key", acknowledged), value))); err != nil {
			break
		}
		if line, err := c.in.ReadString('\n'); err != nil || line != "+OK\r\n" {
			break
		}
	}
	if status := p.wait(); status != exitFail {
		t.Fatalf("exit status %d, want %d", status, exitFail)
	}
	lines := strings.Split(strings.TrimSpace(p.log()), "\n")
	if last := lines[len(lines)-1]; !strings.HasPrefix(last, "felix: ") || !strings.Contains(last, "no space left on device; make room and start again") {
		t.Errorf("the last line is %q", last)
	}
	if strings.Contains(p.log(), "goroutine ") {
		t.Errorf("a panic:\n%s", p.log())
	}
	if acknowledged == 0 {
		t.Fatal("nothing was acknowledged")
	}
	if err := syscall.Mount("", dir, "", syscall.MS_REMOUNT, "size=512m"); err != nil {
		t.Fatal(err)
	}
	p = serve(t, dir)
	c = dial(t, p.resp)
	for i := range acknowledged {
		if got := c.call(t, "STRLEN", fmt.Sprint("key", i)); got != ":65536" {
			t.Fatalf("key%d, acknowledged before the disk was full (of %d): %s", i, acknowledged, got)
		}
	}
}

func TestNewerFormat(t *testing.T) {
	for name, change := range map[string]func(t *testing.T, dir string){
		"felix.json": func(t *testing.T, dir string) {
			writeFile(t, filepath.Join(dir, "felix.json"), `{"format":3,"store_id":"00"}`)
		},
		"of the log":   func(t *testing.T, dir string) { newerMarker(t, filepath.Join(dir, "log")) },
		"of the state": func(t *testing.T, dir string) { newerMarker(t, filepath.Join(dir, "state")) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			serve(t, dir).stop()
			change(t, dir)
			if got := refuses(t, exitFail, serveArgs(dir)...); !strings.Contains(got, "newer") || !strings.Contains(got, dir) {
				t.Error(got)
			}
		})
	}
}

// newerMarker makes a Pebble directory say that it has a format which nobody
// knows yet.
func newerMarker(t *testing.T, dir string) {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, "marker.format-version.*"))
	if err != nil || len(found) != 1 {
		t.Fatalf("markers %q, %v", found, err)
	}
	if err := os.Rename(found[0], filepath.Join(dir, "marker.format-version.999999.999")); err != nil {
		t.Fatal(err)
	}
}

// Files of TLS between brokers that cannot be read are told before anything is
// served.
func TestPeerTLSThatCannotBe(t *testing.T) {
	none := filepath.Join(t.TempDir(), "none.pem")
	got := refuses(t, exitFail, append(serveArgs(t.TempDir()), "--peer-cert", none, "--peer-key", none, "--peer-ca", none)...)
	if !strings.Contains(got, "certificate") || !strings.Contains(got, none) {
		t.Error(got)
	}
}
