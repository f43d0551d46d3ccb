package redisapi_test

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"weak"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/redisapi"
)

// scanReply takes a SCAN's reply apart.
func scanReply(t *testing.T, reply string) (cursor string, keys []string) {
	t.Helper()
	lines := strings.Split(reply, "\r\n")
	if len(lines) < 4 || lines[0] != "*2" {
		t.Fatalf("SCAN: %q", reply)
	}
	for i := 5; i < len(lines); i += 2 {
		keys = append(keys, lines[i])
	}
	return lines[2], keys
}

func keyNames(n int) []string {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = fmt.Sprintf("key:%06d", i)
	}
	return keys
}

func TestSmallScansShareReads(t *testing.T) {
	f := newFake()
	f.cache.keys = keyNames(2500)
	k := newTalk(t, redisapi.New(f, redisapi.Options{}))
	seen, calls := 0, 0
	for cursor := "0"; ; calls++ {
		var keys []string
		cursor, keys = scanReply(t, k.say("SCAN "+cursor))
		for _, key := range keys {
			if key != f.cache.keys[seen] {
				t.Fatalf("key %d is %s", seen, key)
			}
			seen++
		}
		if cursor == "0" {
			break
		}
		if len(cursor) > 16 {
			t.Fatalf("cursor %s does not fit in a double", cursor)
		}
	}
	if seen != 2500 || f.cache.scanned != 3 {
		t.Errorf("%d keys in %d calls by %d reads, want 2500 keys by 3 reads", seen, calls, f.cache.scanned)
	}
}

// TestScansGoOnBehindEmptyPages: a page without keys, or with few, says nothing
// of what is behind it.
func TestScansGoOnBehindEmptyPages(t *testing.T) {
	f := newFake()
	f.cache.keys = keyNames(45_000)
	f.cache.gone = map[string]bool{}
	var want []string
	for i, key := range f.cache.keys {
		if i == 5 || i == 6 || i == 31_000 || i == len(f.cache.keys)-1 {
			want = append(want, key)
		} else {
			f.cache.gone[key] = true
		}
	}
	k := newTalk(t, redisapi.New(f, redisapi.Options{}))
	if _, keys := scanReply(t, "*2\r\n$1\r\n0\r\n"+k.say("KEYS *")); fmt.Sprint(keys) != fmt.Sprint(want) {
		t.Errorf("KEYS found %v, want %v", keys, want)
	}
	for _, count := range []int{1, 2, 10, 1000, 10_000} {
		var found []string
		empty := 0
		for cursor := "0"; ; {
			var keys []string
			before := f.cache.scanned
			cursor, keys = scanReply(t, k.say(fmt.Sprintf("SCAN %s COUNT %d", cursor, count)))
			if reads := f.cache.scanned - before; reads > 10 || len(keys) > count {
				t.Errorf("COUNT %d: %d keys by %d reads", count, len(keys), reads)
			}
			if found = append(found, keys...); len(keys) == 0 {
				empty++
			}
			if cursor == "0" || len(found) > len(want) {
				break
			}
			// A cursor that is used again goes on at the same place.
			if again, _ := scanReply(t, k.say(fmt.Sprintf("SCAN %s COUNT 10000", cursor))); again == cursor {
				t.Error("a cursor was given twice")
			}
		}
		if fmt.Sprint(found) != fmt.Sprint(want) {
			t.Errorf("SCAN by %d found %v, want %v", count, found, want)
		}
		if count < 1000 && empty == 0 {
			t.Errorf("SCAN by %d: no answer was empty, the bound on reads is not seen", count)
		}
	}
}

func TestCursorCanBeUsedAgain(t *testing.T) {
	f := newFake()
	f.cache.keys = keyNames(100)
	h := redisapi.New(f, redisapi.Options{})
	k, other := newTalk(t, h), newTalk(t, h)
	cursor, _ := scanReply(t, k.say("SCAN 0 COUNT 10"))
	for range 3 {
		if _, keys := scanReply(t, k.say("SCAN "+cursor+" COUNT 3")); fmt.Sprint(keys) != fmt.Sprint(f.cache.keys[10:13]) {
			t.Errorf("the same cursor again: %v", keys)
		}
	}
	if _, keys := scanReply(t, other.say("SCAN "+cursor+" COUNT 2")); fmt.Sprint(keys) != fmt.Sprint(f.cache.keys[10:12]) {
		t.Errorf("the cursor on another connection: %v", keys)
	}
	// Another MATCH from the middle on.
	if _, keys := scanReply(t, k.say("SCAN "+cursor+" COUNT 3 MATCH key:00002*")); fmt.Sprint(keys) != fmt.Sprint(f.cache.keys[20:23]) {
		t.Errorf("another MATCH: %v", keys)
	}
}

func TestCursorsAreBounded(t *testing.T) {
	f := newFake()
	f.cache.keys = keyNames(12)
	k := newTalk(t, redisapi.New(f, redisapi.Options{}))
	first, _ := scanReply(t, k.say("SCAN 0 COUNT 5"))
	second, _ := scanReply(t, k.say("SCAN 0 COUNT 5"))
	for range 16_383 {
		k.say("SCAN 0 COUNT 5")
	}
	if got := k.say("SCAN " + first); !strings.HasPrefix(got, "-ERR unknown cursor") {
		t.Errorf("the oldest of 16,385 cursors: %q", got)
	}
	if got := k.say("SCAN " + second); !strings.HasPrefix(got, "*2") {
		t.Errorf("the second oldest cursor: %q", got)
	}
}

func TestScanReadsOnlyThePrefix(t *testing.T) {
	f := newFake()
	f.cache.keys = append([]string{"a"}, keyNames(3000)...)
	f.cache.keys = append(f.cache.keys, "z*1", "z*2", "zz")
	k := newTalk(t, redisapi.New(f, redisapi.Options{}))
	k.expect("*2\r\n$3\r\nz*1\r\n$3\r\nz*2\r\n", `KEYS "z\\*?"`)
	if f.cache.scanned != 1 {
		t.Errorf("KEYS of a narrow pattern read %d pages", f.cache.scanned)
	}
	k.expect("*2\r\n$1\r\n0\r\n*1\r\n$1\r\na\r\n", "SCAN 0 MATCH a*")
	f.cache.scanned = 0
	if got := k.say("KEYS *"); !strings.HasPrefix(got, "*3004\r\n") || f.cache.scanned != 4 {
		t.Errorf("KEYS *: %.20q by %d reads", got, f.cache.scanned)
	}
}

// TestScannedKeysAreLetGo: a cursor holds what is ahead of it, no more.
func TestScannedKeysAreLetGo(t *testing.T) {
	f := newFake()
	f.cache.keys = keyNames(500)
	var first weak.Pointer[byte]
	f.cache.onPage = func(page *felix.ScanPage) { first = weak.Make(&page.Items[0].Key[0]) }
	h := redisapi.New(f, redisapi.Options{})
	k := newTalk(t, h)
	cursor, _ := scanReply(t, k.say("SCAN 0 COUNT 10"))
	runtime.GC()
	if first.Value() != nil {
		t.Error("a key that was given out is still in memory")
	}
	if _, keys := scanReply(t, k.say("SCAN "+cursor)); len(keys) != 10 || f.cache.scanned != 1 {
		t.Errorf("%d keys by %d reads", len(keys), f.cache.scanned)
	}
}
