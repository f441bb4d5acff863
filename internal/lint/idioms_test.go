package lint_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// idioms are calls that have no place in some files.
var idioms = []struct {
	pkg    string   // import path
	names  []string // of functions; empty: every use of the package
	where  func(f *file) bool
	reason string
}{
	{"time", []string{"Sleep"}, func(f *file) bool { return f.test }, "wait for an event or a condition with a deadline; inside synctest.Test it is the clock"},
	{"context", []string{"Background", "TODO"}, func(f *file) bool { return f.library() }, "a context comes from the caller"},
	{"fmt", []string{"Print", "Printf", "Println"}, (*file).library, "libraries return, they do not speak"},
	{"log", nil, func(f *file) bool { return !f.test }, "the process logs through its slog.Logger"},
	{"log/slog", []string{"Debug", "Info", "Warn", "Error", "Log", "Default", "SetDefault"}, func(f *file) bool { return !f.test }, "no global logger"},
	{"os", []string{"Exit"}, (*file).library, "only main ends the process"},
	{"net/http", []string{"Get", "Post", "Head", "DefaultClient", "ListenAndServe", "Handle", "HandleFunc", "DefaultServeMux"}, func(f *file) bool { return !f.test }, "no client or server without limits"},
	{"github.com/jackc/pgx/v5", []string{"QueryExecModeSimpleProtocol"}, func(f *file) bool { return !f.test }, "values must not be spliced into SQL"},
	{"math/rand", nil, func(*file) bool { return true }, "use math/rand/v2, or crypto/rand"},
	{"io/ioutil", nil, func(*file) bool { return true }, "it is superseded"},
}

// file is a Go source file.
type file struct {
	path string // inside the module, with slashes
	test bool
	main bool // of package main
	ast  *ast.File
}

// library reports whether others import the file's package. The test kit counts as tests.
func (f *file) library() bool {
	return !f.test && !f.main && !under(f.path, "internal/testenv", "internal/lint")
}

func TestIdioms(t *testing.T) {
	t.Parallel()
	fset := token.NewFileSet()
	files := sources(t, fset)
	for _, f := range files {
		names := importNames(f.ast)
		var stack []ast.Node
		ast.Inspect(f.ast, func(n ast.Node) bool {
			if n == nil {
				stack = stack[:len(stack)-1]
				return true
			}
			stack = append(stack, n)
			if sel, ok := n.(*ast.SelectorExpr); ok {
				if x, ok := sel.X.(*ast.Ident); ok && names[x.Name] != "" && !inSynctest(stack, names) {
					checkUse(t, fset, f, sel, names[x.Name])
				}
			}
			if fn, ok := n.(*ast.FuncDecl); ok && fn.Recv == nil && fn.Name.Name == "init" {
				t.Errorf("%s: func init: what a package needs is made by who uses it", fset.Position(fn.Pos()))
			}
			return true
		})
	}
}

func checkUse(t *testing.T, fset *token.FileSet, f *file, sel *ast.SelectorExpr, pkg string) {
	t.Helper()
	for _, rule := range idioms {
		if rule.pkg == pkg && (len(rule.names) == 0 || slices.Contains(rule.names, sel.Sel.Name)) && rule.where(f) {
			t.Errorf("%s: %s.%s: %s", fset.Position(sel.Pos()), pkg, sel.Sel.Name, rule.reason)
		}
	}
}

// inSynctest reports whether a node is inside a function given to synctest.Test, where time is simulated.
func inSynctest(stack []ast.Node, names map[string]string) bool {
	return slices.ContainsFunc(stack, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return false
		}
		sel, ok := call.Fun.(*ast.SelectorExpr)
		if !ok || sel.Sel.Name != "Test" {
			return false
		}
		x, ok := sel.X.(*ast.Ident)
		return ok && names[x.Name] == "testing/synctest"
	})
}

// importNames maps the names that a file's imports go by to their paths.
func importNames(f *ast.File) map[string]string {
	names := map[string]string{}
	for _, spec := range f.Imports {
		path := strings.Trim(spec.Path.Value, `"`)
		parts := strings.Split(path, "/")
		name := parts[len(parts)-1]
		if len(parts) > 1 && strings.HasPrefix(name, "v") && strings.Trim(name[1:], "0123456789") == "" {
			name = parts[len(parts)-2]
		}
		if spec.Name != nil {
			name = spec.Name.Name
		}
		names[name] = path
	}
	return names
}

// sources parses every Go file of the module.
func sources(t *testing.T, fset *token.FileSet) []*file {
	t.Helper()
	const root = "../.."
	var files []*file
	err := filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if name := d.Name(); path != root && (name == "testdata" || name == "node_modules" || strings.HasPrefix(name, ".")) {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(path, ".go") {
			return nil
		}
		parsed, err := parser.ParseFile(fset, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return fmt.Errorf("parse %q: %w", path, err)
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		files = append(files, &file{
			path: filepath.ToSlash(rel), test: strings.HasSuffix(path, "_test.go"),
			main: parsed.Name.Name == "main", ast: parsed,
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(files) < 10 {
		t.Fatalf("found %d Go files", len(files))
	}
	return files
}
