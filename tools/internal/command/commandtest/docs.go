package commandtest

import (
	"os"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep/tools/internal/command"
)

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

// InHelp stands for the section of commands whose flags the page leaves to --help.
const InHelp = "--help"

// FlagsAreDocumented requires that the page has each flag of each command that is shown, in a section of the
// command's name, or of words that it begins with. elsewhere says where else flags of a command may be; where it says
// InHelp, the page has a section without them, and --help has their meaning.
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
			if elsewhere[path] == InHelp {
				assert.NotEmpty(t, text, path)
				assert.NotEmpty(t, f.Usage, "%s --%s", path, f.Name)
				return
			}
			assert.Contains(t, text, "| `--"+f.Name+"` |", "%s --%s", path, f.Name)
		})
	}
	walk(p.Root())
}

// CommandsAreDocumented requires that the page has a row of each command that is shown, and that --help says what the
// command does and what each flag means: such a page leaves both to it.
func CommandsAreDocumented(t *testing.T, page string, p *command.Program) {
	b, err := os.ReadFile(page)
	require.NoError(t, err)
	for _, c := range p.Root().Commands() {
		if c.Hidden || c.Name() == "help" || c.Name() == "completion" || c.Name() == "version" {
			continue
		}
		assert.Contains(t, string(b), "\n| `"+c.CommandPath()+"` |")
		assert.NotEmpty(t, c.Long, c.CommandPath())
		c.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) {
			assert.True(t, f.Hidden || f.Usage != "", "%s --%s", c.CommandPath(), f.Name)
		})
	}
}
