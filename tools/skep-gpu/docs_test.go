//go:build linux

package main

import (
	"os"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
)

// docs/reference/skep-gpu.md has a section of what lends and of what serves, and leaves their flags to --help.
func TestDocsFlagsAreDocumented(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/reference/skep-gpu.md")
	require.NoError(t, err)
	for _, cmd := range []*cobra.Command{lendCommand(nil, nil), serveCommand(nil)} {
		require.Contains(t, string(page), "\n## skep-gpu "+cmd.Name()+"\n")
		require.NotEmpty(t, cmd.Long)
		n := 0
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			n++
			if f.Hidden {
				return // an older name
			}
			require.NotEmpty(t, f.Usage, "%s --%s", cmd.Name(), f.Name)
		})
		require.Greater(t, n, 5)
	}
}
