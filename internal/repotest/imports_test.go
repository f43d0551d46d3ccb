package repotest

import (
	"regexp"
	"slices"
	"strings"
	"testing"
)

// row is a line of the table of packages in ARCHITECTURE.md, the one place that
// says who may import whom.
type row struct {
	ours    []string // packages of this module
	outside []string // modules
}

// table reads the table: | `package` | what | `ours` `ours` | `outside` |.
func table(t *testing.T) map[string]row {
	t.Helper()
	_, text, found := strings.Cut(document(t, "ARCHITECTURE.md"), "<!-- packages -->")
	text, _, ended := strings.Cut(text, "<!-- end of packages -->")
	if !found || !ended {
		t.Fatal("ARCHITECTURE.md has no table between <!-- packages --> and <!-- end of packages -->")
	}
	quoted := regexp.MustCompile("`([^`]+)`")
	words := func(cell string) (all []string) {
		for _, m := range quoted.FindAllStringSubmatch(cell, -1) {
			all = append(all, m[1])
		}
		return all
	}
	rows := map[string]row{}
	for line := range strings.Lines(text) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		if len(cells) != 4 || !strings.HasPrefix(strings.TrimSpace(cells[0]), "`") {
			continue
		}
		name := words(cells[0])[0]
		if _, twice := rows[name]; twice {
			t.Errorf("ARCHITECTURE.md names package %s twice", name)
		}
		rows[name] = row{ours: words(cells[2]), outside: words(cells[3])}
	}
	return rows
}

// modules are the modules that go.mod requires, longest name first.
func modules(t *testing.T) []string {
	t.Helper()
	var all []string
	for _, m := range regexp.MustCompile(`(?m)^\s+(\S+) v\S+`).FindAllStringSubmatch(document(t, "go.mod"), -1) {
		all = append(all, m[1])
	}
	slices.SortFunc(all, func(a, b string) int { return len(b) - len(a) })
	return all
}

func moduleOf(t *testing.T, all []string, importPath string) string {
	t.Helper()
	for _, m := range all {
		if importPath == m || strings.HasPrefix(importPath, m+"/") {
			return m
		}
	}
	t.Fatalf("no module of go.mod has %s", importPath)
	return ""
}

// imported is what the files of a package that are not tests import.
func imported(t *testing.T, p *Package, all []string) (r row) {
	t.Helper()
	add := func(list []string, s string) []string {
		if !slices.Contains(list, s) {
			list = append(list, s)
		}
		return list
	}
	for _, f := range p.Files {
		if f.Test {
			continue
		}
		for _, name := range f.Imports() {
			if ours, ok := Ours(name); ok {
				r.ours = add(r.ours, ours)
			} else if !IsStd(name) {
				r.outside = add(r.outside, moduleOf(t, all, name))
			}
		}
	}
	return r
}

// The table names every package, only packages that exist, and exactly what
// each imports.
func TestImportsAreAsInArchitecture(t *testing.T) {
	rows, all := table(t), modules(t)
	for _, p := range packages(t) {
		want, ok := rows[p.Path]
		if !ok {
			t.Errorf("ARCHITECTURE.md does not name package %s", p.Path)
			continue
		}
		delete(rows, p.Path)
		got := imported(t, p, all)
		compare(t, p.Path, "package", got.ours, want.ours)
		compare(t, p.Path, "module", got.outside, want.outside)
	}
	for name := range rows {
		t.Errorf("ARCHITECTURE.md names package %s, which does not exist", name)
	}
}

func compare(t *testing.T, name, what string, got, want []string) {
	t.Helper()
	for _, s := range got {
		if !slices.Contains(want, s) {
			t.Errorf("%s imports the %s %s, which its row in ARCHITECTURE.md does not allow: "+
				"if the rules of the house do, say so there", name, what, s)
		}
	}
	for _, s := range want {
		if !slices.Contains(got, s) {
			t.Errorf("%s does not import the %s %s any more: take it out of its row in ARCHITECTURE.md", name, what, s)
		}
	}
}

