package daemon

import (
	"io"
	"net/http"
	"strings"
	"testing"
)

func post(t *testing.T, p *process, method, body string) (status int, answer string) {
	t.Helper()
	return read(t, func() (*http.Response, error) {
		return http.Post("http://"+p.http+"/"+method, "application/json", strings.NewReader(body))
	})
}

func get(t *testing.T, p *process, path string) (status int, answer string) {
	t.Helper()
	return read(t, func() (*http.Response, error) { return http.Get("http://" + p.http + path) })
}

func read(t *testing.T, ask func() (*http.Response, error)) (status int, answer string) {
	t.Helper()
	r, err := ask()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Body.Close() }()
	body, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return r.StatusCode, string(body)
}
