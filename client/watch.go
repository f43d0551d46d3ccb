package client

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/felix-go/felix"
)

// WatchOptions say what is watched.
type WatchOptions struct {
	// Values watches cache values; otherwise counters are.
	Values bool
	// Key, if it is not empty, is the one key to watch; otherwise all that begin
	// with Prefix are.
	Key, Prefix string
	// Initial asks for the current state first.
	Initial bool
	// Resume is the Token of an event of an earlier watch.
	Resume string
}

// WatchEvent is an event; see felix.WatchEvent and felix.WatchKind.
type WatchEvent struct {
	Kind felix.WatchKind
	Key  string // any bytes
	// Skipped says that changes of the key before this one were left out.
	Skipped bool
	Value   int64  // a counter's sum
	Data    []byte // a value's bytes
	// ExpiresAt is on the shard's clock; zero means never.
	ExpiresAt time.Time
	Version   uint64 // 0 of a delete
	Token     string // for WatchOptions.Resume
}

const (
	// watchSilence is how long a watch may be silent before it is given up and
	// begun again: brokers send something every ten seconds.
	watchSilence = 35 * time.Second
	// watchPause is before a watch that has ended is begun again, more each time.
	watchPause    = 100 * time.Millisecond
	maxWatchPause = 2 * time.Second
	// maxWatchLine is how long a line of a stream may be: a value of the largest
	// size in base64 or escaped JSON, with its key.
	maxWatchLine = 8 << 20
)

// Watch tells the changes of a key or prefix, until ctx ends (then it is silently
// over) or a broker refuses it. When a broker or connection is lost it goes on by
// itself, at the next broker, where it was: a change is told once. It is an error
// if no broker serves the watch when it begins. Errors: invalid_argument,
// cache_not_found, unavailable, resource_exhausted.
func (c *Client) Watch(ctx context.Context, tenant, namespace, cache string, opts WatchOptions) iter.Seq2[WatchEvent, error] {
	return func(yield func(WatchEvent, error) bool) {
		if err := checkWatch(&opts); err != nil {
			yield(WatchEvent{}, err)
			return
		}
		query := watchQuery(tenant, namespace, cache, &opts)
		w := &watching{c: c, query: query, token: opts.Resume, values: opts.Values, yield: yield}
		for failures := 0; ; {
			at := int(c.current.Load()) % len(c.brokers)
			before := w.told
			err := w.once(ctx, c.brokers[at])
			if w.over || ctx.Err() != nil {
				return
			}
			if w.told > before {
				failures = 0
			}
			failures++
			if !watchAgain(err) || w.told == 0 && failures >= 2*len(c.brokers) {
				yield(WatchEvent{}, err)
				return
			}
			c.current.CompareAndSwap(int32(at), int32((at+1)%len(c.brokers)))
			select {
			case <-time.After(min(watchPause<<min(failures-1, 8), maxWatchPause)):
			case <-ctx.Done():
				return
			}
		}
	}
}

func checkWatch(opts *WatchOptions) error {
	if opts.Key != "" && opts.Prefix != "" {
		return felix.Errorf(felix.InvalidArgument, "a key or a prefix is watched, not both")
	}
	if opts.Key != "" {
		return checkKey(opts.Key)
	}
	return nil
}

func watchQuery(tenant, namespace, cache string, opts *WatchOptions) url.Values {
	query := url.Values{"tenant": {tenant}, "namespace": {namespace}, "cache": {cache}, "initial": {strconv.FormatBool(opts.Initial)}}
	if opts.Values {
		query.Set("view", "values")
	}
	name, text := "prefix", opts.Prefix
	if opts.Key != "" {
		name, text = "key", opts.Key
	}
	if utf8.ValidString(text) {
		query.Set(name, text)
	} else {
		query.Set(name+"Bytes", base64.URLEncoding.EncodeToString([]byte(text)))
	}
	return query
}

// watchAgain says whether a watch that ended so may go on elsewhere, or later.
func watchAgain(err error) bool {
	e := felix.AsError(err)
	return e.Code == felix.Unavailable || e.Code == felix.ResourceExhausted
}

// watching is a watch over all its connections.
type watching struct {
	c      *Client
	query  url.Values
	values bool
	token  string // of the last event
	told   int    // events
	yield  func(WatchEvent, error) bool
	over   bool // the caller wants no more
}

