package daemon

import (
	"bytes"
	"context"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/felix-go/felix/internal/broker"
)

// resolved is a configuration as flags, variables and a file give it.
func resolved(t *testing.T, dev bool, args []string, env map[string]string) (Config, error) {
	t.Helper()
	c := Config{Dev: dev}
	f := pflag.NewFlagSet("felix", pflag.ContinueOnError)
	c.addFlags(f)
	if err := f.Parse(args); err != nil {
		t.Fatal(err)
	}
	err := c.resolve(f, func(name string) string { return env[name] })
	return c, err
}

// A flag beats the environment, that beats the file, that beats the default.
func TestPrecedence(t *testing.T) {
	file := writeFile(t, filepath.Join(t.TempDir(), "felix.toml"), `
data-dir = "/file"
resp-addr = "127.0.0.1:1"
request-timeout = "1s"
max-connections = 1
insecure = true
`)
	c, err := resolved(t, false,
		[]string{"--config", file, "--resp-addr", "127.0.0.1:3"},
		map[string]string{"FELIX_RESP_ADDR": "127.0.0.1:2", "FELIX_REQUEST_TIMEOUT": "2s"})
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range []struct {
		what      string
		got, want any
	}{
		{"flag over environment and file", c.RESPAddr, "127.0.0.1:3"},
		{"environment over file", c.RequestTimeout, 2 * time.Second},
		{"file over default: text", c.DataDir, "/file"},
		{"file over default: number", c.MaxConnections, 1},
		{"file over default: boolean", c.Insecure, true},
		{"default", c.HTTPAddr, "127.0.0.1:7380"},
	} {
		if v.got != v.want {
			t.Errorf("%s: %v, want %v", v.what, v.got, v.want)
		}
	}
}

// A flag with the default's value is a flag all the same.
func TestFlagWithDefaultBeatsEnvironment(t *testing.T) {
	c, err := resolved(t, true, []string{"--log-level", "info"}, map[string]string{"FELIX_LOG_LEVEL": "debug"})
	if err != nil || c.LogLevel != "info" {
		t.Errorf("log level %q, %v; want info", c.LogLevel, err)
	}
}

func TestEnvironment(t *testing.T) {
	file := writeFile(t, filepath.Join(t.TempDir(), "felix.toml"), `log-format = "json"`)
	for _, v := range []struct {
		name string
		dev  bool
		env  map[string]string
		want func(Config) bool
	}{
		{"the data directory's own name", false, map[string]string{"FELIX_DURABLE_STORAGE_DIR": "/d"}, func(c Config) bool { return c.DataDir == "/d" }},
		{"the data directory's common name", false, map[string]string{"FELIX_DATA_DIR": "/d"}, func(c Config) bool { return c.DataDir == "/d" }},
		{"the common name beats the own", false, map[string]string{"FELIX_DATA_DIR": "/c", "FELIX_DURABLE_STORAGE_DIR": "/o"}, func(c Config) bool { return c.DataDir == "/c" }},
		{"over what dev has by default", true, map[string]string{"FELIX_DATA_DIR": "/d"}, func(c Config) bool { return c.DataDir == "/d" }},
		{"dev's default", true, nil, func(c Config) bool { return c.DataDir == ".felix" }},
		{"an empty variable is none", true, map[string]string{"FELIX_DATA_DIR": "", "FELIX_LOG_LEVEL": ""}, func(c Config) bool { return c.DataDir == ".felix" && c.LogLevel == "info" }},
		{"how reads are confirmed, by its other name", true, map[string]string{"FELIX_QUORUM_READS": "lease"}, func(c Config) bool { return c.Reads == "lease" }},
		{"brokers", true, map[string]string{"FELIX_NODE_ID": "2", "FELIX_PEERS": "2=b:7381, 1=a:7381", "FELIX_PEER_ADDR": "b:7381", "FELIX_INSECURE": "true"}, func(c Config) bool { return c.NodeID == 2 && c.Peers[1] == "a:7381" && c.Peers[2] == "b:7381" }},
		{"the config file", true, map[string]string{"FELIX_CONFIG": file}, func(c Config) bool { return c.LogFormat == "json" }},
		{"a boolean", true, map[string]string{"FELIX_INSECURE": "true", "FELIX_HTTP_ADDR": ":0"}, func(c Config) bool { return c.Insecure }},
	} {
		t.Run(v.name, func(t *testing.T) {
			c, err := resolved(t, v.dev, nil, v.env)
			if err != nil || !v.want(c) {
				t.Errorf("%+v, %v", c, err)
			}
		})
	}
}

