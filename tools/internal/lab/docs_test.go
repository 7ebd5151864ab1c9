package lab

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/skepkv/skep/tools/internal/bench"
	"github.com/skepkv/skep/tools/internal/command/commandtest"
	"github.com/skepkv/skep/tools/internal/reclaim"
	"github.com/skepkv/skep/tools/internal/ttft"
)

const docPath, jsonPath = "../../../docs/reference/bench.md", "../../../docs/reference/bench-json.md"

// results are what commands print with --json, by the heading in docs/reference/bench-json.md.
var results = map[string]any{
	"skep-bench restore":   bench.RestoreResult{},
	"skep-bench put":       bench.PutResult{},
	"skep-bench device":    bench.DeviceResult{},
	"skep-bench lookup":    bench.LookupResult{},
	"skep-bench overload":  bench.OverloadResult{},
	"skep-bench recover":   bench.RecoverResult{},
	"skep-bench rebuild":   bench.RebuildResult{},
	"skep-bench ttft":      ttft.Row{},
	"skep-bench crossover": ttft.Crossover{},
	"skep-bench elastic":   bench.ElasticRow{},
	"skep-bench reclaim":   reclaim.Result{},
	"skep-bench stream":    bench.StreamResult{},
	"skep-bench sparse":    bench.SparseResult{},
	"skep-bench interfere": bench.InterfereResult{},
	"skep-bench loss":      bench.LossResult{},
	"skep-bench resp":      bench.RESPResult{},
	"skep-bench wire":      bench.WireResult{},
}

func TestEveryJSONFieldIsDocumented(t *testing.T) {
	t.Parallel()
	commandtest.FieldsAreDocumented(t, jsonPath, results)
}

func TestEveryFlagIsDocumented(t *testing.T) {
	t.Parallel()
	commandtest.FlagsAreDocumented(t, docPath, &Program, map[string]string{"skep-bench put": "skep-bench restore"})
}

func TestDocsExamplesAreCommands(t *testing.T) {
	t.Parallel()
	n := commandtest.ExamplesExist(t, &Program, commandtest.Manuals(t, "../../.."))
	assert.Greater(t, n, 10, "examples were looked at")
}
