package httpapi

import (
	"bytes"
	"encoding/base64"
	"hash/crc32"

	"github.com/felix-go/felix"
)

// A page token names the place where the next page begins: after a key, in a
// list of keys with a prefix. It is base64url, without padding, of
//
//	byte 0      version, 1
//	byte 1..4   CRC-32 (IEEE) of the length of the prefix, 4 bytes, the prefix
//	            and the key; all numbers big-endian
//	byte 5..    the key, at least 1 byte
//
// The prefix itself is in the request and in the key's beginning; the sum
// catches a token used with another prefix, and one that was damaged. A token
// holds no state of a broker, so every broker understands it at any time.
const (
	pageTokenVersion = 1
	pageTokenHead    = 5
)

var pageTokenEncoding = base64.RawURLEncoding.Strict()

func encodePageToken(prefix, last []byte) string {
	sum := pageTokenSum(prefix, last)
	raw := make([]byte, 0, pageTokenHead+len(last))
	raw = append(raw, pageTokenVersion, byte(sum>>24), byte(sum>>16), byte(sum>>8), byte(sum))
	return pageTokenEncoding.EncodeToString(append(raw, last...))
}

// decodePageToken answers the key after which the page begins. The error is
// invalid_argument.
func decodePageToken(token string, prefix []byte) ([]byte, error) {
	raw, err := pageTokenEncoding.DecodeString(token)
	if err != nil || len(raw) <= pageTokenHead || raw[0] != pageTokenVersion {
		return nil, felix.Errorf(felix.InvalidArgument, "the page token is not one this broker gives out: use nextPageToken of the page before, unchanged")
	}
	last := raw[pageTokenHead:]
	sum := uint32(raw[1])<<24 | uint32(raw[2])<<16 | uint32(raw[3])<<8 | uint32(raw[4])
	if len(last) > felix.MaxKeyBytes || !bytes.HasPrefix(last, prefix) || sum != pageTokenSum(prefix, last) {
		return nil, felix.Errorf(felix.InvalidArgument, "the page token belongs to another list, or is damaged: use it with the same prefix, unchanged")
	}
	return last, nil
}

func pageTokenSum(prefix, last []byte) uint32 {
	n := len(prefix)
	sum := crc32.ChecksumIEEE([]byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)})
	sum = crc32.Update(sum, crc32.IEEETable, prefix)
	return crc32.Update(sum, crc32.IEEETable, last)
}
