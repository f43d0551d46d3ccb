package repotest

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// command is one command of a document, with what it prints.
type command struct {
	line int // in the document
	text string
	want []string // lines; … stands for any text, a line of only … for any lines
}

// console reads the ```console blocks of a document. In them a line that begins
// with "$ " is a command; the lines up to the next one are what it prints, on
// standard output and standard error.
func console(text string) (all []command) {
	inside := false
	number := 0
	for line := range strings.Lines(text) {
		number++
		line = strings.TrimRight(line, "\n")
		switch {
		case strings.HasPrefix(line, "```"):
			inside = line == "```console"
		case !inside:
		case strings.HasPrefix(line, "$ "):
			all = append(all, command{line: number, text: line[2:]})
		case len(all) > 0:
			last := &all[len(all)-1]
			last.want = append(last.want, line)
		}
	}
	return all
}

// matches says whether the output is what a document says.
func matches(want []string, got string) bool {
	var pattern strings.Builder
	pattern.WriteString(`\A`)
	for _, line := range want {
		if line == "…" {
			pattern.WriteString(`(?s:.*)`)
			continue
		}
		parts := strings.Split(line, "…")
		for i := range parts {
			parts[i] = regexp.QuoteMeta(parts[i])
		}
		pattern.WriteString(strings.Join(parts, `[^\n]*`) + `\n`)
	}
	return regexp.MustCompile(pattern.String() + `\z`).MatchString(got)
}

func TestConsoleBlocks(t *testing.T) {
	got := console("text\n```console\n$ a\nx\n\n$ b\n```\n$ c\n```sh\n$ d\n```\n")
	if len(got) != 2 || got[0].text != "a" || fmt.Sprint(got[0].want) != "[x ]" || got[1].text != "b" || got[1].line != 6 {
		t.Errorf("%+v", got)
	}
	for _, v := range []struct {
		want []string
		got  string
		ok   bool
	}{
		{nil, "", true}, {nil, "x\n", false}, {[]string{"a.b"}, "a.b\n", true}, {[]string{"a.b"}, "axb\n", false},
		{[]string{"a…b"}, "a12b\n", true}, {[]string{"a…b"}, "a\nb\n", false}, {[]string{"…"}, "a\nb\n", true},
		{[]string{"a", "…", "b"}, "a\nx\ny\nb\n", true}, {[]string{"a"}, "a\nb\n", false},
	} {
		if matches(v.want, v.got) != v.ok {
			t.Errorf("%q and %q: want %v", v.want, v.got, v.ok)
		}
	}
}

// tour is a place where the commands of a document run: directories of its own
// and free ports.
type tour struct {
	t          *testing.T
	dir        string
	resp, http string // host:port of the broker
	broker     *exec.Cmd
}

// local is the one place where a command of the README becomes one that can run
// beside others: its ports, its data and its binaries are this test's own.
func (r *tour) local(command string) string {
	_, port, _ := strings.Cut(r.resp, ":")
	pid := "no-broker"
	if r.broker != nil {
		pid = fmt.Sprint(r.broker.Process.Pid)
	}
	return strings.NewReplacer(
		"127.0.0.1:7379", r.resp,
		"127.0.0.1:7380", r.http,
		"-p 7379", "-p "+port,
		"$(pgrep -x felix)", pid,
		"-o bin/ ", "-o "+filepath.Join(r.dir, "bin")+"/ ",
		"$PWD/bin", filepath.Join(r.dir, "bin"),
	).Replace(command)
}

// printed undoes local in what a command has printed. It takes the spaces out
// of JSON, which protobuf's encoder varies from build to build on purpose.
func (r *tour) printed(output string) string {
	var all strings.Builder
	for line := range strings.Lines(output) {
		var compact bytes.Buffer
		if strings.HasPrefix(line, "{") && json.Compact(&compact, []byte(line)) == nil {
			line = strings.TrimSpace(compact.String()) + "\n"
		}
		all.WriteString(line)
	}
	if r.resp == "" {
		return all.String() // nothing runs yet
	}
	return strings.NewReplacer(r.resp, "127.0.0.1:7379", r.http, "127.0.0.1:7380").Replace(all.String())
}

