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
	for section, paths := range map[string][]string{
		// Those of serve are in the page of settings, too, which is made from the code.
		commandtest.InHelp: {"serve", "config show", "replay", "size", "demo", "cluster demo"},
		calls: {"put", "get", "del", "ls", "ns list", "ns show", "ns delete", "purge", "status", "top", "doctor keys",
			"cluster add", "cluster status", "cluster set", "cluster remove", "cluster repair", "cluster recover"},
		stores: {"verify", "rebuild", "scrub", "compact", "namespace delete", "device list", "device add",
			"device drain", "device remove", "device replace", "inspect clusters", "recluster", "support"},
	} {
		for _, path := range paths {
			elsewhere["skep "+path] = section
		}
	}
	commandtest.FlagsAreDocumented(t, docPath, &Program, elsewhere)
}

func TestDocsExamplesAreCommands(t *testing.T) {
	t.Parallel()
	n := commandtest.ExamplesExist(t, &Program, commandtest.Manuals(t, "../../.."))
	assert.Greater(t, n, 50, "examples were looked at")
}
