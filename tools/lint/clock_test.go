package lint

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// What the machine's clock is read for.
const (
	people   = "people read it"
	injected = "the default of a clock that tests set"
	moment   = "a moment that the world outside names: a credential's end, a time that a client gives"
	ticking  = "it is compared with other readings of this process only, which have the steady clock in them"
)

// machineClocks are the functions that read the machine's clock as such, "FILE FUNCTION", and
// why they may. Elsewhere time.Now is called and compared, where it goes by the steady clock that is in
// it, and what is kept longer or told to others comes from skep.Steady.
var machineClocks = map[string]string{
	"clock.go Steady":                            "the steady clock itself begins at it",
	"store/internal/dirlock/lock.go lockFile":    people,
	"store/options.go var":                       injected,
	"store/storetest/clock.go MachineClock":      injected,
	"store/memory/cache.go ensureDefaults":       ticking,
	"replication/bucket/fetch.go fetch":          "when an object was used last, beside others' that ids tell of",
	"tools/internal/kvevents/publisher.go New":   moment,
	"tools/internal/serve/store.go jobsOf":       people,
	"tools/internal/serve/run.go make":           moment,
	"tools/internal/support/support.go Write":    people,
	"tools/internal/bench/device.go RandomReads": "it seeds random numbers",
	"wire/auth/auth.go New":                      moment,
	"wire/resp/server.go var":                    injected,
	"wire/httpapi/api.go New":                    moment,
}

// steady are methods of a time that go by the steady clock where both times have a reading of it.
var steady = map[string]bool{"Add": true, "Sub": true, "After": true, "Before": true, "Compare": true, "Equal": true, "IsZero": true}

// The machine's clock may be set by hours at any moment: whoever reads it is listed, with the reason.
func TestWhoReadsTheMachinesClock(t *testing.T) {
	t.Parallel()
	found := map[string]bool{}
	for _, rel := range files(t, ".go") {
		if strings.HasSuffix(rel, "_test.go") || strings.Contains(rel, "testdata/") {
			continue
		}
		fset := token.NewFileSet()
		f, err := parser.ParseFile(fset, filepath.Join(root, rel), nil, 0)
		require.NoError(t, err)
		for _, d := range f.Decls {
			name := "var"
			if fn, ok := d.(*ast.FuncDecl); ok {
				name = fn.Name.Name
			}
			for _, at := range machineReadings(d) {
				place := rel + " " + name
				found[place] = true
				if machineClocks[place] == "" {
					t.Errorf("%s: %q reads the machine's clock as such, which may be set: take skep.Steady, or list it with its reason", fset.Position(at), place)
				}
			}
		}
	}
	for place := range machineClocks {
		if !found[place] && place != "clock.go Steady" {
			t.Errorf("%q does not read the machine's clock any more: take it from the list", place)
		}
	}
}

// promised are the names of fields that hold when a promise ends.
var promised = map[string]bool{"Deadline": true, "deadline": true, "Until": true}

// A promise ends by the steady clock, also where it came as a Unix time, without a reading of that.
func TestPromisesEndByTheSteadyClock(t *testing.T) {
	t.Parallel()
	for _, rel := range files(t, ".go") {
		if strings.HasSuffix(rel, "_test.go") || strings.HasPrefix(rel, "store/storetest/") {
			continue
		}
		fset := token.NewFileSet()
		f, err := parser.ParseFile(fset, filepath.Join(root, rel), nil, 0)
		require.NoError(t, err)
		ast.Inspect(f, func(n ast.Node) bool {
			c, ok := n.(*ast.CallExpr)
			if !ok || len(c.Args) == 0 || !machineSaid(c.Fun) {
				return true
			}
			if s, ok := c.Args[len(c.Args)-1].(*ast.SelectorExpr); ok && promised[s.Sel.Name] {
				t.Errorf("%s: a promise is compared with the machine's clock: take skep.Steady", fset.Position(c.Pos()))
			}
			return true
		})
	}
}

// machineSaid says whether a function is time.Until, context.WithDeadline, which asks that, or a method of what time.Now
// gave.
func machineSaid(fun ast.Expr) bool {
	s, ok := fun.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	if x, ok := s.X.(*ast.Ident); ok {
		return x.Name == "time" && s.Sel.Name == "Until" || x.Name == "context" && s.Sel.Name == "WithDeadline"
	}
	c, ok := s.X.(*ast.CallExpr)
	if !ok {
		return false
	}
	f, ok := c.Fun.(*ast.SelectorExpr)
	return ok && f.Sel.Name == "Now"
}

// machineReadings are the places in a declaration where time.Now is handed on as a clock, or where what it gave is
// converted: a Unix time, a text, a time without its steady reading.
func machineReadings(d ast.Node) (list []token.Pos) {
	isNow := func(e ast.Node) bool {
		s, ok := e.(*ast.SelectorExpr)
		if !ok || s.Sel.Name != "Now" {
			return false
		}
		x, ok := s.X.(*ast.Ident)
		return ok && x.Name == "time"
	}
	called := map[ast.Node]bool{} // of the time.Now in it
	nows := map[string]bool{}     // variables that it was given to
	ast.Inspect(d, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CallExpr:
			if isNow(n.Fun) {
				called[n.Fun] = true
			}
		case *ast.AssignStmt:
			for i, r := range n.Rhs {
				if c, ok := r.(*ast.CallExpr); ok && isNow(c.Fun) && i < len(n.Lhs) {
					nows[fmt.Sprint(n.Lhs[i])] = true
				}
			}
		}
		return true
	})
	ast.Inspect(d, func(n ast.Node) bool {
		s, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		if isNow(s) && !called[s] {
			list = append(list, s.Pos())
		}
		c, ok := s.X.(*ast.CallExpr)
		x, isVar := s.X.(*ast.Ident)
		if (ok && isNow(c.Fun) || isVar && nows[x.Name]) && !steady[s.Sel.Name] {
			list = append(list, s.Pos())
		}
		return true
	})
	return list
}

// The rule finds what it is there for.
func TestMachineReadings(t *testing.T) {
	t.Parallel()
	for src, n := range map[string]int{
		"x := time.Now().UnixNano(); _ = x":          1,
		"now := time.Now(); _ = now.UnixMilli()":     1,
		"clock := time.Now; _ = clock":               1,
		"end := time.Now().Add(3); _ = end":          0,
		"began := time.Now(); _ = time.Since(began)": 0,
		"now := time.Now(); _ = now.After(end)":      0,
	} {
		f, err := parser.ParseFile(token.NewFileSet(), "x.go", "package x\nfunc f() {"+src+"}", 0)
		require.NoError(t, err)
		require.Len(t, machineReadings(f.Decls[0]), n, src)
	}
}
