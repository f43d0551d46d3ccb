package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/felix-go/felix"
)

const (
	asJSON  = "application/json"
	counter = "/felix.v1.CounterService/"
	caches  = "/felix.v1.CacheService/"
	values  = "/felix.v1.ValueService/"
)

// jsonStep is a request of a curl user. A want that begins with { is the whole
// answer; other wants must be in the body.
type jsonStep struct {
	path, body string
	status     int
	code       string // of Felix, in the header
	want       string
}

// jsonSession is a session, in order.
var jsonSession = []jsonStep{
	{counter + "Get", `{"cache":"c","key":"k"}`, 200, "", `{"found":false,"expiresAtMillis":"0","version":"0"}`},
	{counter + "Add", `{"cache":"c","key":"k","delta":"1"}`, 200, "", `{"value":"1","expiresAtMillis":"0","version":"1","applied":true,"added":"1"}`},
	{counter + "Add", `{"cache":"c","key":"k"}`, 200, "", `"value":"2"`},
	{counter + "Add", `{"cache":"c","keyBytes":"aw==","delta":-2}`, 200, "", `"value":"0"`},
	{counter + "Add", `{"cache":"c","key_bytes":"aw==","delta":0}`, 200, "", `"value":"0"`},
	{counter + "Get", `{"tenant":"default","namespace":"default","cache":"c","key":"k"}`, 200, "", `"found":true,"value":"0"`},
	{counter + "Set", `{"cache":"c","key":"big","value":"9007199254740993"}`, 200, "", `"value":"9007199254740993"`},
	{counter + "Set", `{"cache":"c","key":"big","value":9223372036854775807}`, 200, "", `"value":"9223372036854775807"`},
	{counter + "Add", `{"cache":"c","key":"big"}`, 400, "out_of_range", `"code":"out_of_range"`},
	{counter + "Get", `{"cache":"c","key":"big"}`, 200, "", `"value":"9223372036854775807"`},
	{counter + "Add", `{"cache":"c","keyBytes":"/wA=","delta":"-9223372036854775808","expiresInMillis":"500"}`, 200, "", `"value":"-9223372036854775808","expiresAtMillis":"1000500"`},
	{counter + "Set", `{"cache":"c","key":"t","value":"1","expiresAtMillis":"2000000"}`, 200, "", `"value":"1"`},
	{counter + "Set", `{"cache":"c","key":"t","value":"2","keepExpiry":true}`, 200, "", `"value":"2"`},
	{counter + "Get", `{"cache":"c","key":"t"}`, 200, "", `"expiresAtMillis":"2000000"`},
	{counter + "Set", `{"cache":"c","key":"t","value":"2","keepExpiry":false}`, 200, "", `"value":"2"`},
	{counter + "Get", `{"cache":"c","key":"t"}`, 200, "", `"expiresAtMillis":"0"`},
	{counter + "Add", `{"cache":"c","key":"t","expiresInMillis":"0"}`, 400, "invalid_argument", `expire`},
	{counter + "Delete", `{"cache":"c","key":"t"}`, 200, "", `{"deleted":true}`},
	{counter + "Delete", `{"cache":"c","key":"t"}`, 200, "", `{"deleted":false}`},
	{counter + "List", `{"cache":"c"}`, 200, "", `"nextPageToken":"`}, // perhaps a short one
	{counter + "List", `{"cache":"c","pageSize":2}`, 200, "", `{"counters":[{"key":"big","value":"9223372036854775807","expiresAtMillis":"0","version":"6"},{"key":"k","value":"0","expiresAtMillis":"0","version":"4"}],"nextPageToken":"` + encodePageToken(nil, []byte("k")) + `","nowMillis":"1000000","count":"2","sum":"9223372036854775807"}`},
	{counter + "List", `{"cache":"c","pageToken":"` + encodePageToken(nil, []byte("k")) + `"}`, 200, "", `"keyBytes":"/wA="`},
	{counter + "List", `{"cache":"c","prefixBytes":"/w=="}`, 200, "", `"nextPageToken":""`},
	{counter + "List", `{"cache":"c","prefix":"b","pageToken":"` + encodePageToken(nil, []byte("k")) + `"}`, 400, "invalid_argument", `page token`},
	{counter + "List", `{"cache":"c","pageSize":10001}`, 400, "invalid_argument", `1 to 10000`},
	{counter + "List", `{"cache":"c","pageSize":-1}`, 400, "invalid_argument", `1 to 10000`},

	{caches + "Create", `{"cache":"d","shards":2,"consistency":"leader"}`, 200, "", `"created":true`},
	{caches + "Create", `{"cache":"d","shards":2,"consistency":"leader"}`, 200, "", `"created":false`},
	{caches + "Create", `{"cache":"d"}`, 409, "already_exists", `"code":"already_exists"`},
	{caches + "Create", `{"cache":"e","consistency":"strong"}`, 400, "invalid_argument", `quorum or leader`},
	{caches + "Create", `{"cache":"e","shards":-1}`, 400, "invalid_argument", `shards`},
	{caches + "Create", `{"cache":"e","replication":3}`, 200, "", `"replicas":1`},
	{caches + "Get", `{"cache":"d"}`, 200, "", `{"cache":{"tenant":"default","namespace":"default","cache":"d","shards":2,"replication":1,"consistency":"leader","replicas":1,"createdAtMillis":"1000000","counters":"0","values":"0","keys":"0"}}`},
	{caches + "Update", `{"cache":"d","replication":3}`, 200, "", `"replication":3`},
	{caches + "Update", `{"cache":"d"}`, 400, "invalid_argument", `nothing to change`},
	{caches + "Create", `{"tenant":"other","cache":"d"}`, 200, "", `"created":true`},
	{caches + "List", `{}`, 200, "", `"cache":"c"`},
	{caches + "List", `{"tenant":"other"}`, 200, "", `"tenant":"other"`},
	{caches + "List", `{"tenant":"none"}`, 200, "", `{"caches":[]}`},
	{caches + "List", `{"tenant":"*","namespace":"*"}`, 200, "", `"tenant":"other"`},
	{caches + "List", `{"tenant":"NO"}`, 400, "invalid_argument", `tenant`},
	{caches + "Delete", `{"cache":"d"}`, 200, "", `{}`},
	{caches + "Delete", `{"cache":"d"}`, 404, "cache_not_found", `"code":"not_found"`},
	{counter + "Add", `{"cache":"d","key":"k"}`, 404, "cache_not_found", `d`},

	{counter + "Add", `{"cache":"c","key":""}`, 400, "invalid_argument", `the key is empty`},
	{counter + "Add", `{"cache":"c"}`, 400, "invalid_argument", `the key is empty`},
	{counter + "Add", `{"key":"k"}`, 400, "invalid_argument", `cache name is empty`},
	{counter + "Add", `{"cache":"C","key":"k"}`, 400, "invalid_argument", `cache name`},
	{counter + "Add", `{"cache":"c","key":"k","keyBytes":"aw=="}`, 400, "invalid_argument", `keyBytes`},
	{counter + "Add", `{"cache":"c","key":"` + strings.Repeat("k", felix.MaxKeyBytes+1) + `"}`, 400, "invalid_argument", `65535`},
	{counter + "Add", `{"cache":"c","key":"` + strings.Repeat(`\u0001`, felix.MaxKeyBytes) + `"}`, 200, "", `"value":"1"`},
	{counter + "Add", `{"cache":"c","key":"k","dleta":"5"}`, 400, "invalid_argument", `unknown field`},
	{counter + "Add", `{"cache":"c","key":"k","delta":"1.5"}`, 400, "invalid_argument", `delta`},
	{counter + "Add", `{"cache":"c","key":"k","delta":9223372036854775808}`, 400, "invalid_argument", `delta`},
	{counter + "Add", `not JSON`, 400, "invalid_argument", `the JSON of a CounterAddRequest`},
	{counter + "Add", ``, 400, "invalid_argument", `cache name is empty`},
	{counter + "Set", `{"cache":"c","key":"k"}`, 400, "invalid_argument", `value is missing`},
	{counter + "Get", `{"cache":"c","key":"k"}`, 200, "", `"value":"0"`},
}

