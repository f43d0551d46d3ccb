// Package slots says which shard a key belongs to. It is Redis Cluster's rule,
// so that {tags} mean the same: a slot is the CRC16 (XMODEM) of the key, or of
// what stands between its first '{' and the next '}' if that is not empty,
// modulo 16384 (Redis Cluster specification, "Hash tags"); a cache's shards
// are equal ranges of slots.
package slots

import (
	"bytes"

	"github.com/felix-go/felix"
)

// Slot is the slot of a key, below felix.SlotCount.
func Slot(key []byte) uint16 {
	return crc16(tag(key)) & (felix.SlotCount - 1)
}

// Shard is the shard of a slot, below shards; shards is 1 to
// felix.MaxShardsPerCache.
func Shard(slot uint16, shards int) int {
	return int(slot) * shards / felix.SlotCount
}

// tag is the part of the key that is hashed.
func tag(key []byte) []byte {
	open := bytes.IndexByte(key, '{')
	if open < 0 {
		return key
	}
	length := bytes.IndexByte(key[open+1:], '}')
	if length <= 0 {
		return key
	}
	return key[open+1 : open+1+length]
}

// crc16 works on eight bytes at a time ("slicing-by-8", Kounavis and Berry, "A
// Systematic Approach to Building High Performance, Software-based, CRC
// Generators", 2005): the eight look-ups do not wait for each other.
func crc16(b []byte) uint16 {
	var crc uint16
	for ; len(b) >= 8; b = b[8:] {
		crc = crcTables[7][b[0]^byte(crc>>8)] ^ crcTables[6][b[1]^byte(crc)] ^
			crcTables[5][b[2]] ^ crcTables[4][b[3]] ^ crcTables[3][b[4]] ^
			crcTables[2][b[5]] ^ crcTables[1][b[6]] ^ crcTables[0][b[7]]
	}
	for _, c := range b {
		crc = crc<<8 ^ crcTables[0][byte(crc>>8)^c]
	}
	return crc
}

// crcTables[n] holds the CRC of a byte with n zero bytes behind it, with the
// polynomial x^16 + x^12 + x^5 + 1 (0x1021).
var crcTables = func() (tables [8][256]uint16) {
	for i := range tables[0] {
		crc := uint16(i) << 8
		for range 8 {
			if crc&0x8000 != 0 {
				crc = crc<<1 ^ 0x1021
			} else {
				crc <<= 1
			}
		}
		tables[0][i] = crc
	}
	for n := 1; n < len(tables); n++ {
		for i, crc := range tables[n-1] {
			tables[n][i] = crc<<8 ^ tables[0][crc>>8]
		}
	}
	return tables
}()
