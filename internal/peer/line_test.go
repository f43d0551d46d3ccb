package peer

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"testing"
)

// A message's prefix and what follows are read together, and nothing is held
// back: neither a message without contents, nor the last bytes of a long one,
// even where they look like a prefix.
func TestWholeMessages(t *testing.T) {
	prefix := func(n int) []byte { return binary.BigEndian.AppendUint32([]byte{0}, uint32(n)) }
	long := bytes.Repeat([]byte{9}, 95+5)
	for name, v := range map[string]struct {
		writes [][]byte
		reads  []int
	}{
		"short":                {[][]byte{prefix(3), []byte("abc"), prefix(2), []byte("de")}, []int{8, 7}},
		"empty":                {[][]byte{prefix(0), prefix(1), []byte("x")}, []int{5, 6}},
		"five left":            {[][]byte{prefix(100), long}, []int{100, 5}},
		"as long as a read":    {[][]byte{prefix(95), long[5:]}, []int{100}},
		"written in one":       {[][]byte{append(prefix(3), "abc"...), []byte("12345"), []byte("y")}, []int{8, 5, 1}},
		"more than it says":    {[][]byte{prefix(1), []byte("ab"), []byte("12345"), []byte("y")}, []int{7, 5, 1}},
		"what follows is torn": {[][]byte{prefix(9), []byte("abcd"), []byte("12345"), prefix(1), []byte("z")}, []int{9, 5, 6}},
	} {
		in, out := io.Pipe()
		b := &wholeBody{ReadCloser: in}
		var want []byte
		for _, w := range v.writes {
			want = append(want, w...)
		}
		go func() {
			for _, w := range v.writes {
				_, _ = out.Write(w) // a pipe that nobody closes
			}
			_ = out.Close()
		}()
		var got []byte
		p := make([]byte, 100)
		for i, size := range v.reads {
			n, err := b.Read(p)
			if n != size || err != nil {
				t.Errorf("%s: read %d is of %d bytes, want %d, %v", name, i, n, size, err)
			}
			got = append(got, p[:n]...)
		}
		if _, err := b.Read(p); !errors.Is(err, io.EOF) {
			t.Errorf("%s: at the end %v", name, err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s: read %q, want %q", name, got, want)
		}
	}
}