func TestJSON(t *testing.T) {
	playJSON(t, jsonSession)
}

// playJSON runs a session on a fresh door.
func playJSON(t *testing.T, session []jsonStep) {
	t.Helper()
	url, _ := start(t, newModel(t), Options{})
	for _, step := range session {
		resp, body := post(t, url+step.path, asJSON, step.body)
		if resp.StatusCode != step.status || resp.Header.Get("Felix-Error-Code") != step.code {
			t.Errorf("%s %.200s: %d %q, want %d %q; body %s", step.path, step.body,
				resp.StatusCode, resp.Header.Get("Felix-Error-Code"), step.status, step.code, body)
			continue
		}
		if strings.HasPrefix(step.want, "{") {
			if body != step.want {
				t.Errorf("%s %.200s: %s, want %s", step.path, step.body, body, step.want)
			}
		} else if !strings.Contains(body, step.want) {
			t.Errorf("%s %.200s: %s has no %s", step.path, step.body, body, step.want)
		}
		var compact bytes.Buffer
		if err := json.Compact(&compact, []byte(body)); err != nil || compact.String() != body {
			t.Errorf("%s %.200s: %s is not compact JSON, %v", step.path, step.body, body, err)
		}
		if step.code != "" {
			checkDetail(t, body, step.code)
		}
	}
}

