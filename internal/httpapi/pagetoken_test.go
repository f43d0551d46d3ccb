package httpapi

import (
	"bytes"
	"errors"
	"testing"

	"github.com/felix-go/felix"
)

// TestPageTokenIsStable: clients keep tokens across releases.
func TestPageTokenIsStable(t *testing.T) {
	const golden = "AS4og3p1c2VyOjQy"
	if got := encodePageToken([]byte("user:"), []byte("user:42")); got != golden {
		t.Errorf("the token is %q, was %q", got, golden)
	}
	if last, err := decodePageToken(golden, []byte("user:")); err != nil || string(last) != "user:42" {
		t.Errorf("the token reads as %q, %v", last, err)
	}
}

func TestWrongPageTokens(t *testing.T) {
	good := encodePageToken([]byte("a"), []byte("ab"))
	for _, c := range []struct{ token, prefix string }{
		{good, ""}, {good, "ab"}, {good, "b"}, {good + "A", "a"}, {good[:len(good)-1], "a"},
		{"B" + good[1:], "a"}, {good + "=", "a"}, {"!", ""}, {" ", ""}, {"AQAAAAA", ""}, {"AQAAAABh", ""},
	} {
		_, err := decodePageToken(c.token, []byte(c.prefix))
		var e *felix.Error
		if !errors.As(err, &e) || e.Code != felix.InvalidArgument {
			t.Errorf("%q with prefix %q: %v", c.token, c.prefix, err)
		}
	}
}

// FuzzPageToken: decoding never panics, and what it accepts is exactly what
// encoding made.
func FuzzPageToken(f *testing.F) {
	f.Add("", []byte(nil))
	f.Add(encodePageToken([]byte("a"), []byte("ab")), []byte("a"))
	f.Add(encodePageToken(nil, []byte{0xff, 0}), []byte(nil))
	f.Fuzz(func(t *testing.T, token string, prefix []byte) {
		if last, err := decodePageToken(token, prefix); err == nil {
			if again := encodePageToken(prefix, last); again != token {
				t.Fatalf("%q was accepted and reads as %q, whose token is %q", token, last, again)
			}
		}
		// And the other way, with the inputs as a key and its prefix.
		key := append(bytes.Clone(prefix), token...)
		if len(key) == 0 || len(key) > felix.MaxKeyBytes {
			return
		}
		last, err := decodePageToken(encodePageToken(prefix, key), prefix)
		if err != nil || !bytes.Equal(last, key) {
			t.Fatalf("key %q with prefix %q came back as %q, %v", key, prefix, last, err)
		}
	})
}
