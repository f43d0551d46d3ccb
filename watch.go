package felix

import "context"

// WatchRequest says what to watch: the changes of one key, or of all keys that
// begin with a prefix, in one view.
type WatchRequest struct {
	// View is ViewCounter or ViewValue: counters and values are unrelated.
	View View
	// Key, if it is not nil, is the one key to watch; otherwise all that begin
	// with Prefix are, which is every key if it is empty.
	Key    []byte
	Prefix []byte
	// Initial asks for the current state first. On a quorum cache it has every
	// change that was acknowledged before Watch was called.
	Initial bool
	// Resume is the Token of an event of an earlier watch of the same keys: what
	// has changed since is told first. nil begins now. If that is not known any
	// more (the token is too old, or the cache was made again since) a WatchReset
	// and the current state come instead, whether Initial is set or not.
	Resume []byte
}

// Validate answers an invalid_argument error, or nil. It does not look into
// Resume: only who made it can.
func (r *WatchRequest) Validate() *Error {
	if r.View != ViewCounter && r.View != ViewValue {
		return Errorf(InvalidArgument, "view %d cannot be watched: counters or values can", r.View)
	}
	if r.Key != nil {
		if len(r.Prefix) > 0 {
			return Errorf(InvalidArgument, "a key or a prefix is watched, not both")
		}
		return ValidateKey(r.Key)
	}
	if len(r.Prefix) > MaxKeyBytes {
		return Errorf(InvalidArgument, "the prefix has %d bytes: no key has more than %d", len(r.Prefix), MaxKeyBytes)
	}
	return nil
}

// Wants says whether the watch is of this key.
func (r *WatchRequest) Wants(key []byte) bool {
	if r.Key != nil {
		return string(key) == string(r.Key)
	}
	return len(key) >= len(r.Prefix) && string(key[:len(r.Prefix)]) == string(r.Prefix)
}

// WatchKind says what an event tells.
type WatchKind uint8

// The kinds of event. A watch tells, in this order: WatchReset if a resume did
// not succeed; the current state, as WatchPut, if it was asked for or there was a
// reset; WatchSynced; and from then on every change, as WatchPut and WatchDelete.
// A WatchReset may come at any time; everything begins again behind it.
const (
	// WatchPut is a record as it is after a change, or at the beginning.
	WatchPut WatchKind = iota + 1
	// WatchDelete is a record that is gone: deleted, or expired and removed. What
	// has expired is not there from the moment that its last WatchPut named, but
	// it is told of when its shard's owner has removed it, which may be some
	// seconds later, and is not told of at all if it was written again before.
	WatchDelete
	// WatchSynced ends the current state. What follows are changes.
	WatchSynced
	// WatchReset says that changes cannot be told one by one: the cache was
	// cleared, or what has changed is not known any more. Forget what was told;
	// the current state follows.
	WatchReset
)

// String is the kind's name, the same on every door.
func (k WatchKind) String() string {
	switch k {
	case WatchPut:
		return "put"
	case WatchDelete:
		return "delete"
	case WatchSynced:
		return "synced"
	case WatchReset:
		return "reset"
	}
	return "unknown"
}

// WatchEvent is one event of a watch. A change is one record write of one
// committed log entry: several adds that share an entry are one change.
type WatchEvent struct {
	Kind WatchKind
	// Key, of WatchPut and WatchDelete. It must not be changed: watchers share it.
	Key []byte
	// Skipped says that changes of the key before this one were left out, since
	// the watcher did not take them in time (or, after a resume, that they may
	// have been). This event is the state after them.
	Skipped bool
	// Int is a counter's sum and Value a value's bytes, of a WatchPut. Value must
	// not be changed.
	Int             int64
	Value           []byte
	ExpiresAtMillis int64 // shard time; 0 is never
	// Version is that of the record that was put. It grows from event to event of
	// a key, also over its deletes, which have none.
	Version uint64
	// Token is where WatchRequest.Resume goes on behind this event. While the
	// state is told, and of a WatchReset, it is one with which a WatchReset and all
	// of the state come: a part of it is of no use. It has at most
	// MaxWatchTokenBytes.
	Token []byte
}

// Watcher is a running watch. Changes of one key come in order; those of keys
// that share a shard, too. One goroutine at a time may use it.
type Watcher interface {
	// Next waits for the next event. An error is the end of the watch, except
	// that of a ctx which has ended; with the last event's Token it can be resumed,
	// at any broker. The error is cache_not_found once the cache is deleted, and
	// unavailable when this broker cannot go on: it stops, or has no replica that
	// follows the shard's owner.
	Next(ctx context.Context) (WatchEvent, error)
	// Close ends the watch and frees what it holds. It may be called more than
	// once, and while Next waits, which it ends.
	Close()
}