// once watches at one broker until that ends, and says why it has.
func (w *watching) once(ctx context.Context, b broker) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silence := time.AfterFunc(w.c.timeout, func() { cancel(errors.New("no answer in time")) })
	defer silence.Stop()
	query := w.query
	if w.token != "" {
		query.Set("resume", w.token)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, b.base+"/v1/watch?"+query.Encode(), nil)
	if err != nil {
		return felix.Errorf(felix.InvalidArgument, "broker %s: %v", b.address, err)
	}
	resp, err := w.c.http.Do(req)
	if err != nil {
		return felix.Errorf(felix.Unavailable, "broker %s: %v", b.address, reason(ctx, err))
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK || resp.Header.Get("Content-Type") != "text/event-stream" {
		return refusedWatch(b, resp)
	}
	err = w.events(resp.Body, func() { silence.Reset(watchSilence) })
	var known *felix.Error
	if errors.As(err, &known) {
		return known
	}
	return felix.Errorf(felix.Unavailable, "broker %s: the watch was cut off: %v", b.address, reason(ctx, err))
}

// refusedWatch is the error that a broker has answered with.
func refusedWatch(b broker, resp *http.Response) *felix.Error {
	body, _ := io.ReadAll(io.LimitReader(resp.Body, 64<<10)) // what has come of it
	var answer struct {
		Message string `json:"message"`
	}
	code, known := felix.ParseCode(resp.Header.Get(errorCodeHeader))
	if err := json.Unmarshal(body, &answer); err != nil || !known {
		return felix.Errorf(felix.Unavailable, "broker %s: the answer %s does not come from a broker that can be watched", b.address, resp.Status)
	}
	return &felix.Error{Code: code, Message: answer.Message}
}

// events reads the events of a stream. alive is called when something has come.
// The error is the broker's, or that of reading.
func (w *watching) events(body io.Reader, alive func()) error {
	lines := bufio.NewScanner(body)
	lines.Buffer(nil, maxWatchLine)
	var id, kind, data string
	for lines.Scan() {
		alive()
		switch name, value, _ := strings.Cut(lines.Text(), ": "); name {
		case "id":
			id = value
		case "event":
			kind = value
		case "data":
			data = value
		case "": // the end of an event, if it is no comment
			if kind != "" {
				if err := w.event(id, kind, data); err != nil {
					return err
				}
			}
			if w.over {
				return nil
			}
			id, kind, data = "", "", ""
		}
	}
	if err := lines.Err(); err != nil {
		return err
	}
	return io.EOF
}

// event tells an event to the caller.
func (w *watching) event(id, kind, data string) error {
	if kind == "error" {
		return watchError(data)
	}
	e := WatchEvent{Token: id}
	for _, k := range []felix.WatchKind{felix.WatchPut, felix.WatchDelete, felix.WatchSynced, felix.WatchReset} {
		if k.String() == kind {
			e.Kind = k
		}
	}
	if e.Kind == 0 {
		return nil // of a newer broker
	}
	if err := w.fill(&e, data); err != nil {
		return felix.Errorf(felix.Unavailable, "an event cannot be read: %v", err)
	}
	w.token = id
	w.told++
	w.over = !w.yield(e, nil)
	return nil
}

// fill reads what is put or deleted.
func (w *watching) fill(e *WatchEvent, data string) error {
	var m struct {
		Key             *string `json:"key"`
		KeyBytes        []byte  `json:"keyBytes"`
		Value           *string `json:"value"`
		ValueBytes      []byte  `json:"valueBytes"`
		ExpiresAtMillis int64   `json:"expiresAtMillis,string"`
		Version         uint64  `json:"version,string"`
		Skipped         bool    `json:"skipped"`
	}
	if err := json.Unmarshal([]byte(data), &m); err != nil {
		return err
	}
	e.Key, e.Data = string(m.KeyBytes), m.ValueBytes
	if m.Key != nil {
		e.Key = *m.Key
	}
	e.ExpiresAt, e.Version, e.Skipped = timeOf(m.ExpiresAtMillis), m.Version, m.Skipped
	if m.Value == nil {
		return nil
	}
	if w.values {
		e.Data = []byte(*m.Value)
		return nil
	}
	sum, err := strconv.ParseInt(*m.Value, 10, 64)
	if err != nil {
		return fmt.Errorf("a counter's sum: %w", err)
	}
	e.Value = sum
	return nil
}

// watchError is why a broker has ended a watch.
func watchError(data string) *felix.Error {
	var m struct{ Code, Message string }
	err := json.Unmarshal([]byte(data), &m)
	code, known := felix.ParseCode(m.Code)
	if err != nil || !known {
		return felix.Errorf(felix.Unavailable, "the watch has ended for a reason that cannot be read")
	}
	return &felix.Error{Code: code, Message: m.Message}
}
