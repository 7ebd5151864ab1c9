package server

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/wire/frames"
)

// The page names every frame with its number, every kind of error with its text, and the
// limits as they are.
func TestDocumentedProtocol(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile(filepath.Join("..", "..", "docs", "reference", "protocol.md"))
	require.NoError(t, err)
	page := string(raw)
	named := strings.NewReplacer(" ", "")
	for typ, name := range frames.TypeText {
		row := fmt.Sprintf("| `%#02x` | ", uint8(typ))
		i := strings.Index(page, row)
		require.Positive(t, i, "%v", typ)
		line, _, _ := strings.Cut(page[i+len(row):], "\n")
		require.True(t, strings.HasPrefix(strings.ToLower(line), named.Replace(name)), "%s: %s", row, line)
		op, ok := operations[typ]
		if !ok {
			continue
		}
		if _, answered := frames.TypeText[typ|frames.Answer]; !op.silent && !answered {
			require.Contains(t, line, fmt.Sprintf("`%#02x`", uint8(typ|frames.Answer)), "%v", typ)
		}
		for _, r := range op.need.Names() {
			require.Contains(t, line, r, "%v", typ)
		}
	}
	for k := skep.Kind(0); !strings.HasPrefix(k.Error(), "error kind"); k++ {
		require.Contains(t, page, fmt.Sprintf("| %d | %s |", k, k), "kind %d", k)
	}
	var l Limits
	l.EnsureDefaults()
	for what, n := range map[string]string{
		fmt.Sprintf("(%d MiB, %d MiB unless set)", l.Body>>20, l.Payload>>20):                    "frames",
		fmt.Sprintf("Welcome's (%d)", l.Calls):                                                   "calls",
		fmt.Sprintf("| %d MiB unless set |", l.Memory>>20):                                       "memory",
		fmt.Sprintf("Welcome's (%d MiB), at least %d MiB", l.Window>>20, frames.LeastWindow>>20): "window",
		fmt.Sprintf("%d KiB, 5 s", frames.MaxHello>>10):                                          "hello",
		fmt.Sprintf("| %d KiB | the same |", shortBody>>10):                                      "short bodies",
		fmt.Sprintf("what %d KiB/s need", l.Rate>>10):                                            "rate",
		"16,384 unless set": "connections",
	} {
		require.Contains(t, page, what, n)
	}
}
