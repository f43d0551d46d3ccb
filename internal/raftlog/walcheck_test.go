package raftlog

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"go.etcd.io/raft/v3/raftpb"
)

// One byte that changed anywhere in a WAL is noticed, or costs nothing that was
// synced, except in the last thing written: that cannot be told from a torn
// write. Once it is covered, or the log closed, there is no exception.
func TestDamageInTheLastBlock(t *testing.T) {
	const commits = 8
	for _, c := range []struct {
		name    string
		end     func(t *testing.T, l *Log)
		covered bool
	}{
		{"just synced", func(*testing.T, *Log) {}, false},
		{"covered", func(t *testing.T, l *Log) {
			before := l.Stats()
			if err := errors.Join(l.Cover(), l.Cover()); err != nil {
				t.Fatal(err)
			}
			if after := l.Stats(); after.Commits != before.Commits+1 || after.Syncs != before.Syncs+1 {
				t.Errorf("two calls of Cover: %+v, before %+v", after, before)
			}
		}, true},
		{"closed", func(t *testing.T, l *Log) { mustClose(t, l) }, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			mem := vfs.NewCrashableMem()
			o := smallOptions(t, mem)
			mustClose(t, mustOpen(t, o)) // later WALs are in the newest format
			l := mustOpen(t, o)
			s := mustShard(t, l, 1)
			for i := range uint64(commits) {
				mustCommit(t, l, Append{Shard: s, Entries: entries(i+1, 1, 1), HardState: hard(1, 1, i), Sync: true})
			}
			c.end(t, l)
			crashed := mem.CrashClone(vfs.CrashCloneCfg{})
			mustClose(t, l)
			name, size := newestWAL(t, crashed)
			tried, refused, lost := 0, 0, 0
			scratch := crashed.CrashClone(vfs.CrashCloneCfg{})
			for _, at := range bytesToDamage(t, crashed, name, size) {
				tried++
				if at%50 > 0 && isRefused(t, scratch, name, at) { // which Open begins with
					refused++
					continue
				}
				last, ok := openDamaged(t, crashed, name, at, o.MemTableBytes)
				switch {
				case !ok:
					refused++
				case last == commits-1 && !c.covered:
					lost++
				case last != commits:
					t.Errorf("byte %d: the log ends with entry %d of %d, and nobody was told", at, last, commits)
				}
			}
			t.Logf("of %d bytes, %d were noticed and %d passed for a torn write", tried, refused, lost)
			if refused < tried/2 || lost > tried/4 || (lost == 0) != c.covered {
				t.Errorf("of %d bytes, %d were noticed and %d passed for a torn write", tried, refused, lost)
			}
		})
	}
}

// bytesToDamage are all bytes of a WAL; under the race detector, which makes it
// all ten times slower, all of its headers and marks and some of the rest.
func bytesToDamage(t *testing.T, fs vfs.FS, name string, size int) (places []int) {
	t.Helper()
	number, err := strconv.ParseUint(strings.TrimSuffix(name, ".log"), 10, 32)
	if err != nil {
		t.Fatal(err)
	}
	b := readAll(t, fs, name)[:size]
	const stride = 7
	frame := 0 // what begins here is looked at byte by byte up to there
	for at := range size {
		if at >= frame && size-at >= walHeaderBytes {
			if header, n := walChunk(b[at:], uint32(number)); n > 0 {
				frame = at + header + batchHeaderBytes + 2 + markBytes
			}
		}
		if !raceDetector || at < frame || at%stride == 0 {
			places = append(places, at)
		}
	}
	return places
}

// isRefused says whether the check of the WALs finds one changed byte.
func isRefused(t *testing.T, fs vfs.FS, name string, at int) bool {
	t.Helper()
	invert(t, fs, name, at)
	defer invert(t, fs, name, at) // as it was
	err := checkWALs(fs, testDir)
	if err != nil && !errors.Is(err, ErrCorrupt) {
		t.Fatalf("byte %d: %v", at, err)
	}
	return err != nil
}

// openDamaged opens a copy of a log with one byte of a WAL changed, and tells
// which entry it ends with; not ok is that the damage was noticed.
func openDamaged(t *testing.T, fs *vfs.MemFS, name string, at, memTableBytes int) (last uint64, ok bool) {
	t.Helper()
	fs = fs.CrashClone(vfs.CrashCloneCfg{})
	invert(t, fs, name, at)
	l, err := Open(testDir, Options{FS: fs, Fatal: func(error) {}, MemTableBytes: memTableBytes})
	if err != nil {
		if !errors.Is(err, ErrCorrupt) {
			t.Fatalf("byte %d: %v", at, err)
		}
		return 0, false
	}
	defer mustClose(t, l)
	if last, err = mustShard(t, l, 1).LastIndex(); err != nil {
		t.Fatal(err)
	}
	return last, true
}

