package main

import (
	"debug/elf"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// declared are the functions that skep.h declares, sorted.
func declared(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile("skep.h")
	require.NoError(t, err)
	return matches(text, `(?m)^int (skep_\w+)\(`)
}

// matches are the first groups of an expression, sorted.
func matches(text []byte, expression string) (out []string) {
	for _, m := range regexp.MustCompile(expression).FindAllSubmatch(text, -1) {
		out = append(out, string(m[1]))
	}
	slices.Sort(out)
	return out
}

// What is exported is what skep.h declares.
func TestTheMapOfExportsIsTheHeaders(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("exports.map")
	require.NoError(t, err)
	require.Equal(t, declared(t), matches(text, `(?m)^\t\t(\w+);$`))
	require.Equal(t, []string{"*"}, matches(text, `(?m)^\tlocal: (.*);$`))
}

// Lines of skep.h fit into 120 columns, of which a tab takes four.
func TestTheHeadersLinesAreShort(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("skep.h")
	require.NoError(t, err)
	for line := range strings.Lines(strings.ReplaceAll(string(text), "\t", "    ")) {
		require.LessOrEqual(t, len(strings.TrimRight(line, "\n")), 120, line)
	}
}

// A library has the name that programs ask for. Of all that is in it they see what skep.h declares, under a version:
// nothing of Go's, of Pebble's compressors, or of how the driver is called.
func TestALibraryExportsWhatTheHeaderDeclares(t *testing.T) {
	t.Parallel()
	lib, err := elf.Open(built(t))
	require.NoError(t, err)
	defer lib.Close()
	soname, err := lib.DynString(elf.DT_SONAME)
	require.NoError(t, err)
	require.Equal(t, []string{"libskep.so.1"}, soname)
	versions, err := lib.DynamicVersions()
	require.NoError(t, err)
	called := map[uint16]string{}
	for _, v := range versions {
		called[v.Index] = v.Name
	}
	symbols, err := lib.DynamicSymbols()
	require.NoError(t, err)
	var names []string
	for _, s := range symbols {
		if s.Section == elf.SHN_UNDEF || s.Section == elf.SHN_ABS && s.Name == "SKEP_1" {
			continue
		}
		names = append(names, s.Name)
		require.True(t, s.HasVersion, s.Name)
		require.Equal(t, "SKEP_1", called[s.VersionIndex.Index()], s.Name)
	}
	slices.Sort(names)
	require.Equal(t, declared(t), names)
}
