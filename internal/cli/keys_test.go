package cli

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"
)

// FuzzKeys: what is shown is one safe word, and names the same key when it is
// given back.
func FuzzKeys(f *testing.F) {
	for _, key := range []string{"a", "user:42", `"q"`, `back\slash`, "\x1b[2J", "\xff\x00", "two words", "\u009b", "\u202e", "ä", "\ufffd", "'", "`", "\u00a0", "\U000e0001"} {
		f.Add(key)
	}
	f.Fuzz(func(t *testing.T, key string) {
		for _, encoding := range []keyEncoding{textKeys, escapedKeys, hexKeys, base64Keys} {
			shown := encoding.show(key)
			if printable(shown) != shown || strings.ContainsAny(shown, "\n\t") {
				t.Fatalf("%s: %q is shown as %q, which is not safe", encoding, key, shown)
			}
			back := encoding
			if encoding == textKeys && strings.HasPrefix(shown, `"`) {
				back = escapedKeys
			}
			got, err := back.decode(shown)
			if err != nil || got != key {
				t.Fatalf("%s: %q is shown as %q, which reads as %q, %v", encoding, key, shown, got, err)
			}
		}
		if utf8.ValidString(key) {
			line, err := marshal(map[string]string{"key": key})
			if err != nil || printable(string(line)) != string(line) {
				t.Fatalf("the JSON of %q is %q, %v", key, line, err)
			}
			var back map[string]string
			if err := json.Unmarshal(line, &back); err != nil || back["key"] != key {
				t.Fatalf("the JSON of %q reads as %q, %v", key, back["key"], err)
			}
		}
	})
}

// FuzzEscapedKeys: any argument is a key or a clear error.
func FuzzEscapedKeys(f *testing.F) {
	for _, arg := range []string{``, `"`, `""`, `\x`, `\x1b`, `"a"b`, `a"b`, "a\nb", `\400`, `\u12`, `"\"`, "a\xff", `a\xff`} {
		f.Add(arg)
	}
	f.Fuzz(func(t *testing.T, arg string) {
		key, err := escapedKeys.decode(arg)
		if err != nil {
			return
		}
		if !strings.ContainsAny(arg, `\"`) && key != arg {
			t.Fatalf("%q, which has no escapes, reads as %q", arg, key)
		}
		again, err := escapedKeys.decode(escapedKeys.show(key))
		if err != nil || again != key {
			t.Fatalf("%q reads as %q and comes back as %q, %v", arg, key, again, err)
		}
	})
}

func TestNormalize(t *testing.T) {
	root := (&app{env: map[string]string{}}).rootCommand()
	for in, want := range map[string]string{
		"counter add c k -3":                     "counter add c k \x00-3",
		"counter add c k -9223372036854775808":   "counter add c k \x00-9223372036854775808",
		"--json counter --timeout 3s add c -3 k": "counter add c \x00-3 k --json --timeout 3s",
		"counter add --timeout -3 c k":           "counter add c k --timeout -3",
		"counter -yn ns del c k":                 "counter del c k -yn ns",
		"counter -nns add c k":                   "counter add c k -nns",
		"counter add -n=ns c k":                  "counter add c k -n=ns",
		"counter --yes del c k":                  "counter del c k --yes",
		"counter add c -- -3 --json":             "counter add c \x00-3 \x00--json",
		"counter add c - k":                      "counter add c \x00- k",
		"cache --shards 3 create n":              "cache create n --shards 3",
		"cache create n --unknown x":             "cache create n x --unknown",
		"__complete counter add -":               "__complete counter add -",
		"counter ls c --limit":                   "counter ls c --limit",
	} {
		if got := strings.Join(normalize(root, strings.Fields(in)), " "); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}
