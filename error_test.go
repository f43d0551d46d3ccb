package felix_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/felix-go/felix"
)

// TestCodes is the table of design.md section 7, code by code.
func TestCodes(t *testing.T) {
	want := []struct {
		code felix.Code
		info felix.CodeInfo
	}{
		{felix.InvalidArgument, felix.CodeInfo{Name: "invalid_argument", Connect: 3, HTTPStatus: 400, RESP: "ERR", Exit: 2}},
		{felix.Unauthenticated, felix.CodeInfo{Name: "unauthenticated", Connect: 16, HTTPStatus: 401, RESP: "NOAUTH", Exit: 4}},
		{felix.PermissionDenied, felix.CodeInfo{Name: "permission_denied", Connect: 7, HTTPStatus: 403, RESP: "NOPERM", Exit: 4}},
		{felix.CacheNotFound, felix.CodeInfo{Name: "cache_not_found", Connect: 5, HTTPStatus: 404, RESP: "ERR", Exit: 5}},
		{felix.CounterNotFound, felix.CodeInfo{Name: "counter_not_found", Connect: 5, HTTPStatus: 404, RESP: "ERR", Exit: 5}},
		{felix.ValueNotFound, felix.CodeInfo{Name: "value_not_found", Connect: 5, HTTPStatus: 404, RESP: "ERR", Exit: 5}},
		{felix.NodeNotFound, felix.CodeInfo{Name: "node_not_found", Connect: 5, HTTPStatus: 404, RESP: "ERR", Exit: 5}},
		{felix.ShardNotFound, felix.CodeInfo{Name: "shard_not_found", Connect: 5, HTTPStatus: 404, RESP: "ERR", Exit: 5}},
		{felix.FeatureNotFound, felix.CodeInfo{Name: "feature_not_found", Connect: 5, HTTPStatus: 404, RESP: "ERR", Exit: 5}},
		{felix.AlreadyExists, felix.CodeInfo{Name: "already_exists", Connect: 6, HTTPStatus: 409, RESP: "ERR", Exit: 4}},
		{felix.IDReused, felix.CodeInfo{Name: "id_reused", Connect: 6, HTTPStatus: 409, RESP: "IDREUSED", Exit: 4}},
		{felix.OutOfRange, felix.CodeInfo{Name: "out_of_range", Connect: 11, HTTPStatus: 400, RESP: "ERR", Exit: 4}},
		{felix.ResourceExhausted, felix.CodeInfo{Name: "resource_exhausted", Connect: 8, HTTPStatus: 429, RESP: "TRYAGAIN", Exit: 4}},
		{felix.Unavailable, felix.CodeInfo{Name: "unavailable", Connect: 14, HTTPStatus: 503, RESP: "CLUSTERDOWN", Exit: 3}},
		{felix.OutcomeUnknown, felix.CodeInfo{Name: "outcome_unknown", Connect: 4, HTTPStatus: 504, RESP: "UNKNOWN", Exit: 3}},
		{felix.Internal, felix.CodeInfo{Name: "internal", Connect: 13, HTTPStatus: 500, RESP: "ERR", Exit: 1}},
	}
	all := felix.Codes()
	if len(all) != len(want) {
		t.Fatalf("there are %d codes, the table has %d", len(all), len(want))
	}
	for i, w := range want {
		if all[i] != w.code || w.code.Info() != w.info || w.code.String() != w.info.Name {
			t.Errorf("code %d is %+v, want %+v", all[i], all[i].Info(), w.info)
		}
		if parsed, ok := felix.ParseCode(w.info.Name); !ok || parsed != w.code {
			t.Errorf("ParseCode(%q) is %v, %v", w.info.Name, parsed, ok)
		}
		unknown := w.code == felix.OutcomeUnknown || w.code == felix.Internal
		if got := felix.Errorf(w.code, "x").MayBeApplied(); got != unknown {
			t.Errorf("%v: MayBeApplied is %v", w.code, got)
		}
	}
	for _, c := range []felix.Code{0, felix.Internal + 1, 255} {
		if c.Info() != felix.Internal.Info() {
			t.Errorf("code %d is %+v, want internal", c, c.Info())
		}
	}
	for _, name := range []string{"", "INTERNAL", "unknown", "internal "} {
		if c, ok := felix.ParseCode(name); ok {
			t.Errorf("ParseCode(%q) is %v", name, c)
		}
	}
}

func TestErrors(t *testing.T) {
	e := felix.Errorf(felix.ResourceExhausted, "%d of %d", 3, 4)
	e.RetryAfter = time.Second
	if got := e.Error(); got != "resource_exhausted: 3 of 4" {
		t.Errorf("Error() is %q", got)
	}
	if got := felix.AsError(fmt.Errorf("while adding: %w", e)); got != e {
		t.Errorf("AsError of a wrapped error is %v", got)
	}
	if got := felix.AsError(nil); got != nil {
		t.Errorf("AsError(nil) is %v", got)
	}
	got := felix.AsError(errors.New("disk on fire"))
	if got == nil || got.Code != felix.Internal || got.Message != "disk on fire" {
		t.Errorf("AsError of another error is %v", got)
	}
	for err, code := range map[*felix.Error]felix.Code{
		felix.ErrNotInteger: felix.InvalidArgument, felix.ErrOverflow: felix.OutOfRange, felix.ErrInvalidExpire: felix.InvalidArgument,
	} {
		if err.Code != code {
			t.Errorf("%v: want the code %v", err, code)
		}
	}
	// Redis's own words: doors show them behind RESP's ERR.
	if felix.ErrNotInteger.Message != "value is not an integer or out of range" ||
		felix.ErrOverflow.Message != "increment or decrement would overflow" {
		t.Errorf("%q, %q", felix.ErrNotInteger.Message, felix.ErrOverflow.Message)
	}
}
