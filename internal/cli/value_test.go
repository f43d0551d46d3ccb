package cli

import (
	"bytes"
	"context"
	"io"
	"strings"
	"testing"

	"github.com/felix-go/felix"
)

// TestShowValue: a terminal is sent nothing that it acts on but lines and tabs, a
// pipe all as it is. Broken: printable in showValue.
func TestShowValue(t *testing.T) {
	for value, safe := range map[string]string{
		"":                  "\n",
		"one":               "one\n",
		"a\n\tb\n":          "a\n\tb\n",
		"a\n\nb":            "a\n\nb\n",
		"\x1b]0;owned\a\r":  `\x1b]0;owned\a\r` + "\n",
		"\xff\x00\n":        `\xff\x00` + "\n",
		"back\\slash \"q\"": `back\slash "q"` + "\n",
		"zählung\u009b":     "zählung\\u009b\n",
	} {
		var raw, shown bytes.Buffer
		showValue(&raw, []byte(value), false)
		showValue(&shown, []byte(value), true)
		if raw.String() != value {
			t.Errorf("%q goes into a pipe as %q", value, raw.String())
		}
		if shown.String() != safe {
			t.Errorf("%q is shown as %q, want %q", value, shown.String(), safe)
		}
	}
}

func TestReadAll(t *testing.T) {
	if got, err := readAll(t.Context(), strings.NewReader("12345"), 5); string(got) != "12345" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	if _, err := readAll(t.Context(), strings.NewReader("123456"), 5); felix.AsError(err).Code != felix.InvalidArgument {
		t.Errorf("too much: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	silent, w := io.Pipe()
	defer w.Close()
	if _, err := readAll(ctx, silent, 5); felix.AsError(err).Code != felix.Unavailable {
		t.Errorf("interrupted: %v", err)
	}
}
