package broker

import (
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/felix-go/felix/internal/raftlog"
	"github.com/felix-go/felix/internal/record"
)

// fixedLog is a log whose entries, from first to last, are all of one size.
type fixedLog struct {
	first, last uint64
	size        int64
}

func (l fixedLog) FirstIndex() (uint64, error) { return l.first, nil }

func (l fixedLog) SizeAbove(index uint64) int64 {
	return l.size * int64(l.last-max(min(index, l.last), l.first-1))
}

func TestTruncateTo(t *testing.T) {
	log := fixedLog{first: 101, last: 1000, size: 1 << 20}
	const flushed = 900
	for name, c := range map[string]struct {
		followers []follower
		kept      int64
		want      uint64
	}{
		"nobody":                      {nil, 0, 900},
		"all have it":                 {[]follower{{match: 1000}, {match: 900}}, 0, 900},
		"one is behind":               {[]follower{{match: 1000}, {match: 890}}, 0, 890},
		"the last of two":             {[]follower{{match: 886}, {match: 890}}, 0, 886},
		"as much as may be":           {[]follower{{match: 884}}, 0, 884},
		"more than may be":            {[]follower{{match: 883}}, 0, 900},
		"one needs too much":          {[]follower{{match: 890}, {match: 300}}, 0, 890},
		"what is above is not kept":   {[]follower{{match: 884}, {match: 950}}, 0, 884},
		"heard of just in time":       {[]follower{{match: 890, silent: keepSilent}}, 0, 890},
		"not heard of for too long":   {[]follower{{match: 890, silent: keepSilent + 1}}, 0, 900},
		"a snapshot":                  {[]follower{{match: 890, snapshot: 895}}, 0, 895},
		"a snapshot may need more":    {[]follower{{match: 3, snapshot: 644}}, 0, 644},
		"but not everything":          {[]follower{{match: 3, snapshot: 643}}, 0, 900},
		"a snapshot for a silent one": {[]follower{{snapshot: 890, silent: time.Hour}}, 0, 900},
		"new, nothing sent yet":       {[]follower{{match: 0}}, 0, 900},
		"all logs keep much":          {[]follower{{match: 890}}, keepAllBytes, 890},
		"all logs keep too much":      {[]follower{{match: 890}}, keepAllBytes + 1, 900},
	} {
		t.Run(name, func(t *testing.T) {
			if got := truncateTo(log, flushed, c.followers, c.kept); got != c.want {
				t.Errorf("truncated up to %d, want %d", got, c.want)
			}
		})
	}
	// What the log does not have any more is kept for nobody, however small.
	small := fixedLog{first: 101, last: 1000, size: 1}
	for match, want := range map[uint64]uint64{99: 900, 100: 100, 101: 101} {
		if got := truncateTo(small, flushed, []follower{{match: match}}, 0); got != want {
			t.Errorf("a follower that ends at %d: truncated up to %d, want %d", match, got, want)
		}
	}
}

// TestKeptLogIsNotUnflushed: log that is there for others asks for no checkpoint.
func TestKeptLogIsNotUnflushed(t *testing.T) {
	log, err := raftlog.Open("log", raftlog.Options{FS: vfs.NewMem()})
	if err != nil {
		t.Fatal(err)
	}
	s, err := log.Shard(7)
	if err == nil {
		err = log.Commit([]raftlog.Append{{Shard: s, Entries: someEntries(1, 100, 1)}})
	}
	if err != nil {
		t.Fatal(err)
	}
	r := &replica{log: s, flushed: record.Applied{Index: 90}}
	if got, want := r.unflushedBytes(), s.Size()/10; got != want {
		t.Errorf("%d bytes are unflushed, want %d", got, want)
	}
	if err := log.Close(); err != nil {
		t.Fatal(err)
	}
}