// samples are values of flags that are empty by default, and companions what is
// said of a flag that cannot stand alone.
var (
	samples = map[string]string{
		"http-addr": "127.0.0.1:0", "advertise-peer-addr": "h:1", "advertise-http-addr": "h:2", "advertise-resp-addr": "h:3",
		"peers": "1=h:1,2=h:2", "join": "h:1,i:1", "peer-cert": "c", "peer-key": "k", "peer-ca": "a", "reads": "lease",
	}
	companions = map[string]string{
		"peers": "needs a --node-id", "join": "needs a --node-id",
		"peer-cert": "needs all three", "peer-key": "needs all three", "peer-ca": "needs all three",
	}
)

// Every flag can be set by its variable and its key of the file: both are made
// from the flag's name.
func TestEveryFlagHasVariableAndKey(t *testing.T) {
	f := pflag.NewFlagSet("felix", pflag.ContinueOnError)
	(&Config{Dev: true}).addFlags(f)
	f.VisitAll(func(flag *pflag.Flag) {
		if flag.Name == "config" {
			return
		}
		value, given := flag.DefValue, samples[flag.Name]
		if given != "" {
			value = given
		}
		key := writeFile(t, filepath.Join(t.TempDir(), "felix.toml"), flag.Name+" = "+tomlValue(flag, value))
		for source, env := range map[string]map[string]string{"variable": {envName(flag.Name): value}, "file": {"FELIX_CONFIG": key}} {
			c := Config{Dev: true}
			into := pflag.NewFlagSet("felix", pflag.ContinueOnError)
			c.addFlags(into)
			err := c.resolve(into, func(name string) string { return env[name] })
			if why := companions[flag.Name]; err != nil && (why == "" || !strings.Contains(err.Error(), why)) {
				t.Errorf("--%s from the %s: %v", flag.Name, source, err)
			}
			if got := into.Lookup(flag.Name).Value.String(); got != value {
				t.Errorf("--%s from the %s is %q, want %q", flag.Name, source, got, value)
			}
			if !into.Lookup(flag.Name).Changed {
				t.Errorf("--%s cannot be given by %s", flag.Name, source)
			}
		}
	})
}

func tomlValue(flag *pflag.Flag, value string) string {
	switch flag.Value.Type() {
	case "int", "int64", "uint64", "bool":
		return value
	}
	return `"` + value + `"`
}

