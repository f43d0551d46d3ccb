package repotest

import (
	"go/ast"
	"path"
	"slices"
	"strings"
	"testing"
)

const (
	maxFileLines     = 700
	maxFunctionLines = 70
)

// edges are the packages that may ask for the time: all others are told it.
var edges = []string{
	"bench",                             // measures
	"client",                            // deadlines of calls
	"internal/broker",                   // the runner: it gives shards their time
	"internal/daemon",                   // how long a start took
	"internal/httpapi",                  // deadlines of bodies
	"internal/load", "internal/netloop", // deadlines of sockets, pacing
	"internal/peer",              // the default of Options.Mono
	"internal/raftlog",           // how long a sync took
	"internal/redisapi",          // the default of Options.Now
	"internal/store",             // the default of Options.Now
	"internal/servicetest",       // a test
	"internal/redisapi/difftest", // a test
}

// source calls visit for every file that people wrote and that is no test.
func source(t *testing.T, visit func(p *Package, f *File)) {
	t.Helper()
	for _, p := range packages(t) {
		for _, f := range p.Files {
			if !f.Test && !f.Generated {
				visit(p, f)
			}
		}
	}
}

func TestSizes(t *testing.T) {
	source(t, func(_ *Package, f *File) {
		if f.Lines > maxFileLines {
			t.Errorf("%s has %d lines, at most %d are allowed", f.Path, f.Lines, maxFileLines)
		}
		for _, d := range f.AST.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok {
				continue
			}
			if n := f.Set.Position(fn.End()).Line - f.Set.Position(fn.Pos()).Line + 1; n > maxFunctionLines {
				t.Errorf("%s: %s has %d lines, at most %d are allowed", f.At(fn), fn.Name.Name, n, maxFunctionLines)
			}
			if fn.Recv == nil && fn.Name.Name == "init" {
				t.Errorf("%s: there is no init: what must be made is made where it is used", f.At(fn))
			}
		}
	})
}

func TestNames(t *testing.T) {
	for _, p := range packages(t) {
		if name := path.Base(p.Path); slices.Contains([]string{"util", "utils", "common", "types", "pkg", "helpers", "misc"}, name) {
			t.Errorf("package %s: a package is named for one thing that it is about", p.Path)
		}
	}
}

// A package says what it is before anything else.
func TestPackageComments(t *testing.T) {
	for _, p := range packages(t) {
		found := false
		for _, f := range p.Files {
			found = found || f.Generated || f.AST.Doc != nil && len(f.AST.Doc.Text()) > 20
		}
		if !found {
			t.Errorf("package %s has no package comment", p.Path)
		}
	}
}

func TestExportsAreDocumented(t *testing.T) {
	source(t, func(_ *Package, f *File) {
		for _, d := range f.AST.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if d.Name.IsExported() && d.Doc == nil && receiverIsExported(d) {
					t.Errorf("%s: %s has no comment", f.At(d), d.Name.Name)
				}
			case *ast.GenDecl:
				undocumented(t, f, d)
			}
		}
	})
}

// receiverIsExported says whether users of the package can see the method.
func receiverIsExported(d *ast.FuncDecl) bool {
	if d.Recv == nil {
		return true
	}
	typ := d.Recv.List[0].Type
	for {
		switch x := typ.(type) {
		case *ast.StarExpr:
			typ = x.X
		case *ast.IndexExpr:
			typ = x.X
		case *ast.Ident:
			return x.IsExported()
		default:
			return true
		}
	}
}

// undocumented finds types, variables and constants without a comment of their
// own, beside them, or (constants and variables) above their group.
func undocumented(t *testing.T, f *File, d *ast.GenDecl) {
	t.Helper()
	for _, spec := range d.Specs {
		switch s := spec.(type) {
		case *ast.TypeSpec:
			if s.Name.IsExported() && s.Doc == nil && d.Doc == nil && s.Comment == nil {
				t.Errorf("%s: %s has no comment", f.At(s), s.Name.Name)
			}
			if i, ok := s.Type.(*ast.InterfaceType); ok && s.Name.IsExported() {
				for _, m := range i.Methods.List {
					if len(m.Names) > 0 && m.Doc == nil && m.Comment == nil {
						t.Errorf("%s: %s.%s has no comment", f.At(m), s.Name.Name, m.Names[0].Name)
					}
				}
			}
		case *ast.ValueSpec:
			if s.Names[0].IsExported() && s.Doc == nil && d.Doc == nil && s.Comment == nil {
				t.Errorf("%s: %s has no comment", f.At(s), s.Names[0].Name)
			}
		}
	}
}

// Only edges read the clock, and only tests sleep.
func TestClockAndSleep(t *testing.T) {
	source(t, func(p *Package, f *File) {
		ast.Inspect(f.AST, func(n ast.Node) bool {
			s, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			if x, ok := s.X.(*ast.Ident); !ok || x.Name != "time" {
				return true
			}
			switch s.Sel.Name {
			case "Now", "Since", "Until":
				if !slices.Contains(edges, p.Path) {
					t.Errorf("%s: time.%s: only edges read the clock; %s is told the time", f.At(s), s.Sel.Name, p.Path)
				}
			case "Sleep":
				if !strings.HasSuffix(path.Base(p.Path), "test") {
					t.Errorf("%s: time.Sleep: wait for what must happen, with a bound", f.At(s))
				}
			}
			return true
		})
	})
}

// There are no stubs and no tests that look away.
func TestNothingIsLeftOpen(t *testing.T) {
	for _, p := range packages(t) {
		for _, f := range p.Files {
			for _, group := range f.AST.Comments {
				for _, word := range []string{"TO" + "DO", "FIX" + "ME", "XX" + "X"} {
					if strings.Contains(group.Text(), word) {
						t.Errorf("%s: %s: finish it, or file an issue", f.At(group), word)
					}
				}
			}
			ast.Inspect(f.AST, func(n ast.Node) bool {
				if s, ok := n.(*ast.SelectorExpr); ok && (s.Sel.Name == "Skip" || s.Sel.Name == "SkipNow" || s.Sel.Name == "Skipf") {
					if x, ok := s.X.(*ast.Ident); ok && (x.Name == "t" || x.Name == "b") {
						t.Errorf("%s: a test that is skipped proves nothing: start what it needs", f.At(s))
					}
				}
				return true
			})
		}
	}
}

func TestLicence(t *testing.T) {
	text := document(t, "LICENSE")
	for _, want := range []string{"Apache License", "Version 2.0, January 2004", "END OF TERMS AND CONDITIONS"} {
		if !strings.Contains(text, want) {
			t.Errorf("LICENSE lacks %q", want)
		}
	}
}
