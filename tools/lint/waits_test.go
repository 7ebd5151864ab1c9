package lint

import (
	"fmt"
	"go/ast"
	"go/constant"
	"go/token"
	"go/types"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// A test that sleeps hopes that something has happened meanwhile, and one that looks at the clock judges
// the machine it runs on. Tests wait for what they wait for (a channel, a hook, Eventually), or run where
// time is their own (testing/synctest). The rule, for tests and what is there for them:
//
//   - no time.Sleep, and no time.After or timer of less than patience, outside a bubble of synctest
//   - no time.Since, and no difference to time.Now, but in what is logged
//   - no Never, and no Eventually that gives up before patience
//
// Benchmarks measure: they may. What must be otherwise stands in sleepers, with its reason.
func TestNoTestGoesByTheClock(t *testing.T) {
	t.Parallel()
	used := map[string]bool{}
	for _, s := range clockwork(loaded()(t), func(file, function string) bool {
		key := file + " " + function
		used[key] = true
		return sleepers[key] != ""
	}) {
		t.Error(s)
	}
	for key := range sleepers {
		assert.True(t, used[key], "%s goes by the clock no more: take it out of sleepers", key)
	}
}

// patience is the least that a test waits for what must happen at some time.
const patience = 10 * time.Second

// clockwork lists where tests go by the clock. excused is asked before one is listed.
func clockwork(p *program, excused func(file, function string) bool) []string {
	found := map[string]bool{}
	bubbles := bubblesOf(p)
	for _, pkg := range p.packages {
		for _, f := range pkg.files {
			if !p.judged(pkg, f) {
				continue
			}
			for _, d := range f.Decls {
				fn, ok := d.(*ast.FuncDecl)
				if !ok || fn.Body == nil || strings.HasPrefix(fn.Name.Name, "Benchmark") {
					continue
				}
				if self, ok := pkg.info.Defs[fn.Name].(*types.Func); ok && bubbles.functions[self.FullName()] {
					continue
				}
				c := &clock{p: pkg, bubbles: bubbles, now: map[types.Object]bool{}}
				c.report = func(at token.Pos, what string) {
					if file := p.fileOf(at); !excused(file, fn.Name.Name) {
						found[fmt.Sprintf("%s: %s: %s", p.where(at), fn.Name.Name, what)] = true
					}
				}
				c.look(fn.Body)
			}
		}
	}
	return slices.Sorted(maps.Keys(found))
}

// bubbled is what runs in bubbles of synctest: functions that are called there and nowhere else, and
// parameters that are called there.
type bubbled struct {
	functions map[string]bool
	params    map[string]map[int]bool
}

// enters says whether the i-th argument of a call to f is run in a bubble.
func (b *bubbled) enters(f *types.Func, i int) bool {
	return packageOf(f) == "testing/synctest" || f != nil && b.params[f.FullName()][i]
}

func bubblesOf(p *program) *bubbled {
	b := &bubbled{functions: map[string]bool{}, params: map[string]map[int]bool{}}
	for grew := true; grew; {
		grew = false
		n := &counted{b: b, outside: map[string]int{}, inside: map[string]int{}}
		for _, pkg := range p.packages {
			for _, f := range pkg.files {
				for _, d := range f.Decls {
					if fn, ok := d.(*ast.FuncDecl); ok && fn.Body != nil {
						n.p, n.params = pkg, paramsOf(pkg, fn.Type)
						n.self = ""
						if self, ok := pkg.info.Defs[fn.Name].(*types.Func); ok {
							n.self = self.FullName()
						}
						n.count(fn.Body, b.functions[n.self])
					}
				}
			}
		}
		for name, k := range n.inside {
			if k > 0 && n.outside[name] == 0 && !b.functions[name] {
				b.functions[name], grew = true, true
			}
		}
		grew = grew || n.grew
	}
	return b
}

// counted counts who is called in bubbles, and who elsewhere.
type counted struct {
	b               *bubbled
	p               *typed
	self            string
	params          map[types.Object]int
	outside, inside map[string]int
	grew            bool
}

func (c *counted) count(n ast.Node, bubble bool) {
	ast.Inspect(n, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CallExpr:
			f := c.p.functionOf(n)
			c.count(n.Fun, bubble)
			for i, a := range n.Args {
				c.count(a, bubble || c.b.enters(f, i))
			}
			return false
		case *ast.Ident: // a function that is passed on counts like one that is called
			o := c.p.info.Uses[n]
			if i, ok := c.params[o]; ok && bubble && !c.b.params[c.self][i] {
				if c.b.params[c.self] == nil {
					c.b.params[c.self] = map[int]bool{}
				}
				c.b.params[c.self][i], c.grew = true, true
			}
			if f, ok := o.(*types.Func); ok && bubble {
				c.inside[f.Origin().FullName()]++
			} else if ok {
				c.outside[f.Origin().FullName()]++
			}
		}
		return true
	})
}

