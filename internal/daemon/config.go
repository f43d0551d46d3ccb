package daemon

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/BurntSushi/toml"
	"github.com/spf13/pflag"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/redisapi"
)

// Config is how a broker is started. A flag beats the environment, the
// environment beats the config file, and that beats the default.
type Config struct {
	DataDir        string
	RESPAddr       string
	HTTPAddr       string
	Insecure       bool
	LogLevel       string
	LogFormat      string
	RequestTimeout time.Duration
	StopTimeout    time.Duration
	IdleTimeout    time.Duration
	MaxConnections int
	RecordMemory   int64 // MiB
	BlockCache     int64 // MiB
	InflightMemory int64 // MiB
	ConnMemory     int64 // MiB
	Checkpoint     time.Duration

	ClusterConfig

	// Dev makes the broker for playing: loopback, the caches default and
	// stats, and a replication that is only a target.
	Dev bool
}

// envNames are environment variables that do not follow from the flag's name.
var envNames = map[string]string{"data-dir": "FELIX_DURABLE_STORAGE_DIR", "reads": "FELIX_QUORUM_READS"}

// devDataDir is where `felix dev` keeps its data unless told otherwise.
const devDataDir = ".felix"

// DefaultConfig is what `felix dev` or `felix serve` start with if nothing is
// given.
func DefaultConfig(dev bool) Config {
	c := Config{Dev: dev}
	c.addFlags(pflag.NewFlagSet("", pflag.ContinueOnError))
	return c
}

// addFlags declares the flags, which are also the keys of the config file.
func (c *Config) addFlags(f *pflag.FlagSet) {
	f.SortFlags = false
	dataDir := ""
	if c.Dev {
		dataDir = devDataDir
	}
	f.String("config", "", "config `file` (TOML): these flags' names without the dashes, as keys")
	f.StringVar(&c.DataDir, "data-dir", dataDir, "`directory` of everything that must survive; made if missing (also env FELIX_DURABLE_STORAGE_DIR)")
	f.StringVar(&c.RESPAddr, "resp-addr", "127.0.0.1:7379", "`host:port` for Redis clients; port 0 is any free one")
	f.StringVar(&c.HTTPAddr, "http-addr", "127.0.0.1:7380", "`host:port` for HTTP, gRPC and felixctl; port 0 is any free one")
	c.addClusterFlags(f)
	f.BoolVar(&c.Insecure, "insecure", false, "listen on addresses other than loopback although nobody has to authenticate")
	f.Int64Var(&c.RecordMemory, "record-memory", 512, "bound on the memory for records, in `MiB`; colder records are on disk only")
	f.Int64Var(&c.BlockCache, "block-cache", 64, "memory for blocks of the state store, in `MiB`")
	f.Int64Var(&c.InflightMemory, "inflight-memory", felix.MaxInflightBrokerBytes>>20, "bound on operations that wait or are in flight, in `MiB`; more are refused")
	f.Int64Var(&c.ConnMemory, "connection-memory", felix.MaxConnectionBytes>>20, "bound on the buffers of Redis connections, in `MiB`: half for what they send, half for answers that they do not take")
	f.IntVar(&c.MaxConnections, "max-connections", felix.MaxConnections, "bound on the `number` of Redis connections, and on that of HTTP connections")
	f.DurationVar(&c.RequestTimeout, "request-timeout", felix.RequestTimeout, "how long an operation waits for an owner or a majority, a `duration`")
	f.DurationVar(&c.IdleTimeout, "idle-timeout", 0, "close a Redis connection after this long without a byte, a `duration`; 0 is never")
	f.DurationVar(&c.StopTimeout, "stop-timeout", 30*time.Second, "how long a stop may take before it is forced, a `duration`")
	f.DurationVar(&c.Checkpoint, "checkpoint-interval", 15*time.Second, "how long a change may stay in the log only, a `duration`; bounds the replay of a restart")
	f.StringVar(&c.LogLevel, "log-level", "info", "debug, info, warn or error: what is logged, a `level`")
	f.StringVar(&c.LogFormat, "log-format", "text", "text or json: the `form` of the log, on standard error")
}

