package limit

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// A host whose zone files say that Berlin is at UTC changes nothing. The zones are
// asked in another process, since Go reads $ZONEINFO once.
func TestHostZonesAreNotRead(t *testing.T) {
	const child = "FELIX_LIMIT_ZONE_CHILD"
	summer := time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)
	if os.Getenv(child) != "" {
		theirs, err := time.LoadLocation("Europe/Berlin")
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("host %s, ours %s", summer.In(theirs).Format("-07:00"), summer.In(zone(t, "Europe/Berlin")).Format("-07:00"))
		return
	}
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "Europe"), 0o700); err != nil {
		t.Fatal(err)
	}
	// A zone with one type, at UTC, and no changes (RFC 9636).
	fake := "TZif" + strings.Repeat("\x00", 16) + // version 1
		"\x00\x00\x00\x00" + "\x00\x00\x00\x00" + "\x00\x00\x00\x00" + // isutcnt, isstdcnt, leapcnt
		"\x00\x00\x00\x00" + "\x00\x00\x00\x01" + "\x00\x00\x00\x04" + // timecnt, typecnt, charcnt
		"\x00\x00\x00\x00\x00\x00" + "UTC\x00"
	if err := os.WriteFile(filepath.Join(dir, "Europe", "Berlin"), []byte(fake), 0o600); err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, "-test.run=^TestHostZonesAreNotRead$", "-test.v")
	cmd.Env = append(os.Environ(), child+"=1", "ZONEINFO="+dir, "TZ=America/New_York")
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "host +00:00, ours +02:00") {
		t.Errorf("%v\n%s\nwant the host's Berlin at +00:00 and ours at +02:00", err, out)
	}
}

// Zones are found by their exact name, from many goroutines.
func TestZonesByName(t *testing.T) {
	var zones Zones
	var group sync.WaitGroup
	for _, name := range []string{"Europe/Berlin", "America/Sao_Paulo", "Asia/Beirut", "Africa/Cairo", "Australia/Lord_Howe",
		"UTC", "Etc/GMT+12", "America/Argentina/Buenos_Aires", "EST5EDT"} {
		for range 2 {
			group.Go(func() {
				loc, err := zones.Load(name)
				if err != nil || loc.String() != name {
					t.Errorf("%s: %v, %v", name, loc, err)
				}
			})
		}
	}
	group.Wait()
	for _, name := range []string{"Local", "Europe", "Europe/", "../etc/passwd", "europe/berlin", "Europe/Berlin\x00"} {
		if loc, err := zones.Load(name); err == nil {
			t.Errorf("%q is a zone: %v", name, loc)
		}
	}
	if loc, err := zones.Load(""); err != nil || loc != time.UTC {
		t.Errorf("no name: %v, %v, want UTC", loc, err)
	}
}
