package lint

import (
	"go/parser"
	"go/token"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// operators are the packages of tools/ that skep is made of, and what each is there for. Who runs a store installs
// nothing that measures: that is skep-bench.
var operators = map[string]string{
	"tools/skep":                 "the command",
	"tools/internal/cli":         "its subcommands",
	"tools/internal/command":     "what all commands share",
	"tools/internal/member":      "the directory of a node that agrees on its cluster's map",
	"tools/internal/demo":        "skep demo",
	"tools/internal/clusterdemo": "skep cluster demo",
	"tools/internal/chat":        "the demo's workload",
	"tools/internal/trace":       "requests of a workload, as the demo replays them",
	"tools/internal/replay":      "skep replay and the demo's, which compare every byte",
	"tools/internal/replaycmd":   "the flags of skep replay",
	"tools/internal/payload":     "the bytes that it puts and compares",
	"tools/internal/hist":        "the demo's latencies",
	"tools/internal/page":        "the demo's page of charts",
	"tools/internal/self":        "the demo's first process, which is killed",
	"tools/internal/doctor":      "skep doctor, skep version",
	"tools/internal/size":        "skep size",
	"tools/internal/inspect":     "skep inspect",
	"tools/internal/serve":       "skep serve",
	"tools/internal/servecmd":    "its flags",
	"tools/internal/kvevents":    "what routers are told, over ZeroMQ",
	"tools/internal/secret":      "who may read files with secrets in them",
	"tools/internal/objectstore": "object storage behind the drives: its settings, and how it is opened",
	"tools/internal/support":     "skep support",
	"tools/internal/top":         "skep top",
	"tools/internal/units":       "sizes, rates and durations as people write them",
	"tools/internal/remote":      "skep put, get, del, ls, ns, purge, status, cluster",
}

// laboratory are the packages that measure. None of them gets into the list above.
var laboratory = []string{"tools/internal/bench", "tools/internal/bench/enginesbench",
	"tools/internal/bench/routebench", "tools/internal/bench/scalebench", "tools/internal/bench/sparsebench",
	"tools/internal/engine",
	"tools/internal/lab", "tools/internal/reclaim",
	"tools/internal/report", "tools/internal/ttft", "tools/internal/workload", "tools/skep-bench"}

// numeric are beginnings of paths of modules that compute or draw figures: the engine has what it needs of them, and
// skep's own packages need none.
var numeric = []string{"gonum.org/", "github.com/go-echarts/", "github.com/wcharczuk/go-chart"}

// imported are the packages of the first module with what their files import, whatever the system and the tags;
// tests aside.
func imported(t *testing.T) map[string][]string {
	out := map[string][]string{}
	for _, f := range files(t, ".go") {
		if strings.HasSuffix(f, "_test.go") || strings.Contains(f, "testdata/") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, f), nil, parser.ImportsOnly)
		require.NoError(t, err)
		pkg := path.Dir(f)
		for _, spec := range file.Imports {
			to, err := strconv.Unquote(spec.Path.Value)
			require.NoError(t, err)
			out[pkg] = append(out[pkg], to)
		}
	}
	return out
}

// madeOf says which packages of the first module from is made of, and what of that is not the operators'.
func madeOf(imports map[string][]string, from string) (seen map[string]bool, found []string) {
	seen = map[string]bool{from: true}
	for todo := []string{from}; len(todo) > 0; todo = todo[1:] {
		pkg := todo[0]
		if strings.HasPrefix(pkg, "tools/") && operators[pkg] == "" {
			found = append(found, pkg+" is not among the operators' packages")
			continue
		}
		for _, to := range imports[pkg] {
			if strings.HasPrefix(pkg, "tools/") && slices.ContainsFunc(numeric, func(n string) bool { return strings.HasPrefix(to, n) }) {
				found = append(found, pkg+" imports "+to)
			}
			if own, ok := strings.CutPrefix(to, module+"/"); ok && !seen[own] {
				seen[own] = true
				todo = append(todo, own)
			}
		}
	}
	return seen, found
}

func TestSkepHasNoLaboratory(t *testing.T) {
	t.Parallel()
	imports := imported(t)
	seen, found := madeOf(imports, "tools/skep")
	for _, f := range found {
		t.Errorf("skep: %s", f)
	}
	for pkg := range operators {
		assert.True(t, seen[pkg], "skep is not made of %s any more", pkg)
		assert.NotContains(t, laboratory, pkg)
	}
}

func TestTheRuleOnTheLaboratoryFindsIt(t *testing.T) {
	t.Parallel()
	own := func(pkg string) string { return module + "/" + pkg }
	_, found := madeOf(map[string][]string{
		"tools/skep":          {"os", own("tools/internal/cli")},
		"tools/internal/cli":  {own("tools/internal/demo"), own("store")},
		"tools/internal/demo": {own("tools/internal/bench"), "gonum.org/v1/plot"},
		"store":               {own("index/coact")},
		"index/coact":         {"gonum.org/v1/gonum/blas"},
	}, "tools/skep")
	require.ElementsMatch(t, []string{"tools/internal/bench is not among the operators' packages", "tools/internal/demo imports gonum.org/v1/plot"}, found)
}
