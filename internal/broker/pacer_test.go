package broker

import (
	"testing"
	"time"
)

// TestPacingCoversNearlyAllSyncs: a wait that is bound by RecentSync ends
// before the sync only where a sync is unlike those before, and not long after
// where they are all alike.
func TestPacingCoversNearlyAllSyncs(t *testing.T) {
	var p pacer
	for range 200 {
		p.observe(200 * time.Microsecond)
	}
	if got := p.RecentSync(); got < 190*time.Microsecond || got > 220*time.Microsecond {
		t.Errorf("syncs of 200 µs are waited for %v", got)
	}
	early := 0
	for i := range 400 {
		took := 100 * time.Microsecond
		if i%2 == 0 {
			took = 400 * time.Microsecond
		}
		if i >= 40 && p.RecentSync() < took {
			early++
		}
		p.observe(took)
	}
	if early > 0 {
		t.Errorf("of 360 syncs of 100 or 400 µs, %d outlast the wait", early)
	}
	if got := p.RecentSync(); got > 1200*time.Microsecond {
		t.Errorf("syncs of at most 400 µs are waited for %v", got)
	}
}
