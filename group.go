package felix

// Group is a run of a batch's operations that is evaluated at one moment, with
// nothing in between, and whose effects are one log entry: all of it survives or
// nothing. All its keys are of one shard; otherwise each operation answers
// ErrCrossShard. One that is too large for an entry (MaxGroupBytes), or reads
// more than the broker has room for, answers resource_exhausted with each
// operation.
type Group struct {
	From, To int32 // Ops[From:To], at least one
	// AllOrNothing applies nothing if any operation of the group answers an
	// error or is not Applied. (A Get cannot fail so, nor a Delete without a
	// condition of what is not there.) Without it only a Check that does not hold
	// has that effect: as Redis's EXEC, where one command's error does not stop
	// the next. The first operation that fails so tells why; all others of the
	// group, whether before or after it, are Aborted, but illegal ones, which
	// always say so.
	AllOrNothing bool
	// Once is the id of the whole group, or nil; its operations have none. No
	// build evaluates it yet: such a group is refused as invalid_argument.
	Once *Once
}

// Stops says whether the answer to an operation of the group has the effect that
// nothing of the group is applied.
func (g *Group) Stops(op *Op, r *Reply) bool {
	switch {
	case op.Kind == Check:
		return r.Err != nil || !r.Applied
	case !g.AllOrNothing:
		return false
	case r.Err != nil:
		return true
	case op.Kind == Get || op.Kind == Delete && op.If == Always:
		return false
	}
	return !r.Applied
}
