package daemon

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// A data directory whose files are damaged gives one clear line and a status
// that is not 0; no panic, and no broker that serves what it cannot trust.
func TestCorruptDataDir(t *testing.T) {
	stopped, killed := t.TempDir(), t.TempDir()
	fillDir(t, stopped, func(p *process) { p.stop() })
	fillDir(t, killed, func(p *process) { p.signal(syscall.SIGKILL); p.wait() })
	for _, v := range []struct {
		name   string
		of     string
		damage func(t *testing.T, dir string)
		want   string
	}{
		{"felix.json is no JSON", stopped, overwrite("felix.json", "{"), "felix.json is corrupt"},
		{"felix.json is empty", stopped, overwrite("felix.json", ""), "felix.json is corrupt"},
		{"felix.json without an id", stopped, overwrite("felix.json", `{"format":1}`), "felix.json is corrupt"},
		{"felix.json is missing", stopped, remove("felix.json"), "felix.json is missing beside"},
		{"the log is missing", stopped, remove("log"), "the log is missing beside the state"},
		{"the log is missing after a kill", killed, remove("log"), "the log is missing beside the state"},
		{"the log is empty", stopped, remove("log/*"), "has state but no log"},
		{"the log is empty after a kill", killed, remove("log/*"), "has state but no log"},
		{"felix.json has a cluster but no node", stopped, overwrite("felix.json", `{"format":2,"store_id":"00","cluster_id":"11"}`), "felix.json is corrupt"},
		{"felix.json is of another cluster", stopped, overwrite("felix.json", `{"format":2,"store_id":"00","cluster_id":"11","node_id":1,"formed":true,"bootstrapped":true}`), "felix.json is of the cluster 11"},
		{"the state is missing", stopped, remove("state"), "the metadata is missing"},
		{"the state is missing after a kill", killed, remove("state"), "the metadata is missing"},
		{"the newest log, near its start", killed, flip("log/*.log", 0.0001), "log"},
		{"a state file is missing", stopped, remove("state/*.sst"), "state"},
		{"a log file is missing", stopped, remove("log/*.sst"), "log"},
		{"the state's manifest is missing", stopped, remove("state/MANIFEST-*"), "state"},
		{"the log's manifest is missing", stopped, remove("log/MANIFEST-*"), "log"},
		{"the state's manifest, near its start", stopped, flip("state/MANIFEST-*", 0.1), "state"},
		{"the state's manifest, in the middle", stopped, flip("state/MANIFEST-*", 0.5), "state"},
		{"the log's manifest, near its start", stopped, flip("log/MANIFEST-*", 0.1), "log"},
		{"the log's manifest, in the middle", stopped, flip("log/MANIFEST-*", 0.5), "log"},
		{"a state file, near its start", stopped, flip("state/*.sst", 0.01), "state"},
		{"a state file, at its end", stopped, flip("state/*.sst", 0.999), "state"},
		{"a state file, cut short", stopped, cut("state/*.sst"), "state"},
		{"a log file, near its start", stopped, flip("log/*.sst", 0.01), "log"},
		{"a log file, at its end", stopped, flip("log/*.sst", 0.999), "log"},
		{"the log's format marker", stopped, rename("log/marker.format-version.*", "marker.format-version.000008.garbage"), "log"},
		{"the state's format marker", stopped, rename("state/marker.format-version.*", "marker.format-version.000008.garbage"), "state"},
	} {
		t.Run(v.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "data")
			if err := os.CopyFS(dir, os.DirFS(v.of)); err != nil {
				t.Fatal(err)
			}
			v.damage(t, dir)
			line := refuses(t, exitFail, append(serveArgs(dir), "--log-level", "error", "--log-format", "json")...)
			if !strings.Contains(line, dir) || !strings.Contains(line, v.want) {
				t.Errorf("%q does not name the place", line)
			}
			if !strings.Contains(line, "restore") {
				t.Errorf("%q does not say what to do", line)
			}
			if strings.Contains(line, "replica") {
				t.Errorf("%q speaks of replicas, which there are not", line)
			}
		})
	}
}

