package netloop

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/felix-go/felix"
)

// A client that sends whatever it likes, in whatever pieces, is answered in
// order, whether operations finish inline, elsewhere, or in parts.
func TestOrderUnderFragmentation(t *testing.T) {
	onBoth(t, func(t *testing.T, portable bool) {
		for name, cache := range map[string]felix.Cache{"inline": &inlineCache{}, "async": &asyncCache{}} {
			t.Run(name, func(t *testing.T) {
				r := start(t, Options{Loops: 2, Portable: portable, MaxPipelineBytes: 8 << 10}, maxPace, cache, &asyncCache{}, &inlineCache{})
				var wg sync.WaitGroup
				for i := range 12 {
					c := r.dial()
					wg.Go(func() { talk(c, rand.New(rand.NewPCG(uint64(i), 1)), fmt.Sprintf("%d-", i)) })
				}
				wg.Wait()
			})
		}
	})
}

// talk sends random commands in random pieces and checks every answer.
func talk(c *client, rnd *rand.Rand, own string) {
	var in []byte
	var want strings.Builder
	sums := map[string]int{}
	for range 400 {
		key := own + strings.Repeat("k", 1<<rnd.IntN(10)) + string(rune('a'+rnd.IntN(5)))
		switch rnd.IntN(12) {
		case 0:
			in = append(in, cmd("SLOW", "0")...)
			want.WriteString("+SLEPT\r\n")
		case 1:
			n := rnd.IntN(20000)
			in = append(in, cmd("FILL", fmt.Sprint(n))...)
			want.WriteString(bulk(strings.Repeat("x", n)))
		case 2, 3:
			in = append(in, cmd("GET", key)...)
			want.WriteString(bulk(key))
		case 4:
			in = append(in, cmd("PING")...)
			want.WriteString("+PONG\r\n")
		case 5, 6, 7:
			k := rnd.IntN(3)
			in = append(in, cmd("INCRIN", fmt.Sprint(k), key)...)
			sums[fmt.Sprint(k, " ", key)]++
			want.WriteString(num(sums[fmt.Sprint(k, " ", key)]))
		default:
			in = append(in, cmd("INCR", key)...)
			sums["0 "+key]++
			want.WriteString(num(sums["0 "+key]))
		}
	}
	go func() {
		for len(in) > 0 {
			n := min(len(in), 1<<rnd.IntN(14))
			c.send(in[:n])
			in = in[n:]
		}
	}()
	c.want(want.String())
}

// Every add of many connections counts once, and the counters agree.
func TestManyConnections(t *testing.T) {
	onBoth(t, func(t *testing.T, portable bool) {
		cache := &asyncCache{}
		r := start(t, Options{Portable: portable}, maxPace, cache)
		const conns, rounds, depth = 200, 5, 4
		var wg sync.WaitGroup
		for range conns {
			c := r.dial()
			wg.Go(func() {
				for range rounds {
					for range depth {
						c.send(cmd("INCR", "hot"))
					}
					for range depth {
						if line, err := c.r.ReadString('\n'); err != nil || line[0] != ':' {
							t.Errorf("got %q, %v", line, err)
						}
					}
				}
			})
		}
		wg.Wait()
		const total = conns * rounds * depth
		r.stop()
		cache.mu.Lock()
		defer cache.mu.Unlock()
		if got := cache.m["hot"]; got != total {
			t.Errorf("the sum is %d, want %d", got, total)
		}
		st := r.s.Stats()
		if st.Ops != total || st.Accepted != conns || st.BytesIn != total*uint64(len(cmd("INCR", "hot"))) ||
			st.BytesOut < 4*total || st.Turns == 0 || st.Turns > total || st.Batches > st.Turns {
			t.Errorf("stats are %+v after %d operations on %d connections", st, total, conns)
		}
	})
}

// A shard that does not answer holds up only the connections that used it,
// also when their operations went out in one batch with others'.
func TestStalledShard(t *testing.T) {
	onBoth(t, func(t *testing.T, portable bool) {
		cache := &gateCache{}
		r := start(t, Options{Loops: 1, Portable: portable}, maxPace, cache)
		stuck, mixed, free := r.dial(), r.dial(), r.dial()
		stuck.send(cmd("INCR", "s1"))
		mixed.send(cmd("INCR", "a"), cmd("INCR", "s1"), cmd("INCR", "a"))
		free.send(cmd("INCR", "b"))
		free.want(num(1))
		eventually(t, "both to be held", func() bool { return cache.heldOps() == 2 })
		for i := range 200 {
			free.send(cmd("INCR", "b"), cmd("INCR", "b"))
			free.want(num(2*i+2) + num(2*i+3))
		}
		cache.open()
		stuckGot, err := stuck.r.ReadString('\n')
		if err != nil || stuckGot != num(1) && stuckGot != num(2) {
			t.Errorf("got %q, %v", stuckGot, err)
		}
		mixed.want(num(1) + num(3-int(stuckGot[1]-'0')) + num(2))
	})
}