// checkDetail wants an ErrorInfo with the code in an error of connect's JSON.
func checkDetail(t *testing.T, body, code string) {
	t.Helper()
	var e struct {
		Details []struct {
			Type  string
			Debug struct{ Code string }
		}
	}
	if err := json.Unmarshal([]byte(body), &e); err != nil {
		t.Errorf("error body %s: %v", body, err)
		return
	}
	if len(e.Details) != 1 || e.Details[0].Type != "felix.v1.ErrorInfo" || e.Details[0].Debug.Code != code {
		t.Errorf("error body %s has no detail with code %s", body, code)
	}
}

// TestRequestsThatReachNoMethod checks that even these errors are ours.
func TestRequestsThatReachNoMethod(t *testing.T) {
	url, _ := start(t, newModel(t), Options{})
	for _, c := range []struct {
		method, path, contentType, body string
		status                          int
		want                            string
	}{
		{"GET", "/", "", "", 404, "/felix.v1.CounterService/"},
		{"GET", "/favicon.ico", "", "", 404, "no such path"},
		{"POST", "/felix.v1.CounterService/Increment", asJSON, "{}", 404, "no such path"},
		{"POST", "/felix.v1.CounterService", asJSON, "{}", 404, "no such path"},
		{"POST", "/felix.v2.CounterService/Add", asJSON, "{}", 404, "no such path"},
		{"GET", counter + "Add", "", "", 405, "use POST"},
		{"GET", counter + "Add?encoding=json&message=%7B%7D", "", "", 405, ""},
		{"PUT", counter + "Add", asJSON, "{}", 405, "use POST"},
		{"POST", counter + "Add", "", "{}", 415, "Content-Type: application/json"},
		{"POST", counter + "Add", "application/x-www-form-urlencoded", `{"cache":"c","key":"k"}`, 415, "Content-Type: application/json"},
		{"POST", counter + "Add", "text/plain", `{"cache":"c","key":"k"}`, 415, "application/json"},
		{"POST", counter + "Add", asJSON, strings.Repeat(" ", felix.MaxHTTPBodyBytes+1), 413, "more than"},
	} {
		req, err := http.NewRequestWithContext(t.Context(), c.method, url+c.path, strings.NewReader(c.body))
		if err != nil {
			t.Fatal(err)
		}
		if c.contentType != "" {
			req.Header.Set("Content-Type", c.contentType)
		}
		resp, body := send(t, req)
		if resp.StatusCode != c.status || resp.Header.Get("Felix-Error-Code") != "invalid_argument" || !strings.Contains(body, c.want) {
			t.Errorf("%s %s %q: %d %q %s, want %d and %q", c.method, c.path, c.contentType,
				resp.StatusCode, resp.Header.Get("Felix-Error-Code"), body, c.status, c.want)
		}
	}
	// Reads can be GETs: that is connect's, and browsers can use it.
	req, err := http.NewRequestWithContext(t.Context(), "GET", url+counter+`Get?connect=v1&encoding=json&message=%7B%22cache%22%3A%22c%22%2C%22key%22%3A%22k%22%7D`, nil)
	if err != nil {
		t.Fatal(err)
	}
	if resp, body := send(t, req); resp.StatusCode != 200 || !strings.Contains(body, "found") {
		t.Errorf("GET: %d %s", resp.StatusCode, body)
	}
	// Nothing of all this has counted.
	if _, body := post(t, url+counter+"List", asJSON, `{"cache":"c"}`); !strings.Contains(body, `"counters":[]`) {
		t.Errorf("something was applied: %s", body)
	}
}

