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

// FlagsAreDocumented requires that the page has a section of each command that is shown, or of words that it begins
// with, and that --help says what each of its flags means: the page leaves flags to it.
func FlagsAreDocumented(t *testing.T, page string, p *command.Program) {
	doc := sections(t, page)
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		if c.Hidden || c.Name() == "help" || c.Name() == "completion" {
			return
		}
		for _, s := range c.Commands() {
			walk(s)
		}
		text := ""
		for words := strings.Fields(c.CommandPath()); len(words) > 1; words = words[:len(words)-1] {
			text += doc[strings.Join(words, " ")]
		}
		assert.True(t, c.HasSubCommands() || strings.TrimSpace(text) != "", c.CommandPath())
		c.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) {
			assert.True(t, f.Hidden || f.Usage != "", "%s --%s", c.CommandPath(), f.Name)
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
