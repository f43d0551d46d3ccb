package redisapi_test

import (
	"flag"
	"os"
	"testing"

	"github.com/felix-go/felix/internal/redisapi"
)

var update = flag.Bool("update", false, "write docs/redis.md instead of comparing it")

const docsPath = "../../docs/redis.md"

func TestDocs(t *testing.T) {
	want := redisapi.Docs()
	if *update {
		if err := os.MkdirAll("../../docs", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(docsPath, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(docsPath)
	if err != nil || string(got) != want {
		t.Errorf("docs/redis.md is not what the command table says: run go test ./internal/redisapi -run TestDocs -update (%v)", err)
	}
}
