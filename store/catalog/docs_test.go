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

// docs/format.md says of side rows what the code does.
func TestDocsSideRows(t *testing.T) {
	text, err := os.ReadFile("../../docs/format.md")
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
	require.Contains(t, limits, "| MaxSidePieceBytes | "+strconv.Itoa(skep.MaxSidePieceBytes)+" |")
	require.Contains(t, limits, "| MaxSidePieces | "+strconv.Itoa(skep.MaxSidePieces)+" |")
	for k := skep.SideHeader; k <= skep.SideMedoids; k++ {
		require.Contains(t, section("Side root key"), strconv.Itoa(int(k))+" "+k.String())
	}
}
