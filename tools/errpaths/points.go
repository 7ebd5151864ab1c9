package main

import (
	"fmt"
	"go/ast"
	"go/token"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/skepkv/skep/store/failpoint"
	"github.com/skepkv/skep/tools/internal/overlay"
)

// Failpoints: copies of the durable path's files in which errors can be made to happen,
// to be built in the originals' place with go build's -overlay. These places
// become failpoints, see package store/failpoint:
//
//	err != nil              failpoint.Is(n, &err)        also == nil, negated
//	skep.KindOf(err)        skep.KindOf(failpoint.Of(n, &err))
//	ctx.Err()               failpoint.Ended(n, ctx)      of an operation's context
//	case <-ch: return err   case <-failpoint.Case(n, ch)
//	s.Unsure(commit())      s.Unsure(failpoint.Gave(n, commit()))
//
// and before every error return stands failpoint.Reached(n). Lines stay where they are.

// writeFailpoints writes the copies, overlay.json for the compiler and points.json for the tests
// to dir, and says how many failpoints there are.
func writeFailpoints(root, dir string) (int, error) {
	var all failpoint.List
	change := func(file string, src []byte) ([]byte, error) { return instrument(file, src, &all) }
	if err := overlay.Write(root, dir, durablePath, change); err != nil {
		return 0, err
	}
	return len(all.Points), overlay.WriteJSON(filepath.Join(dir, "points.json"), &all)
}

// errorNames are what variables and fields of type error are called in the durable path:
// a parser knows no types, and the compiler says where this is wrong. others are some in
// single files.
var (
	errorNames = regexp.MustCompile(`^(err|cerr|e|Err)$`)
	others     = map[string][]string{"store/internal/recovery/doubt.go": {"first"}, "store/internal/rebuild/logs.go": {"inner"}, "store/internal/appender/log.go": {"last"},
		"store/catalog/scan.go": {"first"}, "store/internal/space/headers.go": {"first"}}
)

// held are calls whose error is no failpoint, since an error after one that succeeded would be
// a lie: what they took would never be given back, what they entered would be there, or what
// they read is told as damaged, and damage may cost a block. Their own errors come about by
// failpoints inside them, and by tests that make them.
var held = regexp.MustCompile(`[gG]ate\.Enter(Write)?\(|dirlock\.Take\(|naming\.Take\(|\.TakeOpening\(|\.take\(|\.slot\(|\.winners\(` +
	`|\.[pP]lace(By)?\(|\.Current\(|openGroup\(|[nN]ewGroup\(` +
	`|\.sealing\(|OpenDevice\(|pebble\.Open\(|Submit\(|\.[iI]ndex\.(Insert|Replace|Evict|BulkLoadAgain|Withdraw)` +
	`|segment\.(Decode|Peek)|^<-done$|\.Lock\(|\.show\(|\.wrote\(|\.Unsure\(|\.commit(Rows)?\(|saveNames\(` +
	`|\.Rewrite\(|\.rows\.(Delete|Publish|Move)\(`)

// instrumenter makes one file's failpoints.
type instrumenter struct {
	*overlay.File
	all  *failpoint.List
	body ast.Node // of the innermost
}

// instrument gives a file with failpoints, and adds them to all.
func instrument(file string, src []byte, all *failpoint.List) ([]byte, error) {
	f, err := overlay.Parse(file, src)
	if err != nil {
		return nil, err
	}
	m := &instrumenter{File: f, all: all}
	for _, d := range f.Tree.Decls {
		if f, ok := d.(*ast.FuncDecl); ok && f.Body != nil {
			m.function(f.Name.Name, f.Type, f.Body)
		}
	}
	if m.Changed() {
		m.Import(module + "store/failpoint")
	}
	return m.Apply(), nil
}

func (m *instrumenter) function(name string, t *ast.FuncType, body *ast.BlockStmt) {
	was := m.body
	m.body = body
	defer func() { m.body = was }()
	ast.Inspect(body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncLit:
			m.function(name, n.Type, n.Body)
			return false
		case *ast.ReturnStmt:
			if givesError(t) && len(n.Results) > 0 && isError(n.Results[len(n.Results)-1]) {
				m.returns(n)
			}
		case *ast.BinaryExpr:
			m.condition(name, n)
		case *ast.CallExpr:
			m.call(name, n)
		case *ast.CommClause:
			m.comm(name, t, n)
		}
		return true
	})
}

func (m *instrumenter) returns(n *ast.ReturnStmt) {
	at := m.Set.Position(n.Pos())
	m.all.Returns = append(m.all.Returns, failpoint.Return{File: m.Path, Line: at.Line, Column: at.Column})
	m.Insert(n.Pos(), fmt.Sprintf("failpoint.Reached(%d); ", len(m.all.Returns)-1))
}

// point adds a failpoint and gives its number.
func (m *instrumenter) point(function string, at ast.Node, x ast.Expr, kind string) int {
	p := m.Set.Position(at.Pos())
	n := failpoint.Point{File: m.Path, Line: p.Line, Func: function, Text: m.Text(at), Kind: kind}
	if x != nil {
		n.Of = m.from(x)
	}
	m.all.Points = append(m.all.Points, n)
	return len(m.all.Points) - 1
}

