package redisapi

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strconv"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/netloop"
	"github.com/felix-go/felix/internal/resp"
)

const (
	// scanPage is how many keys are read at once, so that many small SCANs cost
	// one read.
	scanPage = 1000
	// maxScanReads bounds the pages that one SCAN reads: behind many records
	// that were deleted, pages are short or empty. Redis bounds its search
	// through empty buckets alike, at ten times COUNT.
	maxScanReads = 10
	// maxKeysBytes bounds the keys that one KEYS answers with.
	maxKeysBytes = 64 << 20
)

// scanRequest is a parsed SCAN.
type scanRequest struct {
	cursor  uint64
	pattern []byte // nil matches all
	count   int
	nothing bool // TYPE asks for a type that no key has
}

// parseScan reads a SCAN; the page is read apart from the loop.
func parseScan(s *session, cmd *command, args [][]byte, t *netloop.Turn) outcome {
	cursor, err := strconv.ParseUint(string(args[1]), 10, 64)
	if err != nil {
		return s.fail(cmd, "ERR invalid cursor")
	}
	req, refusal := parseScanOptions(args[2:])
	if refusal != "" {
		return s.fail(cmd, refusal)
	}
	req.cursor = cursor
	return s.runSlow(t, cmd, func(ctx context.Context, b []byte) []byte { return s.scan(ctx, cmd, b, req) })
}

func parseScanOptions(words [][]byte) (req scanRequest, refusal string) {
	req.count = 10
	for ; len(words) > 0; words = words[2:] {
		if len(words) < 2 {
			return req, msgSyntax
		}
		switch value := words[1]; {
		case equalFold(words[0], "count"):
			count, ok := resp.ParseInt(value)
			if !ok {
				return req, msgNotInteger
			}
			if count < 1 {
				return req, msgSyntax
			}
			req.count = int(min(count, felix.MaxScanPage))
		case equalFold(words[0], "match"):
			if req.pattern = value; string(value) == "*" {
				req.pattern = nil
			}
		case equalFold(words[0], "type"):
			req.nothing = !equalFold(value, "string")
		default:
			return req, msgSyntax
		}
	}
	return req, ""
}

// scan answers a SCAN: it looks at count keys and shows those that match.
func (s *session) scan(ctx context.Context, cmd *command, b []byte, req scanRequest) []byte {
	at := position{scope: s.scope, more: true}
	if req.cursor != 0 {
		var ok bool
		if at, ok = s.h.cursors.take(req.cursor, s.scope); !ok {
			return resp.AppendError(b, "ERR unknown cursor: it is of another cache, or was forgotten; start again with SCAN 0")
		}
	}
	prefix := literalPrefix(req.pattern)
	if !bytes.Equal(prefix, at.prefix) {
		at.prefix = bytes.Clone(prefix)
		at.forgetPage()
	}
	for reads := 0; len(at.page) < req.count && at.more && reads < maxScanReads; reads++ {
		if err := s.readPage(ctx, &at, max(req.count, scanPage)); err != nil {
			return resp.AppendError(b, s.errorText(cmd, felix.AsError(err)))
		}
	}
	looked := at.advance(req.count)
	next := uint64(0)
	if len(at.page) > 0 || at.more {
		next = s.h.cursors.put(at)
	}
	matches := looked[:0:0]
	for _, key := range looked {
		if !req.nothing && (req.pattern == nil || glob(req.pattern, key, false)) {
			matches = append(matches, key)
		}
	}
	b = resp.AppendArray(b, 2)
	b = resp.AppendBulkString(b, strconv.FormatUint(next, 10))
	b = resp.AppendArray(b, len(matches))
	for _, key := range matches {
		b = resp.AppendBulk(b, key)
	}
	clear(looked) // the rest of the page shares its memory
	return b
}

// advance takes up to count keys from the page. Behind the last of a page the
// position is where the next one begins, which may be far beyond that key.
func (p *position) advance(count int) (looked [][]byte) {
	looked = p.page[:min(count, len(p.page))]
	p.page = p.page[len(looked):]
	switch {
	case len(p.page) == 0:
		p.page, p.after = nil, p.next
	case len(looked) > 0:
		p.after = looked[len(looked)-1]
	}
	return looked
}

// readPage appends the keys behind the page to it. There may be none although
// there are more further on: only more says whether to read on.
func (s *session) readPage(ctx context.Context, at *position, limit int) error {
	cache, err := s.open(ctx)
	if err != nil {
		return err
	}
	page, err := cache.Scan(ctx, felix.ScanRequest{
		View: felix.ViewRedis, Prefix: at.prefix, After: at.next, Limit: limit, KeysOnly: true,
	})
	if err != nil {
		return err
	}
	at.page = slices.Grow(at.page, len(page.Items))
	for i := range page.Items {
		at.page = append(at.page, page.Items[i].Key)
	}
	at.more, at.next = page.More, page.Next
	return nil
}

// parseKeys reads all keys page by page; only those that match are kept.
func parseKeys(s *session, cmd *command, args [][]byte, t *netloop.Turn) outcome {
	pattern := args[1]
	return s.runSlow(t, cmd, func(ctx context.Context, b []byte) []byte {
		var (
			found []byte
			n     int
			at    = position{scope: s.scope, prefix: literalPrefix(pattern), more: true}
		)
		for at.more {
			if err := s.readPage(ctx, &at, scanPage); err != nil {
				return resp.AppendError(b, s.errorText(cmd, felix.AsError(err)))
			}
			for _, key := range at.advance(len(at.page)) {
				if glob(pattern, key, false) {
					found = resp.AppendBulk(found, key)
					n++
				}
			}
			if len(found) > maxKeysBytes {
				return resp.AppendError(b, fmt.Sprintf(
					"ERR the keys that match have more than %d bytes: use SCAN, or a narrower pattern", maxKeysBytes))
			}
		}
		return append(resp.AppendArray(b, n), found...)
	})
}
