package feed

import (
	"encoding/binary"
	"math"

	"github.com/felix-go/felix"
)

// Position is how far the changes of a shard have been told: all of the entries
// before Index, and the first Writes writes of that one.
type Position struct {
	Index  uint64
	Writes uint32
	// Behind, if it is not 0, is an entry up to which changes may have been left
	// out: those that are still to be told are told as Skipped.
	Behind uint64
}

// Told says whether a change was told before the position.
func (p Position) Told(c *Change) bool {
	return c.Index < p.Index || c.Index == p.Index && c.Write < p.Writes
}

// After is the position behind a change.
func (p Position) After(item Item) Position {
	next := Position{Index: item.Index, Writes: item.Write + 1, Behind: max(p.Behind, item.Behind)}
	if next.Behind <= next.Index {
		next.Behind = 0
	}
	return next
}

// Token says how far a watch has told the changes of a cache.
type Token struct {
	Cache  uint64 // the id of the cache's first shard, which is never used again
	Shards []ShardPosition
}

// ShardPosition is the position in one shard.
type ShardPosition struct {
	Shard int // its number in the cache
	Position
}

// tokenFormat is the first byte of a token.
const tokenFormat = 1

var errToken = felix.Errorf(felix.InvalidArgument, "the token to resume from is none of this watch: begin without one")

// Append writes the token down, in at most felix.MaxWatchTokenBytes.
func (t *Token) Append(b []byte) []byte {
	b = append(b, tokenFormat)
	b = binary.AppendUvarint(b, t.Cache)
	b = binary.AppendUvarint(b, uint64(len(t.Shards)))
	for _, s := range t.Shards {
		b = binary.AppendUvarint(b, uint64(s.Shard))
		b = binary.AppendUvarint(b, s.Index)
		b = binary.AppendUvarint(b, uint64(s.Writes))
		b = binary.AppendUvarint(b, s.Behind)
	}
	return b
}

// ReadToken reads what Append wrote. Shards are in the order of their numbers,
// each once. The error is invalid_argument.
func ReadToken(b []byte) (Token, error) {
	if len(b) == 0 || len(b) > felix.MaxWatchTokenBytes || b[0] != tokenFormat {
		return Token{}, errToken
	}
	r := reader{rest: b[1:]}
	t := Token{Cache: r.number(math.MaxUint64)}
	n := r.number(felix.MaxShardsPerCache)
	last := -1
	for range n {
		s := ShardPosition{Shard: int(r.number(felix.MaxShardsPerCache - 1))}
		s.Index = r.number(math.MaxUint64)
		s.Writes = uint32(r.number(math.MaxUint32))
		s.Behind = r.number(math.MaxUint64)
		if r.bad || s.Shard <= last {
			return Token{}, errToken
		}
		last = s.Shard
		t.Shards = append(t.Shards, s)
	}
	if r.bad || len(r.rest) > 0 {
		return Token{}, errToken
	}
	return t, nil
}

// Find is the position of a shard.
func (t *Token) Find(shard int) (Position, bool) {
	for i := range t.Shards {
		if t.Shards[i].Shard == shard {
			return t.Shards[i].Position, true
		}
	}
	return Position{}, false
}

type reader struct {
	rest []byte
	bad  bool
}

func (r *reader) number(most uint64) uint64 {
	v, n := binary.Uvarint(r.rest)
	if r.bad || n <= 0 || v > most {
		r.bad = true
		return 0
	}
	r.rest = r.rest[n:]
	return v
}
