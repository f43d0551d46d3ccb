package felix

import (
	"errors"
	"fmt"
	"time"
)

// Code says what kind of failure an error is. The String of a code is its
// stable name, the same on every door.
type Code uint8

// The codes. Everything but OutcomeUnknown and Internal means: not applied.
const (
	// InvalidArgument is a bad name, key, number or option.
	InvalidArgument Code = iota + 1
	// Unauthenticated is a missing or wrong token.
	Unauthenticated
	// PermissionDenied is a token that does not allow this.
	PermissionDenied
	// CacheNotFound is an address without a cache.
	CacheNotFound
	// CounterNotFound is a counter never written, expired or deleted. Only
	// doors for which absence is an error use it; the Service answers "none".
	CounterNotFound
	// ValueNotFound is the same for a cache value.
	ValueNotFound
	// NodeNotFound is a node that the cluster does not have.
	NodeNotFound
	// ShardNotFound is a shard that the cache does not have.
	ShardNotFound
	// FeatureNotFound is a feature that the broker's build does not know.
	FeatureNotFound
	// AlreadyExists is the same name with other settings.
	AlreadyExists
	// IDReused is the same idempotency id with another operation.
	IDReused
	// OutOfRange is a sum that would overflow.
	OutOfRange
	// ResourceExhausted is backpressure or a cap; try again after RetryAfter.
	ResourceExhausted
	// Unavailable is no owner or no majority.
	Unavailable
	// OutcomeUnknown was sent, but the answer is lost: it may be applied.
	OutcomeUnknown
	// Internal is a bug; details are in the broker's log only.
	Internal
)

// CodeInfo is a code as each door shows it.
type CodeInfo struct {
	Name       string // on every door, in bodies and details
	Connect    uint32 // the gRPC and connect status code
	HTTPStatus int    // connect's HTTP status
	RESP       string // the first word of the RESP error
	Exit       int    // felixctl's exit status
}

// codes is the one table of codes; see design.md section 7.
var codes = [...]CodeInfo{
	InvalidArgument:   {"invalid_argument", 3, 400, "ERR", 2},
	Unauthenticated:   {"unauthenticated", 16, 401, "NOAUTH", 4},
	PermissionDenied:  {"permission_denied", 7, 403, "NOPERM", 4},
	CacheNotFound:     {"cache_not_found", 5, 404, "ERR", 5},
	CounterNotFound:   {"counter_not_found", 5, 404, "ERR", 5},
	ValueNotFound:     {"value_not_found", 5, 404, "ERR", 5},
	NodeNotFound:      {"node_not_found", 5, 404, "ERR", 5},
	ShardNotFound:     {"shard_not_found", 5, 404, "ERR", 5},
	FeatureNotFound:   {"feature_not_found", 5, 404, "ERR", 5},
	AlreadyExists:     {"already_exists", 6, 409, "ERR", 4},
	IDReused:          {"id_reused", 6, 409, "IDREUSED", 4},
	OutOfRange:        {"out_of_range", 11, 400, "ERR", 4},
	ResourceExhausted: {"resource_exhausted", 8, 429, "TRYAGAIN", 4},
	Unavailable:       {"unavailable", 14, 503, "CLUSTERDOWN", 3},
	OutcomeUnknown:    {"outcome_unknown", 4, 504, "UNKNOWN", 3},
	Internal:          {"internal", 13, 500, "ERR", 1},
}

// Info is the code's row of the table; an unknown code is Internal.
func (c Code) Info() CodeInfo {
	if c == 0 || int(c) >= len(codes) {
		return codes[Internal]
	}
	return codes[c]
}

// String is the code's stable name.
func (c Code) String() string { return c.Info().Name }

// Codes lists every code.
func Codes() []Code {
	all := make([]Code, 0, len(codes)-1)
	for c := InvalidArgument; int(c) < len(codes); c++ {
		all = append(all, c)
	}
	return all
}

// ParseCode finds a code by its name.
func ParseCode(name string) (Code, bool) {
	for _, c := range Codes() {
		if codes[c].Name == name {
			return c, true
		}
	}
	return 0, false
}

// Error is the one error type of Felix. Message is for people and says what to
// do; Code is for programs.
type Error struct {
	Code    Code
	Message string
	// RetryAfter is how long to wait before trying again; only
	// ResourceExhausted and Unavailable have one.
	RetryAfter time.Duration
}

// Error is the message with the code's name before it.
func (e *Error) Error() string { return e.Code.String() + ": " + e.Message }

// MayBeApplied says whether the operation may have been applied all the same.
func (e *Error) MayBeApplied() bool { return e.Code == OutcomeUnknown || e.Code == Internal }

// Errorf makes an error.
func Errorf(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// AsError finds the *Error in err; any other error is Internal, with its text,
// which a door logs and does not show. nil stays nil.
func AsError(err error) *Error {
	if err == nil {
		return nil
	}
	var e *Error
	if errors.As(err, &e) {
		return e
	}
	return &Error{Code: Internal, Message: err.Error()}
}

// Errors that operations answer with; doors compare them by identity to use
// their protocol's own words.
var (
	// ErrNotInteger is an Add in the Redis view on a value that is no integer.
	ErrNotInteger = Errorf(InvalidArgument, "value is not an integer or out of range")
	// ErrOverflow is an Add whose sum would overflow.
	ErrOverflow = Errorf(OutOfRange, "increment or decrement would overflow")
	// ErrInvalidExpire is an expiry that is not positive where it must be, or
	// that overflows.
	ErrInvalidExpire = Errorf(InvalidArgument, "invalid expire time")
	// ErrIDReused is an operation with the idempotency id of another one.
	ErrIDReused = Errorf(IDReused, "the idempotency id was used for another operation")
	// ErrCrossShard is a Group whose keys are of more than one shard.
	ErrCrossShard = Errorf(InvalidArgument,
		"the keys of an atomic group must be of one shard: give them the same {tag}")
)
