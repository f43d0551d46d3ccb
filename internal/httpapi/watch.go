package httpapi

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/felix-go/felix"
)

// watchPath is where changes are streamed as server-sent events.
const watchPath = "/v1/watch"

// heartbeat is after how long without an event a comment is sent, so that both
// sides, and proxies, know that the other is there.
const heartbeat = 10 * time.Second

// watchEvent is the data of an event, with the names of the API's JSON: 64-bit
// numbers are strings, and what is no UTF-8 goes as bytes.
type watchEvent struct {
	Key             *string `json:"key,omitempty"`
	KeyBytes        []byte  `json:"keyBytes,omitempty"`
	Value           *string `json:"value,omitempty"`
	ValueBytes      []byte  `json:"valueBytes,omitempty"`
	ExpiresAtMillis int64   `json:"expiresAtMillis,string"`
	Version         uint64  `json:"version,string"`
	Skipped         bool    `json:"skipped"`
}

// watch streams the changes of a key or a prefix until the client goes or the
// watch ends: then the last event is an "error".
func (d *door) watch(w http.ResponseWriter, r *http.Request) {
	scope, req, err := watchRequest(r)
	var watcher felix.Watcher
	if err == nil {
		watcher, err = d.beginWatch(r.Context(), scope, req)
	}
	if err != nil {
		d.writeError(w, r, connectError(d.shown(r, err)))
		return
	}
	defer watcher.Close()
	s := &eventStream{w: w, control: http.NewResponseController(w), view: req.View, timeout: d.answerTimeout}
	_ = s.control.SetReadDeadline(time.Time{}) // httptest's writers have none; net/http watches whether the client hangs up
	h := w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Accel-Buffering", "no") // a proxy must not gather events
	s.deadline()
	w.WriteHeader(http.StatusOK)
	s.comment("felix")
	if err := s.run(r.Context(), watcher); err != nil {
		s.fail(d.shown(r, err))
	}
}

func (d *door) beginWatch(ctx context.Context, scope felix.Scope, req felix.WatchRequest) (felix.Watcher, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, d.timeout, fmt.Errorf("it took longer than %v", d.timeout))
	defer cancel()
	cache, err := d.service.Cache(ctx, scope)
	if err != nil {
		return nil, err
	}
	return cache.Watch(ctx, req)
}

// shown is an error as users see it.
func (d *door) shown(r *http.Request, err error) *felix.Error {
	e := felix.AsError(err)
	if e.Code.Info() == felix.Internal.Info() {
		d.log.Error("internal error in a request", "method", r.URL.Path, "error", e.Message)
		return hiddenError()
	}
	return e
}

// watchParameters are what a watch may be asked for.
var watchParameters = map[string]bool{"tenant": true, "namespace": true, "cache": true, "view": true, "key": true, "keyBytes": true,
	"prefix": true, "prefixBytes": true, "initial": true, "resume": true}

// watchRequest reads the query. The error is invalid_argument.
func watchRequest(r *http.Request) (felix.Scope, felix.WatchRequest, error) {
	var req felix.WatchRequest
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return felix.Scope{}, req, felix.Errorf(felix.InvalidArgument, "the query cannot be read: %v", err)
	}
	for name, values := range query {
		if !watchParameters[name] || len(values) > 1 {
			return felix.Scope{}, req, felix.Errorf(felix.InvalidArgument, "the parameter %.50q is not known, or given twice", name)
		}
	}
	scope, err := scopeOf(watchAddress{query})
	if err != nil {
		return scope, req, err
	}
	switch view := query.Get("view"); view {
	case "", "counters":
	case "values":
		req.View = felix.ViewValue
	default:
		return scope, req, felix.Errorf(felix.InvalidArgument, "view is %.50q: it is counters (also when left out) or values", view)
	}
	if req.Key, err = bytesOf(query, "key"); err != nil {
		return scope, req, err
	}
	if req.Prefix, err = bytesOf(query, "prefix"); err != nil {
		return scope, req, err
	}
	if initial := query.Get("initial"); initial != "" {
		if req.Initial, err = strconv.ParseBool(initial); err != nil {
			return scope, req, felix.Errorf(felix.InvalidArgument, "initial is %.50q: it is true or false", initial)
		}
	}
	token := query.Get("resume")
	if last := r.Header.Get("Last-Event-ID"); last != "" { // a browser that connects again
		token = last
	}
	if token != "" {
		if req.Resume, err = base64.RawURLEncoding.DecodeString(token); err != nil {
			return scope, req, felix.Errorf(felix.InvalidArgument, "the token to resume from is none: give the id of an event")
		}
	}
	if err := req.Validate(); err != nil {
		return scope, req, err
	}
	return scope, req, nil
}

