// Command errpaths measures which error returns of the durable path tests reach. It
// reads a coverage profile and the source, and prints every return of an error that no
// test came by:
//
//	go test -coverprofile=cover.out -coverpkg=./store,./store/catalog,./store/internal/... ./store ./store/catalog ./store/internal/...
//	go run ./tools/errpaths cover.out
//
// as `make errpaths` does, with a profile for each process that tests start. The durable path is what stands between a put, a delete or a
// purge and its acknowledgement, and between a crash and right answers: the files in
// durablePath. An error return is a return statement of a function whose last result is
// an error, giving there a variable that is not nil, a new error, or what a maker of
// errors returns; handing on another function's answer (return f()) is none of its own.
//
// Returns that no test can come by are listed, with the reason, in unreachable.txt; one that is
// reached all the same, or is not there any more, is an error.
//
//	go run ./tools/errpaths -failpoints DIR
//
// writes to DIR what `make failpoints` builds: points.go.
package main

import (
	"bufio"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

const module = "github.com/skepkv/skep/"

// durablePath is the files looked at, as patterns from the repository's root.
var durablePath = []string{
	"store/put.go", "store/delete.go", "store/internal/naming/*.go",
	"store/open.go", "store/recover.go",
	"store/internal/locate/damage.go", "store/keys.go", "store/namespaces.go", "store/close.go",
	"store/internal/ingest/*.go", "store/internal/admission/filter.go",
	"store/internal/appender/append.go", "store/internal/appender/log.go", "store/internal/appender/moved.go",
	"store/internal/appender/place.go",
	"store/internal/appender/write.go", "store/internal/clean/*.go", "store/internal/commit/*.go",
	"store/internal/devlog/*.go", "store/internal/intents/*.go", "store/internal/puts/*.go",
	"store/internal/space/opening.go", "store/internal/space/sealing.go", "store/internal/space/place.go",
	"store/internal/space/headers.go", "store/internal/space/emptied.go", "store/internal/space/flush.go",
	"store/internal/space/grow.go", "store/internal/limits/turn.go",
	"store/rebuild.go", "store/internal/rebuild/*.go", "store/internal/opening/opening.go",
	"store/internal/opening/catalog.go", "store/internal/opening/create.go", "store/internal/opening/find.go",
	"store/internal/opening/order.go", "store/internal/opening/rebuild.go",
	"store/internal/segio/batch.go", "store/internal/segio/flusher.go", "store/internal/segio/sums.go",
	"store/internal/segio/superblock.go",
	"store/internal/namespaces/table.go", "store/internal/recovery/agree.go", "store/internal/recovery/blocks.go",
	"store/internal/recovery/doubt.go", "store/internal/recovery/groups.go", "store/internal/recovery/names.go",
	"store/internal/watermark/root.go",
	"store/catalog/batch.go", "store/catalog/catalog.go", "store/catalog/codec.go", "store/catalog/guard.go",
	"store/catalog/fence.go", "store/catalog/load.go",
	"store/catalog/read.go", "store/catalog/scan.go", "store/catalog/state.go",
}

func main() {
	dir := flag.String("failpoints", "", "write the failpoint build's files to this directory, and nothing else")
	flag.Parse()
	err := error(nil)
	if *dir != "" {
		var n int
		if n, err = writeFailpoints(".", *dir); err == nil {
			fmt.Println(n, "failpoints")
		}
	} else {
		err = run(flag.Args(), ".", unreachableText, os.Stdout)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "errpaths:", err)
		os.Exit(1)
	}
}

func run(profiles []string, root, list string, out io.Writer) error {
	blocks := profile{}
	for _, name := range profiles {
		f, err := os.Open(name)
		if err != nil {
			return err
		}
		err = blocks.add(f)
		f.Close()
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	never, err := parseUnreachable(list)
	if err != nil {
		return err
	}
	all, reached := 0, 0
	for _, pattern := range durablePath {
		files, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			return err
		}
		for _, file := range files {
			rel, err := filepath.Rel(root, file)
			if err != nil {
				return err
			}
			list, err := errorReturns(file)
			if err != nil {
				return err
			}
			for _, r := range list {
				was := blocks.reached(filepath.ToSlash(rel), r.line, r.column)
				if never.take(filepath.ToSlash(rel), r) {
					if was {
						return fmt.Errorf("%s:%d: in %s: %s: reached, and unreachable.txt says that it cannot be", rel, r.line, r.function, r.text)
					}
					continue
				}
				all++
				if was {
					reached++
				} else {
					fmt.Fprintf(out, "%s:%d: in %s: %s\n", rel, r.line, r.function, r.text)
				}
			}
		}
	}
	if all == 0 {
		return fmt.Errorf("no error return found under %s: run it at the repository's root", root)
	}
	fmt.Fprintf(out, "%d of %d error returns of the durable path reached (%.0f %%)\n", reached, all, 100*float64(reached)/float64(all))
	return never.report(out)
}

