// Package resp reads requests and writes replies of the Redis serialization
// protocol, RESP2 and RESP3, on byte slices: no connection, no clock, no copy,
// and in the common case no allocation. What is accepted and the words of every
// protocol error are those of Redis 7.0.15 (networking.c), within this
// package's limits.
package resp

import (
	"bytes"

	"github.com/felix-go/felix"
)

// Limits of a request. Beyond each the answer is an error that ends the
// connection, since what follows on it can no longer be told apart.
const (
	// MaxArgs bounds the arguments of one request, as Redis did before 7.
	MaxArgs = 1024 * 1024
	// MaxLineBytes bounds an inline request and any length line.
	MaxLineBytes = 64 * 1024
	// MaxBulkBytes bounds one argument: the largest is a value.
	MaxBulkBytes = felix.MaxValueBytes
	// MaxRequestBytes bounds a whole request, which is held in memory until it
	// is answered: no more than a shard may have in flight.
	MaxRequestBytes = felix.MaxInflightShardBytes
)

// ProtocolError says what is wrong with a request. The connection cannot go on
// after it: the text is to be sent with AppendError, then it is closed.
type ProtocolError string

// Error is the text with Redis's first words: "ERR Protocol error: …".
func (e ProtocolError) Error() string { return "ERR Protocol error: " + string(e) }

// The protocol errors that have no variable part.
const (
	errInlineTooBig  ProtocolError = "too big inline request"
	errQuotes        ProtocolError = "unbalanced quotes in request"
	errCountTooBig   ProtocolError = "too big mbulk count string"
	errBulkTooBig    ProtocolError = "too big bulk count string"
	errCount         ProtocolError = "invalid multibulk length"
	errBulk          ProtocolError = "invalid bulk length"
	errBulkLimit     ProtocolError = "invalid bulk length: an argument has at most 1048576 bytes"
	errRequestTooBig ProtocolError = "the request is larger than 16777216 bytes: send it in parts"
)

// Parser takes requests off the front of a connection's input. The zero value
// is ready. A request that has come only in part is remembered, so that the
// parts are looked at once: the next call must see the same bytes again at the
// front of its input, with more behind them.
type Parser struct {
	// Args are the arguments of the request that Next returned, valid until
	// the next call; they alias its input (an inline request with quotes
	// aside). Empty for a request that asks nothing, such as a blank line.
	Args [][]byte
	// Need is how many bytes from the front of the input the request that is
	// not whole yet is known to take; 0 is unknown. It is set when Next
	// returned 0 and no error.
	Need int

	// The rest describes a multibulk request that is not whole yet; left > 0
	// says that there is one.

	left  int    // arguments still to come
	pos   int    // where the next one begins
	bulk  int    // its length, once known, otherwise -1
	spans []span // those that are whole
}

type span struct{ from, to int }

// retained is the capacity, in arguments, that a parser keeps between
// requests; larger requests give their memory back.
const retained = 1024

// Next takes one request off the front of in: its arguments are in Args and n
// is how many bytes it took. n is 0 when the request is not whole yet. An error
// is a ProtocolError.
func (p *Parser) Next(in []byte) (n int, err error) {
	if p.left == 0 {
		if n = p.fast(in); n > 0 {
			return n, nil
		}
	}
	p.Need = 0
	if p.left == 0 && (len(in) == 0 || in[0] != '*') {
		return p.inline(in)
	}
	return p.multibulk(in)
}

// Release lets go of the last request's arguments, so that the parser does not
// keep the input that they alias in memory. Next may be called afterwards.
func (p *Parser) Release() {
	const small = 64
	if cap(p.Args) > small {
		p.Args = nil
		return
	}
	clear(p.Args[:cap(p.Args)])
	p.Args = p.Args[:0]
}

// fast reads a whole multibulk request of the ordinary form. It returns 0 for
// anything else, also for all that is wrong, and leaves it to the exact reader.
func (p *Parser) fast(in []byte) int {
	if len(in) < 4 || in[0] != '*' {
		return 0
	}
	count, pos := length(in, 1)
	if pos == 0 || count == 0 || count > retained {
		return 0
	}
	args := p.Args[:0]
	if cap(args) > retained {
		args = nil
	}
	for range count {
		if pos >= len(in) || in[pos] != '$' {
			return 0
		}
		size, at := length(in, pos+1)
		end := at + size
		if at == 0 || size > MaxBulkBytes || end+2 > len(in) || end+2 > MaxRequestBytes {
			return 0
		}
		args = append(args, in[at:end:end])
		pos = end + 2
	}
	p.Args = args
	return pos
}

