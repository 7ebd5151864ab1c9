package commandtest

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
	"github.com/skepkv/skep/tools/internal/command"
)

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

// FieldsAreDocumented requires that the page has each JSON field of what commands print, by the command's name,
// under "JSON of" that name, and no other.
func FieldsAreDocumented(t *testing.T, page string, results map[string]any) {
	doc := sections(t, page)
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
			assert.Contains(t, results, name, "%s describes JSON of a command that is not there", page)
		}
	}
}

// sections are the page's parts by heading.
func sections(t *testing.T, page string) map[string]string {
	b, err := os.ReadFile(page)
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

// FlagsAreDocumented requires that the page has each flag of each command that is shown, in a section of the
// command's name, or of words that it begins with. elsewhere says where else flags of a command may be.
func FlagsAreDocumented(t *testing.T, page string, p *command.Program, elsewhere map[string]string) {
	doc := sections(t, page)
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
			if f.Name == "help" || f.Hidden {
				return
			}
			text := doc[elsewhere[path]]
			text += doc[path+" FILE"]
			for words := strings.Fields(path); len(words) > 0; words = words[:len(words)-1] {
				text += doc[strings.Join(words, " ")]
			}
			assert.Contains(t, text, "| `--"+f.Name+"` |", "%s --%s", path, f.Name)
		})
	}
	walk(p.Root())
}