// Every bad setting ends the command with status 2 and one line that names the
// culprit and says what would be right.
func TestBadSettings(t *testing.T) {
	dir := t.TempDir()
	file := func(text string) string { return writeFile(t, filepath.Join(t.TempDir(), "felix.toml"), text) }
	for _, v := range []struct {
		args []string
		env  []string
		want string
	}{
		{[]string{"serve"}, nil, "no data directory: counters need durable storage; give --data-dir DIR (or FELIX_DURABLE_STORAGE_DIR)"},
		{[]string{"dev", "--data-dir", ""}, nil, "no data directory: counters need durable storage"},
		{[]string{"dev", "--resp-addr", "7379"}, nil, `--resp-addr "7379": it is host:port`},
		{[]string{"dev", "--http-addr", "::1:7380"}, nil, `--http-addr "::1:7380": it is host:port`},
		{[]string{"dev", "--http-addr", "127.0.0.1:65536"}, nil, `--http-addr "127.0.0.1:65536": the port is a number from 0`},
		{[]string{"dev", "--http-addr", "127.0.0.1:http"}, nil, "the port is a number"},
		{[]string{"dev", "--http-addr", "127.0.0.1:"}, nil, "the port is a number"},
		{[]string{"dev", "--resp-addr", ":7379"}, nil, "--resp-addr :7379 can be reached from outside and nobody has to authenticate: use a loopback address, or add --insecure"},
		{[]string{"serve", "--data-dir", dir, "--http-addr", "0.0.0.0:7380"}, nil, "--http-addr 0.0.0.0:7380 can be reached from outside"},
		{[]string{"serve", "--data-dir", dir, "--http-addr", "[::]:7380"}, nil, "can be reached from outside"},
		{[]string{"serve", "--data-dir", dir, "--http-addr", "counters.example:7380"}, nil, "can be reached from outside"},
		{[]string{"dev", "--peer-addr", "7381"}, nil, `--peer-addr "7381": it is host:port`},
		{[]string{"dev", "--peer-addr", ":7381"}, nil, "--peer-addr :7381 can be reached from outside, and who connects there can change everything: give --peer-cert, --peer-key and --peer-ca, or add --insecure"},
		{[]string{"dev", "--peer-addr", ":7381", "--insecure"}, nil, "--peer-addr :7381 does not say where others find this broker: give --advertise-peer-addr host:port"},
		{[]string{"dev", "--peer-addr", "0.0.0.0:7381", "--peer-cert", "c", "--peer-key", "k", "--peer-ca", "a"}, nil, "--peer-addr 0.0.0.0:7381 does not say where others find this broker"},
		{[]string{"dev", "--insecure", "--http-addr", ":0", "--node-id", "1", "--join", "h:1"}, nil, "--http-addr :0 does not say where others find this broker: give --advertise-http-addr"},
		{[]string{"dev", "--insecure", "--resp-addr", "[::]:0", "--node-id", "1", "--peers", "1=h:1"}, nil, "--resp-addr [::]:0 does not say where others find this broker: give --advertise-resp-addr"},
		{[]string{"dev", "--advertise-http-addr", "0.0.0.0:1"}, nil, `--advertise-http-addr "0.0.0.0:1": it is the host:port that others use`},
		{[]string{"dev", "--advertise-resp-addr", "h:0"}, nil, `--advertise-resp-addr "h:0": it is the host:port that others use`},
		{[]string{"dev", "--advertise-peer-addr", "h"}, nil, `--advertise-peer-addr "h": it is the host:port that others use`},
		{[]string{"dev", "--node-id", "4", "--join", "localhost:7381,h1:7381"}, nil, "node 4 tells others to reach it at 127.0.0.1:7381, which for the one at h1:7381 is its own machine: give --peer-addr or --advertise-peer-addr"},
		{[]string{"dev", "--node-id", "1", "--peers", "1=localhost:7381,2=h2:7381"}, nil, "node 1 tells others to reach it at localhost:7381, which for the one at h2:7381 is its own machine"},
		{[]string{"dev", "--node-id", "1", "--peers", "1=h1:7381,2=h2:7381", "--advertise-peer-addr", "[::1]:7381"}, nil, "node 1 tells others to reach it at [::1]:7381, which for the one at h"},
		{[]string{"dev", "--node-id", "1", "--peers", "1=h1:7381,2=h2:7381"}, nil, "--peer-addr h1:7381 can be reached from outside"},
		{[]string{"dev", "--node-id", "1", "--peers", "1=h1:7381,2=h2:7381", "--peer-addr", "127.0.0.1:7381"}, nil, "--peers says that node 1 is at h1:7381, and --peer-addr 127.0.0.1:7381 can be reached from this machine only: give --peer-addr"},
		{[]string{"dev", "--peer-cert", "c", "--peer-key", "k"}, nil, "TLS between brokers needs all three"},
		{[]string{"dev", "--peer-ca", "a"}, nil, "TLS between brokers needs all three"},
		{[]string{"dev", "--peers", "1=h:1"}, nil, "--peers needs a --node-id: which of them this broker is"},
		{[]string{"dev", "--peers", "1=h:1,2=i:1", "--node-id", "3"}, nil, "--peers 1=h:1,2=i:1 does not have node 3, which this broker is"},
		{[]string{"dev", "--join", "h:1"}, nil, "--join needs a --node-id: choose one that no broker of the cluster has or had"},
		{[]string{"dev", "--node-id", "1", "--join", "h:1", "--peers", "1=h:1"}, nil, "--peers and --join: a new broker forms a cluster"},
		{[]string{"dev", "--peers", "h:1"}, nil, `invalid argument "h:1" for "--peers" flag: "h:1" is not ID=host:port, as in 1=felix-1:7381`},
		{[]string{"dev", "--peers", "1=h:1,0=i:1"}, nil, `"0=i:1" is not ID=host:port`},
		{[]string{"dev", "--peers", "1=h:1,1=i:1"}, nil, "node 1 is there twice"},
		{[]string{"dev", "--peers", "1=h:1,2=h:1"}, nil, "nodes 1 and 2 have one address"},
		{[]string{"dev", "--join", "h:1,i"}, nil, `"i" is not host:port`},
		{[]string{"dev", "--nodes", "0"}, nil, "--nodes 0: it is 1 to 9"},
		{[]string{"dev", "--nodes", "10"}, nil, "--nodes 10: it is 1 to 9"},
		{[]string{"dev", "--nodes", "3", "--node-id", "1"}, nil, "--nodes makes a cluster of its own: leave out --peers, --join, --node-id"},
		{[]string{"dev", "--nodes", "3", "--node-id", "1", "--join", "h:1"}, nil, "--nodes makes a cluster of its own"},
		{[]string{"dev", "--nodes", "2", "--advertise-http-addr", "h:1"}, nil, "--nodes makes a cluster of its own"},
		{[]string{"serve", "--nodes", "3"}, nil, "unknown flag: --nodes"},
		{[]string{"dev", "--node-id", "-1"}, nil, `invalid argument "-1" for "--node-id" flag`},
		{[]string{"dev", "--reads", "local"}, nil, `--reads "local": it is fence or lease`},
		{[]string{"dev", "--replace-after", "1ms"}, nil, "--replace-after 1ms: it is at least 1s"},
		{[]string{"dev", "--max-clock-offset", "0"}, nil, "--max-clock-offset 0s: it is at least 1ms"},
		{[]string{"dev"}, []string{"FELIX_PEERS=1"}, `environment variable FELIX_PEERS: peers = "1" is not a valid list of brokers`},
		{[]string{"dev"}, []string{"FELIX_QUORUM_READS=never"}, `--reads "never": it is fence or lease`},
		{[]string{"dev", "--record-memory", "0"}, nil, "--record-memory 0 MiB: it is 1 to 16777216 MiB"},
		{[]string{"dev", "--record-memory", "9223372036854775807"}, nil, "--record-memory 9223372036854775807 MiB: it is 1 to"},
		{[]string{"dev", "--block-cache", "-1"}, nil, "--block-cache -1 MiB: it is 1 to"},
		{[]string{"dev", "--inflight-memory", "31"}, nil, "--inflight-memory 31 MiB: it is 32 to"},
		{[]string{"dev", "--connection-memory", "31"}, nil, "--connection-memory 31 MiB: it is 32 to"},
		{[]string{"dev", "--max-connections", "0"}, nil, "--max-connections 0: it is 1 to"},
		{[]string{"dev", "--request-timeout", "0s"}, nil, "--request-timeout 0s: it is at least 1ms"},
		{[]string{"dev", "--idle-timeout", "-1s"}, nil, "--idle-timeout -1s: it is at least 0s"},
		{[]string{"dev", "--stop-timeout", "1us"}, nil, "--stop-timeout 1µs: it is at least 1ms"},
		{[]string{"dev", "--checkpoint-interval", "0"}, nil, "--checkpoint-interval 0s: it is at least 1ms"},
		{[]string{"dev", "--log-level", "loud"}, nil, `--log-level "loud": it is debug, info, warn or error`},
		{[]string{"dev", "--log-format", "xml"}, nil, `--log-format "xml": it is text or json`},
		{[]string{"dev", "--request-timeout", "5"}, nil, "request-timeout"},
		{[]string{"dev", "--no-such-flag"}, nil, "unknown flag: --no-such-flag"},
		{[]string{"dev", "word"}, nil, `unknown command "word"`},
		{[]string{"nothing"}, nil, `unknown command "nothing"`},
		{[]string{"dev"}, []string{"FELIX_REQUEST_TIMEOUT=5"}, `environment variable FELIX_REQUEST_TIMEOUT: request-timeout = "5" is not a valid duration`},
		{[]string{"dev"}, []string{"FELIX_MAX_CONNECTIONS=many"}, `environment variable FELIX_MAX_CONNECTIONS: max-connections = "many" is not a valid int`},
		{[]string{"dev"}, []string{"FELIX_INSECURE=perhaps"}, `environment variable FELIX_INSECURE: insecure = "perhaps" is not a valid bool`},
		{[]string{"dev"}, []string{"FELIX_CONFIG=/no/such/file"}, "config file /no/such/file does not exist"},
		{[]string{"dev", "--config", dir}, nil, "config file " + dir},
		{[]string{"dev", "--config", file("colour = 1")}, nil, `there is no setting "colour"; the settings are the flags that --help shows`},
		{[]string{"dev", "--config", file(`config = "x"`)}, nil, `there is no setting "config"`},
		{[]string{"dev", "--config", file("\nlog-level = = 1")}, nil, ", line 2: "},
		{[]string{"dev", "--config", file("log-level = [1]")}, nil, "log-level must be a string, a number or a boolean"},
		{[]string{"dev", "--config", file("[log-level]\na = 1")}, nil, "log-level must be a string, a number or a boolean"},
		{[]string{"dev", "--config", file("max-connections = true")}, nil, `max-connections = "true" is not a valid int`},
	} {
		t.Run(strings.Join(append(v.args, v.env...), " "), func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			status := Main(context.Background(), v.args, v.env, &stdout, &stderr)
			line := stderr.String()
			if status != exitUsage || strings.Count(line, "\n") != 1 || !strings.HasPrefix(line, "felix: ") || !strings.Contains(line, v.want) {
				t.Errorf("exit status %d, want %d; standard error %q, want one line with %q", status, exitUsage, line, v.want)
			}
			if stdout.Len() > 0 {
				t.Errorf("standard output: %q", stdout.String())
			}
		})
	}
}

