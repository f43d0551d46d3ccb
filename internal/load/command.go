package load

import (
	"bufio"
	"bytes"
	"fmt"
	"math/rand/v2"
	"strconv"
)

// chooser makes a connection's commands. Each is a template, of which the digits
// of the key are changed: the load generator shares the machine with the server
// and must not take more of it than it has to.
type chooser struct {
	template []byte
	digits   int // where the key's number begins
	width    int // how many digits it has
	keys     uint64
	random   *rand.Rand
	zipf     *rand.Zipf
	answered int64 // so far, of this connection
}

func newChooser(c *Config, connection int) *chooser {
	name := "INCR"
	if c.Work == Get {
		name = "GET"
	}
	k := &chooser{keys: uint64(c.Keys), width: len(strconv.Itoa(c.Keys - 1)), random: rand.New(rand.NewPCG(c.Seed, uint64(connection)))}
	if c.Spread == Zipf && c.Keys > 1 {
		k.zipf = rand.NewZipf(k.random, ZipfExponent, 1, k.keys-1)
	}
	k.template = appendCommand(nil, name, fmt.Sprintf("%s%0*d", c.Prefix, k.width, 0))
	k.digits = len(k.template) - len("\r\n") - k.width
	return k
}

// appendNext appends the next command.
func (k *chooser) appendNext(b []byte) []byte {
	n := uint64(0)
	switch {
	case k.zipf != nil:
		n = k.zipf.Uint64()
	case k.keys > 1:
		n = k.random.Uint64N(k.keys)
	}
	at := len(b) + k.digits + k.width
	b = append(b, k.template...)
	for ; n > 0; n /= 10 {
		at--
		b[at] = byte('0' + n%10)
	}
	return b
}

// appendCommand is a command as clients send it: an array of bulk strings.
func appendCommand(b []byte, words ...string) []byte {
	b = fmt.Appendf(b, "*%d\r\n", len(words))
	for _, w := range words {
		b = fmt.Appendf(b, "$%d\r\n%s\r\n", len(w), w)
	}
	return b
}

// readReply reads past one reply that is no array. refusal is the text of an
// error, or nil.
func readReply(in *bufio.Reader) (refusal []byte, err error) {
	line, err := in.ReadSlice('\n')
	if err != nil {
		return nil, err
	}
	if line = bytes.TrimRight(line, "\r\n"); len(line) == 0 {
		return nil, fmt.Errorf("the server's reply is an empty line")
	}
	switch line[0] {
	case ':', '+', '_':
		return nil, nil
	case '-':
		return bytes.Clone(line[1:]), nil
	case '$':
		n, err := strconv.Atoi(string(line[1:]))
		if err != nil {
			return nil, fmt.Errorf("the server's reply begins with %.40q", line)
		}
		if n < 0 {
			return nil, nil
		}
		_, err = in.Discard(n + len("\r\n"))
		return nil, err
	}
	return nil, fmt.Errorf("the server's reply begins with %.40q: it does not speak the Redis protocol", line)
}