// envName is the environment variable of a flag.
func envName(flag string) string {
	return "FELIX_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// resolve fills in what no flag gave, from the environment and the file, and
// checks everything. The errors are one line that names the culprit.
func (c *Config) resolve(f *pflag.FlagSet, getenv func(string) string) error {
	file := ""
	if flag := f.Lookup("config"); flag.Changed {
		file = flag.Value.String()
	} else {
		file = getenv(envName("config"))
	}
	given := map[string]string{}
	if file != "" {
		var err error
		if given, err = readFile(file, f); err != nil {
			return err
		}
	}
	var problems []error
	f.VisitAll(func(flag *pflag.Flag) {
		if flag.Changed || flag.Name == "config" {
			return
		}
		value, source := given[flag.Name], "config file "+file
		_, ok := given[flag.Name]
		for _, name := range []string{envNames[flag.Name], envName(flag.Name)} {
			if name == "" {
				continue
			}
			if v := getenv(name); v != "" {
				value, source, ok = v, "environment variable "+name, true
			}
		}
		if !ok {
			return
		}
		if err := f.Set(flag.Name, value); err != nil {
			problems = append(problems, fmt.Errorf("%s: %s = %q is not a valid %s", source, flag.Name, value, flag.Value.Type()))
		}
	})
	if len(problems) > 0 {
		return problems[0]
	}
	if own := c.Peers[c.NodeID]; own != "" && c.AdvertisePeer == "" && !f.Lookup("peer-addr").Changed {
		c.PeerAddr = own // said once already
	}
	return c.check()
}

// readFile reads the config file; its keys are names of flags.
func readFile(path string, f *pflag.FlagSet) (map[string]string, error) {
	var raw map[string]any
	if _, err := toml.DecodeFile(path, &raw); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("config file %s does not exist", path)
		}
		var where toml.ParseError
		if errors.As(err, &where) {
			return nil, fmt.Errorf("config file %s, line %d: %s", path, where.Position.Line, where.Message)
		}
		return nil, fmt.Errorf("config file %s: %w", path, err)
	}
	names := make([]string, 0, len(raw))
	for name := range raw {
		names = append(names, name)
	}
	sort.Strings(names)
	given := map[string]string{}
	for _, name := range names {
		if f.Lookup(name) == nil || name == "config" {
			return nil, fmt.Errorf("config file %s: there is no setting %q; the settings are the flags that --help shows", path, name)
		}
		switch v := raw[name].(type) {
		case string, bool, int64, float64:
			given[name] = fmt.Sprint(v)
		default:
			return nil, fmt.Errorf("config file %s: %s must be a string, a number or a boolean", path, name)
		}
	}
	return given, nil
}

// check answers the first setting that cannot be, in one line that says what
// would be.
func (c *Config) check() error {
	if c.DataDir == "" {
		return errors.New("no data directory: counters need durable storage; give --data-dir DIR (or FELIX_DURABLE_STORAGE_DIR)")
	}
	for _, l := range []struct{ flag, addr string }{
		{"resp-addr", c.RESPAddr}, {"http-addr", c.HTTPAddr},
	} {
		if err := checkAddr(l.flag, l.addr); err != nil {
			return err
		}
		if host, _, _ := net.SplitHostPort(l.addr); !c.Insecure && !isLoopback(host) {
			return fmt.Errorf("--%s %s can be reached from outside and nobody has to authenticate: use a loopback address, or add --insecure if the network keeps strangers out", l.flag, l.addr)
		}
	}
	if err := c.checkCluster(); err != nil {
		return err
	}
	if err := c.checkNumbers(); err != nil {
		return err
	}
	if _, ok := logLevels[c.LogLevel]; !ok {
		return fmt.Errorf("--log-level %q: it is debug, info, warn or error", c.LogLevel)
	}
	if c.LogFormat != "text" && c.LogFormat != "json" {
		return fmt.Errorf("--log-format %q: it is text or json", c.LogFormat)
	}
	return nil
}

func checkAddr(flag, addr string) error {
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		return fmt.Errorf("--%s %q: it is host:port, as in 127.0.0.1:7379", flag, addr)
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return fmt.Errorf("--%s %q: the port is a number from 0 (any free one) to 65535", flag, addr)
	}
	return nil
}

// maxMemoryMiB is beyond any machine, and far from overflowing when it is
// counted in bytes.
const maxMemoryMiB = 1 << 24

// minInflightMiB is room for the largest request (resp.MaxRequestBytes) with
// what its operations cost beside, twice: less would refuse it for ever.
const minInflightMiB = 32

// minConnectionMiB lets half of it hold one request of the largest size.
const minConnectionMiB = 2 * redisapi.MaxRequestBytes >> 20

func (c *Config) checkNumbers() error {
	for _, n := range []struct {
		flag            string
		value, min, max int64
		unit            string
	}{
		{"record-memory", c.RecordMemory, 1, maxMemoryMiB, " MiB"},
		{"block-cache", c.BlockCache, 1, maxMemoryMiB, " MiB"},
		{"inflight-memory", c.InflightMemory, minInflightMiB, maxMemoryMiB, " MiB"},
		{"connection-memory", c.ConnMemory, minConnectionMiB, maxMemoryMiB, " MiB"},
		{"max-connections", int64(c.MaxConnections), 1, 1 << 24, ""},
	} {
		if n.value < n.min || n.value > n.max {
			return fmt.Errorf("--%s %d%s: it is %d to %d%s", n.flag, n.value, n.unit, n.min, n.max, n.unit)
		}
	}
	for _, d := range []struct {
		flag       string
		value, min time.Duration
	}{
		{"request-timeout", c.RequestTimeout, time.Millisecond},
		{"idle-timeout", c.IdleTimeout, 0},
		{"stop-timeout", c.StopTimeout, time.Millisecond},
		{"checkpoint-interval", c.Checkpoint, time.Millisecond},
		{"replace-after", c.ReplaceAfter, time.Second},
		{"max-clock-offset", c.MaxClockOffset, time.Millisecond},
	} {
		if d.value < d.min {
			return fmt.Errorf("--%s %s: it is at least %s", d.flag, d.value, d.min)
		}
	}
	return nil
}

// isLoopback says whether only this machine can reach a listener on host.
func isLoopback(host string) bool {
	if host == "localhost" {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

// getenvOf looks variables up in a list as os.Environ makes it.
func getenvOf(environ []string) func(string) string {
	return func(name string) string {
		for i := len(environ) - 1; i >= 0; i-- {
			if k, v, _ := strings.Cut(environ[i], "="); k == name {
				return v
			}
		}
		return ""
	}
}
