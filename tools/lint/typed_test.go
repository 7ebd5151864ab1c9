package lint

import (
	"bytes"
	"encoding/json"
	"errors"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// listed is what go list says of a package.
type listed struct {
	ImportPath, ForTest, Dir, Export string
	GoFiles, CgoFiles, Imports       []string
	ImportMap                        map[string]string
	Standard                         bool
	Module                           *struct{ Main bool }
}

func (p *listed) ours() bool { return p.Module != nil && p.Module.Main }

// program is packages with their types: what the rules about tests look at.
type program struct {
	fset     *token.FileSet
	packages []*typed
}

type typed struct {
	path    string
	files   []*ast.File
	info    *types.Info
	support bool // its own files, not only its tests, are there for tests
}

// goList runs go list in a module's directory, by its path from the root.
func goList(t *testing.T, module string, args ...string) (out []*listed) {
	t.Helper()
	cmd := exec.Command("go", append([]string{"list", "-e", "-json=ImportPath,ForTest,Dir,Export,GoFiles,CgoFiles,Imports,ImportMap,Standard,Module"}, args...)...)
	cmd.Dir = filepath.Join(root, module)
	var complaints bytes.Buffer
	cmd.Stderr = &complaints
	b, err := cmd.Output()
	require.NoError(t, err, "%s", complaints.String())
	for d := json.NewDecoder(bytes.NewReader(b)); ; {
		p := &listed{}
		if err := d.Decode(p); errors.Is(err, io.EOF) {
			return out
		} else {
			require.NoError(t, err)
		}
		out = append(out, p)
	}
}

// loaded is the repository, module by module: its packages as their tests are compiled, from source; those of
// others, and of the other modules, from what the compiler left.
var loaded = sync.OnceValue(func() func(t *testing.T) *program {
	var p *program
	return func(t *testing.T) *program {
		if p == nil {
			p = load(t)
		}
		return p
	}
})

// tagged is what is looked at once more, as it is with tags: files of it are compiled with those only.
var tagged = []struct{ module, tags, packages string }{
	{".", "failpoints,invariants", "./store/..."},
	{"gpu/cuda", "cuda", "./..."}, // CUDA's own types are not known here, and nothing of it is compiled
}

func load(t *testing.T) *program {
	t.Helper()
	if testing.Short() {
		t.Skip("make lint looks at the whole program")
	}
	p := &program{fset: token.NewFileSet()}
	for _, m := range modules(t) {
		p.load(t, m, "./...")
	}
	for _, b := range tagged {
		p.load(t, b.module, "-tags", b.tags, b.packages)
	}
	return p
}

// load adds packages of one module: which says what of go list.
func (p *program) load(t *testing.T, module string, which ...string) {
	t.Helper()
	list := goList(t, module, append([]string{"-deps", "-test"}, which...)...)
	byPath := map[string]*listed{}
	var foreign []string
	for _, l := range list {
		byPath[l.ImportPath] = l
	}
	for _, l := range list {
		for _, i := range l.Imports {
			if d := byPath[i]; l.ours() && d != nil && !d.ours() && i != "C" && i != "unsafe" && !slices.Contains(foreign, i) {
				foreign = append(foreign, i)
			}
		}
	}
	exports := exportsOf(t, module, foreign)
	compiled := importer.ForCompiler(p.fset, "gc", func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) })
	done := map[string]*types.Package{}
	for _, l := range list { // dependencies first
		if !l.ours() || strings.HasSuffix(l.ImportPath, ".test") {
			continue
		}
		own := l.ForTest == "" || strings.HasPrefix(l.ImportPath, l.ForTest+" ") || strings.HasPrefix(l.ImportPath, l.ForTest+"_test ")
		pkg, err := p.check(l.ImportPath, l.Dir, slices.Concat(l.GoFiles, l.CgoFiles), own, func(path string) (*types.Package, error) {
			if to, ok := l.ImportMap[path]; ok {
				path = to
			}
			if d := done[path]; d != nil {
				return d, nil
			}
			return compiled.Import(path)
		})
		if len(l.CgoFiles) == 0 { // types of C are not known here
			require.NoError(t, err, l.ImportPath)
		}
		done[l.ImportPath] = pkg
	}
}

// exportsOf are files that say what packages, and those they need, export.
func exportsOf(t *testing.T, module string, packages []string) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, l := range goList(t, module, append([]string{"-deps", "-export"}, packages...)...) {
		out[l.ImportPath] = l.Export
	}
	return out
}

type importing func(path string) (*types.Package, error)

func (f importing) Import(path string) (*types.Package, error) { return f(path) }

// check parses and types one package; own says that it is to be looked at.
func (p *program) check(path, dir string, files []string, own bool, imports importing) (*types.Package, error) {
	one := &typed{path: path, info: &types.Info{Types: map[ast.Expr]types.TypeAndValue{}, Uses: map[*ast.Ident]types.Object{},
		Defs: map[*ast.Ident]types.Object{}, Selections: map[*ast.SelectorExpr]*types.Selection{}}}
	tests := false
	for _, f := range files {
		file, err := parser.ParseFile(p.fset, filepath.Join(dir, f), nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		one.files = append(one.files, file)
		isTest := isTestFile(f)
		tests = tests || isTest
		for _, i := range file.Imports {
			one.support = one.support || !isTest && i.Path.Value == `"testing"`
		}
	}
	looked := own && (tests || one.support)
	config := types.Config{Importer: imports, FakeImportC: true, IgnoreFuncBodies: !looked, Error: func(error) {}}
	name, _, _ := strings.Cut(path, " ")
	pkg, err := config.Check(name, p.fset, one.files, one.info)
	if looked {
		p.packages = append(p.packages, one)
	}
	return pkg, err
}

// functionOf is what a call calls, nil when only a value is known.
func (p *typed) functionOf(call *ast.CallExpr) *types.Func {
	fun := ast.Unparen(call.Fun)
	switch f := fun.(type) {
	case *ast.IndexExpr:
		fun = f.X
	case *ast.IndexListExpr:
		fun = f.X
	}
	var id *ast.Ident
	switch f := fun.(type) {
	case *ast.Ident:
		id = f
	case *ast.SelectorExpr:
		id = f.Sel
	default:
		return nil
	}
	f, _ := p.info.Uses[id].(*types.Func)
	if f != nil {
		return f.Origin()
	}
	return nil
}

// packageOf is the path of the package that declares a function.
func packageOf(f *types.Func) string {
	if f == nil || f.Pkg() == nil {
		return ""
	}
	return f.Pkg().Path()
}

// where is a position as the rules write it.
func (p *program) where(at token.Pos) string {
	pos := p.fset.Position(at)
	abs, err := filepath.Abs(root)
	if err != nil {
		return pos.String()
	}
	rel, err := filepath.Rel(abs, pos.Filename)
	if err != nil {
		return pos.String()
	}
	pos.Filename, pos.Column = filepath.ToSlash(rel), 0
	return pos.String()
}

func (p *program) fileOf(at token.Pos) string {
	f, _, _ := strings.Cut(p.where(at), ":")
	return f
}

// judged says whether a file's functions are tests, or there for tests.
func (p *program) judged(pkg *typed, f *ast.File) bool {
	return pkg.support || isTestFile(p.fset.Position(f.Pos()).Filename)
}

// isTestFile knows those of testdata, too, which other linters must not find.
func isTestFile(name string) bool {
	return strings.HasSuffix(strings.TrimSuffix(name, ".txt"), "_test.go")
}

const requirePath = "github.com/stretchr/testify/require"
