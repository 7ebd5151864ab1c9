package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

const metricsHead = `# Metrics

<!-- Written by tools/docs from the code: make docs writes it anew. -->

` + "`skep serve`" + ` answers at ` + "`/metrics`" + ` in Prometheus' text format, ` + "`skep-gpu lend`" + ` and ` + "`skep-gpu serve`" + ` with
` + "`--metrics`" + `; a program that embeds a store registers its metrics with ` + "`store.Options.Registerer`" + `. Names that end in
` + "`_total`" + ` are counters, and appear once they have counted something where they have labels; others are gauges, unless a
histogram is named. Labels are in braces. [Monitor a server](../howto/monitor.md) says which to watch.
`

// groups are the page's parts: packages by directory, and what their metrics are of.
var groups = []struct{ title, text, dirs string }{
	{"Of a store", "Every store has these.", "store/internal/observe"},
	{"Of a server", "`skep serve` has these besides.",
		"tools/internal/serve tools/internal/kvevents wire/resp wire/watch"},
	{"Of GPU memory", "`skep-gpu` has these. They have been seen on a simulated GPU only.", "gpu gpu/loan"},
}

type metric struct {
	name, kind, help string
	labels           []string
}

// metrics is the page of metrics.
func metrics(root string) (string, error) {
	var b strings.Builder
	b.WriteString(metricsHead)
	for _, g := range groups {
		var list []metric
		for _, dir := range strings.Fields(g.dirs) {
			found, err := metricsOf(filepath.Join(root, filepath.FromSlash(dir)))
			if err != nil {
				return "", err
			}
			list = append(list, found...)
		}
		slices.SortFunc(list, func(a, b metric) int { return strings.Compare(a.name, b.name) })
		fmt.Fprintf(&b, "\n## %s\n\n%s\n\n| metric | meaning |\n|---|---|\n", g.title, g.text)
		for _, m := range list {
			labels, help := "", strings.TrimSuffix(m.help, ".")
			if len(m.labels) > 0 {
				labels, help = "{"+strings.Join(m.labels, ",")+"}", withoutLabels(help, m.labels)
			}
			if m.kind == "histogram" {
				help = "Histogram: " + strings.ToLower(help[:1]) + help[1:]
			}
			fmt.Fprintf(&b, "| `%s%s` | %s |\n", m.name, labels, help)
		}
	}
	return b.String(), nil
}

// withoutLabels is a help text without an end such as ", by tenant and result" that only repeats the labels.
func withoutLabels(help string, labels []string) string {
	text, by, found := strings.Cut(help, ", by ")
	words := strings.FieldsFunc(by, func(r rune) bool { return r == ' ' || r == ',' })
	for _, w := range words {
		if w != "and" && !slices.Contains(labels, w) {
			return help
		}
	}
	if !found {
		return help
	}
	return text
}

// metricsOf lists the metrics that the package in dir describes: calls of prometheus.NewDesc, of a function desc in
// its place, and of the constructors of histograms and counters.
func metricsOf(dir string) ([]metric, error) {
	names, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		return nil, err
	}
	var files []*ast.File
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			return nil, err
		}
		files = append(files, f)
	}
	var list []metric
	lists := map[string][]string{} // variables that hold labels
	each(files, func(n ast.Node) {
		if v, ok := n.(*ast.ValueSpec); ok && len(v.Values) == len(v.Names) {
			for i, name := range v.Names {
				if l, ok := texts(v.Values[i]); ok {
					lists[name.Name] = l
				}
			}
		}
	})
	each(files, func(n ast.Node) {
		if call, ok := n.(*ast.CallExpr); ok {
			if m, ok := described(call, lists); ok {
				list = append(list, m)
			}
		}
	})
	return list, nil
}

func each(files []*ast.File, f func(ast.Node)) {
	for _, file := range files {
		ast.Inspect(file, func(n ast.Node) bool {
			f(n)
			return true
		})
	}
}

// described is the metric that a call describes; false: it describes none.
func described(call *ast.CallExpr, lists map[string][]string) (metric, bool) {
	switch name := called(call); {
	case name == "desc" && len(call.Args) >= 2:
		name, ok := text(call.Args[0])
		help, _ := text(call.Args[1])
		var labels []string
		for _, a := range call.Args[2:] {
			l, _ := text(a)
			labels = append(labels, l)
		}
		return newMetric("skep_"+name, kindOf(name), labels, help), ok
	case name == "NewDesc" && len(call.Args) == 4:
		name, ok := text(call.Args[0])
		help, _ := text(call.Args[1])
		return newMetric(name, kindOf(name), labelsIn(call.Args[2], lists), help), ok
	case name == "NewHistogramVec" || name == "NewCounterVec":
		opts, ok := call.Args[0].(*ast.CompositeLit)
		if !ok {
			return metric{}, false
		}
		field := map[string]string{}
		for _, e := range opts.Elts {
			kv := e.(*ast.KeyValueExpr)
			field[kv.Key.(*ast.Ident).Name], _ = text(kv.Value)
		}
		kind := "counter"
		if name == "NewHistogramVec" {
			kind = "histogram"
		}
		return newMetric(field["Name"], kind, labelsIn(call.Args[1], lists), field["Help"]), true
	}
	return metric{}, false
}

func newMetric(name, kind string, labels []string, help string) metric {
	return metric{name, kind, strings.ReplaceAll(help, "|", "\\|"), labels}
}

func kindOf(name string) string {
	if strings.HasSuffix(name, "_total") {
		return "counter"
	}
	return "gauge"
}

// called is the name of the function that is called, without its package.
func called(call *ast.CallExpr) string {
	switch f := call.Fun.(type) {
	case *ast.Ident:
		return f.Name
	case *ast.SelectorExpr:
		return f.Sel.Name
	}
	return ""
}

// labelsIn are the labels of an argument: a list, a variable that holds one, or a part of such a variable.
func labelsIn(e ast.Expr, lists map[string][]string) []string {
	if l, ok := texts(e); ok {
		return l
	}
	switch e := e.(type) {
	case *ast.Ident:
		return slices.Clone(lists[e.Name])
	case *ast.SliceExpr:
		all := labelsIn(e.X, lists)
		if high, ok := e.High.(*ast.BasicLit); ok {
			if n, err := strconv.Atoi(high.Value); err == nil && n <= len(all) {
				return all[:n]
			}
		}
	}
	return nil
}

// texts are the strings of a list that is written out.
func texts(e ast.Expr) ([]string, bool) {
	lit, ok := e.(*ast.CompositeLit)
	if !ok {
		return nil, false
	}
	var out []string
	for _, x := range lit.Elts {
		s, ok := text(x)
		if !ok {
			return nil, false
		}
		out = append(out, s)
	}
	return out, true
}

// text is a string that is written out.
func text(e ast.Expr) (string, bool) {
	lit, ok := e.(*ast.BasicLit)
	if !ok || lit.Kind != token.STRING {
		return "", false
	}
	s, err := strconv.Unquote(lit.Value)
	return s, err == nil
}
