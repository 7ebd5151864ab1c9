package lint

import (
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"
)

// wide is how many lines of Go past 120 columns each room has, those of tests with them. It only falls: new lines are
// short, and whoever breaks an old one writes the new figure, rounded up to the next fifty.
var wide = map[string]int{
	".":           70,
	"gpu":         200,
	"index":       50,
	"layout":      100,
	"replication": 150,
	"store":       700,
	"tools":       1150,
	"wire":        500,
}

func TestLinesOnlyGetShorter(t *testing.T) {
	t.Parallel()
	have := map[string]int{}
	for _, f := range files(t, ".go") {
		room, _, below := strings.Cut(filepath.ToSlash(f), "/")
		if !below {
			room = "."
		}
		for line := range strings.Lines(string(read(t, f))) {
			if utf8.RuneCountInString(strings.TrimRight(line, "\n")) > width {
				have[room]++
			}
		}
	}
	for room, n := range have {
		if n > wide[room] {
			t.Errorf("%s has %d lines of Go past %d columns, and may have %d", room, n, width, wide[room])
		}
	}
	for room, most := range wide {
		if n := have[room]; n < most-100 {
			t.Errorf("%s has %d lines of Go past %d columns; write that in place of %d", room, n, width, most)
		}
	}
}
