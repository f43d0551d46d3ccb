package httpapi

import (
	"bufio"
	"context"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/model"
)

// stream reads server-sent events.
type stream struct {
	t     *testing.T
	resp  *http.Response
	lines *bufio.Scanner
}

func openStream(t *testing.T, base, query, last string) *stream {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, base+"/v1/watch?"+query, nil)
	if err != nil {
		t.Fatal(err)
	}
	if last != "" {
		req.Header.Set("Last-Event-ID", last)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = resp.Body.Close() })
	return &stream{t, resp, bufio.NewScanner(resp.Body)}
}

// next is the next event, as kind and data, and its id.
func (s *stream) next() (event, id string) {
	s.t.Helper()
	kind, data := "", ""
	for s.lines.Scan() {
		switch name, value, _ := strings.Cut(s.lines.Text(), ": "); {
		case name == "id":
			id = value
		case name == "event":
			kind = value
		case name == "data":
			data = value
		case name == "" && kind != "":
			return kind + " " + data, id
		}
	}
	s.t.Fatalf("the stream has ended: %v", s.lines.Err())
	return "", ""
}

func (s *stream) want(want string) (id string) {
	s.t.Helper()
	got, id := s.next()
	if got != want {
		s.t.Errorf("the event is %s, want %s", got, want)
	}
	return id
}

// TestWatchStream: the state, changes, and going on behind the last event that was
// read, as a browser does.
func TestWatchStream(t *testing.T) {
	service := model.New(func() int64 { return 1 })
	base, _ := start(t, service, Options{})
	scope := felix.Scope{Tenant: "default", Namespace: "default", Cache: "w"}
	if _, _, _, err := service.CreateCache(t.Context(), scope, felix.CacheSettings{}); err != nil {
		t.Fatal(err)
	}
	cache, err := service.Cache(t.Context(), scope)
	if err != nil {
		t.Fatal(err)
	}
	do := func(ops ...felix.Op) {
		t.Helper()
		if _, err := felix.Do(t.Context(), cache, ops...); err != nil {
			t.Fatal(err)
		}
	}
	do(felix.Op{Kind: felix.Add, Key: []byte("k"), Int: 5})
	s := openStream(t, base, "cache=w&key=k&initial=true", "")
	if got := s.resp.Header.Get("Content-Type"); s.resp.StatusCode != http.StatusOK || got != "text/event-stream" {
		t.Fatalf("%s %s", s.resp.Status, got)
	}
	s.want(`put {"key":"k","value":"5","expiresAtMillis":"0","version":"1","skipped":false}`)
	s.want(`synced {}`)
	do(felix.Op{Kind: felix.Add, Key: []byte("k"), Int: 1})
	id := s.want(`put {"key":"k","value":"6","expiresAtMillis":"0","version":"2","skipped":false}`)
	_ = s.resp.Body.Close()
	do(felix.Op{Kind: felix.Delete, Key: []byte("k")})
	s = openStream(t, base, "cache=w&key=k&initial=true&resume=AAAA", id) // the header is newer
	s.want(`synced {}`)
	s.want(`delete {"key":"k","expiresAtMillis":"0","version":"0","skipped":false}`)

	values := openStream(t, base, "cache=w&view=values&prefixBytes="+url.QueryEscape("_w=="), "")
	values.want(`synced {}`)
	do(felix.Op{Kind: felix.Set, View: felix.ViewValue, Key: []byte("\xff"), Value: []byte("<b>")},
		felix.Op{Kind: felix.Set, View: felix.ViewValue, Key: []byte("\xff"), Value: []byte("\xfe\n")})
	values.want(`put {"keyBytes":"/w==","value":"<b>","expiresAtMillis":"0","version":"3","skipped":false}`)
	values.want(`put {"keyBytes":"/w==","valueBytes":"/go=","expiresAtMillis":"0","version":"4","skipped":false}`)

	if err := service.DeleteCache(t.Context(), scope); err != nil {
		t.Fatal(err)
	}
	if got, _ := values.next(); !strings.HasPrefix(got, `error {"code":"cache_not_found",`) {
		t.Errorf("a deleted cache ends the stream with %s", got)
	}
}

// TestWatchRefused: what cannot be watched is an ordinary error.
func TestWatchRefused(t *testing.T) {
	service := model.New(func() int64 { return 1 })
	base, _ := start(t, service, Options{})
	for query, code := range map[string]felix.Code{
		"cache=none": felix.CacheNotFound, "cache=none&prefx=a": felix.InvalidArgument, "cache=none&key=": felix.InvalidArgument,
		"cache=none&view=all": felix.InvalidArgument, "cache=none&initial=perhaps": felix.InvalidArgument,
		"cache=none&resume=*": felix.InvalidArgument, "cache=none&key=a&prefix=b": felix.InvalidArgument,
		"cache=none&keyBytes=*": felix.InvalidArgument, "cache=none&key=a&key=b": felix.InvalidArgument, "": felix.InvalidArgument,
	} {
		resp := openStream(t, base, query, "").resp
		if got := resp.Header.Get(errorCodeHeader); got != code.String() || resp.StatusCode != code.Info().HTTPStatus {
			t.Errorf("%q is answered with %s %q, want %s", query, resp.Status, got, code)
		}
	}
}