// A batch hands every connection its own replies, whatever order the parts
// and the positions in them come in, and never before all of them are there.
func TestPartsInAnyOrder(t *testing.T) {
	onBoth(t, func(t *testing.T, portable bool) {
		cache := &scatterCache{}
		r := start(t, Options{Loops: 1, Portable: portable}, maxPace, cache)
		var wg sync.WaitGroup
		for i := range 20 {
			c := r.dial()
			wg.Go(func() {
				for j := range 50 {
					var want strings.Builder
					var in []byte
					for k := range 1 + (i+j)%7 {
						key := fmt.Sprintf("%d.%d.%d", i, j, k)
						in = append(in, cmd("GET", key)...)
						want.WriteString(bulk(key))
					}
					c.send(in)
					c.want(want.String())
				}
			})
		}
		wg.Wait()
	})
}

// scatterCache tells of every operation by itself or in pairs, shuffled.
type scatterCache struct {
	noScan
	table
}

func (c *scatterCache) Submit(b *felix.Batch) {
	order := make([]int32, len(b.Ops))
	for i, k := range rand.Perm(len(order)) {
		order[i] = int32(k)
	}
	go func() {
		for len(order) > 0 {
			n := min(len(order), 1+rand.IntN(2))
			c.eval(b, order[:n])
			b.Done.OpsDone(b, order[:n])
			order = order[n:]
		}
	}()
}

// A client that does not read is not read from either, costs a bounded amount,
// keeps nobody waiting, and has every answer when it reads at last.
func TestSlowReader(t *testing.T) {
	onBoth(t, func(t *testing.T, portable bool) {
		r := start(t, Options{Loops: 1, Portable: portable, MaxPipelineBytes: 16 << 10}, maxPace, &inlineCache{})
		slow, other := r.dial(), r.dial()
		const n, size = 1200, 32 << 10
		one := cmd("FILL", fmt.Sprint(size))
		go func() {
			for range n {
				slow.send(one)
			}
		}()
		eventually(t, "the first answers", func() bool { return r.s.Stats().BytesOut > 0 })
		for i := range 100 {
			other.send(cmd("INCR", "k"))
			other.want(num(i + 1))
		}
		if st := r.s.Stats(); st.BytesIn > 30<<10 {
			t.Errorf("%d bytes were read from a client that reads no answers", st.BytesIn)
		}
		text := bulk(strings.Repeat("x", size))
		for range n {
			slow.want(text)
			if t.Failed() {
				return
			}
		}
		slow.send(cmd("INCR", "k"))
		slow.want(num(101))
	})
}

// Nor is what a client that does not read has sent worked off turn by turn: it
// costs the answers of one turn.
func TestSlowReaderOfManyTurns(t *testing.T) {
	onBoth(t, func(t *testing.T, portable bool) {
		r := start(t, Options{Loops: 1, Portable: portable}, maxPace, &inlineCache{})
		slow, other := r.dial(), r.dial()
		const n, size = 40, 500_000 // far more than the kernel buffers
		for range n {
			slow.send(cmd("SLOW", "0"), cmd("FILL", fmt.Sprint(size)))
		}
		eventually(t, "the first answers", func() bool { return r.s.Stats().BytesOut > size })
		const rounds = 500
		for i := range rounds {
			other.send(cmd("INCR", "k"))
			other.want(num(i + 1))
		}
		if turns := r.s.Stats().Turns - rounds; turns >= 2*n-2 {
			t.Errorf("%d turns of a client that reads no answers", turns)
		}
		text := "+SLEPT\r\n" + bulk(strings.Repeat("x", size))
		for range n {
			slow.want(text)
		}
	})
}

