package lint

import (
	"fmt"
	"go/ast"
	"go/token"
	"go/types"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Only the test's goroutine may end a test: require, Fatal and FailNow elsewhere end the
// goroutine they are called on, and the test goes on, or hangs. Elsewhere assert does, or
// an error that is brought home.
func TestOnlyTheTestsGoroutineEndsIt(t *testing.T) {
	t.Parallel()
	used := map[string]bool{}
	for _, s := range offGoroutine(loaded()(t)) {
		place, rest, _ := strings.Cut(s, ": ")
		file, _, _ := strings.Cut(place, ":")
		function, _, _ := strings.Cut(rest, " ")
		if key := file + " " + function; elsewhereEnded[key] != "" {
			used[key] = true
			continue
		}
		t.Error(s)
	}
	for key := range elsewhereEnded {
		assert.True(t, used[key], "%s ends nothing elsewhere any more: take it out of elsewhereEnded", key)
	}
}

// elsewhereEnded are functions that end goroutines all the same, and why they may: "FILE FUNCTION".
var elsewhereEnded = map[string]string{
	"store/crash_life_test.go use":                             "it looks, after they have ended, whether one of its writers failed, and ends the test itself",
	"store/storetest/crew_test.go TestACrewBringsFailuresHome": "the test whose end it looks at is no test but a stand-in",
}

// ends is what is known of functions, by full name.
type ends struct {
	fatal map[string]bool         // may end the test
	goes  map[string]map[int]bool // parameters that are called on another goroutine
	grew  bool
}

// offGoroutine lists the calls that may end a test from another goroutine than its own.
func offGoroutine(p *program) []string {
	known := &ends{fatal: map[string]bool{}, goes: map[string]map[int]bool{}}
	found := map[string]bool{}
	for known.grew = true; known.grew; {
		known.grew = false
		clear(found)
		for _, pkg := range p.packages {
			for _, f := range pkg.files {
				judged := p.judged(pkg, f)
				for _, d := range f.Decls {
					fn, ok := d.(*ast.FuncDecl)
					if !ok || fn.Body == nil {
						continue
					}
					w := &walk{p: pkg, known: known, literals: literalsOf(pkg, fn.Body), seen: map[ast.Node]bool{}}
					w.self, _ = pkg.info.Defs[fn.Name].(*types.Func)
					w.params = paramsOf(pkg, fn.Type)
					w.report = func(at token.Pos, what string) {
						if judged {
							found[fmt.Sprintf("%s: %s calls %s on a goroutine that is not the test's", p.where(at), fn.Name.Name, what)] = true
						}
					}
					w.walk(fn.Body, false, true)
				}
			}
		}
	}
	return slices.Sorted(maps.Keys(found))
}

// literalsOf are the function literals each local variable was given.
func literalsOf(p *typed, body ast.Node) map[types.Object][]*ast.FuncLit {
	out := map[types.Object][]*ast.FuncLit{}
	note := func(to ast.Expr, from ast.Expr) {
		id, ok := to.(*ast.Ident)
		lit, isLit := ast.Unparen(from).(*ast.FuncLit)
		if !ok || !isLit {
			return
		}
		o := p.info.Defs[id]
		if o == nil {
			o = p.info.Uses[id]
		}
		out[o] = append(out[o], lit)
	}
	ast.Inspect(body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.AssignStmt:
			if len(n.Lhs) == len(n.Rhs) {
				for i := range n.Lhs {
					note(n.Lhs[i], n.Rhs[i])
				}
			}
		case *ast.ValueSpec:
			if len(n.Names) == len(n.Values) {
				for i := range n.Names {
					note(n.Names[i], n.Values[i])
				}
			}
		}
		return true
	})
	return out
}

// paramsOf are a function's parameters, with their places.
func paramsOf(p *typed, f *ast.FuncType) map[types.Object]int {
	out := map[types.Object]int{}
	i := 0
	for _, field := range f.Params.List {
		for _, name := range field.Names {
			out[p.info.Defs[name]] = i
			i++
		}
		if len(field.Names) == 0 {
			i++
		}
	}
	return out
}

// walk goes through one function.
type walk struct {
	p        *typed
	known    *ends
	self     *types.Func
	params   map[types.Object]int
	literals map[types.Object][]*ast.FuncLit
	seen     map[ast.Node]bool // literals that were walked as another goroutine's
	report   func(at token.Pos, what string)
}

// walk looks at n: off says that it runs on another goroutine, counts that what ends the
// test here ends it in whoever calls the function.
func (w *walk) walk(n ast.Node, off, counts bool) {
	ast.Inspect(n, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			w.run(n.Call.Fun, true, false)
			for _, a := range n.Call.Args {
				if isFunction(w.p, a) {
					w.run(a, true, false)
				} else {
					w.walk(a, off, counts)
				}
			}
			return false
		case *ast.CallExpr:
			w.call(n, off, counts)
			return false
		}
		return true
	})
}

