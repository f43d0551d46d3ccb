// Command bench measures Felix beside what a user would pick instead, in one
// run on one machine with one load generator, and writes docs/performance.md.
//
//	go run ./bench [-rounds 5] [-quick] [-out docs/performance.md]
//
// The servers are started here, on free loopback ports with data in a
// temporary directory, and measured in turns, round after round. Machines have
// moods that last longer than a turn and shorter than a run, so what counts is
// the median of the ratios within a round, between turns that were seconds
// apart. The load generator is redis-benchmark for all of them.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
)

// work is one row of the table: connections, commands sent before waiting,
// random keys (0 is one hot key), and how many requests make about a second
// on this machine.
type work struct {
	connections, depth, keys, requests int
}

func (w work) String() string {
	keys := "hot key"
	if w.keys > 0 {
		keys = strconv.Itoa(w.keys) + " keys"
	}
	return fmt.Sprintf("%d × %d, %s", w.connections, w.depth, keys)
}

// rates are requests per second, by work and server, a value per round.
type rates map[work]map[string][]float64

func main() {
	rounds := flag.Int("rounds", 5, "how often each server does each work")
	quick := flag.Bool("quick", false, "a tenth of the requests: to see whether it runs, not to measure")
	out := flag.String("out", "docs/performance.md", "the file to write; empty writes none")
	only := flag.String("only", "", "only works whose name contains this")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *rounds, *quick, *only, *out); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func works(quick bool, only string) []work {
	var all []work
	for _, keys := range []int{100_000, 0} {
		for _, c := range []int{1, 50, 512} {
			for _, depth := range []int{1, 16, 64} {
				requests := map[int]int{1: 30_000, 16: 300_000, 64: 600_000}[depth]
				if c == 1 {
					requests /= 15
				}
				if quick {
					requests /= 10
				}
				all = append(all, work{c, depth, keys, requests})
			}
		}
	}
	return slices.DeleteFunc(all, func(w work) bool { return !strings.Contains(w.String(), only) })
}

func run(ctx context.Context, rounds int, quick bool, only, out string) (err error) {
	dir, err := os.MkdirTemp("", "felix-bench")
	if err != nil {
		return err
	}
	defer func() { err = firstError(err, os.RemoveAll(dir)) }()
	servers, stop, err := startServers(ctx, dir)
	defer func() { err = firstError(err, stop()) }()
	if err != nil {
		return err
	}
	all := works(quick, only)
	measured := rates{}
	for _, w := range all {
		measured[w] = map[string][]float64{}
	}
	for round := range rounds {
		for _, w := range all {
			line := fmt.Sprintf("round %d/%d  %-24s", round+1, rounds, w)
			for i := range servers {
				s := servers[(i+round)%len(servers)]
				rate, err := s.incr(ctx, w)
				if err != nil {
					return err
				}
				measured[w][s.name] = append(measured[w][s.name], rate)
				line += fmt.Sprintf("  %s %.0f/s", s.name, rate)
			}
			fmt.Println(line)
		}
	}
	text := report(all, measured, rounds)
	fmt.Println("\n" + text)
	if out == "" {
		return nil
	}
	return splice(out, text)
}

func firstError(a, b error) error {
	if a != nil {
		return a
	}
	return b
}

// incr runs one work against the server and answers requests per second.
func (s server) incr(ctx context.Context, w work) (float64, error) {
	args := []string{"-p", strconv.Itoa(s.port), "-t", "incr", "--csv", "-c", strconv.Itoa(w.connections),
		"-P", strconv.Itoa(w.depth), "-n", strconv.Itoa(w.requests)}
	if w.keys > 0 {
		args = append(args, "-r", strconv.Itoa(w.keys))
	}
	if s.user != "" {
		args = append(args, "--user", s.user, "-a", "any")
	}
	raw, err := exec.CommandContext(ctx, "redis-benchmark", args...).CombinedOutput()
	if err != nil {
		return 0, fmt.Errorf("redis-benchmark against %s: %w\n%s", s.name, err, raw)
	}
	for _, line := range strings.Split(string(raw), "\n") {
		fields := strings.Split(line, ",")
		if len(fields) > 2 && fields[0] == `"INCR"` {
			return strconv.ParseFloat(strings.Trim(fields[1], `"`), 64)
		}
	}
	return 0, fmt.Errorf("redis-benchmark against %s printed no rate:\n%s", s.name, raw)
}

func median(v []float64) float64 {
	v = slices.Sorted(slices.Values(v))
	if len(v) == 0 {
		return 0
	}
	return (v[(len(v)-1)/2] + v[len(v)/2]) / 2
}

// pairedRatio is the median over the rounds of a's rate to b's.
func pairedRatio(a, b []float64) float64 {
	ratios := make([]float64, len(a))
	for i := range a {
		ratios[i] = a[i] / b[i]
	}
	return median(ratios)
}

// report is the table in Markdown.
func report(all []work, measured rates, rounds int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "Medians of %d rounds, of INCR per second and of the ratios within a round, on %s, %d cores shared with the load generator, %s.\n\n", rounds,
		time.Now().UTC().Format("2006-01-02"), runtime.NumCPU(), runtime.Version())
	b.WriteString("| connections × depth | Redis always | Felix quorum | ratio | Redis none | Felix leader | ratio |\n|---|---:|---:|---:|---:|---:|---:|\n")
	for _, w := range all {
		m := func(name string) float64 { return median(measured[w][name]) }
		fmt.Fprintf(&b, "| %s | %s | %s | **%.2f** | %s | %s | **%.2f** |\n", w,
			count(m(redisAlways)), count(m(felixQuorum)), pairedRatio(measured[w][felixQuorum], measured[w][redisAlways]),
			count(m(redisNone)), count(m(felixLeader)), pairedRatio(measured[w][felixLeader], measured[w][redisNone]))
	}
	return b.String()
}

func count(v float64) string {
	if v >= 10_000 {
		return fmt.Sprintf("%.0fk", v/1000)
	}
	return fmt.Sprintf("%.1fk", v/1000)
}

const (
	beginMark = "<!-- begin: written by go run ./bench -->"
	endMark   = "<!-- end: written by go run ./bench -->"
)

// splice puts the text between the marks of a file.
func splice(path, text string) error {
	raw, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	before, rest, ok := strings.Cut(string(raw), beginMark)
	_, after, ok2 := strings.Cut(rest, endMark)
	if !ok || !ok2 {
		return fmt.Errorf("%s lacks the marks %q and %q", path, beginMark, endMark)
	}
	return os.WriteFile(path, []byte(before+beginMark+"\n"+text+endMark+after), 0o644)
}
