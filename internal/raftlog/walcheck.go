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

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// Pebble takes a chunk of a WAL that it cannot read for the end of the log,
// unless a chunk in a *later block* says that more had been synced. So damage in
// the last block, which holds what was acknowledged last, would pass for a torn
// write, and what follows it would be lost without a word. checkWALs looks
// within the block too.
//
// Nor is what Pebble 2.1.7 notes as synced the whole truth: it is too low once a
// WAL has more than one block, because the flush loop does not count the ends of
// full blocks. So each of our batches begins with a mark of its own, which says
// how many batches before it were synced when it was written.
//
// What checkWALs refuses is damaged for certain. What it cannot see is damage in
// the last batch that was synced, as long as nothing was written after it. Cover
// writes something when there is nothing else to do.
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

// mark is the first thing in every batch: log data, which Pebble writes to the
// WAL alone.
type mark struct {
	number uint64 // of the batch: 1 is the first since Open
	synced uint64 // the batch up to which all were on disk when this one was made
}

const (
	markMagic = "fx"
	markBytes = len(markMagic) + 8 + 8
	// batchHeaderBytes is what precedes the records of a batch in a WAL.
	batchHeaderBytes = 12
	logDataKind      = byte(pebble.InternalKeyKindLogData)
)

func appendMark(b []byte, m mark) []byte {
	b = append(b, markMagic...)
	b = binary.LittleEndian.AppendUint64(b, m.number)
	return binary.LittleEndian.AppendUint64(b, m.synced)
}

// parseMark finds the mark in the payload of a batch's first chunk. There is
// none in batches that Pebble writes itself, or where the chunk is too short.
func parseMark(payload []byte) (m mark, ok bool) {
	const at = batchHeaderBytes + 2
	if len(payload) < at+markBytes || payload[batchHeaderBytes] != logDataKind || payload[batchHeaderBytes+1] != byte(markBytes) ||
		string(payload[at:at+len(markMagic)]) != markMagic {
		return mark{}, false
	}
	m.number = binary.LittleEndian.Uint64(payload[at+len(markMagic):])
	m.synced = binary.LittleEndian.Uint64(payload[at+len(markMagic)+8:])
	return m, true
}

// walScan follows the batches of one WAL.
type walScan struct {
	number uint32 // of the WAL
	// lost is the number of the first batch that has not been read to its end;
	// 0 while no mark has told it.
	lost uint64
}

// checkWAL reads a WAL up to the first thing that is no chunk, and then looks
// for evidence that it once was one.
func checkWAL(fs vfs.FS, path string, number uint32) (err error) {
	f, err := fs.Open(path, vfs.SequentialReadsOption)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	in := bufio.NewReaderSize(f, 4*walBlockBytes)
	block := make([]byte, walBlockBytes)
	scan := walScan{number: number}
	end := int64(-1) // the offset of the first thing that is no chunk
	for base := int64(0); ; base += walBlockBytes {
		n, err := io.ReadFull(in, block)
		if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		from := 0
		if end < 0 {
			at, whole := scan.walkBlock(block[:n])
			if whole && n == walBlockBytes {
				continue
			}
			end, from = base+int64(at), min(at+1, n)
			if err := checkEnd(block[:n], uint64(base), at, number); err != nil {
				return err
			}
		}
		if scan.findSynced(block[from:n]) {
			return fmt.Errorf("%w: what was synced at offset %d cannot be read", ErrCorrupt, end)
		}
	}
}

// walkBlock passes over the chunks of a block and says whether they fill it;
// otherwise at is where the first thing that is no chunk begins.
func (w *walScan) walkBlock(block []byte) (at int, whole bool) {
	for len(block)-at >= walHeaderBytes {
		header, size := walChunk(block[at:], w.number)
		if size == 0 {
			return at, false
		}
		w.pass(block[at+6], block[at+header:at+size])
		at += size
	}
	return at, true
}

// pass takes note of a chunk that can be read.
func (w *walScan) pass(kind byte, payload []byte) {
	position := (kind - 1) % 4 // whole, first, middle, last
	if position <= 1 {
		if m, ok := parseMark(payload); ok {
			w.lost = m.number
		}
	}
	if ends := position == 0 || position == 3; ends && w.lost > 0 {
		w.lost++
	}
}

// findSynced looks, behind the end of what can be read, for a batch that was
// made when one of those lost had been synced.
func (w *walScan) findSynced(b []byte) bool {
	for i := 0; i+walHeaderBytes <= len(b); i++ {
		if kind := b[i+6]; kind != 9 && kind != 10 { // a batch's first chunk in the newest format
			continue
		}
		header, size := walChunk(b[i:], w.number)
		if size == 0 {
			continue
		}
		m, ok := parseMark(b[i+header : i+size])
		lost := w.lost
		if lost == 0 { // nothing could be read: then not the batch before this one either
			lost = max(m.number-1, 1)
		}
		if ok && m.synced >= lost {
			return true
		}
	}
	return false
}

// walChunk is the size of the chunk of this WAL that b begins with, and of its
// header, or 0.
func walChunk(b []byte, number uint32) (header, size int) {
	switch kind := b[6]; {
	case kind >= 1 && kind <= 4:
		header = 7
	case kind >= 5 && kind <= 8:
		header = 11
	case kind >= 9 && kind <= 12:
		header = walHeaderBytes
	default:
		return 0, 0
	}
	size = header + int(binary.LittleEndian.Uint16(b[4:]))
	if size > len(b) || header > 7 && binary.LittleEndian.Uint32(b[7:]) != number {
		return 0, 0
	}
	sum := crc32.Checksum(b[6:size], castagnoli)
	if sum = (sum>>15 | sum<<17) + 0xa282ead8; sum != binary.LittleEndian.Uint32(b) {
		return 0, 0
	}
	return header, size
}

// checkEnd looks behind what is no chunk for one that was written when the file
// had been synced beyond that place. Behind a torn write there is none.
func checkEnd(block []byte, base uint64, at int, number uint32) error {
	for i := at + 1; i+walHeaderBytes <= len(block); i++ {
		if kind := block[i+6]; kind < 9 || kind > 12 {
			continue
		}
		if _, size := walChunk(block[i:], number); size == 0 {
			continue
		}
		if synced := binary.LittleEndian.Uint64(block[i+11:]); synced > base+uint64(at) {
			return fmt.Errorf("%w: what was synced at offset %d cannot be read", ErrCorrupt, base+uint64(at))
		}
	}
	return nil
}
