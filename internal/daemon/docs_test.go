package daemon

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

// tableOf reads the rows of a Markdown document whose first cell is in
// backquotes and begins with prefix: all cells, without the backquotes of the
// first.
func tableOf(t *testing.T, document, prefix string) map[string][]string {
	t.Helper()
	b, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string][]string{}
	for line := range strings.Lines(string(b)) {
		if !strings.HasPrefix(line, "| `"+prefix) {
			continue
		}
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		name := strings.Trim(cells[0], "`")
		if rows[name] != nil {
			t.Errorf("%s has %s twice", document, name)
		}
		rows[name] = cells
	}
	return rows
}

// docs/configuration.md has every flag, its variable, its default and a unit,
// and no other.
func TestConfigurationIsDocumented(t *testing.T) {
	const document = "../../docs/configuration.md"
	rows := tableOf(t, document, "--")
	f := pflag.NewFlagSet("felix", pflag.ContinueOnError)
	(&Config{Dev: true}).addFlags(f)
	f.VisitAll(func(flag *pflag.Flag) {
		row := rows["--"+flag.Name]
		delete(rows, "--"+flag.Name)
		if len(row) != 5 {
			t.Errorf("%s: the row of --%s has %d cells", document, flag.Name, len(row))
			return
		}
		for _, name := range []string{envName(flag.Name), envNames[flag.Name]} {
			if !strings.Contains(row[1], name) {
				t.Errorf("%s: --%s: the environment %s lacks %s", document, flag.Name, row[1], name)
			}
		}
		want := "`" + flag.DefValue + "`"
		switch {
		case flag.Name == "data-dir":
			want = "`" + devDataDir + "` (dev), none (serve)"
		case flag.DefValue == "":
			want = ""
		}
		if row[2] != want {
			t.Errorf("%s: --%s: the default is %s, want %s", document, flag.Name, row[2], want)
		}
		if row[3] == "" || row[4] == "" {
			t.Errorf("%s: --%s has no unit or no description", document, flag.Name)
		}
		if kind := flag.Value.Type(); (kind == "duration") != (row[3] == "duration") || (kind == "bool") != (row[3] == "boolean") {
			t.Errorf("%s: --%s is a %s, not a %s", document, flag.Name, kind, row[3])
		}
		if strings.Contains(flag.Usage, "`MiB`") != (row[3] == "MiB") {
			t.Errorf("%s: --%s: the unit is %s, but --help says %q", document, flag.Name, row[3], flag.Usage)
		}
	})
	for name := range rows {
		t.Errorf("%s has %s, which does not exist", document, name)
	}
}

// No environment variable means one thing to the broker and another to felixctl.
func TestVariablesMeanOneThing(t *testing.T) {
	variable := regexp.MustCompile("`(FELIX[A-Z_]+)`")
	of := func(document string) map[string]bool {
		text, err := os.ReadFile(document)
		if err != nil {
			t.Fatal(err)
		}
		names := map[string]bool{}
		for _, m := range variable.FindAllStringSubmatch(string(text), -1) {
			names[m[1]] = true
		}
		return names
	}
	broker := of("../../docs/configuration.md")
	felixctl := of("../../docs/felixctl.md")
	if !broker["FELIX_CONFIG"] || !felixctl["FELIXCTL_CONFIG"] || !felixctl["FELIX_BROKERS"] {
		t.Fatalf("the documents' variables were not found: %v, %v", broker, felixctl)
	}
	for name := range felixctl {
		if broker[name] {
			t.Errorf("%s is a setting of the broker and of felixctl", name)
		}
	}
}

// --help says the unit and the default of every flag.
func TestHelp(t *testing.T) {
	f := pflag.NewFlagSet("felix", pflag.ContinueOnError)
	(&Config{Dev: true}).addFlags(f)
	f.VisitAll(func(flag *pflag.Flag) {
		if flag.Value.Type() != "bool" && !strings.Contains(flag.Usage, "`") {
			t.Errorf("--%s: %q names no unit", flag.Name, flag.Usage)
		}
	})
}

// docs/operations.md has every metric of a broker that is in use, with its
// type, and no other.
func TestMetricsAreDocumented(t *testing.T) {
	const document = "../../docs/operations.md"
	rows := tableOf(t, document, "felix_")
	p := dev(t, t.TempDir(), "--checkpoint-interval", "100ms")
	ready(t, p)
	c := dial(t, p.resp)
	c.call(t, "INCR", "k")
	c.call(t, "INCR", "k")
	c.call(t, "INCR") // an error
	text := scrape(t, p)
	_, _, peers := devNodes(t, t.TempDir(), "2")
	linked := &process{http: peers[0]}
	both := text + scrape(t, linked) // what only a cluster has
	seen := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^# TYPE (felix_\S+) (\S+)$`).FindAllStringSubmatch(both, -1) {
		if seen[m[1]] {
			continue
		}
		seen[m[1]] = true
		row := rows[m[1]]
		delete(rows, m[1])
		if len(row) != 3 || row[1] != m[2] || row[2] == "" {
			t.Errorf("%s: the row of %s is %q, want one of a %s", document, m[1], row, m[2])
		}
	}
	for name := range rows {
		t.Errorf("%s has %s, which the broker does not show", document, name)
	}
	for _, want := range []string{"felix_caches 2\n", "felix_shards 9\n", "felix_shards_owned 9\n", `felix_resp_commands_total{command="incr"} `,
		`felix_resp_command_errors_total{command="incr"} 1`, "felix_resp_connections 1\n", "felix_resp_operations_total 2\n", "felix_resp_batches_total 2\n",
		"felix_resp_unsent_bytes 0\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("/metrics does not say %q", want)
		}
	}
}
