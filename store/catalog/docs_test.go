package catalog

import (
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

// oneLine is the text without its line breaks, which move when a paragraph is filled anew.
func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }

// docs/reference/format.md says of the root row what the code does.
func TestDocsRootRow(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/reference/format.md")
	require.NoError(t, err)
	_, section, _ := strings.Cut(string(text), "## Root row\n")
	section, _, _ = strings.Cut(section, "\n## ")
	require.Contains(t, section, "| 0 | 8 | magic | `"+rootMagic+"` |\n| 8 | 4 | format | "+strconv.Itoa(FormatVersion)+" |\n| 12 | 16 | store id |")
	require.Contains(t, oneLine(section), "Flags: "+strconv.Itoa(rootClean)+" closed in order; "+strconv.Itoa(rootRelog)+" the catalog was made anew")
	require.Contains(t, oneLine(section), "so the next open logs all names again; "+strconv.Itoa(rootLimits)+" two numbers follow")
	s := StoreState{StoreID: [16]byte{1}, Secret: [16]byte{2}, Clean: true, Relog: true, NextSeq: 3, FlushedSeq: 4, NextGroup: 5, NextInstance: 6, NextNamespace: 7,
		Epoch: 8, Lasting: 9, Limits: Limits{Known: true, Capacity: 10, Devices: 11}}
	want := append([]byte(rootMagic), FormatVersion, 0, 0, 0)
	want = append(append(want, s.StoreID[:]...), s.Secret[:]...)
	require.Equal(t, append(want, rootClean|rootRelog|rootLimits, 3, 4, 5, 6, 7, 8, 9, 10, 11), s.encode())
}

// docs/reference/format.md says of side rows what the code does.
func TestDocsSideRows(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/reference/format.md")
	require.NoError(t, err)
	section := func(name string) string {
		_, rest, ok := strings.Cut(string(text), "### "+name+"\n")
		require.True(t, ok, name)
		rest, _, _ = strings.Cut(rest, "\n#")
		return rest
	}
	field := regexp.MustCompile(`(?m)^\| (\d+) \| (\d+) \| ([a-z ]+) \|`)
	at := map[string]int{"row": 0, "instance": 1, "salt tag": 5, "key": 21, "edition": sideRootKey, "number": sideRootKey + 8}
	for name, size := range map[string]int{"Side root key": sideRootKey, "Side piece key": sidePieceKey} {
		end := 0
		for _, m := range field.FindAllStringSubmatch(section(name), -1) {
			off, _ := strconv.Atoi(m[1])
			n, _ := strconv.Atoi(m[2])
			require.Equal(t, end, off, "%s: %s", name, m[3])
			require.Equal(t, at[m[3]], off, "%s: %s", name, m[3])
			end = off + n
		}
		require.Equal(t, size, end, name)
	}
	id := SideID{Instance: 1}
	require.Len(t, id.rootKey(), sideRootKey)
	require.Len(t, id.piece(1, 2), sidePieceKey)
	limits := section("Side row limits")
	require.Contains(t, limits, "| MaxSidePieceBytes | "+strconv.Itoa(skep.MaxSidecarPieceBytes)+" |")
	require.Contains(t, limits, "| MaxSidePieces | "+strconv.Itoa(skep.MaxSidecarPieces)+" |")
	for k := skep.SidecarHeader; k <= skep.SidecarMedoids; k++ {
		require.Contains(t, oneLine(section("Side root key")), strconv.Itoa(int(k))+" "+k.String())
	}
}
