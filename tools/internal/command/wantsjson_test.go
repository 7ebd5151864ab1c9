package command

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Errors of a command line that cannot be read are JSON where it asks for that.
func TestWhoAsksForJSON(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]bool{
		"get k": false, "get k --json": true, "get k --json=false": false, "get k -- --json": false,
		"get k -o json": true, "get k -ojsonl": true, "get k --output json": true, "get k --output=jsonl": true,
		"get k -o table": false, "get json -o": false, "get k -o -- json": false,
	} {
		require.Equal(t, want, wantsJSON(strings.Fields(line)), line)
	}
}
