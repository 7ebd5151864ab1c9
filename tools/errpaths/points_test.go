package main

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep/store/failpoint"
)

const sourceOfPoints = `// Package store is an example.
package store

import "context"

func wait(ctx context.Context, done chan struct{}) (err error) {
	if err := begin(); err != nil && ctx.Err() == nil {
		return err
	}
	select {
	case <-done:
	case <-ctx.Done():
		return errLate
	}
	switch skep.KindOf(err) {
	case skep.Full:
		return errFull
	}
	if err := s.Unsure(save()); err != nil {
		return err
	}
	if err = s.take(ctx); err != nil { // what it took would not be given back
		return err
	}
	other, err := read()
	if other != nil || err == nil {
		return nil
	}
	return err
}
`

// Looks at errors become calls of package failpoint, on the lines they were on.
func TestFailpointsOfAFile(t *testing.T) {
	t.Parallel()
	var all failpoint.List
	text, err := instrument("store/put.go", []byte(sourceOfPoints), &all)
	require.NoError(t, err)
	was, is := strings.Split(sourceOfPoints, "\n"), strings.Split(string(text), "\n")
	require.Len(t, is, len(was))
	changed := map[string]string{}
	for i := range was {
		if was[i] != is[i] {
			changed[strings.TrimSpace(was[i])] = strings.TrimSpace(is[i])
		}
	}
	require.Equal(t, map[string]string{
		"package store": `package store; import "github.com/skepkv/skep/store/failpoint"`,
		"if err := begin(); err != nil && ctx.Err() == nil {": "if err := begin(); failpoint.Is(0, &err) && failpoint.Ended(1, ctx) == nil {",
		"case <-ctx.Done():":                       "case <-failpoint.Case(2, ctx.Done()):",
		"switch skep.KindOf(err) {":                "switch skep.KindOf(failpoint.Of(3, &err)) {",
		"if other != nil || err == nil {":          "if other != nil || !failpoint.Is(5, &err) {",
		"return err":                               "failpoint.Reached(5); return err",
		"if err := s.Unsure(save()); err != nil {": "if err := s.Unsure(failpoint.Gave(4, save())); err != nil {",
		"return errLate":                           "failpoint.Reached(1); return errLate",
		"return errFull":                           "failpoint.Reached(2); return errFull",
	}, changed)
	require.Equal(t, failpoint.Point{File: "store/put.go", Line: 26, Func: "wait", Text: "err == nil", Kind: failpoint.Variable, Of: "read()"}, all.Points[5])
	require.Equal(t, "begin()", all.Points[0].Of)
}

// The copies of the durable path are complete, and no return moved to another line.
func TestOverlay(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	n, err := writeFailpoints(filepath.Join("..", ".."), dir)
	require.NoError(t, err)
	require.Greater(t, n, 300)
	list, err := failpoint.Load(filepath.Join(dir, "points.json"))
	require.NoError(t, err)
	require.Len(t, list.Points, n)
	lines := map[string][]int{}
	for _, r := range list.Returns {
		lines[r.File] = append(lines[r.File], r.Line)
	}
	for file, want := range lines {
		copied, err := errorReturns(filepath.Join(dir, strings.ReplaceAll(file, "/", "-")))
		require.NoError(t, err)
		var got []int
		for _, r := range copied {
			got = append(got, r.line)
		}
		require.Equal(t, want, got, file)
	}
	require.FileExists(t, filepath.Join(dir, "overlay.json"))
}

// Every entry of the list speaks of a return that is there.
func TestTheListOfUnreachableFitsTheSource(t *testing.T) {
	t.Parallel()
	never, err := parseUnreachable(unreachableText)
	require.NoError(t, err)
	require.LessOrEqual(t, len(never), 10, "delete dead code rather than list it")
	for i := range never {
		list, err := errorReturns(filepath.Join("..", "..", never[i].file))
		require.NoError(t, err)
		for _, r := range list {
			never.take(never[i].file, r)
		}
	}
	require.NoError(t, never.report(&strings.Builder{}))
}

// The rules go by names, so what they make of a new line is seen only when it is compiled.
func TestTheEngineCompilesWithFailpoints(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	_, err := writeFailpoints("../..", dir)
	require.NoError(t, err)
	build := exec.Command("go", "build", "-tags", "failpoints", "-overlay", filepath.Join(dir, "overlay.json"), "./store/...")
	build.Dir = "../.."
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)
}