// call looks at one call.
func (w *walk) call(n *ast.CallExpr, off, counts bool) {
	f := w.p.functionOf(n)
	if w.endsTest(f, n) {
		if off {
			w.report(n.Pos(), f.Name())
		} else if counts && w.self != nil && !w.known.fatal[w.self.FullName()] {
			w.known.fatal[w.self.FullName()], w.known.grew = true, true
		}
	}
	switch fun := ast.Unparen(n.Fun).(type) {
	case *ast.FuncLit:
		w.walk(fun.Body, off, counts)
	case *ast.Ident:
		if off {
			w.run(fun, true, false) // a literal of this function, or one of its parameters
		}
	default:
		w.walk(n.Fun, off, counts)
	}
	for i, a := range n.Args {
		switch {
		case !isFunction(w.p, a):
			w.walk(a, off, counts)
		case ownTest(f):
			w.run(a, false, false)
		case w.another(f, n, i):
			w.run(a, true, false)
		default:
			if lit, ok := ast.Unparen(a).(*ast.FuncLit); ok {
				w.walk(lit.Body, off, counts)
			} else if off {
				w.run(a, true, false)
			}
		}
	}
}

// run looks at a function value that is called, off the test's goroutine or on it.
func (w *walk) run(e ast.Expr, off, counts bool) {
	e = ast.Unparen(e)
	switch e := e.(type) {
	case *ast.FuncLit:
		w.walk(e.Body, off, counts)
		return
	case *ast.Ident:
		o := w.p.info.Uses[e]
		if i, ok := w.params[o]; ok && off && w.self != nil {
			name := w.self.FullName()
			if !w.known.goes[name][i] {
				if w.known.goes[name] == nil {
					w.known.goes[name] = map[int]bool{}
				}
				w.known.goes[name][i], w.known.grew = true, true
			}
		}
		for _, lit := range w.literals[o] {
			if off && !w.seen[lit] {
				w.seen[lit] = true
				w.walk(lit.Body, true, false)
			}
		}
	}
	if f := w.p.functionOf(&ast.CallExpr{Fun: e}); off && f != nil && w.endsTest(f, nil) {
		w.report(e.Pos(), f.Name())
	}
}

func isFunction(p *typed, e ast.Expr) bool {
	tv := p.info.Types[e]
	if tv.Type == nil || tv.IsType() {
		return false
	}
	_, ok := tv.Type.Underlying().(*types.Signature)
	return ok
}

var enders = []string{"FailNow", "Fatal", "Fatalf", "Skip", "Skipf", "SkipNow"}

// endsTest says whether a call may end the test.
func (w *walk) endsTest(f *types.Func, n *ast.CallExpr) bool {
	switch {
	case f == nil:
		return false
	case packageOf(f) == requirePath && f.Name() != "New":
		return n == nil || len(n.Args) == 0 || !strings.HasSuffix(fmt.Sprint(w.p.info.TypeOf(n.Args[0])), "assert.CollectT")
	case packageOf(f) == "testing":
		return slices.Contains(enders, f.Name())
	}
	return w.known.fatal[f.FullName()]
}

// ownTest says whether a function literal given to f is a test of its own, or runs when the test
// is over, on its goroutine.
func ownTest(f *types.Func) bool {
	switch packageOf(f) {
	case "testing":
		return f.Name() == "Run" || f.Name() == "Fuzz" || f.Name() == "Cleanup" || f.Name() == "Benchmark"
	case "testing/synctest":
		return true
	case module + "/store/storetest": // whose goroutines have a t of their own
		return f.Name() == "Go"
	}
	return false
}

// another says whether f calls its i-th argument on another goroutine.
func (w *walk) another(f *types.Func, n *ast.CallExpr, i int) bool {
	if f == nil { // a conversion?
		return strings.HasSuffix(fmt.Sprint(w.p.info.TypeOf(n.Fun)), "net/http.HandlerFunc")
	}
	polls := strings.HasPrefix(f.Name(), "Eventually") || strings.HasPrefix(f.Name(), "Never")
	switch {
	case f.Name() == "Go", f.Name() == "HandleFunc", f.FullName() == "time.AfterFunc":
		return true
	case strings.Contains(packageOf(f), "stretchr/testify/") && polls:
		return true
	}
	return w.known.goes[f.FullName()][i]
}

// The rule finds what it is there to find: each line that says so, and no other.
func TestTheRuleOnGoroutinesFindsThem(t *testing.T) {
	t.Parallel()
	requireFound(t, "goroutines", offGoroutine)
}

// requireFound requires that rule finds, in testdata/NAME, the lines that end in "// found", and
// nothing else.
func requireFound(t *testing.T, name string, rule func(*program) []string) {
	t.Helper()
	p, want := fixture(t, name)
	var got []string
	for _, s := range rule(p) {
		place, _, _ := strings.Cut(s, ": ")
		got = append(got, place)
	}
	require.NotEmpty(t, want)
	require.ElementsMatch(t, want, got)
}