// TestAdvertised: others are told of a broker what the operator wrote, names
// included, with the port that was found where none was asked for.
func TestAdvertised(t *testing.T) {
	for _, v := range []struct {
		args             []string
		peer, http, resp string // PORT is that of the listener
	}{
		{nil, "127.0.0.1:7381", "127.0.0.1:7380", "127.0.0.1:7379"},
		{[]string{"--peer-addr", "localhost:0", "--http-addr", "localhost:0", "--resp-addr", "[::1]:0"}, "localhost:PORT", "localhost:PORT", "[::1]:PORT"},
		{[]string{"--peer-addr", "h1:7381", "--insecure"}, "h1:7381", "127.0.0.1:7380", "127.0.0.1:7379"},
		{[]string{"--peer-addr", "0.0.0.0:7381", "--insecure", "--node-id", "1", "--peers", "1=h1:7381,2=h2:7381", "--advertise-http-addr", "h1:80"}, "h1:7381", "h1:80", "127.0.0.1:7379"},
		{[]string{"--peer-addr", ":0", "--insecure", "--advertise-peer-addr", "e1:7381", "--node-id", "1", "--peers", "1=h1:7381,2=h2:7381"}, "e1:7381", "127.0.0.1:7380", "127.0.0.1:7379"},
		{[]string{"--resp-addr", ":7379", "--insecure"}, "127.0.0.1:7381", "127.0.0.1:7380", ""},
	} {
		c, err := resolved(t, true, v.args, nil)
		if err != nil {
			t.Errorf("%q: %v", v.args, err)
			continue
		}
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = ln.Close() }()
		_, port, _ := net.SplitHostPort(ln.Addr().String())
		d := &Daemon{config: c, listeners: listeners{resp: ln, http: ln, peer: ln}}
		want := broker.Addresses{Peer: v.peer, HTTP: v.http, RESP: v.resp}
		for _, addr := range []*string{&want.Peer, &want.HTTP, &want.RESP} {
			*addr = strings.ReplaceAll(*addr, "PORT", port)
		}
		if got := d.clusterOptions().Advertise; got != want {
			t.Errorf("%q: others are told %+v, want %+v", v.args, got, want)
		}
	}
}

// TestPeerAddrOfPeers: a broker of --peers listens where that says that it is,
// unless it is told otherwise.
func TestPeerAddrOfPeers(t *testing.T) {
	peers := []string{"--node-id", "2", "--peers", "1=127.0.0.1:8001,2=127.0.0.1:8002"}
	for _, v := range []struct {
		args    []string
		environ map[string]string
		want    string
	}{
		{peers, nil, "127.0.0.1:8002"},
		{append(peers[:4:4], "--peer-addr", "127.0.0.1:9"), nil, "127.0.0.1:9"},
		{peers, map[string]string{"FELIX_PEER_ADDR": "127.0.0.1:9"}, "127.0.0.1:9"},
		{append(peers[:4:4], "--advertise-peer-addr", "127.0.0.1:10"), nil, "127.0.0.1:7381"},
		{nil, nil, "127.0.0.1:7381"},
	} {
		c, err := resolved(t, true, v.args, v.environ)
		if err != nil || c.PeerAddr != v.want {
			t.Errorf("%q, %q: %s, %v; want %s", v.args, v.environ, c.PeerAddr, err, v.want)
		}
	}
}
