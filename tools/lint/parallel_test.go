package lint

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// alone begins the comment that says why a test is not run beside others of its package.
const alone = "Alone: "

// Tests of a package run beside each other, as its callers do; one that must not says why, in its comment.
func TestTestsRunInParallel(t *testing.T) {
	t.Parallel()
	looked := 0
	for _, rel := range files(t, "_test.go") {
		if strings.Contains(rel, "testdata/") {
			continue
		}
		fset := token.NewFileSet()
		f, err := parser.ParseFile(fset, filepath.Join(root, rel), nil, parser.ParseComments)
		require.NoError(t, err)
		for _, fn := range topTests(f) {
			looked++
			if !parallel(fn) && !strings.Contains(fn.Doc.Text(), alone) {
				t.Errorf("%s: %s does not call t.Parallel; where it cannot, its comment says why: %q", fset.Position(fn.Pos()), fn.Name.Name, alone+"...")
			}
		}
	}
	assert.Greater(t, looked, 1000)
}

// topTests are the tests that go test runs.
func topTests(f *ast.File) (list []*ast.FuncDecl) {
	for _, d := range f.Decls {
		fn, ok := d.(*ast.FuncDecl)
		if ok && fn.Recv == nil && fn.Body != nil && strings.HasPrefix(fn.Name.Name, "Test") && fn.Name.Name != "TestMain" && fn.Type.Params.NumFields() == 1 {
			list = append(list, fn)
		}
	}
	return list
}

// parallel says whether a test calls t.Parallel itself, not only in what it runs.
func parallel(fn *ast.FuncDecl) bool {
	for _, s := range fn.Body.List {
		e, ok := s.(*ast.ExprStmt)
		if !ok {
			continue
		}
		if c, ok := e.X.(*ast.CallExpr); ok {
			if sel, ok := c.Fun.(*ast.SelectorExpr); ok && sel.Sel.Name == "Parallel" {
				return true
			}
		}
	}
	return false
}

func TestTheRuleOnParallelTestsFindsThem(t *testing.T) {
	t.Parallel()
	f, err := parser.ParseFile(token.NewFileSet(), "x_test.go", `package x
func TestBeside(t *testing.T) { t.Parallel() }
func TestInside(t *testing.T) { t.Run("a", func(t *testing.T) { t.Parallel() }) }
func TestMain(m *testing.M) {}
func helper(t *testing.T) {}
`, 0)
	require.NoError(t, err)
	list := topTests(f)
	require.Len(t, list, 2)
	assert.True(t, parallel(list[0]))
	assert.False(t, parallel(list[1]))
}
