package limit

import (
	"archive/zip"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"sync"
	"time"

	"github.com/felix-go/felix"
)

// zoneinfo is the IANA time zone database as Go distributes it
// ($GOROOT/lib/time/zoneinfo.zip; here that of go1.26.8, version 2025c; the
// database is in the public domain). It is updated by copying that file.
//
// It is read from here, and not by time.LoadLocation with time/tzdata linked in:
// that asks $ZONEINFO and the host's files first, and the embedded data last, so
// brokers of one build could disagree about when a day ends.
//
//go:embed zoneinfo.zip
var zoneinfo string

// Zones are the time zones that a policy may name: those of the database in the
// binary and no others. It reads neither files nor the environment. The zero value is
// ready to use, from many goroutines; it keeps what it has read (there are some
// 600 zones, so that is bounded).
type Zones struct {
	mu     sync.Mutex
	loaded map[string]*time.Location
}

// Load finds a zone by its name in the database, such as Europe/Berlin; "" is
// UTC. Error: felix.InvalidArgument for a name that the database does not have.
func (z *Zones) Load(name string) (*time.Location, error) {
	if name == "" {
		return time.UTC, nil
	}
	z.mu.Lock()
	defer z.mu.Unlock()
	if loc := z.loaded[name]; loc != nil {
		return loc, nil
	}
	loc, err := readZone(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, felix.Errorf(felix.InvalidArgument,
			"time zone %q is not known: use a name of the IANA database, such as Europe/Berlin or UTC", name)
	}
	if err != nil {
		return nil, felix.Errorf(felix.Internal, "time zone %q: %v", name, err)
	}
	if z.loaded == nil {
		z.loaded = map[string]*time.Location{}
	}
	z.loaded[name] = loc
	return loc, nil
}

// readZone parses a zone of the embedded database; fs.ErrNotExist if it has none
// of that name.
func readZone(name string) (*time.Location, error) {
	archive, err := zip.NewReader(strings.NewReader(zoneinfo), int64(len(zoneinfo)))
	if err != nil {
		return nil, fmt.Errorf("the embedded database: %w", err)
	}
	for _, f := range archive.File {
		if f.Name != name || f.FileInfo().IsDir() {
			continue
		}
		r, err := f.Open()
		if err != nil {
			return nil, err
		}
		data, err := io.ReadAll(r)
		if err := errors.Join(err, r.Close()); err != nil {
			return nil, err
		}
		return time.LoadLocationFromTZData(name, data)
	}
	return nil, fs.ErrNotExist
}
