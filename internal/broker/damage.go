package broker

import (
	"errors"

	"github.com/felix-go/felix/internal/raftlog"
	"github.com/felix-go/felix/internal/store"
)

// IsDamage says whether an error of Open, or one that Options.Fatal is told,
// means that files of the log or the state are damaged, missing or contradict
// each other: then only a copy of the data directory helps.
func IsDamage(err error) bool {
	return errors.Is(err, raftlog.ErrCorrupt) || errors.Is(err, store.ErrDamaged)
}