func (r *tour) env() []string {
	return append(os.Environ(),
		"PATH="+filepath.Join(r.dir, "bin")+":"+os.Getenv("PATH"),
		"FAKETTY=1", // redis-cli prints as it does on a terminal
		"XDG_CONFIG_HOME="+filepath.Join(r.dir, "config"),
		"FELIX_BROKERS="+r.http, "FELIX_NAMESPACE=", "FELIX_AUTH_TENANT=", "FELIX_CONTEXT=", "FELIX_CONFIG=", "FELIXCTL_CONFIG=", "FELIX_TIMEOUT=")
}

// run runs a command in the root of the repository and answers what it prints.
func (r *tour) run(text string) string {
	r.t.Helper()
	if text == "felix dev &" {
		return r.start()
	}
	if strings.HasPrefix(text, "export ") {
		return "" // env does it
	}
	c := exec.Command("bash", "-c", r.local(text))
	c.Dir, c.Env = root, r.env()
	output, err := c.CombinedOutput()
	if err != nil {
		r.t.Errorf("$ %s: %v", text, err)
	}
	if strings.HasPrefix(text, "kill ") {
		_ = r.broker.Wait() // it was killed
		r.broker = nil
	}
	return r.printed(string(output))
}

// start starts the broker, on the ports that it had before, and answers what it
// prints until it is up.
func (r *tour) start() string {
	r.t.Helper()
	resp, http := r.resp, r.http
	if resp == "" {
		resp, http = "127.0.0.1:0", "127.0.0.1:0"
	}
	c := exec.Command(filepath.Join(r.dir, "bin", "felix"), "dev", "--resp-addr", resp, "--http-addr", http,
		"--peer-addr", "127.0.0.1:0", "--log-format", "json")
	c.Dir = r.dir
	out, err := c.StdoutPipe()
	if err != nil {
		r.t.Fatal(err)
	}
	log, err := c.StderrPipe()
	if err != nil {
		r.t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		r.t.Fatal(err)
	}
	r.broker = c
	r.t.Cleanup(func() {
		_ = c.Process.Kill() // it has ended where the README has killed it
		_ = c.Wait()
	})
	lines := bufio.NewReader(log)
	for r.resp = ""; r.resp == ""; {
		line, err := lines.ReadString('\n')
		if err != nil {
			r.t.Fatalf("the broker does not start: %v", err)
		}
		var up struct {
			Resp string `json:"resp_addr"`
			HTTP string `json:"http_addr"`
		}
		if json.Unmarshal([]byte(line), &up) == nil {
			r.resp, r.http = up.Resp, up.HTTP
		}
	}
	go func() { _, _ = io.Copy(io.Discard, lines) }()
	banner := make([]byte, 4096)
	n, err := out.Read(banner) // it is printed in one write
	if err != nil {
		r.t.Fatal(err)
	}
	return r.printed(string(banner[:n]))
}

// Every command of the README prints what the README says.
func TestREADME(t *testing.T) {
	commands := console(document(t, "README.md"))
	if len(commands) < 15 {
		t.Fatalf("only %d commands were found", len(commands))
	}
	r := &tour{t: t, dir: t.TempDir()}
	began := time.Now()
	for _, c := range commands {
		got := r.run(c.text)
		want := c.want
		for len(want) > 0 && want[len(want)-1] == "" {
			want = want[:len(want)-1]
		}
		if !matches(want, got) {
			t.Errorf("README.md:%d: $ %s\nprints\n%s\nand not\n%s", c.line, c.text, got, strings.Join(c.want, "\n"))
		}
		if t.Failed() && r.resp == "" {
			t.FailNow() // the build
		}
	}
	if text := document(t, "README.md"); !strings.Contains(text, "    go run ./cmd/felix dev ") || !strings.Contains(text, "    make test ") {
		t.Error("the README does not say how to run and how to test it")
	}
	t.Logf("%d commands in %s", len(commands), time.Since(began).Round(time.Millisecond))
}
