package e2e

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/felix-go/felix/client"
	"github.com/felix-go/felix/internal/daemon"
)

// sparse is a broker whose lists have pages that are short or empty and not the
// last: between checkpoints deleted keys, expired ones and plain values use up
// the places of a page. It answers what each prefix still has, in order.
func sparse(t *testing.T) (broker *daemon.Daemon, left map[string][]string) {
	t.Helper()
	d := startWith(t, func(c *daemon.Config) { c.Checkpoint = time.Hour })
	var commands [][]string
	for i := range 1_500 {
		// One shard by its tag; all shards; a life so short that it is over.
		commands = append(commands, []string{"SET", fmt.Sprintf("{t}%04d", i), "1"}, []string{"DEL", fmt.Sprintf("{t}%04d", i)})
		commands = append(commands, []string{"SET", fmt.Sprintf("all%04d", i), "1"}, []string{"DEL", fmt.Sprintf("all%04d", i)})
		commands = append(commands, []string{"SET", fmt.Sprintf("{s}%04d", i), "1", "PX", "1"})
	}
	commands = append(commands, []string{"MSET", "{v}a", "hello", "{v}b", "5"})
	for _, prefix := range []string{"{t}", "{s}", "all"} {
		commands = append(commands, []string{"SET", prefix + "0700 still", "2"}, []string{"SET", prefix + "zzz", "3"})
	}
	redis(t, d.RESPAddr(), commands)
	return d, map[string][]string{
		"{t}": {"{t}0700 still", "{t}zzz"}, "{s}": {"{s}0700 still", "{s}zzz"}, "all": {"all0700 still", "allzzz"}, "{v}": {"{v}b"},
	}
}

// redis sends commands, each of which must be answered with a line that is no
// error.
func redis(t *testing.T, address string, commands [][]string) {
	t.Helper()
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var all bytes.Buffer
	for _, words := range commands {
		fmt.Fprintf(&all, "*%d\r\n", len(words))
		for _, w := range words {
			fmt.Fprintf(&all, "$%d\r\n%s\r\n", len(w), w)
		}
	}
	sent := make(chan error, 1)
	go func() {
		_, err := c.Write(all.Bytes())
		sent <- err
	}()
	in := bufio.NewReader(c)
	for _, words := range commands {
		if line, err := in.ReadString('\n'); err != nil || line[0] == '-' {
			t.Fatalf("%q: %q, %v", words, line, err)
		}
	}
	if err := <-sent; err != nil {
		t.Fatal(err)
	}
}

// TestSparseLists: a list is whole, however few of the keys that its pages look
// at are still there.
func TestSparseLists(t *testing.T) {
	d, left := sparse(t)
	t.Run("HTTP", func(t *testing.T) {
		empty := 0
		for prefix, want := range left {
			for _, size := range []int{1, 7, 1_000, 0} {
				if size == 1 && prefix != "{v}" {
					continue // thousands of requests that show nothing more
				}
				got, none := listHTTP(t, d.HTTPAddr(), prefix, size)
				if empty += none; !slices.Equal(got, want) {
					t.Errorf("prefix %s by %d: %q, want %q", prefix, size, got, want)
				}
			}
		}
		if empty == 0 {
			t.Error("no page was empty: the test shows nothing")
		}
	})
	t.Run("client", func(t *testing.T) {
		c, err := client.New(client.Options{Brokers: []string{d.HTTPAddr()}})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		for prefix, want := range left {
			var got []string
			for counter, err := range c.CounterList(t.Context(), "", "", "default", prefix, 100) {
				if err != nil {
					t.Fatal(err)
				}
				got = append(got, counter.Key)
			}
			if !slices.Equal(got, want) {
				t.Errorf("prefix %s: %q, want %q", prefix, got, want)
			}
		}
	})
	t.Run("felixctl", func(t *testing.T) {
		for prefix, want := range left {
			got, more := listFelixctl(t, d.HTTPAddr(), prefix)
			if !slices.Equal(got, want) || more {
				t.Errorf("prefix %s: %q, more %v, want %q", prefix, got, more, want)
			}
			got, more = listFelixctl(t, d.HTTPAddr(), prefix, "--limit", "1")
			if !slices.Equal(got, want[:1]) || more != (len(want) > 1) {
				t.Errorf("the first of prefix %s: %q, more %v, want %q", prefix, got, more, want[:1])
			}
		}
	})
}

// listHTTP lists as a program does that follows the tokens. It also answers how
// many pages were empty and not the last.
func listHTTP(t *testing.T, address, prefix string, pageSize int) (keys []string, empty int) {
	t.Helper()
	for token := ""; ; {
		body, err := json.Marshal(map[string]any{"cache": "default", "prefix": prefix, "pageSize": pageSize, "pageToken": token})
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.Post("http://"+address+"/felix.v1.CounterService/List", "application/json", bytes.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		answer, err := io.ReadAll(resp.Body)
		if err := errors.Join(err, resp.Body.Close()); err != nil || resp.StatusCode != http.StatusOK {
			t.Fatalf("%d %s, %v", resp.StatusCode, answer, err)
		}
		var page struct {
			Counters      []struct{ Key string }
			NextPageToken string
		}
		if err := json.Unmarshal(answer, &page); err != nil {
			t.Fatalf("%s: %v", answer, err)
		}
		for _, c := range page.Counters {
			keys = append(keys, c.Key)
		}
		if token = page.NextPageToken; token == "" {
			return keys, empty
		}
		if len(page.Counters) == 0 {
			empty++
		}
	}
}

func listFelixctl(t *testing.T, address, prefix string, flags ...string) (keys []string, more bool) {
	t.Helper()
	args := append([]string{"counter", "ls", "default", prefix, "--json", "--brokers", address}, flags...)
	out, err := exec.CommandContext(t.Context(), "felixctl", args...).Output()
	if err != nil {
		t.Fatalf("felixctl %s: %v", strings.Join(args, " "), err)
	}
	var list struct {
		Counters []struct{ Key string }
		More     bool
	}
	if err := json.Unmarshal(out, &list); err != nil {
		t.Fatalf("%s: %v", out, err)
	}
	for _, c := range list.Counters {
		keys = append(keys, c.Key)
	}
	return keys, list.More
}