// bytesOf reads a parameter in whichever form it came, nil: in none.
func bytesOf(query url.Values, name string) ([]byte, error) {
	encoded := query.Get(name + "Bytes")
	if query.Has(name) && encoded != "" {
		return nil, felix.Errorf(felix.InvalidArgument, "give %s or %sBytes, not both", name, name)
	}
	if encoded != "" {
		b, err := base64.URLEncoding.DecodeString(encoded)
		if err != nil {
			return nil, felix.Errorf(felix.InvalidArgument, "%sBytes is not base64 for URLs: %v", name, err)
		}
		return b, nil
	}
	if query.Has(name) {
		return []byte(query.Get(name)), nil
	}
	return nil, nil
}

// watchAddress is the address in a query.
type watchAddress struct{ query url.Values }

func (a watchAddress) GetTenant() string    { return a.query.Get("tenant") }
func (a watchAddress) GetNamespace() string { return a.query.Get("namespace") }
func (a watchAddress) GetCache() string     { return a.query.Get("cache") }

// eventStream writes server-sent events.
type eventStream struct {
	w       http.ResponseWriter
	control *http.ResponseController
	view    felix.View
	timeout time.Duration
	text    bytes.Buffer
	broken  error // the client has gone, or does not read
}

// deadline bounds how long the client may take to read what is sent next.
func (s *eventStream) deadline() {
	_ = s.control.SetWriteDeadline(time.Now().Add(s.timeout)) // httptest's writers have none
}

// run sends events until the client has gone, nil, or the watch has ended. What is
// there already goes out together.
func (s *eventStream) run(ctx context.Context, watcher felix.Watcher) error {
	none, cancel := context.WithCancel(ctx)
	cancel()
	for s.broken == nil {
		e, err := watcher.Next(none)
		if err != nil {
			s.flush()
			wait, cancel := context.WithTimeout(ctx, heartbeat)
			e, err = watcher.Next(wait)
			over := wait.Err() != nil
			cancel()
			switch {
			case ctx.Err() != nil:
				return nil
			case err != nil && over:
				s.comment("")
				continue
			case err != nil:
				return err
			}
		}
		s.event(&e)
	}
	return nil
}

// sendBytes is how much is gathered before it is sent.
const sendBytes = 64 << 10

// event writes an event.
func (s *eventStream) event(e *felix.WatchEvent) {
	fmt.Fprintf(&s.text, "id: %s\nevent: %s\n", base64.RawURLEncoding.EncodeToString(e.Token), e.Kind)
	s.data(s.message(e))
	if s.text.Len() >= sendBytes {
		s.flush()
	}
}

func (s *eventStream) message(e *felix.WatchEvent) any {
	if e.Kind != felix.WatchPut && e.Kind != felix.WatchDelete {
		return struct{}{}
	}
	m := &watchEvent{ExpiresAtMillis: e.ExpiresAtMillis, Version: e.Version, Skipped: e.Skipped}
	if utf8.Valid(e.Key) {
		m.Key = new(string(e.Key))
	} else {
		m.KeyBytes = e.Key
	}
	switch {
	case e.Kind == felix.WatchDelete:
	case s.view == felix.ViewCounter:
		m.Value = new(strconv.FormatInt(e.Int, 10))
	case utf8.Valid(e.Value):
		m.Value = new(string(e.Value))
	default:
		m.ValueBytes = e.Value
	}
	return m
}

// data ends an event with its data, which is one line.
func (s *eventStream) data(message any) {
	s.text.WriteString("data: ")
	encoder := json.NewEncoder(&s.text) // ends the line
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(message); err != nil {
		s.broken = err // strings and numbers are always encoded
	}
	s.text.WriteByte('\n')
}

// fail tells why the watch has ended.
func (s *eventStream) fail(e *felix.Error) {
	s.text.WriteString("event: error\n")
	s.data(struct {
		Code             string `json:"code"`
		Message          string `json:"message"`
		RetryAfterMillis int64  `json:"retryAfterMillis,string"`
	}{e.Code.String(), e.Message, e.RetryAfter.Milliseconds()})
	s.flush()
}

// comment sends a line that is no event.
func (s *eventStream) comment(text string) {
	fmt.Fprintf(&s.text, ": %s\n\n", text)
	s.flush()
}

// flush sends what was written.
func (s *eventStream) flush() {
	if s.broken != nil || s.text.Len() == 0 {
		return
	}
	s.deadline()
	if _, s.broken = s.w.Write(s.text.Bytes()); s.broken == nil {
		s.broken = s.control.Flush()
	}
	if s.text.Reset(); s.text.Cap() > 4*sendBytes {
		s.text = bytes.Buffer{} // one large value must not keep its memory
	}
}
