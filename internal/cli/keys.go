package cli

import (
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/spf13/pflag"

	"github.com/felix-go/felix"
)

// keyEncoding is how keys are given and shown: the value of --key-encoding.
type keyEncoding string

const (
	// textKeys: the argument's bytes are the key. Keys that would not print
	// safely are shown in double quotes, escaped.
	textKeys keyEncoding = "text"
	// escapedKeys: the argument is Go's escaped text, with or without the
	// double quotes. Keys are shown as with textKeys, so that all that is
	// shown can be given back.
	escapedKeys keyEncoding = "escaped"
	hexKeys     keyEncoding = "hex"
	base64Keys  keyEncoding = "base64"
)

// flag defines --key-encoding.
func (k *keyEncoding) flag(flags *pflag.FlagSet) {
	flags.Var(k, "key-encoding", "how keys are given and shown: text, escaped, hex or base64")
}

// String, Set and Type implement pflag.Value.
func (k *keyEncoding) String() string { return string(*k) }

// Type implements pflag.Value.
func (k *keyEncoding) Type() string { return "ENCODING" }

// Set implements pflag.Value.
func (k *keyEncoding) Set(s string) error {
	switch e := keyEncoding(s); e {
	case textKeys, escapedKeys, hexKeys, base64Keys:
		*k = e
		return nil
	}
	return fmt.Errorf("it is text, escaped, hex or base64")
}

// decode reads a key or prefix as the user gives it. The error is
// invalid_argument.
func (k keyEncoding) decode(arg string) (string, error) {
	var key []byte
	var err error
	switch k {
	case escapedKeys:
		return unescapeKey(arg)
	case hexKeys:
		key, err = hex.DecodeString(arg)
	case base64Keys:
		// With or without padding, of either alphabet: what other programs print.
		plain := strings.NewReplacer("-", "+", "_", "/").Replace(strings.TrimRight(arg, "="))
		key, err = base64.RawStdEncoding.Strict().DecodeString(plain)
	default:
		return arg, nil
	}
	if err != nil {
		return "", felix.Errorf(felix.InvalidArgument, "key %s is not %s: %v", strconv.Quote(arg), k, err)
	}
	return string(key), nil
}

func unescapeKey(arg string) (string, error) {
	if !utf8.ValidString(arg) { // Unquote would make another key of it
		return "", felix.Errorf(felix.InvalidArgument,
			`key %s has bytes that are not UTF-8: with escaped keys write such a byte as \xff`, strconv.Quote(arg))
	}
	quoted := arg
	if !strings.HasPrefix(arg, `"`) {
		quoted = `"` + arg + `"`
	}
	key, err := strconv.Unquote(quoted)
	if err != nil {
		return "", felix.Errorf(felix.InvalidArgument,
			`key %s is not escaped text: write \" for a double quote, \\ for a backslash, \n, \t, \x1b for a byte`, strconv.Quote(arg))
	}
	return key, nil
}

// show is the key as a table shows it. It is one word without characters that a
// terminal acts on, and decode of the same encoding reads it again; of textKeys
// too, but for what is in double quotes, which escapedKeys reads.
func (k keyEncoding) show(key string) string {
	switch k {
	case hexKeys:
		return hex.EncodeToString([]byte(key))
	case base64Keys:
		return base64.StdEncoding.EncodeToString([]byte(key))
	}
	quoted := strconv.Quote(key)
	if quoted == `"`+key+`"` && !strings.Contains(key, " ") && key != "" {
		return key
	}
	return quoted
}

// printable is text for one line of a terminal: what does not print is escaped
// as in Go. Unlike a key it is not read again, so quotes and backslashes stay.
func printable(s string) string {
	var b strings.Builder
	for len(s) > 0 {
		r, n := utf8.DecodeRuneInString(s)
		if strconv.IsPrint(r) && !(r == utf8.RuneError && n == 1) {
			b.WriteString(s[:n])
		} else {
			quoted := strconv.Quote(s[:n])
			b.WriteString(quoted[1 : len(quoted)-1])
		}
		s = s[n:]
	}
	return b.String()
}

// escapeJSON escapes what does not print in valid JSON of one line.
func escapeJSON(s string) []byte {
	out := make([]byte, 0, len(s))
	for _, r := range s {
		switch {
		case strconv.IsPrint(r):
			out = utf8.AppendRune(out, r)
		case r < 0x1_0000:
			out = fmt.Appendf(out, `\u%04x`, r)
		default:
			high, low := utf16.EncodeRune(r)
			out = fmt.Appendf(out, `\u%04x\u%04x`, high, low)
		}
	}
	return out
}
