package lint

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// manualWords is how many words the manuals have at most, as `wc -w` counts them: the README and docs/, but for the
// notebook and the pages of bytes (format, layout, protocol). A ratchet: it goes down, and was raised for KV events,
// object storage and joining, of which there was no word, never past the 36,000 that are the goal. Who needs room for
// a new page shortens another one, or leaves to --help, to a package's document or to the notebook what is theirs.
const manualWords = 36_000

func TestDocsManualsStayShort(t *testing.T) {
	t.Parallel()
	ofBytes := []string{"docs/reference/format.md", "docs/reference/layout.md", "docs/reference/protocol.md"}
	n := 0
	for _, f := range files(t, ".md") {
		manual := f == "README.md" || strings.HasPrefix(f, "docs/") && !strings.HasPrefix(f, "docs/notebook/")
		if manual && !slices.Contains(ofBytes, f) {
			n += len(strings.Fields(string(read(t, f))))
		}
	}
	require.Greater(t, n, manualWords/2, "pages were looked at")
	require.LessOrEqual(t, n, manualWords, "the manuals have grown")
	if n < manualWords-1000 {
		t.Errorf("the manuals have %d words: lower manualWords to %d", n, n)
	}
}
