package commandtest

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep/tools/internal/command"
)

// Output is what one run of a command left behind.
type Output struct {
	Code           int
	Stdout, Stderr string
}

// Run runs the command in this process with the given standard input. What it prints as JSON has to follow the
// command's schema.
func Run(t *testing.T, p *command.Program, stdin string, args ...string) Output {
	t.Helper()
	var out, err bytes.Buffer
	code := p.Main(t.Context(), args, strings.NewReader(stdin), &out, &err)
	follows(t, p, args, out.String())
	return Output{code, out.String(), err.String()}
}

// OK requires exit code 0 and decodes the JSON on standard output.
func (o Output) OK(t *testing.T) map[string]any {
	t.Helper()
	require.Equal(t, 0, o.Code, "stderr: %s\nstdout: %s", o.Stderr, o.Stdout)
	return o.JSON(t)
}

// JSON decodes the JSON on standard output.
func (o Output) JSON(t *testing.T) map[string]any {
	t.Helper()
	var v map[string]any
	require.NoError(t, json.Unmarshal([]byte(o.Stdout), &v), "stdout: %s", o.Stdout)
	return v
}

// Command is one command as tests see it.
type Command struct {
	Path   []string // the words after the program's name
	Parent bool     // it only has commands of its own
	Takes  func(flag string) bool
}

// Commands lists every command that is shown, the program itself first.
func Commands(p *command.Program) (out []Command) {
	var walk func(c *cobra.Command, path []string)
	walk = func(c *cobra.Command, path []string) {
		takes := func(flag string) bool { return c.Flags().Lookup(flag) != nil || c.InheritedFlags().Lookup(flag) != nil }
		out = append(out, Command{path, c.HasAvailableSubCommands() && command.OnlyParent(c), takes})
		for _, s := range c.Commands() {
			if !s.Hidden {
				walk(s, append(path[:len(path):len(path)], s.Name()))
			}
		}
	}
	root := p.Root()
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	walk(root, nil)
	return out
}

// RefusesWhatItDoesNotKnow requires that a mistake on the command line ends every command with 2, on standard
// error as text and, when --json is anywhere among the arguments, on standard output as JSON.
func RefusesWhatItDoesNotKnow(t *testing.T, p *command.Program, commands []Command) {
	for _, c := range commands {
		t.Run(strings.Join(append([]string{p.Name}, c.Path...), " "), func(t *testing.T) {
			refused := func(args ...string) {
				t.Helper()
				o := Run(t, p, "", append(slices.Clone(c.Path), args...)...)
				assert.Equal(t, 2, o.Code, "%v: %s", args, o.Stderr)
				assert.NotEmpty(t, o.Stderr)
				if slices.Contains(args, "--json") {
					e := o.JSON(t)["error"].(map[string]any)
					assert.Equal(t, "invalid", e["kind"])
					assert.NotEmpty(t, e["next"], "what to do is said")
				}
			}
			refused("--nope", "--json")
			refused("--json", "--nope")
			if c.Parent {
				refused("bogus", "--json")
			}
			if c.Parent && len(c.Path) > 0 { // the program alone shows its help
				refused("--json")
			}
			if len(c.Path) > 0 && c.Path[0] == "help" {
				refused("bogus", "--json")
			}
		})
	}
}

// full is a file system without room: it takes so many bytes, and no more.
type full struct{ room int }

func (f *full) Write(p []byte) (int, error) {
	if f.room -= len(p); f.room < 0 {
		return 0, syscall.ENOSPC
	}
	return len(p), nil
}

// FailsWhereItsOutputIsLost requires that calls that succeed fail where what they print is lost: it is their
// result, whatever else went well. The help of the commands is printed, too.
func FailsWhereItsOutputIsLost(t *testing.T, p *command.Program, commands []Command, calls ...[]string) {
	for _, c := range commands {
		calls = append(calls, append(slices.Clone(c.Path), "--help"))
	}
	for _, args := range calls {
		t.Run(strings.Join(args[:min(2, len(args))], " "), func(t *testing.T) {
			for _, room := range []int{0, 20} {
				var stderr bytes.Buffer
				code := p.Main(t.Context(), args, strings.NewReader(""), &full{room}, &stderr)
				assert.Equal(t, 1, code, "%v, room for %d bytes", args, room)
				assert.Contains(t, stderr.String(), "no space left", "%v", args)
			}
		})
	}
}