// TestUnknownCompression is an error that connect makes itself.
func TestUnknownCompression(t *testing.T) {
	url, _ := start(t, newModel(t), Options{})
	req, err := http.NewRequestWithContext(t.Context(), "POST", url+counter+"Add", strings.NewReader(`{"cache":"c","key":"k"}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", asJSON)
	req.Header.Set("Content-Encoding", "rot13")
	resp, body := send(t, req)
	if resp.StatusCode < 400 || resp.Header.Get("Felix-Error-Code") != "invalid_argument" {
		t.Errorf("%d %q %s", resp.StatusCode, resp.Header.Get("Felix-Error-Code"), body)
	}
}

func TestHealthAndMetrics(t *testing.T) {
	registry := prometheus.NewRegistry()
	gauge := prometheus.NewGauge(prometheus.GaugeOpts{Name: "felix_test_gauge"})
	registry.MustRegister(gauge)
	gauge.Set(7)
	var notReady error
	url, _ := start(t, newModel(t), Options{Metrics: registry, Ready: func(context.Context) error { return notReady }})
	get := func(path string) (int, string) {
		req, err := http.NewRequestWithContext(t.Context(), "GET", url+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, body := send(t, req)
		return resp.StatusCode, body
	}
	for path, want := range map[string]string{"/livez": "ok\n", "/readyz": "ok\n", "/metrics": "felix_test_gauge 7"} {
		if status, body := get(path); status != 200 || !strings.Contains(body, want) {
			t.Errorf("%s: %d %s", path, status, body)
		}
	}
	notReady = errors.New("replaying the log")
	if status, body := get("/readyz"); status != 503 || !strings.Contains(body, "replaying the log") {
		t.Errorf("/readyz: %d %s", status, body)
	}
	if status, _ := get("/livez"); status != 200 {
		t.Errorf("/livez: %d while not ready", status)
	}
}

// TestBugsStayInTheLog: a panic and an internal error become "internal", whose
// words are not shown.
func TestBugsStayInTheLog(t *testing.T) {
	for name, service := range map[string]failing{
		"panic":       {panic: "the secret"},
		"plain error": {err: errors.New("the secret")},
		"internal":    {err: felix.Errorf(felix.Internal, "the secret")},
	} {
		url, log := start(t, service, Options{})
		resp, body := post(t, url+counter+"Add", asJSON, `{"cache":"c","key":"k"}`)
		if resp.StatusCode != 500 || resp.Header.Get("Felix-Error-Code") != "internal" || strings.Contains(body, "secret") {
			t.Errorf("%s: %d %s %s", name, resp.StatusCode, resp.Header.Get("Felix-Error-Code"), body)
		}
		checkDetail(t, body, "internal")
		if !strings.Contains(log.String(), "the secret") || !strings.Contains(log.String(), "CounterService/Add") {
			t.Errorf("%s: the log has %q", name, log.String())
		}
	}
}

// TestPanicOutsideMethods is caught by the outermost guard.
func TestPanicOutsideMethods(t *testing.T) {
	url, log := start(t, newModel(t), Options{Ready: func(context.Context) error { panic("the secret") }})
	req, err := http.NewRequestWithContext(t.Context(), "GET", url+"/readyz", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, body := send(t, req)
	if resp.StatusCode != 500 || resp.Header.Get("Felix-Error-Code") != "internal" || strings.Contains(body, "secret") {
		t.Errorf("%d %s", resp.StatusCode, body)
	}
	if !strings.Contains(log.String(), "the secret") {
		t.Errorf("the log has %q", log.String())
	}
}

// TestTimeouts: an add that got no answer may be applied, a get was not there.
func TestTimeouts(t *testing.T) {
	url, _ := start(t, failing{hang: true}, Options{RequestTimeout: 20 * time.Millisecond})
	resp, body := post(t, url+counter+"Add", asJSON, `{"cache":"c","key":"k"}`)
	if resp.StatusCode != 504 || resp.Header.Get("Felix-Error-Code") != "outcome_unknown" {
		t.Errorf("add: %d %s", resp.StatusCode, body)
	}
	resp, body = post(t, url+counter+"Get", asJSON, `{"cache":"c","key":"k"}`)
	if resp.StatusCode != 503 || resp.Header.Get("Felix-Error-Code") != "unavailable" {
		t.Errorf("get: %d %s", resp.StatusCode, body)
	}
	// The client's own, shorter time counts too.
	url, _ = start(t, failing{hang: true}, Options{RequestTimeout: time.Hour})
	req, err := http.NewRequestWithContext(t.Context(), "POST", url+counter+"Add", strings.NewReader(`{"cache":"c","key":"k"}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", asJSON)
	req.Header.Set("Connect-Timeout-Ms", "20")
	if resp, body := send(t, req); resp.StatusCode != 504 || resp.Header.Get("Felix-Error-Code") != "outcome_unknown" {
		t.Errorf("add with its own timeout: %d %s", resp.StatusCode, body)
	}
}
