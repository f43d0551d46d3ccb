package resp

import (
	"strconv"
	"strings"
)

// Version is the protocol version of a connection's replies.
type Version uint8

// The versions. A connection starts with RESP2.
const (
	RESP2 Version = 2
	RESP3 Version = 3
)

// OK is the reply "+OK".
const OK = "+OK\r\n"

// AppendSimple appends a simple string; s has no line breaks.
func AppendSimple(b []byte, s string) []byte {
	b = append(b, '+')
	b = append(b, s...)
	return append(b, '\r', '\n')
}

// AppendError appends an error. s begins with its code, as "ERR …". Line breaks
// would end it early: as in Redis, those at its end are left out, and others
// become spaces.
func AppendError(b []byte, s string) []byte {
	b = append(b, '-')
	start := len(b)
	b = append(b, strings.TrimRight(s, "\r\n")...)
	for i := start; i < len(b); i++ {
		if b[i] == '\r' || b[i] == '\n' {
			b[i] = ' '
		}
	}
	return append(b, '\r', '\n')
}

// AppendInt appends an integer.
func AppendInt(b []byte, n int64) []byte { return appendHeader(b, ':', n) }

// AppendBulk appends a string of any bytes.
func AppendBulk(b, s []byte) []byte {
	b = appendHeader(b, '$', int64(len(s)))
	b = append(b, s...)
	return append(b, '\r', '\n')
}

// AppendBulkString is AppendBulk for a string.
func AppendBulkString(b []byte, s string) []byte {
	b = appendHeader(b, '$', int64(len(s)))
	b = append(b, s...)
	return append(b, '\r', '\n')
}

// AppendBulkInt appends an integer as a string.
func AppendBulkInt(b []byte, n int64) []byte {
	var digits [20]byte
	return AppendBulk(b, strconv.AppendInt(digits[:0], n, 10))
}

// AppendNull appends the null: of RESP3, or RESP2's null string.
func AppendNull(b []byte, v Version) []byte {
	if v == RESP3 {
		return append(b, "_\r\n"...)
	}
	return append(b, "$-1\r\n"...)
}

// AppendArray begins an array of n elements, which follow.
func AppendArray(b []byte, n int) []byte { return appendHeader(b, '*', int64(n)) }

// AppendMap begins a map of n pairs, which follow; in RESP2 it is an array of
// twice as many.
func AppendMap(b []byte, v Version, n int) []byte {
	if v == RESP3 {
		return appendHeader(b, '%', int64(n))
	}
	return appendHeader(b, '*', 2*int64(n))
}

// AppendSet begins a set of n elements, which follow; in RESP2 it is an array.
func AppendSet(b []byte, v Version, n int) []byte {
	if v == RESP3 {
		return appendHeader(b, '~', int64(n))
	}
	return appendHeader(b, '*', int64(n))
}

// AppendVerbatim appends a text for people; in RESP2 it is a plain string.
func AppendVerbatim(b []byte, v Version, s []byte) []byte {
	if v != RESP3 {
		return AppendBulk(b, s)
	}
	b = appendHeader(b, '=', int64(len(s))+4)
	b = append(b, "txt:"...)
	b = append(b, s...)
	return append(b, '\r', '\n')
}

func appendHeader(b []byte, kind byte, n int64) []byte {
	if n >= 0 && n <= 9 {
		return append(b, kind, byte('0'+n), '\r', '\n')
	}
	b = append(b, kind)
	b = strconv.AppendInt(b, n, 10)
	return append(b, '\r', '\n')
}
