package raftlog

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"strconv"
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// Pebble takes a chunk of a WAL that it cannot read for the end of the log,
// unless a chunk in a *later block* says that more had been synced. So damage in
// the last block, which holds what was acknowledged last, would pass for a torn
// write, and what follows it would be lost without a word. checkWALs looks
// within the block too.
//
// What it refuses is damaged for certain. It does not see all damage: what
// Pebble 2.1.7 notes as synced is too low once a WAL has more than one block,
// because the flush loop does not count the ends of full blocks, so damage in
// what was written last can still pass for a torn write.
//
// A WAL is made of blocks of 32 KB, a block of chunks:
//
//	crc u32 | length u16 | type u8 | log number u32 | synced offset u64 | payload
//	                     └ 1–4: ends here  └ 5–8: ends here
//
// all little endian; the checksum is over all that follows the length. The
// synced offset says that the file was on disk up to there when the chunk was
// written. A block's end that has no room for a chunk is zeros.
const (
	walBlockBytes = 32 << 10
	// walHeaderBytes is the header of the newest chunk format.
	walHeaderBytes = 19
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// checkWALs answers an error that wraps ErrCorrupt if a WAL in dir has a chunk
// that cannot be read although it was synced.
func checkWALs(fs vfs.FS, dir string) error {
	names, err := fs.List(dir)
	if err != nil {
		return err
	}
	for _, name := range names {
		digits, isLog := strings.CutSuffix(name, ".log")
		number, err := strconv.ParseUint(digits, 10, 64)
		if !isLog || err != nil {
			continue
		}
		if err := checkWAL(fs, fs.PathJoin(dir, name), uint32(number)); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

// checkWAL reads a WAL up to the first chunk that is none.
func checkWAL(fs vfs.FS, path string, number uint32) (err error) {
	f, err := fs.Open(path, vfs.SequentialReadsOption)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	in := bufio.NewReaderSize(f, 16*walBlockBytes)
	block := make([]byte, walBlockBytes)
	for base := uint64(0); ; base += walBlockBytes {
		n, err := io.ReadFull(in, block)
		if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		at, whole := walkBlock(block[:n], number)
		if whole && n == walBlockBytes {
			continue
		}
		return checkEnd(block[:n], base, at, number)
	}
}

// walkBlock passes over the chunks of a block and says whether they fill it;
// otherwise at is where the first thing that is no chunk begins.
func walkBlock(block []byte, number uint32) (at int, whole bool) {
	for len(block)-at >= walHeaderBytes {
		size := walChunk(block[at:], number)
		if size == 0 {
			return at, false
		}
		at += size
	}
	return at, true
}

// walChunk is the size of the chunk of this WAL that b begins with, or 0.
func walChunk(b []byte, number uint32) int {
	header := 0
	switch kind := b[6]; {
	case kind >= 1 && kind <= 4:
		header = 7
	case kind >= 5 && kind <= 8:
		header = 11
	case kind >= 9 && kind <= 12:
		header = walHeaderBytes
	default:
		return 0
	}
	size := header + int(binary.LittleEndian.Uint16(b[4:]))
	if size > len(b) || header > 7 && binary.LittleEndian.Uint32(b[7:]) != number {
		return 0
	}
	sum := crc32.Checksum(b[6:size], castagnoli)
	if sum = (sum>>15 | sum<<17) + 0xa282ead8; sum != binary.LittleEndian.Uint32(b) {
		return 0
	}
	return size
}

// checkEnd looks behind what is no chunk for one that was written when the file
// had been synced beyond that place. Behind a torn write there is none.
func checkEnd(block []byte, base uint64, at int, number uint32) error {
	for i := at + 1; i+walHeaderBytes <= len(block); i++ {
		if kind := block[i+6]; kind < 9 || kind > 12 || walChunk(block[i:], number) == 0 {
			continue
		}
		if synced := binary.LittleEndian.Uint64(block[i+11:]); synced > base+uint64(at) {
			return fmt.Errorf("%w: what was synced at offset %d cannot be read", ErrCorrupt, base+uint64(at))
		}
	}
	return nil
}
