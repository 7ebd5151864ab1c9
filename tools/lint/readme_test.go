package lint

import (
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var goFence = regexp.MustCompile("(?ms)^```go\n(.*?)^```")

// The README's Go is taken, line by line and in this order or another, from the example
// that runs as a test.
func TestDocsReadmeCodeIsTheExample(t *testing.T) {
	t.Parallel()
	example := map[string]bool{}
	for _, line := range strings.Split(string(read(t, "example_test.go")), "\n") {
		example[strings.TrimSpace(line)] = true
	}
	blocks := goFence.FindAllStringSubmatch(string(read(t, "README.md")), -1)
	require.NotEmpty(t, blocks)
	for _, b := range blocks {
		for _, line := range strings.Split(b[1], "\n") {
			if line = strings.TrimSpace(line); line != "" && !example[line] {
				t.Errorf("README.md shows a line that example_test.go does not have: %s", line)
			}
		}
	}
}