// A request larger than the buffer and than the pipeline's bound is read
// whole; one beyond any legal size ends the connection.
func TestBigRequests(t *testing.T) {
	onBoth(t, func(t *testing.T, portable bool) {
		r := start(t, Options{Portable: portable, MaxPipelineBytes: 64 << 10, MaxRequestBytes: 1 << 20}, maxPace, &inlineCache{})
		c := r.dial()
		for _, size := range []int{1000, 4000, 4096, 5000, 65_500, 65_536, 300_000, 1<<20 - 100} {
			key := strings.Repeat("k", size)
			c.send(cmd("PING"), cmd("GET", key), cmd("PING"))
			c.want("+PONG\r\n" + bulk(key) + "+PONG\r\n")
		}
		bad := r.dial()
		_, _ = bad.Write([]byte("*2\r\n$3\r\nGET\r\n$9000000\r\n")) // announced, never allocated
		for range 200 {
			if _, err := bad.Write(make([]byte, 64<<10)); err != nil {
				break
			}
		}
		one := make([]byte, 1)
		if n, err := bad.Read(one); err == nil {
			t.Errorf("read %d bytes from a connection that sent too much", n)
		}
		c.send(cmd("PING"))
		c.want("+PONG\r\n")
	})
}

// A client that shuts its side after sending has all its answers, then the
// end; half a request at the end is dropped.
func TestHalfClose(t *testing.T) {
	onBoth(t, func(t *testing.T, portable bool) {
		r := start(t, Options{Portable: portable}, maxPace, &asyncCache{})
		for range 50 {
			c := r.dial()
			var in []byte
			for range 50 {
				in = append(in, cmd("GET", "a")...)
			}
			c.send(in, cmd("SLOW", "1"), cmd("GET", "b"), cmd("FILL", "300000"), []byte("*2\r\n$3\r\nGET"))
			_ = c.CloseWrite()
			c.want(strings.Repeat(bulk("a"), 50) + "+SLEPT\r\n" + bulk("b") + bulk(strings.Repeat("x", 300000)))
			c.wantEnd()
		}
	})
}

// The Close flag ends the connection after its answers, without a reset even
// if more input comes, and the session is closed.
func TestQuit(t *testing.T) {
	onBoth(t, func(t *testing.T, portable bool) {
		r := start(t, Options{Portable: portable}, maxPace, &asyncCache{})
		for range 20 {
			c := r.dial()
			c.send(cmd("GET", "a"), cmd("QUIT"), cmd("GET", "b"), make([]byte, 100_000))
			c.want(bulk("a") + "+OK\r\n")
			c.wantEnd()
			_ = c.Close()
		}
		busy := r.dial()
		busy.send(cmd("QUIT"))
		for range 20 {
			busy.send(make([]byte, 64<<10)) // would fail after a reset
		}
		busy.want("+OK\r\n")
		busy.wantEnd()
		_ = busy.Close()
		bad := r.dial()
		bad.send(cmd("GET", "a"), []byte("hello\r\n"))
		bad.want(bulk("a") + "-ERR protocol error\r\n")
		bad.wantEnd()
		_ = bad.Close()
		eventually(t, "the connections to be gone", func() bool { return r.s.Stats().Connections == 0 })
		if got := r.h.closed.Load(); got != 22 {
			t.Errorf("%d sessions were closed, want 22", got)
		}
	})
}

// A connection that closes without waiting for its client is given up in the
// end even if the client does nothing.
func TestLingerEnds(t *testing.T) {
	onBoth(t, func(t *testing.T, portable bool) {
		r := start(t, Options{Portable: portable}, maxPace, &inlineCache{})
		c := r.dial()
		c.send(cmd("QUIT"))
		c.want("+OK\r\n")
		eventually(t, "the connection to be given up", func() bool { return r.s.Stats().Connections == 0 })
	})
}

// When a client is gone in the middle of a turn, its input stays as it is
// until its operations are done, and its session is closed only then.
func TestKillMidTurn(t *testing.T) {
	onBoth(t, func(t *testing.T, portable bool) {
		cache := &gateCache{}
		r := start(t, Options{Loops: 1, Portable: portable}, maxPace, cache)
		const n = 20
		for i := range n {
			c := r.dial()
			c.send(cmd("INCR", fmt.Sprintf("s%02d", i)))
			eventually(t, "the operation", func() bool { return cache.heldOps() == i+1 })
			c.reset()
		}
		if !portable { // which does not look while a turn is under way
			eventually(t, "the sockets to be closed", func() bool { return r.s.Stats().Connections == 0 })
		}
		other := r.dial()
		for range 200 {
			other.send(cmd("INCR", "other"), cmd("GET", strings.Repeat("z", 100)))
			_, _ = other.r.ReadString('\n')
			other.want(bulk(strings.Repeat("z", 100)))
		}
		if got := r.h.closed.Load(); got != 0 {
			t.Errorf("%d sessions were closed while their operations were under way", got)
		}
		cache.gate.Lock()
		for i, k := range cache.keys {
			if want := fmt.Sprintf("s%02d", i); string(k) != want {
				t.Errorf("the key of a dead connection's operation became %q, want %q", k, want)
			}
		}
		cache.gate.Unlock()
		cache.open()
		eventually(t, "the sessions to be closed", func() bool { return r.h.closed.Load() == n })
	})
}

