package redisapi

import (
	"github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/netloop"
)

// progress is how far a turn is answered, which is done in parts if the answers
// are large.
type progress struct {
	requests int // answered as a whole
	replies  int // of the turn's, those of these requests
	known    int // of the known bytes, those of these requests
	part     int // of the next request: values that have been answered, or bytes of its slow reply
}

// Reply implements netloop.Session.
func (s *session) Reply(out []byte, replies []felix.Reply) (_ []byte, left int) {
	for s.answered.requests < len(s.requests) {
		if len(out) >= netloop.AnswerBytes {
			return out, s.unanswered(replies)
		}
		r := &s.requests[s.answered.requests]
		before, first := len(out), s.answered.part == 0
		out = s.answer(out, r, replies)
		if first && len(out) > before && out[before] == '-' {
			s.h.counts[r.cmd.index].failed.Add(1)
		}
		if r.silent {
			out = out[:before]
		}
	}
	s.flushCounts()
	s.endTurn()
	return out, 0
}

// answer appends the answer to a request, or the next part of it.
func (s *session) answer(out []byte, r *request, replies []felix.Reply) []byte {
	at := &s.answered
	done := true
	switch r.render {
	case renderExec:
		return s.answerExec(out, r, replies)
	case renderWatch:
		out = s.watched(out, r, replies[at.replies:at.replies+r.ops])
	case renderKnown:
		out = append(out, s.known[at.known:at.known+r.bytes]...)
	case renderSlow:
		rest := s.slow[at.part:]
		n := min(len(rest), netloop.AnswerBytes)
		out = append(out, rest[:n]...)
		at.part += n
		done = n == len(rest)
	case renderValues:
		out, at.part = s.renderValues(out, r, replies[at.replies:at.replies+r.ops], at.part)
		done = at.part == r.ops
	default:
		out = s.render(out, r, replies[at.replies:at.replies+r.ops])
	}
	if done {
		at.requests++
		at.replies += r.ops
		at.known += r.bytes
		at.part = 0
	}
	return out
}

// unanswered is how much of the turn's answers is still held, roughly, and not
// 0.
func (s *session) unanswered(replies []felix.Reply) int {
	n := 1 + len(s.known) - s.answered.known + len(s.slow)
	for i := s.answered.replies; i < len(replies); i++ {
		n += len(replies[i].Value)
	}
	return n
}

// endTurn forgets the turn, and gives large memory back.
func (s *session) endTurn() {
	clear(s.requests)
	s.requests, s.known, s.slow = s.requests[:0], s.known[:0], s.slow[:0]
	if cap(s.requests) > retainedRequests {
		s.requests = nil
	}
	if cap(s.known) > retainedBytes {
		s.known = nil
	}
	if cap(s.slow) > retainedBytes {
		s.slow = nil
	}
	s.values, s.answered, s.watching = 0, progress{}, nil
	s.parser.Release()
}
