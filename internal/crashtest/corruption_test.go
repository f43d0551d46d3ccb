package crashtest

import (
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// flips is how many bits are flipped, each in a fresh copy of the directory;
// FELIX_FLIPS overrides it.
const flips = 30

const (
	flipCounters = 400
	flipValues   = 200
	lastKey      = "last"
)

func flipValue(i int) string { return strings.Repeat(fmt.Sprint("value ", i, ";"), 40) }

// prepare fills a data directory such that both stores have files of all
// kinds, then kills the broker, and answers what each counter is.
func prepare(t *testing.T, binary, dir string) {
	t.Helper()
	for round := range 3 { // with restarts in between: there are sstables in the log too
		b := launch(t, binary, dir)
		c, err := dial(b.serves())
		if err != nil {
			t.Fatal(err)
		}
		for i := range flipCounters {
			if err := c.send("INCRBY", fmt.Sprint("count/", i), strconv.Itoa(i)); err != nil {
				t.Fatal(err)
			}
		}
		for i := range flipValues {
			if err := c.send("SET", fmt.Sprint("val/", i), flipValue(i)); err != nil {
				t.Fatal(err)
			}
		}
		for range flipCounters + flipValues {
			if text, refused, err := c.reply(); err != nil || refused {
				t.Fatal(text, err)
			}
		}
		// The last thing synced before the kill cannot be told from a torn
		// write when it is damaged: let that be a key that nobody looks at.
		if _, refused, err := c.do("INCR", lastKey); err != nil || refused {
			t.Fatal(err)
		}
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		if round == 1 {
			b.stop() // with a last checkpoint
		} else {
			b.kill()
		}
	}
}

// intact reads everything. It says false if the broker ended meanwhile, and
// fails the test if anything is wrong.
func intact(t *testing.T, addr, where string) bool {
	t.Helper()
	c, err := dial(addr)
	if err != nil {
		return false
	}
	defer c.Close()
	get := func(key, want string) bool {
		text, refused, err := c.do("GET", key)
		if err == nil && (refused || text != want) {
			t.Errorf("%s: %s is %.40q, want %.40q", where, key, text, want)
		}
		return err == nil
	}
	for i := range flipCounters {
		if !get(fmt.Sprint("count/", i), strconv.Itoa(3*i)) {
			return false
		}
	}
	for i := range flipValues {
		if !get(fmt.Sprint("val/", i), flipValue(i)) {
			return false
		}
	}
	text, _, err := c.do("DBSIZE")
	if err == nil && text != strconv.Itoa(flipCounters+flipValues+1) {
		t.Errorf("%s: there are %s keys, want %d", where, text, flipCounters+flipValues+1)
	}
	return err == nil
}

// TestFlippedBits flips one bit in a file of the data directory of a killed
// broker. The broker then says in one line that the data is damaged, at the
// start or when it reads the place, and ends with status 1; or the bit did not
// matter, and everything is right. Wrong data it never shows.
func TestFlippedBits(t *testing.T) {
	n := flips
	if s := os.Getenv("FELIX_FLIPS"); s != "" {
		var err error
		if n, err = strconv.Atoi(s); err != nil {
			t.Fatalf("FELIX_FLIPS: %v", err)
		}
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	binary, dir := build(t), filepath.Join(t.TempDir(), "data")
	prepare(t, binary, dir)
	kinds := filesByKind(t, dir)
	var names []string
	for kind := range kinds {
		names = append(names, kind)
	}
	slices.Sort(names)
	t.Logf("kinds of file: %q", names)
	found := map[string]int{}
	for i := range n {
		kind := names[i%len(names)]
		file := kinds[kind][rng.IntN(len(kinds[kind]))]
		copied := filepath.Join(t.TempDir(), "data")
		if err := os.CopyFS(copied, os.DirFS(dir)); err != nil {
			t.Fatal(err)
		}
		where := flip(t, rng, filepath.Join(copied, file))
		b := launch(t, binary, copied)
		addr := b.serves()
		if addr == "" || !intact(t, addr, where) {
			b.failed("damaged", "corrupt", "format", "checksum")
			found[kind]++
		}
		b.kill()
		if t.Failed() {
			t.Fatalf("after flipping %s:\n%s", where, b.text())
		}
	}
	t.Logf("damage was found in: %v", found)
	if len(found) < 3 {
		t.Errorf("damage was noticed in %v only", found)
	}
}

// filesByKind lists the files that hold anything, by their kind.
func filesByKind(t *testing.T, dir string) map[string][]string {
	t.Helper()
	kinds := map[string][]string{}
	err := fs.WalkDir(os.DirFS(dir), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err != nil || info.Size() == 0 || strings.Contains(name, "prefill") {
			return err
		}
		kind := strings.Map(func(r rune) rune {
			if r >= '0' && r <= '9' {
				return -1
			}
			return r
		}, name)
		kinds[kind] = append(kinds[kind], name)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return kinds
}

// flip flips a bit of the part of a file that is not zero at its end (a log
// file is filled with zeros ahead), and says which.
func flip(t *testing.T, rng *rand.Rand, name string) string {
	t.Helper()
	raw, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	end := len(raw)
	for end > 1 && raw[end-1] == 0 {
		end--
	}
	at, bit := rng.IntN(end), rng.IntN(8)
	raw[at] ^= 1 << bit
	if err := os.WriteFile(name, raw, 0o644); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("bit %d of byte %d of %d in %s", bit, at, end, filepath.Base(filepath.Dir(name))+"/"+filepath.Base(name))
}
