package redisapi

import (
	"context"
	"math"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/netloop"
	"github.com/felix-go/felix/internal/resp"
)

// parseExists, as parseDel, makes one operation per key and is answered with
// a number. A key given twice counts as often as Redis counts it.
func parseExists(s *session, cmd *command, args [][]byte, t *netloop.Turn) outcome {
	return s.eachKey(t, cmd, args, felix.Get, renderFound)
}

func parseDel(s *session, cmd *command, args [][]byte, t *netloop.Turn) outcome {
	return s.eachKey(t, cmd, args, felix.Delete, renderApplied)
}

func parseType(s *session, cmd *command, args [][]byte, t *netloop.Turn) outcome {
	s.op(t, cmd, felix.Get, args[1], renderType)
	return done
}

// parseLifetime makes the parse function of TTL and its kin.
func parseLifetime(r render) parseFunc {
	return func(s *session, cmd *command, args [][]byte, t *netloop.Turn) outcome {
		s.op(t, cmd, felix.Get, args[1], r)
		return done
	}
}

func parsePersist(s *session, cmd *command, args [][]byte, t *netloop.Turn) outcome {
	s.op(t, cmd, felix.Expire, args[1], renderApplied).TTL = felix.TTLClear
	return done
}

// parseExpire makes the parse function of EXPIRE and its kin: unit is how many
// milliseconds one of the argument is.
func parseExpire(ttl felix.TTL, unit int64) parseFunc {
	return func(s *session, cmd *command, args [][]byte, t *netloop.Turn) outcome {
		cond, refusal := parseExpireIf(args[3:])
		if refusal != "" {
			return s.fail(cmd, refusal)
		}
		millis, ok := resp.ParseInt(args[2])
		if !ok {
			return s.fail(cmd, msgNotInteger)
		}
		if millis > math.MaxInt64/unit || millis < math.MinInt64/unit {
			return s.fail(cmd, invalidExpire(cmd))
		}
		op := s.op(t, cmd, felix.Expire, args[1], renderApplied)
		op.TTL, op.ExpiryMillis, op.ExpireIf = ttl, millis*unit, cond
		return done
	}
}

// parseExpireIf reads the conditions of an EXPIRE.
func parseExpireIf(words [][]byte) (cond felix.ExpireIf, refusal string) {
	for _, word := range words {
		switch {
		case equalFold(word, "nx"):
			cond |= felix.ExpireIfNone
		case equalFold(word, "xx"):
			cond |= felix.ExpireIfSome
		case equalFold(word, "gt"):
			cond |= felix.ExpireIfLater
		case equalFold(word, "lt"):
			cond |= felix.ExpireIfSooner
		default:
			return 0, "ERR Unsupported option " + string(shown(word, len(word)))
		}
	}
	if cond&felix.ExpireIfNone != 0 && cond != felix.ExpireIfNone {
		return 0, "ERR NX and XX, GT or LT options at the same time are not compatible"
	}
	const both = felix.ExpireIfLater | felix.ExpireIfSooner
	if cond&both == both {
		return 0, "ERR GT and LT options at the same time are not compatible"
	}
	return cond, ""
}

// parseFlush is FLUSHDB and FLUSHALL: a connection sees one cache, which is all
// that either clears.
func parseFlush(s *session, cmd *command, args [][]byte, t *netloop.Turn) outcome {
	if len(args) > 2 || len(args) == 2 && !equalFold(args[1], "sync") && !equalFold(args[1], "async") {
		return s.fail(cmd, msgSyntax)
	}
	return s.runSlow(t, cmd, func(ctx context.Context, b []byte) []byte {
		cache, err := s.open(ctx)
		if err == nil {
			err = cache.Clear(ctx)
		}
		if err != nil {
			return resp.AppendError(b, s.errorText(cmd, felix.AsError(err)))
		}
		return append(b, resp.OK...)
	})
}

func parseDbsize(s *session, cmd *command, _ [][]byte, t *netloop.Turn) outcome {
	return s.runSlow(t, cmd, func(ctx context.Context, b []byte) []byte {
		counts, err := s.count(ctx)
		if err != nil {
			return resp.AppendError(b, s.errorText(cmd, felix.AsError(err)))
		}
		return resp.AppendInt(b, counts.Keys)
	})
}

func (s *session) count(ctx context.Context) (felix.RecordCount, error) {
	cache, err := s.open(ctx)
	if err != nil {
		return felix.RecordCount{}, err
	}
	return cache.Count(ctx)
}
