package lint

import (
	"fmt"
	"go/ast"
	"go/token"
	"go/types"
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// A subtest that runs in parallel waits for its turn, minutes on a busy machine. A deadline that was set before it began
// may be over by then.
func TestParallelSubtestsHaveDeadlinesOfTheirOwn(t *testing.T) {
	t.Parallel()
	for _, s := range borrowed(loaded()(t)) {
		t.Error(s)
	}
}

func TestBorrowedDeadlinesAreFound(t *testing.T) {
	t.Parallel()
	p, want := fixture(t, "deadlines")
	require.NotEmpty(t, want)
	var got []string
	for _, s := range borrowed(p) {
		got = append(got, s[:len(s)-len(": a deadline that began before this parallel subtest")])
	}
	require.Equal(t, want, got)
}

// borrowed lists where functions that call t.Parallel use a context with a deadline of the function around them.
func borrowed(p *program) []string {
	found := map[string]bool{}
	for _, pkg := range p.packages {
		for _, f := range pkg.files {
			if !p.judged(pkg, f) {
				continue
			}
			began := map[types.Object]bool{}
			ast.Inspect(f, func(n ast.Node) bool {
				a, ok := n.(*ast.AssignStmt)
				if ok && len(a.Rhs) == 1 && expires(a.Rhs[0]) {
					if id, ok := a.Lhs[0].(*ast.Ident); ok && pkg.info.Defs[id] != nil {
						began[pkg.info.Defs[id]] = true
					}
				}
				return true
			})
			ast.Inspect(f, func(n ast.Node) bool {
				lit, ok := n.(*ast.FuncLit)
				if !ok || !parallelBody(lit.Body) {
					return true
				}
				ast.Inspect(lit.Body, func(n ast.Node) bool {
					id, ok := n.(*ast.Ident)
					if !ok {
						return true
					}
					if obj := pkg.info.Uses[id]; obj != nil && began[obj] && !within(obj.Pos(), lit) {
						found[fmt.Sprintf("%s: a deadline that began before this parallel subtest", p.where(id.Pos()))] = true
					}
					return true
				})
				return true
			})
		}
	}
	return slices.Sorted(maps.Keys(found))
}

// expires says whether an expression makes a context that ends by itself.
func expires(e ast.Expr) bool {
	call, ok := e.(*ast.CallExpr)
	if !ok {
		return false
	}
	switch f := call.Fun.(type) {
	case *ast.Ident:
		return f.Name == "testContext"
	case *ast.SelectorExpr:
		return f.Sel.Name == "WithTimeout" || f.Sel.Name == "WithDeadline"
	}
	return false
}

func parallelBody(b *ast.BlockStmt) bool { return parallel(&ast.FuncDecl{Body: b}) }

func within(at token.Pos, n ast.Node) bool { return n.Pos() <= at && at < n.End() }
