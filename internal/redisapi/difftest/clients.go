package difftest

import (
	"context"
	"crypto/sha256"
	"embed"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
)

//go:embed client.py node/package.json node/package-lock.json node/client.mjs
var files embed.FS

// clientTimeout is when a client program is given up; npm may have to fetch.
const clientTimeout = 3 * time.Minute

// RunClients runs real client libraries with their default settings against the
// door at addr: go-redis, rueidis, Debian's redis-py, ioredis and node-redis.
// It empties the door's default cache. A missing interpreter fails the test.
func RunClients(t *testing.T, addr string) {
	t.Run("GoRedis", func(t *testing.T) { runGoRedis(t, addr) })
	t.Run("Rueidis", func(t *testing.T) { runRueidis(t, addr) })
	t.Run("Python", func(t *testing.T) { runPython(t, addr) })
	t.Run("Node", func(t *testing.T) { runNode(t, addr) })
}

// checker fails the test at the first answer that is not as wanted.
type checker struct{ t *testing.T }

func (c checker) equal(what string, got, want any, err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatalf("%s: %v", what, err)
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		c.t.Fatalf("%s: %v, want %v", what, got, want)
	}
}

func runGoRedis(t *testing.T, addr string) {
	ctx, cancel := context.WithTimeout(context.Background(), replyTimeout)
	defer cancel()
	r := goredis.NewClient(&goredis.Options{Addr: addr})
	defer r.Close()
	c := checker{t}
	check := func(what string, want any) func(got any, err error) {
		return func(got any, err error) { t.Helper(); c.equal(what, got, want, err) }
	}
	check("FLUSHDB", "OK")(r.FlushDB(ctx).Result())
	check("SET", "OK")(r.Set(ctx, "k", "v", 0).Result())
	check("GET", "v")(r.Get(ctx, "k").Result())
	if _, err := r.Get(ctx, "missing").Result(); !errors.Is(err, goredis.Nil) {
		t.Errorf("GET missing: %v, want redis.Nil", err)
	}
	check("INCR", 1)(r.Incr(ctx, "n").Result())
	check("INCRBY", int64(math.MaxInt64))(r.IncrBy(ctx, "n", math.MaxInt64-1).Result())
	if err := r.Incr(ctx, "n").Err(); err == nil || err.Error() != "ERR increment or decrement would overflow" {
		t.Errorf("INCR over the limit: %v", err)
	}
	check("EXPIRE", true)(r.Expire(ctx, "n", 100*time.Second).Result())
	if ttl, err := r.TTL(ctx, "n").Result(); err != nil || ttl < 90*time.Second {
		t.Errorf("TTL: %v, %v", ttl, err)
	}
	check("MGET", "[v <nil>]")(r.MGet(ctx, "k", "missing").Result())
	cmds, err := r.Pipelined(ctx, func(p goredis.Pipeliner) error {
		for range 500 {
			p.Incr(ctx, "piped")
		}
		return nil
	})
	check("pipeline", 500)(len(cmds), err)
	for i, cmd := range cmds {
		check("INCR in the pipeline", i+1)(cmd.(*goredis.IntCmd).Result())
	}
	for i := range 100 {
		check("SET", "OK")(r.Set(ctx, fmt.Sprintf("scan:%d", i), i, time.Minute).Result())
	}
	seen := map[string]bool{}
	for it := r.Scan(ctx, 0, "scan:*", 7).Iterator(); it.Next(ctx); {
		seen[it.Val()] = true
	}
	check("SCAN", 100)(len(seen), nil)
	check("DEL", 2)(r.Del(ctx, "k", "n", "missing").Result())
	goRedisTransaction(ctx, t, r)
	scoped := goredis.NewClient(&goredis.Options{Addr: addr, Username: "default/default/stats", Password: "x"})
	defer scoped.Close()
	check("EXISTS in another cache", 0)(scoped.Exists(ctx, "piped").Result())
	lost := goredis.NewClient(&goredis.Options{Addr: addr, Username: "default/default/nosuch", Password: "x"})
	defer lost.Close()
	if err := lost.Ping(ctx).Err(); err == nil || !strings.Contains(err.Error(), "no such cache default/default/nosuch") {
		t.Errorf("a cache that does not exist: %v", err)
	}
}

