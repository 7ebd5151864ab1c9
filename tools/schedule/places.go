package main

import (
	"fmt"
	"go/ast"
	"go/token"
	"path/filepath"
	"slices"
	"strings"

	"github.com/skepkv/skep/store/schedule"
	"github.com/skepkv/skep/tools/internal/overlay"
)

// files are those in which goroutines of restore, put, cleaning and close meet.
var files = []string{"store/*.go", "store/internal/*/*.go", "store/catalog/*.go", "store/memory/*.go", "store/device/*.go", "index/*.go"}

// apart are files that only tests use: what they do is meant to happen as they say.
var apart = []string{"store/device/fault"}

// What stands at a place:
//
//	mu.Lock()                    schedule.Pause(n); mu.Lock(); schedule.Pause(n)
//	defer mu.Unlock()            defer schedule.Pause(n); defer mu.Unlock()
//	if a.CompareAndSwap(x, y)    if schedule.After(n, a.CompareAndSwap(x, y))
//	ch <- v, v := <-ch, close    schedule.Pause(n); ch <- v; schedule.Pause(n)
//	select {; case <-ch:         schedule.Pause(n); select {; case <-ch: schedule.Pause(n)
//	go func() {                  go func() { schedule.Pause(n)
//
// A parser knows no types: methods are known by name. A place where nothing is shared costs a little time.
var (
	stands = []string{"Lock", "RLock", "Unlock", "RUnlock", "Wait", "Signal", "Broadcast", "Done", "Store", "Add", "Swap", "CompareAndSwap", "Or", "And"}
	gives  = []string{"Load", "Swap", "CompareAndSwap", "Add", "Or", "And", "TryLock", "TryRLock"}
)

// write writes the copies, overlay.json and places.json to dir, and says how many places there are.
func write(root, dir string) (int, error) {
	var all []schedule.Place
	err := overlay.Write(root, dir, files, func(path string, src []byte) ([]byte, error) {
		if slices.ContainsFunc(apart, func(p string) bool { return strings.HasPrefix(path, p) }) {
			return src, nil
		}
		return instrument(path, src, &all)
	})
	if err == nil && len(all) > schedule.Limit {
		err = fmt.Errorf("%d places, and package schedule knows %d", len(all), schedule.Limit)
	}
	if err != nil {
		return 0, err
	}
	return len(all), overlay.WriteJSON(filepath.Join(dir, "places.json"), all)
}

type instrumenter struct {
	*overlay.File
	all *[]schedule.Place
}

// instrument gives a file with its places, and adds them to all.
func instrument(path string, src []byte, all *[]schedule.Place) ([]byte, error) {
	f, err := overlay.Parse(path, src)
	if err != nil {
		return nil, err
	}
	m := &instrumenter{f, all}
	for _, d := range f.Tree.Decls {
		if d, ok := d.(*ast.FuncDecl); ok && d.Body != nil {
			m.function(d.Type, d.Body)
		}
	}
	if m.Changed() {
		m.Import("github.com/skepkv/skep/store/schedule")
	}
	return m.Apply(), nil
}

// place adds a place and gives its number.
func (m *instrumenter) place(n ast.Node) int {
	text, _, _ := strings.Cut(m.Text(n), "\n")
	*m.all = append(*m.all, schedule.Place{File: m.Path, Line: m.Set.Position(n.Pos()).Line, Text: text})
	return len(*m.all) - 1
}

// function makes the places of a function's body, and those of the literals in it.
func (m *instrumenter) function(t *ast.FuncType, body *ast.BlockStmt) {
	ast.Inspect(body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncLit:
			m.function(n.Type, n.Body)
			return false
		case *ast.BlockStmt:
			m.list(n.List)
		case *ast.CaseClause:
			m.list(n.Body)
		case *ast.CommClause:
			if n.Comm != nil {
				m.Insert(n.Colon+1, fmt.Sprintf(" schedule.Pause(%d);", m.place(n.Comm)))
			}
			m.list(n.Body)
		case *ast.AssignStmt:
			if len(n.Lhs) > 1 && len(n.Rhs) == 1 && isCall(n.Rhs[0], gives) {
				return false // several values, which After does not take
			}
		case *ast.ReturnStmt:
			if len(n.Results) == 1 && results(t) > 1 && isCall(n.Results[0], gives) {
				return false
			}
		case *ast.ExprStmt, *ast.DeferStmt:
			if call := callOf(n); call != nil && isCall(call, gives) {
				for _, a := range call.Args { // the call itself is a statement, and gives nothing
					ast.Inspect(a, func(n ast.Node) bool {
						lit, ok := n.(*ast.FuncLit)
						if ok {
							m.function(lit.Type, lit.Body)
						}
						return !ok
					})
				}
				return false
			}
		case *ast.CallExpr:
			if isCall(n, gives) {
				m.Insert(n.Pos(), fmt.Sprintf("schedule.After(%d, ", m.place(n)))
				m.Insert(n.End(), ")")
			}
		}
		return true
	})
}

// list makes the places of statements one after the other.
func (m *instrumenter) list(list []ast.Stmt) {
	around := func(s ast.Stmt) {
		k := m.place(s)
		m.Insert(s.Pos(), fmt.Sprintf("schedule.Pause(%d); ", k))
		m.Insert(s.End(), fmt.Sprintf("; schedule.Pause(%d)", k))
	}
	for _, s := range list {
		switch s := s.(type) {
		case *ast.ExprStmt:
			call := callOf(s)
			switch {
			case call == nil:
				if receives(s.X) {
					around(s)
				}
			case isCall(call, stands), isClose(call):
				around(s)
			case isCall(call, []string{"Go"}):
				m.begins(call.Args...)
			}
		case *ast.DeferStmt:
			if isCall(s.Call, stands) {
				m.Insert(s.Pos(), fmt.Sprintf("defer schedule.Pause(%d); ", m.place(s)))
			}
		case *ast.GoStmt:
			m.begins(s.Call.Fun)
		case *ast.SendStmt:
			around(s)
		case *ast.AssignStmt:
			if len(s.Rhs) == 1 && receives(s.Rhs[0]) {
				around(s)
			}
		case *ast.SelectStmt:
			m.Insert(s.Pos(), fmt.Sprintf("schedule.Pause(%d); ", m.place(s)))
		}
	}
}

// begins makes a place where a goroutine begins.
func (m *instrumenter) begins(functions ...ast.Expr) {
	for _, f := range functions {
		if lit, ok := f.(*ast.FuncLit); ok {
			m.Insert(lit.Body.Lbrace+1, fmt.Sprintf(" schedule.Pause(%d);", m.place(lit.Type)))
		}
	}
}

func callOf(n ast.Node) *ast.CallExpr {
	switch n := n.(type) {
	case *ast.ExprStmt:
		call, _ := n.X.(*ast.CallExpr)
		return call
	case *ast.DeferStmt:
		return n.Call
	}
	return nil
}

// isCall says whether x is a call of a method of one of these names.
func isCall(x ast.Expr, names []string) bool {
	call, ok := x.(*ast.CallExpr)
	if !ok {
		return false
	}
	sel, ok := call.Fun.(*ast.SelectorExpr)
	return ok && slices.Contains(names, sel.Sel.Name)
}

func isClose(call *ast.CallExpr) bool {
	id, ok := call.Fun.(*ast.Ident)
	return ok && id.Name == "close"
}

func receives(x ast.Expr) bool {
	u, ok := x.(*ast.UnaryExpr)
	return ok && u.Op == token.ARROW
}

func results(t *ast.FuncType) int { return t.Results.NumFields() }
