package sim

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

var (
	firstSeed = flag.Uint64("sim.seed", 1, "the first seed to run")
	seeds     = flag.Int("sim.seeds", 100, "how many seeds to run")
	leases    = flag.Bool("sim.leases", false, "run only what is about leases")
)

// TestSeeds runs seeds, each another cluster with other faults.
func TestSeeds(t *testing.T) { runSeeds(t, *seeds, *leases) }

// TestLeases runs seeds that are all about leases, of which TestSeeds has few.
func TestLeases(t *testing.T) { runSeeds(t, *seeds/4, true) }

func runSeeds(t *testing.T, seeds int, leases bool) {
	t.Helper()
	stats := map[string]int{}
	began := time.Now()
	for i := range seeds {
		r := Run(*firstSeed+uint64(i), Options{Leases: leases})
		for what, n := range r.Stats {
			stats[what] += n
		}
		if len(r.Failures) > 0 {
			report(t, r, leases)
			break
		}
	}
	t.Logf("%d seeds in %v: %v", seeds, time.Since(began).Round(time.Second), stats)
}

// report runs a seed again, with a trace, and tells how to read it.
func report(t *testing.T, r *Result, leases bool) {
	t.Helper()
	again := Run(r.Seed, Options{Trace: true, Leases: leases})
	file := filepath.Join(os.TempDir(), fmt.Sprintf("felix-sim-%d.trace", r.Seed))
	if err := os.WriteFile(file, []byte(strings.Join(again.Trace, "\n")+"\n"), 0o644); err != nil {
		t.Error(err)
	}
	last := again.Trace[max(0, len(again.Trace)-60):]
	t.Errorf("seed %d: %s\n\nThe last of what happened:\n%s\nAll of it is in %s. To run it again: make sim SEED=%d SEEDS=1 LEASES=%v",
		r.Seed, strings.Join(again.Failures, "\n"), strings.Join(last, "\n"), file, r.Seed, leases)
}

// TestRunsCanBeHadAgain is what a seed is worth: what happens is the same, to the
// last message.
func TestRunsCanBeHadAgain(t *testing.T) {
	hashes := map[uint64]bool{}
	for seed := range uint64(10) {
		first, second := Run(seed, Options{}), Run(seed, Options{Trace: true})
		if first.Hash != second.Hash {
			t.Errorf("seed %d: two runs differ: %x and %x, of %d lines", seed, first.Hash, second.Hash, len(second.Trace))
		}
		hashes[first.Hash] = true
	}
	if len(hashes) != 10 {
		t.Errorf("10 seeds made only %d different runs", len(hashes))
	}
}