// goRedisTransaction: all of it or nothing, also where others change what it
// watches, and keys of several shards are refused.
func goRedisTransaction(ctx context.Context, t *testing.T, r *goredis.Client) {
	check := checker{t}
	cmds, err := r.TxPipelined(ctx, func(p goredis.Pipeliner) error {
		p.Incr(ctx, "{tx}n")
		p.Set(ctx, "{tx}s", "text", time.Minute)
		p.Incr(ctx, "{tx}n")
		return nil
	})
	check.equal("TxPipelined", len(cmds), 3, err)
	n, err := cmds[2].(*goredis.IntCmd).Result()
	check.equal("INCR in a transaction", n, 2, err)
	const adders, adds = 4, 20
	failed := make(chan error, adders)
	for range adders {
		go func() {
			var why error
			for done := 0; done < adds && why == nil; {
				err := r.Watch(ctx, func(tx *goredis.Tx) error {
					n, err := tx.Get(ctx, "{tx}n").Int()
					if err != nil {
						return err
					}
					_, err = tx.TxPipelined(ctx, func(p goredis.Pipeliner) error {
						p.Set(ctx, "{tx}n", n+1, 0)
						return nil
					})
					return err
				}, "{tx}n")
				switch {
				case err == nil:
					done++
				case !errors.Is(err, goredis.TxFailedErr):
					why = err
				}
			}
			failed <- why
		}()
	}
	for range adders {
		if err := <-failed; err != nil {
			t.Error(err)
		}
	}
	got, err := r.Get(ctx, "{tx}n").Int()
	check.equal("the sum of all that was watched", got, 2+adders*adds, err)
	_, err = r.TxPipelined(ctx, func(p goredis.Pipeliner) error {
		for i := range 20 {
			p.Incr(ctx, fmt.Sprint("far", i))
		}
		return nil
	})
	if err == nil || !strings.HasPrefix(err.Error(), "CROSSSLOT") {
		t.Errorf("keys of several shards: %v", err)
	}
	if got, err := r.Exists(ctx, "far0", "far1", "far2", "far3").Result(); got != 0 || err != nil {
		t.Errorf("after the transaction that was refused: %d, %v", got, err)
	}
	check.equal("DEL", int(r.Del(ctx, "{tx}n", "{tx}s").Val()), 2, nil)
}

func runRueidis(t *testing.T, addr string) {
	ctx, cancel := context.WithTimeout(context.Background(), replyTimeout)
	defer cancel()
	r, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{addr}})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	c := checker{t}
	text := func(want string, cmd rueidis.Completed) {
		t.Helper()
		got, err := r.Do(ctx, cmd).ToString()
		c.equal("a command", got, want, err)
	}
	number := func(want int64, cmd rueidis.Completed) {
		t.Helper()
		got, err := r.Do(ctx, cmd).AsInt64()
		c.equal("a command", got, want, err)
	}
	text("OK", r.B().Flushdb().Build())
	text("OK", r.B().Set().Key("k").Value("v").Build())
	text("v", r.B().Get().Key("k").Build())
	if err := r.Do(ctx, r.B().Get().Key("missing").Build()).Error(); !rueidis.IsRedisNil(err) {
		t.Errorf("GET missing: %v, want nil", err)
	}
	number(1, r.B().Incr().Key("n").Build())
	number(42, r.B().Incrby().Key("n").Increment(41).Build())
	number(1, r.B().Expire().Key("n").Seconds(100).Build())
	number(-1, r.B().Ttl().Key("k").Build())
	cmds := make([]rueidis.Completed, 500)
	for i := range cmds {
		cmds[i] = r.B().Incr().Key("piped").Build()
	}
	for i, result := range r.DoMulti(ctx, cmds...) {
		got, err := result.AsInt64()
		c.equal("INCR in a pipeline", got, i+1, err)
	}
	for i := range 100 {
		text("OK", r.B().Set().Key(fmt.Sprintf("scan:%d", i)).Value("v").Build())
	}
	seen := map[string]bool{}
	for cursor := uint64(0); ; {
		page, err := r.Do(ctx, r.B().Scan().Cursor(cursor).Match("scan:*").Count(7).Build()).AsScanEntry()
		if err != nil {
			t.Fatal(err)
		}
		for _, key := range page.Elements {
			seen[key] = true
		}
		if cursor = page.Cursor; cursor == 0 {
			break
		}
	}
	c.equal("SCAN", len(seen), 100, nil)
	rueidisTransaction(ctx, t, r)
	// Caching was accepted only as long as nothing is cached.
	if err := r.DoCache(ctx, r.B().Get().Key("k").Cache(), time.Minute).Error(); err == nil {
		t.Error("a cached GET succeeded, although nothing would invalidate it")
	}
}