// The same in a WAL of many blocks, with batches that end in the middle of one
// and batches that span several.
func TestDamageInManyBlocks(t *testing.T) {
	t.Parallel()
	mem := vfs.NewCrashableMem()
	o := smallOptions(t, mem)
	o.MemTableBytes, o.WALPrefillFiles = 1<<20, -1
	mustClose(t, mustOpen(t, o))
	l := mustOpen(t, o)
	s := mustShard(t, l, 1)
	const commits, large = 12, 70_000
	for i := range uint64(commits) {
		size := 9000
		if i%4 == 3 {
			size = large
		}
		mustCommit(t, l, Append{Shard: s, Entries: []*raftpb.Entry{entry(i+1, 1, strings.Repeat("x", size))},
			HardState: hard(1, 1, i), Sync: i%3 > 0})
	}
	crashed := mem.CrashClone(vfs.CrashCloneCfg{})
	mustClose(t, l)
	name, size := newestWAL(t, crashed)
	refused := 0
	const stride = 3001
	for at := 0; at < size; at += stride {
		// What passes for a torn write costs a second under the race detector:
		// Pebble looks for the bit that may have flipped.
		if raceDetector && at > size-large && at%(3*stride) > 0 {
			continue
		}
		last, ok := openDamaged(t, crashed, name, at, o.MemTableBytes)
		if !ok {
			refused++
		} else if last < commits-1 {
			t.Errorf("byte %d of %d: the log ends with entry %d of %d, and nobody was told", at, size, last, commits)
		}
	}
	if refused == 0 {
		t.Error("nothing was noticed")
	}
}

// Torn writes are no damage: what was not synced may be there in any part.
func TestTornWritesAreNoDamage(t *testing.T) {
	t.Parallel()
	for seed := range uint64(15) {
		mem := vfs.NewCrashableMem()
		o := smallOptions(t, mem)
		mustClose(t, mustOpen(t, o))
		l := mustOpen(t, o)
		s := mustShard(t, l, 1)
		rng := rand.New(rand.NewPCG(seed, 1))
		synced := uint64(0)
		for i := range uint64(60) {
			a := Append{Shard: s, Entries: []*raftpb.Entry{entry(i+1, 1, strings.Repeat("x", rng.IntN(6_000)))}, Sync: rng.IntN(30) == 0}
			mustCommit(t, l, a)
			if a.Sync {
				synced = i + 1
			}
		}
		fs := mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 80, RNG: rng})
		mustClose(t, l)
		o.FS = fs
		l, err := Open(testDir, o)
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if n, _ := mustShard(t, l, 1).LastIndex(); n < synced {
			t.Errorf("seed %d: %d entries of %d synced ones", seed, n, synced)
		}
		mustClose(t, l)
	}
}

// newestWAL is the WAL written last, and how long it is without the zeros at its
// end.
func newestWAL(t *testing.T, fs vfs.FS) (name string, size int) {
	t.Helper()
	names, err := fs.List(testDir)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range names {
		if len(n) == len("000000.log") && n[6:] == ".log" && n > name {
			name = n
		}
	}
	b := readAll(t, fs, name)
	for size = len(b); size > 0 && b[size-1] == 0; size-- {
	}
	if size < 200 {
		t.Fatalf("%s has %d bytes", name, size)
	}
	return name, size
}

func readAll(t *testing.T, fs vfs.FS, name string) []byte {
	t.Helper()
	f, err := fs.Open(fs.PathJoin(testDir, name))
	if err != nil {
		t.Fatal(err)
	}
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, info.Size())
	if _, err := f.ReadAt(b, 0); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	return b
}

// invert changes one byte of a file, durably.
func invert(t *testing.T, fs vfs.FS, name string, at int) {
	t.Helper()
	f, err := fs.OpenReadWrite(fs.PathJoin(testDir, name), vfs.WriteCategoryUnspecified)
	if err != nil {
		t.Fatal(err)
	}
	var b [1]byte
	if _, err := f.ReadAt(b[:], int64(at)); err != nil {
		t.Fatal(err)
	}
	b[0] ^= 0xff
	if _, err := f.WriteAt(b[:], int64(at)); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		t.Fatal(err)
	}
}

// Whatever is in a WAL, it is taken or refused as damaged, and nothing else. What
// says nothing of later syncs is a torn write, wherever it ends.
func FuzzWAL(f *testing.F) {
	first := fuzzedChunk(7, 0, appendMark(make([]byte, batchHeaderBytes), mark{number: 1}))
	second := fuzzedChunk(7, uint64(len(first)), []byte("what follows"))
	f.Add([]byte{}, uint32(7), false)
	f.Add(append(first, second...), uint32(7), true)
	f.Add(append(first[:len(first)-1:len(first)-1], second...), uint32(7), false)
	f.Add(append(make([]byte, walBlockBytes-10), second...), uint32(7), false)
	f.Fuzz(func(t *testing.T, b []byte, number uint32, whole bool) {
		if whole { // a chunk that is as it should be
			b = fuzzedChunk(number, 0, b[:min(len(b), walBlockBytes-walHeaderBytes)])
		}
		mem := vfs.NewMem()
		file, err := mem.Create("wal", vfs.WriteCategoryUnspecified)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := file.Write(b); err != nil {
			t.Fatal(err)
		}
		if err := file.Close(); err != nil {
			t.Fatal(err)
		}
		if err := checkWAL(mem, "wal", number); err != nil && (whole || !errors.Is(err, ErrCorrupt)) {
			t.Fatal(err)
		}
	})
}

// fuzzedChunk is a chunk of a WAL that is a whole batch.
func fuzzedChunk(number uint32, synced uint64, payload []byte) []byte {
	b := binary.LittleEndian.AppendUint16(make([]byte, 4), uint16(len(payload)))
	b = binary.LittleEndian.AppendUint32(append(b, 9), number)
	b = append(binary.LittleEndian.AppendUint64(b, synced), payload...)
	sum := crc32.Checksum(b[6:], castagnoli)
	binary.LittleEndian.PutUint32(b, (sum>>15|sum<<17)+0xa282ead8)
	return b
}
