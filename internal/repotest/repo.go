// Package repotest tests the shape of the repository: which package may import
// which, how large files and functions grow, what is documented, and that every
// command of the README does what the README says. It has nothing but tests and
// what they read the sources with.
package repotest

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
)

// Module is the module's path.
const Module = "github.com/felix-go/felix"

// Package is the Go code of one directory.
type Package struct {
	Path  string // from the module's root; "." is the root
	Files []*File
}

// File is one Go file.
type File struct {
	Path      string // from the module's root
	Test      bool
	Generated bool
	Lines     int
	Set       *token.FileSet
	AST       *ast.File
}

// Packages parses every Go file below root. A cached `go list` could hide what
// has changed, so nothing is asked of the go command.
func Packages(root string) ([]*Package, error) {
	found := map[string]*Package{}
	var order []*Package
	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if name != root && skip(d.Name()) {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(name, ".go") {
			return nil
		}
		f, err := parse(root, name)
		if err != nil {
			return err
		}
		dir := path.Dir(f.Path)
		if found[dir] == nil {
			found[dir] = &Package{Path: dir}
			order = append(order, found[dir])
		}
		found[dir].Files = append(found[dir].Files, f)
		return nil
	})
	return order, err
}

func skip(dir string) bool {
	return dir == "testdata" || dir == "node_modules" || strings.HasPrefix(dir, ".") || strings.HasPrefix(dir, "_")
}

func parse(root, name string) (*File, error) {
	source, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	rel, err := filepath.Rel(root, name)
	if err != nil {
		return nil, err
	}
	set := token.NewFileSet()
	tree, err := parser.ParseFile(set, filepath.ToSlash(rel), source, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	return &File{Path: filepath.ToSlash(rel), Test: strings.HasSuffix(name, "_test.go"), Generated: ast.IsGenerated(tree),
		Lines: bytes.Count(source, []byte("\n")), Set: set, AST: tree}, nil
}

// At is where a node stands, for messages.
func (f *File) At(n ast.Node) string {
	p := f.Set.Position(n.Pos())
	return fmt.Sprintf("%s:%d", p.Filename, p.Line)
}

// Imports are the paths that the file imports, as written.
func (f *File) Imports() []string {
	var all []string
	for _, spec := range f.AST.Imports {
		all = append(all, strings.Trim(spec.Path.Value, `"`))
	}
	return all
}

// Ours turns an import path into a package's Path, if it is of this module.
func Ours(importPath string) (string, bool) {
	if importPath == Module {
		return ".", true
	}
	return strings.CutPrefix(importPath, Module+"/")
}

// IsStd says whether an import path is of Go's standard library: only those
// have no dot in their first element.
func IsStd(importPath string) bool {
	first, _, _ := strings.Cut(importPath, "/")
	return !strings.Contains(first, ".")
}
