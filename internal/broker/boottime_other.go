//go:build !linux

package broker

import "time"

// bootTime is a clock that goes on while the machine is suspended. Here Go's own
// is the best there is.
func bootTime() (t time.Duration, ok bool) { return 0, false }
