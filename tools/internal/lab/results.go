package lab

import (
	"github.com/skepkv/skep/tools/internal/bench"
	"github.com/skepkv/skep/tools/internal/bench/enginesbench"
	"github.com/skepkv/skep/tools/internal/bench/routebench"
	"github.com/skepkv/skep/tools/internal/bench/scalebench"
	"github.com/skepkv/skep/tools/internal/bench/sparsebench"
	"github.com/skepkv/skep/tools/internal/command"
	"github.com/skepkv/skep/tools/internal/reclaim"
	"github.com/skepkv/skep/tools/internal/ttft"
)

// Results are what commands print with --json, by command. docs/reference/schema has a JSON Schema of each, which
// tools/docs makes from the types and their comments.
var Results = map[string]any{
	"skep-bench restore":   bench.RestoreResult{},
	"skep-bench put":       bench.PutResult{},
	"skep-bench device":    bench.DeviceResult{},
	"skep-bench lookup":    bench.LookupResult{},
	"skep-bench overload":  bench.OverloadResult{},
	"skep-bench recover":   bench.RecoverResult{},
	"skep-bench rebuild":   bench.RebuildResult{},
	"skep-bench ttft":      []*ttft.Row{},
	"skep-bench crossover": ttft.Crossover{},
	"skep-bench elastic":   []bench.ElasticRow{},
	"skep-bench reclaim":   reclaim.Result{},
	"skep-bench stream":    bench.StreamResult{},
	"skep-bench sparse":    sparsebench.Result{},
	"skep-bench interfere": bench.InterfereResult{},
	"skep-bench loss":      bench.LossResult{},
	"skep-bench resp":      bench.RESPResult{},
	"skep-bench engines":   enginesbench.Result{},
	"skep-bench route":     routebench.Result{},
	"skep-bench cluster":   scalebench.Result{},
	"skep-bench version":   command.VersionResult{},
	"skep-bench wire":      bench.WireResult{},
}