// isErrorVariable says whether x is a variable, or a field, of type error.
func (m *instrumenter) isErrorVariable(x ast.Expr) bool {
	name := ""
	switch x := x.(type) {
	case *ast.Ident:
		name = x.Name
	case *ast.SelectorExpr:
		name = x.Sel.Name
	}
	return errorNames.MatchString(name) || name != "" && slices.Contains(others[m.Path], name)
}

func (m *instrumenter) condition(function string, n *ast.BinaryExpr) {
	id, ok := n.Y.(*ast.Ident)
	if !ok || id.Name != "nil" || n.Op != token.NEQ && n.Op != token.EQL {
		return
	}
	if !m.isErrorVariable(n.X) || held.MatchString(m.from(n.X)) {
		return
	}
	if function == "start" && n.Op == token.NEQ && m.Text(n.X) == "a.err" || function == "sumInto" {
		return // what was made ready to be written would not be given back; a sum would be left out
	}
	not := ""
	if n.Op == token.EQL {
		not = "!"
	}
	k := m.point(function, n, n.X, failpoint.Variable)
	m.Replace(n.Pos(), n.End(), fmt.Sprintf("%sfailpoint.Is(%d, &%s)", not, k, m.Text(n.X)))
}

func (m *instrumenter) call(function string, n *ast.CallExpr) {
	f, ok := n.Fun.(*ast.SelectorExpr)
	if !ok {
		return
	}
	if f.Sel.Name == "Unsure" && len(n.Args) == 1 { // what it makes of an error counts
		k := m.point(function, n, nil, failpoint.Variable)
		m.all.Points[k].Of = m.Text(n.Args[0])
		m.Insert(n.Args[0].Pos(), fmt.Sprintf("failpoint.Gave(%d, ", k))
		m.Insert(n.Args[0].End(), ")")
		return
	}
	recv, ok := f.X.(*ast.Ident)
	if !ok {
		return
	}
	switch {
	case f.Sel.Name == "KindOf" && recv.Name == "skep" && len(n.Args) == 1 && m.isErrorVariable(n.Args[0]) &&
		!held.MatchString(m.from(n.Args[0])):
		k := m.point(function, n, n.Args[0], failpoint.Variable)
		m.Replace(n.Args[0].Pos(), n.Args[0].End(), fmt.Sprintf("failpoint.Of(%d, &%s)", k, m.Text(n.Args[0])))
	case f.Sel.Name == "Err" && recv.Name == "ctx" && len(n.Args) == 0 && !m.inReturn(n):
		k := m.point(function, n, nil, failpoint.Context)
		m.Replace(n.Pos(), n.End(), fmt.Sprintf("failpoint.Ended(%d, ctx)", k))
	}
}

// inReturn says whether n is within a return statement: there ctx.Err() tells what was.
func (m *instrumenter) inReturn(n ast.Node) (in bool) {
	ast.Inspect(m.body, func(o ast.Node) bool {
		if r, ok := o.(*ast.ReturnStmt); ok {
			in = in || r.Pos() <= n.Pos() && n.End() <= r.End()
		}
		return true
	})
	return in
}

// comm makes a failpoint of a case that receives and returns an error.
func (m *instrumenter) comm(function string, t *ast.FuncType, n *ast.CommClause) {
	s, ok := n.Comm.(*ast.ExprStmt)
	if !ok || !givesError(t) {
		return
	}
	recv, ok := s.X.(*ast.UnaryExpr)
	if !ok || recv.Op != token.ARROW {
		return
	}
	fails := false
	for _, st := range n.Body {
		if r, ok := st.(*ast.ReturnStmt); ok && len(r.Results) > 0 && isError(r.Results[len(r.Results)-1]) {
			fails = true
		}
	}
	if !fails {
		return
	}
	k := m.point(function, s, nil, failpoint.Channel)
	m.Insert(recv.X.Pos(), fmt.Sprintf("failpoint.Case(%d, ", k))
	m.Insert(recv.X.End(), ")")
}

// from is the text of what x was last set to before it is looked at: the call that gave it.
// What is set in a function literal, or at the head of an if that x is not in, is another
// variable.
func (m *instrumenter) from(x ast.Expr) (text string) {
	want := m.Text(x)
	ast.Inspect(m.body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncLit:
			return false
		case *ast.IfStmt:
			init, ok := n.Init.(*ast.AssignStmt)
			return !ok || init.Tok != token.DEFINE || n.Pos() <= x.Pos() && x.End() <= n.End()
		case *ast.AssignStmt:
			for i, l := range n.Lhs {
				if n.Pos() < x.Pos() && m.Text(l) == want {
					text = m.Text(n.Rhs[min(i, len(n.Rhs)-1)])
				}
			}
		}
		return true
	})
	text, _, _ = strings.Cut(text, "\n")
	return text
}
