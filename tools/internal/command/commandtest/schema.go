package commandtest

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep/tools/internal/command"
)

// schemas is the directory of JSON Schemas. Tests begin in their package's directory, three below the root, and may
// leave it.
var schemas, errSchemas = filepath.Abs("../../../docs/reference/schema")

// follows requires that the JSON documents that a command wrote follow its schema.
func follows(t *testing.T, p *command.Program, args []string, stdout string) {
	t.Helper()
	c, _, err := p.Root().Find(args)
	if err != nil || c.Hidden || c.DisableFlagParsing || !slices.Contains(args, "--json") {
		return
	}
	require.NoError(t, errSchemas)
	d := json.NewDecoder(strings.NewReader(stdout))
	for {
		var v any
		if err := d.Decode(&v); err != nil { // the end, or a text such as help
			return
		}
		name := c.CommandPath()
		if o, ok := v.(map[string]any); ok {
			if _, failed := o["error"].(map[string]any); failed {
				name = "error"
			}
		}
		s, err := schemaOf(name)
		if assert.NoError(t, err, "what %s prints has no schema", name) {
			assert.Empty(t, misfits("", s, v), "what %s printed is not what its schema says", name)
		}
	}
}

func schemaOf(name string) (map[string]any, error) {
	b, err := os.ReadFile(filepath.Join(schemas, strings.ReplaceAll(name, " ", "-")+".json"))
	if err != nil {
		return nil, err
	}
	var s map[string]any
	return s, json.Unmarshal(b, &s)
}

// misfits says where v, which is at path, is not what schema s says, in the words of JSON Schema that tools/docs
// writes. A field that s does not have is one, too.
func misfits(path string, s map[string]any, v any) []string {
	kind := kindOf(v)
	may, several := s["type"].([]any)
	if !several {
		may = []any{s["type"]}
	}
	if !slices.Contains(may, any(kind)) && !(kind == "integer" && slices.Contains(may, any("number"))) {
		return []string{fmt.Sprintf("%s is %s, not %v", path, kind, s["type"])}
	}
	var out []string
	switch v := v.(type) {
	case map[string]any:
		fields, _ := s["properties"].(map[string]any)
		values, isMap := s["additionalProperties"].(map[string]any)
		for _, name := range slices.Sorted(maps.Keys(v)) {
			field, ok := fields[name].(map[string]any)
			if !ok && isMap {
				field, ok = values, true
			}
			if !ok {
				out = append(out, path+"."+name+" is not in the schema")
				continue
			}
			out = append(out, misfits(path+"."+name, field, v[name])...)
		}
		required, _ := s["required"].([]any)
		for _, name := range required {
			if _, ok := v[name.(string)]; !ok {
				out = append(out, fmt.Sprintf("%s.%s is missing", path, name))
			}
		}
	case []any:
		items, ok := s["items"].(map[string]any)
		if !ok {
			return append(out, path+" has no items in the schema")
		}
		for i, x := range v {
			out = append(out, misfits(fmt.Sprintf("%s[%d]", path, i), items, x)...)
		}
	}
	return out
}

func kindOf(v any) string {
	switch v := v.(type) {
	case nil:
		return "null"
	case bool:
		return "boolean"
	case string:
		return "string"
	case float64:
		if v == math.Trunc(v) {
			return "integer"
		}
		return "number"
	case []any:
		return "array"
	}
	return "object"
}

// PrintsHaveSchemas requires that results, of which tools/docs makes schemas, has each command that prints, and no other. silent are the commands that
// print no JSON of their own.
func PrintsHaveSchemas(t *testing.T, p *command.Program, results map[string]any, silent ...string) {
	want := map[string]bool{}
	for _, c := range Commands(p) {
		name := strings.Join(append([]string{p.Name}, c.Path...), " ")
		if !c.Parent && !slices.Contains(silent, name) {
			want[name] = true
		}
	}
	var have []string
	for name := range results {
		if strings.HasPrefix(name, p.Name+" ") {
			have = append(have, name)
		}
	}
	assert.ElementsMatch(t, slices.Collect(maps.Keys(want)), have)
}
