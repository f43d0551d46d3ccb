package difftest

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"slices"
	"strconv"
)

// reply is one reply as it came: its bytes, and its parts if it has any.
type reply struct {
	raw   []byte // everything, the parts included
	parts []reply
}

// kind is the reply's first byte.
func (r reply) kind() byte { return r.raw[0] }

// maxReplyBytes bounds what a reply may claim to be.
const maxReplyBytes = 64 << 20

// readReply reads one reply of RESP2 or RESP3.
func readReply(r *bufio.Reader) (reply, error) {
	line, err := r.ReadBytes('\n')
	if err != nil {
		return reply{raw: line}, err
	}
	if len(line) < 3 || line[len(line)-2] != '\r' {
		return reply{raw: line}, fmt.Errorf("a reply began with the line %q", line)
	}
	out := reply{raw: line}
	text := string(line[1 : len(line)-2])
	n := 0
	switch line[0] {
	case '+', '-', ':', '_', '#', ',', '(':
		return out, nil
	case '$', '=', '*', '~', '>', '%':
		if n, err = strconv.Atoi(text); err != nil || n > maxReplyBytes || n < -1 {
			return out, fmt.Errorf("a reply began with the line %q", line)
		}
	default:
		return out, fmt.Errorf("a reply began with the line %q", line)
	}
	switch line[0] {
	case '$', '=':
		if n < 0 {
			return out, nil
		}
		body := make([]byte, n+2)
		if _, err := io.ReadFull(r, body); err != nil {
			return out, err
		}
		if !bytes.HasSuffix(body, []byte("\r\n")) {
			return out, fmt.Errorf("a string of %d bytes ends in %q", n, body[n:])
		}
		out.raw = append(out.raw, body...)
		return out, nil
	case '%':
		n *= 2
	}
	for range n {
		part, err := readReply(r)
		out.raw = append(out.raw, part.raw...)
		if err != nil {
			return out, err
		}
		out.parts = append(out.parts, part)
	}
	return out, nil
}

// sorted is the reply's bytes with the parts of every aggregate in byte order:
// for replies whose order means nothing.
func (r reply) sorted() []byte {
	if r.parts == nil {
		return r.raw
	}
	all := make([][]byte, len(r.parts))
	for i, part := range r.parts {
		all[i] = part.sorted()
	}
	slices.SortFunc(all, bytes.Compare)
	head, _, _ := bytes.Cut(r.raw, []byte("\n"))
	return append(append(bytes.Clone(head), '\n'), bytes.Join(all, nil)...)
}

// integer reads an integer reply.
func (r reply) integer() (int64, bool) {
	if r.kind() != ':' {
		return 0, false
	}
	n, err := strconv.ParseInt(string(bytes.TrimSpace(r.raw[1:])), 10, 64)
	return n, err == nil
}