// block is a stretch of code and whether it was run.
type block struct {
	from, to [2]int // line, column
	run      bool
}

type profile map[string][]block

// add reads what go test -coverprofile writes: lines such as
// path/file.go:12.34,15.2 3 1.
func (p profile) add(r io.Reader) error {
	scan := bufio.NewScanner(r)
	for n := 1; scan.Scan(); n++ {
		line := scan.Text()
		if strings.HasPrefix(line, "mode:") {
			continue
		}
		bad := fmt.Errorf("line %d of the profile: %q", n, line)
		file, rest, ok := strings.Cut(line, ":")
		fields := strings.FieldsFunc(rest, func(c rune) bool { return c == '.' || c == ',' || c == ' ' })
		if !ok || len(fields) != 6 {
			return bad
		}
		var v [6]int
		for i, s := range fields {
			var err error
			if v[i], err = strconv.Atoi(s); err != nil {
				return bad
			}
		}
		file = strings.TrimPrefix(file, module)
		p[file] = append(p[file], block{[2]int{v[0], v[1]}, [2]int{v[2], v[3]}, v[5] > 0})
	}
	return scan.Err()
}

// reached says whether a place was run, by any of the profile's packages.
func (p profile) reached(file string, line, column int) bool {
	at := [2]int{line, column}
	for _, b := range p[file] {
		if b.run && slices.Compare(b.from[:], at[:]) <= 0 && slices.Compare(at[:], b.to[:]) < 0 {
			return true
		}
	}
	return false
}

// errorReturn is one return statement that gives an error.
type errorReturn struct {
	line, column   int
	function, text string
	guard          string // the line above it
}

func errorReturns(file string) ([]errorReturn, error) {
	src, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	set := token.NewFileSet()
	tree, err := parser.ParseFile(set, file, src, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	var out []errorReturn
	var visit func(name string, t *ast.FuncType, body ast.Node)
	visit = func(name string, t *ast.FuncType, body ast.Node) {
		ast.Inspect(body, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncLit:
				visit(name, n.Type, n.Body)
				return false
			case *ast.ReturnStmt:
				if givesError(t) && len(n.Results) > 0 && isError(n.Results[len(n.Results)-1]) {
					at := set.Position(n.Pos())
					text, _, _ := strings.Cut(string(src[at.Offset:]), "\n")
					out = append(out, errorReturn{at.Line, at.Column, name, strings.TrimSpace(text), lineAbove(src, at.Offset)})
				}
			}
			return true
		})
	}
	for _, d := range tree.Decls {
		if f, ok := d.(*ast.FuncDecl); ok && f.Body != nil {
			visit(f.Name.Name, f.Type, f.Body)
		}
	}
	return out, nil
}

// lineAbove is the line before the one that src[at] is in, without its indentation.
func lineAbove(src []byte, at int) string {
	lines := strings.Split(string(src[:at]), "\n")
	if len(lines) < 2 {
		return ""
	}
	return strings.TrimSpace(lines[len(lines)-2])
}

func givesError(t *ast.FuncType) bool {
	if t.Results == nil || len(t.Results.List) == 0 {
		return false
	}
	id, ok := t.Results.List[len(t.Results.List)-1].Type.(*ast.Ident)
	return ok && id.Name == "error"
}

// makers are functions that always return an error.
var makers = []string{"Errorf", "New", "Invalidf", "noMemory", "damagedRecord", "waitError", "failure", "damaged", "fail"}

func isError(e ast.Expr) bool {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name != "nil"
	case *ast.SelectorExpr, *ast.StarExpr:
		return true
	case *ast.UnaryExpr:
		return e.Op == token.AND
	case *ast.CallExpr:
		name := ""
		switch f := e.Fun.(type) {
		case *ast.Ident:
			name = f.Name
		case *ast.SelectorExpr:
			name = f.Sel.Name
		}
		return slices.Contains(makers, name)
	}
	return false
}
