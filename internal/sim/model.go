package sim

import (
	"fmt"
	"strconv"

	"github.com/anishathalye/porcupine"

	"github.com/felix-go/felix"
)

// register is a key in one view, as the promises describe it: nothing here knows
// how Felix does it. What is not known of it is 0 or, of the expiry, someTime.
type register struct {
	has     bool
	data    int64 // the sum, or the number that the value is
	version uint64
	expiry  int64
}

// someTime is an expiry that nobody was told.
const someTime = -1

// input is an operation; known says whether its answer is.
type input struct {
	op    felix.Op
	data  int64
	known bool
}

// output is what a client was told.
type output struct {
	applied, found bool
	data, delta    int64
	version        uint64
	expiry, now    int64
}

func inputOf(op *felix.Op, known bool) input {
	in := input{op: *op, data: op.Int, known: known}
	if op.Kind == felix.Set {
		in.data = setTo(op)
	}
	return in
}

func outputOf(r *felix.Reply, view felix.View) output {
	out := output{applied: r.Applied, found: r.Found != felix.NoRecord, data: r.Int, delta: r.Delta, version: r.Version, expiry: r.ExpiresAtMillis, now: r.NowMillis}
	if view == felix.ViewValue && out.found {
		out.data, _ = strconv.ParseInt(string(r.Value), 10, 64)
	}
	return out
}

// registers is the sequential specification of keys.
func registers() porcupine.Model {
	m := porcupine.NondeterministicModel{
		Init: func() []any { return []any{register{}} },
		Step: func(s, in, out any) (next []any) {
			for _, r := range s.(register).step(in.(input), out.(output)) {
				next = append(next, r)
			}
			return next
		},
		DescribeOperation: func(in, out any) string {
			i := in.(input)
			return fmt.Sprintf("%s, known %v: %+v", describe(&i.op), i.known, out)
		},
	}
	return m.ToModel()
}

// step is what the register may be after the operation, if the answer is right;
// nothing if it is not.
func (s register) step(in input, out output) (next []register) {
	if s.has && s.mayShow(out) {
		next = append(next, s.present(in, out)...)
	}
	if !s.has || s.mayHaveExpired(out) {
		next = append(next, register{}.absent(in, out)...)
	}
	return next
}

// mayShow says whether the record may not have expired at the time of the answer.
func (s register) mayShow(out output) bool {
	return s.expiry <= 0 || out.now == 0 || s.expiry > out.now
}

func (s register) mayHaveExpired(out output) bool {
	return s.expiry == someTime || s.expiry > 0 && (out.now == 0 || s.expiry <= out.now)
}

// shown is the register as the answer shows it, if it may be that one.
func (s register) shown(out output) []register {
	switch {
	case !out.found || out.data != s.data,
		s.version != 0 && out.version != s.version,
		s.expiry != someTime && out.expiry != s.expiry, s.expiry == someTime && out.expiry == 0:
		return nil
	}
	s.version, s.expiry = out.version, out.expiry
	return []register{s}
}

// present is the operation on a register that has something.
func (s register) present(in input, out output) []register {
	op := &in.op
	switch op.Kind {
	case felix.Get:
		return s.shown(out)
	case felix.Add:
		return s.added(in, out)
	}
	met, unmet := op.If != felix.IfAbsent, op.If == felix.IfAbsent
	if op.If == felix.IfVersion {
		met, unmet = s.version == 0 || s.version == op.Version, s.version != op.Version
	}
	var next []register
	if met && (!in.known || out.applied) {
		if op.Kind == felix.Delete {
			next = append(next, register{})
		} else {
			next = append(next, s.written(in, out, in.data)...)
		}
	}
	switch {
	case !unmet, in.known && (out.applied || op.If == felix.IfVersion && out.version == op.Version):
	case in.known:
		next = append(next, s.shown(out)...)
	default:
		next = append(next, s)
	}
	return next
}

// added is an add to a register that has something.
func (s register) added(in input, out output) []register {
	b, sum := in.op.Bounds, s.data+in.data
	switch {
	case b == nil || sum <= b.Max:
	case b.Saturate:
		sum = b.Max
	case !in.known:
		return []register{s}
	case out.applied || out.delta != 0:
		return nil
	default:
		return s.shown(out)
	}
	if in.known && (!out.applied || b != nil && out.delta != sum-s.data) {
		return nil
	}
	return s.written(in, out, sum)
}

// absent is the operation on a register that has nothing.
func (s register) absent(in input, out output) []register {
	op := &in.op
	switch {
	case op.Kind == felix.Add && op.Bounds != nil && out.delta != in.data && in.known: // all that is added to nothing is within
		return nil
	case op.Kind == felix.Add, op.Kind == felix.Set && op.If != felix.IfPresent && op.If != felix.IfVersion:
		if in.known && !out.applied {
			return nil
		}
		return s.written(in, out, in.data)
	case in.known && (out.applied || out.found):
		return nil
	}
	return []register{{}}
}

// written is the register once the operation has written data.
func (s register) written(in input, out output, data int64) []register {
	next := register{has: true, data: data}
	switch in.op.TTL {
	case felix.TTLIn:
		next.expiry = someTime
	case felix.TTLInIfNone:
		if next.expiry = someTime; s.expiry > 0 {
			next.expiry = s.expiry
		}
	case felix.TTLKeep:
		next.expiry = s.expiry
	case felix.TTLDefault:
		if in.op.Kind == felix.Add {
			next.expiry = s.expiry
		}
	}
	if !in.known {
		return []register{next}
	}
	next.version = out.version
	if in.op.Kind == felix.Set {
		return []register{next}
	}
	fresh := in.op.TTL == felix.TTLIn || in.op.TTL == felix.TTLInIfNone && s.expiry == 0
	timed := fresh && out.expiry != out.now+in.op.ExpiryMillis
	switch {
	case out.data != data, timed, next.expiry != someTime && out.expiry != next.expiry, next.expiry == someTime && out.expiry == 0:
		return nil
	}
	next.expiry = out.expiry
	return []register{next}
}
