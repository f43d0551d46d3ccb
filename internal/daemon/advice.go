package daemon

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/felix-go/felix/internal/broker"
)

// advised adds to an error of the data directory what to do about it, where its
// own words only say what is the matter.
func advised(err error) error {
	advice := ""
	switch {
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		advice = "make room and start again: everything that was acknowledged is there"
	case errors.Is(err, syscall.EIO):
		advice = "look after the disk; if the data directory is whole it starts again, otherwise restore all of it from a backup"
	case broker.IsDamage(err):
		advice = "restore the whole data directory from a backup"
	default:
		return err
	}
	return fmt.Errorf("%w; %s", err, advice)
}
