package broker

import (
	"errors"
	"fmt"

	"github.com/felix-go/felix/internal/raftlog"
	"github.com/felix-go/felix/internal/store"
)

// IsDamage says whether an error of Open, or one that Options.Fatal is told,
// means that files of the log or the state are damaged, missing or contradict
// each other: then only a copy of the data directory helps.
func IsDamage(err error) bool {
	return errors.Is(err, raftlog.ErrCorrupt) || errors.Is(err, store.ErrDamaged)
}

// dirError is an error that names the data directory which it is about.
type dirError struct {
	dir string
	err error
}

// Error implements error.
func (e *dirError) Error() string { return "data directory " + e.dir + ": " + e.err.Error() }

// Unwrap is for errors.Is and errors.As.
func (e *dirError) Unwrap() error { return e.err }

// inDir says which data directory an error is about, unless that is said already.
func inDir(dir string, err error) error {
	var told *dirError
	if errors.As(err, &told) {
		return err
	}
	return &dirError{dir, err}
}

// dirErrorf is a new error about a data directory.
func dirErrorf(dir, format string, args ...any) error { return inDir(dir, fmt.Errorf(format, args...)) }
