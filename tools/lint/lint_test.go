package lint

import (
	"bytes"
	"go/ast"
	"go/format"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const (
	module   = "github.com/skepkv/skep"
	maxLines = 600
)

// root is the repository's root, seen from this package.
const root = "../.."

// files lists the repository's files with one of the suffixes, by path from root.
// What git ignores (bin, bench, dist) and hidden directories but .ci are left out.
func files(t *testing.T, suffixes ...string) []string {
	t.Helper()
	var out []string
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		if d.IsDir() {
			hidden := strings.HasPrefix(d.Name(), ".") && rel != "." && rel != ".ci"
			if hidden || rel == "bin" || rel == "bench" || rel == "dist" {
				return filepath.SkipDir
			}
			return nil
		}
		for _, s := range suffixes {
			if strings.HasSuffix(rel, s) {
				out = append(out, rel)
				break
			}
		}
		return nil
	})
	require.NoError(t, err)
	return out
}

// noCode is a module that only says which tools are used on the others.
const noCode = "tools/dev"

// modules are the directories of the repository's modules, by their paths from the root; the first is the root.
func modules(t *testing.T) (list []string) {
	t.Helper()
	for _, f := range files(t, "go.mod") {
		if dir := filepath.ToSlash(filepath.Dir(f)); dir != noCode {
			list = append(list, dir)
		}
	}
	slices.Sort(list)
	require.Equal(t, ".", list[0])
	return list
}

func read(t *testing.T, rel string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(root, rel))
	require.NoError(t, err)
	return b
}

func TestFilesAreShortAndFormatted(t *testing.T) {
	t.Parallel()
	list := files(t, ".go")
	require.Greater(t, len(list), 100, "the walk sees the repository")
	for _, f := range list {
		src := read(t, f)
		if n := bytes.Count(src, []byte("\n")); n > maxLines {
			t.Errorf("%s has %d lines, must be at most %d: split it where a reader would", f, n, maxLines)
		}
		want, err := format.Source(src)
		if err != nil {
			t.Errorf("%s does not parse: %v", f, err)
		} else if !bytes.Equal(src, want) {
			t.Errorf("%s is not as gofmt would write it", f)
		}
	}
}

func TestPackagesSayWhatTheyAre(t *testing.T) {
	t.Parallel()
	said := map[string]bool{} // by directory
	for _, f := range files(t, ".go") {
		if strings.HasSuffix(f, "_test.go") || strings.Contains(f, "testdata/") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), f, read(t, f), parser.PackageClauseOnly|parser.ParseComments)
		require.NoError(t, err)
		dir := filepath.ToSlash(filepath.Dir(f))
		said[dir] = said[dir] || documented(file)
	}
	for dir, ok := range said {
		if !ok {
			t.Errorf("package %s has no doc comment: write doc.go", dir)
		}
	}
}

func documented(f *ast.File) bool {
	if f.Doc == nil {
		return false
	}
	text := f.Doc.Text()
	return strings.HasPrefix(text, "Package "+f.Name.Name+" ") || f.Name.Name == "main" && strings.HasPrefix(text, "Command ")
}

// elsewhere are beginnings of paths that exist on one machine only. They are put
// together so that this file does not contain them.
var elsewhere = []string{"/wo" + "rk/", "/ro" + "ot/", "/ho" + "me/"}

// beside is the directory next to a checkout in which traces may lie.
const beside = "../sha" + "red"

func TestNothingNamesAMachine(t *testing.T) {
	t.Parallel()
	for _, f := range files(t, ".go", ".md", ".sh", ".mod", ".ci/run", "Makefile", ".json", ".txt", ".html", ".svg") {
		if strings.HasPrefix(f, "tools/internal/trace/testdata/") {
			continue // other people's traces
		}
		src := string(read(t, f))
		for _, word := range elsewhere {
			if i := strings.Index(src, word); i >= 0 {
				t.Errorf("%s:%d names a path of one machine: %s", f, lineOf(src, i), word)
			}
		}
		i := strings.Index(src, beside)
		if i < 0 {
			continue
		}
		if !strings.HasSuffix(f, "_test.go") {
			t.Errorf("%s:%d leads out of the repository: %s", f, lineOf(src, i), beside)
		} else if !strings.Contains(src, ".Skip") {
			t.Errorf("%s:%d needs %s: a test skips by name where it is not there", f, lineOf(src, i), beside)
		}
	}
}

func lineOf(src string, at int) int { return strings.Count(src[:at], "\n") + 1 }
