package crashtest

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// openedBy is where the daemon opens its broker, and openedWithKnobs what the
// compiler is given in its place.
const (
	openedBy        = "NodeID: c.NodeID, Cluster: d.clusterOptions()})"
	openedWithKnobs = "NodeID: c.NodeID, Cluster: d.clusterOptions(), Wall: knobs.wall, FS: knobs})"
	beforeIt        = "	d.broker, err = broker.Open("
)

// builtWithKnobs is a broker whose clock and disk a test plays with. The sources
// that are shipped know nothing of it: the compiler is given another daemon.go, and
// testdata/knobs/knobs.go beside it (go build -overlay).
var builtWithKnobs = sync.OnceValues(func() (string, error) {
	daemon, err := filepath.Abs("../daemon")
	if err != nil {
		return "", err
	}
	knobs, err := filepath.Abs("testdata/knobs/knobs.go")
	if err != nil {
		return "", err
	}
	source := filepath.Join(daemon, "daemon.go")
	text, err := os.ReadFile(source)
	if err != nil {
		return "", err
	}
	changed := string(text)
	for _, change := range [][2]string{{openedBy, openedWithKnobs}, {beforeIt, "	knobs := newKnobs()\n" + beforeIt}} {
		if n := strings.Count(changed, change[0]); n != 1 {
			return "", fmt.Errorf("daemon.go has %q %d times: what the tests build has to follow it", change[0], n)
		}
		changed = strings.Replace(changed, change[0], change[1], 1)
	}
	with, overlay, binary := filepath.Join(scratch, "daemon.go"), filepath.Join(scratch, "overlay.json"), filepath.Join(scratch, "felix-with-knobs")
	list, err := json.Marshal(map[string]any{"Replace": map[string]string{source: with, filepath.Join(daemon, "knobs.go"): knobs}})
	if err != nil {
		return "", err
	}
	for file, text := range map[string]string{with: changed, overlay: string(list)} {
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			return "", err
		}
	}
	if out, err := exec.Command("go", "build", "-overlay", overlay, "-o", binary, "github.com/felix-go/felix/cmd/felix").CombinedOutput(); err != nil {
		return "", fmt.Errorf("building felix with knobs: %w\n%s", err, out)
	}
	return binary, nil
})

func buildWithKnobs(t *testing.T) string {
	t.Helper()
	binary, err := builtWithKnobs()
	if err != nil {
		t.Fatal(err)
	}
	return binary
}

// turn sets a knob of the member's broker: "skew" of the wall clock or duration of
// a "sync", in milliseconds. One that has ended has none.
func (m *member) turn(knob string, millis int64) {
	if m.knobs != nil {
		_, _ = fmt.Fprintln(m.knobs, knob, millis)
	}
}
