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
	calls, stores := "Commands on a running server", "Commands on a store" // which have their flags in common
	elsewhere := map[string]string{}
	for _, path := range []string{"serve", "config show", "replay", "size", "demo", "cluster demo"} {
		elsewhere["skep "+path] = commandtest.InHelp // those of serve are in the page of settings, too, which is made from the code
	}
	for _, path := range []string{"put", "get", "del", "ls", "ns list", "ns show", "ns delete", "purge", "status", "top", "doctor keys",
		"cluster add", "cluster status", "cluster set", "cluster remove", "cluster repair"} {
		elsewhere["skep "+path] = calls
	}
	for _, path := range []string{"verify", "rebuild", "scrub", "compact", "namespace delete", "device list", "device add", "device drain",
		"device remove", "device replace", "inspect clusters", "recluster", "support"} {
		elsewhere["skep "+path] = stores
	}
	commandtest.FlagsAreDocumented(t, docPath, &Program, elsewhere)
}

func TestDocsExamplesAreCommands(t *testing.T) {
	t.Parallel()
	n := commandtest.ExamplesExist(t, &Program, commandtest.Manuals(t, "../../.."))
	assert.Greater(t, n, 50, "examples were looked at")
}
