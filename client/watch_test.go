package client_test

import (
	"errors"
	"io"
	"log/slog"
	"net/http"
	"testing"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/client"
	"github.com/felix-go/felix/internal/httpapi"
)

// cutAfter is a ResponseWriter whose connection is cut after so many writes.
type cutAfter struct {
	http.ResponseWriter
	left int
}

func (c *cutAfter) Write(p []byte) (int, error) {
	if c.left--; c.left < 0 {
		panic(http.ErrAbortHandler)
	}
	return c.ResponseWriter.Write(p)
}

func (c *cutAfter) Unwrap() http.ResponseWriter { return c.ResponseWriter }

// TestWatchGoesOn: connections that are cut, and brokers that are gone, are not
// seen: every change is told, once and in order.
func TestWatchGoesOn(t *testing.T) {
	b := startBroker(t)
	door := httpapi.Handler(b.service, httpapi.Options{Log: slog.New(slog.NewTextHandler(io.Discard, nil))})
	cutting := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		door.ServeHTTP(&cutAfter{w, 3}, r)
	}))
	c, err := client.New(client.Options{Brokers: []string{deadAddress(t), cutting, b.address}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	const changes = 12
	told := int64(0)
	for e, err := range c.Watch(t.Context(), "default", "default", "c", client.WatchOptions{Key: "k\xff"}) {
		if err != nil {
			t.Fatal(err)
		}
		switch e.Kind {
		case felix.WatchSynced: // also of a resume
		case felix.WatchPut:
			if told++; e.Value != told || e.Key != "k\xff" || e.Version == 0 || e.Skipped || e.Token == "" {
				t.Fatalf("change %d is told as %+v", told, e)
			}
		default:
			t.Fatalf("unexpected: %+v", e)
		}
		if told == changes {
			break
		}
		if told > 0 && e.Kind == felix.WatchSynced {
			continue
		}
		if _, err := c.CounterAdd(t.Context(), "default", "default", "c", "k\xff", 1); err != nil && !errors.Is(err, client.ErrNoBroker) {
			t.Fatal(err)
		}
	}
	if told != changes {
		t.Errorf("the watch has ended after %d changes", told)
	}
}

// TestWatchEnds: what is refused is told, and nobody there is unavailable.
func TestWatchEnds(t *testing.T) {
	b := startBroker(t)
	for _, test := range []struct {
		broker, cache string
		opts          client.WatchOptions
		code          felix.Code
	}{
		{b.address, "none", client.WatchOptions{}, felix.CacheNotFound},
		{b.address, "c", client.WatchOptions{Resume: "none"}, felix.InvalidArgument},
		{b.address, "c", client.WatchOptions{Key: "a", Prefix: "b"}, felix.InvalidArgument},
		{deadAddress(t), "c", client.WatchOptions{}, felix.Unavailable},
	} {
		c, err := client.New(client.Options{Brokers: []string{test.broker}})
		if err != nil {
			t.Fatal(err)
		}
		events := 0
		for _, err := range c.Watch(t.Context(), "default", "default", test.cache, test.opts) {
			if events++; felix.AsError(err) == nil || felix.AsError(err).Code != test.code {
				t.Errorf("%+v: error %v, want %s", test.opts, err, test.code)
			}
		}
		if events != 1 {
			t.Errorf("%+v: %d events, want an error", test.opts, events)
		}
		c.Close()
	}
}