// clock goes through one function.
type clock struct {
	p       *typed
	bubbles *bubbled
	now     map[types.Object]bool // variables that were given time.Now()
	report  func(at token.Pos, what string)
}

var told = []string{"Log", "Logf", "ReportMetric", "Printf", "Println", "Fprintf", "Fprintln"}

func (c *clock) look(n ast.Node) {
	ast.Inspect(n, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.AssignStmt:
			for i, r := range n.Rhs {
				if id, ok := n.Lhs[min(i, len(n.Lhs)-1)].(*ast.Ident); ok && len(n.Lhs) == len(n.Rhs) && c.isNow(r) {
					if o := c.p.info.Defs[id]; o != nil {
						c.now[o] = true
					}
				}
			}
		case *ast.CallExpr:
			return c.call(n)
		}
		return true
	})
}

// call looks at one call, and says whether what is in it is to be looked at.
func (c *clock) call(n *ast.CallExpr) bool {
	f := c.p.functionOf(n)
	if f == nil {
		return true
	}
	for i := range n.Args {
		if c.bubbles.enters(f, i) {
			return false
		}
	}
	if slices.Contains(told, f.Name()) {
		return false
	}
	switch name := f.FullName(); {
	case name == "time.Sleep":
		c.report(n.Pos(), "it sleeps")
	case name == "time.Since":
		c.report(n.Pos(), "it looks at how long something took")
	case name == "(time.Time).Sub" && (c.isNow(n.Fun.(*ast.SelectorExpr).X) || c.isNow(n.Args[0])):
		c.report(n.Pos(), "it looks at how long something took")
	case name == "time.After", name == "time.NewTimer", name == "time.Tick":
		if d, ok := c.duration(n.Args[0]); ok && d < patience {
			c.report(n.Pos(), fmt.Sprintf("it waits for %v to pass", d))
		}
	case strings.Contains(packageOf(f), "stretchr/testify/"):
		c.testify(n, strings.TrimSuffix(f.Name(), "f"))
	}
	return true
}

func (c *clock) testify(n *ast.CallExpr, name string) {
	switch {
	case name == "Never":
		c.report(n.Pos(), "it waits for nothing to happen")
	case strings.HasPrefix(name, "Eventually"):
		for _, a := range n.Args { // the first duration is how long it waits
			if d, ok := c.duration(a); ok {
				if d < patience {
					c.report(n.Pos(), fmt.Sprintf("it gives up after %v", d))
				}
				return
			}
		}
	}
}

// duration is the value of a constant duration.
func (c *clock) duration(e ast.Expr) (time.Duration, bool) {
	tv := c.p.info.Types[e]
	if tv.Value == nil || tv.Type == nil || tv.Type.String() != "time.Duration" {
		return 0, false
	}
	d, ok := constant.Int64Val(constant.ToInt(tv.Value))
	return time.Duration(d), ok
}

func (c *clock) isNow(e ast.Expr) bool {
	switch e := ast.Unparen(e).(type) {
	case *ast.Ident:
		return c.now[c.p.info.Uses[e]]
	case *ast.CallExpr:
		f := c.p.functionOf(e)
		return f != nil && f.FullName() == "time.Now"
	}
	return false
}

// The rule finds what it is there to find: each line that says so, and no other.
func TestTheRuleOnTheClockFindsIt(t *testing.T) {
	t.Parallel()
	requireFound(t, "waits", func(p *program) []string {
		return clockwork(p, func(_, function string) bool { return function == "excused" })
	})
}
