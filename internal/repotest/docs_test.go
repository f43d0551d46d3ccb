package repotest

import (
	"go/ast"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// documents are all that people read.
func documents(t *testing.T) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	names := []string{"README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"}
	for _, f := range found {
		names = append(names, "docs/"+filepath.Base(f))
	}
	return names
}

// Functions and tests that ARCHITECTURE.md names as package.Name exist.
func TestArchitectureNamesWhatExists(t *testing.T) {
	exists, known := map[string]bool{}, map[string]bool{}
	for _, p := range packages(t) {
		known[path.Base(p.Path)] = true
		for _, f := range p.Files {
			for _, d := range f.AST.Decls {
				if fn, ok := d.(*ast.FuncDecl); ok {
					exists[path.Base(p.Path)+"."+fn.Name.Name] = true
				}
			}
		}
	}
	text, named := document(t, "ARCHITECTURE.md"), 0
	for _, m := range regexp.MustCompile("`([a-z]+)\\.([A-Za-z0-9]+)`").FindAllStringSubmatch(text, -1) {
		if known[m[1]] && (strings.HasPrefix(m[2], "Test") || m[2][0] >= 'a') {
			named++
			if name := m[1] + "." + m[2]; !exists[name] && strings.HasPrefix(m[2], "Test") {
				t.Errorf("ARCHITECTURE.md names %s, which does not exist", name)
			}
		}
	}
	rules, _, _ := strings.Cut(text[strings.Index(text, "## The rules"):], "## How it is proved")
	for _, m := range regexp.MustCompile("`([a-z]+\\.[A-Za-z0-9]+)`").FindAllStringSubmatch(rules, -1) {
		named++
		if !exists[m[1]] {
			t.Errorf("ARCHITECTURE.md names %s, which does not exist", m[1])
		}
	}
	if named < 30 {
		t.Errorf("only %d names were found: the pattern is broken", named)
	}
}

// Links between the documents lead somewhere.
func TestLinks(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)#]+)(#[^)]*)?\)`)
	for _, name := range documents(t) {
		for _, m := range link.FindAllStringSubmatch(document(t, name), -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			if _, err := os.Stat(filepath.Join(root, filepath.Dir(name), m[1])); err != nil {
				t.Errorf("%s links to %s: %v", name, m[1], err)
			}
		}
	}
}
