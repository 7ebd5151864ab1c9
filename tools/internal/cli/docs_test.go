package cli

import (
	"fmt"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store"
	"github.com/skepkv/skep/tools/internal/bench"
	"github.com/skepkv/skep/tools/internal/demo"
	"github.com/skepkv/skep/tools/internal/doctor"
	"github.com/skepkv/skep/tools/internal/inspect"
	"github.com/skepkv/skep/tools/internal/reclaim"
	"github.com/skepkv/skep/tools/internal/replay"
	"github.com/skepkv/skep/tools/internal/ttft"
)

const docPath = "../../../docs/cli.md"

// results are what commands print with --json, by the heading in docs/cli.md.
var results = map[string]any{
	"an error":                failure{},
	"skep replay":             replay.Result{},
	"skep bench restore":      bench.RestoreResult{},
	"skep bench put":          bench.PutResult{},
	"skep bench device":       bench.DeviceResult{},
	"skep bench lookup":       bench.LookupResult{},
	"skep bench overload":     bench.OverloadResult{},
	"skep bench recover":      bench.RecoverResult{},
	"skep bench rebuild":      bench.RebuildResult{},
	"skep bench ttft":         ttft.Row{},
	"skep bench crossover":    ttft.Crossover{},
	"skep bench elastic":      bench.ElasticRow{},
	"skep bench reclaim":      reclaim.Result{},
	"skep gpu status":         gpuStatusResult{},
	"skep bench stream":       bench.StreamResult{},
	"skep bench sparse":       bench.SparseResult{},
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
	"skep bench interfere":    bench.InterfereResult{},
	"skep bench loss":         bench.LossResult{},
	"skep compact":            store.CompactResult{},
	"skep device":             deviceResult{},
	"skep doctor":             doctor.Report{},
	"skep demo":               demo.Result{},
	"skep bench resp":         bench.RESPResult{},
	"skep bench wire":         bench.WireResult{},
	"skep serve":              serveResult{},
	"skep version":            versionResult{},
}

// fieldsOf lists the JSON fields of a type as "path type".
func fieldsOf(prefix string, t reflect.Type) []string {
	var out []string
	for i := range t.NumField() {
		f := t.Field(i)
		if f.Anonymous {
			out = append(out, fieldsOf(prefix, f.Type)...)
			continue
		}
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "" || name == "-" {
			continue
		}
		path := prefix + name
		switch ft := f.Type; {
		case ft == reflect.TypeFor[time.Time]():
			out = append(out, path+" string")
		case ft == reflect.TypeFor[skep.Shape](), ft.Kind() == reflect.Pointer, ft.Kind() == reflect.Map:
			out = append(out, path+" object")
		case ft.Kind() == reflect.Struct:
			out = append(out, fieldsOf(path+".", ft)...)
		case ft.Kind() == reflect.Slice && ft.Elem().Kind() == reflect.Struct:
			out = append(out, fieldsOf(path+"[].", ft.Elem())...)
		case ft.Kind() == reflect.Slice:
			out = append(out, path+" array")
		case ft.Kind() == reflect.String:
			out = append(out, path+" string")
		case ft.Kind() == reflect.Bool:
			out = append(out, path+" boolean")
		case ft.Kind() == reflect.Float64:
			out = append(out, path+" number")
		case ft.ConvertibleTo(reflect.TypeFor[int64]()):
			out = append(out, path+" integer")
		default:
			out = append(out, fmt.Sprintf("%s %v?", path, ft))
		}
	}
	return out
}

func TestEveryJSONFieldIsDocumented(t *testing.T) {
	doc := sections(t)
	row := regexp.MustCompile("^\\| `([^`]+)` \\| (\\w+) \\|")
	for name, v := range results {
		t.Run(name, func(t *testing.T) {
			var documented []string
			for line := range strings.Lines(doc["JSON of "+name]) {
				if m := row.FindStringSubmatch(line); m != nil {
					documented = append(documented, m[1]+" "+m[2])
				}
			}
			want := fieldsOf("", reflect.TypeOf(v))
			slices.Sort(want)
			slices.Sort(documented)
			assert.Equal(t, want, documented)
		})
	}
	for heading := range doc {
		if name, ok := strings.CutPrefix(heading, "JSON of "); ok {
			assert.Contains(t, results, name, "docs/cli.md describes JSON of a command that is not there")
		}
	}
}

// sections are the doc's parts by heading.
func sections(t *testing.T) map[string]string {
	b, err := os.ReadFile(docPath)
	require.NoError(t, err)
	out := map[string]string{}
	heading := ""
	for line := range strings.Lines(string(b)) {
		if strings.HasPrefix(line, "#") {
			heading = strings.TrimSpace(strings.TrimLeft(line, "#"))
			continue
		}
		out[heading] += line
	}
	return out
}

func TestEveryFlagIsDocumented(t *testing.T) {
	doc := sections(t)
	a := &app{}
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		if c.Hidden {
			return
		}
		for _, s := range c.Commands() {
			walk(s)
		}
		path := c.CommandPath()
		c.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) {
			if f.Name == "help" {
				return
			}
			text := ""
			for _, heading := range []string{path, path + " FILE", strings.Join(strings.Fields(path)[:2], " ")} {
				text += doc[heading]
			}
			// bench put has restore's.
			if path == "skep bench put" {
				text += doc["skep bench restore"]
			}
			assert.Contains(t, text, "| `--"+f.Name+"` |", "%s --%s", path, f.Name)
		})
	}
	walk(a.root())
}
