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
	commandtest.FlagsAreDocumented(t, docPath, &Program)
}

func TestDocsExamplesAreCommands(t *testing.T) {
	t.Parallel()
	n := commandtest.ExamplesExist(t, &Program, commandtest.Manuals(t, "../../.."))
	assert.Greater(t, n, 50, "examples were looked at")
}
