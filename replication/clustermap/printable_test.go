package clustermap

import (
	"go/parser"
	"go/token"
	"os"
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/require"
)

// What can be printed is what Unicode 15.0.0 says, whatever the package unicode does.
func TestPrintableIsFixed(t *testing.T) {
	t.Parallel()
	require.Len(t, printedBounds(), 1423)
	for r := rune(0); r <= unicode.MaxRune; r++ {
		want := unicode.IsPrint(r)
		if unicode.Version == "15.0.0" && (r < 0xd800 || r > 0xdfff) && printable(string(r)) != want {
			require.Failf(t, "another than Go's", "%U: %v", r, want)
		}
	}
	for text, want := range map[string]bool{"": true, "a b": true, "ж": true, "\U0001fae8": true, "\x7f": false,
		"a\nb": false, "\u00a0": false, "\u200b": false, "\u202e": false, "\u0378": false, "\ufffe": false,
		"\U0010ffff": false, "\xff": false, "\u2ffc": false /* of 15.1 */, "\U000105c0": false /* of 16.0 */} {
		require.Equal(t, want, printable(text), "%q", text)
	}
}

// The tables of package unicode grow with Go: no map is decided on by them.
func TestNoMapIsDecidedByGosUnicode(t *testing.T) {
	t.Parallel()
	list, err := os.ReadDir(".")
	require.NoError(t, err)
	for _, e := range list {
		if name := e.Name(); strings.HasSuffix(name, ".go") && !strings.HasSuffix(name, "_test.go") {
			f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ImportsOnly)
			require.NoError(t, err)
			for _, i := range f.Imports {
				require.NotEqual(t, `"unicode"`, i.Path.Value, name)
			}
		}
	}
}
