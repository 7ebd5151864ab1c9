package cli

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/skepkv/skep/tools/internal/command/commandtest"
)

const docPath = "../../../docs/reference/cli.md"

func TestDocsEveryResultHasASchema(t *testing.T) {
	t.Parallel()
	commandtest.PrintsHaveSchemas(t, &Program, Results, "skep help", "skep bench", "skep config show")
}

func TestEveryFlagIsDocumented(t *testing.T) {
	t.Parallel()
	calls := "Commands on a running server" // which have their flags in common
	commandtest.FlagsAreDocumented(t, docPath, &Program, map[string]string{"skep put": calls, "skep get": calls, "skep del": calls, "skep ls": calls,
		"skep ns list": calls, "skep ns show": calls, "skep ns delete": calls, "skep purge": calls, "skep status": calls, "skep top": calls,
		"skep config show": "skep serve", "skep cluster status": calls, "skep cluster set": calls, "skep cluster remove": calls,
		"skep cluster repair": calls, "skep doctor keys": calls})
}

func TestDocsExamplesAreCommands(t *testing.T) {
	t.Parallel()
	n := commandtest.ExamplesExist(t, &Program, commandtest.Manuals(t, "../../.."))
	assert.Greater(t, n, 50, "examples were looked at")
}