// length reads digits and the two bytes that end their line from pos on, and
// says where the next byte is; at is 0 if it is not that simple.
func length(in []byte, pos int) (n, at int) {
	// The common case: one digit.
	if pos+2 < len(in) && in[pos+1] == '\r' {
		if d := in[pos] - '0'; d <= 9 {
			return int(d), pos + 3
		}
		return 0, 0
	}
	if pos >= len(in) || in[pos] == '0' {
		return 0, 0
	}
	for start := pos; pos < len(in); pos++ {
		d := in[pos] - '0'
		if d > 9 {
			if in[pos] != '\r' || pos+1 >= len(in) || pos == start {
				return 0, 0
			}
			return n, pos + 2
		}
		if pos-start >= 8 {
			return 0, 0
		}
		n = n*10 + int(d)
	}
	return 0, 0
}

// multibulk reads exactly as Redis does, byte for byte, and can stop anywhere.
// Like Redis it does not look at the byte after a line's CR, nor at the two
// bytes after an argument.
func (p *Parser) multibulk(in []byte) (int, error) {
	if p.left == 0 {
		done, err := p.header(in)
		if err != nil || !done {
			return 0, err
		}
		if p.left == 0 { // "*0" and "*-1" ask nothing
			p.Args = p.Args[:0]
			return p.pos, nil
		}
	}
	for p.left > 0 {
		if p.bulk < 0 {
			done, err := p.bulkHeader(in)
			if err != nil || !done {
				return 0, err
			}
		}
		end := p.pos + p.bulk
		if end+2 > MaxRequestBytes {
			return 0, errRequestTooBig
		}
		if len(in) < end+2 {
			// Only what has been announced in full: a count alone must not
			// make the buffer grow.
			p.Need = end + 2
			return 0, nil
		}
		p.spans = append(p.spans, span{p.pos, end})
		p.pos, p.bulk = end+2, -1
		p.left--
	}
	p.Args = p.Args[:0]
	if cap(p.Args) > retained && len(p.spans) <= retained {
		p.Args = nil
	}
	for _, s := range p.spans {
		p.Args = append(p.Args, in[s.from:s.to:s.to])
	}
	if p.spans = p.spans[:0]; cap(p.spans) > retained {
		p.spans = nil
	}
	return p.pos, nil
}

// header reads "*count"; done is false if it is not whole yet.
func (p *Parser) header(in []byte) (done bool, err error) {
	line := bytes.IndexByte(in, '\r')
	if line < 0 {
		if len(in) > MaxLineBytes {
			return false, errCountTooBig
		}
		return false, nil
	}
	if line+2 > len(in) {
		return false, nil
	}
	count, ok := ParseInt(in[1:line])
	if !ok || count > MaxArgs {
		return false, errCount
	}
	p.pos, p.bulk, p.left, p.spans = line+2, -1, max(int(count), 0), p.spans[:0]
	return true, nil
}

// bulkHeader reads "$length"; done is false if it is not whole yet.
func (p *Parser) bulkHeader(in []byte) (done bool, err error) {
	rest := in[min(p.pos, len(in)):]
	line := bytes.IndexByte(rest, '\r')
	if line < 0 {
		if len(rest) > MaxLineBytes {
			return false, errBulkTooBig
		}
		return false, nil
	}
	if line+2 > len(rest) {
		return false, nil
	}
	if rest[0] != '$' {
		return false, ProtocolError("expected '$', got '" + string(rest[:1]) + "'")
	}
	size, ok := ParseInt(rest[1:line])
	if !ok || size < 0 {
		return false, errBulk
	}
	if size > MaxBulkBytes {
		return false, errBulkLimit
	}
	p.pos += line + 2
	p.bulk = int(size)
	return true, nil
}

// inline reads a request that is a line of words.
func (p *Parser) inline(in []byte) (int, error) {
	newline := bytes.IndexByte(in, '\n')
	if newline < 0 {
		if len(in) > MaxLineBytes {
			return 0, errInlineTooBig
		}
		return 0, nil
	}
	line := in[:newline]
	if n := len(line); n > 0 && line[n-1] == '\r' {
		line = line[:n-1]
	}
	args, ok := SplitArgs(p.Args[:0], line)
	if !ok {
		return 0, errQuotes
	}
	p.Args = args
	return newline + 1, nil
}

// ParseInt reads a canonical signed 64-bit decimal as Redis does (string2ll):
// no sign but '-', no leading zeros, no "-0", no spaces.
func ParseInt(b []byte) (int64, bool) {
	if len(b) == 0 || len(b) > 20 {
		return 0, false
	}
	negative := b[0] == '-'
	digits := b
	if negative {
		digits = b[1:]
		if len(digits) == 0 {
			return 0, false
		}
	}
	if digits[0] == '0' {
		return 0, len(b) == 1
	}
	if len(digits) > 19 {
		return 0, false
	}
	var v uint64 // 19 digits always fit
	for _, c := range digits {
		d := c - '0'
		if d > 9 {
			return 0, false
		}
		v = v*10 + uint64(d)
	}
	if negative {
		return -int64(v), v <= 1<<63
	}
	return int64(v), v < 1<<63
}
