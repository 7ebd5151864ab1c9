package lab

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/skepkv/skep/tools/internal/command/commandtest"
)

const docPath = "../../../docs/reference/bench.md"

func TestDocsEveryResultHasASchema(t *testing.T) {
	t.Parallel()
	commandtest.PrintsHaveSchemas(t, &Program, Results, "skep-bench help")
}

func TestDocsEveryCommandIsDocumented(t *testing.T) {
	t.Parallel()
	commandtest.CommandsAreDocumented(t, docPath, &Program)
}

func TestDocsExamplesAreCommands(t *testing.T) {
	t.Parallel()
	n := commandtest.ExamplesExist(t, &Program, commandtest.Manuals(t, "../../.."))
	assert.Greater(t, n, 10, "examples were looked at")
}
