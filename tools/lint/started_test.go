package lint

import (
	"bufio"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Everything that goes on by itself has somebody who waits for it and something that ends it: goroutines.txt says who and what, of
// each function of the product that starts a goroutine or a timer.
func TestWhatIsStartedHasAnEnd(t *testing.T) {
	t.Parallel()
	listed := map[string]bool{}
	table, err := os.Open("goroutines.txt")
	require.NoError(t, err)
	defer table.Close()
	lines := bufio.NewScanner(table)
	for lines.Scan() {
		line := lines.Text()
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		cells := strings.Split(line, " | ")
		require.Len(t, cells, 3, "%q: what, who waits, what ends it", line)
		require.False(t, listed[cells[0]], "%q is listed twice", cells[0])
		listed[cells[0]] = true
	}
	require.NoError(t, lines.Err())
	found := map[string]bool{}
	for _, file := range productFiles(t) {
		parsed, err := parser.ParseFile(token.NewFileSet(), "../../"+file, nil, 0)
		require.NoError(t, err)
		for _, d := range parsed.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || f.Body == nil {
				continue
			}
			if n := started(f.Body); n > 0 {
				key := file + " " + f.Name.Name
				if n > 1 {
					key += fmt.Sprintf(" x%d", n)
				}
				found[key] = true
				assert.True(t, listed[key], "%s starts what tools/lint/goroutines.txt does not tell of: who waits for it, and what ends it?", key)
			}
		}
	}
	for key := range listed {
		assert.True(t, found[key], "goroutines.txt tells of %q, which is not there (any more)", key)
	}
}

// kits are packages for tests only.
var kits = []string{"/storetest/", "/devicetest/", "/gputest/", "/hostile/", "/sim/", "/unjudged/"}

// productFiles are the files of what runs in a user's process, from the root: no tests, no kits, no tools.
func productFiles(t *testing.T) (list []string) {
	for _, path := range files(t, ".go") {
		kit := slices.ContainsFunc(kits, func(k string) bool { return strings.Contains(path, k) })
		if !kit && !strings.HasPrefix(path, "tools/") && !strings.HasSuffix(path, "_test.go") {
			list = append(list, path)
		}
	}
	require.Greater(t, len(list), 100)
	return list
}

// started counts what a function starts and does not end itself: go statements, Go of a WaitGroup and AfterFunc, but not Go
// of a group that the function waits for, nor AfterFunc whose stop is deferred.
func started(body *ast.BlockStmt) (n int) {
	joined := map[string]bool{} // groups that are waited for
	stopped := map[*ast.CallExpr]bool{}
	deferred := map[string]bool{}
	ast.Inspect(body, func(node ast.Node) bool {
		switch x := node.(type) {
		case *ast.CallExpr:
			if s, ok := x.Fun.(*ast.SelectorExpr); ok && s.Sel.Name == "Wait" {
				if id, ok := s.X.(*ast.Ident); ok {
					joined[id.Name] = true
				}
			}
		case *ast.DeferStmt:
			if id, ok := x.Call.Fun.(*ast.Ident); ok {
				deferred[id.Name] = true
			}
			if s, ok := x.Call.Fun.(*ast.SelectorExpr); ok && s.Sel.Name == "Stop" {
				if id, ok := s.X.(*ast.Ident); ok {
					deferred[id.Name] = true
				}
			}
			if inner, ok := x.Call.Fun.(*ast.CallExpr); ok { // defer context.AfterFunc(…)()
				stopped[inner] = true
			}
		}
		return true
	})
	ast.Inspect(body, func(node ast.Node) bool {
		switch x := node.(type) {
		case *ast.GoStmt:
			n++
		case *ast.AssignStmt:
			if id, ok := x.Lhs[0].(*ast.Ident); ok && len(x.Rhs) == 1 && deferred[id.Name] {
				if call, ok := x.Rhs[0].(*ast.CallExpr); ok {
					stopped[call] = true
				}
			}
		case *ast.CallExpr:
			s, ok := x.Fun.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			id, local := s.X.(*ast.Ident)
			switch {
			case s.Sel.Name == "Go" && !(local && joined[id.Name]), s.Sel.Name == "AfterFunc" && !stopped[x]:
				n++
			}
		}
		return true
	})
	return n
}

func TestStarted(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, body string
		want       int
	}{
		{"a goroutine", "go f()", 1},
		{"of a group of somebody else", "s.background.Go(f)", 1},
		{"of a group that is waited for", "var wg sync.WaitGroup; wg.Go(f); wg.Wait()", 0},
		{"of a group that is not", "wg.Go(f)", 1},
		{"a timer", "t := time.AfterFunc(d, f); _ = t", 1},
		{"what is stopped in the end", "stop := context.AfterFunc(ctx, f); defer stop()", 0},
		{"what is stopped in the end, at once", "defer context.AfterFunc(ctx, f)()", 0},
		{"a timer that is stopped in the end", "late := time.AfterFunc(d, f); defer late.Stop()", 0},
		{"within another", "go func() { go f() }()", 2},
	} {
		file, err := parser.ParseFile(token.NewFileSet(), "x.go", "package x\nfunc x() { "+tt.body+" }", 0)
		require.NoError(t, err)
		assert.Equal(t, tt.want, started(file.Decls[0].(*ast.FuncDecl).Body), tt.name)
	}
}