// One connection too many is told so; when one has gone there is room again.
func TestMaxConnections(t *testing.T) {
	onBoth(t, func(t *testing.T, portable bool) {
		r := start(t, Options{Portable: portable, MaxConnections: 3}, maxPace, &inlineCache{})
		var in []*client
		for range 3 {
			c := r.dial()
			c.send(cmd("PING"))
			c.want("+PONG\r\n")
			in = append(in, c)
		}
		for range 5 {
			c := r.dial()
			c.want("-ERR max number of clients reached\r\n")
			c.wantEnd()
			_ = c.Close()
		}
		if st := r.s.Stats(); st.Refused != 5 || st.Accepted != 3 || st.Connections != 3 {
			t.Errorf("stats are %+v", st)
		}
		_ = in[1].Close()
		eventually(t, "room", func() bool { return r.s.Stats().Connections == 2 })
		c := r.dial()
		c.send(cmd("PING"))
		c.want("+PONG\r\n")
	})
}

// Slow work keeps nobody waiting but its own connection, and no more than
// MaxSlow of it runs.
func TestSlowWork(t *testing.T) {
	onBoth(t, func(t *testing.T, portable bool) {
		r := start(t, Options{Loops: 1, Portable: portable, MaxSlow: 2}, maxPace, &inlineCache{})
		var slow []*client
		for range 6 {
			c := r.dial()
			c.send(cmd("GET", "a"), cmd("SLOW", "20"), cmd("GET", "b"))
			slow = append(slow, c)
		}
		eventually(t, "slow work", func() bool { return r.h.slow.Load() == 2 })
		other := r.dial()
		other.send(cmd("PING"))
		other.want("+PONG\r\n")
		for _, c := range slow {
			c.want(bulk("a") + "+SLEPT\r\n" + bulk("b"))
		}
		if got := r.h.slowHi.Load(); got != 2 {
			t.Errorf("%d slow works ran at the same time, want 2", got)
		}
	})
}

// An idle connection is closed; one that waits for an operation is not idle.
func TestIdleTimeout(t *testing.T) {
	onBoth(t, func(t *testing.T, portable bool) {
		cache := &gateCache{}
		r := start(t, Options{Portable: portable, IdleTimeout: 100 * time.Millisecond}, maxPace, cache)
		waits, idle := r.dial(), r.dial()
		waits.send(cmd("INCR", "s"))
		idle.send(cmd("PING"))
		idle.want("+PONG\r\n")
		began := time.Now()
		idle.wantEnd()
		if d := time.Since(began); d < 50*time.Millisecond {
			t.Errorf("an idle connection was closed after %v", d)
		}
		time.Sleep(200 * time.Millisecond) // time passes: twice the timeout
		cache.open()
		waits.want(num(1))
		waits.wantEnd()
	})
}

// Any listener can be served: one that is no socket by the portable driver.
func TestListeners(t *testing.T) {
	h := &miniHandler{caches: []felix.Cache{&asyncCache{}}}
	sock := filepath.Join(t.TempDir(), "s")
	s, err := Listen("unix", sock, Options{Handler: h})
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve() }()
	nc, err := net.Dial("unix", sock)
	if err != nil {
		t.Fatal(err)
	}
	c := &client{t: t, r: newReader(nc)}
	_, _ = nc.Write(append(cmd("GET", "a"), cmd("QUIT")...))
	c.want(bulk("a") + "+OK\r\n")
	c.wantEnd()
	_ = nc.Close()
	if err := s.Shutdown(context.Background()); err != nil {
		t.Error(err)
	}
	if err := <-served; err != nil {
		t.Error(err)
	}

	if _, err := Listen("tcp", "127.0.0.1:0", Options{}); err == nil {
		t.Error("a server without a handler was made")
	}
	if _, err := Listen("tcp", "256.0.0.1:0", Options{Handler: h}); err == nil {
		t.Error("a server on no address was made")
	}
	broken := &brokenListener{}
	s, err = New(broken, Options{Handler: h})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Serve(); err == nil || !strings.Contains(err.Error(), errTest.Error()) {
		t.Errorf("Serve on a broken listener answered %v", err)
	}
	if err := s.Shutdown(context.Background()); err != nil {
		t.Error(err)
	}
}

type brokenListener struct{}

func (*brokenListener) Accept() (net.Conn, error) { return nil, errTest }
func (*brokenListener) Close() error              { return nil }
func (*brokenListener) Addr() net.Addr            { return &net.TCPAddr{} }
