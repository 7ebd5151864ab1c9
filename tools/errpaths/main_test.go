package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const source = `package store

func a() error {
	if err := b(); err != nil {
		return err
	}
	return b()
}

func b() error {
	return &Error{}
}

func c() (int, error) {
	f := func() error { return errFull }
	return 1, f()
}

func d() (int, error) { return 1, nil }
`

func TestErrorReturns(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "put.go")
	require.NoError(t, os.WriteFile(file, []byte(source), 0o644))
	list, err := errorReturns(file)
	require.NoError(t, err)
	require.Equal(t, []errorReturn{{5, 3, "a", "return err", "if err := b(); err != nil {"}, {11, 2, "b", "return &Error{}", "func b() error {"},
		{15, 22, "c", "return errFull }", "func c() (int, error) {"}}, list)
}

func TestWhatWasNotReached(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(root, "store"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(root, "store", "put.go"), []byte(source), 0o644))
	cover := filepath.Join(root, "cover.out")
	// Two packages ran the same code: one of them reached the first return.
	text := "mode: set\n" + module + "store/put.go:4.30,6.3 1 0\n" + module + "store/put.go:4.30,6.3 1 1\n" + module + "store/put.go:10.16,12.2 1 0\n"
	require.NoError(t, os.WriteFile(cover, []byte(text), 0o644))
	var out strings.Builder
	require.NoError(t, run([]string{cover}, root, "", &out))
	require.Equal(t, "store/put.go:11: in b: return &Error{}\nstore/put.go:15: in c: return errFull }\n1 of 3 error returns of the durable path reached (33 %)\n", out.String())
}

// What cannot be reached is listed; what is listed and reached, or is not there, is an error.
func TestWhatCannotBeReached(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(root, "store"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(root, "store", "put.go"), []byte(source), 0o644))
	cover := filepath.Join(root, "cover.out")
	require.NoError(t, os.WriteFile(cover, []byte("mode: set\n"+module+"store/put.go:4.30,6.3 1 1\n"), 0o644))
	var out strings.Builder
	require.NoError(t, run([]string{cover}, root, "# for readers\n\nstore/put.go b\nfunc b() error {\nit is said\nto be so\n", &out))
	require.Contains(t, out.String(), "1 of 2 error returns")
	require.Contains(t, out.String(), "it is said to be so")
	for list, want := range map[string]string{
		"store/put.go a\nif err := b(); err != nil {\nit is said": "reached, and unreachable.txt says that it cannot be",
		"store/put.go b\nif false {\nit is said":                  "any more",
		"store/put.go b":                                          "and a reason",
	} {
		require.ErrorContains(t, run([]string{cover}, root, list, &out), want)
	}
}

func TestBadProfile(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"nonsense", "a.go:1.2,3.4 5", "a.go:1.2,3.x 5 6"} {
		require.ErrorContains(t, profile{}.add(strings.NewReader(text)), "line 1 of the profile", text)
	}
}

// A file that was renamed would fall out of the figure unseen.
func TestTheDurablePathIsThere(t *testing.T) {
	t.Parallel()
	for _, pattern := range durablePath {
		files, err := filepath.Glob(filepath.Join("..", "..", pattern))
		require.NoError(t, err)
		require.NotEmpty(t, files, pattern)
	}
}

// What works together on the durable path is in it together: a file that is split off would
// fall out of the figure unseen.
func TestFilesOfOneTaskAreInTheDurablePath(t *testing.T) {
	t.Parallel()
	root := filepath.Join("..", "..")
	for _, task := range []string{
		"store/rebuild*.go", "store/internal/rebuild/*.go", "store/internal/clean/*.go", "store/internal/ingest/*.go", "store/internal/commit/*.go",
		"store/catalog/load*.go",
	} {
		files, err := filepath.Glob(filepath.Join(root, task))
		require.NoError(t, err)
		require.NotEmpty(t, files, task)
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			rel, err := filepath.Rel(root, file)
			require.NoError(t, err)
			require.True(t, slices.ContainsFunc(durablePath, func(pattern string) bool {
				ok, err := filepath.Match(pattern, filepath.ToSlash(rel))
				require.NoError(t, err)
				return ok
			}), rel)
		}
	}
}