// What the table must never come to allow. Each rule says who may import what;
// everybody else may not, not even through a test.
func TestRulesOfTheHouse(t *testing.T) {
	doors := []string{"internal/httpapi", "internal/redisapi", "internal/resp", "internal/netloop"}
	inside := []string{"internal/shard", "internal/raftlog", "internal/store", "internal/record", "internal/engine", "internal/broker", "internal/placement",
		"internal/peer", "internal/peer/peerv1", "internal/peer/peerv1/peerv1connect"}
	all := modules(t)
	for _, p := range packages(t) {
		got := imported(t, p, all)
		only := func(module string, allowed ...string) {
			if slices.Contains(got.outside, module) && !slices.Contains(allowed, p.Path) {
				t.Errorf("%s imports %s: only %s may", p.Path, module, strings.Join(allowed, ", "))
			}
		}
		only("github.com/cockroachdb/pebble/v2", "internal/raftlog", "internal/store", "internal/broker")
		only("go.etcd.io/raft/v3", "internal/shard", "internal/raftlog", "internal/broker", "internal/peer", "internal/sim")
		for _, ours := range got.ours {
			switch {
			case p.Path == ".":
				t.Errorf("the vocabulary imports %s: it depends on nothing", ours)
			case slices.Contains(doors, p.Path) && slices.Contains(inside, ours):
				t.Errorf("%s is a door and imports %s: doors know the vocabulary only", p.Path, ours)
			case p.Path == "internal/httpapi" && slices.Contains(doors, ours),
				p.Path != "internal/httpapi" && slices.Contains(doors, p.Path) && ours == "internal/httpapi":
				t.Errorf("%s imports %s: doors do not know each other", p.Path, ours)
			case slices.Contains(inside, p.Path) && slices.Contains(doors, ours):
				t.Errorf("%s imports the door %s: imports go downwards", p.Path, ours)
			case (p.Path == "client" || p.Path == "internal/cli" || p.Path == "internal/load") &&
				strings.HasPrefix(ours, "internal/") && ours != "internal/load":
				t.Errorf("%s imports %s: what runs at a client's has nothing of a broker", p.Path, ours)
			case p.Path == "internal/peer" && ours != "." && ours != "internal/invariant" && !strings.HasPrefix(ours, "internal/peer/"):
				t.Errorf("%s imports %s: it knows no shard, no store and no broker", p.Path, ours)
			case ours == "internal/sim":
				t.Errorf("%s imports the simulation, which is there for its tests", p.Path)
			case ours == "internal/daemon" && p.Path != "cmd/felix" && p.Path != "internal/e2e":
				t.Errorf("%s imports the daemon: only its command does", p.Path)
			case (ours == "internal/model" || strings.HasSuffix(ours, "test")) && !strings.HasSuffix(p.Path, "test"):
				t.Errorf("%s imports %s, which is there for tests", p.Path, ours)
			}
		}
	}
}

// Every module that we import, also in tests or as a tool, is in ARCHITECTURE.md
// with the reason.
func TestDependenciesAreNamedWithReasons(t *testing.T) {
	all := modules(t)
	direct := map[string]bool{}
	for _, p := range packages(t) {
		for _, f := range p.Files {
			for _, name := range f.Imports() {
				if _, ours := Ours(name); !ours && !IsStd(name) {
					direct[moduleOf(t, all, name)] = true
				}
			}
		}
	}
	for _, m := range regexp.MustCompile(`(?m)^\t(\S+/\S+)$`).FindAllStringSubmatch(document(t, "go.mod"), -1) {
		direct[moduleOf(t, all, m[1])] = true // a tool
	}
	_, text, _ := strings.Cut(document(t, "ARCHITECTURE.md"), "<!-- dependencies -->")
	text, _, ended := strings.Cut(text, "<!-- end of dependencies -->")
	if !ended {
		t.Fatal("ARCHITECTURE.md has no table between <!-- dependencies --> and <!-- end of dependencies -->")
	}
	named := map[string]bool{}
	for _, m := range regexp.MustCompile("(?m)^\\| `([^`]+)` \\| ([^|]*) \\|$").FindAllStringSubmatch(text, -1) {
		named[m[1]] = true
		if len(m[2]) < 20 {
			t.Errorf("ARCHITECTURE.md gives no reason for %s", m[1])
		}
		if !direct[m[1]] {
			t.Errorf("ARCHITECTURE.md gives a reason for %s, which nothing imports", m[1])
		}
	}
	for m := range direct {
		if !named[m] {
			t.Errorf("ARCHITECTURE.md does not say why we depend on %s", m)
		}
	}
}
