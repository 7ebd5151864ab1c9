package cli

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/skepkv/skep/replication/consensus"
	"github.com/skepkv/skep/store"
	"github.com/skepkv/skep/tools/internal/clusterdemo"
	"github.com/skepkv/skep/tools/internal/command"
	"github.com/skepkv/skep/tools/internal/command/commandtest"
	"github.com/skepkv/skep/tools/internal/demo"
	"github.com/skepkv/skep/tools/internal/doctor"
	"github.com/skepkv/skep/tools/internal/inspect"
	"github.com/skepkv/skep/tools/internal/remote"
	"github.com/skepkv/skep/tools/internal/replay"
	"github.com/skepkv/skep/tools/internal/servecmd"
)

const docPath, jsonPath = "../../../docs/reference/cli.md", "../../../docs/reference/cli-json.md"

// results are what commands print with --json, by the heading in docs/reference/cli-json.md.
var results = map[string]any{
	"an error":                command.Failure{},
	"skep gpu status":         gpuStatusResult{},
	"skep recluster":          reclusterResult{},
	"skep inspect clusters":   clustersResult{},
	"skep inspect devices":    inspect.Devices{},
	"skep inspect groups":     inspect.Groups{},
	"skep inspect namespaces": inspect.Namespaces{},
	"skep inspect block":      inspect.Blocks{},
	"skep inspect chain":      inspect.Chain{},
	"skep inspect side":       inspect.Sides{},
	"skep inspect memory":     memoryResult{},
	"skep verify":             store.VerifyReport{},
	"skep rebuild":            store.RebuildReport{},
	"skep scrub":              store.ScrubReport{},
	"skep inspect mrc":        mrcResult{},
	"skep top":                topResult{},
	"skep support":            supportResult{},
	"skep compact":            store.CompactResult{},
	"skep device":             deviceResult{},
	"skep namespace delete":   store.NamespaceDeletion{},
	"skep doctor":             doctor.Report{},
	"skep size":               sizeResult{},
	"skep demo":               demo.Result{},
	"skep cluster demo":       clusterdemo.Result{},
	"skep cluster init":       remote.NodeResult{},
	"skep cluster add":        remote.NodeResult{},
	"skep cluster remove":     remote.RemovedResult{},
	"skep cluster status":     consensus.Status{},
	"skep replay":             replay.Result{},
	"skep serve":              servecmd.Result{},
	"skep config check":       servecmd.Checked{},
	"skep version":            command.VersionResult{},
	"skep put":                remote.ValueResult{},
	"skep get":                remote.ValueResult{},
	"skep del":                remote.DelResult{},
	"skep ls":                 remote.ListResult{},
	"skep ns list":            remote.SpacesResult{},
	"skep ns show":            remote.SpaceRow{},
	"skep ns delete":          remote.RemovalResult{},
	"skep purge":              remote.RemovalResult{},
	"skep status":             remote.StatusResult{},
}

func TestEveryJSONFieldIsDocumented(t *testing.T) {
	t.Parallel()
	commandtest.FieldsAreDocumented(t, jsonPath, results)
}

func TestEveryFlagIsDocumented(t *testing.T) {
	t.Parallel()
	calls := "Commands on a running server" // which have their flags in common
	commandtest.FlagsAreDocumented(t, docPath, &Program, map[string]string{"skep put": calls, "skep get": calls, "skep del": calls, "skep ls": calls,
		"skep ns list": calls, "skep ns show": calls, "skep ns delete": calls, "skep purge": calls, "skep status": calls, "skep top": calls,
		"skep config show": "skep serve", "skep cluster status": calls, "skep cluster remove": calls})
}

func TestDocsExamplesAreCommands(t *testing.T) {
	t.Parallel()
	n := commandtest.ExamplesExist(t, &Program, commandtest.Manuals(t, "../../.."))
	assert.Greater(t, n, 50, "examples were looked at")
}
