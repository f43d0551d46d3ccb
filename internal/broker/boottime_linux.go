package broker

import (
	"time"

	"golang.org/x/sys/unix"
)

// bootTime is a clock that goes on while the machine is suspended, as Go's own
// does not, or says that there is none.
func bootTime() (t time.Duration, ok bool) {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return 0, false
	}
	return time.Duration(ts.Nano()), true
}
