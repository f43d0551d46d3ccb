package redisapi

import (
	"bytes"
	"testing"

	"github.com/felix-go/felix"
)

func TestCursorBytesAreBounded(t *testing.T) {
	c := newCursors()
	key := bytes.Repeat([]byte("k"), felix.MaxKeyBytes)
	var ids []uint64
	for range 3000 {
		ids = append(ids, c.put(position{after: key, page: [][]byte{key}}))
	}
	total := 0
	for e := c.byUse.Front(); e != nil; e = e.Next() {
		total += e.Value.(*cursor).bytes()
	}
	if c.bytes != total || total > maxCursorBytes {
		t.Errorf("%d bytes counted, %d held, at most %d allowed", c.bytes, total, maxCursorBytes)
	}
	if _, ok := c.take(ids[0], felix.Scope{}); ok {
		t.Error("the oldest cursor is still there")
	}
	last := ids[len(ids)-1]
	if p, ok := c.take(last, felix.Scope{}); !ok || len(p.page) != 1 {
		t.Error("the newest cursor is not there with its page")
	}
	if p, ok := c.take(last, felix.Scope{}); !ok || len(p.page) != 0 || !bytes.Equal(p.after, key) {
		t.Error("the page was not taken, or the cursor with it")
	}
	total = 0
	for e := c.byUse.Front(); e != nil; e = e.Next() {
		total += e.Value.(*cursor).bytes()
	}
	if c.bytes != total {
		t.Errorf("after taking: %d bytes counted, %d held", c.bytes, total)
	}
}

func TestLiteralPrefix(t *testing.T) {
	for pattern, want := range map[string]string{
		"": "", "*": "", "abc": "abc", "abc*": "abc", "a?c": "a", "a[bc]": "a", `a\*b*`: "a*b", `a\`: `a\`, `\[x`: "[x",
	} {
		if got := literalPrefix([]byte(pattern)); string(got) != want {
			t.Errorf("%q: %q, want %q", pattern, got, want)
		}
	}
}

// FuzzGlob: what a pattern matches begins with its literal prefix, and no
// pattern takes long or fails.
func FuzzGlob(f *testing.F) {
	for _, seed := range []string{"*a*b*c*d*e*", "[a-", "[^", `\`, "a[b-c]*?", "[]", "**"} {
		f.Add([]byte(seed), []byte("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaabcd"))
	}
	f.Fuzz(func(t *testing.T, pattern, s []byte) {
		if glob(pattern, s, false) && !bytes.HasPrefix(s, literalPrefix(pattern)) {
			t.Errorf("%q matches %q, whose prefix is not %q", pattern, s, literalPrefix(pattern))
		}
		glob(pattern, s, true)
	})
}

func TestGlobIsPolynomial(t *testing.T) {
	pattern := bytes.Repeat([]byte("*a"), 50)
	pattern = append(pattern, 'b')
	if glob(pattern, bytes.Repeat([]byte("a"), 2000), false) {
		t.Error("a string without b matched")
	}
}

// TestTable: names are found whatever their case, and no other words are.
func TestTable(t *testing.T) {
	table := newTable()
	for _, cmd := range table.commands {
		for _, name := range [][]byte{[]byte(cmd.name), bytes.ToUpper([]byte(cmd.name))} {
			if got := table.find(name); got != cmd {
				t.Errorf("%s is not found", name)
			}
		}
		for i := range cmd.name {
			for c := range 256 {
				name := []byte(cmd.name)
				name[i] = byte(c)
				if got := table.find(name); (got == cmd) != equalFold(name, cmd.name) {
					t.Errorf("%q is found as %s", name, cmd.name)
				}
			}
		}
		if cmd.summary == "" || cmd.parse == nil || cmd.group == "" {
			t.Errorf("%s: the row is not complete", cmd.name)
		}
		if makesOps := cmd.keys.first > 0; makesOps != cmd.needsCache {
			t.Errorf("%s: keys and needsCache do not agree", cmd.name)
		}
		for _, sub := range cmd.subs {
			if table.findFull([]byte(sub.name)) != sub || sub.parse == nil || sub.summary == "" {
				t.Errorf("%s: the row is not complete, or not found", sub.name)
			}
		}
	}
	for _, name := range []string{"", "ge", "gett", "\x07et", "nosuch", "averyverylongcommandname"} {
		if got := table.find([]byte(name)); got != nil {
			t.Errorf("%q is found as %s", name, got.name)
		}
	}
}
