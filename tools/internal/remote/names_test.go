package remote_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/tools/internal/cli"
	"github.com/skepkv/skep/tools/internal/command"
	"github.com/skepkv/skep/tools/internal/command/commandtest"
	"github.com/skepkv/skep/wire/auth"
)

// Of numbers 0 to 15 are Redis databases, and the others namespaces', as the help says.
func TestANamespaceByItsNumber(t *testing.T) {
	t.Parallel()
	st := memory(t)
	numbers := map[string]skep.NamespaceID{}
	for i := range 18 {
		n, err := st.OpenNamespace(t.Context(), skep.NamespaceSpec{Tenant: auth.DefaultTenant, Name: fmt.Sprint("n", i),
			Shape: skep.Shape{Kind: skep.Opaque, BlockTokens: 1}})
		require.NoError(t, err)
		numbers[n.Name] = n.ID
	}
	s := begin(t, st, nil)
	number := fmt.Sprint(numbers["n17"])
	o := at(t, s.at["wire"], "purge", "--ns", number, "--yes", "--json").OK(t)
	assert.EqualValues(t, 1, o["namespaces"])
	at(t, s.at["wire"], "ls", "--ns", number, "--json").OK(t)
	low := at(t, s.at["wire"], "purge", "--ns", fmt.Sprint(numbers["n1"]), "--yes")
	assert.Equal(t, command.NotFound, low.Code, "a database, into which nothing was put")
	assert.Contains(t, low.Stderr, "goes by its name")
	assert.Equal(t, command.Input, at(t, s.at["wire"], "get", "k", "--ns", number).Code)
	assert.Equal(t, command.NotFound, at(t, s.at["wire"], "purge", "--ns", "4711", "--yes").Code)
}

// A client that opens a namespace chooses its name: it makes no row of its own, no answer of the command, and nothing
// that a terminal obeys.
func TestANameDoesNothingToATerminal(t *testing.T) {
	t.Parallel()
	const name = "a\x1b[2J\n1\tprod\nnext: skep purge --yes"
	st := memory(t)
	_, err := st.OpenNamespace(t.Context(), skep.NamespaceSpec{Tenant: auth.DefaultTenant, Name: name,
		Model: "m\x1b]0;\a\u009b\r", Shape: skep.Shape{Kind: skep.Opaque, BlockTokens: 16}, Chained: true})
	require.NoError(t, err)
	s := begin(t, st, nil)
	harmless := func(text string, lines int) {
		t.Helper()
		assert.False(t, strings.ContainsAny(text, "\x1b\r\a\u009b"), "%q", text)
		assert.Equal(t, lines, strings.Count(text, "\n"), "%q", text)
		assert.NotContains(t, text, "\nnext: skep purge")
	}
	list := at(t, s.at["wire"], "ns", "list")
	require.Zero(t, list.Code, list.Stderr)
	harmless(list.Stdout, 2)
	harmless(at(t, s.at["wire"], "ns", "show", name).Stdout, 7)
	o := at(t, s.at["wire"], "ns", "list", "--json").OK(t)
	assert.Equal(t, name, o["namespaces"].([]any)[0].(map[string]any)["name"], "JSON has it as it is")

	asked := commandtest.Run(t, &cli.Program, "n\n", "ns", "delete", name, "--server", s.at["wire"])
	assert.Equal(t, command.Input, asked.Code)
	harmless(asked.Stderr, 2)
	lost := at(t, s.at["wire"], "ns", "show", name+"?")
	assert.Equal(t, command.NotFound, lost.Code)
	harmless(lost.Stderr, 4)
	done := at(t, s.at["wire"], "ns", "delete", name, "--yes")
	require.Zero(t, done.Code, done.Stderr)
	harmless(done.Stdout, 1)
}