// fillDir makes a data directory in which the log and the state hold something.
func fillDir(t *testing.T, dir string, end func(*process)) {
	t.Helper()
	p := dev(t, dir, "--checkpoint-interval", "100ms")
	c := dial(t, p.resp)
	for i := range 50 {
		if got := c.call(t, "INCRBY", fmt.Sprint("key", i), fmt.Sprint(i)); got != fmt.Sprint(":", i) {
			t.Fatal(got)
		}
	}
	reached(t, p, "a checkpoint", func() bool { return !strings.Contains(scrape(t, p), "\nfelix_checkpoint_records_total 0\n") })
	end(p)
	// The second start turns the log's WAL into a table.
	p = dev(t, dir, "--checkpoint-interval", "1h")
	c = dial(t, p.resp)
	for i := range 50 { // beyond one block of the WAL
		c.call(t, "SET", fmt.Sprint("key", i), strings.Repeat("x", 4096))
	}
	end(p)
}

// all are the files that a pattern names, at least one.
func all(t *testing.T, dir, pattern string) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, pattern))
	if err != nil || len(found) == 0 {
		t.Fatalf("%s: %q, %v", pattern, found, err)
	}
	return found
}

// one is the newest file of the data directory that a pattern names.
func one(t *testing.T, dir, pattern string) string {
	t.Helper()
	found := all(t, dir, pattern)
	return found[len(found)-1]
}

func overwrite(name, text string) func(*testing.T, string) {
	return func(t *testing.T, dir string) { writeFile(t, filepath.Join(dir, name), text) }
}

func remove(pattern string) func(*testing.T, string) {
	return func(t *testing.T, dir string) {
		for _, path := range all(t, dir, pattern) {
			if err := os.RemoveAll(path); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func rename(pattern, to string) func(*testing.T, string) {
	return func(t *testing.T, dir string) {
		from := one(t, dir, pattern)
		if err := os.Rename(from, filepath.Join(filepath.Dir(from), to)); err != nil {
			t.Fatal(err)
		}
	}
}

// flip inverts one byte of a file, at a part of its length.
func flip(pattern string, at float64) func(*testing.T, string) {
	return func(t *testing.T, dir string) {
		change(t, one(t, dir, pattern), func(b []byte) []byte {
			b[int(at*float64(len(b)-1))] ^= 0xff
			return b
		})
	}
}

func cut(pattern string) func(*testing.T, string) {
	return func(t *testing.T, dir string) {
		change(t, one(t, dir, pattern), func(b []byte) []byte { return b[:len(b)*2/3] })
	}
}

func change(t *testing.T, path string, to func([]byte) []byte) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, to(b), 0o644); err != nil {
		t.Fatal(err)
	}
}

// Damage that a start does not come across ends the broker when it is read: it
// never answers with what it cannot trust.
func TestCorruptRecordFoundLater(t *testing.T) {
	dir := t.TempDir()
	p := dev(t, dir)
	c := dial(t, p.resp)
	for i := range 2000 {
		c.call(t, "SET", fmt.Sprint("key", i), strings.Repeat(fmt.Sprint(i, " "), 100))
	}
	p.stop()
	largest, size := "", int64(0)
	for _, path := range all(t, dir, "state/*.sst") {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if info.Size() > size {
			largest, size = path, info.Size()
		}
	}
	change(t, largest, func(b []byte) []byte {
		b[len(b)/2] ^= 0xff
		return b
	})
	p = dev(t, dir)
	c = dial(t, p.resp)
	broken := false
	for i := 0; i < 2000 && !broken; i++ {
		if _, err := c.Write([]byte(request("STRLEN", fmt.Sprint("key", i)))); err != nil {
			broken = true
			break
		}
		line, err := c.in.ReadString('\n')
		broken = err != nil
		if want := fmt.Sprintf(":%d\r\n", 100*len(fmt.Sprint(i, " "))); !broken && line != want {
			t.Fatalf("key%d: %q, want %q", i, line, want)
		}
	}
	if !broken {
		t.Fatal("every record was read: nothing was damaged")
	}
	if status := p.wait(); status != exitFail {
		t.Errorf("exit status %d, want %d", status, exitFail)
	}
	lines := strings.Split(strings.TrimSpace(p.log()), "\n")
	if last := lines[len(lines)-1]; !strings.HasPrefix(last, "felix: ") || !strings.Contains(last, "damaged") || strings.Contains(p.log(), "goroutine ") {
		t.Errorf("the log:\n%s", p.log())
	}
}
