package command

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

// A command that prints what it has and fails leaves one document; one that printed nothing, its failure.
func TestOneDocumentIsPrinted(t *testing.T) {
	t.Parallel()
	for _, printed := range []bool{true, false} {
		p := Program{Name: "test", Commands: func(a *App) []*cobra.Command {
			return []*cobra.Command{{Use: "part", RunE: func(*cobra.Command, []string) (err error) {
				if printed {
					err = a.Print(map[string]int{"blocks": 7}, func(io.Writer) {})
				}
				return errors.Join(&skep.Error{Op: "part", Kind: skep.Deadline}, err)
			}}}
		}}
		var out, errs bytes.Buffer
		require.Equal(t, TryAgain, p.Main(t.Context(), []string{"part", "--json"}, strings.NewReader(""), &out, &errs))
		var v map[string]any
		require.NoError(t, json.Unmarshal(out.Bytes(), &v), out.String())
		require.Equal(t, printed, v["blocks"] != nil)
		require.Equal(t, !printed, v["error"] != nil)
		require.Contains(t, errs.String(), "part")
	}
}
