package engine

import "github.com/felix-go/felix"

// Validate checks an operation before it enters a shard: key and value sizes,
// kinds, and combinations that mean nothing. The error is invalid_argument.
// Fields that the operation's kind does not use for anything (say, Int of a Get)
// are not looked at. It does not allocate when the operation is right.
func Validate(op *felix.Op) *felix.Error {
	if err := felix.ValidateKey(op.Key); err != nil {
		return err
	}
	if op.Kind < felix.Get || op.Kind > felix.Check {
		return refuse("operation kind %d is not known", op.Kind)
	}
	if op.View > felix.ViewRedis {
		return refuse("view %d is not known", op.View)
	}
	if op.TTL > felix.TTLAtIfNone {
		return refuse("ttl mode %d is not known", op.TTL)
	}
	if err := validateBounds(op); err != nil {
		return err
	}
	if op.Once != nil {
		if !op.Mutates() {
			return refuse("only what may change something takes an idempotency id")
		}
		if err := ValidateOnce(op.Once); err != nil {
			return err
		}
	}
	switch op.Kind {
	case felix.Add:
		if op.View == felix.ViewValue {
			return refuse("only counters can be added to: add in the counter or the Redis view")
		}
	case felix.Set:
		if err := validateSet(op); err != nil {
			return err
		}
	case felix.Get, felix.Delete:
		if op.TTL != felix.TTLDefault {
			return refuse("a get or delete takes no expiry")
		}
	case felix.Check:
		if op.If == felix.Always || op.TTL != felix.TTLDefault {
			return refuse("a check takes a condition, and no expiry")
		}
	}
	if op.ReturnOld && (op.Kind == felix.Get || op.Kind == felix.Add || op.Kind == felix.Check) {
		return refuse("only set, delete and expire can return the old record")
	}
	if err := validateIf(op); err != nil {
		return err
	}
	return validateExpireIf(op)
}

// ValidateOnce checks an idempotency id, of an operation or of a group of them.
// The error is invalid_argument.
func ValidateOnce(o *felix.Once) *felix.Error {
	if n := len(o.ID); n < 1 || n > felix.MaxIDBytes {
		return refuse("the idempotency id has %d bytes: it has 1 to %d", n, felix.MaxIDBytes)
	}
	if most := felix.MaxIDRetention.Milliseconds(); o.RetentionMillis < 0 || o.RetentionMillis > most {
		return refuse("a retention of %d ms: an idempotency id is kept for 1 to %d ms", o.RetentionMillis, most)
	}
	return nil
}

func validateSet(op *felix.Op) *felix.Error {
	if len(op.Value) > felix.MaxValueBytes {
		return refuse("the value has %d bytes, at most %d are allowed", len(op.Value), felix.MaxValueBytes)
	}
	if op.View == felix.ViewCounter && len(op.Value) != 0 {
		return refuse("a counter is set to a number, not to a value of %d bytes", len(op.Value))
	}
	return nil
}

func validateIf(op *felix.Op) *felix.Error {
	if op.If == felix.Always {
		return nil
	}
	if op.If > felix.IfVersion {
		return refuse("condition %d is not known", op.If)
	}
	if op.Kind != felix.Set && op.Kind != felix.Delete && op.Kind != felix.Check {
		return refuse("only a set, delete or check takes a condition on the record")
	}
	if op.Kind == felix.Delete && op.If == felix.IfAbsent {
		return refuse("a delete on condition that nothing is there does nothing")
	}
	return nil
}

func validateExpireIf(op *felix.Op) *felix.Error {
	cond := op.ExpireIf
	if cond == 0 {
		return nil
	}
	const all = felix.ExpireIfNone | felix.ExpireIfSome | felix.ExpireIfLater | felix.ExpireIfSooner
	if cond&^all != 0 {
		return refuse("expire condition %#x is not known", cond)
	}
	if op.Kind != felix.Expire || op.TTL != felix.TTLIn && op.TTL != felix.TTLAt {
		return refuse("only an expire with a new time takes a condition on the expiry")
	}
	if cond&felix.ExpireIfNone != 0 && cond != felix.ExpireIfNone {
		return refuse("an expire on condition of no expiry takes no other condition on it")
	}
	const both = felix.ExpireIfLater | felix.ExpireIfSooner
	if cond&both == both {
		return refuse("a new expiry cannot be both later and sooner")
	}
	return nil
}

func refuse(format string, args ...any) *felix.Error {
	return felix.Errorf(felix.InvalidArgument, format, args...)
}