// rueidisTransaction is goRedisTransaction for rueidis.
func rueidisTransaction(ctx context.Context, t *testing.T, r rueidis.Client) {
	err := r.Dedicated(func(d rueidis.DedicatedClient) error {
		for want := range 2 { // the second time what it watches changes
			results := d.DoMulti(ctx, d.B().Watch().Key("{tx}n").Build())
			if err := results[0].Error(); err != nil {
				return err
			}
			if want == 1 {
				if err := r.Do(ctx, r.B().Incr().Key("{tx}n").Build()).Error(); err != nil {
					return err
				}
			}
			results = d.DoMulti(ctx, d.B().Multi().Build(), d.B().Incr().Key("{tx}n").Build(), d.B().Exec().Build())
			sums, err := results[2].AsIntSlice()
			if want == 0 && (err != nil || len(sums) != 1 || sums[0] != 1) || want == 1 && !rueidis.IsRedisNil(err) {
				t.Errorf("EXEC %d: %v, %v", want, sums, err)
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	if n, err := r.Do(ctx, r.B().Get().Key("{tx}n").Build()).AsInt64(); n != 2 || err != nil {
		t.Errorf("after the transactions: %d, %v", n, err)
	}
}

func runPython(t *testing.T, addr string) {
	const python = "/usr/bin/python3"
	script := filepath.Join(t.TempDir(), "client.py")
	writeFile(t, "client.py", script)
	runProgram(t, addr, "", "apt-get install python3-redis", python, script)
}

// runNode installs the packages that package-lock.json names, once, into the
// user's cache directory.
func runNode(t *testing.T, addr string) {
	lock, err := files.ReadFile("node/package-lock.json")
	if err != nil {
		t.Fatal(err)
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		cache = os.TempDir()
	}
	dir := filepath.Join(cache, "felix-difftest", fmt.Sprintf("node-%x", sha256.Sum256(lock))[:16])
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"package.json", "package-lock.json", "client.mjs"} {
		writeFile(t, "node/"+name, filepath.Join(dir, name))
	}
	installed := filepath.Join(dir, "installed")
	if _, err := os.Stat(installed); err != nil {
		runProgram(t, "", dir, "apt-get install npm, and the npm registry", "npm", "ci", "--no-audit", "--no-fund")
		if err := os.WriteFile(installed, nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	runProgram(t, addr, dir, "apt-get install nodejs", "node", "client.mjs")
}

func writeFile(t *testing.T, name, path string) {
	t.Helper()
	content, err := files.ReadFile(name)
	if err == nil {
		err = os.WriteFile(path, content, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// runProgram runs a program, giving it addr's host and port if there is one.
func runProgram(t *testing.T, addr, dir, needs, name string, args ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), clientTimeout)
	defer cancel()
	if addr != "" {
		host, port, err := net.SplitHostPort(addr)
		if err != nil {
			t.Fatal(err)
		}
		args = append(args, host, port)
	}
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s %s: %v (it needs: %s)\n%s", name, strings.Join(args, " "), err, needs, out)
	}
}
