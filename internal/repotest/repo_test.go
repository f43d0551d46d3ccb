package repotest

import (
	"os"
	"path/filepath"
	"testing"
)

const root = "../.."

func packages(t *testing.T) []*Package {
	t.Helper()
	all, err := Packages(root)
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 20 {
		t.Fatalf("only %d packages were found: the walk is broken", len(all))
	}
	return all
}

func document(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(root, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
