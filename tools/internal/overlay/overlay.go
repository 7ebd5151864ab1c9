// Package overlay writes changed copies of source files for go build's -overlay, which builds them in the
// originals' place. Lines stay where they are, so that what a test prints names lines of the originals.
package overlay

import (
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Edit replaces the bytes [From, To) of a file by Text, which has no line break.
type Edit struct {
	From, To int
	Text     string
}

// File is one source file to be copied with edits.
type File struct {
	Path string // from the repository's root, with slashes
	Src  []byte
	Set  *token.FileSet
	Tree *ast.File

	edits []Edit
}

// Parse gives a file without edits.
func Parse(path string, src []byte) (*File, error) {
	set := token.NewFileSet()
	tree, err := parser.ParseFile(set, path, src, parser.SkipObjectResolution|parser.ParseComments)
	if err != nil {
		return nil, err
	}
	return &File{Path: path, Src: src, Set: set, Tree: tree}, nil
}

// Offset is where p is in Src.
func (f *File) Offset(p token.Pos) int { return f.Set.Position(p).Offset }

// Text is the source of n.
func (f *File) Text(n ast.Node) string { return string(f.Src[f.Offset(n.Pos()):f.Offset(n.End())]) }

// Replace adds an edit of the source between two places.
func (f *File) Replace(from, to token.Pos, text string) {
	f.edits = append(f.edits, Edit{f.Offset(from), f.Offset(to), text})
}

// Insert adds text at a place, behind what was inserted there before.
func (f *File) Insert(at token.Pos, text string) { f.Replace(at, at, text) }

// Import adds an import of path, on the line of the package clause.
func (f *File) Import(path string) { f.Insert(f.Tree.Name.End(), fmt.Sprintf("; import %q", path)) }

// Changed says whether there are edits.
func (f *File) Changed() bool { return len(f.edits) > 0 }

// Apply gives the source with all edits made.
func (f *File) Apply() []byte {
	slices.SortStableFunc(f.edits, func(a, b Edit) int { return a.From - b.From })
	var out []byte
	at := 0
	for _, e := range f.edits {
		out = append(append(out, f.Src[at:e.From]...), e.Text...)
		at = e.To
	}
	return append(out, f.Src[at:]...)
}

// Write writes a copy of every file under root that matches one of patterns, tests apart, to dir, as change gives it,
// and overlay.json for the compiler. change is told a file's path from root, with slashes.
func Write(root, dir string, patterns []string, change func(path string, src []byte) ([]byte, error)) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	replace := map[string]string{}
	for _, pattern := range patterns {
		files, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			return err
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			from, to, err := copyChanged(root, dir, file, change)
			if err != nil {
				return fmt.Errorf("%s: %w", file, err)
			}
			replace[from] = to
		}
	}
	return WriteJSON(filepath.Join(dir, "overlay.json"), map[string]any{"Replace": replace})
}

func copyChanged(root, dir, file string, change func(path string, src []byte) ([]byte, error)) (from, to string, err error) {
	rel, err := filepath.Rel(root, file)
	if err != nil {
		return "", "", err
	}
	rel = filepath.ToSlash(rel)
	src, err := os.ReadFile(file)
	if err != nil {
		return "", "", err
	}
	text, err := change(rel, src)
	if err != nil {
		return "", "", err
	}
	if from, err = filepath.Abs(file); err != nil {
		return "", "", err
	}
	if to, err = filepath.Abs(filepath.Join(dir, strings.ReplaceAll(rel, "/", "-"))); err != nil {
		return "", "", err
	}
	return from, to, os.WriteFile(to, text, 0o644)
}

// WriteJSON writes v to a file, for people to read too.
func WriteJSON(name string, v any) error {
	b, err := json.MarshalIndent(v, "", "\t")
	if err != nil {
		return err
	}
	return os.WriteFile(name, b, 0o644)
}
